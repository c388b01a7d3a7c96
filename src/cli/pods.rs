//! `criswitch pods`: which pod is where.

use std::collections::BTreeSet;

use anyhow::bail;
use criswitch::codec::admin::State;
use criswitch::codec::cri::{PodSandbox, PodSandboxState};
use serde_json::{Value as Json, json};

use super::columns::columns;
use super::running::{Running, owners};
use super::{Pods, Verdict, print};

/// Of an id, in a table: as many as crictl shows.
const ID_LENGTH: usize = 13;

/// A pod and its owner.
struct OwnedPod {
    pod: PodSandbox,
    backend: String,
    /// The backend does not list it now.
    cached: bool,
}

impl Pods {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let found = runtime.block_on(self.find())?;
        if self.json {
            let pods: Vec<Json> = found.iter().map(OwnedPod::json).collect();
            print(format!("{:#}\n", json!({ "pods": pods })))
        } else {
            print(text(&found)?)
        }
    }

    async fn find(&self) -> anyhow::Result<Vec<OwnedPod>> {
        let daemon = self.daemon.connect().await?;
        let listed = daemon.pods(&daemon.state().await?).await?;
        let state = daemon.state().await?;
        self.must_be_known(&state, &listed)?;
        Ok(found(&state, listed, |found| self.wants(found)))
    }

    /// A slip in a filter must not look like a node without pods.
    fn must_be_known(&self, state: &State, pods: &[PodSandbox]) -> anyhow::Result<()> {
        let backends = state.backends.iter().map(|backend| backend.name.as_str());
        one_of("backend", self.backend.as_deref(), backends.collect())?;
        // A handler that is gone may still have pods.
        let handlers = state.handlers.iter().map(|row| row.name.as_str());
        let handlers = handlers.chain(pods.iter().map(|pod| pod.runtime_handler.as_str()));
        one_of("handler", self.handler.as_deref(), handlers.collect())
    }

    fn wants(&self, found: &OwnedPod) -> bool {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        is(&self.handler, &found.pod.runtime_handler)
            && is(&self.backend, &found.backend)
            && is(&self.namespace, found.namespace())
    }
}

/// The pods of one backend, as a table.
pub(super) async fn of_backend(
    daemon: &Running,
    state: &State,
    backend: &str,
) -> anyhow::Result<String> {
    let listed = daemon.pods(state).await?;
    text(&found(state, listed, |found| found.backend == backend))
}

fn text(found: &[OwnedPod]) -> anyhow::Result<String> {
    let header = ["HANDLER", "BACKEND", "STATE", "ID", "NAMESPACE/NAME"];
    columns(&header, found.iter().map(OwnedPod::row))
}

/// The listed pods that are wanted, with their owners, by name.
fn found(
    state: &State,
    listed: Vec<PodSandbox>,
    wants: impl Fn(&OwnedPod) -> bool,
) -> Vec<OwnedPod> {
    let owners = owners(state);
    let is_cached = |backend: &str| {
        let mut backends = state.backends.iter();
        backends.any(|row| row.name == backend && row.pods_from_cache)
    };
    let pods = listed.into_iter().map(|pod| {
        let backend = owners.get(pod.id.as_str()).copied().unwrap_or_default();
        OwnedPod {
            cached: is_cached(backend),
            backend: backend.to_owned(),
            pod,
        }
    });
    let mut found: Vec<_> = pods.filter(wants).collect();
    found.sort_by_cached_key(|found| (found.name(), found.pod.created_at));
    found
}

fn one_of(kind: &str, wanted: Option<&str>, known: BTreeSet<&str>) -> anyhow::Result<()> {
    match wanted {
        Some(wanted) if !known.contains(wanted) => {
            let known: Vec<&str> = known.into_iter().filter(|name| !name.is_empty()).collect();
            bail!(
                "no {kind} is named {wanted:?}; the {kind}s are: {}",
                known.join(", ")
            )
        }
        _ => Ok(()),
    }
}

impl OwnedPod {
    fn namespace(&self) -> &str {
        self.pod
            .metadata
            .as_ref()
            .map_or("", |metadata| metadata.namespace.as_str())
    }

    fn name(&self) -> String {
        let name = self
            .pod
            .metadata
            .as_ref()
            .map_or("", |metadata| metadata.name.as_str());
        format!("{}/{name}", self.namespace())
    }

    fn state(&self) -> &'static str {
        match self.pod.state() {
            PodSandboxState::SandboxReady => "ready",
            PodSandboxState::SandboxNotready => "not ready",
        }
    }

    fn row(&self) -> [String; 5] {
        let id = self.pod.id.chars().take(ID_LENGTH).collect();
        let handler = self.pod.runtime_handler.clone();
        let cached = if self.cached { " (cached)" } else { "" };
        [
            handler,
            self.backend.clone(),
            format!("{}{cached}", self.state()),
            id,
            self.name(),
        ]
    }

    fn json(&self) -> Json {
        let metadata = self.pod.metadata.clone().unwrap_or_default();
        json!({
            "id": self.pod.id,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "attempt": metadata.attempt,
            "handler": self.pod.runtime_handler,
            "backend": self.backend,
            "state": self.state(),
            "cached": self.cached,
            "createdAtNanoseconds": self.pod.created_at,
        })
    }
}
