//! The pods in a YAML file: pods, and the pod templates of workloads.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use criswitch::compatibility::{Is, LIMITS, Test};
use serde_json::Value;
use serde_saphyr::{DefaultMessageFormatter, MessageFormatter};

/// The largest file that is read, in bytes.
const MOST: u64 = 16 << 20;
/// The path of standard input.
const STDIN: &str = "-";

/// The workloads with a pod template, each with the path of the template.
const TEMPLATES: [(&str, &str); 8] = [
    ("Deployment", "spec.template"),
    ("DaemonSet", "spec.template"),
    ("StatefulSet", "spec.template"),
    ("ReplicaSet", "spec.template"),
    ("ReplicationController", "spec.template"),
    ("Job", "spec.template"),
    ("CronJob", "spec.jobTemplate.spec.template"),
    ("PodTemplate", "template"),
];

/// Fields with their types, besides the fields of the known limits.
const TYPES: [(&[&str], &str); 2] = [
    (&["spec.runtimeClassName"], "a string"),
    (
        &[
            "spec.containers",
            "spec.initContainers",
            "spec.ephemeralContainers",
            "spec.volumes",
        ],
        "a list",
    ),
];

/// A pod, or the pod template of a workload.
pub(super) struct Manifest {
    /// The kind of the object, such as `Deployment`.
    pub(super) object: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The pod, with a `spec`.
    pub(super) pod: Value,
    /// The text before `spec` in the names of the pod's fields, such as `spec.template.`.
    pub(super) prefix: String,
}

/// Reads the pods of a file. Objects without pods are skipped.
///
/// # Errors
/// The file cannot be read, is not YAML, or has no pod.
pub(super) fn read(path: &Path) -> anyhow::Result<Vec<Manifest>> {
    let name = match path == Path::new(STDIN) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    };
    let text = text(path).with_context(|| format!("cannot read {name}"))?;
    ensure!(
        text.len() as u64 <= MOST,
        "{name} is larger than 16 MiB; split it"
    );
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|error| {
        let (line, column) = error
            .location()
            .map_or((1, 1), |at| (at.line(), at.column()));
        let what = DefaultMessageFormatter.format_message(error.without_snippet());
        let what = what.lines().next().unwrap_or_default();
        anyhow!("{name}:{line}:{column}: not valid YAML: {what}")
    })?;
    let mut pods = Vec::new();
    for (index, document) in documents.iter().enumerate() {
        let added = add(document, None, &mut pods);
        added.with_context(|| format!("{name}: document {}", index + 1))?;
    }
    ensure!(
        !pods.is_empty(),
        "{name} has no pod; try a Pod, a Deployment, DaemonSet, StatefulSet, ReplicaSet, Job or CronJob, or a List of them"
    );
    Ok(pods)
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let most = MOST + 1;
    match path == Path::new(STDIN) {
        true => io::stdin().lock().take(most).read_to_string(&mut text),
        false => fs::File::open(path)?.take(most).read_to_string(&mut text),
    }?;
    Ok(text)
}

/// Adds the pods of an object. `listed` is its kind if the object itself has none: items of a `PodList` have none.
fn add(object: &Value, listed: Option<&str>, pods: &mut Vec<Manifest>) -> anyhow::Result<()> {
    if object.is_null() {
        return Ok(());
    }
    let Some(kind) = object.get("kind").and_then(Value::as_str).or(listed) else {
        bail!("the object has no `kind`");
    };
    if let Some(listed) = kind.strip_suffix("List") {
        let listed = Some(listed).filter(|listed| !listed.is_empty());
        let items = object.get("items").and_then(Value::as_array);
        return items
            .into_iter()
            .flatten()
            .try_for_each(|item| add(item, listed, pods));
    }
    let template = TEMPLATES.iter().find(|(workload, _)| *workload == kind);
    let path = match (kind, template) {
        ("Pod", _) => "",
        (_, Some((_, path))) => path,
        _ => return Ok(()),
    };
    let text = |field: &str| {
        let value = object
            .get("metadata")
            .and_then(|metadata| metadata.get(field));
        value.and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let mut steps = path.split('.').filter(|step| !step.is_empty());
    let pod = steps.try_fold(object, |value, step| value.get(step));
    let pod = pod.filter(|pod| pod.get("spec").is_some_and(Value::is_object));
    let dot = if path.is_empty() { "" } else { "." };
    let prefix = format!("{path}{dot}");
    let name = match (text("name"), text("generateName")) {
        (name, generated) if name.is_empty() && !generated.is_empty() => format!("{generated}*"),
        (name, _) => name,
    };
    let Some(pod) = pod else {
        bail!("{kind} {name:?} has no {prefix}spec");
    };
    check(pod, &prefix)?;
    pods.push(Manifest {
        object: kind.to_owned(),
        namespace: text("namespace"),
        name,
        pod: pod.clone(),
        prefix,
    });
    Ok(())
}

/// Checks the types of the fields that the known limits are about. A value of a wrong type would meet no limit.
fn check(pod: &Value, prefix: &str) -> anyhow::Result<()> {
    let limits = LIMITS.iter();
    let tests = limits.flat_map(|limit| std::iter::once(&limit.test).chain(limit.and));
    let types = tests.filter_map(|test| Some((test.fields, needed(test.is)?)));
    for (fields, needed) in types.chain(TYPES) {
        let is = Is::Present;
        for field in (Test { fields, is }).fields(pod) {
            let pointer = field.replace(['.', '['], "/").replace(']', "");
            let found = pod.pointer(&format!("/{pointer}")).map(type_of);
            ensure!(
                found == Some(needed),
                "{prefix}{field} is {}, not {needed}",
                found.unwrap_or("missing")
            );
        }
    }
    Ok(())
}

/// The type of the values that can meet the condition; `None` if it is any type.
fn needed(is: Is) -> Option<&'static str> {
    match is {
        Is::True | Is::False => Some("a boolean"),
        Is::OneOf(_) | Is::Begins(_) | Is::SysctlOutside(_) => Some("a string"),
        Is::HasKey(_) => Some("a map"),
        Is::Present => None,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a map",
    }
}
