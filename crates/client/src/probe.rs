//! The probe of `check --probe` and `discover`: connects to each backend once, and makes only calls that change
//! nothing.

mod configured;
pub mod subnets;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use criswitch_config::address::Address;
use criswitch_config::{BackendConfig, BackendId, BackendIds, Config, Handler, Table, wording};
use criswitch_cri::codec::cri::image_service_client::ImageServiceClient;
use criswitch_cri::codec::cri::runtime_service_client::RuntimeServiceClient;
use criswitch_cri::codec::cri::{
    ImageSpec, ImageStatusRequest, ListPodSandboxRequest, PodSandbox, RuntimeCondition,
    RuntimeConfigRequest, RuntimeFeatures, RuntimeHandler, StatusRequest, VersionRequest,
    VersionResponse,
};
use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::error_text;
use criswitch_cri::facts::{self, RUNTIME_READY};
use criswitch_cri::rpc::features::{self, OF_HANDLER, OF_RUNTIME};
use criswitch_cri::rpc::fields::{runtime_handler, status_response};
use criswitch_cri::rpc::{self, ROWS, Row};
use criswitch_platform::users::UserId;
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use serde_json::{Value, json};
use tonic::{Code, Response, Status};

use crate::connection::{self, Channel, ClientConnection, TransportError, origin};
use crate::program::block_on;
use crate::terminal;
use configured::configured;
pub use configured::{Configured, Runtime};

/// The time that a backend may take to connect and to answer every call.
const LIMIT: Duration = Duration::from_secs(3);
/// The largest reply of a runtime, in bytes: the kubelet's limit.
pub const MAX_MESSAGE: usize = 16 << 20;

/// The key that criswitch adds to `info` in its verbose Status. A probe recognizes criswitch by this key.
const SWITCH: &str = "criswitch";

/// The name that cri-dockerd reports as its runtime.
pub const DOCKER: &str = "docker";

/// How long the probe waits for the answers to optional calls and for the status of the pause image, once the backend
/// has answered the required calls. Answers to optional calls may never come: CRI-O delays stats while it stops a
/// container.
const OPTIONAL_WAIT: Duration = Duration::from_millis(500);

/// The answers of a backend, or why the backend did not answer.
pub type Probe = Result<Probed, String>;

/// A backend's answers.
#[derive(Default)]
pub struct Probed {
    /// The name of the runtime.
    pub runtime: String,
    /// The version of the runtime.
    pub version: String,
    /// The name of the driver that the runtime reports, else that of its configuration. `None` if it reports neither.
    pub cgroup_driver: Option<&'static str>,
    /// The conditions in its Status.
    pub conditions: Vec<RuntimeCondition>,
    /// The backend's handlers, except its own default; empty if the runtime does not list its handlers.
    pub handlers: Vec<RuntimeHandler>,
    /// The backend's own default handler, if the backend lists a handler with the empty name.
    own_default: Option<RuntimeHandler>,
    /// The features that do not depend on the handler.
    pub features: Option<RuntimeFeatures>,
    /// The features of a later version of the CRI, as the message and the number of the field.
    pub unknown_features: BTreeSet<(&'static str, u32)>,
    /// The configuration that the backend reports.
    pub configured: Configured,
    /// The pods that the backend lists.
    pub pods: Vec<PodSandbox>,
    /// The RPCs that the backend lacks, among those with a [`Row::probe_request`]. `PullImage`, for example, has none.
    pub lacking: BTreeSet<&'static str>,
    /// The RPCs that the backend did not answer in time or broke off, so that it may lack them. The call for events is
    /// never among them: it has no answer until there is an event.
    pub unanswered: BTreeSet<&'static str>,
    /// The image of the backend's pod sandboxes (the pause image), if the backend's store has it and does not pin it.
    /// `None` otherwise, or if this is unknown.
    pub unpinned_pause_image: Option<String>,
    /// The subnets of the backend's pods; empty if the runtime does not report its CNI configuration.
    pub subnets: Vec<subnets::Subnet>,
    /// The id of the process that serves the backend's socket.
    pub pid: Option<i32>,
    /// The user whose process serves the backend's socket, if that user is neither root nor configured.
    pub unexpected_user: Option<UserId>,
    /// Whether criswitch serves the socket.
    pub is_switch: bool,
}

impl Probed {
    /// The RPCs that the backend lacks although every runtime must have them.
    pub fn lacking_required(&self) -> Vec<&'static str> {
        ROWS.iter()
            .filter(|row| !row.may_lack && self.lacking.contains(row.name))
            .map(|row| row.name)
            .collect()
    }

