//! The output of `criswitch check`: the settings with their defaults, and what the backends report.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::Args;
use criswitch_client::arguments::{File, directory};
use criswitch_client::columns::{columns, columns_if_any};
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, ListOutput};
use criswitch_client::probe::{
    self, Probe, answered, driver_of, probe_of, probed_json, reported, with_common_pods,
};
use criswitch_client::terminal;
use criswitch_client::terminal::print;
use criswitch_config::disk;
use criswitch_config::keys::{self, ConfigValue};
use criswitch_config::wording::{self, counted};
use criswitch_config::{
    Config, Handler, KEYS, Key, Problem, Problems, RuntimeKind, Table, UNIT_DIRECTORIES,
    duration_text,
};
use criswitch_node::collisions;
use criswitch_node::machine::{self, Node};
use serde_json::{Value, json};

use super::consequences::{self, Consequence};
use super::daemon;
use super::features;

/// The columns of the table of backends.
#[rustfmt::skip]
const BACKENDS: [&str; 7] =
    ["BACKEND", "HANDLERS", "LIST TIMEOUT", "STATS TIMEOUT", "AUTO-REGISTER", "SOCKET", "ORIGIN"];
/// The line of a problem is shown below the problem if the line has fewer characters than this.
const WIDEST: usize = 76;

/// The notes of the daemon about a configuration, or why it rejects the configuration.
type DaemonAnswer = Result<Vec<String>, String>;

/// The arguments of `criswitch check`.
#[derive(Args)]
pub(super) struct CheckArguments {
    #[command(flatten)]
    file: File,
    /// The configuration file, like --config FILE.
    #[arg(value_name = "FILE")]
    named: Option<PathBuf>,
    #[command(flatten)]
    output: ListOutput,
    /// Print the JSON Schema of the configuration, for editors, and check nothing.
    #[arg(long, exclusive = true)]
    schema: bool,
    /// Also ask each backend for its version, conditions and handlers.
    #[arg(long)]
    probe: bool,
    /// Also check this node: the settings of the kubelet and crictl, the sockets, the cgroup drivers, and paths that
    /// several runtimes share.
    #[arg(long)]
    node: bool,
    /// Check the node whose root file system is mounted at DIR, such as an image. --config is not relative to DIR.
    #[arg(long, value_name = "DIR", default_value = "/", requires = "node", value_parser = directory)]
    root: PathBuf,
}

impl CheckArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        if self.schema {
            return print(format!("{:#}\n", keys::schema()));
        }
        let path = self.named.as_ref().unwrap_or(&self.file.path);
        let config = match Config::load(path) {
            Err(problems) if self.output.encoding().is_none() => {
                terminal::print_stderr(&problems_text(&problems));
                return Ok(Verdict::WrongConfiguration);
            }
            Err(problems) => return Err(problems.into()),
            Ok(config) => config,
        };
        let is_asked = self.probe || self.node && self.root == Path::new("/");
        let answers = is_asked.then(|| probe::probe(&config)).transpose()?;
        let node = self
            .node
            .then(|| machine::look(&config, answers.as_deref(), self.probe, &self.root));
        let probes = answers.as_deref().filter(|_| self.probe);
        let daemon = daemon::check(&config.path);
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(json(&config, &daemon, probes, node.as_ref()))?,
            None if self.output.is_names() => {
                let problems = problems(&config, &daemon, probes, node.as_ref());
                terminal::print_stderr(&output::name_lines(
                    problems.iter().filter_map(|it| it["what"].as_str()),
                ));
                handler_names(&config).into()
            }
            None => text(
                &config,
                &daemon,
                probes,
                node.as_ref(),
                self.output.is_wide(),
            )?
            .into(),
        })?;
        Ok(Verdict::of(
            faults(&config, &daemon, probes, node.as_ref()) == 0,
        ))
    }
}

