//! `criswitch status`: what the switch that runs says of its backends, its table and its last reload.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use criswitch::codec::cri::{
    ListPodSandboxRequest, ListPodSandboxResponse, PodSandbox, StatusResponse, VersionResponse,
};
use criswitch::config::Problems;
use criswitch::config::address::Address;
use criswitch::config::wording::{counted, place, removal};
use criswitch::fanout::status::{BACKENDS_READY, NEEDED};
use criswitch::rpc;
use prost::Message;
use serde_json::{Map, Value as Json, json};

use super::columns::{Paint, columns, painted};
use super::health::{Health, Level};
use super::probe::features_of;
use super::running::{BackendInfo, DaemonInfo, HandlerInfo, ReloadInfo, Running, own_info};
use super::terminal::{self, Shown, plain};
use super::{Status, Verdict, is_read, print};

/// Between two looks with `--watch`.
const PERIOD: Duration = Duration::from_secs(2);
/// What was asked for.
struct DaemonStatus {
    socket: Address,
    status: StatusResponse,
    told: Told,
    /// Or why they cannot be listed.
    pods: anyhow::Result<Vec<PodSandbox>>,
}

/// What the one on the socket is.
enum Told {
    /// A switch, which says so of itself.
    Own(Json),
    /// Another runtime.
    Foreign(VersionResponse),
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
            verdict(&answer)
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

    async fn ask(&self) -> anyhow::Result<DaemonStatus> {
        let switch = self.daemon.connect().await?;
        let status = switch.status_with_pods().await?;
        let told = match own_info(&status) {
            Some(info) => Told::Own(info),
            None => Told::Foreign(switch.version().await.unwrap_or_default()),
        };
        Ok(DaemonStatus {
            pods: list_pods(&switch).await,
            socket: switch.socket.clone(),
            status,
            told,
        })
    }

    fn text(&self, answer: &DaemonStatus) -> anyhow::Result<Shown> {
        Ok(match &answer.told {
            Told::Own(info) if self.json => format!("{:#}\n", with_pods(info, answer)?).into(),
            Told::Own(info) => text(&serde_json::from_value(info.clone())?, answer)?,
            Told::Foreign(who) if self.json => format!("{:#}\n", foreign_json(who, answer)).into(),
            Told::Foreign(who) => foreign(who, answer)?.into(),
        })
    }
}

/// Another runtime on the socket is not criswitch.
fn verdict(answer: &DaemonStatus) -> anyhow::Result<Verdict> {
    let Told::Own(info) = &answer.told else {
        return Ok(Verdict::NotRunning);
    };
    let health = health(&serde_json::from_value(info.clone())?, answer);
    Ok(match health.level {
        Level::Serving => Verdict::Fine,
        Level::Degraded | Level::ListsFailing => Verdict::NotFine,
    })
}

fn health(info: &DaemonInfo, answer: &DaemonStatus) -> Health {
    let unmet = unmet(answer).filter(|(kind, _)| is_problem(kind));
    let unmet = unmet.map(|(kind, message)| format!("{kind} is false: {message}"));
    let unlisted = answer.pods.as_ref().err();
    Health::of(
        info,
        unmet.collect(),
        unlisted.map(|error| format!("{error:#}")),
    )
}

/// Whether a condition that is false is more than a note, such as containerd's of deprecations.
fn is_problem(kind: &str) -> bool {
    NEEDED.contains(&kind) || kind == BACKENDS_READY
}

fn unmet(answer: &DaemonStatus) -> impl Iterator<Item = (&str, &str)> {
    let unmet = conditions(answer).filter(|(_, status, _)| !status);
    unmet.map(|(kind, _, message)| (kind, message))
}

/// Every pod that the switch lists.
pub(super) async fn list_pods(switch: &Running) -> anyhow::Result<Vec<PodSandbox>> {
    let reply = switch
        .call(&rpc::LIST_PODS, &ListPodSandboxRequest::default())
        .await?;
    Ok(ListPodSandboxResponse::decode(reply)?.items)
}

fn conditions(answer: &DaemonStatus) -> impl Iterator<Item = (&str, bool, &str)> {
    let conditions = answer
        .status
        .status
        .iter()
        .flat_map(|status| &status.conditions);
    conditions.map(|condition| {
        (
            condition.r#type.as_str(),
            condition.status,
            condition.message.as_str(),
        )
    })
}

fn text(info: &DaemonInfo, answer: &DaemonStatus) -> anyhow::Result<Shown> {
    Ok(Shown::parts([
        health(info, answer).line(),
        format!("criswitch {}, process {}\n", info.version, info.pid).into(),
        configuration(info).into(),
        backends(info)?,
        places(info)?.into(),
        handlers(info, answer)?.into(),
        faults(answer).into(),
        outlook(info).into(),
    ]))
}

/// The files and the last reload.
fn configuration(info: &DaemonInfo) -> String {
    let mut text = format!(
        "configuration {}, {}\n",
        info.configuration.hash,
        counted(info.configuration.files.len(), "file")
    );
    for file in &info.configuration.files {
        text += &format!("  {file}\n");
    }
    let last = match &info.reloads.last {
        Some(last) => last_reload(last),
        None => "not reloaded since the start\n".to_owned(),
    };
    terminal::wrapped(&text) + &last
}

fn last_reload(last: &ReloadInfo) -> String {
    let mut before = format!("last reload {} ago: ", ago(&last.at));
    let lines = match (&last.changes, &last.problems) {
        (_, Some(problems)) => {
            let refused = ["refused, nothing has changed"].into_iter();
            refused.chain(problems.lines()).map(str::to_owned).collect()
        }
        (Some(changes), None) => changes.lines.clone(),
        (None, None) => vec!["no outcome".to_owned()],
    };
    let mut text = String::new();
    for line in lines {
        let line = line.replace('\n', "\n  ");
        text += &terminal::wrapped_first(&format!("{before}{line}"));
        before = "  ".to_owned();
    }
    text
}

