//! The service `criswitch.admin.v1`: state of the daemon, reload, its dry run, and forget. criswitch serves it on the CRI
//! socket.

mod state;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody};
use tokio::time::Instant;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tower::Service;

use crate::call::reply::{self, Body, Reply};
use crate::codec::admin::admin_server::{Admin, AdminServer};
use crate::codec::admin::{
    ForgetRequest, ForgetResponse, GetStateRequest, PlanReloadRequest, PlanReloadResponse,
    ReloadRequest, ReloadResponse, State, WatchStateRequest,
};
use crate::codec::grpc;
use crate::errors;
use crate::http2::IncomingBody;
use crate::limits::budget::Budget;
use crate::limits::places::User;
use crate::limits::{ADMIN_LIMIT, MAX_ADMIN_REQUEST};
use crate::switch::Switch;
use crate::switch::dry_run;
use crate::switch::forget;
use crate::switch::reload;
use crate::telemetry::counters::Reason;

/// How often a watch compares the current state with the last state that it sent.
const LOOKS_APART: Duration = Duration::from_secs(1);

/// The name of the admin service: the first part of the path of each of its calls.
const NAME: &str = AdminServer::<AdminService>::NAME;

/// Serves calls of the admin service within their limits.
#[derive(Clone, Debug)]
pub(crate) struct AdminCalls {
    switch: Arc<Switch>,
    user: User,
    /// The connection's memory for replies that the client has not read.
    unread: Budget,
    server: AdminServer<AdminService>,
}

impl AdminCalls {
    pub(crate) fn new(switch: &Arc<Switch>, user: User, unread: &Budget) -> AdminCalls {
        let server = AdminServer::new(AdminService(Arc::clone(switch)));
        AdminCalls {
            switch: Arc::clone(switch),
            user,
            unread: unread.clone(),
            server: server.max_decoding_message_size(MAX_ADMIN_REQUEST),
        }
    }

    pub(crate) fn has(path: &str) -> bool {
        path.split('/').nth(1) == Some(NAME)
    }

    /// Answers a call. The call counts towards the limit on calls until its reply is sent.
    pub(crate) fn answer(
        &self,
        request: http::Request<IncomingBody>,
    ) -> impl Future<Output = Reply> + use<> {
        let mut calls = self.clone();
        async move {
            let switch = &calls.switch;
            let place = match switch.admin_calls.place(calls.user) {
                Ok(place) => place,
                Err(limit) => {
                    switch.counts.refuse(Reason::Calls);
                    let (path, most, what) = (request.uri().path(), limit.most, limit.what);
                    return reply::of_status(&errors::too_many_calls(path, most, what));
                }
            };
            let late = Instant::now() + ADMIN_LIMIT;
            let cut = switch
                .ending
                .cut(NAME, Some((late, errors::deadline(NAME, ADMIN_LIMIT))));
            tokio::select! {
                Ok(answer) = calls.server.call(request) => {
                    reply::holding(answer.map(|body| counted(body, calls.unread)), place)
                }
                status = cut => reply::of_status(&status),
            }
        }
    }
}

/// Counts `body` towards `unread` until it is sent. tonic's server ends each body with a status, so the body returns no
/// errors. A failed call has its status in the headers, and must have no body.
fn counted(body: tonic::body::Body, unread: Budget) -> Body {
    if body.is_end_stream() {
        return Empty::new().map_err(|never| match never {}).boxed_unsync();
    }
    let frames = BodyStream::new(body).filter_map(|frame| ready(frame.ok()));
    let frames = frames.map(move |frame| Ok(held(frame, &unread)));
    StreamBody::new(frames).boxed_unsync()
}

/// Counts `frame` towards `unread` until it is sent. If there is no memory for the frame, returns trailers with an
/// error status instead.
fn held(frame: Frame<Bytes>, unread: &Budget) -> Frame<Bytes> {
    let data = match frame.into_data() {
        Ok(data) => data,
        Err(trailers) => return trailers,
    };
    let mut held = unread.held();
    match held.grow(data.len()) {
        Ok(()) => Frame::data(held.with(data)),
        Err(_) => {
            let status = errors::unread_replies(NAME, unread.limit());
            Frame::trailers(grpc::trailers(&status))
        }
    }
}

#[derive(Clone, Debug)]
struct AdminService(Arc<Switch>);

#[tonic::async_trait]
impl Admin for AdminService {
    type WatchStateStream = BoxStream<'static, Result<State, Status>>;

    async fn get_state(
        &self,
        _request: Request<GetStateRequest>,
    ) -> Result<Response<State>, Status> {
        Ok(Response::new(state::settled(&self.0).await?))
    }

    async fn watch_state(
        &self,
        _request: Request<WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        let switch = Arc::clone(&self.0);
        let states = stream::unfold(None, move |last| next(Arc::clone(&switch), last));
        let ended = self.0.ending.begun.clone().cancelled_owned();
        Ok(Response::new(states.take_until(ended).boxed()))
    }

    async fn reload(
        &self,
        _request: Request<ReloadRequest>,
    ) -> Result<Response<ReloadResponse>, Status> {
        let switch = &self.0;
        let outcome = reload::requested(switch).await;
        let reload = state::reload(&outcome.ok_or_else(errors::too_many_reloads)?);
        Ok(Response::new(ReloadResponse {
            reload: Some(reload),
            restart_problems: state::restart_problems(switch),
        }))
    }

    async fn plan_reload(
        &self,
        _request: Request<PlanReloadRequest>,
    ) -> Result<Response<PlanReloadResponse>, Status> {
        let switch = &self.0;
        let plan = dry_run::plan(switch).await;
        let plan = plan.ok_or_else(errors::unread_configuration)?;
        Ok(Response::new(PlanReloadResponse {
            would_change: plan.would_change(),
            changes: plan.changes,
            problems: plan.problems.join("\n"),
            next_start: plan.next_start,
            undo: plan.undo,
            restart_problems: state::restart_problems(switch),
        }))
    }

    async fn forget(
        &self,
        request: Request<ForgetRequest>,
    ) -> Result<Response<ForgetResponse>, Status> {
        let forgotten = forget::forget(&self.0, &request.into_inner().backend).await;
        forgotten.map_err(|cause| errors::not_forgotten(&cause))?;
        Ok(Response::new(ForgetResponse {}))
    }
}

/// The next state of a watch: waits until the state differs from `last`.
async fn next(
    switch: Arc<Switch>,
    last: Option<State>,
) -> Option<(Result<State, Status>, Option<State>)> {
    loop {
        let state = match state::settled(&switch).await {
            Ok(state) => state,
            Err(status) => return Some((Err(status), None)),
        };
        if last.as_ref() != Some(&state) {
            return Some((Ok(state.clone()), Some(state)));
        }
        tokio::time::sleep(LOOKS_APART).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_without_memory_ends_with_a_status() {
        let unread = Budget::for_messages(1);
        let mut all = unread.held();
        all.grow(unread.limit()).unwrap();
        let frame = held(Frame::data(Bytes::from_static(b"state")), &unread);
        assert!(frame.is_trailers());
        drop(all);
        let frame = held(Frame::data(Bytes::from_static(b"state")), &unread);
        assert_eq!(unread.used(), 5);
        drop(frame);
        assert_eq!(unread.used(), 0);
    }
}
