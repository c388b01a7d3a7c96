//! `criswitch explain -f`: which handlers of this node can run a pod, the best one first.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use criswitch_advice::{Effect, Judgement, LimitFinding};
use criswitch_client::columns::columns;
use criswitch_client::probe::missing;
use criswitch_client::terminal;
use criswitch_config::wording::counted;
use criswitch_config::{Handler, RuntimeKind};
use serde_json::{Value, json};

use super::manifest::{Class, Manifest, Manifests, Skipped};
use super::{KnownKind, NodeFacts};

/// The last line of the text about pods.
const NOT_CHECKED: &str = "not checked: everything else that the API server validates";

/// The pods of the files, and the objects that were skipped.
pub(super) struct FileFits {
    pods: Vec<PodFits>,
    skipped: Vec<Skipped>,
    /// The findings about the files.
    problems: Vec<String>,
}

/// A pod, and how it fits each handler of this node.
struct PodFits {
    pod: Manifest,
    /// `runtimeClassName` of the pod; empty if it has none.
    class: String,
    /// The handler of the class, if a file has the class.
    mapped: Option<String>,
    /// The row that a pod without a class gets.
    default: String,
    /// The labels that the class and the pod select with different values.
    conflicts: Vec<String>,
    /// The labels, with their values, that the class selects nodes by and that are not checked: all except those of the
    /// operating system and the architecture.
    unchecked: Vec<String>,
    /// The handlers, the best one first.
    fits: Vec<HandlerFit>,
}

/// How a pod fits a handler.
struct HandlerFit {
    handler: String,
    backend: String,
    kind: Option<KnownKind>,
    judgement: Judgement,
    /// Why the handler itself cannot run any pod now.
    missing: Option<String>,
    /// Whether the pod has fields that Kubernetes does not have.
    is_misspelt: bool,
    /// Sentences about facts that are unknown.
    unknown: Vec<String>,
}

impl FileFits {
    /// Whether each pod can run where its class sends it, and everything in the files was judged.
    pub(super) fn is_fine(&self) -> bool {
        self.pods.iter().all(|pod| pod.fits() == Some(true))
            && self.skipped.iter().all(|skipped| skipped.has_no_pods)
            && self.problems.is_empty()
    }

    pub(super) fn text(&self) -> anyhow::Result<String> {
        let mut parts: Vec<_> = self
            .pods
            .iter()
            .map(PodFits::text)
            .collect::<Result<_, _>>()?;
        let (without, others): (Vec<_>, Vec<_>) =
            self.skipped.iter().partition(|skipped| skipped.has_no_pods);
        let without: Vec<_> = without.into_iter().map(Skipped::title).collect();
        let problems = self.problems.iter().map(|it| format!("problem: {it}"));
        let without =
            (!without.is_empty()).then(|| format!("without pods: {}", without.join(", ")));
        let lines = problems
            .chain(others.into_iter().map(Skipped::line))
            .chain(without)
            .chain([NOT_CHECKED.to_owned()]);
        parts.push(terminal::wrapped(&terminal::text_of(lines)));
        Ok(parts.join("\n"))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "pods": self.pods.iter().map(PodFits::json).collect::<Vec<_>>(),
            "skipped": self.skipped,
            "problems": self.problems,
        })
    }
}

impl PodFits {
    /// Whether the pod can run in the handler of its class; `None` if that is unknown, for example because the class
    /// may map to a handler with a different name.
    fn fits(&self) -> Option<bool> {
        match self
            .fits
            .iter()
            .find(|fit| fit.handler == self.handler_name())
        {
            _ if !self.conflicts.is_empty() => Some(false),
            Some(own) => own.fits(),
            None => self.mapped.is_some().then_some(false),
        }
    }

    /// The name of the handler that the pod gets.
    fn handler_name(&self) -> &str {
        own_handler(&self.class, self.mapped.as_ref(), &self.default)
    }
}

fn own_handler<'a>(class: &'a str, mapped: Option<&'a String>, default: &'a str) -> &'a str {
    match (class, mapped) {
        ("", _) => default,
        (_, Some(handler)) => handler,
        (class, None) => class,
    }
}

