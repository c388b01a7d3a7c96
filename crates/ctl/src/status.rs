//! `criswitch status`: the backends of the running daemon, its routing table and its last reload.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use clap::Args;
use criswitch_advice::verdict::{is_ready, list_problems};
use criswitch_client::arguments::Daemon;
use criswitch_client::columns::{Paint, columns, columns_if_any, painted};
use criswitch_client::exit::Verdict;
use criswitch_client::output::{self, Encoding, ListOutput};
use criswitch_client::probe::features_of;
use criswitch_client::program::block_on;
use criswitch_client::running::{self, handler_of, owners};
use criswitch_client::terminal::{self, SafeText, plain, print};
use criswitch_config::address::Address;
use criswitch_config::wording::{ago, counted, place, removal, span};
use criswitch_cri::codec::admin::{Backend, Handler, Rejection, Reload, State, reload};
use criswitch_cri::codec::cri::{PodSandbox, RuntimeCondition, StatusResponse, VersionResponse};
use criswitch_cri::facts::{BACKENDS_READY, NEEDED};
use criswitch_cri::rpc::features;
use criswitch_node::collisions;
use serde_json::{Map, Value as Json, json};

use super::health::Health;
use super::version;
use super::watch::watch;

/// The columns of the table of backends.
#[rustfmt::skip]
const HEADER: [&str; 13] = [
    "BACKEND", "STATE", "FOR", "PODS", "CONTAINERS", "LIST AGE", "STATS LATE", "IMAGE LIST AGE", "CGROUPS",
    "TRANSITIONS", "LISTS FROM CACHE", "REPLIES OMITTED", "ITEMS DROPPED",
];
#[rustfmt::skip]
const FAILURES: [&str; 6] = ["RECENT FAILURES", "HANDLER", "BACKEND", "TIMES", "LAST", "ERROR"];
/// The number of columns in the table of backends without `-o wide`.
const NARROW: usize = 7;
/// The most lines of the last reload without `-o wide`.
const RELOAD_LINES: usize = 3;

/// The status of the program that serves on the socket.
enum Served {
    Daemon(Box<DaemonStatus>),
    Foreign(Box<Foreign>),
}

/// The status of a runtime that is not criswitch.
struct Foreign {
    socket: Address,
    status: StatusResponse,
    version: VersionResponse,
}

/// The status of criswitch.
struct DaemonStatus {
    status: StatusResponse,
    state: State,
    /// The pods, or why they cannot be listed.
    pods: anyhow::Result<Vec<PodSandbox>>,
}

/// The arguments of `criswitch status`.
#[derive(Args)]
pub(super) struct StatusArguments {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    output: ListOutput,
    /// Show the status every 2 seconds, until Ctrl-C.
    #[arg(long, short)]
    watch: bool,
}

impl StatusArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        block_on(async {
            if self.watch {
                let show = async || self.shown(&self.ask().await?, Encoding::item);
                return watch(self.output.encoding(), show).await;
            }
            let served = self.ask().await?;
            print(self.shown(&served, Encoding::document)?)?;
            Ok(verdict(&served))
        })
    }

    async fn ask(&self) -> anyhow::Result<Served> {
        let daemon = self.daemon.connect().await?;
        let status = daemon.status().await?;
        let Some(state) = daemon.state_if_criswitch().await? else {
            return Ok(Served::Foreign(Box::new(Foreign {
                version: daemon.version().await.unwrap_or_default(),
                socket: daemon.socket,
                status,
            })));
        };
        let pods = daemon.pods(&state).await;
        Ok(Served::Daemon(Box::new(DaemonStatus {
            status,
            state: daemon.state().await?,
            pods,
        })))
    }

    fn shown(
        &self,
        served: &Served,
        encode: fn(Encoding, Json) -> anyhow::Result<SafeText>,
    ) -> anyhow::Result<SafeText> {
        match (served, self.output.encoding()) {
            (Served::Daemon(daemon), Some(encoding)) => encode(encoding, json(daemon)?),
            (Served::Foreign(other), Some(encoding)) => encode(encoding, foreign_json(other)),
            (Served::Daemon(daemon), None) if self.output.is_names() => {
                Ok(output::name_lines(daemon.state.backends.iter().map(|row| &row.name)).into())
            }
            (Served::Daemon(daemon), None) => text(daemon, self.output.is_wide(), self.watch),
            (Served::Foreign(other), None) if self.output.is_names() => {
                terminal::print_stderr(&foreign(other)?);
                Ok(SafeText::default())
            }
            (Served::Foreign(other), None) => Ok(foreign(other)?.into()),
        }
    }
}

