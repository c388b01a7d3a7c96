//! The service `criswitch.admin.v1`: the state of the daemon, reloads and their dry run, and forgetting a backend.
//! criswitch serves it on the CRI socket, beside gRPC's health service.

mod state;

use std::convert::Infallible;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::admin::admin_server::{Admin, AdminServer};
use criswitch_cri::codec::admin::{
    ForgetRequest, ForgetResponse, GetMetricsRequest, GetStateRequest, MetricsPage,
    PlanReloadRequest, PlanReloadResponse, ReloadRequest, ReloadResponse, State, WatchStateRequest,
};
use criswitch_cri::codec::{frames, grpc};
use futures_util::StreamExt;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody};
use prost::Message;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_server::HealthServer;
use tower::Service;

use crate::call::reply::{self, Body, Reply};
use crate::errors;
use crate::limits::budget::Budget;
use crate::limits::incoming::IncomingBody;
use crate::limits::places::User;
use crate::limits::{ADMIN_LIMIT, MAX_ADMIN_REQUEST};
use crate::operator::health::HealthService;
use crate::operator::metrics;
use crate::switch::Switch;
use crate::switch::dry_run;
use crate::switch::forget;
use crate::switch::watchers::StateFrame;
use crate::telemetry::counters::Reason;

/// How often the state is made for the clients that watch it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The name of the admin service: the first part of the path of each of its calls.
const NAME: &str = AdminServer::<AdminService>::NAME;
/// The name of gRPC's health service.
const HEALTH: &str = HealthServer::<HealthService>::NAME;

/// The path of the call whose messages all clients share.
const WATCH_STATE: &str = "/criswitch.admin.v1.Admin/WatchState";

/// Makes the states that all watching clients share, as long as the returned task lives.
pub(crate) fn keep_states(switch: &Arc<Switch>) -> JoinSet<Infallible> {
    let mut task = JoinSet::new();
    task.spawn(make_states(Arc::clone(switch)));
    task
}

async fn make_states(switch: Arc<Switch>) -> Infallible {
    let watchers = &switch.watchers;
    let mut last = None;
    loop {
        if watchers.is_empty() {
            last = None;
            watchers.wait_for_watcher().await;
            continue;
        }
        let state = made(&switch).await;
        let is_same = matches!((&last, &state), (Some(last), Ok(state)) if last == state);
        if !is_same || watchers.has_none() {
            watchers.send(match &state {
                Ok(state) => Ok(frames::frame(&state.encode_to_vec())),
                Err(status) => Err(status.clone()),
            });
        }
        last = state.ok();
        // A client that begins to watch gets a state at once.
        tokio::time::timeout(LOOK_INTERVAL, watchers.wait_for_watcher())
            .await
            .ok();
    }
}

async fn made(switch: &Arc<Switch>) -> Result<State, Status> {
    state::settled(&switch.live(), switch.start_by).await;
    let own = Arc::clone(switch);
    let made = switch.watchers.run_serialized(move || state::now(&own));
    made.await.ok_or_else(errors::no_state)?
}

/// The reply to `WatchState`: the current state, then each state that differs from the last one.
fn watch(switch: &Switch) -> Reply {
    let frames = stream::unfold(Some(switch.watchers.watch()), next);
    let ended = switch.ending.begun.clone().cancelled_owned();
    let end = stream::once(ready(Ok(Frame::trailers(grpc::ok_trailers()))));
    reply::of_frames(frames.take_until(ended).chain(end))
}

/// The next frame of a watch, and the watch itself unless it ends.
async fn next(
    watched: Option<watch::Receiver<Option<StateFrame>>>,
) -> Option<(
    Result<Frame<Bytes>, Infallible>,
    Option<watch::Receiver<Option<StateFrame>>>,
)> {
    let mut watched = watched?;
    loop {
        watched.changed().await.ok()?;
        let state = watched.borrow_and_update().clone();
        match state {
            Some(Ok(frame)) => return Some((Ok(Frame::data(frame)), Some(watched))),
            Some(Err(status)) => return Some((Ok(Frame::trailers(grpc::trailers(&status))), None)),
            None => {}
        }
    }
}

/// Serves calls of the admin service within their limits.
#[derive(Clone, Debug)]
pub(crate) struct AdminCalls {
    switch: Arc<Switch>,
    user: User,
    /// The connection's memory for replies that the client has not read.
    unread: Budget,
    server: AdminServer<AdminService>,
    health: HealthServer<HealthService>,
}

impl AdminCalls {
    pub(crate) fn new(switch: &Arc<Switch>, user: User, unread: &Budget) -> AdminCalls {
        let server = AdminServer::new(AdminService(Arc::clone(switch)));
        let health = HealthServer::new(HealthService(Arc::clone(switch)));
        AdminCalls {
            switch: Arc::clone(switch),
            user,
            unread: unread.clone(),
            server: server.max_decoding_message_size(MAX_ADMIN_REQUEST),
            health: health.max_decoding_message_size(MAX_ADMIN_REQUEST),
        }
    }

