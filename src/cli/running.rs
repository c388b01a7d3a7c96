//! The switch that serves on a socket, as it tells of itself there: what `reload`, `status` and `pods` ask.

use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use criswitch::address::Address;
use criswitch::backend::{Backend, Wire};
use criswitch::config::BackendConfig;
use criswitch::cri::{StatusRequest, StatusResponse};
use criswitch::dialer::{Connection, Dialer};
use criswitch::rpc::{self, Row};
use prost::Message;
use serde_json::Value as Json;

use super::probe;

/// How long it may take for an answer: its own Status waits a second for a backend.
const LIMIT: Duration = Duration::from_secs(10);
/// As large as any reply can be that it makes.
const MAX_MESSAGE: usize = 1 << 30;
/// The key of the verbose Status' `info` that a switch adds.
const OWN: &str = "criswitch";

/// A connection to a switch.
pub(super) struct Running {
    socket: Address,
    switch: Backend,
    wire: Wire,
    /// What drives the connection.
    _connection: tokio::task::JoinHandle<()>,
}

impl Running {
    /// Connects to whoever serves on `socket`; within a tokio runtime.
    pub(super) async fn connect(socket: &Address) -> anyhow::Result<Running> {
        let switch = Backend::new(
            &BackendConfig {
                id: 0,
                name: OWN.to_owned(),
                socket: socket.clone(),
                list_timeout: LIMIT,
                adopt: false,
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
            _connection: tokio::spawn(drive(connection)),
        })
    }

    /// What its verbose Status says, whoever it is.
    pub(super) async fn status(&self) -> anyhow::Result<StatusResponse> {
        let status = self.call(&rpc::STATUS, &StatusRequest { verbose: true });
        StatusResponse::decode(status.await?).context("its Status cannot be read")
    }

    /// What it tells of itself.
    ///
    /// # Errors
    /// Also if it is not a switch.
    pub(super) async fn info(&self) -> anyhow::Result<Json> {
        let status = self.status().await?;
        own_info(&status).with_context(|| {
            format!(
                "{} is served, but not by criswitch; try --config, or the socket that `listen` names",
                self.socket
            )
        })
    }

    /// The message of its reply to `request`.
    pub(super) async fn call(&self, row: &Row, request: &impl Message) -> anyhow::Result<Bytes> {
        let call = probe::call(&self.switch, &self.wire, row, request);
        let Ok(reply) = tokio::time::timeout(LIMIT, call).await else {
            bail!(
                "{}: no answer to {} within {LIMIT:?}",
                self.socket,
                row.name
            );
        };
        reply
    }
}

/// What a switch says of itself in its verbose Status; none from any other runtime.
pub(super) fn own_info(status: &StatusResponse) -> Option<Json> {
    serde_json::from_str(status.info.get(OWN)?).ok()
}

async fn drive(connection: Connection) {
    // A call that it breaks off fails by itself.
    connection.await.ok();
}

fn not_there(socket: &Address, cause: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{socket}: {cause}; does criswitch run (systemctl status criswitch), and is this its socket (`listen`)?"
    )
}
