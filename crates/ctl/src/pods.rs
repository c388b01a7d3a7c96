//! `criswitch pods`: the node's pods with their backends.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use clap::Args;
use clap_complete::ArgValueCandidates;
use criswitch_client::arguments::Daemon;
use criswitch_client::columns::columns;
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, Encoding, ListOutput};
use criswitch_client::program::block_on;
use criswitch_client::running::{Running, handler_of, owners, unknown_name};
use criswitch_client::terminal::{SafeText, print};
use criswitch_config::wording::span;
use criswitch_cri::codec::admin::State;
use criswitch_cri::codec::cri::{PodSandbox, PodSandboxState};
use serde_json::{Value as Json, json};

use super::complete;
use super::watch::watch;

/// The number of characters of an id in a table. crictl shows the same number.
const ID_LENGTH: usize = 13;
#[rustfmt::skip]
const HEADER: [&str; 9] =
    ["HANDLER", "BACKEND", "STATE", "AGE", "ID", "NAMESPACE/NAME", "UID", "ATTEMPT", "CREATED"];
/// The number of columns in a table without `-o wide`.
const NARROW: usize = 6;

/// Shown in place of the handler of a pod that reports no handler and counts for the default handler.
const DEFAULT: &str = "(default)";

struct OwnedPod {
    pod: PodSandbox,
    backend: String,
    /// The handler that the pod counts for.
    handler: String,
    /// Whether the pod comes from a cached list, because its backend does not answer.
    cached: bool,
}

/// The arguments of `criswitch pods`.
#[derive(Args)]
pub(super) struct PodsArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: ListOutput,
    /// Print only the ids, one per line.
    #[arg(long, short, conflicts_with_all = ["output", "json"])]
    quiet: bool,
    /// Show the pods every 2 seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
    /// Show only pods of this handler.
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete::handlers))]
    handler: Option<String>,
    /// Show only pods of this backend.
    #[arg(long, value_name = "NAME", add = ArgValueCandidates::new(complete::backends))]
    backend: Option<String>,
    /// Show only pods of this Kubernetes namespace.
    #[arg(long, short, value_name = "NAME")]
    namespace: Option<String>,
    /// Show pods of all namespaces (the default).
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
    /// Show only this pod.
    #[arg(value_name = "NAMESPACE/NAME", conflicts_with = "namespace")]
    pod: Option<String>,
}

impl PodsArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        block_on(async {
            if self.watch {
                let show = async || self.shown(&self.find().await?, Encoding::item);
                return watch(self.output.encoding(), show).await;
            }
            print(self.shown(&self.find().await?, Encoding::document)?)
        })
    }

    fn shown(
        &self,
        found: &[OwnedPod],
        encode: fn(Encoding, Json) -> anyhow::Result<SafeText>,
    ) -> anyhow::Result<SafeText> {
        if let Some(encoding) = self.output.encoding() {
            let pods: Vec<Json> = found.iter().map(OwnedPod::json).collect();
            return encode(encoding, json!({ "pods": pods }));
        }
        if self.quiet {
            return Ok(output::name_lines(found.iter().map(|found| &found.pod.id)).into());
        }
        if self.output.is_names() {
            return Ok(output::name_lines(found.iter().map(OwnedPod::name)).into());
        }
        Ok(pods_table(found, self.output.is_wide())?.into())
    }

    async fn find(&self) -> anyhow::Result<Vec<OwnedPod>> {
        let daemon = self.daemon.connect().await?;
        let listed = daemon.pods(&daemon.state().await?).await?;
        let state = daemon.state().await?;
        self.must_be_known(&state, &listed)?;
        let found = owned_pods(&state, listed, |found| self.wants(found));
        if let (Some(pod), true) = (&self.pod, found.is_empty()) {
            bail!("no such pod: {pod:?}; for the reason: criswitch explain {pod}");
        }
        Ok(found)
    }

    /// Rejects a filter with an unknown name. Otherwise a misspelt name would look like a node without pods.
    fn must_be_known(&self, state: &State, pods: &[PodSandbox]) -> anyhow::Result<()> {
        let backends = state.backends.iter().map(|backend| backend.name.as_str());
        one_of("backend", self.backend.as_deref(), backends.collect())?;
        // A handler that was removed from the table may still have pods, so its name is known too.
        let handlers = state
            .handlers
            .iter()
            .map(|row| row.name.as_str())
            .chain(pods.iter().map(|pod| pod.runtime_handler.as_str()));
        one_of("handler", self.handler.as_deref(), handlers.collect())
    }

    fn wants(&self, found: &OwnedPod) -> bool {
        is_wanted(self.handler.as_deref(), &found.handler)
            && is_wanted(self.backend.as_deref(), &found.backend)
            && is_wanted(self.namespace.as_deref(), found.namespace())
            && is_wanted(self.pod.as_deref(), &found.name())
    }
}