/// The text output for a valid configuration.
fn text(
    config: &Config,
    daemon: &DaemonAnswer,
    probes: Option<&[Probe]>,
    node: Option<&Node>,
    is_wide: bool,
) -> anyhow::Result<String> {
    let notes = notes(config, daemon);
    let lines = notes.iter().chain(daemon.as_ref().err());
    let mut parts = vec![
        files(config),
        settings(config)?,
        handlers(&config.table, is_wide)?,
        backends(&config.table, is_wide)?,
        terminal::wrapped(&output::name_lines(lines)),
    ];
    if let Some(probes) = probes {
        parts.push(answers(&config.table, probes)?);
        parts.push(conditions(&config.table, probes)?);
        let lines = [
            wrong(&config.table, probes),
            features::lines(&config.table, probes),
            features::unknown_lines(&config.table, probes),
            consequences::of_backends(&answered(&config.table, probes))
                .iter()
                .map(Consequence::line)
                .collect(),
            lacking_optional(&config.table, probes),
            unanswered(&config.table, probes),
        ];
        parts.extend(lines.map(|lines| terminal::wrapped(&output::name_lines(lines))));
    }
    parts.extend(node.map(Node::text).transpose()?);
    let unanswered = probes.map_or(0, |probes| unanswered(&config.table, probes).len());
    parts.push(match daemon {
        Ok(_) => verdict(
            notes.len() + unanswered,
            faults(config, daemon, probes, node),
        ),
        Err(_) => "configuration is not valid for the daemon\n".to_owned(),
    });
    Ok(terminal::paragraphs(parts))
}

/// The faults that the probes found.
fn probe_faults(table: &Table, probes: &[Probe]) -> Vec<String> {
    [
        backend_faults,
        missing_handlers,
        mismatched_kinds,
        differing_cgroup_drivers,
        common_pods,
        shared,
    ]
    .map(|faults| faults(table, probes))
    .concat()
}

/// The problems that the probes found: the faults and the warnings.
fn wrong(table: &Table, probes: &[Probe]) -> Vec<String> {
    [probe_faults, unexpected_users]
        .map(|wrong| wrong(table, probes))
        .concat()
}

/// The problems that the daemon, the probes and the check of the machine found, as JSON. `-o json`, `-o yaml` and
/// `-o name` use them.
fn problems(
    config: &Config,
    daemon: &DaemonAnswer,
    probes: Option<&[Probe]>,
    node: Option<&Node>,
) -> Vec<Value> {
    let probes = probes.into_iter();
    probes
        .flat_map(|probes| wrong(&config.table, probes))
        .chain(daemon.clone().err())
        .map(|wrong| output::problem(&wrong))
        .chain(node.into_iter().flat_map(Node::problems))
        .collect()
}

/// Warnings about a configuration that is valid.
fn notes(config: &Config, daemon: &DaemonAnswer) -> Vec<String> {
    [
        config.notes.clone(),
        config.advice(),
        daemon.clone().unwrap_or_default(),
    ]
    .concat()
}

/// The number of problems of the daemon, the backends and the node. `None` means not checked. An unexpected user of a
/// socket is only a warning, which does not count.
fn faults(
    config: &Config,
    daemon: &DaemonAnswer,
    probes: Option<&[Probe]>,
    node: Option<&Node>,
) -> usize {
    let of_daemon = usize::from(daemon.is_err());
    let of_backends = probes.map_or(0, |probes| probe_faults(&config.table, probes).len());
    of_daemon + of_backends + node.map_or(0, |node| node.problems().len())
}

/// The last line of the text output for a valid configuration.
fn verdict(warnings: usize, faults: usize) -> String {
    let with = match warnings {
        0 => String::new(),
        warnings => format!(", with {}", counted(warnings, "warning")),
    };
    let but = match faults {
        0 => String::new(),
        faults => format!("; {} on this node", counted(faults, "problem")),
    };
    format!("configuration is valid{with}{but}\n")
}

