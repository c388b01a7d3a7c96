//! Each sabotage removes one protection from criswitch, to check that the judge notices.

mod lists;
mod state;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use criswitch::ownership::PodNames;
use criswitch::switch::Switch;
use criswitch_config::{Config, Problems};
use criswitch_cri::codec::admin::Changes;
use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::rpc::{Goes, ImageRule, Kind, Unknown};
use tokio::time::Instant;
use tonic::Code;

use super::client::{Call, Client, Reply, message, of_handler};
use super::files::{Files, RUNTIMES};
use super::filter::Takes;
use super::judge::Asked;
use super::plan::creates;
use super::runtime::{DELETED, event};
use super::tables::runtime_of;
use super::truth::Truth;
use lists::{reachable, undecodable, with_items, without};
pub use state::{of_state_at_end, of_state_at_start};

/// The delay until the sabotaged criswitch reads the table for a call.
const READ_AGAIN: Duration = Duration::from_millis(50);

/// How long the sabotaged criswitch delays a call that need not wait.
const NEEDLESS: Duration = Duration::from_secs(3);

/// The time after which the sabotaged criswitch no longer serves a cached list.
const EXPIRED: Duration = Duration::from_secs(10);

/// The status text for a backend with `auto_register` that has reported nothing, percent-encoded as in the gRPC header.
const UNREPORTED: &str = "has%20not%20reported%20its%20handlers";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sabotage {
    /// A list omits an unreachable backend.
    LeaveOut,
    /// A call for a pod of an unreachable backend gets `NotFound`.
    SayGone,
    /// A create is sent again after its connection broke.
    SendAgain,
    /// A pod with an unknown handler runs in the default handler.
    RunInDefault,
    /// Stop and Remove for an unreachable backend succeed.
    SayDone,
    /// A list shows removed pods.
    ShowRemoved,
    /// A call continues after its deadline.
    IgnoreDeadline,
    /// A create that failed is answered with success and an empty id.
    EmptyId,
    /// A broken stream ends as if it were complete.
    EndBroken,
    /// A call goes to a backend that does not own the pod or container.
    AskAnother,
    /// A removed pod is remembered for ever.
    Remember,
    /// Status fails while a backend has a fault.
    FailStatus,
    /// Status reports that the node is not ready while a backend has a fault.
    CallUnready,
    /// An image is reported as absent when one backend does not answer.
    SayAbsent,
    /// An item is listed twice.
    ListTwice,
    /// A list shows items that a backend claims and another backend owns.
    ShowClaims,
    /// A create succeeds although its backend answers with the id of another backend's pod.
    TakeOver,
    /// A call ends without a status.
    BreakOff,
    /// Events are lost.
    LoseEvents,
    /// A new runtime configuration is accepted and sent to no backend.
    ReportDeletion,
    /// A backend that the table no longer names is dropped at once, even if it owns pods.
    DropAtOnce,
    /// A reload with a mistake applies the files that have no mistake.
    HalfApply,
    /// A backend takes part in calls to all backends before it was ever connected.
    JoinAtOnce,
    /// A call uses a table that is newer than the call.
    GoByNewTable,
    /// A pod is reported under its handler's name at the backend.
    OwnNames,
    /// The cached list of a backend is served without the filter of the call.
    KeepAll,
    /// A list with a filter has no items from cache.
    KeepNothing,
    /// A list of one pod or container is sent to all backends.
    AskAll,
    /// Handlers that are named in no file are not registered.
    RegisterNothing,
    /// A handler that two backends report is routed to the first.
    RegisterOfFirst,
    /// A handler that a backend no longer reports still gets pods.
    KeepDropped,
    /// A handler is rejected although a backend that has not reported yet may have it.
    SayUnknown,
    /// An image call goes to other stores than the store of the handler that it names.
    ForgetStore,
    /// A pull goes to the backend that lists the newest pod with the pod's uid.
    PullForNewest,
    /// A streamed list fails if any backend lacks the RPC.
    PassLacking,
    /// Stats omit a backend that has a fault.
    CacheNoStats,
    /// Stats omit a backend that lacks the RPC, even if the backend has pods.
    LackPods,
    /// An event stream is offered although a backend has no events.
    OfferEvents,
    /// A list never ends while a backend has a fault.
    WaitForEver,
    /// A call waits for a failing backend that it does not need.
    WaitForAll,
    /// The shutdown aborts calls.
    EndAbruptly,
    /// The shutdown waits for no call.
    EndAtOnce,
    /// The state is saved at the start only.
    SkipWrite,
    /// A kill tears the files of all backends, and the readable part is used.
    TrustTorn,
    /// An earlier register is restored, and its content is used.
    TrustOldRegister,
    /// A reboot is handled as a restart.
    IgnoreBoot,
    /// Cached lists are served for a short time only.
    ExpireCache,
    /// Pods and containers created since the last list are not saved.
    ForgetCreated,
    /// Automatically registered handlers are not saved.
    ForgetRegistered,
    /// A merged list or merged stats fail if one backend answers with an error.
    PassError,
    /// A merged list has an item that no client can decode.
    PassUndecodable,
    /// A merged list lacks pods that have passed to another backend.
    LeaveOutPassed,
    /// Pods that have passed to another backend are not saved.
    ForgetPassed,
    /// After a restart, a pod belongs to a backend that lists a copy, and not to the backend that created it.
    ForgetCreator,
    /// A deletion event is sent for a pod that another backend still lists.
    SendDeleted,
    /// A kept status is not dropped when its pod or container ends, and is served later.
    KeepChanged,
    /// A backend that the table no longer names is removed if another backend lists copies.
    DropCopied,
}

