//! `criswitch labels`: the labels that describe this node to the scheduler. The running daemon makes them.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::{Args, ValueEnum};
use criswitch_client::arguments::Daemon;
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, Output, remove_nulls};
use criswitch_client::program::block_on;
use criswitch_client::terminal::{self, SafeText, print};
use criswitch_config::kubernetes;
use criswitch_config::labels_file::{self, feature_file};
use criswitch_cri::codec::admin::NodeLabels;
use serde::Serialize;
use serde_json::{Map, json};

#[derive(Args)]
pub(super) struct LabelsArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: Output,
    /// Print a kubectl command for each label of this node.
    #[arg(long, value_name = "NODE", value_parser = node, conflicts_with_all = ["output", "json", "file"])]
    kubectl: Option<String>,
    /// Write the feature file to this path in place of standard output, and replace an existing file.
    #[arg(long = "write", value_name = "FILE", conflicts_with_all = ["output", "json"])]
    file: Option<PathBuf>,
    /// Print the labels of handlers for an autoscaler, which needs the labels of nodes that do not exist yet.
    #[arg(long, value_enum, value_name = "AUTOSCALER")]
    #[arg(conflicts_with_all = ["output", "json", "file", "kubectl"])]
    template: Option<Template>,
    /// A taint of the nodes, for --template. The option can be repeated.
    #[arg(long = "taint", value_name = "KEY[=VALUE]:EFFECT", value_parser = taint, requires = "template")]
    taints: Vec<Taint>,
}

/// The autoscaler that reads a template.
#[derive(Clone, Copy, ValueEnum)]
enum Template {
    /// Node group tags for Cluster Autoscaler, as KEY=VALUE
    ClusterAutoscaler,
    /// The labels and taints of a Karpenter NodePool, as YAML
    Karpenter,
}

/// A taint of a node.
#[derive(Clone, Serialize)]
struct Taint {
    key: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    value: String,
    effect: String,
}

/// The start of the keys of tags for Cluster Autoscaler.
const NODE_TEMPLATE: &str = "k8s.io/cluster-autoscaler/node-template";
/// The start of the labels of handlers. A template has only these: the versions of runtimes change with an upgrade.
const HANDLER_LABEL_PREFIX: &str = "criswitch.io/handler.";
const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

impl LabelsArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        if let Some(template) = self.template {
            template.judge(&self.taints)?;
        }
        let labels = block_on(ask(&self.daemon))?;
        if let Some(template) = self.template {
            print(template.of(&labels, &self.taints)?)?;
            terminal::print_stderr(&output::name_lines(&labels.notes));
            return Ok(Verdict::Fine);
        }
        match (&self.kubectl, &self.file, self.output.encoding()) {
            (Some(node), ..) => print(kubectl(node, &labels)).map(drop)?,
            (_, Some(file), _) => {
                labels_file::replace(file, &feature_file(&labels.labels))
                    .with_context(|| format!("{}: the labels cannot be written", file.display()))?;
            }
            (.., Some(encoding)) => {
                let problems: Vec<_> = labels.notes.iter().map(|it| output::problem(it)).collect();
                return print(
                    encoding.document(json!({ "labels": labels.labels, "problems": problems }))?,
                );
            }
            (None, None, None) => print(feature_file(&labels.labels)).map(drop)?,
        }
        // `kubectl` or node-feature-discovery may read standard output, so notes go to standard error.
        terminal::print_stderr(&output::name_lines(&labels.notes));
        Ok(Verdict::Fine)
    }
}

impl Template {
    /// # Errors
    /// Two of the taints cannot be on one node, or their tags would have the same key.
    fn judge(self, taints: &[Taint]) -> anyhow::Result<()> {
        let is_tag = matches!(self, Template::ClusterAutoscaler);
        for (index, taint) in taints.iter().enumerate() {
            ensure!(
                !taints.iter().take(index).any(|before| {
                    before.key == taint.key && (is_tag || before.effect == taint.effect)
                }),
                "two taints have the key {}{}; try one of them",
                taint.key,
                if is_tag {
                    ", and Cluster Autoscaler reads one tag for each key"
                } else {
                    " and the same effect"
                }
            );
        }
        Ok(())
    }

    fn of(self, labels: &NodeLabels, taints: &[Taint]) -> anyhow::Result<String> {
        let labels = labels
            .labels
            .iter()
            .filter(|(key, _)| key.starts_with(HANDLER_LABEL_PREFIX));
        match self {
            Template::ClusterAutoscaler => {
                let taints = taints.iter().map(|Taint { key, value, effect }| {
                    format!("{NODE_TEMPLATE}/taint/{key}={value}:{effect}\n")
                });
                Ok(labels
                    .map(|(key, value)| format!("{NODE_TEMPLATE}/label/{key}={value}\n"))
                    .chain(taints)
                    .collect())
            }
            Template::Karpenter => {
                let labels = labels.map(|(key, value)| (key.clone(), json!(value)));
                let mut pool = json!({ "spec": { "template": {
                    "metadata": { "labels": Map::from_iter(labels) },
                    "spec": (!taints.is_empty()).then(|| json!({ "taints": taints })),
                } } });
                remove_nulls(&mut pool);
                Ok(serde_saphyr::to_string(&pool)?)
            }
        }
    }
}

/// A taint in the form of `kubectl taint`.
fn taint(text: &str) -> Result<Taint, String> {
    let (name, effect) = text.rsplit_once(':').ok_or_else(not_a_taint)?;
    let (key, value) = name.split_once('=').unwrap_or((name, ""));
    let is_value = value.is_empty() || kubernetes::is_name(value);
    if !kubernetes::is_label_key(key) || !is_value || !EFFECTS.contains(&effect) {
        return Err(not_a_taint());
    }
    let [key, value, effect] = [key, value, effect].map(str::to_owned);
    Ok(Taint { key, value, effect })
}

fn not_a_taint() -> String {
    let effects = EFFECTS.join(", ");
    format!("not a taint; try KEY=VALUE:EFFECT, where EFFECT is one of {effects}")
}

async fn ask(daemon: &Daemon) -> anyhow::Result<NodeLabels> {
    let state = daemon.connect().await?.state().await?;
    state.node_labels.with_context(|| {
        format!(
            "the running criswitch is version {}, which makes no labels; restart it with this version, {}",
            state.version,
            env!("CARGO_PKG_VERSION")
        )
    })
}

/// A command for each label. A command that fails, for example because an admission rule rejects the label, does not
/// prevent the others.
fn kubectl(node: &str, labels: &NodeLabels) -> SafeText {
    let commands = labels
        .labels
        .iter()
        .map(|(key, value)| format!("kubectl label --overwrite node {node} {key}={value}"));
    output::name_lines(commands).into()
}

/// The name of a node is a DNS name. A shell may read the commands, so other characters are rejected.
fn node(text: &str) -> Result<String, String> {
    let has_only = text
        .bytes()
        .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.'));
    let wrong = "not the name of a node; a name has a-z, 0-9, \"-\" and \".\"; try a name of `kubectl get nodes`";
    (has_only && !text.is_empty() && !text.starts_with('-'))
        .then(|| text.to_owned())
        .ok_or_else(|| wrong.to_owned())
}
