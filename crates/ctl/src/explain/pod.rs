//! `criswitch explain ID` and `NAMESPACE/NAME`: the backend of a pod and the reason, or why the pod was rejected.

use anyhow::{anyhow, bail};
use criswitch_client::running::owners;
use criswitch_client::{output, terminal};
use criswitch_cri::codec::admin::{Handler as Row, Rejection, State};
use criswitch_cri::codec::cri::{PodSandbox, PodSandboxMetadata};
use serde_json::{Value, json};

use super::Answers;

/// The shortest beginning of an id. A shorter text is probably a misspelt handler.
const SHORTEST: usize = 4;
/// The beginning of the line about a missing list of pods.
const NO_LIST: &str = "the list of pods is missing, so the pod may exist";

/// The facts about the pods that the user named.
pub(super) struct ExplainedPod {
    /// The pods that exist, or why the list of pods is missing.
    pods: Result<Vec<ListedPod>, String>,
    rejections: Vec<Rejection>,
}

/// A pod that exists.
struct ListedPod {
    id: String,
    metadata: PodSandboxMetadata,
    /// The handler that the list shows for the pod, which is the name of its row; empty if it is unknown.
    handler: String,
    backend: String,
    /// Whether the creation of the pod named no handler.
    by_default: bool,
    /// The row that a new pod of the same RuntimeClass would get by the current routing table; `None` if there is none.
    now: Option<Row>,
    default: String,
}

pub(super) fn explain(daemon: &Answers, subject: &str) -> anyhow::Result<ExplainedPod> {
    let state = &daemon.state;
    let pods = daemon.pods.as_ref().map_err(String::clone).map(|pods| {
        pods.iter()
            .filter(|pod| is_meant(pod, subject))
            .map(|pod| listed_pod(state, pod))
            .collect::<Vec<_>>()
    });
    let rejections: Vec<_> = rejections(state, subject).cloned().collect();
    let count = pods.as_ref().map_or(0, Vec::len);
    if !subject.contains('/') && count > 1 {
        bail!("{subject:?} is the beginning of the ids of {count} pods; give more of the id");
    }
    if count == 0 && rejections.is_empty() {
        return Err(unknown(state, subject));
    }
    Ok(ExplainedPod { pods, rejections })
}

/// Whether the subject is the NAMESPACE/NAME of the pod, or the beginning of its id.
fn is_meant(pod: &PodSandbox, subject: &str) -> bool {
    if subject.contains('/') {
        pod.metadata
            .as_ref()
            .is_some_and(|it| format!("{}/{}", it.namespace, it.name) == subject)
    } else {
        subject.len() >= SHORTEST && pod.id.starts_with(subject)
    }
}

/// The remembered rejections of the pod with this uid or NAMESPACE/NAME, or of the pods that asked for this handler.
pub(super) fn rejections<'a>(
    state: &'a State,
    subject: &'a str,
) -> impl Iterator<Item = &'a Rejection> {
    state.rejections.iter().filter(move |pod| {
        if subject.contains('/') {
            format!("{}/{}", pod.namespace, pod.name) == subject
        } else {
            !subject.is_empty()
                && (pod.uid == subject || pod.asked_handler.as_deref() == Some(subject))
        }
    })
}

fn listed_pod(state: &State, pod: &PodSandbox) -> ListedPod {
    let handler = &pod.runtime_handler;
    let backend = owners(state).get(pod.id.as_str()).copied();
    let by_default = state
        .backends
        .iter()
        .any(|backend| backend.default_pod_ids.contains(&pod.id));
    let own = if by_default {
        &state.default_handler
    } else {
        handler
    };
    ListedPod {
        id: pod.id.clone(),
        metadata: pod.metadata.clone().unwrap_or_default(),
        handler: handler.clone(),
        backend: backend.unwrap_or_default().to_owned(),
        by_default,
        now: state.handlers.iter().find(|row| row.name == *own).cloned(),
        default: state.default_handler.clone(),
    }
}

fn unknown(state: &State, subject: &str) -> anyhow::Error {
    if subject.contains('/') {
        return anyhow!(
            "no backend lists a pod {subject:?}, and it is not among the last pods that were not created. If it was \
             rejected before, or before criswitch started, look for its name in the log: journalctl -u criswitch | grep \
             RunPodSandbox. If the kubelet or the API server rejected it, criswitch has never seen it: kubectl describe pod"
        );
    }
    let handlers: Vec<_> = state.handlers.iter().map(|row| row.name.as_str()).collect();
    anyhow!(
        "{subject:?} is not a handler, a pod id, or the uid or handler of a rejected pod; the handlers are: {}. For a pod by its name: \
         NAMESPACE/NAME",
        handlers.join(", ")
    )
}

