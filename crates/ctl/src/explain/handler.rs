//! `criswitch explain HANDLER`: the row, the backend, its features, its limits and its pods.

use std::borrow::Cow;

use criswitch_advice::{LIMITS, Limit};
use criswitch_client::columns::columns;
use criswitch_client::running::{handler_of, owners};
use criswitch_client::{output, terminal};
use criswitch_config::Handler;
use criswitch_config::wording::{AUTO_REGISTERED, counted};
use criswitch_cri::codec::admin::{Backend, Handler as Row, Rejection, State, reload};
use criswitch_cri::codec::cri::PodSandboxState;
use serde::Serialize;
use serde_json::{Value, json};

use super::{Answers, KnownKind, NodeFacts};
use crate::status::{asked, failures};

/// Why the kind of runtime is unknown although the backend answers.
const NO_KIND: &str = "neither the backend nor the handler's name shows it; set `kind` in the row, for any other runtime kind = \"other\"";

/// The facts about a handler.
pub(super) struct ExplainedHandler {
    row: Row,
    backend: Option<Backend>,
    is_default: bool,
    changed: String,
    change: Option<RowChange>,
    /// The kind of runtime, or why it is unknown.
    kind: Result<KnownKind, String>,
    /// The features that the backend reports, or why they are unknown.
    features: Result<Vec<&'static str>, String>,
    /// The number of the handler's pods and of its ready pods, or why these numbers are unknown.
    pods: Result<(usize, usize), String>,
    limits: Vec<&'static Limit>,
    /// The consequences of the backend; `None` if the features are unknown.
    consequences: Option<Vec<Cow<'static, str>>>,
    /// The pods of the handler that were not created.
    rejections: Vec<Rejection>,
}

/// A reload that changed a row.
#[derive(Serialize)]
struct RowChange {
    /// The number of the reload.
    reload: u64,
    at: String,
    /// The backend before the reload; `None` if the reload added the row.
    from: Option<String>,
    to: String,
}

/// Explains the handler of a row of the daemon. `node` is the configuration with the answers of the backends, or why
/// it is unknown.
pub(super) fn explain(
    daemon: &Answers,
    row: &Row,
    node: Result<&NodeFacts, String>,
    all: bool,
) -> ExplainedHandler {
    let state = &daemon.state;
    let backend = state.backends.iter().find(|it| it.name == row.backend);
    let known = node.and_then(|node| Ok((node, node.row(row, backend)?)));
    let features = known
        .as_ref()
        .map_err(String::clone)
        .and_then(|(node, known)| node.features(known));
    let kind = match (known.as_ref(), &features) {
        (Err(cause), _) => Err(cause.clone()),
        (Ok((node, known)), features) => node.kind(known).ok_or_else(|| match features {
            Ok(_) => NO_KIND.to_owned(),
            Err(cause) => format!("{cause}; set `kind` in the row"),
        }),
    };
    let pods = daemon.pods.as_ref().map_err(String::clone).map(|pods| {
        let owners = owners(state);
        let its = pods
            .iter()
            .filter(|pod| handler_of(state, &owners, pod) == row.name);
        let ready = its
            .clone()
            .filter(|pod| pod.state() == PodSandboxState::SandboxReady);
        (its.count(), ready.count())
    });
    let answered = known.as_ref().ok().filter(|_| features.is_ok());
    let change = last_change(state, row);
    ExplainedHandler {
        backend: backend.cloned(),
        is_default: state.default_handler == row.name,
        changed: changed(state, row, change.as_ref()),
        change,
        limits: limits(&kind, known.as_ref().ok(), features.as_ref().ok(), all),
        consequences: answered.map(|(node, _)| node.consequences(row)),
        kind,
        features,
        pods,
        rejections: state
            .rejections
            .iter()
            .filter(|pod| asked(pod) == Some(row.name.as_str()))
            .cloned()
            .collect(),
        row: row.clone(),
    }
}

/// The limits of a handler: those that apply to pods that the API server accepts, and those for which an unknown fact
/// decides that is not a feature. With `all`, also all other limits of its kind of runtime.
fn limits(
    kind: &Result<KnownKind, String>,
    known: Option<&(&NodeFacts, Handler)>,
    features: Option<&Vec<&'static str>>,
    all: bool,
) -> Vec<&'static Limit> {
    let kind = kind.as_ref().ok().map(|it| it.kind);
    let Some((node, row)) = known else {
        return Vec::new();
    };
    let facts = node.handler_facts(row, features.cloned());
    LIMITS
        .iter()
        .filter(|limit| match limit.applies(kind, &facts) {
            _ if all && kind.is_some_and(|kind| limit.kinds.contains(&kind)) => true,
            Some(applies) => applies && !limit.is_of_api_server,
            None => limit.feature().is_none(),
        })
        .collect()
}

/// The last reload that changed the row, as far as the daemon remembers its reloads. `None` for an automatically
/// registered handler.
fn last_change(state: &State, row: &Row) -> Option<RowChange> {
    if row.origin == AUTO_REGISTERED {
        return None;
    }
    state
        .reloads
        .iter()
        .flat_map(|reloads| &reloads.recent)
        .rev()
        .find_map(|outcome| {
            let Some(reload::Result::Changes(changes)) = &outcome.result else {
                return None;
            };
            let moved = changes
                .handlers_moved
                .iter()
                .find(|moved| moved.name == row.name);
            (moved.is_some() || changes.handlers_added.contains(&row.name)).then(|| RowChange {
                reload: outcome.number,
                at: outcome.at.clone(),
                from: moved.map(|moved| moved.from.clone()),
                to: moved.map_or(&row.backend, |moved| &moved.to).clone(),
            })
        })
}