impl HandlerFit {
    /// Whether the pod can run; `None` if it is unknown.
    fn fits(&self) -> Option<bool> {
        if self.missing.is_some() || self.count(Effect::Fails) > 0 {
            Some(false)
        } else {
            self.doubt().is_none().then_some(true)
        }
    }

    fn count(&self, effect: Effect) -> usize {
        of_effect(&self.judgement.findings, effect).count()
    }

    /// The limits by which the pod fails if an unknown fact has the value that they need.
    fn open(&self) -> impl Iterator<Item = &LimitFinding> {
        of_effect(&self.judgement.undecided, Effect::Fails)
    }

    /// Why it is unknown whether the pod can run; `None` if nothing about it is unknown. Ignores limits by which the
    /// pod certainly fails.
    fn doubt(&self) -> Option<String> {
        let (open, fields) = (self.open().count(), self.judgement.not_judged.len());
        if self.open().any(|found| found.limit.feature().is_some()) {
            return Some(format!(
                "backend {:?} does not answer, so limits that depend on its features are unknown",
                self.backend
            ));
        }
        match (self.kind.map(|it| it.kind), open, fields) {
            (None, ..) => Some("the kind of runtime is unknown".to_owned()),
            (Some(RuntimeKind::Other), ..) => {
                Some("no limits of this kind of runtime are known".to_owned())
            }
            (_, 0, 0) if self.is_misspelt => Some("the pod has an unknown field".to_owned()),
            (_, 0, 0) => None,
            (_, 0, fields) => Some(format!("not judged: {}", counted(fields, "field"))),
            (_, open, _) => Some(format!(
                "depends on an unknown fact: {}",
                counted(open, "limit")
            )),
        }
    }

    /// Why the handler has its place in the order.
    fn why(&self) -> String {
        let (fails, weakens) = (self.count(Effect::Fails), self.count(Effect::Weakens));
        match (&self.missing, fails, self.doubt(), weakens) {
            (Some(_), ..) => "the handler cannot run pods now".to_owned(),
            (None, 0, Some(doubt), _) => doubt,
            (None, 0, None, 0) => "no known limit applies".to_owned(),
            (None, 0, None, 1) => "runs; 1 setting has less or no effect".to_owned(),
            (None, 0, None, weakens) => format!("runs; {weakens} settings have less or no effect"),
            (None, fails, ..) => format!("does not work: {}", counted(fails, "limit")),
        }
    }
}

fn of_effect(found: &[LimitFinding], effect: Effect) -> impl Iterator<Item = &LimitFinding> {
    found
        .iter()
        .filter(move |found| found.limit.effect == effect)
}

pub(super) fn of_files(node: &NodeFacts, manifests: Manifests) -> FileFits {
    FileFits {
        pods: manifests
            .pods
            .into_iter()
            .map(|pod| of_pod(node, pod, &manifests.classes))
            .collect(),
        skipped: manifests.skipped,
        problems: manifests.problems,
    }
}

fn of_pod(node: &NodeFacts, mut pod: Manifest, classes: &BTreeMap<String, Class>) -> PodFits {
    let table = &node.config.table;
    let class = pod
        .pod
        .pointer("/spec/runtimeClassName")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned();
    let row = table
        .handlers
        .iter()
        .find(|row| row.scheduling.class.as_ref() == Some(&class));
    let of_file = classes.get(&class);
    let mapped = of_file
        .map(|class| &class.handler)
        .or(row.map(|row| &row.name))
        .cloned();
    let conflicts = of_file.map_or_else(Vec::new, |class| select(&mut pod.pod, class));
    let selector = of_file.into_iter().flat_map(|class| &class.selector);
    let unchecked = selector
        .filter(|(label, _)| {
            !label.ends_with("kubernetes.io/os") && !label.ends_with("kubernetes.io/arch")
        })
        .map(|(label, value)| format!("{label}={}", value.as_str().unwrap_or_default()))
        .collect();
    let own = own_handler(&class, mapped.as_ref(), &table.default.name);
    let mut fits: Vec<_> = table
        .handlers
        .iter()
        .map(|row| fit(node, row, &pod))
        .collect();
    // Handlers that can run the pod come first, then those for which this is unknown, then those that cannot. Within
    // each of these groups, handlers of a known kind come first, then those with the fewest limits, then the pod's own
    // handler. The names decide between equal handlers.
    fits.sort_by_cached_key(|fit| {
        let limits = (fit.count(Effect::Fails), fit.count(Effect::Weakens));
        let (own, name) = (fit.handler == own, fit.handler.clone());
        let fits = fit.fits().map_or(1, |fits| if fits { 0 } else { 2 });
        (fits, fit.kind.is_none(), limits, Reverse(own), name)
    });
    PodFits {
        pod,
        class,
        mapped,
        default: table.default.name.clone(),
        conflicts,
        unchecked,
        fits,
    }
}

