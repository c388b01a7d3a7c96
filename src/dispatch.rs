//! The path of a call: read it, find its target, run it, reply.
//!
//! Nothing is spawned for a call, so a client that goes away takes its calls at the backends with it.

mod resolve;

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::join_all;
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::Status;

use crate::backend::Backend;
use crate::call::log::CallLog;
use crate::call::reply::{self, Reply};
use crate::call::route::Target;
use crate::call::watched;
use crate::call::{Call, Failed};
use crate::codec::frames;
use crate::codec::protobuf;
use crate::config::Handler;
use crate::errors;
use crate::fanout::images::find;
use crate::fanout::status;
use crate::fanout::{self, images};
use crate::forward;
use crate::limits::budget::{Budget, Unread};
use crate::limits::{MAX_CALLS, REQUEST_LIMIT};
use crate::ownership::BackendId;
use crate::rpc::{self, Goes, ImageRule, Kind, Merge, Row, Silent, Unknown};
use crate::switch::Switch;
use crate::switch::handlers;
use crate::switch::learn;
use crate::switch::saved::BRIEF_WAIT;
use crate::telemetry::counters::Reason;

/// The header of a call that is to be answered soon, also while backends are waited for at a start.
pub const SOON: &str = "criswitch-soon";

/// Answers one request of a connection whose replies count in `unread`; every failure is a reply.
pub async fn serve(switch: Arc<Switch>, request: http::Request<Incoming>, unread: Budget) -> Reply {
    if !is_grpc(&request) {
        switch.counts.refuse(Reason::NotGrpc);
        return reply::not_grpc();
    }
    let Some(row) = rpc::find(request.uri().path()) else {
        switch.counts.refuse(Reason::UnknownRpc);
        return reply::of_status(&errors::no_such_rpc(request.uri().path()));
    };
    let Ok(place) = Arc::clone(&switch.calls).try_acquire_owned() else {
        switch.counts.refuse(Reason::Calls);
        return reply::of_status(&errors::too_many_calls(row.name, MAX_CALLS));
    };
    let log = CallLog::begin(row, request.headers(), &switch.counts);
    let deadline = log
        .timeout()
        .map(|timeout| (log.started() + timeout, errors::deadline(row.name, timeout)));
    let mut cut = switch.ending.cut(row.name, deadline);
    let answered = {
        let mut answer = pin!(answer(&switch, row, request, &unread, &log));
        tokio::select! {
            biased;
            answered = log.doing(answer.as_mut()) => answered.unwrap_or_else(Failed::into_reply),
            status = &mut cut => reply::of_status(&status),
        }
    };
    let (answered, place) = reply::counted(answered, place, row, &unread, &switch.counts);
    let reply = watched(answered, log, cut);
    match place {
        Some(place) => reply::holding(reply, place),
        None => reply,
    }
}

async fn answer(
    switch: &Arc<Switch>,
    row: &'static Row,
    request: http::Request<Incoming>,
    unread: &Budget,
    log: &CallLog,
) -> Result<Reply, Failed> {
    let call = read(switch, row, request, unread).await?;
    log.received(call.body.len());
    log.is_for(&call.message());
    started(switch, &call).await;
    let live = Arc::clone(&call.live);
    let target = resolve::target(switch, &call).await?;
    log.goes_to(&target, &live);
    handlers::note_handler(switch, &call, &target);
    learn::learn_names(switch, &call, &target);
    match target {
        Target::Backend(backend) if matches!(row.goes, Goes::Default) => {
            Box::pin(status::version_of(&call, live.backend(backend)?)).await
        }
        Target::Backend(backend) => {
            forward::send(switch, &call, live.backend(backend)?, None).await
        }
        Target::Owner(backend, ..) if row.merge().is_some() => {
            Box::pin(to_backends(switch, call, &[backend])).await
        }
        Target::Owner(backend, kind, id) => {
            to_owner(switch, &call, live.backend(backend)?, (kind, &id)).await
        }
        Target::Handler(handler) => to_handler(switch, &call, &handler).await,
        Target::Backends(backends) => Box::pin(to_backends(switch, call, &backends)).await,
        Target::SomePod(stores) => Box::pin(find::find_for_some_pod(switch, &call, &stores)).await,
        Target::Miss(kind, id) => Ok(of_unknown(row, kind, &id)?),
        // `target` has turned it into a backend, all backends or an error.
        Target::UnknownPod(_) => Err(errors::no_backend().into()),
    }
}