fn backends(info: &DaemonInfo) -> anyhow::Result<Shown> {
    let rows = info.backends.iter().map(|backend| {
        let seconds = |seconds: Option<u64>| {
            let time = seconds.map(Duration::from_secs);
            time.map(span).unwrap_or_default()
        };
        [
            backend.name.clone(),
            state(backend),
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
        "STALE",
        "STATS LATE",
    ];
    painted(&header, rows, paint)
}

/// Nothing if nobody knows.
fn number(number: Option<usize>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

fn state(backend: &BackendInfo) -> String {
    let mut state = backend.state.clone();
    if backend.draining {
        state += ", draining";
    }
    if !backend.joined {
        state += ", new";
    }
    state
}

/// Where backends are, and what.
fn places(info: &DaemonInfo) -> anyhow::Result<String> {
    let rows = info.backends.iter().map(|backend| {
        let runtime = format!("{} {}", backend.runtime, backend.version);
        [
            backend.name.clone(),
            runtime.trim().to_owned(),
            backend.socket.clone(),
        ]
    });
    columns(&["BACKEND", "RUNTIME", "SOCKET"], rows)
}

fn handlers(info: &DaemonInfo, answer: &DaemonStatus) -> anyhow::Result<String> {
    let owners = info.owners();
    let rows = info.handlers.iter().map(|row| {
        let name = match row.name == info.default_handler {
            true => format!("{} (default)", row.name),
            false => row.name.clone(),
        };
        [
            name,
            place(
                row.backend.as_deref().unwrap_or_default(),
                &row.name,
                &row.backend_handler,
            ),
            number(pods_of(row, &owners, answer)),
            short_features(&answer.status, &row.name),
            origin(&row.origin),
        ]
    });
    columns(&["HANDLER", "BACKEND", "PODS", "FEATURES", "ORIGIN"], rows)
}

/// How many pods of a handler its backend of now has; others may have more, from when the handler led there.
fn pods_of(
    row: &HandlerInfo,
    owners: &HashMap<&str, &str>,
    answer: &DaemonStatus,
) -> Option<usize> {
    let pods = answer.pods.as_ref().ok()?.iter();
    let own = pods.filter(|pod| {
        pod.runtime_handler == row.name
            && owners.get(pod.id.as_str()).copied() == row.backend.as_deref()
    });
    Some(own.count())
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
fn faults(answer: &DaemonStatus) -> String {
    let lines = unmet(answer).map(|(kind, message)| {
        let note = if is_problem(kind) { "" } else { "note: " };
        plain(&format!("{note}{kind} is false: {message}")) + "\n"
    });
    let mut text: String = lines.collect();
    if let Err(error) = &answer.pods {
        text += &(plain(&format!("pods cannot be listed: {error:#}")) + "\n");
    }
    terminal::wrapped(&text)
}

/// What becomes of backends that no file names, and what a restart would cost.
fn outlook(info: &DaemonInfo) -> String {
    let unnamed = info.backends.iter().filter(|backend| backend.unnamed);
    let removals = unnamed.map(|backend| removal(&backend.name));
    let lines = removals.chain(info.restart_problems());
    lines.map(|line| terminal::wrapped_first(&line)).collect()
}

/// Of another runtime.
fn foreign(who: &VersionResponse, answer: &DaemonStatus) -> anyhow::Result<String> {
    let rows = conditions(answer)
        .map(|(kind, status, message)| [kind.to_owned(), status.to_string(), message.to_owned()]);
    let conditions = columns(&["CONDITION", "STATUS", "MESSAGE"], rows)?;
    let name = plain(&format!("{} {}", who.runtime_name, who.runtime_version));
    let who = match name.trim() {
        "" => "another runtime",
        name => name,
    };
    let head = format!(
        "{} is not criswitch's socket, but that of {who}; try --config, or --socket with the path that it serves\n",
        answer.socket
    );
    Ok(format!("{}\n{conditions}", terminal::wrapped(&head)))
}

fn foreign_json(who: &VersionResponse, answer: &DaemonStatus) -> Json {
    let conditions = conditions(answer).map(
        |(kind, status, message)| json!({ "type": kind, "status": status, "message": message }),
    );
    json!({
        "criswitch": false,
        "runtime": who.runtime_name,
        "version": who.runtime_version,
        "conditions": conditions.collect::<Vec<_>>(),
    })
}

/// The switch's own words, with each handler's pods and features.
fn with_pods(info: &Json, answer: &DaemonStatus) -> anyhow::Result<Json> {
    let told: DaemonInfo = serde_json::from_value(info.clone())?;
    let owners = told.owners();
    let mut info = info.clone();
    // As any other runtime's says false.
    if let Some(info) = info.as_object_mut() {
        info.insert("criswitch".to_owned(), json!(true));
        info.insert("health".to_owned(), health(&told, answer).json());
    }
    for row in objects(&mut info, "backends") {
        row.remove("podIds");
    }
    for (row, handler) in objects(&mut info, "handlers").zip(&told.handlers) {
        let pods = pods_of(handler, &owners, answer);
        row.insert("pods".to_owned(), json!(pods));
        let features = features_of(&answer.status.runtime_handlers, &handler.name);
        row.insert("features".to_owned(), json!(features));
    }
    Ok(info)
}

fn objects<'a>(info: &'a mut Json, list: &str) -> impl Iterator<Item = &'a mut Map<String, Json>> {
    let rows = info.get_mut(list).and_then(Json::as_array_mut);
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
