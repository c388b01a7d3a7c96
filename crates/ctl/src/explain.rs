//! `criswitch explain`: why a pod runs where it runs, and which handlers can run a pod.

mod documents;
mod facts;
mod fit;
mod handler;
mod manifest;
mod object;
mod pod;

pub(super) use documents::text_of_file;

use std::borrow::Cow;
use std::path::PathBuf;

use clap::{ArgGroup, Args};
use clap_complete::ArgValueCandidates;
use criswitch_client::arguments::Daemon;
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, Output};
use criswitch_client::probe::{self, Probe, Probed, Runtime, answered};
use criswitch_client::program::block_on;
use criswitch_client::terminal::{self, print};
use criswitch_config::wording::AUTO_REGISTERED;
use criswitch_config::{Config, Handler, Problems, RuntimeKind, Table};
use criswitch_cri::codec::admin::{Backend, Handler as Row, State};
use criswitch_cri::codec::cri::PodSandbox;
use criswitch_node::kubelet::allowed_sysctls;
use serde_json::Value;

use super::consequences;
use super::manifests::policy;
use super::{complete, reload};

#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub(super) struct ExplainArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: Output,
    /// A handler, a pod as NAMESPACE/NAME, or the id of a pod or its first characters (4 or more).
    #[arg(value_name = "HANDLER|ID|NAMESPACE/NAME", group = "what", add = ArgValueCandidates::new(complete::handlers))]
    subject: Option<String>,
    /// A file with pods or workloads as YAML or JSON, or a directory of such files: show which handlers of this node
    /// can run them. `-` is standard input. The option can be repeated.
    #[arg(long = "file", short, value_name = "FILE", group = "what")]
    files: Vec<PathBuf>,
    /// Also show limits that cannot apply to the handler: for pods that the API server rejects, and for other settings
    /// of the runtime.
    #[arg(long, requires = "subject")]
    all: bool,
    /// Look for the facts about the node below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// The kind of runtime of a handler, and how it is known.
#[derive(Clone, Copy)]
pub(super) struct KnownKind {
    pub(super) kind: RuntimeKind,
    pub(super) from: &'static str,
}

/// The facts about this node that need no daemon: the configuration, and the answers of the backends.
struct NodeFacts {
    config: Config,
    probes: Vec<Probe>,
    /// The root directory of the node.
    root: PathBuf,
    /// The unsafe sysctls that the kubelet allows; `None` if they are unknown.
    allowed_sysctls: Option<Vec<String>>,
}

impl ExplainArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        match &self.subject {
            Some(subject) => self.explain_running(subject),
            None => self.explain_files(),
        }
    }

    fn explain_files(&self) -> anyhow::Result<Verdict> {
        let manifests = manifest::read(&self.files)?;
        let fits = fit::of_files(&self.node()?, manifests);
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(fits.json())?,
            None => fits.text()?.into(),
        })?;
        Ok(Verdict::of(fits.is_fine()))
    }

    fn explain_running(&self, subject: &str) -> anyhow::Result<Verdict> {
        let daemon = block_on(self.ask(subject))?;
        if let Some(row) = daemon.state.handlers.iter().find(|row| row.name == subject) {
            return self.explain_handler(&daemon, row);
        }
        let explained = pod::explain(&daemon, subject)?;
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(explained.json())?,
            None => explained.text().into(),
        })
    }

    fn explain_handler(&self, daemon: &Answers, row: &Row) -> anyhow::Result<Verdict> {
        let node =
            reload::same_file(&self.daemon.file.path, &daemon.state).and_then(|()| self.node());
        let explained = handler::explain(daemon, row, node.as_ref().map_err(cause), self.all);
        let wrong = node.err().filter(anyhow::Error::is::<Problems>);
        print(match self.output.encoding() {
            Some(encoding) => {
                let mut json = explained.json();
                if let (Some(fields), Some(Value::Object(problems))) =
                    (json.as_object_mut(), wrong.as_ref().map(output::failure))
                {
                    fields.extend(problems);
                }
                encoding.document(json)?
            }
            None => explained.text()?.into(),
        })?;
        let Some(problems) = wrong else {
            return Ok(Verdict::Fine);
        };
        terminal::print_stderr(&format!("{problems}\n"));
        Ok(Verdict::WrongConfiguration)
    }

    async fn ask(&self, subject: &str) -> anyhow::Result<Answers> {
        let running = self.daemon.connect().await?;
        let state = running.state().await?;
        let pods = running.pods(&state).await;
        // Read the state after the list, because the daemon learns owners from the list.
        let state = running.state().await?;
        // Lists fail while a backend is down, which is also when pods are rejected.
        let needs_no_list = state.handlers.iter().any(|row| row.name == subject)
            || pod::rejections(&state, subject).next().is_some();
        match pods {
            Err(error) if !needs_no_list => Err(error),
            pods => Ok(Answers {
                state,
                pods: pods.map_err(|error| cause(&error)),
            }),
        }
    }

    fn node(&self) -> anyhow::Result<NodeFacts> {
        let mut config = Config::load(&self.daemon.file.path)?;
        let probes = probe::probe(&config)?;
        add_registered(&mut config.table, &probes);
        Ok(NodeFacts {
            config,
            probes,
            root: self.root.clone(),
            allowed_sysctls: allowed_sysctls(&self.root),
        })
    }
}

