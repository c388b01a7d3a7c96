//! The pods in YAML files: pods, and the pod templates of other objects.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail, ensure};
use criswitch::compatibility::{self, Is, Test, UnknownField};
use criswitch::config::problem::near;
use serde_json::{Value, json};

/// The largest file that is read, in bytes.
const MOST: u64 = 16 << 20;
/// The path of standard input.
const STDIN: &str = "-";
/// The way out for a template.
const RENDER: &str = "render it first: helm template ... | criswitch explain -f -";

/// The workloads of Kubernetes with a pod template, each with the path of the template.
const TEMPLATES: [(&str, &str); 9] = [
    ("Pod", ""),
    ("Deployment", "spec.template"),
    ("DaemonSet", "spec.template"),
    ("StatefulSet", "spec.template"),
    ("ReplicaSet", "spec.template"),
    ("ReplicationController", "spec.template"),
    ("Job", "spec.template"),
    ("CronJob", "spec.jobTemplate.spec.template"),
    ("PodTemplate", "template"),
];

/// The groups of Kubernetes' own API. Objects of other groups have a controller that may create pods.
const GROUPS: [&str; 20] = [
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
];

/// Fields with their types, besides the fields of the rules.
const TYPES: [(&[&str], &str); 3] = [
    (&["spec.runtimeClassName"], "a string"),
    (
        &[
            "spec.volumes[*].hostPath.path",
            "spec.volumes[*].hostPath.type",
        ],
        "a string",
    ),
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

/// The contents of the files.
#[derive(Default)]
pub(super) struct Manifests {
    pub(super) pods: Vec<Manifest>,
    pub(super) skipped: Vec<Skipped>,
    /// The handlers of the RuntimeClass objects, by the names of the classes.
    pub(super) classes: BTreeMap<String, String>,
}

/// A pod, or a pod template of another object.
pub(super) struct Manifest {
    /// The kind of the object, such as `Deployment`.
    pub(super) object: String,
    pub(super) namespace: String,
    pub(super) name: String,
    /// The pod, with a `spec`.
    pub(super) pod: Value,
    /// The text before `spec` in the names of the pod's fields, such as `spec.template.`.
    pub(super) prefix: String,
    /// The fields that a pod does not have.
    pub(super) unknown_fields: Vec<UnknownField>,
}

/// An object without a pod template.
pub(super) struct Skipped {
    api_version: String,
    object: String,
    name: String,
    file: String,
    /// Whether the object has no pods for sure.
    pub(super) has_no_pods: bool,
}

/// Reads the pods of all files.
///
/// # Errors
/// A file cannot be read or is not YAML, or a pod cannot be understood, or there is no pod.
pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<Manifests> {
    let mut all = Manifests::default();
    for file in files {
        all.add_file(file)?;
    }
    if all.pods.is_empty() {
        let names: Vec<_> = files.iter().map(|file| name_of(file)).collect();
        let (names, has) = (
            names.join(", "),
            if names.len() == 1 { "has" } else { "have" },
        );
        bail!(
            "{names} {has} no pod; try a Pod, a Deployment, DaemonSet, StatefulSet, ReplicaSet, Job or CronJob, any object \
             with a pod template, or a List of them"
        );
    }
    Ok(all)
}

fn name_of(path: &Path) -> String {
    match path == Path::new(STDIN) {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
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

/// The documents of a YAML file.
fn documents(name: &str, text: &str) -> anyhow::Result<Vec<Value>> {
    serde_saphyr::from_multiple(text).map_err(|error| {
        let (line, column) = error
            .location()
            .map_or((1, 1), |at| (at.line(), at.column()));
        let what = match error.without_snippet() {
            _ if text.contains("{{") || text.contains("{%") => format!("this looks like a template; {RENDER}"),
            serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key:?} occurs twice in one map")
            }
            serde_saphyr::Error::DuplicateMappingKey { .. } => "a key occurs twice in one map".to_owned(),
            _ => "not valid YAML; look here and before for a bracket or quote without its end, or for wrong indentation".to_owned(),
        };
        anyhow!("{name}:{line}:{column}: {what}")
    })
}

/// An object of a file.
struct Object<'o> {
    file: &'o str,
    value: &'o Value,
    kind: &'o str,
    api_version: &'o str,
}

