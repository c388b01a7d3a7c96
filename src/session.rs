//! Keeps a backend connected. One task for each backend opens the connection, makes it ready, watches it, and
//! reconnects when it has ended.

pub(crate) mod events;
mod further;
pub(crate) mod sync;

use std::collections::hash_map::DefaultHasher;
use std::convert::Infallible;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::frames;
use criswitch_cri::error_text::error_chain;
use criswitch_cri::rpc::{self, List, Row};
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::Status;

use crate::backend::connect::{FileId, OpenConnection};
use crate::backend::known::{Absence, Known};
use crate::backend::late_reads::MOST_REPEATED;
use crate::backend::state::State;
use crate::backend::wire::Wire;
use crate::backend::{Backend, CLOSED};
use crate::dispatch::fanout::fallback;
use crate::dispatch::forward::short;
use crate::dispatch::own::OwnCalls;
use crate::limits::flood;
use crate::switch::{Switch, handlers};
use crate::telemetry::counters::Reason;

/// The shortest wait after a failed connection. Each further failure doubles the wait.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// How long calls wait for a connection to become ready, beyond `list_timeout`. The lists of a backend with cached
/// lists may take 5 s of it.
const FIRST_CALLS_LIMIT: Duration = Duration::from_secs(10);
/// The longest wait before a reconnect, as in the kubelet's grpc-go.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);
/// How often the session checks the socket's file. Also how long a backend may answer nothing before the session probes
/// it.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest time between two checks of whether a cached list lacks items. Each check may request the list again.
const RELIST_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two measurements of the images' file systems. The kubelet asks for their usage as often.
const MEASURE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the session of a removed backend waits for calls that still use an older routing table.
const LAST_CALLS: Duration = Duration::from_secs(3);
/// How long a backend may take to answer a probe (`Version`). After that it counts as hung: even a busy backend answers
/// `Version` at once.
const PROBE_LIMIT: Duration = Duration::from_secs(3);
/// How long criswitch waits for the answer to one of its own calls before it repeats the call, because a single call
/// may be lost. Each further wait is twice as long, because calls that the backend does not read take memory.
const ASK_AGAIN: Duration = Duration::from_secs(30);
/// The longest of these waits. No client's call goes to a backend that hangs, so if a probe was lost, only the next
/// probe shows that the backend answers again.
const LONGEST_ASK: Duration = Duration::from_secs(120);

/// How a connection ended.
struct ConnectionEnd {
    /// Whether the connection ended more than [`LONGEST_PAUSE`] after it first became ready.
    lasted: bool,
    /// Whether the backend closed the connection before it became ready. `None` if no connection opened.
    was_early: Option<bool>,
    cause: String,
}

/// Keeps `backend` connected until it is removed, and then until its calls in flight have ended.
pub(crate) async fn keep(switch: Arc<Switch>, backend: Arc<Backend>) {
    let mut failures = 0;
    while let Some(end) = connection(&switch, &backend).await {
        if let Some(was_early) = end.was_early {
            backend.connection.note_early_end(was_early);
        }
        backend.set(State::Down(end.cause.into()));
        failures = if end.lasted { 0 } else { failures + 1 };
        tokio::select! {
            biased;
            () = backend.connection.closed() => break,
            () = tokio::time::sleep(pause(&backend.name(), failures)) => {}
            () = backend.wakeups.wanted.notified() => {}
        }
    }
    // From now on, a call that began with an older routing table fails: its connection may have ended.
    backend.set(State::Down(CLOSED.into()));
}

/// Returns the wait after this many failures in a row. A hash of the name shortens the wait by up to a half, so that
/// backends do not all retry at once.
fn pause(name: &str, failures: u32) -> Duration {
    let longest = LONGEST_PAUSE.min(FIRST_PAUSE.saturating_mul(2 << failures.min(10)));
    let mut hasher = DefaultHasher::new();
    (name, failures).hash(&mut hasher);
    longest - longest.mul_f64((hasher.finish() % 1000) as f64 / 2000.0)
}