/// A text that says since when the row has its current backend.
fn changed(state: &State, row: &Row, change: Option<&RowChange>) -> String {
    let oldest = state.reloads.as_ref().and_then(|it| it.recent.first());
    match (change, oldest) {
        _ if row.origin == AUTO_REGISTERED => {
            "registered automatically, when the backend reported it".to_owned()
        }
        (
            Some(RowChange {
                reload,
                at,
                from,
                to,
            }),
            _,
        ) => match from {
            Some(from) => format!("moved from {from} to {to} by reload {reload} at {at}"),
            None => format!("added by reload {reload} at {at}"),
        },
        (None, Some(oldest)) if oldest.number > 1 => {
            format!("unchanged since before reload {}", oldest.number)
        }
        (None, _) => "unchanged since criswitch started".to_owned(),
    }
}

impl ExplainedHandler {
    pub(super) fn text(&self) -> anyhow::Result<String> {
        let default = self.is_default.then_some(", the default handler");
        let row = match self.row.origin.as_str() {
            AUTO_REGISTERED => self.changed.clone(),
            origin => format!("{origin}, {}", self.changed),
        };
        let pods = match &self.pods {
            Ok((pods, ready)) => format!("{pods} ({ready} ready)"),
            Err(cause) => format!("unknown: {cause}"),
        };
        let lines = [
            format!("handler {}{}", self.row.name, default.unwrap_or_default()),
            format!("  row: {row}"),
            format!("  backend: {}", self.backend_text()),
            format!("  kind of runtime: {}", self.kind_text()),
            format!("  features: {}", self.features_text()),
            format!("  pods: {pods}"),
        ]
        .into_iter()
        .chain(
            self.consequences
                .iter()
                .flatten()
                .map(|what| format!("  backend {}: {what}", self.row.backend)),
        );
        Ok(terminal::paragraphs([
            terminal::wrapped(&terminal::text_of(lines)),
            failures(self.rejections.iter())?,
            self.limits_text()?,
        ]))
    }

    /// The known limits of the handler; empty if it has none.
    fn limits_text(&self) -> anyhow::Result<String> {
        if self.limits.is_empty() {
            return Ok(String::new());
        }
        let rows = self.limits.iter().map(|limit| {
            let fields = limit.field_names().collect::<Vec<_>>().join(" ");
            [limit.id, limit.effect.as_ref(), &fields].map(str::to_owned)
        });
        let table = columns(&["LIMIT", "EFFECT", "FIELDS"], rows)?;
        let count = counted(self.limits.len(), "known limit");
        let more = format!(
            "{count}; for the reasons: criswitch explain -f POD.yaml, or docs/compatibility.md; for the limits that cannot \
             apply here too: --all\n"
        );
        Ok(format!("{table}\n{}", terminal::wrapped(&more)))
    }

    fn backend_text(&self) -> String {
        let called = match self.row.backend_handler.as_str() {
            "" => ", as its own default".to_owned(),
            same if same == self.row.name => String::new(),
            other => format!(", as {other}"),
        };
        let Some(backend) = &self.backend else {
            return self.row.backend.clone();
        };
        let runtime = match (backend.runtime.as_str(), backend.version.as_str()) {
            ("", _) => String::new(),
            (runtime, version) => format!(", {runtime} {version}"),
        };
        let cause = backend.cause.as_ref().map(|cause| format!(": {cause}"));
        let cause = cause.unwrap_or_default();
        let Backend { name, socket, .. } = backend;
        let (state, since) = (&backend.state, &backend.since);
        format!("{name} ({socket}){called}{runtime}, {state} since {since}{cause}")
    }

    fn kind_text(&self) -> String {
        match &self.kind {
            Ok(KnownKind { kind, from }) => format!("{}, from {from}", kind.title()),
            Err(cause) => format!("unknown, so no limits of it are known: {cause}"),
        }
    }

    fn features_text(&self) -> String {
        match self.features.as_deref() {
            Err(cause) => format!("unknown: {cause}"),
            Ok([]) => "none".to_owned(),
            Ok(features) => features.join(", "),
        }
    }

    pub(super) fn json(&self) -> Value {
        let (backend, kind) = (self.backend.as_ref(), self.kind.as_ref().ok());
        let pods = self.pods.as_ref().ok();
        let problems = [self.features.as_ref().err(), self.pods.as_ref().err()]
            .into_iter()
            .flatten()
            .map(|cause| output::problem(cause));
        let limits = self.limits.iter().map(|it| it.json(it.field_names()));
        json!({
            "handler": self.row.name,
            "isDefault": self.is_default,
            "origin": self.row.origin,
            "changed": self.changed,
            "changedBy": self.change,
            "backend": self.row.backend,
            "backendHandler": self.row.backend_handler,
            "socket": backend.map(|it| &it.socket),
            "state": backend.map(|it| &it.state),
            "since": backend.map(|it| &it.since),
            "kind": kind.map(|it| it.kind.as_ref().to_owned()),
            "kindFrom": kind.map(|it| it.from),
            "features": self.features.as_ref().ok(),
            "pods": pods.map(|(pods, _)| pods),
            "readyPods": pods.map(|(_, ready)| ready),
            "limits": limits.collect::<Vec<_>>(),
            "consequences": self.consequences,
            "rejections": self.rejections,
            "problems": problems.collect::<Vec<_>>(),
        })
    }
}