/// Makes a call, and returns the reply of the sabotaged criswitch.
pub async fn call(
    sabotage: Option<Sabotage>,
    client: Client,
    asked: &Asked,
    truth: &Mutex<Truth>,
) -> Reply {
    let Some(sabotage) = sabotage else {
        return client.call(&asked.call).await;
    };
    if sabotage == Sabotage::ReportDeletion && asked.updates() {
        return done();
    }
    let asked_for = match sabotage {
        Sabotage::LoseEvents => Call {
            arrived: Arc::default(),
            ..asked.call.clone()
        },
        Sabotage::AskAnother => of_another(&asked.call, truth),
        Sabotage::KeepAll => of_all(&asked.call, truth),
        Sabotage::PullForNewest => of_newest(&asked.call, truth),
        Sabotage::ForgetStore if !asked.call.handler.is_empty() => Call {
            message: message(asked.call.row, &asked.call.names, ""),
            ..asked.call.clone()
        },
        _ => asked.call.clone(),
    };
    if sabotage == Sabotage::GoByNewTable && matches!(asked.call.row.goes, Goes::Handler(_)) {
        tokio::time::sleep(READ_AGAIN).await;
    }
    let faulty = truth.lock().unwrap().health.iter().any(|it| it.faulty);
    let reply = client.clone().call(&asked_for).await;
    match (sabotage, reply.code) {
        (Sabotage::SendAgain, Some(Code::Unavailable)) if creates(asked.call.row) => {
            client.call(&asked.call).await
        }
        (Sabotage::RunInDefault, Some(Code::InvalidArgument)) => {
            let message = message(asked.call.row, "", "any");
            client
                .call(&Call {
                    message,
                    ..asked.call.clone()
                })
                .await
        }
        (Sabotage::OfferEvents, Some(Code::Unimplemented)) if asked.is_events() => {
            go_on(reply, asked).await
        }
        (Sabotage::WaitForEver, _) if faulty && asked.call.row.is_list() => {
            std::future::pending().await
        }
        (Sabotage::WaitForAll, Some(Code::Ok)) if faulty && asked.call.timeout.is_none() => {
            tokio::time::sleep(NEEDLESS).await;
            Reply {
                at: Instant::now(),
                ..reply
            }
        }
        (Sabotage::IgnoreDeadline, Some(Code::DeadlineExceeded)) => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            reply
        }
        _ => changed(sabotage, reply, asked, &truth.lock().unwrap()),
    }
}