impl<'o> Object<'o> {
    /// A text of the object's metadata.
    fn text(&self, field: &str) -> &'o str {
        let value = self.value.get("metadata").and_then(|it| it.get(field));
        value.and_then(Value::as_str).unwrap_or_default()
    }

    fn name(&self) -> String {
        match (self.text("name"), self.text("generateName")) {
            ("", generated) if !generated.is_empty() => format!("{generated}*"),
            (name, _) => name.to_owned(),
        }
    }

    /// Whether the object is of Kubernetes' own API.
    fn is_built_in(&self) -> bool {
        match self.api_version.split_once('/') {
            Some((group, _)) => GROUPS.contains(&group),
            None => true,
        }
    }

    /// The paths of the pod templates.
    fn templates(&self) -> Vec<String> {
        let mut templates = TEMPLATES.iter();
        match templates.find(|(kind, _)| *kind == self.kind && self.is_built_in()) {
            Some((_, path)) => vec![(*path).to_owned()],
            None if self.is_built_in() => Vec::new(),
            None => {
                let mut found = Vec::new();
                shapes(self.value, "", &mut found);
                // The containers of an object that is no pod itself are only a part of its pods.
                found.retain(|path| !path.is_empty());
                found
            }
        }
    }
}

/// Adds the paths below `value` of everything in the shape of a pod template: a `spec` with a list of containers.
fn shapes(value: &Value, at: &str, found: &mut Vec<String>) {
    let containers = value.pointer("/spec/containers");
    if containers.is_some_and(Value::is_array) {
        found.push(at.to_owned());
    }
    let dot = if at.is_empty() { "" } else { "." };
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(name, value)| shapes(value, &format!("{at}{dot}{name}"), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| shapes(value, &format!("{at}[{index}]"), found)),
        _ => {}
    }
}

/// The value at a path such as `spec.items[0]`.
fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let pointer = path.replace(['.', '['], "/").replace(']', "");
    match pointer.as_str() {
        "" => Some(value),
        pointer => value.pointer(&format!("/{pointer}")),
    }
}

impl Manifests {
    fn add_file(&mut self, path: &Path) -> anyhow::Result<()> {
        let name = name_of(path);
        let text = text(path).with_context(|| format!("cannot read {name}"))?;
        ensure!(
            text.len() as u64 <= MOST,
            "{name} is larger than 16 MiB; split it"
        );
        for (index, document) in documents(&name, &text)?.iter().enumerate() {
            let added = self.add(&name, document, None);
            added.with_context(|| format!("{name}: document {}", index + 1))?;
        }
        Ok(())
    }

    /// Adds an object. `listed` is its kind if the object itself has none: items of a `PodList` have none.
    fn add(&mut self, file: &str, value: &Value, listed: Option<&str>) -> anyhow::Result<()> {
        if value.is_null() {
            return Ok(());
        }
        let text = |field: &str| value.get(field).and_then(Value::as_str);
        let Some(kind) = text("kind").or(listed) else {
            bail!("the object has no `kind`");
        };
        if let (Some(listed), Some(items)) = (kind.strip_suffix("List"), value.get("items")) {
            let listed = Some(listed).filter(|listed| !listed.is_empty());
            let mut items = items.as_array().into_iter().flatten();
            return items.try_for_each(|item| self.add(file, item, listed));
        }
        let object = Object {
            file,
            value,
            kind,
            api_version: text("apiVersion").unwrap_or_default(),
        };
        if let ("RuntimeClass", Some(handler)) = (kind, text("handler")) {
            self.classes.insert(object.name(), handler.to_owned());
            return Ok(());
        }
        let templates = object.templates();
        if templates.is_empty() {
            self.skipped.push(Skipped::of(&object));
        }
        for path in templates {
            self.pods.push(Manifest::of(&object, &path)?);
        }
        Ok(())
    }
}