/// The text output for a configuration that is not valid.
pub(super) fn problems_text(problems: &Problems) -> String {
    let count = counted(problems.len(), "problem");
    let shown = if std::io::stderr().is_terminal() {
        problems.iter().map(with_line).collect()
    } else {
        format!("{problems}\n")
    };
    format!("{shown}configuration is not valid: {count}\n")
}

/// The problem, and below it the line of the file with a mark at the column. A line that a terminal would wrap is
/// omitted.
fn with_line(problem: &Problem) -> String {
    let place = &problem.place;
    let bytes = if place.is_file {
        Vec::new()
    } else {
        disk::bytes(&place.path).unwrap_or_default()
    };
    let text = String::from_utf8_lossy(&bytes);
    let line = text.lines().nth(place.line - 1).unwrap_or_default();
    let (line, before) = (line.replace('\t', " "), place.column - 1);
    if (1..WIDEST).contains(&line.chars().count()) {
        format!("{problem}\n    {line}\n    {:before$}^\n", "")
    } else {
        format!("{problem}\n")
    }
}

pub(super) fn handler_names(config: &Config) -> String {
    output::name_lines(config.table.handlers.iter().map(|row| &row.name))
}

/// The JSON output. The key of a duration or size ends with the unit.
fn json(
    config: &Config,
    daemon: &DaemonAnswer,
    probes: Option<&[Probe]>,
    node: Option<&Node>,
) -> Value {
    let table = &config.table;
    let handlers = table.handlers.iter().map(|row| {
        json!({
            "name": row.name,
            "backend": backend_of(table, row),
            "backendHandler": row.backend_handler,
            "origin": row.origin.as_ref().map(ToString::to_string),
            "reported": probes.and_then(|probes| reported(table, row, probes)),
        })
    });
    let backends = table.backends.iter().map(|backend| {
        let rest = json!({
            "name": backend.name,
            "origin": backend.origin.as_ref().map(ToString::to_string),
            "probe": probes.and_then(|probes| probe_of(table, probes, backend.id)).map(probe_json),
        });
        with_keys(rest, |key| key.value_of(backend))
    });
    // The name of a file may be invalid UTF-8, which JSON cannot contain.
    let files = config.files.iter().map(|file| file.display().to_string());
    let rest = json!({
        "problems": problems(config, daemon, probes, node),
        "moreProblems": 0,
        "notes": notes(config, daemon),
        "files": files.collect::<Vec<_>>(),
        "hash": config.hash,
        "handlers": handlers.collect::<Vec<_>>(),
        "backends": backends.collect::<Vec<_>>(),
        "lackingFeatures": probes.map(|probes| features::lacks(table, probes)),
        "consequences": probes.map(|probes| consequences::of_backends(&answered(table, probes))),
        "node": node.map(Node::json),
    });
    with_keys(rest, |key| key.value(config))
}

/// Adds a field to `object` for each configuration key that has a `value` here.
fn with_keys(mut object: Value, value: impl Fn(&Key) -> Option<ConfigValue>) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.extend(KEYS.iter().filter_map(|key| Some(key.json(value(key)?))));
    }
    object
}

/// The files of the configuration, in the order in which they were read.
fn files(config: &Config) -> String {
    config
        .files
        .iter()
        .map(|file| format!("read {}\n", file.display()))
        .collect()
}

fn settings(config: &Config) -> anyhow::Result<String> {
    let rows = KEYS.iter().filter_map(|key| {
        let mut value = key.value(config)?.to_string();
        if value.is_empty() {
            value.extend(default_directory(config, key.name));
        }
        Some([key.name.to_owned(), value])
    });
    columns(&["KEY", "VALUE"], rows)
}

