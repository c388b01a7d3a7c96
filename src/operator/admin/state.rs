//! Makes the messages of the admin service that have the state of the daemon.

use criswitch_config::wording::{self, AUTO_REGISTERED};
use criswitch_cri::codec::admin;
use criswitch_cri::rpc::{Kind, List};
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::backend::known::Failure;
use crate::dispatch::fanout::fallback;
use crate::dispatch::fanout::status;
use crate::operator::node_labels::NodeLabels;
use crate::ownership::Owners;
use crate::switch::Switch;
use crate::switch::reload::{self, Outcome, Reloads};
use crate::switch::saved::{self, BRIEF_WAIT};
use crate::telemetry::rejections::Rejection;
use crate::topology::Live;
use criswitch_cri::facts::{self, Condition};

/// Just after a start, waits briefly for backends that are not listed yet.
pub(super) async fn settled(live: &Live, start_by: Instant) {
    let latest = start_by.min(Instant::now() + BRIEF_WAIT);
    join_all(live.backends.iter().map(|backend| backend.started(latest))).await;
}

/// The state of the daemon.
///
/// # Errors
/// `Internal` if a backend's last `Status` cannot be decoded.
pub(super) fn now(switch: &Switch) -> Result<admin::State, Status> {
    let live = switch.live();
    let (default, others): (Vec<_>, Vec<_>) = live
        .backends
        .iter()
        .partition(|backend| backend.id == live.default_backend());
    let backends = default
        .into_iter()
        .chain(others)
        .map(|row| backend(switch, &live, row));
    let file_problem = switch.labels_problem.lock().clone();
    let of_reloads = switch.reloads();
    let (configuration, reloads) = (configuration(&of_reloads, &live), reloads(&of_reloads));
    drop(of_reloads);
    Ok(admin::State {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        default_handler: live.table.default.name.clone(),
        handlers: handlers(&live),
        backends: backends.collect::<Result<_, _>>()?,
        configuration: Some(configuration),
        reloads: Some(reloads),
        node_not_ready_seconds: status::silent_default(&live, switch.created)
            .map(|(_, silent)| silent.as_secs()),
        node_labels: Some(node_labels(&live, file_problem)),
        rejections: switch
            .counts
            .rejections
            .all()
            .into_iter()
            .map(rejection)
            .collect(),
        stopped_containers: switch.counts.stops.all(),
    })
}

fn node_labels(live: &Live, file_problem: Option<String>) -> admin::NodeLabels {
    let (NodeLabels { labels, notes }, _) = NodeLabels::of(live);
    let file = live.config.labels_file.as_ref();
    admin::NodeLabels {
        labels,
        notes,
        file: file.map(|file| file.display().to_string()),
        file_problem,
    }
}

fn handlers(live: &Live) -> Vec<admin::Handler> {
    let handlers = live.table.handlers.iter().map(|row| admin::Handler {
        name: row.name.clone(),
        backend: live.name_of(row.backend),
        backend_handler: row.backend_handler.clone(),
        origin: match &row.origin {
            Some(origin) => origin.to_string(),
            None => AUTO_REGISTERED.to_owned(),
        },
    });
    handlers.collect()
}

/// The files of the current configuration. Invalid UTF-8 in their paths is replaced, because protobuf strings are
/// UTF-8.
fn configuration(reloads: &Reloads, live: &Live) -> admin::Configuration {
    let files = live.config.files.iter();
    admin::Configuration {
        path: live.config.path.display().to_string(),
        files: files.map(|file| file.display().to_string()).collect(),
        hash: live.config.hash.to_string(),
        changed: reloads.files_differ_from(&live.config.hash),
        problems: reloads.restart_problems().to_vec(),
    }
}

