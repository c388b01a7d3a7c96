//! The pods in YAML files: pods, and the pod templates of other objects.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use criswitch_advice::{Is, Test, UnknownField};
use criswitch_config::problem::near;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::documents::{RENDER, documents, name_of, text_of_file};
use super::object::{Object, at, misplaced, prefix};

/// Fields that must be strings, besides the fields that rules read.
const STRINGS: &[&str] = &[
    "spec.runtimeClassName",
    "spec.volumes[*].hostPath.path",
    "spec.volumes[*].hostPath.type",
    "spec.containers[*].volumeMounts[*].mountPath",
    "spec.containers[*].volumeMounts[*].name",
    "spec.containers[*].volumeMounts[*].subPath",
    "spec.containers[*].volumeMounts[*].subPathExpr",
    "spec.containers[*].image",
];
/// The version of the API that has RuntimeClass.
const CLASS: &str = "node.k8s.io/v1";
/// The former version in which a RuntimeClass has all its fields in `spec`.
const OLD_CLASS: &str = "node.k8s.io/v1alpha1";
/// The fields of a RuntimeClass at each place.
#[rustfmt::skip]
const CLASS_FIELDS: [(&str, &[&str]); 3] = [
    ("", &["apiVersion", "handler", "kind", "metadata", "overhead", "scheduling"]),
    ("/overhead", &["podFixed"]),
    ("/scheduling", &["nodeSelector", "tolerations"]),
];
/// The files that are read in a directory, as kubectl reads them.
const ENDS: [&str; 3] = ["json", "yaml", "yml"];

/// The contents of the files.
#[derive(Default)]
pub(super) struct Manifests {
    pub(super) pods: Vec<Manifest>,
    pub(super) skipped: Vec<Skipped>,
    /// The RuntimeClass objects, by their names.
    pub(super) classes: BTreeMap<String, Class>,
    /// The metadata of the Namespace objects, by their names.
    namespaces: BTreeMap<String, Value>,
    /// The files and objects that cannot be read, and other findings about the files.
    pub(super) problems: Vec<String>,
}

/// A RuntimeClass of a file.
pub(super) struct Class {
    pub(super) handler: String,
    /// The labels of the nodes that the class selects.
    pub(super) selector: Map<String, Value>,
    file: String,
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
    /// The fields that no pod has: misspelt and misplaced ones.
    pub(super) unknown_fields: Vec<UnknownField>,
    /// The number of volumes in the pod template. The volumes after these are the claims of a StatefulSet.
    volumes: usize,
}

/// An object without a pod template.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Skipped {
    api_version: String,
    #[serde(rename = "kind")]
    object: String,
    name: String,
    file: String,
    /// Whether the object certainly has no pods.
    pub(super) has_no_pods: bool,
    /// Why the object is skipped.
    #[serde(skip)]
    why: String,
}

/// Reads the pods of all files.
///
/// # Errors
/// A directory cannot be read, or there is no pod.
pub(super) fn read(files: &[PathBuf]) -> anyhow::Result<Manifests> {
    let mut all = Manifests::default();
    for file in files {
        for file in files_of(file)? {
            all.add_file(&file);
        }
    }
    if all.pods.is_empty() {
        ensure!(all.problems.is_empty(), all.problems.join("\n"));
        let names: Vec<_> = files.iter().map(|file| name_of(file)).collect();
        let has = if names.len() == 1 { "has" } else { "have" };
        let names = names.join(", ");
        let skipped: String = all
            .skipped
            .iter()
            .filter(|skipped| !skipped.has_no_pods)
            .map(|it| format!("\n{}", it.line()))
            .collect();
        bail!(
            "{names} {has} no pod; try a Pod, a Deployment, DaemonSet, StatefulSet, ReplicaSet, Job or CronJob, any object \
             with a pod template, or a List of them{skipped}"
        );
    }
    for pod in &mut all.pods {
        let namespace = match pod.namespace.as_str() {
            "" => "default",
            namespace => namespace,
        };
        if let Some(metadata) = all.namespaces.get(namespace) {
            criswitch_advice::with_namespace(&mut pod.pod, metadata);
        }
    }
    Ok(all)
}

