//! The layers around each call, in the order in which a request passes them. Each layer calls the next one, and
//! finishes its own work on the reply.

mod deadline;
mod logged;

use std::pin::pin;
use std::sync::Arc;

use criswitch_cri::codec::grpc::GRPC_TIMEOUT;
use criswitch_cri::rpc::{self, Row};
use http::header::CONTENT_TYPE;

use crate::call::log::CallLog;
use crate::call::reply::{self, Reply};
use crate::dispatch;
use crate::errors;
use crate::limits::budget::{Budget, ClientMemory};
use crate::limits::incoming::IncomingBody;
use crate::limits::places::{Places, User};
use crate::operator::admin::AdminCalls;
use crate::switch::Switch;
use crate::telemetry::counters::Reason;

/// One connection of a client, for the calls on it.
#[derive(Debug)]
pub(super) struct Client {
    switch: Arc<Switch>,
    memory: ClientMemory,
    admin: AdminCalls,
}

impl Client {
    pub(super) fn new(switch: Arc<Switch>, user: User, unread: Budget) -> Client {
        let admin = AdminCalls::new(&switch, user, &unread);
        let requests = switch.requests.share(user);
        Client {
            switch,
            memory: ClientMemory {
                user,
                requests,
                unread,
            },
            admin,
        }
    }
}

/// Answers a request. Finds the row of a CRI request in the RPC table, and passes requests for the admin service to
/// that service. Rejects unknown RPCs, and requests that are not gRPC.
pub(super) async fn answer(
    client: Arc<Client>,
    request: Box<http::Request<IncomingBody>>,
) -> Reply {
    let path = request.uri().path();
    if !is_grpc(&request) {
        client.switch.counts.reject(Reason::NotGrpc);
        reply::rejected(reply::not_grpc(), &client.memory.unread)
    } else if let Some(row) = rpc::find(path) {
        limited(&client, row, request).await
    } else if AdminCalls::has(path) {
        Box::pin(client.admin.answer(*request)).await
    } else {
        client.switch.counts.reject(Reason::UnknownRpc);
        let status = errors::no_such_rpc(path);
        reply::rejected(reply::of_status(&status), &client.memory.unread)
    }
}

/// Whether gRPC servers accept the content type. A backend would reject any other content type, such as that of
/// gRPC-Web.
fn is_grpc(request: &http::Request<IncomingBody>) -> bool {
    let kind = request.headers().get(CONTENT_TYPE);
    let subtype = kind.and_then(|kind| kind.as_bytes().strip_prefix(b"application/grpc"));
    subtype.is_some_and(|subtype| matches!(subtype, [] | [b'+' | b';', ..]))
}

/// Takes a permit for the call, or rejects the call.
async fn limited(
    client: &Client,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
) -> Reply {
    match client.switch.calls.place(row, client.memory.user) {
        Ok(place) => logged(client, row, request, place).await,
        Err(limit) => {
            client.switch.counts.reject(Reason::Calls);
            let status = errors::too_many_calls(row.name, limit.most, limit.what);
            reply::rejected(reply::of_status(&status), &client.memory.unread)
        }
    }
}

/// Makes the log line and the counters of the call, and updates them until the reply ends.
async fn logged(
    client: &Client,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
    place: Places,
) -> Reply {
    let counts = &client.switch.counts;
    let log = Arc::new(CallLog::begin(
        row,
        client.memory.user,
        request.headers(),
        counts,
    ));
    let reply = pin!(counted(client, row, request, place, Arc::clone(&log)));
    logged::logged(log.doing(reply).await, log)
}

/// Counts the memory of the reply until the reply is sent to the client. If the memory for unread replies is full,
/// rejects the reply, except a small reply to a call that changes the node. A streamed reply also keeps the permit of
/// its call until it ends.
async fn counted(
    client: &Client,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
    place: Places,
    log: Arc<CallLog>,
) -> Reply {
    let reply = in_time(client, row, request, log).await;
    let counts = &client.switch.counts;
    let (reply, place) = reply::counted(reply, place, row, &client.memory.unread, counts);
    match place {
        Some(place) => reply::holding(reply, place),
        None => reply,
    }
}

/// Ends the call with a status at its client's deadline, or at the end of `shutdown_timeout`. Rejects a call whose
/// deadline cannot be read: a backend would reject it too, which would count as the backend's fault.
async fn in_time(
    client: &Client,
    row: &'static Row,
    request: Box<http::Request<IncomingBody>>,
    log: Arc<CallLog>,
) -> Reply {
    let mut timeouts = request.headers().get_all(GRPC_TIMEOUT).iter();
    if let (Some(value), more) = (timeouts.next(), timeouts.next())
        && (log.timeout().is_none() || more.is_some())
    {
        return reply::of_status(&errors::invalid_timeout(more.unwrap_or(value)));
    }
    let deadline = log.deadline().zip(log.timeout());
    let mut cut = client.switch.ending.cut(row.name, deadline);
    let (switch, memory) = (Arc::clone(&client.switch), client.memory.clone());
    let served = dispatch::serve(switch, row, request, memory, Arc::clone(&log));
    tokio::select! {
        biased;
        reply = Box::pin(served) => deadline::cut_short(reply, cut),
        status = &mut cut => {
            let handler = dispatch::handler(&client.switch, &log);
            reply::of_status(&log.located(status, handler.as_deref()))
        }
    }
}