/// The directory that criswitch uses if the key is not set: the one in the shipped systemd unit, else the default.
/// `None` if the key does not name a directory.
fn default_directory(config: &Config, key: &str) -> Option<String> {
    let [runtime, state] = UNIT_DIRECTORIES;
    let default = config.directories([None, None]);
    let (of_unit, own) = match key {
        "runtime_dir" => (runtime, default.runtime),
        "state_dir" => (state, default.state),
        _ => return None,
    };
    Some(if cfg!(unix) {
        format!("{of_unit} with systemd, else {}", own.display())
    } else {
        own.display().to_string()
    })
}

fn handlers(table: &Table, is_wide: bool) -> anyhow::Result<String> {
    let rows = table.handlers.iter().map(|row| {
        let called = match row.backend_handler.as_str() {
            "" => "(its own default)",
            name => name,
        };
        [
            row.name.clone(),
            backend_of(table, row),
            called.to_owned(),
            origin(row.origin.as_ref()),
        ]
    });
    let header = ["HANDLER", "BACKEND", "BACKEND HANDLER", "ORIGIN"];
    columns(shown(&header, is_wide), rows)
}

/// The columns to show: only a wide table has `ORIGIN`, the last column.
fn shown<'a>(header: &'a [&'a str], is_wide: bool) -> &'a [&'a str] {
    match header.split_last() {
        Some((_, narrow)) if !is_wide => narrow,
        _ => header,
    }
}

fn origin(origin: Option<&impl ToString>) -> String {
    origin.map(ToString::to_string).unwrap_or_default()
}

fn backends(table: &Table, is_wide: bool) -> anyhow::Result<String> {
    let rows = table.backends.iter().map(|backend| {
        let handlers = table.handlers.iter().filter(|it| it.backend == backend.id);
        [
            backend.name.clone(),
            handlers.count().to_string(),
            duration_text(backend.list_timeout),
            duration_text(backend.stats_timeout),
            if backend.auto_register { "yes" } else { "no" }.to_owned(),
            backend.socket.to_string(),
            origin(backend.origin.as_ref()),
        ]
    });
    columns(shown(&BACKENDS, is_wide), rows)
}

fn answers(table: &Table, probes: &[Probe]) -> anyhow::Result<String> {
    let rows = table.backends.iter().zip(probes).map(|(backend, probe)| {
        // A line below the table has the cause of a failure.
        let [runtime, driver, handlers] = match probe {
            Ok(found) => [
                format!("{} {}", found.runtime, found.version),
                found.cgroup_driver.unwrap_or_default().to_owned(),
                found.handler_names().join(" "),
            ],
            Err(_) => ["probe failed", "", ""].map(str::to_owned),
        };
        [backend.name.clone(), runtime, driver, handlers]
    });
    columns(&["BACKEND", "RUNTIME", "CGROUPS", "HANDLERS"], rows)
}

fn conditions(table: &Table, probes: &[Probe]) -> anyhow::Result<String> {
    let rows = answered(table, probes)
        .into_iter()
        .flat_map(|(backend, found)| found.conditions.iter().map(move |it| (backend, it)))
        .map(|(backend, it)| {
            let why = format!("{} {}", it.reason, it.message);
            [backend, &it.r#type, &it.status.to_string(), why.trim()].map(str::to_owned)
        });
    columns_if_any(&["BACKEND", "CONDITION", "STATUS", "REASON"], rows)
}

/// Why backends can start no pods.
fn backend_faults(table: &Table, probes: &[Probe]) -> Vec<String> {
    probe::faults(&table.backends, probes)
        .map(|(place, what)| format!("{place}: {what}"))
        .collect()
}

/// The optional RPCs that each backend lacks.
fn lacking_optional(table: &Table, probes: &[Probe]) -> Vec<String> {
    answered(table, probes)
        .into_iter()
        .map(|(name, found)| {
            let mut rpcs = Vec::from_iter(found.lacking.iter().copied());
            rpcs.retain(|rpc| !found.lacking_required().contains(rpc));
            (name, rpcs)
        })
        .filter(|(_, rpcs)| !rpcs.is_empty())
        .map(|(name, rpcs)| format!("backend {name:?} lacks {}", rpcs.join(", ")))
        .collect()
}

/// The RPCs that each backend did not answer, so that it is unknown whether it lacks them.
fn unanswered(table: &Table, probes: &[Probe]) -> Vec<String> {
    answered(table, probes)
        .into_iter()
        .filter(|(_, found)| !found.unanswered.is_empty())
        .map(|(name, found)| {
            let rpcs = Vec::from_iter(found.unanswered.iter().copied()).join(", ");
            format!("backend {name:?} did not answer {rpcs} in time or broke off, so it is unknown whether it lacks them")
        })
        .collect()
}

fn missing_handlers(table: &Table, probes: &[Probe]) -> Vec<String> {
    table
        .handlers
        .iter()
        .filter_map(|row| Some((row, probe::missing(table, row, probes)?)))
        .map(|(row, what)| format!("handler {:?}: {what}", row.name))
        .collect()
}

/// The rows with a `kind` that differs from the program that the backend starts. runc and crun differ in no limit that
/// matters here, and a wrapper of one may start the other.
fn mismatched_kinds(table: &Table, probes: &[Probe]) -> Vec<String> {
    let plain = [RuntimeKind::Runc, RuntimeKind::Crun];
    table
        .handlers
        .iter()
        .filter_map(|row| {
            let kind = row.kind.filter(|kind| *kind != RuntimeKind::Other)?;
            let probed = probe_of(table, probes, row.backend)?.as_ref().ok()?;
            let started = probed.runtime(&row.backend_handler)?.kind?;
            let is_same = kind == started || plain.contains(&kind) && plain.contains(&started);
            (!is_same).then(|| (&row.name, kind, started.title()))
        })
        .map(|(name, kind, started)| {
            format!(
                "handler {name:?}: its row has kind = {:?}, but the backend starts {started}; try removing `kind`",
                kind.as_ref()
            )
        })
        .collect()
}

fn differing_cgroup_drivers(table: &Table, probes: &[Probe]) -> Vec<String> {
    let ours = driver_of(table, probes, table.default.backend);
    probe::differing_cgroup_drivers("the default backend", ours, &answered(table, probes))
        .into_iter()
        .map(|(name, what)| format!("backend {name:?} {what}"))
        .collect()
}

/// The paths that the backends' runtimes share outside of the CRI.
fn shared(table: &Table, probes: &[Probe]) -> Vec<String> {
    collisions::all(
        &answered(table, probes),
        table.backends.iter().map(|backend| &backend.socket),
    )
    .iter()
    .map(ToString::to_string)
    .collect()
}

fn common_pods(table: &Table, probes: &[Probe]) -> Vec<String> {
    with_common_pods(table, probes)
        .into_iter()
        .map(|(one, other, pods)| {
            format!(
                "backends {one:?} and {other:?} both list the same {}; if both sockets belong to one runtime, configure one \
                 backend for both",
                counted(pods, "pod")
            )
        })
        .collect()
}

fn unexpected_users(table: &Table, probes: &[Probe]) -> Vec<String> {
    table
        .backends
        .iter()
        .zip(probes)
        .filter_map(|(backend, probe)| Some((backend, probe.as_ref().ok()?.unexpected_user?)))
        .map(|(backend, uid)| {
            format!(
                "{}: {}",
                probe::place(backend),
                wording::unexpected_user(uid)
            )
        })
        .collect()
}

fn probe_json(probe: &Probe) -> Value {
    match probe {
        Err(cause) => json!({ "answers": false, "cause": cause }),
        Ok(found) => probed_json(found),
    }
}

fn backend_of(table: &Table, row: &Handler) -> String {
    table
        .backend(row.backend)
        .map(|backend| backend.name.clone())
        .unwrap_or_default()
}
