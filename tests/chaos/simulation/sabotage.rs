//! Switches that are wrong on purpose, each without one protection, to see that the judge notices.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use clap::ValueEnum;
use criswitch::owners::PodNames;
use criswitch::rpc::{Goes, Kind, Unknown};
use criswitch::switch::Switch;
use criswitch::wire;
use tokio::time::Instant;
use tonic::Code;

use super::client::{Call, Client, Reply, message};
use super::judge::Asked;
use super::plan::creates;
use super::truth::Truth;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sabotage {
    /// A list leaves an unreachable backend out.
    LeaveOut,
    /// What an unreachable backend owns is said to be gone.
    SayGone,
    /// A call that makes something is sent again when it broke.
    SendAgain,
    /// A pod of an unknown handler runs in the default one.
    RunInDefault,
    /// Stop and Remove for an unreachable backend are said to be done.
    SayDone,
    /// A list shows what was removed.
    ShowRemoved,
    /// A call goes on after its deadline.
    IgnoreDeadline,
    /// A pod that could not be made is answered without an id.
    EmptyId,
    /// A stream that broke is ended as if it were whole.
    EndBroken,
    /// A call goes to a backend that does not own what it names.
    AskAnother,
    /// What is gone is remembered for ever.
    Remember,
    /// Status fails when any backend is out of order.
    FailStatus,
    /// Status says that the node is not ready when any backend is out of order.
    CallUnready,
    /// An image is absent when one backend does not answer.
    SayAbsent,
    /// An item is listed twice.
    ListTwice,
    /// A call breaks off without a status.
    BreakOff,
    /// Events are lost.
    LoseEvents,
    /// The runtime's configuration is taken and told to nobody.
    TellNobody,
}

/// A call, and the reply as the sabotaged switch would give it.
pub async fn call(
    sabotage: Option<Sabotage>,
    client: Client,
    asked: &Asked,
    truth: &Mutex<Truth>,
) -> Reply {
    let Some(sabotage) = sabotage else {
        return client.call(&asked.call).await;
    };
    if sabotage == Sabotage::TellNobody && asked.updates() {
        return done();
    }
    let asked_for = match sabotage {
        Sabotage::LoseEvents => Call {
            heard: Arc::default(),
            ..asked.call.clone()
        },
        Sabotage::AskAnother => of_another(&asked.call, truth),
        _ => asked.call.clone(),
    };
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
        (Sabotage::IgnoreDeadline, Some(Code::DeadlineExceeded)) => {
            tokio::time::sleep(Duration::from_secs(1)).await;
            reply
        }
        _ => changed(sabotage, reply, asked, &truth.lock().unwrap()),
    }
}

fn changed(sabotage: Sabotage, reply: Reply, asked: &Asked, truth: &Truth) -> Reply {
    let (row, silent) = (asked.call.row, reply.code == Some(Code::Unavailable));
    let lists_pods = row.name == "ListPodSandbox" && asked.call.names.is_empty();
    let ok = |messages: Vec<Bytes>| Reply {
        code: Some(Code::Ok),
        messages,
        ..reply.clone()
    };
    match (sabotage, &row.goes) {
        (Sabotage::LeaveOut, _) if lists_pods && silent => ok(vec![reachable(truth)]),
        (Sabotage::SayGone, Goes::Owner(_, _, Unknown::NotFound)) if silent => Reply {
            code: Some(Code::NotFound),
            ..reply
        },
        (Sabotage::SayDone, Goes::Owner(_, _, Unknown::Ok)) if silent => ok(vec![Bytes::new()]),
        (Sabotage::EmptyId, Goes::Handler(_)) if silent => ok(vec![Bytes::new()]),
        (Sabotage::EndBroken, _) if row.name == "StreamPodSandboxes" && silent => {
            ok(reply.messages.clone())
        }
        (Sabotage::SayAbsent, _) if row.name == "ImageStatus" && silent => ok(vec![Bytes::new()]),
        (Sabotage::FailStatus, _)
            if row.name == "Status" && truth.health.iter().any(|it| it.faulty) =>
        {
            Reply {
                code: Some(Code::Unavailable),
                ..reply
            }
        }
        (Sabotage::CallUnready, _)
            if row.name == "Status" && truth.health.iter().any(|it| it.faulty) =>
        {
            ok(vec![Bytes::new()])
        }
        (Sabotage::ShowRemoved, _) if lists_pods && reply.code == Some(Code::Ok) => {
            let removed = truth
                .things
                .iter()
                .filter(|thing| thing.kind == Kind::Pod && thing.removal_told.is_some());
            ok(with_items(&reply, removed.map(|thing| thing.id.clone())))
        }
        (Sabotage::ListTwice, _) if lists_pods && reply.code == Some(Code::Ok) => {
            ok(with_items(&reply, reply.strings(&[1, 1]).into_iter()))
        }
        (Sabotage::BreakOff, _) if silent => Reply {
            code: None,
            ..reply
        },
        _ => reply,
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

/// The pods of the backends that are in order.
fn reachable(truth: &Truth) -> Bytes {
    let backends = (0..truth.health.len()).filter(|backend| !truth.health[*backend].faulty);
    let pods = backends.flat_map(|backend| truth.at(backend, Kind::Pod));
    listed(pods.map(|pod| pod.id.clone()))
}

fn with_items(reply: &Reply, ids: impl Iterator<Item = String>) -> Vec<Bytes> {
    vec![
        [reply.messages.concat(), listed(ids).to_vec()]
            .concat()
            .into(),
    ]
}

fn listed(ids: impl Iterator<Item = String>) -> Bytes {
    let mut list = BytesMut::new();
    for id in ids {
        wire::put_bytes(&mut list, 1, &wire::with_string(&[], &[1], &id));
    }
    list.freeze()
}

/// The same call for a pod or container of another backend, if there is one.
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

/// What is wrong with the switch itself.
pub fn at_end(sabotage: Option<Sabotage>, switch: &Arc<Switch>) {
    if sabotage == Some(Sabotage::Remember) {
        switch.owners().own_pod("long-gone", 0, PodNames::default());
    }
}