/// Adds the node selector of the class to the pod's, as the API server does. Returns the labels for which the pod
/// selects a different value.
fn select(pod: &mut Value, class: &Class) -> Vec<String> {
    let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) else {
        return Vec::new();
    };
    let selector = spec.entry("nodeSelector").or_insert(Value::Null);
    if selector.is_null() {
        *selector = json!({});
    }
    let Some(selector) = selector.as_object_mut() else {
        return Vec::new();
    };
    let mut others = Vec::new();
    for (label, value) in &class.selector {
        if selector.entry(label).or_insert_with(|| value.clone()) != value {
            others.push(label.clone());
        }
    }
    others
}

fn fit(node: &NodeFacts, row: &Handler, pod: &Manifest) -> HandlerFit {
    let (kind, features) = (node.kind(row), node.features(row));
    let mut unknown = Vec::new();
    if kind.is_none() {
        unknown.push(format!(
            "the kind of runtime of handler {:?} is unknown; set `kind` in its row under [handlers], for any other runtime kind = \"other\"",
            row.name
        ));
    }
    unknown.extend(features.as_ref().err().cloned());
    let facts = node.handler_facts(row, features.ok());
    HandlerFit {
        handler: row.name.clone(),
        backend: node.backend(row).to_owned(),
        kind,
        judgement: criswitch_advice::judge(&pod.pod, kind.map(|it| it.kind), &facts),
        missing: missing(&node.config.table, row, &node.probes),
        is_misspelt: !pod.unknown_fields.is_empty(),
        unknown,
    }
}

impl PodFits {
    fn text(&self) -> anyhow::Result<String> {
        let rows = self.fits.iter().map(|fit| {
            let kind = fit.kind.map_or("unknown", |it| it.kind.title());
            let fits = match fit.fits() {
                Some(true) => "yes",
                Some(false) => "no",
                None => "unknown",
            };
            [&*fit.handler, &fit.backend, kind, fits, &fit.why()].map(str::to_owned)
        });
        let parts = [
            terminal::wrapped(&terminal::text_of(
                std::iter::once(self.title()).chain(self.warnings()),
            )),
            columns(&["HANDLER", "BACKEND", "KIND", "FITS", "WHY"], rows)?,
        ];
        let reasons = self.fits.iter().map(|fit| self.reasons(fit));
        Ok(terminal::paragraphs(parts.into_iter().chain(reasons)))
    }

    /// The line about the pod and its class.
    fn title(&self) -> String {
        let (namespace, default) = (&self.pod.namespace, &self.default);
        let slash = if namespace.is_empty() { "" } else { "/" };
        let has = self
            .fits
            .iter()
            .any(|fit| fit.handler == self.handler_name());
        let class = match (self.class.as_str(), &self.mapped) {
            ("", _) => format!("no RuntimeClass, so it runs in the default handler {default}"),
            (class, None) if has => format!("RuntimeClass {class}"),
            (class, Some(handler)) if has => format!("RuntimeClass {class}, handler {handler}"),
            (class, None) => format!(
                "RuntimeClass {class}; no handler of this node has this name (the RuntimeClass may map to another one)"
            ),
            (class, Some(handler)) => {
                format!("RuntimeClass {class}, handler {handler}, which this node does not have")
            }
        };
        let name = match self.pod.name.as_str() {
            "" => "without a name".to_owned(),
            name => format!("{namespace}{slash}{name}"),
        };
        format!("{} {name}: {class}", self.pod.object)
    }

