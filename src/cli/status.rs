//! `criswitch status`: what the switch that runs says of its backends, its table and its last reload.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use criswitch::codec::admin::{Backend, Configuration, Handler, Reload, State, reload};
use criswitch::codec::cri::{PodSandbox, RuntimeCondition, StatusResponse, VersionResponse};
use criswitch::config::Problems;
use criswitch::config::address::Address;
use criswitch::config::wording::{counted, place, removal};
use criswitch::fanout::status::{BACKENDS_READY, NEEDED};
use serde_json::{Map, Value as Json, json};

use super::columns::{Paint, columns, painted};
use super::health::{Health, Level, list_problems};
use super::probe::features_of;
use super::running::owners;
use super::terminal::{self, Shown, plain};
use super::{Status, Verdict, is_read, print};

/// Between two looks with `--watch`.
const PERIOD: Duration = Duration::from_secs(2);

/// What the one on the socket says.
enum Served {
    Daemon(Box<DaemonStatus>),
    Foreign(Box<Foreign>),
}

/// What another runtime says.
struct Foreign {
    socket: Address,
    status: StatusResponse,
    version: VersionResponse,
}

/// What the daemon says.
struct DaemonStatus {
    status: StatusResponse,
    state: State,
    /// Or why they cannot be listed.
    pods: anyhow::Result<Vec<PodSandbox>>,
}

impl Status {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async {
            if self.watch {
                return self.watch().await;
            }
            let answer = match self.ask().await {
                Ok(answer) => answer,
                Err(error) if error.is::<Problems>() => return Err(error),
                Err(error) => {
                    terminal::complain(&format!("criswitch: {error:#}\n"));
                    return Ok(Verdict::NotRunning);
                }
            };
            print(self.text(&answer)?)?;
            Ok(verdict(&answer))
        })
    }

    /// As long as somebody reads it.
    async fn watch(&self) -> anyhow::Result<Verdict> {
        loop {
            let asked = self.ask().await;
            let asked = match asked {
                // What the files say does not get better by a restart.
                Err(error) if error.is::<Problems>() => return Err(error),
                asked => asked,
            };
            let text = match &asked {
                Ok(answer) => self.text(answer)?,
                Err(_) => Shown::default(),
            };
            if !is_read(&text.alone())? {
                return Ok(Verdict::Fine);
            }
            // It is being restarted, perhaps. Programs read only what it is.
            if let Err(error) = asked {
                terminal::complain(&format!("{error:#}\n"));
            }
            tokio::time::sleep(PERIOD).await;
        }
    }

    async fn ask(&self) -> anyhow::Result<Served> {
        let daemon = self.daemon.connect().await?;
        let status = daemon.status().await?;
        let Some(state) = daemon.state_if_own().await? else {
            return Ok(Served::Foreign(Box::new(Foreign {
                version: daemon.version().await.unwrap_or_default(),
                socket: daemon.socket,
                status,
            })));
        };
        let pods = daemon.pods(&state).await;
        let state = daemon.state().await?;
        Ok(Served::Daemon(Box::new(DaemonStatus {
            status,
            state,
            pods,
        })))
    }

    fn text(&self, answer: &Served) -> anyhow::Result<Shown> {
        Ok(match answer {
            Served::Daemon(daemon) if self.json => format!("{:#}\n", json(daemon)?).into(),
            Served::Daemon(daemon) => text(daemon)?,
            Served::Foreign(other) if self.json => format!("{:#}\n", foreign_json(other)).into(),
            Served::Foreign(other) => foreign(other)?.into(),
        })
    }
}

/// Another runtime on the socket is not criswitch.
fn verdict(answer: &Served) -> Verdict {
    match answer {
        Served::Daemon(daemon) if health(daemon).level == Level::Serving => Verdict::Fine,
        Served::Daemon(_) => Verdict::NotFine,
        Served::Foreign(_) => Verdict::NotRunning,
    }
}

fn health(daemon: &DaemonStatus) -> Health {
    let unmet = unmet(&daemon.status).filter(|(kind, _)| is_problem(kind));
    let unmet = unmet.map(|(kind, message)| format!("{kind} is false: {message}"));
    let unlisted = daemon.pods.as_ref().err();
    Health::of(
        &daemon.state,
        unmet.collect(),
        unlisted.map(|error| format!("{error:#}")),
    )
}

/// Whether a condition that is false is more than a note, such as containerd's of deprecations.
fn is_problem(kind: &str) -> bool {
    NEEDED.contains(&kind) || kind == BACKENDS_READY
}