fn changed(sabotage: Sabotage, reply: Reply, asked: &Asked, truth: &Truth) -> Reply {
    let (row, silent) = (asked.call.row, reply.code == Some(Code::Unavailable));
    let lists_pods = row.name == "ListPodSandbox" && asked.call.filter.is_empty();
    let narrowed = !asked.call.filter.is_empty();
    let faulty = truth.health.iter().any(|it| it.faulty);
    let unimplemented = reply.code == Some(Code::Unimplemented);
    let mut seen = truth.seen.iter();
    let spoilt = seen.any(|seen| seen.call == asked.call.id && seen.spoilt);
    let is_ok = reply.code == Some(Code::Ok);
    let lacked = (0..RUNTIMES).any(|at| truth.lacks(at, row));
    let ok = |messages: Vec<Bytes>| Reply {
        code: Some(Code::Ok),
        messages,
        ..reply.clone()
    };
    let coded = |code| Reply {
        code: Some(code),
        ..reply.clone()
    };
    match (sabotage, &row.goes) {
        (Sabotage::LeaveOut, _) if lists_pods && silent => {
            ok(vec![reachable(truth, &asked.call.filter)])
        }
        (Sabotage::SayGone, Goes::Owner(_, _, Unknown::NotFound)) if silent => {
            coded(Code::NotFound)
        }
        (Sabotage::SayDone, Goes::Owner(_, _, Unknown::Ok)) if silent => ok(vec![Bytes::new()]),
        (Sabotage::EmptyId, Goes::Handler(_)) if silent => ok(vec![Bytes::new()]),
        (Sabotage::EndBroken, _) if row.is_list() && row.streams() && !is_ok => {
            ok(reply.messages.clone())
        }
        (Sabotage::SayAbsent, _) if row.name == "ImageStatus" && silent => ok(vec![Bytes::new()]),
        (Sabotage::FailStatus, _) if row.name == "Status" && faulty => coded(Code::Unavailable),
        (Sabotage::AskAll, _) if !asked.call.filter.names().is_empty() && faulty => {
            coded(Code::Unavailable)
        }
        (Sabotage::CallUnready, _) if row.name == "Status" && faulty => ok(vec![Bytes::new()]),
        (Sabotage::KeepNothing, _) if row.name == "ListPodSandbox" && narrowed && faulty => {
            ok(vec![reachable(truth, &asked.call.filter)])
        }
        (Sabotage::ShowRemoved, _) if lists_pods && reply.code == Some(Code::Ok) => {
            let removed = truth
                .things
                .iter()
                .filter(|thing| thing.kind == Kind::Pod && thing.removal_reported.is_some());
            ok(with_items(&reply, removed.map(|thing| thing.id.clone())))
        }
        (Sabotage::ListTwice, _) if lists_pods && reply.code == Some(Code::Ok) => {
            ok(with_items(&reply, reply.strings(&[1, 1]).into_iter()))
        }
        (Sabotage::ShowClaims, _) if lists_pods && reply.code == Some(Code::Ok) => {
            let claimed = (0..RUNTIMES).flat_map(|at| truth.claimed_by(at, Kind::Pod));
            ok(with_items(&reply, claimed.map(|pod| pod.id)))
        }
        (Sabotage::OwnNames, _) if row.name == "PodSandboxStatus" => {
            with_own_name(reply, &asked.call, truth)
        }
        (Sabotage::KeepChanged, Goes::Owner(kind, ..))
            if row.name.ends_with("Status") && silent =>
        {
            let kept = first_status(truth, *kind, &asked.call.names);
            kept.map_or(reply.clone(), |kept| ok(vec![kept]))
        }
        (Sabotage::PassError, _) if row.list().is_some() && spoilt && is_ok => coded(Code::Unknown),
        (Sabotage::PassUndecodable, _) if lists_pods && spoilt && is_ok => {
            ok([&reply.messages[..], &[undecodable()]].concat())
        }
        (Sabotage::LeaveOutPassed, _) if lists_pods && is_ok => {
            ok(without(&reply, truth, |thing| !thing.left.is_empty()))
        }
        (Sabotage::PassLacking, _)
            if row.name == "StreamPodSandboxes" && lacked && reply.code == Some(Code::Ok) =>
        {
            coded(Code::Unimplemented)
        }
        (Sabotage::LackPods, _) if row.name == "ListPodSandboxStats" && unimplemented => {
            ok(vec![Bytes::new()])
        }
        (Sabotage::CacheNoStats, _) if row.is_stats() && reply.code == Some(Code::Ok) => {
            ok(without(&reply, truth, |thing| {
                truth.health[thing.backend].faulty
            }))
        }
        (Sabotage::SayUnknown, Goes::Handler(_)) if reply.text.contains(UNREPORTED) => {
            coded(Code::InvalidArgument)
        }
        (Sabotage::TakeOver, Goes::Handler(_) | Goes::OwnerWithImage(_))
            if reply.code == Some(Code::Internal) =>
        {
            let id = taken_over(&reply.text);
            ok(vec![protobuf::with_string(&[], &[1], &id)])
        }
        (Sabotage::BreakOff, _) if silent => Reply {
            code: None,
            ..reply
        },
        _ => reply,
    }
}

