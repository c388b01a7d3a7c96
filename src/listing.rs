//! The switch's own questions: a backend's pods and containers, when it connects and when nobody knows an id.

use std::sync::PoisonError;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use tonic::{Code, Status};

use crate::backend::{Answer, Backend, Wire, own_headers};
use crate::rpc::{self, Kind, Row};
use crate::switch::Switch;
use crate::wire;

/// How long a backend may take for a question of the switch's own; a busy one takes seconds for a list.
const OWN_CALL_LIMIT: Duration = Duration::from_secs(10);

impl Switch {
    /// Makes a new connection to `backend` ready: its pods and containers listed, the runtime's configuration told.
    ///
    /// # Errors
    /// The status of the first call that failed.
    pub async fn greet(&self, backend: &Backend, wire: Wire) -> Result<(), Status> {
        let version = own_call(backend, Some(&wire), &rpc::VERSION, wire::frame(&[])).await?;
        let version = backend.message(&version)?;
        backend.learn(|known| known.version = version);
        self.list(backend, Some(&wire)).await?;
        self.question.listed(backend.id);
        self.replay_runtime_config(backend, &wire).await
    }

    /// Tells a backend that was away what the kubelet said meanwhile.
    async fn replay_runtime_config(&self, backend: &Backend, wire: &Wire) -> Result<(), Status> {
        let config = self.runtime_config.lock();
        let config = config.unwrap_or_else(PoisonError::into_inner).clone();
        let Some(config) = config else { return Ok(()) };
        let row = &rpc::UPDATE_RUNTIME_CONFIG;
        let answer = own_call(backend, Some(wire), row, config).await?;
        if !matches!(answer.code(), Code::Ok | Code::Unimplemented) {
            let text = answer.plain_text();
            tracing::warn!(backend = %backend.name, %text, "it refuses the runtime configuration");
        }
        Ok(())
    }

    /// Asks every backend for its pods and containers and learns them.
    ///
    /// # Errors
    /// The first backend's that did not answer; the others are learned all the same.
    pub(crate) async fn list_every(&self) -> Result<(), Status> {
        let listed = self.backends.iter().map(|backend| self.list(backend, None));
        join_all(listed).await.into_iter().collect()
    }

    async fn list(&self, backend: &Backend, wire: Option<&Wire>) -> Result<(), Status> {
        self.list_kind(Kind::Pod, &rpc::LIST_PODS, backend, wire)
            .await?;
        self.list_kind(Kind::Container, &rpc::LIST_CONTAINERS, backend, wire)
            .await
    }

    async fn list_kind(
        &self,
        kind: Kind,
        row: &'static Row,
        backend: &Backend,
        wire: Option<&Wire>,
    ) -> Result<(), Status> {
        let asked = self.owners().mark();
        let answer = own_call(backend, wire, row, wire::frame(&[])).await?;
        self.learn_list(kind, backend, &backend.message(&answer)?)?;
        self.owners().settle(kind, backend.id, asked);
        Ok(())
    }
}

/// A call of the switch's own, over `wire` while the backend is not ready.
async fn own_call(
    backend: &Backend,
    wire: Option<&Wire>,
    row: &'static Row,
    body: Bytes,
) -> Result<Answer, Status> {
    let headers = own_headers();
    let asked = async {
        match wire {
            Some(wire) => backend.ask_over(wire.clone(), row, &headers, body).await,
            None => backend.ask(row, &headers, body).await,
        }
    };
    let late = |_| {
        backend.unavailable(&format!(
            "no answer to {} within {OWN_CALL_LIMIT:?}",
            row.name
        ))
    };
    tokio::time::timeout(OWN_CALL_LIMIT, asked)
        .await
        .map_err(late)?
}
