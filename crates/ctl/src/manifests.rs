//! `criswitch manifests`: a RuntimeClass for each handler of the table, or admission policies. Calls no backend.

pub(super) mod policy;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::{Args, ValueEnum};
use criswitch_client::arguments::File;
use criswitch_client::exit::Verdict;
use criswitch_client::output::{Encoding, Output, remove_nulls};
use criswitch_client::program::{block_on, output};
use criswitch_client::terminal::{self, print};
use criswitch_config::labels_file::handler_key;
use criswitch_config::{Config, Handler, Table, Toleration};
use criswitch_platform::paths::NODE_LABELS;
use serde_json::{Map, Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use super::explain;

/// The MutatingAdmissionPolicy that gives the pods of a labelled namespace a RuntimeClass, and its binding.
const DEFAULT_CLASS: &str = include_str!("manifests/default-class.yaml");
/// The labels of every object. Their value is `criswitch`.
const LABELS: [&str; 2] = ["app.kubernetes.io/managed-by", "app.kubernetes.io/part-of"];

/// The arguments of `criswitch manifests`.
#[derive(Args)]
pub(super) struct ManifestsArguments {
    #[command(flatten)]
    file: File,
    #[command(flatten)]
    output: Output,
    /// Print admission policies instead.
    #[arg(long, value_enum, value_name = "KIND", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "limits")]
    policy: Option<PolicyKind>,
    /// Warn about RuntimeClasses that exist in the cluster with a different handler. FILE contains the output of
    /// kubectl get runtimeclasses -o yaml; - is standard input.
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    existing: Option<PathBuf>,
    /// Like --existing, but get the RuntimeClasses by running kubectl, or PROGRAM.
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "kubectl")]
    #[arg(conflicts_with_all = ["policy", "existing"])]
    kubectl: Option<PathBuf>,
}

/// The purpose of the policies.
#[derive(Clone, Copy, ValueEnum)]
enum PolicyKind {
    /// Reject a pod that the runtime of its RuntimeClass cannot run.
    Limits,
    /// Set the RuntimeClass NAME for pods that name no class, in namespaces with the label
    /// criswitch.io/default-class=NAME (Kubernetes 1.36).
    DefaultClass,
}

impl ManifestsArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let config = Config::load(&self.file.path)?;
        let objects = match self.policy {
            Some(PolicyKind::Limits) => Objects::Policies,
            Some(PolicyKind::DefaultClass) => Objects::DefaultClass,
            None => Objects::RuntimeClasses,
        };
        // Find the clashes before printing: if the classes of the cluster are unknown, `kubectl apply` must get no
        // objects.
        let clashes = match (&self.existing, &self.kubectl) {
            (Some(file), _) => clashes_in(&config, file)?,
            (None, Some(kubectl)) => clashes_at(&config, kubectl)?,
            (None, None) => String::new(),
        };
        print(match self.output.encoding() {
            Some(Encoding::Json) => objects.json(&config)?,
            _ => objects.yaml(&config)?,
        })?;
        // `kubectl apply -f -` reads standard output, so warnings go to standard error.
        terminal::print_stderr(&(clashes + &objects.omitted(&config)));
        Ok(Verdict::Fine)
    }
}

/// The arguments with which kubectl prints the RuntimeClasses of its cluster.
const GET: [&str; 4] = ["get", "runtimeclasses", "-o", "json"];
/// The time that kubectl may take.
const KUBECTL_LIMIT: Duration = Duration::from_secs(15);
/// The output of kubectl must have fewer bytes than this.
const KUBECTL_BYTES: u64 = 8 << 20;

/// The objects that the command prints.
#[derive(Clone, Copy)]
pub(super) enum Objects {
    RuntimeClasses,
    Policies,
    DefaultClass,
}

impl Objects {
    fn of(self, config: &Config) -> anyhow::Result<Vec<Value>> {
        let rows = config.table.handlers.iter();
        Ok(match self {
            Objects::RuntimeClasses => rows.map(|row| runtime_class(row, config)).collect(),
            Objects::Policies => policy::objects(&config.table)?,
            Objects::DefaultClass => serde_saphyr::from_multiple(DEFAULT_CLASS)?,
        })
    }