    /// Why the backend is not ready: one text for each condition that is false and of one of these `kinds`.
    pub fn not_ready(&self, kinds: &[&str]) -> Vec<String> {
        self.conditions
            .iter()
            .filter(|it| !it.status && kinds.contains(&&*it.r#type))
            .map(|it| {
                let message = terminal::plain(&it.message);
                format!("it is not ready ({} is false): {message}", it.r#type)
            })
            .collect()
    }

    /// The names of [`Probed::handlers`].
    pub fn handler_names(&self) -> Vec<&str> {
        self.handlers.iter().map(|it| it.name.as_str()).collect()
    }

    /// The features that do not depend on the handler, by the CRI's names.
    pub fn feature_names(&self) -> Vec<&'static str> {
        features::of_runtime(&self.features.unwrap_or_default())
    }

    /// The names of [`Probed::unknown_features`], such as `field 9 of RuntimeFeatures`.
    pub fn unknown_feature_names(&self) -> Vec<String> {
        self.unknown_features
            .iter()
            .map(|(message, number)| format!("field {number} of {message}"))
            .collect()
    }

    /// The consequence of [`Probed::unpinned_pause_image`], as a sentence.
    pub fn pause_image_warning(&self) -> Option<String> {
        let image = self.unpinned_pause_image.as_ref()?;
        Some(format!(
            "The store has the pause image {image:?} and does not pin it, so the kubelet's image garbage collection may \
             remove it. Without the image and its registry, no pod starts at this backend (docs/second-daemon.md)."
        ))
    }

    /// The configuration of a handler, if the backend reports it. The empty name is the backend's own default.
    pub fn runtime(&self, handler: &str) -> Option<&Runtime> {
        let name = match handler {
            "" => self.configured.default.as_deref()?,
            name => name,
        };
        self.configured.runtimes.get(name)
    }

    /// The features of a handler of this backend, by the CRI's names. The empty name is the backend's own default.
    pub fn features_of(&self, handler: &str) -> Vec<&'static str> {
        match (handler, &self.own_default) {
            ("", Some(default)) => features_of(std::slice::from_ref(default), ""),
            _ => features_of(&self.handlers, handler),
        }
    }
}

/// The features of the handler of this name, by the CRI's names.
pub fn features_of(handlers: &[RuntimeHandler], handler: &str) -> Vec<&'static str> {
    let found = handlers.iter().find(|found| found.name == handler);
    features::of_handler(&found.and_then(|found| found.features).unwrap_or_default())
}

/// Calls every backend of a configuration. The answers are in the order of the table's backends.
pub fn probe(config: &Config) -> anyhow::Result<Vec<Probe>> {
    probe_all(&config.table.backends, config.max_message)
}

/// Calls all these backends at the same time. The answers are in the order of the backends.
pub fn probe_all(backends: &[BackendConfig], max_message: usize) -> anyhow::Result<Vec<Probe>> {
    let probes = backends.iter().map(|it| probe_one(it, max_message));
    block_on(async { Ok(join_all(probes).await) })
}

/// The answer of the backend with this id. The probes are in the order of the table's backends.
pub fn probe_of<'p>(table: &Table, probes: &'p [Probe], id: BackendId) -> Option<&'p Probe> {
    Some(
        table
            .backends
            .iter()
            .zip(probes)
            .find(|(row, _)| row.id == id)?
            .1,
    )
}

/// The names and the answers of the backends that answered the probe.
pub fn answered<'a>(table: &'a Table, probes: &'a [Probe]) -> Vec<(&'a str, &'a Probed)> {
    table
        .backends
        .iter()
        .zip(probes)
        .filter_map(|(backend, probe)| Some((&*backend.name, probe.as_ref().ok()?)))
        .collect()
}

/// The name and the socket of a backend, for texts that people read.
pub fn place(backend: &BackendConfig) -> String {
    format!("backend {:?} ({})", backend.name, backend.socket)
}

/// Why backends that were probed can start no pods. Each item has the [`place`] of a backend, and one fault.
pub fn faults<'a>(
    backends: &'a [BackendConfig],
    probes: &'a [Probe],
) -> impl Iterator<Item = (String, String)> + 'a {
    backends.iter().zip(probes).flat_map(|(backend, probe)| {
        faults_of(probe)
            .into_iter()
            .map(move |fault| (place(backend), fault))
    })
}