fn unmet(status: &StatusResponse) -> impl Iterator<Item = (&str, &str)> {
    let unmet = conditions(status).filter(|condition| !condition.status);
    unmet.map(|condition| (condition.r#type.as_str(), condition.message.as_str()))
}

fn conditions(status: &StatusResponse) -> impl Iterator<Item = &RuntimeCondition> {
    status.status.iter().flat_map(|status| &status.conditions)
}

fn text(daemon: &DaemonStatus) -> anyhow::Result<Shown> {
    let state = &daemon.state;
    Ok(Shown::parts([
        health(daemon).line(),
        format!("criswitch {}, process {}\n", state.version, state.pid).into(),
        configuration(state).into(),
        backends(state)?,
        places(state)?.into(),
        handlers(daemon)?.into(),
        faults(daemon).into(),
        outlook(state).into(),
    ]))
}

/// The files and the last reload.
fn configuration(state: &State) -> String {
    let Configuration { hash, files, .. } = state.configuration.clone().unwrap_or_default();
    let mut text = format!("configuration {hash}, {}\n", counted(files.len(), "file"));
    for file in &files {
        text += &format!("  {file}\n");
    }
    let last = match state
        .reloads
        .as_ref()
        .and_then(|reloads| reloads.last.as_ref())
    {
        Some(last) => last_reload(last),
        None => "no reload since the start\n".to_owned(),
    };
    terminal::wrapped(&text) + &last
}

fn last_reload(last: &Reload) -> String {
    let mut before = format!("last reload {} ago: ", ago(&last.at));
    let lines = match &last.result {
        Some(reload::Result::Problems(problems)) => {
            let rejected = ["rejected, the previous configuration stays in use"].into_iter();
            rejected
                .chain(problems.lines())
                .map(str::to_owned)
                .collect()
        }
        Some(reload::Result::Changes(changes)) => changes.lines.clone(),
        None => vec!["no outcome".to_owned()],
    };
    let mut text = String::new();
    for line in lines {
        let line = line.replace('\n', "\n  ");
        text += &terminal::wrapped_first(&format!("{before}{line}"));
        before = "  ".to_owned();
    }
    text
}

fn backends(state: &State) -> anyhow::Result<Shown> {
    let rows = state.backends.iter().map(|backend| {
        let seconds = |seconds: Option<u64>| {
            let time = seconds.map(Duration::from_secs);
            time.map(span).unwrap_or_default()
        };
        [
            backend.name.clone(),
            state_of(backend),
            ago(&backend.since),
            number(backend.pods),
            number(backend.containers),
            seconds(backend.stale_list_age_seconds),
            seconds(backend.stats_late_seconds),
        ]
    });
    let paint = |column: usize, cell: &str| match (column, cell) {
        (1, "ready") => Some(Paint::Good),
        (1, cell) if cell.starts_with("ready") => Some(Paint::Odd),
        (1, _) => Some(Paint::Bad),
        (5 | 6, cell) if cell != "-" => Some(Paint::Bad),
        _ => None,
    };
    let header = [
        "BACKEND",
        "STATE",
        "SINCE",
        "PODS",
        "CONTAINERS",
        "LIST AGE",
        "STATS LATE",
    ];
    painted(&header, rows, paint)
}

/// Nothing if nobody knows.
fn number(number: Option<u64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn state_of(backend: &Backend) -> String {
    let mut state = backend.state.clone();
    if backend.retiring {
        state += ", retiring";
    }
    if !backend.joined {
        state += ", new";
    }
    state
}

/// Where backends are, and what.
fn places(state: &State) -> anyhow::Result<String> {
    let rows = state.backends.iter().map(|backend| {
        let runtime = format!("{} {}", backend.runtime, backend.version);
        [
            backend.name.clone(),
            runtime.trim().to_owned(),
            backend.socket.clone(),
        ]
    });
    columns(&["BACKEND", "RUNTIME", "SOCKET"], rows)
}

fn handlers(daemon: &DaemonStatus) -> anyhow::Result<String> {
    let state = &daemon.state;
    let owners = owners(state);
    let rows = state.handlers.iter().map(|row| {
        let name = match row.name == state.default_handler {
            true => format!("{} (default)", row.name),
            false => row.name.clone(),
        };
        [
            name,
            place(&row.backend, &row.name, &row.backend_handler),
            number(pods_of(row, &owners, daemon)),
            short_features(&daemon.status, &row.name),
            origin(&row.origin),
        ]
    });
    columns(&["HANDLER", "BACKEND", "PODS", "FEATURES", "ORIGIN"], rows)
}

/// How many pods of a handler its backend of now has; others may have more, from when the handler led there.
fn pods_of(row: &Handler, owners: &HashMap<&str, &str>, daemon: &DaemonStatus) -> Option<u64> {
    let pods = daemon.pods.as_ref().ok()?.iter();
    let own = pods.filter(|pod| {
        pod.runtime_handler == row.name
            && owners.get(pod.id.as_str()) == Some(&row.backend.as_str())
    });
    Some(own.count() as u64)
}

/// A file's name and line say enough in a table.
fn origin(origin: &str) -> String {
    let file = origin.rsplit('/').next().unwrap_or(origin);
    match origin.contains("/conf.d/") {
        true => format!("conf.d/{file}"),
        false => file.to_owned(),
    }
}

fn short_features(status: &StatusResponse, handler: &str) -> String {
    let all = features_of(&status.runtime_handlers, handler);
    let short = all.into_iter().map(|feature| match feature {
        "recursive_read_only_mounts" => "rro",
        "user_namespaces" => "userns",
        other => other,
    });
    short.collect::<Vec<_>>().join(" ")
}

/// What is not well, in criswitch's words, and notes.
fn faults(daemon: &DaemonStatus) -> String {
    let lines = unmet(&daemon.status).map(|(kind, message)| {
        let note = if is_problem(kind) { "" } else { "note: " };
        plain(&format!("{note}{kind} is false: {message}")) + "\n"
    });
    let mut text: String = lines.collect();
    // The first line has the problems of lists.
    if let Err(error) = &daemon.pods
        && list_problems(&daemon.state).is_empty()
    {
        text += &(plain(&format!("pods cannot be listed: {error:#}")) + "\n");
    }
    terminal::wrapped(&text)
}

/// What becomes of backends that no file names, and what a restart would cost.
fn outlook(state: &State) -> String {
    let unnamed = state.backends.iter().filter(|backend| backend.unnamed);
    let removals = unnamed.map(|backend| removal(&backend.name));
    let costs = state
        .backends
        .iter()
        .filter_map(|backend| backend.restart_problem.clone());
    let lines = removals.chain(costs);
    lines.map(|line| terminal::wrapped_first(&line)).collect()
}

/// Of another runtime.
fn foreign(other: &Foreign) -> anyhow::Result<String> {
    let Foreign {
        socket,
        status,
        version,
    } = other;
    let rows = conditions(status).map(|condition| {
        let RuntimeCondition {
            r#type, message, ..
        } = condition.clone();
        [r#type, condition.status.to_string(), message]
    });
    let conditions = columns(&["CONDITION", "STATUS", "MESSAGE"], rows)?;
    let name = plain(&format!(
        "{} {}",
        version.runtime_name, version.runtime_version
    ));
    let who = match name.trim() {
        "" => "another runtime",
        name => name,
    };
    let head = format!(
        "{socket} is the socket of {who}, not of criswitch; try --config, or --socket with the path of criswitch's socket\n"
    );
    Ok(format!("{}\n{conditions}", terminal::wrapped(&head)))
}

fn foreign_json(other: &Foreign) -> Json {
    let version = &other.version;
    let conditions = conditions(&other.status).map(|condition| {
        json!({
            "type": condition.r#type,
            "status": condition.status,
            "message": condition.message,
        })
    });
    json!({
        "criswitch": false,
        "runtime": version.runtime_name,
        "version": version.runtime_version,
        "conditions": conditions.collect::<Vec<_>>(),
    })
}

/// The state of the daemon, with its health and with each handler's pods and features.
fn json(daemon: &DaemonStatus) -> anyhow::Result<Json> {
    let owners = owners(&daemon.state);
    let mut json = serde_json::to_value(&daemon.state)?;
    // As any other runtime's says false.
    if let Some(json) = json.as_object_mut() {
        json.insert("criswitch".to_owned(), json!(true));
        json.insert("health".to_owned(), health(daemon).json());
    }
    for row in objects(&mut json, "backends") {
        row.remove("podIds");
    }
    for (row, handler) in objects(&mut json, "handlers").zip(&daemon.state.handlers) {
        let pods = pods_of(handler, &owners, daemon);
        row.insert("pods".to_owned(), json!(pods));
        let features = features_of(&daemon.status.runtime_handlers, &handler.name);
        row.insert("features".to_owned(), json!(features));
    }
    Ok(json)
}

fn objects<'a>(json: &'a mut Json, list: &str) -> impl Iterator<Item = &'a mut Map<String, Json>> {
    let rows = json.get_mut(list).and_then(Json::as_array_mut);
    rows.into_iter().flatten().filter_map(Json::as_object_mut)
}

/// How long ago a time was.
pub(super) fn ago(time: &str) -> String {
    let Ok(time) = humantime::parse_rfc3339(time) else {
        return String::new();
    };
    span(SystemTime::now().duration_since(time).unwrap_or_default())
}

/// Whole seconds, in the two largest units.
pub(super) fn span(time: Duration) -> String {
    let time = humantime::format_duration(Duration::from_secs(time.as_secs())).to_string();
    time.split(' ').take(2).collect::<Vec<_>>().join(" ")
}
