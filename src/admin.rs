//! `criswitch.admin.v1`: what the daemon says about itself, reload and forget. Served on the socket of the CRI.

mod state;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use http_body::Body as _;
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::server::NamedService;
use tonic::{Request, Response, Status};
use tower::Service;

use crate::call::reply::{self, Body, Reply};
use crate::codec::admin::admin_server::{Admin, AdminServer};
use crate::codec::admin::{
    ForgetRequest, ForgetResponse, GetStateRequest, ReloadRequest, ReloadResponse, State,
    WatchStateRequest,
};
use crate::errors;
use crate::limits::places::User;
use crate::limits::{ADMIN_LIMIT, MAX_ADMIN_REQUEST};
use crate::switch::Switch;
use crate::switch::forget;
use crate::switch::reload;
use crate::telemetry::counters::Reason;

/// How often a watched state is compared with the one that was last sent.
const LOOKS_APART: Duration = Duration::from_secs(1);

/// The service's name, which the paths of its calls begin with.
const NAME: &str = AdminServer::<AdminService>::NAME;

/// The calls of the admin service, within its limits.
#[derive(Clone, Debug)]
pub(crate) struct AdminCalls {
    switch: Arc<Switch>,
    user: User,
    server: AdminServer<AdminService>,
}

impl AdminCalls {
    /// The calls of a client of `user`.
    pub(crate) fn new(switch: &Arc<Switch>, user: User) -> AdminCalls {
        let server = AdminServer::new(AdminService(Arc::clone(switch)));
        AdminCalls {
            switch: Arc::clone(switch),
            user,
            server: server.max_decoding_message_size(MAX_ADMIN_REQUEST),
        }
    }

    /// Whether the path of a request is one of the service.
    pub(crate) fn has(path: &str) -> bool {
        path.split('/').nth(1) == Some(NAME)
    }

    /// The reply. It keeps the place of the call until it is sent.
    pub(crate) fn answer(
        &self,
        request: http::Request<Incoming>,
    ) -> impl Future<Output = Reply> + use<> {
        let (switch, user, mut server) = (Arc::clone(&self.switch), self.user, self.server.clone());
        async move {
            let place = match switch.admin_calls.place(user) {
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
                Ok(answer) = server.call(request) => reply::holding(answer.map(without_errors), place),
                status = cut => reply::of_status(&status),
            }
        }
    }
}

/// A body of tonic's server ends with a status in any case, so it has no errors. An error's status is in the headers of a
/// reply without a body, which must stay one.
fn without_errors(body: tonic::body::Body) -> Body {
    if body.is_end_stream() {
        return Empty::new().map_err(|never| match never {}).boxed_unsync();
    }
    let frames = BodyStream::new(body).filter_map(|frame| ready(frame.ok().map(Ok)));
    StreamBody::new(frames).boxed_unsync()
}

/// The admin service of a switch.
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

    async fn forget(
        &self,
        request: Request<ForgetRequest>,
    ) -> Result<Response<ForgetResponse>, Status> {
        let forgotten = forget::forget(&self.0, &request.into_inner().backend).await;
        forgotten.map_err(|cause| errors::not_forgotten(&cause))?;
        Ok(Response::new(ForgetResponse {}))
    }
}

/// The state as soon as it differs from the last one.
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