fn faults_of(probe: &Probe) -> Vec<String> {
    let found = match probe {
        Err(cause) => return vec![terminal::plain(cause)],
        Ok(found) => found,
    };
    let mut faults = Vec::new();
    let lacking = found.lacking_required();
    if !lacking.is_empty() {
        faults.push(wording::lacking(&lacking.join(", ")));
    }
    faults.extend(found.not_ready(&[RUNTIME_READY]));
    if found.is_switch {
        faults.push("criswitch serves this socket; set the socket of a runtime".to_owned());
    }
    faults
}

/// The backends whose cgroup driver differs from `ours`, the driver of `default`: the name of each, and the difference
/// in words. The kubelet uses the driver of the default backend for all pods. A backend that reports no driver is
/// omitted.
pub fn differing_cgroup_drivers<'a>(
    default: &str,
    ours: Option<&str>,
    answered: &[(&'a str, &Probed)],
) -> Vec<(&'a str, String)> {
    answered
        .iter()
        .filter_map(|(name, found)| Some((*name, found.cgroup_driver?, ours?)))
        .filter(|(_, theirs, ours)| theirs != ours)
        .map(|(name, theirs, ours)| {
            let what = format!(
                "uses the cgroup driver {theirs}, but {default} uses {ours}; set the same driver for the kubelet and all backends"
            );
            (name, what)
        })
        .collect()
}

/// Pairs of backends that list the same pods, with the number of these pods. Such a pair is probably one runtime with
/// two sockets.
pub fn with_common_pods<'a>(
    table: &'a Table,
    probes: &'a [Probe],
) -> Vec<(&'a str, &'a str, usize)> {
    let found = answered(table, probes);
    let mut pairs = Vec::new();
    for (place, (one, ours)) in found.iter().enumerate() {
        for (other, theirs) in found.iter().skip(place + 1) {
            let ids: BTreeSet<_> = theirs.pods.iter().map(|pod| &pod.id).collect();
            let common = ours.pods.iter().filter(|pod| ids.contains(&pod.id));
            pairs.push((*one, *other, common.count()));
        }
    }
    pairs.retain(|(.., pods)| *pods > 0);
    pairs
}

/// The cgroup driver that a backend reports, if any.
pub fn driver_of(table: &Table, probes: &[Probe], id: BackendId) -> Option<&'static str> {
    probe_of(table, probes, id)?.as_ref().ok()?.cgroup_driver
}

/// A backend's answers as JSON.
pub fn probed_json(found: &Probed) -> Value {
    let conditions = found.conditions.iter().map(|condition| {
        json!({
            "type": condition.r#type,
            "status": condition.status,
            "reason": condition.reason,
            "message": condition.message,
        })
    });
    json!({
        "answers": true,
        "runtime": found.runtime,
        "version": found.version,
        "cgroupDriver": found.cgroup_driver,
        "unexpectedUser": found.unexpected_user,
        "conditions": conditions.collect::<Vec<_>>(),
        "features": found.feature_names(),
        "unknownFeatures": found.unknown_feature_names(),
        "handlers": found.handler_names(),
        "lackingRpcs": found.lacking,
        "unansweredRpcs": found.unanswered,
    })
}

/// The cgroup driver of the runtime at a socket; `None` if the runtime does not answer or reports none.
pub async fn cgroup_driver_at(socket: &Address) -> Option<&'static str> {
    let config = BackendConfig::without_row(BackendIds::default().issue(), "", socket);
    probe_one(&config, MAX_MESSAGE).await.ok()?.cgroup_driver
}

/// The problem of a row whose backend lacks the row's handler; `None` if the backend has it, or if this is unknown.
pub fn missing(table: &Table, row: &Handler, probes: &[Probe]) -> Option<String> {
    let backend = &table.backend(row.backend)?.name;
    (reported(table, row, probes) == Some(false)).then(|| {
        format!(
            "backend {backend:?} has no handler {:?}",
            row.backend_handler
        )
    })
}

/// Whether a row's backend reports the row's handler; `None` if that is unknown.
pub fn reported(table: &Table, row: &Handler, probes: &[Probe]) -> Option<bool> {
    let found = probe_of(table, probes, row.backend)?.as_ref().ok()?;
    // The empty name is the backend's own default, which every backend has.
    if row.backend_handler.is_empty() {
        return Some(true);
    }
    if found.runtime == DOCKER {
        return Some(row.backend_handler == DOCKER);
    }
    let names = found.handler_names();
    (!names.is_empty()).then(|| names.contains(&row.backend_handler.as_str()))
}