impl Manifest {
    fn of(object: &Object<'_>, path: &str) -> anyhow::Result<Manifest> {
        let (kind, name) = (object.kind, object.name());
        let dot = if path.is_empty() { "" } else { "." };
        let prefix = format!("{path}{dot}");
        let pod =
            at(object.value, path).filter(|pod| pod.get("spec").is_some_and(Value::is_object));
        let Some(pod) = pod else {
            bail!("{kind} {name:?} has no {prefix}spec");
        };
        check(pod, &prefix)?;
        let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
        ensure!(
            containers.is_some_and(|all| !all.is_empty()),
            "{kind} {name:?} has no containers in {prefix}spec.containers"
        );
        let class = pod
            .pointer("/spec/runtimeClassName")
            .and_then(Value::as_str);
        let images = containers.into_iter().flatten();
        let images = images.filter_map(|container| container.get("image")?.as_str());
        let texts = images.chain(class).chain([name.as_str()]);
        ensure!(
            !texts.into_iter().any(|text| text.contains("{{")),
            "{kind} {name:?} looks like a template; {RENDER}"
        );
        let mut unknown_fields = compatibility::unknown_fields(pod, near);
        // A pod template of a custom resource may have more fields than a pod.
        unknown_fields.retain(|field| object.is_built_in() || field.near.is_some());
        Ok(Manifest {
            object: kind.to_owned(),
            namespace: object.text("namespace").to_owned(),
            name,
            pod: pod.clone(),
            prefix,
            unknown_fields,
        })
    }
}

impl Skipped {
    fn of(object: &Object<'_>) -> Skipped {
        Skipped {
            api_version: object.api_version.to_owned(),
            object: object.kind.to_owned(),
            name: object.name(),
            file: object.file.to_owned(),
            has_no_pods: object.is_built_in(),
        }
    }

    /// The kind and the name.
    pub(super) fn title(&self) -> String {
        format!("{} {}", self.object, self.name)
            .trim_end()
            .to_owned()
    }

    /// The line about an object that may have pods.
    pub(super) fn line(&self) -> String {
        format!(
            "skipped: {} ({}) in {}: it has no pod template that criswitch knows, but its controller may create pods",
            self.title(),
            self.api_version,
            self.file
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "apiVersion": self.api_version,
            "kind": self.object,
            "name": self.name,
            "file": self.file,
            "hasNoPods": self.has_no_pods,
        })
    }
}

/// Checks the types of the fields that the rules are about. A value of a wrong type would meet no rule.
fn check(pod: &Value, prefix: &str) -> anyhow::Result<()> {
    let tests = compatibility::tests();
    let types = tests.filter_map(|test| Some((test.fields, needed(test.is)?)));
    for (fields, needed) in TYPES.into_iter().chain(types) {
        let is = Is::Present;
        for field in (Test { fields, is }).fields(pod) {
            let (name, found) = (&field.name, type_of(field.value));
            ensure!(found == needed, "{prefix}{name} is {found}, not {needed}");
        }
    }
    Ok(())
}

/// The type of the values that can meet the condition; `None` if it is any type.
fn needed(is: Is) -> Option<&'static str> {
    match is {
        Is::True | Is::False => Some("a boolean"),
        Is::OneOf(_) | Is::NoneOf(_) | Is::Like(_) | Is::Sysctl(..) => Some("a string"),
        Is::Includes(_) => Some("a list"),
        Is::Entry(..) | Is::OtherKey(_) | Is::All(_) | Is::HostPath(_) => Some("a map"),
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
