//! What `check --probe` and `discover` ask: each backend once, what it is. Changes nothing there.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use criswitch::backend::answer::Answer;
use criswitch::backend::connect::Dialer;
use criswitch::backend::{Backend, Wire, own_headers};
use criswitch::codec::cri::{
    CgroupDriver, ListPodSandboxRequest, ListPodSandboxResponse, RuntimeCondition,
    RuntimeConfigRequest, RuntimeConfigResponse, RuntimeFeatures, RuntimeHandler, StatusRequest,
    StatusResponse, VersionRequest, VersionResponse,
};
use criswitch::codec::frames;
use criswitch::config::{BackendConfig, Config, Handler, Table};
use criswitch::rpc::{self, Row};
use futures_util::future::join_all;
use prost::Message;
use serde_json::Value;
use tonic::{Code, Status};

/// What a backend may take to connect and to answer every call.
const LIMIT: Duration = Duration::from_secs(3);

/// The key that a criswitch adds to the `info` of its verbose Status.
const SWITCH: &str = "criswitch";

/// What a backend says of itself, or why it says nothing.
pub(super) type Probe = Result<Probed, String>;

/// What a backend says of itself.
pub(super) struct Probed {
    pub(super) runtime: String,
    pub(super) version: String,
    /// None where it has no opinion.
    pub(super) cgroup_driver: Option<CgroupDriver>,
    pub(super) conditions: Vec<RuntimeCondition>,
    /// Its handlers, without the empty name of its default; none from a runtime that doesn't list them.
    pub(super) handlers: Vec<RuntimeHandler>,
    /// Its own default, which it lists under the empty name; none from a runtime that does not list it.
    own_default: Option<RuntimeHandler>,
    /// What it can do with any handler.
    pub(super) features: Option<RuntimeFeatures>,
    pub(super) configured: Configured,
    /// The ids of its pods.
    pub(super) pods: BTreeSet<String>,
    /// The user whose process serves its socket, if that is neither root nor configured.
    pub(super) unexpected_user: Option<u32>,
    /// It is a criswitch.
    pub(super) is_switch: bool,
}

/// What a runtime shows of its own configuration: containerd all of this, CRI-O the default.
#[derive(Default)]
pub(super) struct Configured {
    /// The handler of pods that name none.
    pub(super) default: Option<String>,
    pub(super) handlers: Vec<String>,
}

impl Probed {
    /// The names of [`Probed::handlers`].
    pub(super) fn handler_names(&self) -> Vec<&str> {
        let handlers = self.handlers.iter();
        handlers.map(|handler| handler.name.as_str()).collect()
    }

    /// What it can do with any handler, by the CRI's names.
    pub(super) fn feature_names(&self) -> Vec<&'static str> {
        let features = self.features.unwrap_or_default();
        names(&[
            (
                "supplemental_groups_policy",
                features.supplemental_groups_policy,
            ),
            (
                "user_namespaces_host_network",
                features.user_namespaces_host_network,
            ),
            ("mount_options", features.mount_options),
        ])
    }

    /// What a handler of its can do, by the CRI's names; the empty name is its own default.
    pub(super) fn features_of(&self, handler: &str) -> Vec<&'static str> {
        match (handler, &self.own_default) {
            ("", Some(default)) => features_of(std::slice::from_ref(default), ""),
            _ => features_of(&self.handlers, handler),
        }
    }
}

/// What the handler of this name can do, by the CRI's names.
pub(super) fn features_of(handlers: &[RuntimeHandler], handler: &str) -> Vec<&'static str> {
    let found = handlers.iter().find(|found| found.name == handler);
    let features = found.and_then(|found| found.features).unwrap_or_default();
    names(&[
        (
            "recursive_read_only_mounts",
            features.recursive_read_only_mounts,
        ),
        ("user_namespaces", features.user_namespaces),
    ])
}