/// After a start the first lists wait for backends that have not been listed yet: for each as long as it may have
/// pods that clients know and criswitch does not. The first calls that the default backend answers wait for that one,
/// briefly.
async fn started(switch: &Switch, call: &Call) {
    if Instant::now() >= switch.start_by {
        return;
    }
    let speaker = call.live.speaker();
    let waits: Vec<_> = match &call.row.goes {
        // Subscribers hear of what backends have when these are there.
        Goes::All(_, Merge::Events) => return,
        Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge))
            if rpc::silent(merge) == Some(Silent::LastKnown) =>
        {
            call.live.joined()
        }
        Goes::Default | Goes::All(..) => {
            let speaker = call.live.backend(speaker).cloned();
            speaker.into_iter().collect()
        }
        _ => return,
    };
    let lists = call.row.is_list() && !call.headers.contains_key(SOON);
    let latest = match lists {
        true => switch.start_by,
        false => switch.start_by.min(Instant::now() + BRIEF_WAIT),
    };
    join_all(waits.iter().map(|backend| backend.started(latest))).await;
}

async fn read(
    switch: &Switch,
    row: &'static Row,
    request: http::Request<Incoming>,
    unread: &Budget,
) -> Result<Call, Status> {
    let (head, body) = request.into_parts();
    let limit = switch.max_message.saturating_add(frames::FRAME_HEADER);
    let read = switch.memory.read(&head.headers, body, limit);
    let body = match tokio::time::timeout(REQUEST_LIMIT, read).await {
        Ok(Ok(whole)) => whole.body,
        Ok(Err(why)) => return Err(no_request(switch, row, &why)),
        Err(_) => {
            switch.counts.refuse(Reason::Unfinished);
            return Err(errors::unfinished_request(row.name, REQUEST_LIMIT));
        }
    };
    frames::unframe(&body).map_err(|fault| errors::bad_frame(row.name, fault))?;
    Ok(Call {
        row,
        headers: head.headers,
        body,
        live: switch.live(),
        handler: None,
        unread: unread.clone(),
    })
}

fn no_request(switch: &Switch, row: &Row, why: &Unread) -> Status {
    match why {
        Unread::TooLarge => {
            switch.counts.refuse(Reason::Size);
            errors::request_too_large(row.name, switch.max_message)
        }
        Unread::NoMemory(limit) => {
            switch.counts.refuse(Reason::Memory);
            errors::no_memory_for_request(row.name, *limit)
        }
        Unread::Broken(cause) => errors::broken_request(row.name, cause),
    }
}

async fn to_owner(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
    of: (Kind, &str),
) -> Result<Reply, Failed> {
    match call.row.goes {
        Goes::OwnerWithImage(_) => {
            forward::send(
                switch,
                &images::with_own_image(switch, call, backend).await,
                backend,
                Some(of),
            )
            .await
        }
        _ => forward::send(switch, call, backend, Some(of)).await,
    }
}

async fn to_handler(switch: &Arc<Switch>, call: &Call, handler: &Handler) -> Result<Reply, Failed> {
    let live = Arc::clone(&call.live);
    let backend = live.backend(handler.backend)?;
    let mut call = call.clone();
    call.handler = Some(handler.name.as_str().into());
    if let Goes::Handler(path) | Goes::Image(path, _) = call.row.goes
        && protobuf::string(&call.message(), path).is_ok_and(|name| name != handler.backend_handler)
    {
        call = call.with_string(path, &handler.backend_handler);
    }
    match call.row.is_special_at_one_backend() {
        // What makes up for an RPC that the backend lacks does so here too, and an image in use is not removed.
        true => Box::pin(to_backends(switch, call, &[handler.backend])).await,
        false => forward::send(switch, &call, backend, None).await,
    }
}

/// Put aside by who calls it: it takes more memory than all else that a call may come to.
async fn to_backends(
    switch: &Arc<Switch>,
    call: Call,
    backends: &[BackendId],
) -> Result<Reply, Failed> {
    let backends: Vec<_> = backends
        .iter()
        // One that is not in the call's table must not look like one that has nothing.
        .map(|id| call.live.backend(*id).cloned())
        .collect::<Result<_, _>>()?;
    match &call.row.goes {
        Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
            fanout::merge(switch, call, merge, backends).await
        }
        Goes::Image(_, rule) => images::to_image_stores(switch, &call, rule, &backends).await,
        _ => Err(errors::no_backend().into()),
    }
}

/// The answer for an id that no backend has.
fn of_unknown(row: &Row, kind: Kind, id: &str) -> Result<Reply, Status> {
    match row.goes {
        Goes::Owner(_, _, Unknown::NotFound) | Goes::OwnerWithImage(_) => {
            Err(errors::not_found(kind, id))
        }
        _ if row.streams() => Ok(reply::of_status(&Status::ok(""))),
        _ => Ok(reply::of_message(Vec::new())),
    }
}

fn is_grpc(request: &http::Request<Incoming>) -> bool {
    let kind = request.headers().get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