/// Whether the value passes a filter; without one, each value passes.
fn is_wanted(filter: Option<&str>, value: &str) -> bool {
    filter.is_none_or(|wanted| wanted == value)
}

/// The pods of one backend, as a table.
pub(super) async fn of_backend(
    daemon: &Running,
    state: &State,
    backend: &str,
) -> anyhow::Result<String> {
    let listed = daemon.pods(state).await?;
    // Read the state after the list, because the later state says whether the list came from the cache.
    let state = daemon.state().await?;
    pods_table(
        &owned_pods(&state, listed, |found| found.backend == backend),
        false,
    )
}

fn pods_table(found: &[OwnedPod], is_wide: bool) -> anyhow::Result<String> {
    let width = if is_wide { HEADER.len() } else { NARROW };
    columns(
        HEADER.split_at(width).0,
        found.iter().map(|found| found.row(is_wide)),
    )
}

/// The listed pods that `wants` selects, with their owners, sorted by name.
fn owned_pods(
    state: &State,
    listed: Vec<PodSandbox>,
    wants: impl Fn(&OwnedPod) -> bool,
) -> Vec<OwnedPod> {
    let owners = owners(state);
    let mut found: Vec<_> = listed
        .into_iter()
        .map(|pod| {
            let backend = owners.get(pod.id.as_str()).copied().unwrap_or_default();
            OwnedPod {
                handler: handler_of(state, &owners, &pod).to_owned(),
                cached: state
                    .backends
                    .iter()
                    .any(|row| row.name == backend && row.pods_from_cache),
                backend: backend.to_owned(),
                pod,
            }
        })
        .filter(wants)
        .collect();
    found.sort_by_cached_key(|found| (found.name(), found.pod.created_at));
    found
}

fn one_of(kind: &str, wanted: Option<&str>, known: BTreeSet<&str>) -> anyhow::Result<()> {
    match wanted {
        Some(wanted) if !known.contains(wanted) => {
            let known = known.into_iter().filter(|name| !name.is_empty());
            bail!(unknown_name(kind, wanted, known))
        }
        _ => Ok(()),
    }
}

impl OwnedPod {
    fn namespace(&self) -> &str {
        let metadata = self.pod.metadata.as_ref();
        metadata.map_or("", |metadata| &metadata.namespace)
    }

    fn name(&self) -> String {
        let metadata = self.pod.metadata.as_ref();
        let name = metadata.map_or("", |metadata| &metadata.name);
        format!("{}/{name}", self.namespace())
    }

    fn state(&self) -> &'static str {
        match self.pod.state() {
            PodSandboxState::SandboxReady => "ready",
            PodSandboxState::SandboxNotready => "not ready",
        }
    }

    /// The time of the pod's creation; `None` if the runtime reported no time.
    fn created(&self) -> Option<SystemTime> {
        let nanoseconds = u64::try_from(self.pod.created_at).ok();
        let since_epoch = Duration::from_nanos(nanoseconds.filter(|it| *it > 0)?);
        UNIX_EPOCH.checked_add(since_epoch)
    }

    fn created_text(&self) -> Option<String> {
        Some(humantime::format_rfc3339_nanos(self.created()?).to_string())
    }

    fn row(&self, is_wide: bool) -> [String; HEADER.len()] {
        let metadata = self.pod.metadata.clone().unwrap_or_default();
        let cached = if self.cached { " (cached)" } else { "" };
        let age = self
            .created()
            .map(|created| span(created.elapsed().unwrap_or_default()));
        let id_length = if is_wide { usize::MAX } else { ID_LENGTH };
        let handler = match self.handler.as_str() {
            own if self.pod.runtime_handler.is_empty() && !own.is_empty() => DEFAULT,
            handler => handler,
        };
        [
            handler.to_owned(),
            self.backend.clone(),
            format!("{}{cached}", self.state()),
            age.unwrap_or_default(),
            self.pod.id.chars().take(id_length).collect(),
            self.name(),
            metadata.uid,
            metadata.attempt.to_string(),
            self.created_text().unwrap_or_default(),
        ]
    }

    fn json(&self) -> Json {
        let metadata = self.pod.metadata.clone().unwrap_or_default();
        let [handler, backend] = [&self.pod.runtime_handler, &self.backend]
            .map(|name| Some(name).filter(|name| !name.is_empty()));
        json!({
            "id": self.pod.id,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "attempt": metadata.attempt,
            "handler": handler,
            "backend": backend,
            "state": self.state(),
            "cached": self.cached,
            "createdAt": self.created_text(),
        })
    }
}