fn names(features: &[(&'static str, bool)]) -> Vec<&'static str> {
    let there = features.iter().filter(|(_, there)| *there);
    there.map(|(name, _)| *name).collect()
}

/// Asks every backend of a configuration; in the order of the table's backends.
pub(super) fn probe(config: &Config) -> anyhow::Result<Vec<Probe>> {
    probe_all(&config.table.backends, config.max_message)
}

/// Asks every one of these, all at once; in their order.
pub(super) fn probe_all(
    backends: &[BackendConfig],
    max_message: usize,
) -> anyhow::Result<Vec<Probe>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let backends = backends.iter();
    let probes = backends.map(|backend| probe_one(backend, max_message));
    Ok(runtime.block_on(join_all(probes)))
}

/// Whether every backend answers, has each handler that a row sends it, and shares the default's cgroup driver.
pub(super) fn all_well(table: &Table, probes: &[Probe]) -> bool {
    probes.iter().all(Result::is_ok)
        && with_other_driver(table, probes).is_empty()
        && with_common_pods(table, probes).is_empty()
        && table
            .handlers
            .iter()
            .all(|row| advertised(row, probes) != Some(false))
}

/// Backends whose cgroup driver is not the default one's, which the kubelet uses for all: name and driver.
pub(super) fn with_other_driver<'a>(
    table: &'a Table,
    probes: &[Probe],
) -> Vec<(&'a str, CgroupDriver)> {
    let Some(ours) = probes.get(table.default.backend).and_then(cgroup_driver) else {
        return Vec::new();
    };
    let drivers = table.backends.iter().zip(probes);
    drivers
        .filter_map(|(backend, probe)| Some((backend.name.as_str(), cgroup_driver(probe)?)))
        .filter(|(_, theirs)| *theirs != ours)
        .collect()
}

/// Every two backends that list the same pods, and how many: one runtime under two sockets, most likely.
pub(super) fn with_common_pods<'a>(
    table: &'a Table,
    probes: &[Probe],
) -> Vec<(&'a str, &'a str, usize)> {
    let found = table.backends.iter().zip(probes);
    let found = found.filter_map(|(backend, probe)| Some((&*backend.name, probe.as_ref().ok()?)));
    let found: Vec<_> = found.collect();
    let pairs = found
        .iter()
        .enumerate()
        .flat_map(|(place, one)| found.iter().skip(place + 1).map(move |other| (one, other)));
    pairs
        .map(|((one, ours), (other, theirs))| {
            (*one, *other, ours.pods.intersection(&theirs.pods).count())
        })
        .filter(|(.., pods)| *pods > 0)
        .collect()
}

/// What a backend says its cgroup driver is, if it answers and has an opinion.
pub(super) fn cgroup_driver(probe: &Probe) -> Option<CgroupDriver> {
    probe.as_ref().ok()?.cgroup_driver
}

/// Whether a row's backend says that it has the row's handler; none where that cannot be told.
pub(super) fn advertised(row: &Handler, probes: &[Probe]) -> Option<bool> {
    let found = probes.get(row.backend)?.as_ref().ok()?;
    // The backend's own default is there, whatever it is called.
    if row.backend_handler.is_empty() {
        return Some(true);
    }
    let names = found.handler_names();
    (!names.is_empty()).then(|| names.contains(&row.backend_handler.as_str()))
}

async fn probe_one(config: &BackendConfig, max_message: usize) -> Probe {
    let backend = Backend::new(config, max_message, Dialer::Socket);
    let asked = tokio::time::timeout(LIMIT, connect_and_ask(&backend));
    asked
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")))
}

async fn connect_and_ask(backend: &Backend) -> Probe {
    let (wire, connection) = backend.connect().await?;
    let answered = Cell::new(false);
    tokio::select! {
        found = ask(backend, &wire, &answered) => {
            found.map_err(|error| words(backend, &error, answered.get()))
        }
        _ = connection => Err(match answered.get() {
            true => "it closed the connection".into(),
            false => no_grpc("it closed the connection"),
        }),
    }
}

/// Why a call got no good answer, without the backend's name; `answered` if there was one over this connection before.
fn words(backend: &Backend, error: &anyhow::Error, answered: bool) -> String {
    match error.downcast_ref::<Status>() {
        None => format!("{error:#}"),
        Some(status) if !answered && status.code() == Code::Unavailable => {
            no_grpc(&backend.cause(status))
        }
        Some(status) => backend.cause(status),
    }
}