fn verdict(served: &Served) -> Verdict {
    match served {
        Served::Daemon(daemon) if health(daemon).is_serving() => Verdict::Fine,
        Served::Daemon(_) => Verdict::NotFine,
        Served::Foreign(_) => Verdict::NotRunning,
    }
}

fn health(daemon: &DaemonStatus) -> Health {
    let unmet = unmet(&daemon.status)
        .filter(|(kind, _)| is_problem(kind))
        .map(|(kind, message)| format!("{kind} is false: {message}"))
        .collect();
    Health::of(
        &daemon.state,
        unmet,
        daemon.pods.as_ref().err().map(|it| format!("{it:#}")),
    )
}

/// Whether a false condition is a problem rather than a note, such as containerd's note of deprecations.
fn is_problem(kind: &str) -> bool {
    NEEDED.contains(&kind) || kind == BACKENDS_READY
}

fn unmet(status: &StatusResponse) -> impl Iterator<Item = (&str, &str)> {
    conditions(status)
        .filter(|condition| !condition.status)
        .map(|condition| (condition.r#type.as_str(), condition.message.as_str()))
}

fn conditions(status: &StatusResponse) -> impl Iterator<Item = &RuntimeCondition> {
    status.status.iter().flat_map(|status| &status.conditions)
}

/// The text output. With `--watch`, the table of backends comes second, because a screen may have no room for more.
fn text(daemon: &DaemonStatus, is_wide: bool, is_watched: bool) -> anyhow::Result<SafeText> {
    let state = &daemon.state;
    let mut head = [
        version::of_daemon(&state.version, state.pid).into(),
        configuration(state, is_wide).into(),
        backends(state, is_wide)?,
    ];
    if is_watched {
        head.rotate_right(1);
    }
    Ok(SafeText::parts([
        health(daemon).line(),
        SafeText::parts(head),
        places(state)?.into(),
        handlers(daemon, is_wide)?.into(),
        features_of_node(&daemon.status, is_wide).into(),
        failures(state.rejections.iter())?.into(),
        faults(daemon).into(),
        output::name_lines(lost_nri().unwrap_or_default()).into(),
        outlook(state).into(),
    ]))
}

/// The lines about the configuration files and the last reload.
fn configuration(state: &State, is_wide: bool) -> String {
    let its = state.configuration.clone().unwrap_or_default();
    let count = counted(its.files.len(), "file");
    let mut text = format!("configuration {}, {count}\n", its.hash);
    text.extend(its.files.iter().map(|file| format!("  {file}\n")));
    if its.changed && its.problems.is_empty() {
        text += "the files have changed since criswitch loaded them; to apply the changes: criswitch reload\n";
    }
    let last = match state.reloads.as_ref().and_then(|it| it.last.as_ref()) {
        Some(last) => last_reload(last, is_wide),
        None => "no reload since the start\n".to_owned(),
    };
    terminal::wrapped(&text) + &last
}

/// The outcome of the last reload: all lines with `is_wide`, else at most [`RELOAD_LINES`].
fn last_reload(last: &Reload, is_wide: bool) -> String {
    let mut before = format!("last reload {} ago: ", ago(&last.at));
    let lines = match &last.result {
        Some(reload::Result::Problems(problems)) => {
            let mut lines = vec!["rejected, the previous configuration stays in use".to_owned()];
            lines.extend(problems.problems.iter().map(ToString::to_string));
            lines
        }
        Some(reload::Result::Changes(changes)) => changes.lines.clone(),
        None => vec!["no outcome".to_owned()],
    };
    let most = if is_wide { lines.len() } else { RELOAD_LINES };
    let mut text = String::new();
    for line in lines.iter().take(most) {
        text += &terminal::wrapped_first(&format!("{before}{}", line.replace('\n', "\n  ")));
        before = "  ".to_owned();
    }
    match lines.len().saturating_sub(most) {
        0 => text,
        more => format!("{text}  ... {} (-o wide)\n", counted(more, "more line")),
    }
}

fn backends(state: &State, is_wide: bool) -> anyhow::Result<SafeText> {
    let rows = state.backends.iter().map(|backend| {
        [
            backend.name.clone(),
            state_of(backend),
            ago(&backend.since),
            number(backend.pods),
            number(backend.containers),
            seconds(backend.stale_list_age_seconds),
            seconds(backend.stats_late_seconds),
            seconds(backend.stale_image_list_age_seconds),
            backend.cgroup_driver.clone().unwrap_or_default(),
            backend.transitions.to_string(),
            backend.lists_from_cache.to_string(),
            backend.replies_omitted.to_string(),
            backend.dropped_items.to_string(),
        ]
    });
    let width = if is_wide { HEADER.len() } else { NARROW };
    painted(
        HEADER.split_at(width).0,
        rows,
        |column, cell| match column {
            1 if cell == "ready" => Some(Paint::Good),
            1 if cell.starts_with("ready") => Some(Paint::Odd),
            1 => Some(Paint::Bad),
            5..=7 if cell != "-" => Some(Paint::Bad),
            _ => None,
        },
    )
}

/// The number of seconds as text; empty if the number is unknown.
fn seconds(seconds: Option<u64>) -> String {
    seconds
        .map(|it| span(Duration::from_secs(it)))
        .unwrap_or_default()
}

/// The number as text; empty if the number is unknown.
fn number(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn state_of(backend: &Backend) -> String {
    let retiring = if backend.retiring { ", retiring" } else { "" };
    let new = if backend.joined { "" } else { ", new" };
    format!("{}{retiring}{new}", backend.state)
}

/// The runtime and the socket of each backend.
fn places(state: &State) -> anyhow::Result<String> {
    let rows = state.backends.iter().map(|backend| {
        let runtime = format!("{} {}", backend.runtime, backend.version);
        [&*backend.name, runtime.trim(), &backend.socket].map(str::to_owned)
    });
    columns(&["BACKEND", "RUNTIME", "SOCKET"], rows)
}

fn handlers(daemon: &DaemonStatus, is_wide: bool) -> anyhow::Result<String> {
    let state = &daemon.state;
    let owners = owners(state);
    let rows = state.handlers.iter().map(|row| {
        let is_default = row.name == state.default_handler;
        [
            row.name.clone() + if is_default { " (default)" } else { "" },
            place(&row.backend, &row.name, &row.backend_handler),
            number(pods_of(row, &owners, daemon)),
            features(&daemon.status, &row.name, is_wide),
            origin(&row.origin, is_wide),
        ]
    });
    columns(&["HANDLER", "BACKEND", "PODS", "FEATURES", "ORIGIN"], rows)
}

/// The number of a handler's pods on its current backend. Older pods may be on other backends.
fn pods_of(row: &Handler, owners: &HashMap<&str, &str>, daemon: &DaemonStatus) -> Option<u64> {
    Some(
        daemon
            .pods
            .as_ref()
            .ok()?
            .iter()
            .filter(|pod| {
                handler_of(&daemon.state, owners, pod) == row.name
                    && owners.get(pod.id.as_str()) == Some(&row.backend.as_str())
            })
            .count() as u64,
    )
}

/// The origin of a row. Without `is_wide`, the file name and line, after `conf.d/` if the file is in that directory.
fn origin(origin: &str, is_wide: bool) -> String {
    let mut names = origin.rsplit(std::path::is_separator);
    match (names.next(), names.next()) {
        (Some(file), Some("conf.d")) if !is_wide => format!("conf.d/{file}"),
        (Some(file), _) if !is_wide => file.to_owned(),
        _ => origin.to_owned(),
    }
}

fn features(status: &StatusResponse, handler: &str, is_wide: bool) -> String {
    features_of(&status.runtime_handlers, handler)
        .into_iter()
        .map(|feature| match feature {
            "recursive_read_only_mounts" if !is_wide => "rro",
            "user_namespaces" if !is_wide => "userns",
            "cgroup_namespaces" if !is_wide => "cgroupns",
            feature => feature,
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The line about the features that do not depend on the handler; empty without `is_wide`, or if there are none.
fn features_of_node(status: &StatusResponse, is_wide: bool) -> String {
    let names = node_features(status);
    if names.is_empty() || !is_wide {
        return String::new();
    }
    format!("features of the node: {}\n", names.join(" "))
}

fn node_features(status: &StatusResponse) -> Vec<&'static str> {
    features::of_runtime(&status.features.unwrap_or_default())
}

/// A table of pods that were not created, the newest failure first; empty if there are none.
pub(super) fn failures<'a>(
    rejections: impl DoubleEndedIterator<Item = &'a Rejection>,
) -> anyhow::Result<String> {
    let rows = rejections.rev().map(|pod| {
        [
            format!("{}/{}", pod.namespace, pod.name),
            asked(pod).unwrap_or_default().to_owned(),
            pod.backend.clone().unwrap_or_default(),
            pod.times.to_string(),
            ago(&pod.last),
            format!("{}: {}", pod.code, pod.error),
        ]
    });
    columns_if_any(&FAILURES, rows)
}

/// The handler that a pod asked for, else the row that the pod got.
pub(super) fn asked(pod: &Rejection) -> Option<&str> {
    pod.asked_handler.as_deref().or(pod.handler.as_deref())
}

/// Lines for the conditions that are false, and for the reason why pods cannot be listed.
fn faults(daemon: &DaemonStatus) -> String {
    let conditions = unmet(&daemon.status).map(|(kind, message)| {
        let note = if is_problem(kind) { "" } else { "note: " };
        format!("{note}{kind} is false: {message}")
    });
    // The first line of the output already shows problems of lists.
    let lists = daemon
        .pods
        .as_ref()
        .err()
        .filter(|_| list_problems(&daemon.state).is_empty())
        .map(|error| format!("pods cannot be listed: {error:#}"));
    terminal::wrapped(&terminal::text_of(conditions.chain(lists)))
}

/// Lines about the removal of backends that no file names, about lists that would fail after a restart, and about
/// labels that cannot be written.
fn outlook(state: &State) -> String {
    let backends = state.backends.iter();
    let unnamed = backends.clone().filter(|backend| backend.unnamed);
    let removals = unnamed.map(|backend| {
        let (name, removal) = (&backend.name, removal(&backend.name));
        if is_ready(backend) {
            return removal;
        }
        format!("{removal}; if its runtime is gone for good or now serves another socket: criswitch forget {name}")
    });
    let labels = state.node_labels.iter().filter_map(|labels| {
        let cause = labels.file_problem.as_ref()?;
        let file = labels.file.as_deref().unwrap_or_default();
        Some(format!(
            "the labels of the node cannot be written to {file}: {cause}"
        ))
    });
    removals
        .chain(backends.clone().filter_map(|it| it.restart_problem.clone()))
        .chain(labels)
        .chain(backends.clone().filter_map(orphans))
        .chain(backends.filter_map(lacking))
        .map(|line| terminal::wrapped_first(&line))
        .collect()
}

/// A line about the containers for which the backend lists no pod, with the first of these containers.
fn orphans(backend: &Backend) -> Option<String> {
    let (name, first) = (&backend.name, backend.orphans.first()?);
    let count = counted(backend.orphans.len(), "container");
    Some(format!(
        "backend {name} lists {count} without a pod, for example {first}; remove with: crictl rm"
    ))
}

/// A line about the RPCs that a backend lacks.
fn lacking(backend: &Backend) -> Option<String> {
    let (name, rpcs) = (&backend.name, &backend.lacking_rpcs);
    (!rpcs.is_empty()).then(|| format!("backend {name} lacks {}", rpcs.join(", ")))
}

fn foreign(other: &Foreign) -> anyhow::Result<String> {
    let rows = conditions(&other.status).map(|it| {
        let (kind, message) = (it.r#type.clone(), it.message.clone());
        [kind, it.status.to_string(), message]
    });
    let conditions = columns(&["CONDITION", "STATUS", "MESSAGE"], rows)?;
    let (name, version) = (&other.version.runtime_name, &other.version.runtime_version);
    let name = plain(&format!("{name} {version}"));
    let who = match name.trim() {
        "" => "another runtime",
        name => name,
    };
    let head = terminal::wrapped_first(&running::foreign(&other.socket, who));
    Ok(format!("{head}\n{conditions}"))
}

fn foreign_json(other: &Foreign) -> Json {
    let version = &other.version;
    let conditions = conditions(&other.status)
        .map(|it| json!({ "type": it.r#type, "status": it.status, "message": it.message }));
    json!({
        "criswitch": false,
        "runtime": version.runtime_name,
        "version": version.runtime_version,
        "conditions": conditions.collect::<Vec<_>>(),
    })
}

/// The JSON output: the daemon's state and health, the features of the node, and the pods and features of each handler.
fn json(daemon: &DaemonStatus) -> anyhow::Result<Json> {
    let owners = owners(&daemon.state);
    let mut json = serde_json::to_value(&daemon.state)?;
    let health = health(daemon);
    if let Some(json) = json.as_object_mut() {
        json.remove("stoppedContainers");
        json.insert("criswitch".to_owned(), json!(true));
        json.insert("health".to_owned(), health.json());
        json.insert("problems".to_owned(), json!(health.problems()));
        json.insert("features".to_owned(), json!(node_features(&daemon.status)));
        json.insert("lostNriSockets".to_owned(), json!(lost_nri().ok()));
    }
    for row in objects(&mut json, "backends") {
        row.remove("podIds");
        row.remove("defaultPodIds");
    }
    for (row, handler) in objects(&mut json, "handlers").zip(&daemon.state.handlers) {
        row.insert("pods".to_owned(), json!(pods_of(handler, &owners, daemon)));
        row.insert(
            "features".to_owned(),
            json!(features_of(&daemon.status.runtime_handlers, &handler.name)),
        );
    }
    Ok(json)
}

fn lost_nri() -> io::Result<Vec<String>> {
    Ok(collisions::lost_nri()?
        .iter()
        .map(ToString::to_string)
        .collect())
}

fn objects<'a>(json: &'a mut Json, list: &str) -> impl Iterator<Item = &'a mut Map<String, Json>> {
    json.get_mut(list)
        .and_then(Json::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Json::as_object_mut)
}