    /// One line for each field that Kubernetes does not have, for each label that class and pod select differently, and
    /// for each label of the class that is not checked.
    fn warnings(&self) -> impl Iterator<Item = String> {
        let conflicts = self.conflicts.iter().map(|label| {
            format!(
                "the pod and its RuntimeClass select different values of the node label {label}, so the API server rejects the pod"
            )
        });
        let fields = self.pod.unknown_fields.iter().map(|field| {
            let (name, near) = (&field.name, field.near.as_ref());
            let near = near
                .map(|near| format!("; did you mean {near}?"))
                .unwrap_or_default();
            format!("warning: Kubernetes has no field {name}, and kubectl rejects it{near}")
        });
        let unchecked = self
            .unchecked
            .iter()
            .map(|label| format!("note: the RuntimeClass selects nodes with {label}: not checked"));
        conflicts.chain(fields).chain(unchecked)
    }

    /// The reasons of one handler, one on each line.
    fn reasons(&self, fit: &HandlerFit) -> String {
        let missing = fit.missing.iter().map(|it| format!("does not run: {it}"));
        let findings = fit.judgement.findings.iter().map(|found| {
            let effect = match found.limit.effect {
                Effect::Fails => "cannot do its work",
                Effect::Weakens => "runs with less",
                Effect::Note => "note",
            };
            format!("{effect}: {}", self.reason(found))
        });
        let undecided = fit.judgement.undecided.iter().map(|found| {
            let fact = found.limit.only_if.map(|(fact, value)| fact.words(value));
            let fact = fact.unwrap_or_default();
            format!("unknown, applies if {fact}: {}", self.reason(found))
        });
        let lines = missing
            .chain(findings)
            .chain(undecided)
            .chain(
                self.not_judged(fit)
                    .map(|field| format!("not judged: {field}")),
            )
            .chain(fit.unknown.iter().map(|it| format!("unknown: {it}")))
            .map(|line| format!("{}: {line}", fit.handler));
        terminal::wrapped(&terminal::text_of(lines))
    }

    /// The fields, the reason and the remedy of a finding.
    fn reason(&self, found: &LimitFinding) -> String {
        let limit = found.limit;
        let fields = self.fields(found).collect::<Vec<_>>().join(", ");
        let (reason, remedy, source) = (limit.reason, limit.remedy, limit.source.shown());
        format!("{fields}: {reason} {remedy} [{}] {source}", limit.id)
    }

    /// The fields of a finding, as they are named in the file.
    fn fields<'f>(&'f self, found: &'f LimitFinding) -> impl Iterator<Item = String> + 'f {
        found.fields.iter().map(|field| self.pod.field(field))
    }

    /// The fields that were not judged, as they are named in the file.
    fn not_judged<'f>(&'f self, fit: &'f HandlerFit) -> impl Iterator<Item = String> + 'f {
        fit.judgement
            .not_judged
            .iter()
            .map(|field| self.pod.field(field))
    }

    fn reasons_json(&self, findings: &[LimitFinding]) -> Value {
        findings
            .iter()
            .map(|it| it.limit.json(self.fields(it)))
            .collect()
    }

    fn json(&self) -> Value {
        let handlers = self.fits.iter().map(|fit| {
            json!({
                "handler": fit.handler,
                "backend": fit.backend,
                "kind": fit.kind.map(|it| it.kind.as_ref().to_owned()),
                "kindFrom": fit.kind.map(|it| it.from),
                "fits": fit.fits(),
                "why": fit.why(),
                "missing": fit.missing,
                "unknown": fit.unknown,
                "reasons": self.reasons_json(&fit.judgement.findings),
                "undecided": self.reasons_json(&fit.judgement.undecided),
                "notJudged": self.not_judged(fit).collect::<Vec<_>>(),
            })
        });
        json!({
            "kind": self.pod.object,
            "namespace": self.pod.namespace,
            "name": self.pod.name,
            "class": (!self.class.is_empty()).then_some(&self.class),
            "handler": self.handler_name(),
            "fits": self.fits(),
            "warnings": self.warnings().collect::<Vec<_>>(),
            "handlers": handlers.collect::<Vec<_>>(),
        })
    }
}
