//! `criswitch labels`: the labels that describe this node to the scheduler. The running daemon makes them.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use criswitch_client::exit::Verdict;
use criswitch_client::output;
use criswitch_client::output::Output;
use criswitch_client::program::block_on;
use criswitch_client::terminal::print;
use criswitch_client::terminal::{self, Shown};
use criswitch_config::labels_file::{self, feature_file};
use criswitch_cri::codec::admin::NodeLabels;
use serde_json::json;

use super::arguments::Daemon;

#[derive(Args)]
pub(super) struct LabelsArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    pub(super) output: Output,
    /// Print a kubectl command for each label of this node.
    #[arg(long, value_name = "NODE", value_parser = node, conflicts_with_all = ["output", "json", "file"])]
    kubectl: Option<String>,
    /// Write the feature file to this path in place of standard output, and replace an existing file.
    #[arg(long = "write", value_name = "FILE", conflicts_with_all = ["output", "json"])]
    file: Option<PathBuf>,
}

impl LabelsArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let labels = block_on(ask(&self.daemon))?;
        match (&self.kubectl, &self.file, self.output.encoding()) {
            (Some(node), ..) => print(kubectl(node, &labels)).map(drop)?,
            (_, Some(file), _) => {
                let content = feature_file(&labels.labels);
                let written = labels_file::replace(file, &content);
                written
                    .with_context(|| format!("{}: the labels cannot be written", file.display()))?;
            }
            (.., Some(encoding)) => {
                let notes = labels.notes.iter();
                let problems: Vec<_> = notes.map(|note| output::problem(note)).collect();
                let object = json!({ "labels": labels.labels, "problems": problems });
                return print(encoding.document(object)?);
            }
            (None, None, None) => print(feature_file(&labels.labels)).map(drop)?,
        }
        // `kubectl` or node-feature-discovery may read standard output, so notes go to standard error.
        terminal::complain(&output::names(&labels.notes));
        Ok(Verdict::Fine)
    }
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
fn kubectl(node: &str, labels: &NodeLabels) -> Shown {
    let lines = labels.labels.iter();
    let lines =
        lines.map(|(key, value)| format!("kubectl label --overwrite node {node} {key}={value}\n"));
    lines.collect::<String>().into()
}

/// The name of a node is a DNS name. A shell may read the commands, so other characters are rejected.
fn node(text: &str) -> Result<String, String> {
    let inner = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.');
    let is_valid = !text.is_empty() && !text.starts_with('-') && text.bytes().all(inner);
    match is_valid {
        true => Ok(text.to_owned()),
        false => Err(
            "not the name of a node; a name has a-z, 0-9, \"-\" and \".\"; try a name of `kubectl get nodes`"
                .to_owned(),
        ),
    }
}
