//! The verdict on the node: whether criswitch serves the whole node, and why not.

use std::time::Duration;

use criswitch_config::wording::{ago, failing_rpc, lacking, span};
use criswitch_cri::codec::admin::{Backend, FailingRpc, State};
use criswitch_cri::facts::Level;

/// The cause that is shown for a backend that has not answered since criswitch started.
const NO_ANSWER: &str = "no answer yet";

/// Whether calls can go to the backend.
pub fn is_ready(backend: &Backend) -> bool {
    backend.state == "ready"
}

/// How criswitch serves the node, and the reasons.
#[derive(Debug)]
pub struct NodeVerdict {
    /// The worst of the problems.
    pub level: Level,
    /// One reason for each backend with a problem of this level. If there is no problem: that the backends are ready.
    pub reasons: Vec<String>,
    /// The names of the backends with a problem of this level.
    pub backends: Vec<String>,
}

impl NodeVerdict {
    /// The verdict on the daemon's state, on the problems in conditions, and on the reason why pods cannot be listed.
    pub fn of(state: &State, conditions: Vec<String>, unlisted: Option<String>) -> NodeVerdict {
        if let Some(reasons) = first([list_problems(state), Vec::from_iter(unlisted)]) {
            return NodeVerdict {
                level: Level::ListsFailing,
                reasons,
                backends: backend_names(state, |backend| failing(state, backend).is_some()),
            };
        }
        let reasons = state
            .backends
            .iter()
            .filter_map(|backend| degraded(state, backend));
        if let Some(reasons) = first([reasons.collect(), conditions]) {
            return NodeVerdict {
                level: match state.node_not_ready_seconds {
                    Some(_) => Level::NodeNotReady,
                    None => Level::Degraded,
                },
                reasons,
                backends: backend_names(state, |backend| degraded(state, backend).is_some()),
            };
        }
        let ready = match state.backends.len() {
            1 => "the backend is ready".to_owned(),
            count => format!("{count} backends are ready"),
        };
        NodeVerdict {
            level: Level::Serving,
            reasons: vec![ready],
            backends: Vec::new(),
        }
    }
}

fn backend_names(state: &State, is_wanted: impl Fn(&Backend) -> bool) -> Vec<String> {
    state
        .backends
        .iter()
        .filter(|backend| is_wanted(backend))
        .map(|backend| backend.name.clone())
        .collect()
}

/// The first list that is not empty.
fn first(reasons: [Vec<String>; 2]) -> Option<Vec<String>> {
    reasons.into_iter().find(|reasons| !reasons.is_empty())
}

/// Why lists fail, and what to do. Has one item for each backend that makes lists fail.
pub fn list_problems(state: &State) -> Vec<String> {
    let backends = state.backends.iter();
    backends
        .filter_map(|backend| failing(state, backend))
        .collect()
}

/// Why `backend` makes lists fail, and what to do; `None` if `backend` has no list problem. Lists also fail without any
/// backend, so forgetting the only backend does not help.
fn failing(node: &State, backend: &Backend) -> Option<String> {
    let problem = backend.list_problem.as_ref()?;
    let Backend { name, socket, .. } = backend;
    if is_ready(backend) {
        return Some(format!("backend {name} ({socket}): {problem}"));
    }
    let mut text = format!(
        "{}, and {problem}; start its runtime; if the path is wrong, correct it and reload",
        state(backend)
    );
    if node.backends.len() > 1 {
        text += &format!(
            "; if the path was wrong or the runtime is gone for good: criswitch forget {name}"
        );
    }
    Some(text)
}

/// The state of a backend that is not ready, its duration and its cause.
pub fn state(backend: &Backend) -> String {
    let Backend {
        name,
        socket,
        state,
        ..
    } = backend;
    let cause = backend.cause.as_deref().unwrap_or(NO_ANSWER);
    let since = ago(&backend.since);
    format!("backend {name} ({socket}) has been {state} for {since} ({cause})")
}

/// The problem of `backend`, its duration and its effect on calls; `None` if the backend is healthy.
fn degraded(state: &State, backend: &Backend) -> Option<String> {
    let name = &backend.name;
    if !is_ready(backend) {
        let cause = backend.cause.as_deref().unwrap_or(NO_ANSWER);
        let (since, effect) = (ago(&backend.since), effect(state, backend));
        let moved = backend.moved.iter().map(|moved| format!("; {moved}"));
        return Some(format!(
            "backend {name} has been {} for {since}: {effect} ({cause}){}",
            backend.state,
            moved.collect::<String>()
        ));
    }
    if !backend.failing_rpcs.is_empty() {
        return Some(format!("backend {name}: {}", failing_rpcs(backend)));
    }
    let late = Duration::from_secs(backend.stats_late_seconds?);
    Some(format!(
        "backend {name} has not answered calls for stats for {}: the stats of its pods are old or missing",
        span(late)
    ))
}

/// The RPCs of `backend` whose answers cannot be used, and what to do: first those that it lacks although every runtime
/// must have them, then the others.
fn failing_rpcs(backend: &Backend) -> String {
    let (lacks, others): (Vec<_>, Vec<_>) = backend
        .failing_rpcs
        .iter()
        .partition(|failing: &&FailingRpc| backend.lacking_rpcs.contains(&failing.rpc));
    let names: Vec<_> = lacks.iter().map(|lack| lack.rpc.as_str()).collect();
    let lacks = lacks
        .first()
        .map(|first| format!("{} ({})", lacking(&names.join(", ")), first.cause));
    let texts = others
        .iter()
        .map(|it| failing_rpc(&it.rpc, it.times, it.seconds, &it.cause));
    let others = (!others.is_empty()).then(|| {
        format!(
            "{}; replies have its cached items or omit it; see the log of its runtime",
            texts.collect::<Vec<_>>().join(", ")
        )
    });
    lacks
        .into_iter()
        .chain(others)
        .collect::<Vec<_>>()
        .join("; ")
}

fn effect(state: &State, backend: &Backend) -> String {
    let is_default = state
        .handlers
        .iter()
        .find(|row| row.name == state.default_handler)
        .is_some_and(|row| row.backend == backend.name);
    match (is_default, backend.joined) {
        (true, _) => {
            "calls for its pods fail, and after 30 s without an answer the node becomes NotReady"
                .to_owned()
        }
        (false, true) => stuck(state, backend),
        (false, false) => "no pods start on this backend; other pods are not affected".to_owned(),
    }
}

/// The effect on the pods of a backend that is not the default backend: new pods, and running pods.
fn stuck(state: &State, backend: &Backend) -> String {
    let handlers: Vec<_> = state
        .handlers
        .iter()
        .filter(|row| row.backend == backend.name)
        .map(|row| row.name.as_str())
        .collect();
    let starts = match handlers.as_slice() {
        [] => None,
        [handler] => Some(format!("new pods of handler {handler} do not start")),
        all => Some(format!(
            "new pods of handlers {} do not start",
            all.join(", ")
        )),
    };
    let pods = match backend.pods {
        Some(0) => None,
        Some(1) => Some("its 1 pod keeps".to_owned()),
        Some(pods) => Some(format!("its {pods} pods keep")),
        None => Some("its pods keep".to_owned()),
    };
    let runs = pods.map(|pods| format!("{pods} running but cannot be stopped or probed"));
    let effects: Vec<_> = starts.into_iter().chain(runs).collect();
    if effects.is_empty() {
        "it has no pods and no handlers".to_owned()
    } else {
        effects.join("; ")
    }
}
