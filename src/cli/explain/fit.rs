//! `criswitch explain -f`: which handlers of this node can run a pod, the best one first.

use std::cmp::Reverse;

use criswitch::compatibility::{self, Effect, Finding, LIMITS, Limit};
use criswitch::config::Handler;
use criswitch::config::wording::counted;
use serde_json::{Value, json};

use super::manifest::Manifest;
use super::{KnownKind, Node};
use crate::cli::columns::columns;
use crate::cli::probe::reported;
use crate::cli::terminal;

/// A pod, and how it fits each handler of this node.
pub(super) struct PodFits {
    pod: Manifest,
    /// `runtimeClassName` of the pod; empty if it has none.
    class: String,
    /// The row that a pod without a class gets.
    default: String,
    /// The handlers, the best one first.
    fits: Vec<Fit>,
}

/// How a pod fits a handler.
struct Fit {
    handler: String,
    backend: String,
    kind: Option<KnownKind>,
    findings: Vec<Finding>,
    /// Why the handler itself cannot run any pod now.
    missing: Option<String>,
    /// Whether the pod meets a limit of a feature, and the backend's features are unknown.
    is_blind: bool,
    /// Sentences about facts that are unknown.
    unknown: Vec<String>,
}

impl PodFits {
    /// Whether the pod can run where its class sends it: in the handler with the name of its class, or else in any
    /// handler of this node.
    pub(super) fn is_fine(&self) -> bool {
        self.fits() == Some(true)
    }

    /// The same as [`PodFits::is_fine`]; `None` if it is unknown.
    fn fits(&self) -> Option<bool> {
        let own = self.fits.iter().find(|fit| fit.handler == self.own());
        // The handlers that fit come first, and then those of which it is unknown.
        own.or(self.fits.first()).map_or(Some(false), Fit::fits)
    }

    /// The name of the handler that the pod gets.
    fn own(&self) -> &str {
        match self.class.as_str() {
            "" => &self.default,
            class => class,
        }
    }
}

impl Fit {
    /// Whether the pod can run; `None` if it is unknown.
    fn fits(&self) -> Option<bool> {
        match self.missing.is_some() || self.count(Effect::Fails) > 0 {
            true => Some(false),
            false => (!self.is_blind).then_some(true),
        }
    }

    fn count(&self, effect: Effect) -> usize {
        let found = self.findings.iter();
        found.filter(|found| found.limit.effect == effect).count()
    }

    /// Why the handler has its place in the order.
    fn why(&self) -> String {
        let (fails, weakens) = (self.count(Effect::Fails), self.count(Effect::Weakens));
        match (&self.missing, fails, weakens) {
            (Some(_), ..) => "the handler cannot run pods now".to_owned(),
            (None, 0, _) if self.is_blind => format!(
                "backend {:?} does not answer, so limits that depend on its features are unknown",
                self.backend
            ),
            (None, 0, 0) if self.kind.is_none() => {
                "no limit is known, because the kind of runtime is unknown".to_owned()
            }
            (None, 0, 0) => "no known limit applies".to_owned(),
            (None, 0, 1) => "runs; 1 setting has less or no effect".to_owned(),
            (None, 0, weakens) => format!("runs; {weakens} settings have less or no effect"),
            (None, fails, _) => format!("does not work: {}", counted(fails, "limit")),
        }
    }
}

pub(super) fn of_pods(node: &Node, pods: Vec<Manifest>) -> Vec<PodFits> {
    pods.into_iter().map(|pod| of_pod(node, pod)).collect()
}

fn of_pod(node: &Node, pod: Manifest) -> PodFits {
    let table = &node.config.table;
    let class = pod.pod.pointer("/spec/runtimeClassName");
    let class = class.and_then(Value::as_str).unwrap_or_default().to_owned();
    let default = table.default.name.clone();
    let own = if class.is_empty() { &default } else { &class };
    let mut fits: Vec<_> = table
        .handlers
        .iter()
        .map(|row| fit(node, row, &pod))
        .collect();
    // An unknown kind comes after the known ones, because its limits are unknown. Then the fewest limits come first,
    // among equals the pod's own handler, and then the names decide.
    fits.sort_by_cached_key(|fit| {
        let limits = (fit.count(Effect::Fails), fit.count(Effect::Weakens));
        let (own, name) = (fit.handler == *own, fit.handler.clone());
        let fits = fit.fits().map_or(1, |fits| if fits { 0 } else { 2 });
        (fits, fit.kind.is_none(), limits, Reverse(own), name)
    });
    PodFits {
        pod,
        class,
        default,
        fits,
    }
}

