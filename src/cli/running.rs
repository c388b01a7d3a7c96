//! The switch that serves on a socket, as it tells of itself there: what `reload`, `status` and `pods` ask.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use criswitch::backend::connect::{Dialer, Driver};
use criswitch::backend::{self, Wire, own_headers};
use criswitch::codec::cri::{StatusRequest, StatusResponse, VersionRequest, VersionResponse};
use criswitch::config::BackendConfig;
use criswitch::config::address::Address;
use criswitch::dispatch::SOON;
use criswitch::fanout::status::WITH_PODS;
use criswitch::rpc::{self, Row};
use criswitch::switch::forget::FORGET;
use http::{HeaderMap, HeaderValue};
use prost::Message;
use serde::Deserialize;
use serde_json::Value as Json;
use tonic::Status;

use super::probe;

/// How long it may take for an answer.
const LIMIT: Duration = Duration::from_secs(35);
/// As large as any reply can be that it makes.
const MAX_MESSAGE: usize = 1 << 30;
/// What the system says to those who may not connect.
const REFUSED: &str = "Permission denied";
/// The key of the verbose Status' `info` that a switch adds.
const OWN: &str = "criswitch";

/// What a switch tells of itself.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DaemonInfo {
    pub(super) version: String,
    pub(super) pid: u32,
    pub(super) default_handler: String,
    pub(super) handlers: Vec<HandlerInfo>,
    pub(super) backends: Vec<BackendInfo>,
    pub(super) configuration: Configuration,
    pub(super) reloads: ReloadsInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct HandlerInfo {
    pub(super) name: String,
    pub(super) backend: Option<String>,
    pub(super) backend_handler: String,
    pub(super) origin: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackendInfo {
    pub(super) name: String,
    pub(super) socket: String,
    pub(super) state: String,
    pub(super) cause: Option<String>,
    pub(super) since: String,
    pub(super) joined: bool,
    pub(super) draining: bool,
    pub(super) unnamed: bool,
    /// Why lists would fail after a restart now.
    pub(super) restart_problem: Option<String>,
    /// Why lists fail now.
    pub(super) list_problem: Option<String>,
    /// Its cached pods are served.
    pub(super) pods_from_cache: bool,
    pub(super) runtime: String,
    pub(super) version: String,
    pub(super) stale_list_age_seconds: Option<u64>,
    pub(super) stats_late_seconds: Option<u64>,
    /// Not known before it has been listed.
    pub(super) pods: Option<usize>,
    pub(super) containers: Option<usize>,
    /// Only where they were asked for.
    #[serde(default)]
    pub(super) pod_ids: Vec<String>,
}

#[derive(Deserialize)]
pub(super) struct Configuration {
    pub(super) files: Vec<String>,
    pub(super) hash: String,
}

#[derive(Deserialize)]
pub(super) struct ReloadsInfo {
    pub(super) last: Option<ReloadInfo>,
}

#[derive(Deserialize)]
pub(super) struct ReloadInfo {
    pub(super) at: String,
    pub(super) changes: Option<ChangesInfo>,
    pub(super) problems: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct ChangesInfo {
    pub(super) lines: Vec<String>,
}

impl DaemonInfo {
    /// What a restart now would cost, a sentence each.
    pub(super) fn restart_problems(&self) -> impl Iterator<Item = String> {
        self.backends.iter().filter_map(|backend| {
            let problem = backend.restart_problem.as_ref()?;
            let BackendInfo { name, socket, .. } = backend;
            Some(format!(
                "a restart now would make lists fail: backend {name} ({socket}) is away, and {problem}"
            ))
        })
    }

    /// The backend of this name.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn backend(&self, name: &str) -> anyhow::Result<&BackendInfo> {
        let found = self.backends.iter().find(|backend| backend.name == name);
        found.with_context(|| {
            let names = self.backends.iter().map(|backend| backend.name.as_str());
            let names = names.collect::<Vec<_>>().join(", ");
            format!("no backend is named {name:?}; there are: {names}")
        })
    }

    /// The backend of each pod by its id, where they were asked for.
    pub(super) fn owners(&self) -> HashMap<&str, &str> {
        let owned = self.backends.iter().flat_map(|backend| {
            let ids = backend.pod_ids.iter();
            ids.map(|id| (id.as_str(), backend.name.as_str()))
        });
        owned.collect()
    }
}

/// A connection to a switch.
pub(super) struct Running {
    pub(super) socket: Address,
    switch: backend::Backend,
    wire: Wire,
    /// Whether there was a good reply over this connection.
    answered: Cell<bool>,
    /// What drives the connection.
    _connection: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Connects to whoever serves on `socket`; within a tokio runtime.
    pub(super) async fn connect(socket: &Address) -> anyhow::Result<Running> {
        let switch = backend::Backend::new(
            &BackendConfig {
                id: 0,
                name: OWN.to_owned(),
                socket: socket.clone(),
                list_timeout: LIMIT,
                stats_timeout: LIMIT,
                stale_lists: Duration::ZERO,
                auto_register: false,
                required: true,
                user: None,
                origin: None,
            },
            MAX_MESSAGE,
            Dialer::Socket,
        );
        let connected = tokio::time::timeout(LIMIT, switch.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")));
        let (wire, connection) = connected.map_err(|cause| not_there(socket, &cause))?;
        Ok(Running {
            socket: socket.clone(),
            switch,
            wire,
            answered: Cell::new(false),
            _connection: tokio::spawn(drive(connection)),
        })
    }

    /// What its verbose Status says, whoever it is.
    async fn status(&self) -> anyhow::Result<StatusResponse> {
        let status = self.call(&rpc::STATUS, &StatusRequest { verbose: true });
        StatusResponse::decode(status.await?).context("its Status cannot be read")
    }

    /// The same; a switch adds the ids of each backend's pods.
    pub(super) async fn status_with_pods(&self) -> anyhow::Result<StatusResponse> {
        let mut headers = own_headers();
        headers.insert(WITH_PODS, HeaderValue::from_static("1"));
        let request = StatusRequest { verbose: true };
        let status = self.call_with(&rpc::STATUS, &headers, &request).await?;
        StatusResponse::decode(status).context("its Status cannot be read")
    }

    /// Makes it forget a backend.
    pub(super) async fn forget(&self, backend: &str) -> anyhow::Result<()> {
        let mut headers = own_headers();
        headers.insert(FORGET, HeaderValue::from_str(backend)?);
        let request = StatusRequest::default();
        let status = self.call_with(&rpc::STATUS, &headers, &request);
        status.await.map(drop)
    }

    /// Who it says that it is, whoever it is.
    pub(super) async fn version(&self) -> anyhow::Result<VersionResponse> {
        let request = VersionRequest::default();
        let version = self.call(&rpc::VERSION, &request).await?;
        VersionResponse::decode(version).context("its Version cannot be read")
    }

    /// What it tells of itself.
    ///
    /// # Errors
    /// Also if it is not a switch.
    pub(super) async fn info(&self) -> anyhow::Result<Json> {
        self.own(&self.status().await?)
    }

    fn own(&self, status: &StatusResponse) -> anyhow::Result<Json> {
        own_info(status).with_context(|| {
            format!(
                "{} is served, but not by criswitch; try --config, or --socket with the path that it serves",
                self.socket
            )
        })
    }

    /// As [`Running::info`], with the ids of each backend's pods.
    pub(super) async fn info_with_pods(&self) -> anyhow::Result<Json> {
        self.own(&self.status_with_pods().await?)
    }

    /// The message of its reply to `request`.
    pub(super) async fn call(&self, row: &Row, request: &impl Message) -> anyhow::Result<Bytes> {
        self.call_with(row, &own_headers(), request).await
    }

    async fn call_with(
        &self,
        row: &Row,
        headers: &HeaderMap,
        request: &impl Message,
    ) -> anyhow::Result<Bytes> {
        let mut headers = headers.clone();
        // A person wants to see which backend is waited for.
        headers.insert(SOON, HeaderValue::from_static("1"));
        let call = probe::call_with(&self.switch, &self.wire, row, &headers, request);
        let Ok(reply) = tokio::time::timeout(LIMIT, call).await else {
            bail!(
                "{}: no answer to {} within {LIMIT:?}",
                self.socket,
                row.name
            );
        };
        let reply = reply.map_err(|error| self.failed(&error))?;
        self.answered.set(true);
        Ok(reply)
    }

    /// What a call came to, without the name that only this process has for it.
    fn failed(&self, error: &anyhow::Error) -> anyhow::Error {
        let words = probe::words(&self.switch, error, self.answered.get());
        match error.is::<Status>() {
            true => not_there(&self.socket, &words),
            false => anyhow::anyhow!("{}: {words}", self.socket),
        }
    }
}

/// What a switch says of itself in its verbose Status; none from any other runtime.
pub(super) fn own_info(status: &StatusResponse) -> Option<Json> {
    serde_json::from_str(status.info.get(OWN)?).ok()
}

async fn drive(connection: Driver) {
    // A call that it breaks off fails by itself.
    connection.await.ok();
}

fn not_there(socket: &Address, cause: &str) -> anyhow::Error {
    if cause.contains(REFUSED) {
        return anyhow::anyhow!("{socket}: {cause}; try it as root, or as a user of `allow_uids`");
    }
    anyhow::anyhow!(
        "{socket}: {cause}; does criswitch run (systemctl status criswitch), is this its socket (`listen`, or \
        --socket PATH), and may this user ask (`allow_uids`)?"
    )
}