/// The id that an error quotes after the words "the id". The error text is percent-encoded, as in the gRPC header.
fn taken_over(text: &str) -> String {
    let rest = text.split_once("the%20id%20%22");
    let rest = rest.map_or("", |(_, rest)| rest);
    rest.split('%').next().unwrap_or_default().to_owned()
}

/// The first status of a pod or container whose removal no client knows.
fn first_status(truth: &Truth, kind: Kind, id: &str) -> Option<Bytes> {
    let thing = truth.thing(kind, id)?;
    if thing.removal_reported.is_some() {
        return None;
    }
    let status = protobuf::with_string(&[], &[1, 1], id);
    if kind == Kind::Container {
        return Some(status);
    }
    let mut rows = truth.tables.now().handlers.iter();
    let row =
        rows.find(|row| runtime_of(row) == thing.backend && row.backend_handler == thing.handler)?;
    Some(protobuf::with_string(&status, &[1, 9], &row.name))
}

fn with_own_name(reply: Reply, call: &Call, truth: &Truth) -> Reply {
    let name = truth
        .thing(Kind::Pod, &call.names)
        .map_or("", |pod| pod.handler.as_str());
    let named = |message: &Bytes| protobuf::with_string(message, &[1, 9], name);
    Reply {
        messages: reply.messages.iter().map(named).collect(),
        ..reply
    }
}

/// Keeps a stream of events open and empty until its deadline.
async fn go_on(reply: Reply, asked: &Asked) -> Reply {
    match asked.call.timeout {
        Some(timeout) => tokio::time::sleep_until(asked.at + timeout).await,
        None => std::future::pending().await,
    }
    Reply {
        code: Some(Code::DeadlineExceeded),
        at: Instant::now(),
        ..reply
    }
}

fn done() -> Reply {
    Reply {
        code: Some(Code::Ok),
        text: String::new(),
        messages: vec![Bytes::new()],
        at: Instant::now(),
    }
}

/// Removes the filter from a list call while a backend has a fault, because criswitch may then serve the backend's
/// cached list.
fn of_all(call: &Call, truth: &Mutex<Truth>) -> Call {
    let faulty = truth.lock().unwrap().health.iter().any(|it| it.faulty);
    let message = match Takes::of(call.row) {
        Some(_) if faulty => Bytes::new(),
        _ => call.message.clone(),
    };
    Call {
        message,
        ..call.clone()
    }
}

/// The same call for a pod or container of another backend, if another backend has one.
fn of_another(call: &Call, truth: &Mutex<Truth>) -> Call {
    let truth = truth.lock().unwrap();
    let Goes::Owner(kind, ..) = call.row.goes else {
        return call.clone();
    };
    let owner = truth.thing(kind, &call.names).map(|thing| thing.backend);
    let other = truth
        .existing(kind)
        .find(|thing| Some(thing.backend) != owner);
    let message = other.map(|other| message(call.row, &other.id, ""));
    Call {
        message: message.unwrap_or_else(|| call.message.clone()),
        ..call.clone()
    }
}

/// The same pull, but for the store of a hostile runtime's pod that has the same uid and claims to be the newest.
fn of_newest(call: &Call, truth: &Mutex<Truth>) -> Call {
    let truth = truth.lock().unwrap();
    let mut pods = truth.existing(Kind::Pod);
    let newest = pods.find(|pod| pod.poses && pod.uid == call.uid);
    let mut rows = truth.tables.now().handlers.iter();
    let row = newest.and_then(|pod| rows.find(|row| runtime_of(row) == pod.backend));
    let pulls = matches!(call.row.goes, Goes::Image(_, ImageRule::Pull(_)));
    let handler = row.filter(|_| pulls).map_or("", |row| row.name.as_str());
    Call {
        message: of_handler(call.row, call.message.clone(), handler),
        ..call.clone()
    }
}