impl ExplainedPod {
    pub(super) fn text(&self) -> String {
        let mut parts: Vec<_> = self.pods.iter().flatten().map(ListedPod::text).collect();
        parts.extend(self.rejections.iter().map(rejected));
        parts.extend(self.problem().map(|problem| terminal::text_of([problem])));
        terminal::wrapped(&parts.join("\n"))
    }

    /// The problem of the list of pods.
    fn problem(&self) -> Option<String> {
        let cause = self.pods.as_ref().err()?;
        Some(format!("{NO_LIST}: {cause}"))
    }

    pub(super) fn json(&self) -> Value {
        let pods = self.pods.as_ref().ok();
        let pods = pods.map(|pods| pods.iter().map(ListedPod::json).collect::<Vec<_>>());
        let problem = self.problem().map(|problem| output::problem(&problem));
        json!({ "pods": pods, "rejections": self.rejections, "problems": Vec::from_iter(problem) })
    }
}

impl ListedPod {
    fn text(&self) -> String {
        let its = &self.metadata;
        let (id, namespace, name, uid) = (&self.id, &its.namespace, &its.name, &its.uid);
        let backend = match self.backend.as_str() {
            "" => "unknown",
            backend => backend,
        };
        terminal::text_of([
            format!("pod {namespace}/{name} (id {id}, uid {uid})"),
            format!("  backend: {backend}"),
            format!("  created by {}", self.then()),
            format!("  {}", self.now()),
        ])
    }

    /// The row by which the pod was created, in words.
    fn then(&self) -> String {
        match self.handler.as_str() {
            "" => "an unknown row: the backend reports no handler, and criswitch did not create the pod"
                .to_owned(),
            handler if self.by_default => {
                format!("row {handler}, the default handler at that time (the pod has no RuntimeClass)")
            }
            handler => format!("row {handler}"),
        }
    }

    /// A sentence about the backend that a new pod of the same row would get by the current routing table.
    fn now(&self) -> String {
        match &self.now {
            None if self.handler.is_empty() => format!(
                "a new pod without a RuntimeClass would go to: the default handler {}",
                self.default
            ),
            None => format!(
                "a new pod of this class would be rejected: the table has no row {} any more; this pod stays where it is",
                self.handler
            ),
            Some(now) => {
                let (name, origin, backend) = (&now.name, &now.origin, &now.backend);
                let (row, pod) = if self.by_default {
                    ("default handler", "pod without a RuntimeClass")
                } else {
                    ("row", "pod of this class")
                };
                let (place, stays) = if *backend == self.backend {
                    ("the same backend".to_owned(), "")
                } else {
                    (format!("backend {backend}"), "; this pod stays where it is")
                };
                format!("a new {pod} would go to: {place} ({row} {name}, {origin}){stays}")
            }
        }
    }

    fn json(&self) -> Value {
        json!({
            "id": self.id,
            "namespace": self.metadata.namespace,
            "name": self.metadata.name,
            "uid": self.metadata.uid,
            "backend": (!self.backend.is_empty()).then_some(&self.backend),
            "handler": (!self.handler.is_empty()).then_some(&self.handler),
            "byDefault": self.by_default,
            "rowNow": self.now,
            "why": self.then(),
            "now": self.now(),
        })
    }
}

fn rejected(pod: &Rejection) -> String {
    let asked = match &pod.asked_handler {
        Some(handler) => format!("handler {handler}"),
        None => "the default handler".to_owned(),
    };
    let place = match (&pod.handler, &pod.backend) {
        (None, _) => "rejected by criswitch: no row for its handler".to_owned(),
        (Some(handler), None) => {
            format!("rejected by criswitch, before any backend got it; row {handler}")
        }
        (Some(handler), Some(backend)) => {
            format!("backend {backend} did not create it; row {handler}")
        }
    };
    let (namespace, name, uid) = (&pod.namespace, &pod.name, &pod.uid);
    let (first, last) = (&pod.first, &pod.last);
    let times = match pod.times {
        1 => format!("once, at {last}"),
        times => format!("{times} times, first at {first}, last at {last}"),
    };
    terminal::text_of([
        format!("pod {namespace}/{name} (uid {uid}) was not created"),
        format!("  asked for: {asked}"),
        format!("  {place}"),
        format!("  {}: {}", pod.code, pod.error),
        format!("  {times}"),
    ])
}