/// Opens one connection and keeps it open until it ends. Returns how it ended, or `None` if the backend was removed.
async fn connection(switch: &Arc<Switch>, backend: &Arc<Backend>) -> Option<ConnectionEnd> {
    let own = switch.live().config.listen.clone();
    let opened = tokio::select! {
        biased;
        () = backend.connection.closed() => return None,
        opened = backend.open(Some(&own)) => opened,
    };
    let OpenConnection {
        wire,
        mut connection,
        flooded,
        file,
        ..
    } = match opened {
        Ok(opened) => opened,
        Err(cause) => {
            return Some(ConnectionEnd {
                lasted: false,
                was_early: None,
                cause,
            });
        }
    };
    let (mut ready, mut is_closed) = (None, false);
    let cause = tokio::select! {
        biased;
        ended = &mut connection => {
            is_closed = true;
            match ended {
                _ if flooded.is_true() => {
                    switch.counts.reject(Reason::Flood);
                    flood::CAUSE.to_owned()
                }
                Ok(()) => "it closed the connection".to_owned(),
                Err(error) => error_chain(&error),
            }
        }
        () = backend.connection.closed() => {
            tokio::select! {
                _ = &mut connection => {}
                () = end_of_calls(backend, &wire) => {}
            }
            return None;
        }
        cause = watch_connection(OwnCalls::new(switch, backend, Some(&wire)), &wire, &mut ready) => cause,
        never = further::keep_enough(switch, backend, &wire, file) => match never {},
        () = wait_for_another_file(backend, file) => {
            if matches!(backend.connection.link().state, State::Unresponsive(..)) {
                // Nothing can reach this process any more, so its calls would never end.
                wire.abort();
            }
            "its socket was replaced by a new file".to_owned()
        }
    };
    wire.end();
    let lasted = ready.is_some_and(|since: Instant| since.elapsed() > LONGEST_PAUSE);
    Some(ConnectionEnd {
        lasted,
        was_early: Some(is_closed && ready.is_none()),
        cause,
    })
}

