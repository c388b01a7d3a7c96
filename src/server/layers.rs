//! The layers around every call, for limits and records; [`server`](super) stacks them.
//!
//! Each layer adds to the type of the request, so the types enforce the order of the layers.

mod call_limit;
mod deadline;
mod logged;
mod routed;
mod unread;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use hyper::body::Incoming;

use crate::call::log::CallLog;
use crate::call::reply::Reply;
use crate::rpc::Row;

pub(super) use call_limit::CallLimit;
pub(super) use deadline::Deadline;
pub(super) use logged::Logged;
pub(super) use routed::Routed;
pub(super) use unread::UnreadReply;

/// A request for an RPC of the table.
pub(super) struct RpcRequest {
    pub(super) row: &'static Row,
    pub(super) request: http::Request<Incoming>,
}

/// A request with its log line.
pub(super) type LoggedRequest = (RpcRequest, Arc<CallLog>);
/// The future of a reply. A failed call is a reply too.
pub(super) type ReplyFuture = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;