fn fit(node: &Node, row: &Handler, pod: &Manifest) -> Fit {
    let (kind, features) = (node.kind(row), node.features(row));
    let found = compatibility::findings(&pod.pod, kind.map(|it| it.kind), features.as_deref().ok());
    let backend = node.backend(row);
    let mut unknown = Vec::new();
    if kind.is_none() {
        unknown.push(format!(
            "the kind of runtime of handler {:?} is unknown, so only features are checked; set `kind` in its row under \
             [handlers]",
            row.name
        ));
    }
    if let Err(cause) = &features {
        unknown.push(format!(
            "backend {backend:?} does not answer, so its features are unknown: {cause}"
        ));
    }
    let is_met = |limit: &&Limit| limit.feature.is_some() && !limit.fields(&pod.pod).is_empty();
    let lacks = reported(row, &node.probes) == Some(false);
    let missing = lacks.then(|| {
        let theirs = &row.backend_handler;
        format!("backend {backend:?} has no handler {theirs:?}")
    });
    Fit {
        handler: row.name.clone(),
        backend: backend.to_owned(),
        kind,
        findings: found,
        missing,
        is_blind: features.is_err() && LIMITS.iter().any(|limit| is_met(&limit)),
        unknown,
    }
}

pub(super) fn text(pods: &[PodFits]) -> anyhow::Result<String> {
    let parts: Vec<_> = pods.iter().map(PodFits::text).collect::<Result<_, _>>()?;
    Ok(parts.join("\n"))
}

pub(super) fn json(pods: &[PodFits]) -> Value {
    json!({ "pods": pods.iter().map(PodFits::json).collect::<Vec<_>>() })
}

impl PodFits {
    fn text(&self) -> anyhow::Result<String> {
        let rows = self.fits.iter().map(|fit| {
            [
                fit.handler.clone(),
                fit.backend.clone(),
                fit.kind.map_or("unknown", |it| it.kind.title()).to_owned(),
                match fit.fits() {
                    Some(true) => "yes",
                    Some(false) => "no",
                    None => "unknown",
                }
                .to_owned(),
                fit.why(),
            ]
        });
        let table = columns(&["HANDLER", "BACKEND", "KIND", "FITS", "WHY"], rows)?;
        let reasons: Vec<_> = self.fits.iter().map(|fit| self.reasons(fit)).collect();
        let title = terminal::wrapped(&terminal::text_of([self.title()]));
        let mut parts = vec![title, table];
        parts.extend(reasons.into_iter().filter(|it| !it.is_empty()));
        Ok(parts.join("\n"))
    }

    /// The line about the pod and its class.
    fn title(&self) -> String {
        let Manifest {
            object,
            namespace,
            name,
            ..
        } = &self.pod;
        let slash = if namespace.is_empty() { "" } else { "/" };
        let has = |name: &str| self.fits.iter().any(|fit| fit.handler == name);
        let class = match self.class.as_str() {
            "" => format!(
                "no RuntimeClass, so it runs in the default handler {}",
                self.default
            ),
            class if has(class) => format!("RuntimeClass {class}"),
            class => format!(
                "RuntimeClass {class}; no handler of this node has this name (the RuntimeClass may map to another one)"
            ),
        };
        let name = match name.as_str() {
            "" => "without a name".to_owned(),
            name => format!("{namespace}{slash}{name}"),
        };
        format!("{object} {name}: {class}")
    }

    /// The reasons of one handler, one on each line.
    fn reasons(&self, fit: &Fit) -> String {
        let found = fit.findings.iter().map(|found| {
            let limit = found.limit;
            let fields: Vec<_> = self.fields(found).collect();
            let what = match limit.effect {
                Effect::Fails => "cannot do its work",
                Effect::Weakens => "runs with less",
                Effect::Note => "note",
            };
            let (fields, reason, remedy) = (fields.join(", "), limit.reason, limit.remedy);
            format!(
                "{what}: {fields}: {reason} {remedy} [{}] {}",
                limit.id, limit.source.url
            )
        });
        let missing = fit.missing.iter().map(|it| format!("does not run: {it}"));
        let unknown = fit.unknown.iter().map(|it| format!("unknown: {it}"));
        let lines = missing.chain(found).chain(unknown);
        let lines = lines.map(|line| format!("{}: {line}", fit.handler));
        terminal::wrapped(&terminal::text_of(lines))
    }

    /// The fields of a finding, as they are named in the file.
    fn fields<'f>(&'f self, found: &'f Finding) -> impl Iterator<Item = String> + 'f {
        let prefix = &self.pod.prefix;
        found
            .fields
            .iter()
            .map(move |field| format!("{prefix}{field}"))
    }

    fn json(&self) -> Value {
        let handlers = self.fits.iter().map(|fit| {
            let found = fit.findings.iter();
            let reasons = found.map(|found| found.limit.json(self.fields(found)));
            json!({
                "handler": fit.handler,
                "backend": fit.backend,
                "kind": fit.kind.map(|it| it.kind.as_ref().to_owned()),
                "kindFrom": fit.kind.map(|it| it.from),
                "fits": fit.fits(),
                "why": fit.why(),
                "missing": fit.missing,
                "unknown": fit.unknown,
                "reasons": reasons.collect::<Vec<_>>(),
            })
        });
        json!({
            "kind": self.pod.object,
            "namespace": self.pod.namespace,
            "name": self.pod.name,
            "class": (!self.class.is_empty()).then_some(&self.class),
            "handler": self.own(),
            "fits": self.fits(),
            "handlers": handlers.collect::<Vec<_>>(),
        })
    }
}
