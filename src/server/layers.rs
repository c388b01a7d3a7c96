//! What surrounds every call: a layer for each limit and each record, from the outside to the path of the call.
//! [`server`](super) stacks them.
//!
//! A layer hands on what it has added to the request, so that the types keep the layers in their order.

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

/// A request of an RPC that the table has.
pub(super) struct RpcRequest {
    pub(super) row: &'static Row,
    pub(super) request: http::Request<Incoming>,
}

/// A request with its log line.
pub(super) type LoggedRequest = (RpcRequest, Arc<CallLog>);
/// A reply to come. No call fails: each failure is a reply.
pub(super) type ReplyFuture = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;
