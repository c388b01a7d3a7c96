//! The path of a call: reads the request, finds its target, makes and runs its plan, and returns the reply once all
//! that it shows is saved.
//!
//! This module spawns no task, so a client that disconnects ends its calls at the backends too.

pub mod fanout;
pub(crate) mod forward;
pub(crate) mod own;
mod resolve;

use std::pin::pin;
use std::sync::Arc;

use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::rpc::{Row, filter};
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::Status;

use crate::call::log::CallLog;
use crate::call::plan::{self, Plan};
use crate::call::reply::{self, Reply, Unsent};
use crate::call::{Call, Failed, Request};
use crate::dispatch::fanout::images::{self, find, profiles, remove};
use crate::dispatch::fanout::{node_config, probe, status};
use crate::errors;
use crate::gate::MOST_PAIRS;
use crate::limits::budget::{ClientMemory, Unread};
use crate::limits::incoming::IncomingBody;
use crate::limits::{REQUEST_LIMIT, give_way};
use crate::ownership::MOST;
use crate::switch::saved::BRIEF_WAIT;
use crate::switch::view::View;
use crate::switch::{Switch, handlers, learn, subscribers};
use crate::telemetry::counters::{Counts, Reason};

/// Answers a request of the RPC in `row`. A failure becomes a reply with an error status. The request and the reply
/// count in `memory` until the call has ended and the client has read the reply.
pub(crate) async fn serve(
    switch: Arc<Switch>,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
    memory: ClientMemory,
    log: Arc<CallLog>,
) -> Reply {
    answer(&switch, row, request, &memory, &log)
        .await
        .unwrap_or_else(reply::of_failed)
}

async fn answer(
    switch: &Arc<Switch>,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
    memory: &ClientMemory,
    log: &CallLog,
) -> Result<Reply, Failed> {
    let mut request = read(switch, row, request, memory).await?;
    request.deadline = log.deadline();
    log.received(request.body.len());
    log.note_pod(&request.message());
    started(switch, &mut request).await;
    let target = resolve::target(switch, &request, log).await?;
    give_way(&request.body).await;
    log.goes_to(&target, &request.live);
    handlers::note_handler(&switch.owners(), &request, &target);
    learn::learn_names(&mut switch.owners(), &request, &target);
    fanout::ask_missing_descriptors(switch, &request).await;
    let has_one_backend =
        plan::may_go_to_all(request.row) && fanout::passes_unchanged(&request, &View::of(switch));
    let (call, plan) = plan::plan(request, target, has_one_backend)?;
    give_way(&call.body).await;
    let Unsent { reply, shows } = run(switch, &call, plan)
        .await
        .map_err(|failed| with_handler(switch, log, failed))?;
    call.may_show(&shows).await?;
    Ok(reply)
}

async fn run(switch: &Arc<Switch>, call: &Call, plan: Plan) -> Result<Unsent, Failed> {
    // The reply would be an error, and no list would show the client what the call has created.
    if let Plan::One(backend) | Plan::CreatePod(backend, _) | Plan::CreateContainer(backend) = &plan
        && call.lesson.creates()
        && let Some(cause) = backend.saving.failure()
    {
        return Err(backend.unavailable(&cause).into());
    }
    match plan {
        Plan::One(backend) => forward::send(switch, call, &backend).await,
        Plan::CreatePod(backend, uid) => forward::create(switch, call, &backend, uid).await,
        Plan::CreateContainer(owner) => {
            Box::pin(images::create_container(switch, call, &owner)).await
        }
        Plan::Version(backend) => Ok(Box::pin(status::version_of(call, &backend)).await?.into()),
        Plan::Alone(only) => Box::pin(fanout::send_alone(switch, call, &only)).await,
        Plan::Merge(backends, how) => Box::pin(fanout::merge(switch, call, how, &backends)).await,
        Plan::Status => Ok(Box::pin(status::status(switch, call)).await?.into()),
        Plan::RuntimeConfig(backends) => Ok(Box::pin(node_config::runtime_config(call, &backends))
            .await?
            .into()),
        Plan::UpdateRuntimeConfig(backends) => {
            let (last, live) = (&switch.runtime_config, switch.live());
            Box::pin(node_config::update_runtime_config(
                last, &live, call, &backends,
            ))
            .await
        }
        Plan::ListProfiles(stores) => Ok(Box::pin(profiles::list(switch, call, &stores))
            .await?
            .into()),
        Plan::RemoveProfile(stores) => Ok(Box::pin(profiles::remove(call, &stores)).await?.into()),
        Plan::Events => Ok(subscribers::events(switch, call.user).into()),
        Plan::FindImage(stores) => Box::pin(find::find_image(switch, call, &stores)).await,
        Plan::FindImageForPod(stores) => {
            let found = find::find_for_some_pod(&switch.pod_requests, call, &stores);
            Ok(Box::pin(found).await?.into())
        }
        Plan::PullImage(stores) => Box::pin(images::pull_everywhere(call, &stores)).await,
        Plan::RemoveImage(stores) => Box::pin(remove::remove_image(switch, call, &stores)).await,
        Plan::Probe(backends) => Err(Box::pin(probe::lacking(call, &backends)).await),
        Plan::Absent(reply) => Ok(reply.into()),
    }
}