    pub(crate) fn has(path: &str) -> bool {
        [NAME, HEALTH].map(Some).contains(&service_of(path))
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
                    switch.counts.reject(Reason::Calls);
                    let (path, most, what) = (request.uri().path(), limit.most, limit.what);
                    let status = errors::too_many_calls(path, most, what);
                    return reply::rejected(reply::of_status(&status), &calls.unread);
                }
            };
            let late = Instant::now() + ADMIN_LIMIT;
            let cut = switch.ending.cut(NAME, Some((late, ADMIN_LIMIT)));
            let unread = calls.unread;
            let served = async {
                let path = request.uri().path();
                if path == WATCH_STATE {
                    return watch(switch).map(|body| counted(body, unread));
                }
                let answer = match service_of(path) {
                    Some(HEALTH) => calls.health.call(request).await,
                    _ => calls.server.call(request).await,
                };
                match answer {
                    Ok(answer) => answer.map(|body| counted(body, unread)),
                    Err(never) => match never {},
                }
            };
            tokio::select! {
                answer = served => reply::holding(answer, place),
                status = cut => reply::of_status(&status),
            }
        }
    }
}

/// The service in the path of a call.
fn service_of(path: &str) -> Option<&str> {
    path.split('/').nth(1)
}

/// Counts `body` towards `unread` until it is sent. Each body ends with a status, so the body returns no errors. A
/// failed call has its status in the headers, and must have no body.
fn counted(
    body: impl http_body::Body<Data = Bytes, Error: Send> + Send + 'static,
    unread: Budget,
) -> Body {
    if body.is_end_stream() {
        return Empty::new().map_err(|never| match never {}).boxed_unsync();
    }
    let frames = BodyStream::new(body)
        .filter_map(|frame| ready(frame.ok()))
        .map(move |frame| Ok(count_until_sent(frame, &unread)));
    StreamBody::new(frames).boxed_unsync()
}

/// Counts `frame` towards `unread` until it is sent. If there is no memory for the frame, returns trailers with an
/// error status instead.
fn count_until_sent(frame: Frame<Bytes>, unread: &Budget) -> Frame<Bytes> {
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
    type WatchStateStream = stream::Empty<Result<State, Status>>;

    async fn get_state(
        &self,
        _request: Request<GetStateRequest>,
    ) -> Result<Response<State>, Status> {
        Ok(Response::new(made(&self.0).await?))
    }

    async fn watch_state(
        &self,
        _request: Request<WatchStateRequest>,
    ) -> Result<Response<Self::WatchStateStream>, Status> {
        // [`AdminCalls::answer`] serves this call: tonic would encode each state for each client.
        Ok(Response::new(stream::empty()))
    }

    async fn reload(
        &self,
        _request: Request<ReloadRequest>,
    ) -> Result<Response<ReloadResponse>, Status> {
        let switch = &self.0;
        let outcome = switch.reload_queue.requested().await;
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
        let plan = dry_run::plan(switch)
            .await
            .ok_or_else(errors::unread_configuration)?;
        Ok(Response::new(PlanReloadResponse {
            would_change: plan.would_change(),
            changes: plan.changes,
            problems: plan.problems,
            next_start: plan.next_start,
            undo: plan.undo,
            restart_problems: state::restart_problems(switch),
        }))
    }

    async fn forget(
        &self,
        request: Request<ForgetRequest>,
    ) -> Result<Response<ForgetResponse>, Status> {
        forget::forget(&self.0, &request.into_inner().backend)
            .await
            .map_err(|cause| errors::not_forgotten(&cause))?;
        Ok(Response::new(ForgetResponse {}))
    }

    async fn get_metrics(
        &self,
        _request: Request<GetMetricsRequest>,
    ) -> Result<Response<MetricsPage>, Status> {
        let switch = Arc::clone(&self.0);
        let made = self
            .0
            .watchers
            .run_serialized(move || metrics::page(&switch));
        let page = made.await.ok_or_else(errors::no_state)?;
        let text = page.map_err(|error| errors::no_metrics(&error))?;
        Ok(Response::new(MetricsPage { text }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(unix)]
    use crate::backend::connect::Dialer;
    #[cfg(unix)]
    use criswitch_config::Config;

    #[cfg(unix)] // A pipe has another path.
    #[tokio::test]
    async fn all_watchers_share_one_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("criswitch.toml");
        let runc = directory.path().join("runc.sock");
        let text = format!(
            "default_handler = 'runc'\n[handlers]\nrunc = '{}'\n",
            runc.display()
        );
        std::fs::write(&path, text).unwrap();
        let switch = Switch::new(Config::load(&path).unwrap(), &Dialer::Socket);
        let switch = Arc::new(switch);
        let _states = keep_states(&switch);
        let mut states = Vec::new();
        for mut body in [(); 3].map(|()| watch(&switch).into_body()) {
            let frame = body.frame().await.unwrap().unwrap();
            states.push(frame.into_data().unwrap());
        }
        let [first, others @ ..] = &states[..] else {
            panic!()
        };
        assert!(!first.is_empty() && others.iter().all(|it| it.as_ptr() == first.as_ptr()));
    }

    #[test]
    fn a_reply_without_memory_ends_with_a_status() {
        let unread = Budget::for_messages(1);
        let mut all = unread.held();
        all.grow(unread.limit()).unwrap();
        let frame = count_until_sent(Frame::data(Bytes::from_static(b"state")), &unread);
        assert!(frame.is_trailers());
        drop(all);
        let frame = count_until_sent(Frame::data(Bytes::from_static(b"state")), &unread);
        assert_eq!(unread.used(), 5);
        drop(frame);
        assert_eq!(unread.used(), 0);
    }
}