/// The file, or the files of the directory.
fn files_of(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let shown = path.display();
    let mut files: Vec<_> = fs::read_dir(path)
        .with_context(|| format!("cannot read {shown}"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<io::Result<Vec<_>>>()
        .with_context(|| format!("cannot read {shown}"))?
        .into_iter()
        .filter(|path| {
            let end = path.extension().and_then(|end| end.to_str());
            let is_other = fs::metadata(path).is_ok_and(|it| !it.is_file());
            end.is_some_and(|end| ENDS.contains(&end)) && !is_other
        })
        .collect();
    files.sort();
    ensure!(
        !files.is_empty(),
        "{shown} has no file whose name ends with .json, .yaml or .yml"
    );
    Ok(files)
}

impl Manifests {
    /// Adds the objects of a file. An error in the file or in an object becomes a problem, and does not prevent other
    /// objects from being added.
    fn add_file(&mut self, path: &Path) {
        let name = name_of(path);
        let documents = match text_of_file(path).and_then(|text| documents(&name, &text)) {
            Ok(documents) => documents,
            Err(error) => return self.problems.push(format!("{error:#}")),
        };
        for (index, document) in documents.iter().enumerate() {
            if let Err(error) = self.add(&name, document, None) {
                self.problems
                    .push(format!("{name}: document {}: {error:#}", index + 1));
            }
        }
    }

    /// Adds an object. `listed` is its kind if the object itself has none: items of a `PodList` have none.
    fn add(&mut self, file: &str, value: &Value, listed: Option<&str>) -> anyhow::Result<()> {
        if value.is_null() {
            return Ok(());
        }
        let Some(kind) = value["kind"].as_str().or(listed) else {
            bail!(
                "the object has no `kind`, so it is none of Kubernetes; try the output of helm template or kubectl kustomize \
                 for a chart or a kustomization"
            );
        };
        if let (Some(listed), Some(items)) = (kind.strip_suffix("List"), value.get("items")) {
            let listed = Some(listed).filter(|listed| !listed.is_empty());
            let found = type_of(items);
            ensure!(
                ["a list", "null"].contains(&found),
                "items of the {kind} is {found}, not a list"
            );
            for item in items.as_array().into_iter().flatten() {
                self.add(file, item, listed)?;
            }
            return Ok(());
        }
        let object = Object {
            file,
            value,
            kind,
            api_version: value["apiVersion"].as_str().unwrap_or_default(),
        };
        if near(kind, &["runtimeclass"]).is_some() && object.is_built_in() {
            return self.add_class(&object);
        }
        if kind == "Namespace" && object.is_built_in() {
            let (name, metadata) = (object.name(), object.value["metadata"].clone());
            let is_template = check(&json!({ "namespace": metadata }), "")?;
            ensure!(
                !is_template,
                "Namespace {name:?} looks like a template; {RENDER}"
            );
            self.namespaces.insert(name, metadata);
        }
        if let Some(needed) = object.needed_version() {
            let (name, version) = (object.name(), object.api_version);
            self.problems.push(format!(
                "{kind} {name:?} in {file}: the API has no {kind} in {version}; try apiVersion: {needed}"
            ));
        }
        let templates = object.templates();
        let doubt = object.doubt(&templates);
        if templates.is_empty() || doubt.is_some() {
            self.skipped.push(Skipped::of(&object, doubt));
        }
        for path in templates {
            self.pods.push(Manifest::of(&object, &path)?);
        }
        Ok(())
    }

    /// Adds a RuntimeClass.
    fn add_class(&mut self, object: &Object<'_>) -> anyhow::Result<()> {
        let name = object.name();
        let class = Class::of(object)?;
        if ![CLASS, ""].contains(&object.api_version) {
            let (version, file) = (object.api_version, object.file);
            self.problems.push(format!(
                "RuntimeClass {name:?} in {file}: the API has no RuntimeClass in {version}; try apiVersion: {CLASS}"
            ));
        }
        self.problems.extend(unknown_class_fields(object));
        if let Some(before) = self.classes.get(&name).filter(|it| !it.is_same(&class)) {
            let files = format!("{} and {}", before.file, object.file);
            self.problems.push(format!(
                "RuntimeClass {name:?} occurs twice, in {files}; the last one counts"
            ));
        }
        self.classes.insert(name, class);
        Ok(())
    }
}

impl Class {
    /// Whether pods of both classes run in the same way.
    fn is_same(&self, other: &Class) -> bool {
        self.handler == other.handler && self.selector == other.selector
    }

    fn of(object: &Object<'_>) -> anyhow::Result<Class> {
        let (kind, name, version) = (object.kind, object.name(), object.api_version);
        ensure!(
            kind == "RuntimeClass",
            "Kubernetes has no kind {kind}; did you mean RuntimeClass?"
        );
        ensure!(
            version.is_empty() || version.starts_with("node.k8s.io/"),
            "the API has no RuntimeClass in {version}; try apiVersion: {CLASS}"
        );
        let (fields, handler) = if version == OLD_CLASS {
            (&object.value["spec"], "runtimeHandler")
        } else {
            (object.value, "handler")
        };
        Ok(Class {
            handler: fields[handler]
                .as_str()
                .with_context(|| format!("RuntimeClass {name:?} has no handler"))?
                .to_owned(),
            selector: match fields.pointer("/scheduling/nodeSelector") {
                None | Some(Value::Null) => Map::new(),
                Some(Value::Object(labels)) => labels.clone(),
                Some(_) => bail!("RuntimeClass {name:?}: scheduling.nodeSelector is not a map"),
            },
            file: object.file.to_owned(),
        })
    }
}

/// One problem for each field that a RuntimeClass does not have.
fn unknown_class_fields(object: &Object<'_>) -> Vec<String> {
    if object.api_version == OLD_CLASS {
        return Vec::new();
    }
    CLASS_FIELDS
        .into_iter()
        .flat_map(|(place, known)| {
            object
                .value
                .pointer(place)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
                .map(move |(key, _)| (&**key, known))
        })
        .filter(|(key, known)| !known.contains(key))
        .map(|(key, known)| {
            let near = near(key, known).map(|near| format!("; did you mean {near}?"));
            let (name, near) = (object.name(), near.unwrap_or_default());
            format!("RuntimeClass {name:?}: Kubernetes has no field {key}{near}")
        })
        .collect()
}

impl Manifest {
    fn of(object: &Object<'_>, path: &str) -> anyhow::Result<Manifest> {
        let (kind, name) = (object.kind, object.name());
        let prefix = prefix(path);
        let Some(pod) = at(object.value, path).filter(|pod| pod["spec"].is_object()) else {
            bail!("{kind} {name:?} has no {prefix}spec");
        };
        let is_template = check(pod, &prefix)? || name.contains("{{");
        ensure!(
            !is_template,
            "{kind} {name:?} looks like a template; {RENDER}"
        );
        let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
        ensure!(
            containers.is_some_and(|all| !all.is_empty()),
            "{kind} {name:?} has no containers in {prefix}spec.containers"
        );
        if let Some(part) = without_image(pod) {
            bail!(
                "{kind} {name:?}: {prefix}{part} has no image, so the file has only a part of the pod, as a patch has; try \
                 kubectl kustomize DIR | criswitch explain -f -"
            );
        }
        let mut unknown_fields = criswitch_advice::unknown_fields(pod, near);
        // A pod template of a custom resource may have more fields than a pod.
        unknown_fields.retain(|field| object.is_built_in() || field.near.is_some());
        for field in &mut unknown_fields {
            field.name.insert_str(0, &prefix);
        }
        if object.is_built_in() {
            unknown_fields.extend(misplaced(object.value, path));
        }
        let mut pod = pod.clone();
        let volumes = add_claims(&mut pod, object.claims());
        // The controller of a custom resource may add containers that use the volumes.
        if object.is_built_in() {
            criswitch_advice::ignore_unused_volumes(&mut pod);
        }
        Ok(Manifest {
            object: kind.to_owned(),
            namespace: object.text("namespace").to_owned(),
            name,
            pod,
            prefix,
            unknown_fields,
            volumes,
        })
    }

    /// The name that a field of the pod has in the file.
    pub(super) fn field(&self, name: &str) -> String {
        if let Some(field) = name.strip_prefix("namespace.") {
            return format!("Namespace: metadata.{field}");
        }
        let claim = name.strip_prefix("spec.volumes[").and_then(|rest| {
            let (index, _) = rest.split_once(']')?;
            index.parse::<usize>().ok()?.checked_sub(self.volumes)
        });
        match claim {
            Some(claim) => format!("spec.volumeClaimTemplates[{claim}]"),
            None => format!("{}{name}", self.prefix),
        }
    }
}

/// The first container of the pod that has no image.
fn without_image(pod: &Value) -> Option<String> {
    ["initContainers", "containers"].iter().find_map(|list| {
        pod["spec"]
            .get(list)?
            .as_array()?
            .iter()
            .position(|it| it["image"].is_null())
            .map(|index| format!("spec.{list}[{index}]"))
    })
}

/// Adds volumes for these claims to the pod. Returns how many volumes the pod had before.
fn add_claims(pod: &mut Value, claims: &[Value]) -> usize {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    let mut volumes = volumes.cloned().unwrap_or_default();
    let before = volumes.len();
    volumes.extend(claims.iter().map(|claim| {
        let name = claim.pointer("/metadata/name");
        json!({ "name": name, "persistentVolumeClaim": { "claimName": name } })
    }));
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut)
        && volumes.len() > before
    {
        spec.insert("volumes".to_owned(), Value::Array(volumes));
    }
    before
}

impl Skipped {
    fn of(object: &Object<'_>, doubt: Option<String>) -> Skipped {
        Skipped {
            api_version: object.api_version.to_owned(),
            object: object.kind.to_owned(),
            name: object.name(),
            file: object.file.to_owned(),
            has_no_pods: doubt.is_none(),
            why: doubt.unwrap_or_default(),
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
        let (title, version) = (self.title(), &self.api_version);
        format!(
            "skipped: {title} ({version}) in {}: {}",
            self.file, self.why
        )
    }
}

/// Checks the types of the fields that the rules are about, because no rule matches a value of a wrong type. Returns
/// whether one of the fields has a template placeholder.
fn check(pod: &Value, prefix: &str) -> anyhow::Result<bool> {
    let strings = Test {
        fields: STRINGS,
        is: Is::OneOf(&[]),
    };
    let tests: Vec<_> = criswitch_advice::tests().chain([strings]).collect();
    let is = Is::Present;
    let found = tests.iter().flat_map(|test| {
        let present = Test { is, ..*test }.fields(pod);
        present.into_iter().chain(test.fields(pod))
    });
    // The name of an image may have a parameter such as `${TAG}`, because no rule reads it.
    let mut texts = found.filter_map(|field| Some((field.value.as_str()?, field.name)));
    if texts
        .any(|(text, name)| text.contains("{{") || text.contains("${") && !name.ends_with(".image"))
    {
        return Ok(true);
    }
    for test in &tests {
        let fields = Test { is, ..*test }.fields(pod).into_iter();
        let needed = needed(test.is).into_iter().cycle();
        for (field, needed) in fields.zip(needed).chain(test.misfit(pod)) {
            let (name, found) = (&field.name, type_of(field.value));
            ensure!(found == needed, "{prefix}{name} is {found}, not {needed}");
        }
    }
    Ok(false)
}

/// The type of the values that can meet the condition; `None` if it is any type.
fn needed(is: Is) -> Option<&'static str> {
    match is {
        Is::True | Is::False => Some("a boolean"),
        Is::OneOf(_) | Is::NoneOf(_) | Is::Like(_) | Is::LikeExcept(..) | Is::Sysctl(..) => {
            Some("a string")
        }
        Is::Includes(_) => Some("a list"),
        Is::Entry(..) | Is::OtherKey(_) | Is::All(_) | Is::HostPath(_) | Is::Mounted(_) => {
            Some("a map")
        }
        Is::Present | Is::MoreThanOne => None,
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