    /// The objects as YAML documents, for `kubectl apply -f -`.
    pub(super) fn yaml(self, config: &Config) -> anyhow::Result<String> {
        Ok(serde_saphyr::to_string_multiple(&self.of(config)?)?)
    }

    /// The objects as one JSON list, which kubectl accepts too.
    pub(super) fn json(self, config: &Config) -> anyhow::Result<String> {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": self.of(config)? });
        Ok(format!("{list:#}\n"))
    }

    /// One line for each handler or backend that the objects omit, and for each RuntimeClass without a label.
    pub(super) fn omitted(self, config: &Config) -> String {
        let auto_registered = auto_registered(&config.table);
        match self {
            Objects::RuntimeClasses => auto_registered + &unlabelled(config),
            Objects::Policies => auto_registered + &policy::omitted(&config.table),
            Objects::DefaultClass => String::new(),
        }
    }
}

/// The clashes with the RuntimeClasses in a file with the output of `kubectl get runtimeclasses -o yaml`.
///
/// # Errors
/// If the file cannot be read, or has no RuntimeClasses.
pub(super) fn clashes_in(config: &Config, file: &Path) -> anyhow::Result<String> {
    clashes(config, file, &explain::text_of_file(file)?)
}

/// The clashes with the RuntimeClasses of the cluster that `kubectl` uses.
///
/// # Errors
/// If kubectl does not print the RuntimeClasses in time.
pub(super) fn clashes_at(config: &Config, kubectl: &Path) -> anyhow::Result<String> {
    block_on(answer(kubectl))
        .and_then(|text| clashes(config, kubectl, &text))
        .with_context(|| {
            format!(
                "the RuntimeClasses of the cluster are unknown: {} {}",
                kubectl.display(),
                GET.join(" ")
            )
        })
}

/// The RuntimeClasses of the cluster, as kubectl prints them.
async fn answer(kubectl: &Path) -> anyhow::Result<String> {
    let mut command = Command::new(kubectl);
    command.args(GET);
    let mut text = Vec::new();
    let asked = timeout(KUBECTL_LIMIT, output(command, KUBECTL_BYTES, &mut text)).await;
    ensure!(
        (text.len() as u64) < KUBECTL_BYTES,
        "the output is larger than {KUBECTL_BYTES} bytes"
    );
    asked.map_err(|_| anyhow!("no answer in {} s", KUBECTL_LIMIT.as_secs()))??;
    Ok(String::from_utf8(text)?)
}

/// One line for each RuntimeClass of the cluster that `kubectl apply` cannot replace: the handler of a RuntimeClass is
/// immutable. `text` has the objects of the cluster. Errors name its source, `place`.
fn clashes(config: &Config, place: &Path, text: &str) -> anyhow::Result<String> {
    let shown = place.display();
    let mut documents: Vec<Value> = serde_saphyr::from_multiple(text)
        .map_err(|_| anyhow!("{shown} is not valid YAML or JSON"))?;
    documents.retain(|document| !document.is_null());
    let mut classes = Vec::new();
    let mut is_list = !documents.is_empty();
    for document in &documents {
        match document["items"].as_array() {
            // The items of a RuntimeClassList have no kind.
            Some(items) if document["kind"] == "RuntimeClassList" => classes.extend(items),
            Some(items) => {
                is_list &= items.is_empty() || items.iter().any(is_class);
                classes.extend(items.iter().filter(|item| is_class(item)));
            }
            None if is_class(document) => classes.push(document),
            None => is_list = false,
        }
    }
    ensure!(
        is_list,
        "{shown} has no list of RuntimeClasses; try the output of kubectl get runtimeclasses -o yaml"
    );
    let clashes = classes.into_iter().filter_map(|object| {
        let name = object.pointer("/metadata/name")?.as_str()?;
        let handler = object.pointer("/handler")?.as_str()?;
        let mut rows = config.table.handlers.iter();
        let row = rows.find(|row| row.class() == name && row.name != handler)?;
        let own = &row.name;
        Some(format!(
            "criswitch: RuntimeClass {name:?} exists with the handler {handler:?}, which is immutable, and the row has the \
             handler {own:?}; name the row {handler} and set class = {name:?}, or set a different class\n"
        ))
    });
    Ok(clashes.collect())
}