/// Waits until no call uses `wire`, the connection to a removed backend, or until a probe shows that the backend hangs.
async fn end_of_calls(backend: &Backend, wire: &Wire) {
    // Calls that began with an older routing table may still go to the backend.
    tokio::time::sleep(LAST_CALLS).await;
    while answers_probe(backend, wire).await {
        // From now on, no new call can use the connection.
        if backend.connection.is_open() {
            backend.set(State::Down(CLOSED.into()));
        }
        if wire.is_unused() {
            return;
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
    // This state ends reads that wait for the hung backend, and starts the time limit of calls that change something.
    // The end of the connection's task alone does not end them.
    backend.set(State::Unresponsive(wire.clone(), CLOSED.into()));
    tokio::time::sleep(FIRST_PAUSE).await;
}

/// Makes the connection ready and watches the backend. If the backend hangs and then answers again, makes the
/// connection ready again. If a call that makes the connection ready fails, returns the error, and the connection must
/// be closed.
async fn watch_connection(own: OwnCalls<'_>, wire: &Wire, ready: &mut Option<Instant>) -> String {
    let OwnCalls {
        switch, backend, ..
    } = own;
    loop {
        tokio::select! {
            biased;
            made_ready = make_ready(own, wire) => match made_ready {
                Ok(()) => {
                    ready.get_or_insert_with(Instant::now);
                    backend.set(State::Ready(wire.clone()));
                    tokio::select! {
                        biased;
                        () = wait_until_hung(backend, wire) => {}
                        never = list_images_and_refresh(own) => match never {},
                        never = relist_when_incomplete(own, &rpc::LIST_PODS) => match never {},
                        never = relist_when_incomplete(own, &rpc::LIST_CONTAINERS) => match never {},
                        never = repeat_missed_calls(own) => match never {},
                        never = repeat_late_reads(own) => match never {},
                        never = ask_failing(own) => match never {},
                        never = resend_runtime_config(&switch.runtime_config, backend, wire) => match never {},
                        never = measure_disks(backend) => match never {},
                        never = probe_optional(backend, wire) => match never {},
                        never = retry_cgroup_driver(own) => match never {},
                        never = handlers::request_handlers(&switch.owners, backend, wire) => match never {},
                        never = list_until_removed(own) => match never {},
                    }
                }
                Err(status) => return backend.cause(&status),
            },
            () = wait_until_hung(backend, wire) => {}
        }
        let cause =
            format!("it accepts connections, but did not answer a probe within {PROBE_LIMIT:?}");
        backend.set(State::Unresponsive(wire.clone(), cause.into()));
        sign_of_life(backend, wire).await;
    }
}

/// Makes the connection ready. If that takes long, for example because the first list hangs, the backend counts as
/// unresponsive meanwhile: calls no longer wait for it, and an operator may forget it.
async fn make_ready(own: OwnCalls<'_>, wire: &Wire) -> Result<(), Status> {
    let backend = own.backend;
    let limit = FIRST_CALLS_LIMIT + backend.list_timeout();
    let mut made_ready = std::pin::pin!(until_answered(|| sync::make_ready(own)));
    if let Ok(result) = tokio::time::timeout(limit, &mut made_ready).await {
        return result;
    }
    let cause = format!(
        "it accepts connections, but did not answer criswitch's first calls within {limit:?}"
    );
    backend.set(State::Unresponsive(wire.clone(), cause.into()));
    made_ready.await
}

/// Waits until a hung backend answers a client's call or a probe. An error is an answer, too.
async fn sign_of_life(backend: &Backend, wire: &Wire) {
    tokio::select! {
        biased;
        () = backend.wakeups.answered.notified() => {}
        _ = until_answered(|| probe(backend, wire)) => {}
    }
}

/// Repeats a call until the backend answers it. Only one call is in flight at a time: a call without an answer is
/// cancelled before the next one is sent.
async fn until_answered<A: Future>(ask: impl Fn() -> A) -> A::Output {
    let mut patience = ASK_AGAIN;
    loop {
        if let Ok(answer) = tokio::time::timeout(patience, ask()).await {
            return answer;
        }
        patience = LONGEST_ASK.min(patience.saturating_mul(2));
    }
}

/// Waits until a probe gets no answer. Probes the backend when a call takes long, or when the backend has answered
/// nothing for [`CHECK_INTERVAL`].
async fn wait_until_hung(backend: &Backend, wire: &Wire) {
    let begun = Instant::now();
    loop {
        let quiet_since = backend.record.answered().map_or(begun, |at| at.max(begun));
        tokio::select! {
            biased;
            () = backend.wakeups.suspected.notified() => {}
            () = tokio::time::sleep_until(quiet_since + CHECK_INTERVAL) => {
                if backend.record.answered().is_some_and(|at| at > quiet_since) {
                    continue;
                }
            }
        }
        if !answers_probe(backend, wire).await {
            return;
        }
    }
}

/// Whether the backend answers a probe within [`PROBE_LIMIT`]. A probe that cannot be sent proves nothing, so the time
/// begins when a stream is free for the probe.
async fn answers_probe(backend: &Backend, wire: &Wire) -> bool {
    wire.for_probes().free().await;
    tokio::time::timeout(PROBE_LIMIT, probe(backend, wire))
        .await
        .is_ok()
}

async fn probe(backend: &Backend, wire: &Wire) -> Result<(), Status> {
    sync::version(backend, Some(&wire.for_probes())).await
}

/// Lists the images of a backend that is ready, and lists them again when the cached list lacks images. The list may be
/// long, so pods do not wait for it: until it arrives, only the cached list of images is missing.
async fn list_images_and_refresh(own: OwnCalls<'_>) -> Infallible {
    // If the backend was late with this list, `repeat_missed_calls` requests it again.
    if !own.backend.record.known().is_late_with(&rpc::LIST_IMAGES) {
        until_answered(|| own.list_kind(List::Images, &rpc::LIST_IMAGES))
            .await
            .ok();
    }
    relist_when_incomplete(own, &rpc::LIST_IMAGES).await
}

/// Requests a list again when the cached list lacks items that clients may know: an image that was pulled, or a pod or
/// container that was not created through criswitch.
async fn relist_when_incomplete(own: OwnCalls<'_>, row: &'static Row) -> Infallible {
    let mut seen = 0;
    loop {
        seen = own.backend.saving.changed_after(seen).await;
        if fallback::lacks(&own.switch.owners(), own.backend, row) {
            answered(own, row).await;
        }
        tokio::time::sleep(RELIST_INTERVAL).await;
    }
}

/// Repeats each call that the backend did not answer in time, until the backend answers. One call of each RPC is in
/// flight at a time, so a call that hangs delays no other RPC.
async fn repeat_missed_calls(own: OwnCalls<'_>) -> Infallible {
    let OwnCalls {
        switch, backend, ..
    } = own;
    let mut asked = FuturesUnordered::new();
    let mut under_way: Vec<&str> = Vec::new();
    loop {
        for Absence { row, .. } in backend.record.known().late {
            if !under_way.contains(&row.name) {
                under_way.push(row.name);
                asked.push(answered(own, row));
            }
        }
        tokio::select! {
            biased;
            Some(row) = asked.next() => {
                under_way.retain(|name| *name != row.name);
                backend.record.clear_late(row);
                if row.goes_with(&rpc::LIST_PODS) && !backend.record.known().is_late_with(row) {
                    switch.question.listed(backend.id);
                    backend.was_listed();
                }
            }
            () = backend.wakeups.missed.notified() => {}
        }
    }
}

/// Repeats each short read that the backend did not answer in time, until the backend answers it. Saves the backend
/// when its lateness begins and ends, because the kept statuses are saved only meanwhile.
async fn repeat_late_reads(own: OwnCalls<'_>) -> Infallible {
    let mut asked = FuturesUnordered::new();
    let mut under_way: Vec<(&str, Bytes)> = Vec::new();
    let mut was_late = false;
    loop {
        let late = own.backend.record.known().late_reads;
        let is_late = !late.rpcs().is_empty();
        if std::mem::replace(&mut was_late, is_late) != is_late {
            own.backend.saving.note_change();
        }
        for (row, request) in late.unanswered() {
            let read = (row.name, request.clone());
            let of_row = under_way.iter().filter(|(name, _)| *name == row.name);
            if of_row.count() < MOST_REPEATED && !under_way.contains(&read) {
                under_way.push(read);
                asked.push(repeated(own, row, request));
            }
        }
        tokio::select! {
            biased;
            Some((row, request, is_answered)) = asked.next() => {
                under_way.retain(|(name, other)| *name != row.name || *other != request);
                if is_answered { own.backend.record.read_answered(row, &request) } else { own.backend.record.learn(|known| known.late_reads.postpone(row, &request)) }
            }
            () = own.backend.wakeups.late_reads.notified() => {}
        }
    }
}

/// Repeats a short read once. Returns whether the backend has answered it; an error is an answer, too.
async fn repeated(
    own: OwnCalls<'_>,
    row: &'static Row,
    request: Bytes,
) -> (&'static Row, Bytes, bool) {
    let OwnCalls {
        switch,
        backend,
        wire,
    } = own;
    let changes = backend.status_changes();
    match tokio::time::timeout(ASK_AGAIN, backend.ask_own(wire, row, request.clone())).await {
        Ok(Ok(answer)) => {
            short::keep(switch, backend, (row, &request), &answer, changes);
            return (row, request, true);
        }
        Ok(Err(_)) => tokio::time::sleep(LONGEST_PAUSE).await,
        Err(_) => {}
    }
    (row, request, false)
}

/// Repeats each call whose last answer from the backend cannot be used. Only a good answer ends a failure, and clients
/// may not repeat the call. The answer also shows whether a client was the cause.
async fn ask_failing(own: OwnCalls<'_>) -> Infallible {
    loop {
        tokio::time::sleep(ASK_AGAIN).await;
        for row in own.backend.record.learn(Known::take_unusable) {
            tokio::time::timeout(ASK_AGAIN, sync::answers(own, row))
                .await
                .ok();
        }
    }
}

/// Repeats a call until the backend answers it without an error.
async fn answered(own: OwnCalls<'_>, row: &'static Row) -> &'static Row {
    let mut failures = 0;
    while until_answered(|| sync::answers(own, row)).await.is_err() {
        failures += 1;
        tokio::time::sleep(pause(&own.backend.name(), failures)).await;
    }
    row
}

/// Sends the kubelet's runtime configuration to a backend that missed it. Retries until the backend accepts the
/// configuration.
async fn resend_runtime_config(
    config: &Mutex<Option<Bytes>>,
    backend: &Backend,
    wire: &Wire,
) -> Infallible {
    loop {
        backend.wakeups.owed.notified().await;
        let mut failures = 0;
        while let Err(failed) =
            until_answered(|| sync::replay_runtime_config(config, backend, Some(wire))).await
        {
            if failures == 0 {
                let (name, cause) = (backend.name(), failed.code_and_text());
                tracing::warn!(backend = %name, cause, "backend did not accept the runtime configuration; criswitch tries again");
            }
            failures += 1;
            tokio::time::sleep(pause(&backend.name(), failures)).await;
        }
    }
}

/// Learns whether the backend has these RPCs, because the kubelet probes `PodSandboxStats` only once, at its start, and
/// the pods of a backend without the others are silently missing in metrics. Any answer shows whether the backend has
/// the RPC. A missing answer does not make the backend late.
async fn probe_optional(backend: &Backend, wire: &Wire) -> Infallible {
    let rows = [
        &rpc::POD_SANDBOX_STATS,
        &rpc::LIST_METRIC_DESCRIPTORS,
        &rpc::LIST_POD_METRICS,
    ];
    join_all(rows.map(async |row| {
        let asked = until_answered(|| backend.ask_own(Some(wire), row, frames::frame(&[])));
        // Drops a reply at once, because it may be large.
        asked.await.ok();
    }))
    .await;
    std::future::pending().await
}

/// Asks for the cgroup driver again if the backend did not answer before it became ready.
async fn retry_cgroup_driver(own: OwnCalls<'_>) -> Infallible {
    let OwnCalls {
        switch,
        backend,
        wire,
    } = own;
    if backend.record.learn(|known| known.owes_cgroup_driver) {
        let live = switch.live();
        until_answered(|| sync::compare_cgroup_driver(&live, backend, wire))
            .await
            .ok();
    }
    std::future::pending().await
}

/// Measures the file systems of a backend's images after a client has called `ImageFsInfo`.
async fn measure_disks(backend: &Backend) -> Infallible {
    loop {
        backend.measure_disks().await;
        tokio::time::sleep(MEASURE_INTERVAL).await;
    }
}

/// Waits until the file at the socket's path is a different file than the one that the session connected to.
async fn wait_for_another_file(backend: &Backend, file: Option<FileId>) {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let now = backend.socket_file().await;
        if now.is_some() && now != file {
            return;
        }
    }
}

/// Every [`CHECK_INTERVAL`], lists a backend that the configuration no longer names. The backend is removed when it has
/// no more pods.
async fn list_until_removed(own: OwnCalls<'_>) -> Infallible {
    loop {
        tokio::time::sleep(CHECK_INTERVAL).await;
        if !own.switch.live().names(own.backend.id) {
            until_answered(|| own.list()).await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn pauses_grow_from_100_ms_to_3_s_and_differ_from_backend_to_backend() {
        let names: Vec<String> = (0..8).map(|number| format!("backend-{number}")).collect();
        for failures in (0..20).chain([u32::MAX]) {
            let pauses: BTreeSet<_> = names.iter().map(|name| pause(name, failures)).collect();
            let (first, last) = (pauses.first().unwrap(), pauses.last().unwrap());
            assert!(pauses.len() > names.len() / 2, "{failures}: {pauses:?}");
            assert!(
                *first >= FIRST_PAUSE && *last <= LONGEST_PAUSE,
                "{failures}: {pauses:?}"
            );
        }
        assert!(pause("a", 0) < 2 * FIRST_PAUSE && pause("a", 9) >= LONGEST_PAUSE / 2);
    }
}
