//! `criswitch check --probe`: asks each backend once what it is. Changes nothing there.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use criswitch::backend::{Backend, Wire, own_headers};
use criswitch::config::{BackendConfig, Config, Handler, Table};
use criswitch::cri::{
    RuntimeCondition, StatusRequest, StatusResponse, VersionRequest, VersionResponse,
};
use criswitch::dialer::Dialer;
use criswitch::rpc::{self, Row};
use criswitch::wire;
use futures_util::future::join_all;
use prost::Message;
use tonic::Code;

/// What a backend may take to connect and to answer both calls.
const LIMIT: Duration = Duration::from_secs(3);

/// What a backend says of itself, or why it says nothing.
pub(super) type Probe = Result<Found, String>;

/// What a backend says of itself.
pub(super) struct Found {
    pub(super) runtime: String,
    pub(super) version: String,
    pub(super) conditions: Vec<RuntimeCondition>,
    /// Its handlers, without the empty name of its default; none from a runtime that doesn't list them.
    pub(super) handlers: Vec<String>,
}

/// Asks every backend, all at once; in the order of the table's backends.
pub(super) fn probe(config: &Config) -> anyhow::Result<Vec<Probe>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let backends = config.table.backends.iter().enumerate();
    let probes = backends.map(|(id, backend)| probe_one(id, backend, config.max_message));
    Ok(runtime.block_on(join_all(probes)))
}

/// Whether every backend answers and has each handler that a row sends it.
pub(super) fn all_well(table: &Table, probes: &[Probe]) -> bool {
    probes.iter().all(Result::is_ok)
        && table
            .handlers
            .iter()
            .all(|row| advertised(row, probes) != Some(false))
}

/// Whether a row's backend says that it has the row's handler; none where that cannot be told.
pub(super) fn advertised(row: &Handler, probes: &[Probe]) -> Option<bool> {
    let found = probes.get(row.backend)?.as_ref().ok()?;
    // The backend's own default is there, whatever it is called.
    if row.backend_handler.is_empty() {
        return Some(true);
    }
    (!found.handlers.is_empty()).then(|| found.handlers.contains(&row.backend_handler))
}

async fn probe_one(id: usize, config: &BackendConfig, max_message: usize) -> Probe {
    let backend = Backend::new(id, config, max_message, Dialer::Socket);
    let asked = tokio::time::timeout(LIMIT, connect_and_ask(&backend));
    asked
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")))
}

async fn connect_and_ask(backend: &Backend) -> Probe {
    let (wire, connection) = backend.connect().await?;
    tokio::select! {
        found = ask(backend, &wire) => found.map_err(|error| format!("{error:#}")),
        _ = connection => Err("it closed the connection".into()),
    }
}

async fn ask(backend: &Backend, wire: &Wire) -> anyhow::Result<Found> {
    let version = call(backend, wire, &rpc::VERSION, &VersionRequest::default()).await?;
    let version = VersionResponse::decode(version).context("Version cannot be read")?;
    let status = call(backend, wire, &rpc::STATUS, &StatusRequest::default()).await?;
    let status = StatusResponse::decode(status).context("Status cannot be read")?;
    let handlers = status
        .runtime_handlers
        .into_iter()
        .map(|handler| handler.name);
    Ok(Found {
        runtime: version.runtime_name,
        version: version.runtime_version,
        conditions: status.status.unwrap_or_default().conditions,
        handlers: handlers.filter(|name| !name.is_empty()).collect(),
    })
}

async fn call(
    backend: &Backend,
    wire: &Wire,
    row: &Row,
    request: &impl Message,
) -> anyhow::Result<Bytes> {
    let body = wire::frame(&request.encode_to_vec());
    let answer = backend
        .ask_over(wire.clone(), row, &own_headers(), body)
        .await?;
    if answer.code() != Code::Ok {
        bail!(
            "{} says {:?}: {}",
            row.name,
            answer.code(),
            answer.plain_text()
        );
    }
    Ok(backend.message(&answer)?)
}