/// The replies of the daemon: its state and its list of pods.
struct Answers {
    state: State,
    /// The list of pods, or why it is missing.
    pods: Result<Vec<PodSandbox>, String>,
}

/// The cause of an error, in one line.
fn cause(error: &anyhow::Error) -> String {
    if error.is::<Problems>() {
        "the configuration is wrong; run criswitch check".to_owned()
    } else {
        terminal::plain(&format!("{error:#}"))
    }
}

impl NodeFacts {
    /// The row in the configuration files that is the same as `row` of the daemon.
    ///
    /// # Errors
    /// The files have no such row.
    fn row(&self, row: &Row, backend: Option<&Backend>) -> Result<Handler, String> {
        let table = &self.config.table;
        let socket = backend.map(|it| it.socket.clone());
        if let Some(found) = table.handler(&row.name)
            && table.backend(found.backend).map(|it| it.socket.to_string()) == socket
            && found.backend_handler == row.backend_handler
        {
            return Ok(found.clone());
        }
        match table
            .backends
            .iter()
            .filter(|it| it.auto_register)
            .find(|it| Some(it.socket.to_string()) == socket)
        {
            Some(backend) if row.origin == AUTO_REGISTERED => {
                Ok(Handler::auto_registered(&row.name, backend.id))
            }
            _ => Err("the file has changed since the last reload; run criswitch reload".to_owned()),
        }
    }

    fn probe(&self, row: &Handler) -> Option<&Probe> {
        probe::probe_of(&self.config.table, &self.probes, row.backend)
    }

    /// The kind that the row names, else the kind of the program that the backend reports, else the kind in the
    /// handler's name.
    fn kind(&self, row: &Handler) -> Option<KnownKind> {
        let (kind, from) = match (row.kind, self.runtime(row)) {
            (Some(kind), _) => (kind, "the row"),
            (None, Some(runtime)) => (runtime.kind?, "the backend's configuration"),
            (None, None) => (policy::kind(row)?, "the handler's name"),
        };
        Some(KnownKind { kind, from })
    }

    /// The configuration of the row's handler, as far as the backend reports it.
    fn runtime(&self, row: &Handler) -> Option<&Runtime> {
        self.probe(row)?
            .as_ref()
            .ok()?
            .runtime(&row.backend_handler)
    }

    /// The features of a row's handler, and the features of the node, which all backends that answer have.
    ///
    /// # Errors
    /// The row's backend does not answer.
    fn features(&self, row: &Handler) -> Result<Vec<&'static str>, String> {
        let found = match self.probe(row) {
            Some(Ok(found)) => found,
            Some(Err(cause)) => {
                let (backend, cause) = (self.backend(row), terminal::plain(cause));
                return Err(format!("no answer from backend {backend}: {cause}"));
            }
            None => return Err("the backend is unknown".to_owned()),
        };
        let mut of_node = found.feature_names();
        for answer in self.probes.iter().flatten() {
            of_node.retain(|feature| answer.feature_names().contains(feature));
        }
        Ok([found.features_of(&row.backend_handler), of_node].concat())
    }

    /// The consequences of a row's backend.
    fn consequences(&self, row: &Row) -> Vec<Cow<'static, str>> {
        consequences::of_backends(&answered(&self.config.table, &self.probes))
            .into_iter()
            .filter(|it| it.backends.contains(&row.backend.as_str()))
            .map(|it| it.what)
            .collect()
    }

    fn backend(&self, row: &Handler) -> &str {
        let backend = self.config.table.backend(row.backend);
        backend.map_or("", |backend| backend.name.as_str())
    }
}

/// Adds a row for each handler that criswitch registers automatically.
fn add_registered(table: &mut Table, probes: &[Probe]) {
    let mut rows: Vec<Handler> = Vec::new();
    for (backend, probe) in table.backends.iter().zip(probes) {
        for name in probe.iter().flat_map(Probed::handler_names) {
            if backend.auto_register
                && table.handler(name).is_none()
                && rows.iter().all(|row| row.name != name)
            {
                rows.push(Handler::auto_registered(name, backend.id));
            }
        }
    }
    table.handlers.extend(rows);
    table.handlers.sort_by(|a, b| a.name.cmp(&b.name));
}
