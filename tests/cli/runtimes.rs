//! A node for `criswitch discover`: well-known places below a directory, simulated runtimes at some of them.

use std::path::{Path, PathBuf};

use criswitch::config::Config;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::Sim;
use crate::{Outcome, run_beside, text};

pub(crate) const CONTAINERD: &str = "run/containerd/containerd.sock";
pub(crate) const CRIO: &str = "run/crio/crio.sock";

/// Its directory goes with it.
pub(crate) struct Node {
    root: TempDir,
}

impl Node {
    pub(crate) fn new() -> Node {
        // Where comments are broken depends on the length of its name.
        let root = tempfile::Builder::new()
            .prefix("node-")
            .tempdir_in("/tmp")
            .unwrap();
        Node { root }
    }

    /// A path below the directory, which stands for `/`; its own directory is there.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        let path = self.root.path().join(below);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn with(self, place: &str, sim: Sim) -> Node {
        sim.serve_on(&self.path(place));
        self
    }

    /// Runs it with these arguments; in what it says, the directory is `/node`. `NODE` in an argument is the directory.
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

    /// The configuration that it prints, which must be one.
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
            told: outcome.stderr,
            config,
        }
    }
}

/// A configuration as it was printed, and as the switch takes it.
pub(crate) struct Printed {
    pub(crate) text: String,
    /// On standard error.
    pub(crate) told: String,
    pub(crate) config: Config,
}

impl Printed {
    /// Each row as `name -> backend "handler there"`, the default's with a star.
    pub(crate) fn rows(&self) -> Vec<String> {
        let table = &self.config.table;
        let rows = table.handlers.iter().map(|row| {
            let star = if *row == table.default { "*" } else { "" };
            let backend = &table.backends[row.backend].name;
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

/// containerd 2.x with these handlers; the first is its default, and it says so.
pub(crate) fn containerd<'a>(handlers: impl IntoIterator<Item = &'a str>) -> Sim {
    let sim = Sim::new("containerd").version("2.4.2").handlers(handlers);
    let default = sim.handler_names().first().cloned();
    sim.set(|settings| settings.config = Some(containerd_config(default.as_deref(), &[])))
}

/// What containerd's verbose Status shows of its configuration, as far as it matters here.
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

/// CRI-O with these handlers, of a version that does not say which one is its default.
pub(crate) fn crio<'a>(handlers: impl IntoIterator<Item = &'a str>) -> Sim {
    Sim::new("cri-o").version("1.37.0").handlers(handlers)
}