/// What a first call without an answer means: which words a server of HTTP/1 breaks it off with is chance.
pub(super) fn no_grpc(cause: &str) -> String {
    format!("the process at this socket does not speak gRPC, or has just ended: {cause}")
}

async fn ask(backend: &Backend, wire: &Wire, answered: &Cell<bool>) -> anyhow::Result<Probed> {
    let version = call(backend, wire, &rpc::VERSION, &VersionRequest::default()).await?;
    answered.set(true);
    let version = VersionResponse::decode(version).context("Version cannot be read")?;
    let verbose = StatusRequest { verbose: true };
    let status = call(backend, wire, &rpc::STATUS, &verbose).await?;
    let mut status = StatusResponse::decode(status).context("Status cannot be read")?;
    let handlers = std::mem::take(&mut status.runtime_handlers).into_iter();
    let (own_default, handlers): (Vec<_>, _) =
        handlers.partition(|handler| handler.name.is_empty());
    let pods = call(
        backend,
        wire,
        &rpc::LIST_PODS,
        &ListPodSandboxRequest::default(),
    )
    .await?;
    let pods = ListPodSandboxResponse::decode(pods).context("ListPodSandbox cannot be read")?;
    Ok(Probed {
        runtime: version.runtime_name,
        version: version.runtime_version,
        cgroup_driver: ask_cgroup_driver(backend, wire).await?,
        handlers,
        own_default: own_default.into_iter().next(),
        features: status.features,
        configured: configured(&status).unwrap_or_default(),
        pods: pods.items.into_iter().map(|pod| pod.id).collect(),
        unexpected_user: backend.unexpected_user(),
        is_switch: status.info.contains_key(SWITCH),
        conditions: status.status.unwrap_or_default().conditions,
    })
}

/// The configuration in a verbose Status: containerd has it in 1.6 as well as in 2.x, CRI-O in later versions.
fn configured(status: &StatusResponse) -> Option<Configured> {
    let config: Value = serde_json::from_str(status.info.get("config")?).ok()?;
    let text = |pointer| config.pointer(pointer).and_then(Value::as_str);
    let default = text("/containerd/defaultRuntimeName").or_else(|| text("/crio/DefaultRuntime"));
    let handlers = config.pointer("/containerd/runtimes");
    let handlers = handlers.and_then(Value::as_object);
    Some(Configured {
        default: default.filter(|name| !name.is_empty()).map(str::to_owned),
        handlers: handlers
            .map(|all| all.keys().cloned().collect())
            .unwrap_or_default(),
    })
}

/// A runtime without `RuntimeConfig` has no opinion.
async fn ask_cgroup_driver(backend: &Backend, wire: &Wire) -> anyhow::Result<Option<CgroupDriver>> {
    let row = &rpc::RUNTIME_CONFIG;
    let request = RuntimeConfigRequest::default();
    let answer = send(backend, wire, row, &request).await?;
    if answer.code() == Code::Unimplemented {
        return Ok(None);
    }
    let config = RuntimeConfigResponse::decode(message(backend, row, &answer)?)
        .context("RuntimeConfig cannot be read")?;
    Ok(config.linux.map(|linux| linux.cgroup_driver()))
}

async fn call(
    backend: &Backend,
    wire: &Wire,
    row: &Row,
    request: &impl Message,
) -> anyhow::Result<Bytes> {
    let answer = send(backend, wire, row, request).await?;
    message(backend, row, &answer)
}

async fn send(
    backend: &Backend,
    wire: &Wire,
    row: &Row,
    request: &impl Message,
) -> anyhow::Result<Answer> {
    let body = frames::frame(&request.encode_to_vec());
    let headers = own_headers();
    Ok(backend.ask_over(wire.clone(), row, &headers, body).await?)
}

fn message(backend: &Backend, row: &Row, answer: &Answer) -> anyhow::Result<Bytes> {
    if answer.code() != Code::Ok {
        bail!(
            "{} returned {:?}: {}",
            row.name,
            answer.code(),
            answer.plain_text()
        );
    }
    Ok(backend.message(answer)?)
}