/// The configuration of a reload, as the sabotaged criswitch reads it.
pub fn read(
    sabotage: Option<Sabotage>,
    read: Result<Config, Problems>,
    files: &Files,
) -> Result<Config, Problems> {
    match sabotage {
        Some(Sabotage::HalfApply) => read.or_else(|_| files.read(None)),
        Some(Sabotage::RegisterNothing) => read.map(|config| registering(config, 0)),
        Some(Sabotage::RegisterOfFirst) => read.map(|config| registering(config, 1)),
        _ => read,
    }
}

/// Keeps `auto_register` for the first `most` backends only.
fn registering(mut config: Config, most: usize) -> Config {
    let registering = config
        .table
        .backends
        .iter_mut()
        .filter(|row| row.auto_register);
    registering
        .skip(most)
        .for_each(|row| row.auto_register = false);
    config
}

/// Sabotages the configuration that an instance starts with.
pub fn configure(sabotage: Option<Sabotage>, config: &mut Config) {
    match sabotage {
        Some(Sabotage::EndAtOnce) => config.shutdown_timeout = Duration::ZERO,
        Some(Sabotage::ExpireCache) => {
            config.stale_lists = EXPIRED;
            let rows = config.table.backends.iter_mut();
            rows.for_each(|row| row.stale_lists = EXPIRED);
        }
        _ => {}
    }
}

/// Sabotages the model at its start. With `KeepDropped`, each runtime reports every handler that it ever had.
pub fn at_start(sabotage: Option<Sabotage>, truth: &mut Truth) {
    let forgets_nothing = sabotage == Some(Sabotage::KeepDropped);
    let offers = truth.offers.iter_mut();
    offers.for_each(|offers| offers.forgets_nothing = forgets_nothing);
}

/// Sabotages criswitch before a reload. With `DropAtOnce`, criswitch forgets the pods of every backend that the new
/// files do not name.
pub fn before_reload(sabotage: Option<Sabotage>, read: &Result<Config, Problems>, switch: &Switch) {
    let (Some(Sabotage::DropAtOnce), Ok(config)) = (sabotage, read) else {
        return;
    };
    let named = |socket| config.table.backends.iter().any(|row| row.socket == socket);
    for backend in &switch.live().backends {
        if !named(backend.socket.clone()) {
            switch.owners().forget_backend(backend.id);
        }
    }
}

/// Sabotages criswitch after a reload, and returns the sabotaged result of the reload.
pub fn after_reload(
    sabotage: Option<Sabotage>,
    good: bool,
    switch: &Switch,
    shown: Result<Changes, String>,
) -> Result<Changes, String> {
    match sabotage {
        Some(Sabotage::JoinAtOnce) => {
            let live = switch.live();
            live.backends.iter().for_each(|backend| backend.join());
            shown
        }
        Some(Sabotage::DropCopied) => {
            let live = switch.live();
            let mut owners = switch.owners();
            if live.backends.iter().any(|it| owners.claims(it.id) > 0) {
                let unnamed = live.backends.iter().filter(|it| !live.names(it.id));
                for backend in unnamed {
                    owners.forget_backend(backend.id);
                }
            }
            shown
        }
        Some(Sabotage::HalfApply) if !good => Err("something is wrong".to_owned()),
        _ => shown,
    }
}

/// Sabotages criswitch before the last checks. With `Remember`, criswitch remembers a pod that no backend has.
pub fn at_end(sabotage: Option<Sabotage>, switch: &Arc<Switch>) {
    if sabotage == Some(Sabotage::Remember) {
        let one = switch.live().backends[0].id;
        let mut owners = switch.owners();
        let asked = owners.mark();
        owners.own_pod("long-gone", one, PodNames::default(), asked);
    }
}

/// Sabotages the events that a client has received. With `SendDeleted`, adds a deletion event for a pod that several
/// backends still list.
pub fn events(sabotage: Option<Sabotage>, asked: &Asked, truth: &Truth) {
    let mut pods = truth.existing(Kind::Pod);
    let shared = pods.find(|pod| pod.shared && !pod.forgotten);
    if let (Some(Sabotage::SendDeleted), Some(pod), true) = (sabotage, shared, asked.is_events()) {
        let event = frames::frame(&event(pod, DELETED));
        asked.call.arrived.lock().unwrap().extend_from_slice(&event);
    }
}