async fn probe_one(config: &BackendConfig, max_message: usize) -> Probe {
    tokio::time::timeout(LIMIT, connect_and_ask(config, max_message))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")))
}

async fn connect_and_ask(config: &BackendConfig, max_message: usize) -> Probe {
    let ClientConnection {
        channel,
        server,
        ended,
    } = ClientConnection::open(&config.socket).await?;
    let answered = Cell::new(false);
    let found = tokio::select! {
        found = ask(&channel, max_message, &answered) => {
            found.map_err(|error| words(&error, answered.get()))
        }
        _ = ended => Err(if answered.get() { "it closed the connection".into() } else { no_grpc("it closed the connection") }),
    };
    Ok(Probed {
        pid: server.and_then(|server| server.pid),
        unexpected_user: server.and_then(|server| server.unexpected_user(config.user)),
        ..found?
    })
}

/// Why a call failed. `answered` says whether an earlier call over this connection succeeded.
fn words(error: &anyhow::Error, answered: bool) -> String {
    match error.downcast_ref::<TransportError>() {
        Some(TransportError(cause)) if !answered => no_grpc(cause),
        _ => format!("{error:#}"),
    }
}

/// The error if the first call over a connection gets no reply. The `cause` varies, because an HTTP/1 server may close
/// the connection at any point of the call.
pub fn no_grpc(cause: &str) -> String {
    format!("the process at this socket does not speak gRPC, or has just ended: {cause}")
}

async fn ask(
    channel: &Channel,
    max_message: usize,
    answered: &Cell<bool>,
) -> anyhow::Result<Probed> {
    let mut client = RuntimeServiceClient::with_origin(channel.clone(), origin())
        .max_decoding_message_size(max_message);
    let version = client.version(VersionRequest::default()).await;
    let version = answer(&rpc::VERSION, version)?;
    answered.set(true);
    let mut optional: FuturesUnordered<_> = ROWS
        .iter()
        .filter_map(|row| Some((row, row.probe_request()?)))
        .map(|(row, request)| ask_optional(channel, row, request, max_message))
        .collect();
    let mut replies: Vec<OptionalReply> = Vec::new();
    let mut required = std::pin::pin!(ask_required(&mut client, version));
    let found = loop {
        tokio::select! {
            biased;
            Some(reply) = optional.next() => replies.extend(reply),
            found = &mut required => break found?,
        }
    };
    let rest = async {
        // A stream of events does not end, so the probe stops waiting when only the call for events is left.
        while optional.len() > usize::from(replies.iter().all(|it| it.rpc != rpc::EVENTS.name))
            && let Some(reply) = optional.next().await
        {
            replies.extend(reply);
        }
    };
    let unpinned = unpinned(channel, found.configured.pause_image.as_deref());
    let (_, unpinned) = tokio::join!(
        tokio::time::timeout(OPTIONAL_WAIT, rest),
        tokio::time::timeout(OPTIONAL_WAIT, unpinned),
    );
    let unanswered = ROWS.iter().filter(|row| {
        let is_asked = row.probe_request().is_some() && row.name != rpc::EVENTS.name;
        is_asked && replies.iter().all(|reply| reply.rpc != row.name)
    });
    Ok(Probed {
        unanswered: unanswered.map(|row| row.name).collect(),
        lacking: replies.iter().filter_map(|reply| reply.lacking).collect(),
        unknown_features: replies
            .into_iter()
            .flat_map(|reply| reply.unknown_features)
            .collect(),
        unpinned_pause_image: unpinned.ok().flatten(),
        ..found
    })
}

