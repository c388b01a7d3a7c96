//! A node for `criswitch discover`: well-known paths below a directory, with simulated runtimes at some of them.

use std::path::{Path, PathBuf};

use criswitch_config::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::Sim;
use crate::{Outcome, run_beside, text};

pub(crate) const CONTAINERD: &str = "run/containerd/containerd.sock";
pub(crate) const CRIO: &str = "run/crio/crio.sock";

/// The directory of the node is removed when the node is dropped.
pub(crate) struct Node {
    root: TempDir,
}

impl Node {
    pub(crate) fn new() -> Node {
        // The length of the directory's name affects the line breaks of comments.
        let root = tempfile::Builder::new()
            .prefix("node-")
            .tempdir_in("/tmp")
            .unwrap();
        Node { root }
    }

    /// A path below the directory, which is the root of the node; creates the parent directory.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        let path = self.root.path().join(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn with(self, place: &str, sim: Sim) -> Node {
        sim.serve_on(&self.path(place));
        self
    }

    /// Runs `discover` with these arguments. `NODE` in an argument is the directory, which is `/node` in the output.
    pub(crate) async fn discover(&self, arguments: &[&str]) -> Outcome {
        let root = text(self.root.path());
        let arguments = arguments.iter().map(|text| text.replace("NODE", root));
        let arguments: Vec<String> = ["discover", "--root", root]
            .map(str::to_owned)
            .into_iter()
            .chain(arguments)
            .collect();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let outcome = run_beside(&arguments).await;
        Outcome {
            code: outcome.code,
            stdout: outcome.stdout.replace(root, "/node"),
            stderr: outcome.stderr.replace(root, "/node"),
        }
    }

    /// The configuration that `discover` prints, which must be valid.
    pub(crate) async fn configuration(&self, arguments: &[&str]) -> Printed {
        let outcome = self.discover(arguments).await;
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        for line in outcome.stdout.lines().filter(|line| line.starts_with("# ")) {
            let fits = line.len() <= 80 || line.split_whitespace().count() <= 3;
            assert!(fits, "a comment wider than a terminal: {line}");
        }
        let loaded = Config::of_texts(&[(Path::new("printed"), outcome.stdout.as_bytes())]);
        let config = loaded.unwrap_or_else(|problems| panic!("{problems}\n{}", outcome.stdout));
        Printed {
            text: outcome.stdout,
            shown: outcome.stderr,
            config,
        }
    }
}

/// A configuration as text, and as criswitch reads it.
pub(crate) struct Printed {
    pub(crate) text: String,
    /// The output on standard error.
    pub(crate) shown: String,
    pub(crate) config: Config,
}

impl Printed {
    /// Each row as `name -> backend "backend handler"`; the default row has a star.
    pub(crate) fn rows(&self) -> Vec<String> {
        let table = &self.config.table;
        let rows = table.handlers.iter().map(|row| {
            let star = if *row == table.default { "*" } else { "" };
            let backend = &table.backend(row.backend).unwrap().name;
            format!("{star}{} -> {backend} {:?}", row.name, row.backend_handler)
        });
        rows.collect()
    }

    /// Each backend as `name = socket`.
    pub(crate) fn backends(&self) -> Vec<String> {
        let backends = self.config.table.backends.iter();
        backends
            .map(|backend| format!("{} = {}", backend.name, backend.socket))
            .collect()
    }
}

/// containerd 2.x with these handlers. Its verbose Status reports the first handler as the default.
pub(crate) fn containerd<'a>(handlers: impl IntoIterator<Item = &'a str>) -> Sim {
    let sim = Sim::new("containerd").version("2.4.2").handlers(handlers);
    let default = sim.handler_names().first().cloned();
    sim.set(|settings| settings.config = Some(containerd_config(default.as_deref(), &[])))
}

/// The relevant part of the configuration in containerd's verbose Status.
pub(crate) fn containerd_config(default: Option<&str>, handlers: &[&str]) -> Value {
    let runtimes: serde_json::Map<String, Value> = handlers
        .iter()
        .map(|name| {
            (
                (*name).to_owned(),
                json!({ "runtimeType": "io.containerd.runc.v2" }),
            )
        })
        .collect();
    json!({ "containerd": { "defaultRuntimeName": default, "runtimes": runtimes } })
}

/// CRI-O with these handlers, in a version that does not report its default handler.
pub(crate) fn crio<'a>(handlers: impl IntoIterator<Item = &'a str>) -> Sim {
    Sim::new("cri-o").version("1.37.0").handlers(handlers)
}
