//! The layers around each call: they find the RPC's row, limit the call, log it and end it at its deadline.
//! [`server`](super) stacks them.
//!
//! The layers pass requests of different types to one another, so the compiler rejects a wrong order of layers.

mod call_limit;
mod deadline;
mod logged;
mod routed;
mod unread;

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;

use crate::call::log::CallLog;
use crate::call::reply::Reply;
use crate::http2::IncomingBody;
use crate::rpc::Row;

pub(super) use call_limit::CallLimit;
pub(super) use deadline::Deadline;
pub(super) use logged::Logged;
pub(super) use routed::Routed;
pub(super) use unread::UnreadReply;

/// A request, with the row of its RPC in the RPC table.
pub(super) struct RpcRequest {
    pub(super) row: &'static Row,
    pub(super) request: http::Request<IncomingBody>,
}

/// A request, with the log line of its call.
pub(super) type LoggedRequest = (RpcRequest, Arc<CallLog>);
/// A future that yields a reply. A call that fails also yields a reply: its status.
pub(super) type ReplyFuture = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;