fn backend(switch: &Switch, live: &Live, backend: &Backend) -> Result<admin::Backend, Status> {
    let question = &switch.question;
    let (link, known) = (backend.connection.link(), backend.record.known());
    let list_problem = fallback::lists_problem(live, &switch.owners, question, backend);
    // Every call needs the owners, so they are locked for no longer than it takes to copy the ids.
    let owners = switch.owners();
    let (pods, containers) = reload::owned_by(question, &owners, backend.id).unzip();
    let pod_ids = copied(owners.of(Kind::Pod, backend.id));
    let orphans = copied(owners.orphans(backend.id));
    let default_pod_ids = owners.pods.with_default_row(backend.id);
    let moved = moved(&owners, live, backend);
    drop(owners);
    let [runtime, version, cgroup_driver] = status::identity(&known);
    let conditions = facts::conditions(&known.status).map_err(|fault| backend.malformed(&fault))?;
    Ok(admin::Backend {
        name: backend.name().to_string(),
        socket: backend.socket.to_string(),
        state: link.state.as_ref().to_owned(),
        cause: link.state.cause().map(ToString::to_string),
        since: humantime::format_rfc3339_seconds(link.since).to_string(),
        transitions: link.transitions,
        joined: backend.has_joined(),
        retiring: live.retires(backend.id),
        auto_register: live.auto_registering().any(|row| row.id == backend.id),
        unnamed: !live.names(backend.id),
        awaited: backend.is_awaited(),
        list_problem,
        restart_problem: saved::restart_problem(switch.store.is_some(), question, backend),
        pods_from_cache: known.is_from_cache(List::Pods),
        runtime,
        version,
        cgroup_driver: Some(cgroup_driver).filter(|driver| !driver.is_empty()),
        stale_list_age_seconds: known.stale_age().map(|age| age.as_secs()),
        stale_image_list_age_seconds: known.stale_image_age().map(|age| age.as_secs()),
        stats_late_seconds: known.stats_late_for().map(|late| late.as_secs()),
        stale_stats_age_seconds: known.stale_stats_age().map(|age| age.as_secs()),
        lists_from_cache: known.lists_from_cache,
        stats_from_cache: known.stats_from_cache,
        replies_omitted: known.replies_omitted,
        claimed_items: known.foreign_items() as u64,
        dropped_items: known.dropped,
        conditions: conditions.into_iter().map(condition).collect(),
        pods,
        containers,
        pod_ids: sorted(pod_ids),
        orphans: sorted(orphans),
        default_pod_ids: sorted(default_pod_ids),
        failing_rpcs: known.failing_rpcs().into_iter().map(failing_rpc).collect(),
        moved,
        lacking_rpcs: known
            .lacking_rpcs()
            .into_iter()
            .map(str::to_owned)
            .collect(),
    })
}

fn copied<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    ids.into_iter().map(str::to_owned).collect()
}

/// These ids, sorted so that equal states have equal messages.
fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort_unstable();
    ids
}

fn failing_rpc(failure: Failure) -> admin::FailingRpc {
    admin::FailingRpc {
        rpc: failure.row.name.to_owned(),
        cause: failure.cause,
        times: failure.times,
        seconds: failure.since.elapsed().as_secs(),
    }
}

/// A sentence about the ready backend that lists items of `backend`, if `backend` does not answer and the configuration
/// does not name it: the runtime of `backend` may now serve the socket of the other backend. criswitch does not change
/// the owner automatically, because a hostile backend may list copies.
fn moved(owners: &Owners, live: &Live, backend: &Backend) -> Option<String> {
    if live.names(backend.id) || backend.connection.is_ready() {
        return None;
    }
    let (pods, containers) = owners.count(backend.id);
    let mut listers = live.backends.iter().filter(|it| it.connection.is_ready());
    let (lister, count) = listers.find_map(|it| {
        let count = owners.shared().filter(|ids| *ids == (backend.id, it.id));
        Some((it.name(), count.count())).filter(|(_, count)| *count > 0)
    })?;
    let all = pods + containers;
    Some(wording::moved(&backend.name(), &lister, count, all))
}

fn condition(condition: Condition<'_>) -> admin::Condition {
    admin::Condition {
        r#type: condition.kind.into_owned(),
        status: condition.status,
        reason: condition.reason.into_owned(),
        message: condition.message.into_owned(),
    }
}

/// The problems that a restart would cause now: one text for each affected backend.
pub(super) fn restart_problems(switch: &Switch) -> Vec<String> {
    let live = switch.live();
    let problems = live.backends.iter().filter_map(|backend| {
        saved::restart_problem(switch.store.is_some(), &switch.question, backend)
    });
    problems.collect()
}

fn reloads(reloads: &Reloads) -> admin::Reloads {
    admin::Reloads {
        begun: reloads.begun,
        count: reloads.count,
        rejected: reloads.rejected,
        last: reloads.last.as_ref().map(reload),
        recent: reloads.recent.iter().map(reload).collect(),
    }
}

fn rejection(pod: Rejection) -> admin::Rejection {
    let [first, last] = [pod.first, pod.last].map(humantime::format_rfc3339_seconds);
    admin::Rejection {
        namespace: pod.namespace,
        name: pod.name,
        uid: pod.uid,
        asked_handler: pod.asked_handler,
        handler: pod.handler,
        backend: pod.backend,
        code: pod.code,
        error: pod.error,
        first: first.to_string(),
        last: last.to_string(),
        times: pod.times,
    }
}

pub(super) fn reload(outcome: &Outcome) -> admin::Reload {
    let result = match outcome.result.clone() {
        Ok(changes) => admin::reload::Result::Changes(changes),
        Err(problems) => admin::reload::Result::Problems(admin::Problems { problems }),
    };
    admin::Reload {
        number: outcome.number,
        at: humantime::format_rfc3339_millis(outcome.at).to_string(),
        result: Some(result),
    }
}