/// Adds the handler of the call's pod to a status that criswitch made: users know the handler, but not the backend.
fn with_handler(switch: &Switch, log: &CallLog, failed: Failed) -> Failed {
    match handler(switch, log) {
        Some(handler) => failed.of_handler(&handler),
        None => failed,
    }
}

/// The handler of the call's pod, if it is known.
pub(crate) fn handler(switch: &Switch, log: &CallLog) -> Option<String> {
    let (handler, item) = log.target();
    handler.map(ToString::to_string).or_else(|| {
        let (kind, id) = item?;
        handlers::of_item(&switch.live().table, &switch.owners(), *kind, id)
    })
}

/// After a start, waits for backends whose pods are not listed yet. Lists wait at most until [`Switch::start_by`],
/// other calls at most for [`BRIEF_WAIT`]; each wait ends before the client's deadline. A reload during the wait may
/// add a backend that gets pods, so a list of pods or containers uses the table after the wait.
async fn started(switch: &Switch, request: &mut Request) {
    let start_by = switch.start_by;
    if Instant::now() >= start_by {
        return;
    }
    let latest = if request.row.is_list() {
        start_by
    } else {
        start_by.min(Instant::now() + BRIEF_WAIT)
    };
    let awaited = plan::awaited(request);
    let started = pin!(join_all(
        awaited.iter().map(|backend| backend.started(latest))
    ));
    request
        .within(start_by - Instant::now(), started)
        .await
        .ok();
    if request.row.list().is_some_and(|list| list.kind().is_some()) {
        request.live = switch.live();
    }
}

async fn read(
    switch: &Switch,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
    memory: &ClientMemory,
) -> Result<Request, Status> {
    let (head, body) = request.into_parts();
    let limit = switch.max_message.saturating_add(frames::FRAME_HEADER);
    let read = memory.requests.read(&head.headers, body, limit);
    let body = match tokio::time::timeout(REQUEST_LIMIT, read).await {
        Ok(Ok(whole)) => whole.body,
        Ok(Err(why)) => return Err(no_request(&switch.counts, row, switch.max_message, &why)),
        Err(_) => {
            switch.counts.reject(Reason::Unfinished);
            return Err(errors::unfinished_request(row.name, REQUEST_LIMIT));
        }
    };
    let message = frames::unframe(&body).map_err(|fault| errors::bad_frame(row.name, fault))?;
    give_way(&body).await;
    // Each step of a call reads all fields of the request.
    if protobuf::fields(&message).nth(MOST).is_some() {
        return Err(errors::many_fields(row.name, MOST));
    }
    let labels = row
        .list()
        .map_or(0, |list| filter::count_selector_labels(list, &message));
    if labels > MOST_PAIRS {
        return Err(errors::long_selector(row.name, labels, MOST_PAIRS));
    }
    Ok(Request {
        row,
        headers: head.headers,
        body,
        live: switch.live(),
        user: memory.user,
        unread: memory.unread.clone(),
        deadline: None,
    })
}

fn no_request(counts: &Counts, row: &Row, limit: usize, why: &Unread) -> Status {
    match why {
        Unread::TooLarge => {
            counts.reject(Reason::Size);
            errors::request_too_large(row.name, limit)
        }
        Unread::NoMemory(limit) => {
            counts.reject(Reason::Memory);
            errors::no_memory_for_request(row.name, *limit)
        }
        Unread::Broken(status) => errors::broken_request(row.name, status),
    }
}