/// The facts that the reply to an optional RPC shows.
struct OptionalReply {
    rpc: &'static str,
    /// The name of the RPC, if the backend lacks it.
    lacking: Option<&'static str>,
    /// [`Probed::unknown_features`], if the RPC is `Status`; else empty.
    unknown_features: BTreeSet<(&'static str, u32)>,
}

/// Makes an optional call; `None` if no whole reply comes.
async fn ask_optional(
    channel: &Channel,
    row: &'static Row,
    request: Bytes,
    max_message: usize,
) -> Option<OptionalReply> {
    let (code, body) = channel.reply(row, &request, max_message).await.ok()?;
    Some(OptionalReply {
        rpc: row.name,
        lacking: lacks(row, code).then_some(row.name),
        unknown_features: if row.name == rpc::STATUS.name {
            unknown_features_in(&body)
        } else {
            BTreeSet::new()
        },
    })
}

/// Whether a reply with this code shows that the backend lacks the RPC. A stream of events that ends without an event
/// shows that too.
fn lacks(row: &Row, code: Code) -> bool {
    match code {
        Code::Unimplemented => true,
        Code::Ok => row.name == rpc::EVENTS.name,
        _ => false,
    }
}

/// The features of a later version of the CRI, in the body of a reply to `Status`.
fn unknown_features_in(body: &Bytes) -> BTreeSet<(&'static str, u32)> {
    let status = frames::unframe(body).unwrap_or_default();
    let of_runtime = [status_response::FEATURES];
    let of_handler = [status_response::RUNTIME_HANDLERS, runtime_handler::FEATURES];
    let mut found = BTreeSet::new();
    for (message, all, path) in [
        ("RuntimeFeatures", OF_RUNTIME, &of_runtime[..]),
        ("RuntimeHandlerFeatures", OF_HANDLER, &of_handler[..]),
    ] {
        for features in protobuf::all_bytes(&status, path).unwrap_or_default() {
            let unknown = features::unknown(all, features).into_iter();
            found.extend(unknown.map(|number| (message, number)));
        }
    }
    found
}

async fn ask_required(
    client: &mut RuntimeServiceClient<Channel>,
    version: VersionResponse,
) -> anyhow::Result<Probed> {
    let status = client.status(StatusRequest { verbose: true }).await;
    let mut status = answer(&rpc::STATUS, status)?;
    let (own_default, handlers): (Vec<_>, _) = std::mem::take(&mut status.runtime_handlers)
        .into_iter()
        .partition(|handler| handler.name.is_empty());
    let pods = client
        .list_pod_sandbox(ListPodSandboxRequest::default())
        .await;
    let pods = answer(&rpc::LIST_PODS, pods)?;
    let configured = configured(&status).unwrap_or_default();
    let cni = status
        .info
        .get("cniconfig")
        .and_then(|cni| serde_json::from_str(cni).ok());
    let cgroup_driver = ask_cgroup_driver(client).await?;
    Ok(Probed {
        runtime: version.runtime_name,
        version: version.runtime_version,
        cgroup_driver: cgroup_driver.or(configured.cgroup_driver),
        handlers,
        own_default: own_default.into_iter().next(),
        features: status.features,
        configured,
        pods: pods.items,
        subnets: cni.as_ref().map(subnets::of_cni).unwrap_or_default(),
        is_switch: status.info.contains_key(SWITCH),
        conditions: status.status.unwrap_or_default().conditions,
        ..Probed::default()
    })
}

/// Returns `image` if the backend's store has it and does not pin it.
async fn unpinned(channel: &Channel, image: Option<&str>) -> Option<String> {
    let image = image?;
    let mut client = ImageServiceClient::with_origin(channel.clone(), origin());
    let request = ImageStatusRequest {
        image: Some(ImageSpec {
            image: image.to_owned(),
            ..ImageSpec::default()
        }),
        ..ImageStatusRequest::default()
    };
    let status = client.image_status(request).await.ok()?.into_inner();
    (!status.image?.pinned).then(|| image.to_owned())
}

/// The cgroup driver that the runtime reports; `None` from a runtime without `RuntimeConfig`.
async fn ask_cgroup_driver(
    client: &mut RuntimeServiceClient<Channel>,
) -> anyhow::Result<Option<&'static str>> {
    let config = client.runtime_config(RuntimeConfigRequest::default()).await;
    if let Err(status) = &config
        && status.code() == Code::Unimplemented
    {
        return Ok(None);
    }
    let linux = answer(&rpc::RUNTIME_CONFIG, config)?.linux;
    Ok(linux.map(|linux| facts::cgroup_driver_name(linux.cgroup_driver() as u64)))
}

/// The message of a reply to the RPC in `row`.
fn answer<T>(row: &Row, reply: Result<Response<T>, Status>) -> anyhow::Result<T> {
    reply.map(Response::into_inner).map_err(|status| {
        if let Some(lost) = connection::lost(&status) {
            return lost.into();
        }
        let text = error_text::reported(status.message());
        let (code, hint) = (status.code(), facts::hint(&text));
        anyhow!("{} returned {code:?}: {text}{hint}", row.name)
    })
}