fn is_class(object: &Value) -> bool {
    object["kind"] == "RuntimeClass"
}

/// One line for each handler whose name is too long for a label.
fn unlabelled(config: &Config) -> String {
    config
        .table
        .handlers
        .iter()
        .map(|row| &row.name)
        .filter(|name| config.labels_file.is_some() && handler_key(name).is_none())
        .map(|name| {
            format!(
                "criswitch: the RuntimeClass of handler {name:?} selects no label, because the name is too long for a label; use \
                 a name of at most 55 characters, or node_selector\n"
            )
        })
        .collect()
}

/// One line for each backend with automatically registered handlers. The manifests omit these handlers.
fn auto_registered(table: &Table) -> String {
    table
        .backends
        .iter()
        .filter(|backend| backend.auto_register)
        .map(|backend| {
            format!(
                "criswitch: the output omits automatically registered handlers of backend {:?}; add a row under [handlers] for \
                 each one that needs a RuntimeClass\n",
                backend.name
            )
        })
        .collect()
}

/// The name of an object, and the labels with which `kubectl apply --prune` and `kubectl delete` select all objects of
/// criswitch.
fn metadata(name: &str) -> Value {
    let labels = LABELS.map(|key| (key.to_owned(), json!("criswitch")));
    json!({ "name": name, "labels": Map::from_iter(labels) })
}

/// A RuntimeClass (node.k8s.io/v1) of Kubernetes 1.37.
fn runtime_class(row: &Handler, config: &Config) -> Value {
    let overhead = &row.scheduling.overhead;
    let mut class = json!({
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": metadata(row.class()),
        "handler": row.name,
        "overhead": (!overhead.is_empty()).then(|| json!({ "podFixed": overhead })),
        "scheduling": scheduling(row, config),
    });
    remove_nulls(&mut class);
    class
}

fn scheduling(row: &Handler, config: &Config) -> Option<Value> {
    let tolerations: Vec<_> = row.scheduling.tolerations.iter().map(toleration).collect();
    let mut selector = row.scheduling.node_selector.clone();
    // Without labels on the nodes, pods with this selector would never be scheduled.
    if config.labels_file.is_some()
        && let Some(label) = handler_key(&row.name)
    {
        selector.entry(label).or_insert_with(|| "true".to_owned());
    }
    for (label, value) in NODE_LABELS {
        selector
            .entry((*label).to_owned())
            .or_insert_with(|| (*value).to_owned());
    }
    if selector.is_empty() && tolerations.is_empty() {
        return None;
    }
    Some(json!({
        "nodeSelector": (!selector.is_empty()).then_some(selector),
        "tolerations": (!tolerations.is_empty()).then_some(tolerations),
    }))
}

fn toleration(toleration: &Toleration) -> Value {
    json!({
        "key": non_empty(&toleration.key),
        "operator": toleration.operator.as_ref(),
        "value": non_empty(&toleration.value),
        "effect": non_empty(toleration.effect.as_ref()),
        "tolerationSeconds": toleration.seconds,
    })
}

fn non_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(all(test, unix))]
mod tests {
    use std::process::Command;

    use super::answer;

    #[tokio::test(start_paused = true)]
    async fn a_kubectl_without_an_answer_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let kubectl = folder.path().join("kubectl");
        // A shell writes the program: if this process opened the file, a child of a concurrent test would inherit it,
        // and the kernel executes no file that a process has open for writing.
        let write = r#"printf '#!/bin/sh\nexec tail -f /dev/null\n' >"$0" && chmod 755 "$0""#;
        let mut shell = Command::new("sh");
        assert!(
            shell
                .args(["-c", write])
                .arg(&kubectl)
                .status()
                .unwrap()
                .success()
        );
        let error = answer(&kubectl).await.unwrap_err();
        assert_eq!(error.to_string(), "no answer in 15 s");
    }
}
