//! A layer that limits the memory of replies that clients have not read yet.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use tower::Service;

use super::{LoggedRequest, ReplyFuture, RpcRequest};
use crate::call::log::CallLog;
use crate::call::reply::{self, Reply};
use crate::limits::budget::Budget;
use crate::limits::places::Places;
use crate::switch::Switch;
use crate::telemetry::counters::Counts;

/// Counts the memory of a reply until the reply is sent to the client. If the memory for unread replies is full,
/// rejects the reply, except a small reply to a call that changes the node. A streamed reply also keeps the permit of
/// its call until it ends.
#[derive(Clone, Debug)]
pub(in crate::server) struct UnreadReply<S> {
    inner: S,
    unread: Budget,
    counts: Arc<Counts>,
}

impl<S> UnreadReply<S> {
    pub(in crate::server) fn new(inner: S, switch: &Switch, unread: &Budget) -> UnreadReply<S> {
        let (unread, counts) = (unread.clone(), Arc::clone(&switch.counts));
        UnreadReply {
            inner,
            unread,
            counts,
        }
    }
}

impl<S> Service<(RpcRequest, Places, Arc<CallLog>)> for UnreadReply<S>
where
    S: Service<LoggedRequest, Response = Reply, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Reply;
    type Error = Infallible;
    type Future = ReplyFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, (rpc, place, log): (RpcRequest, Places, Arc<CallLog>)) -> ReplyFuture {
        let (unread, counts) = (self.unread.clone(), Arc::clone(&self.counts));
        let row = rpc.row;
        let reply = self.inner.call((rpc, log));
        Box::pin(async move {
            let (reply, place) = reply::counted(reply.await?, place, row, &unread, &counts);
            Ok(match place {
                Some(place) => reply::holding(reply, place),
                None => reply,
            })
        })
    }
}
