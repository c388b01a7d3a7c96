//! The health of the node, which is the verdict of `criswitch status`: for metrics, and for gRPC's health service
//! (`grpc.health.v1.Health`). In the health service, the empty name means the node, and any other name means the
//! backend with this name.

use std::sync::Arc;
use std::time::Duration;

use criswitch_cri::facts::Level;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::backend::Backend;
use crate::dispatch::fanout::{fallback, status};
use crate::errors;
use crate::switch::Switch;
use crate::switch::watchers::NodeHealth;
use crate::topology::Live;

/// The time between two checks of the health of the node, for all clients that watch it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The verdict on the node, from the last answers of the backends, and from whether lists fail because of a backend.
pub(super) fn level(switch: &Switch, live: &Live, lists_fail: bool) -> Level {
    if lists_fail {
        Level::ListsFailing
    } else if status::faulty(live).is_empty() {
        Level::Serving
    } else if status::silent_default(live, switch.created).is_some() {
        Level::NodeNotReady
    } else {
        Level::Degraded
    }
}

/// Whether the first lists after a start wait for the backend.
pub(super) fn delays_lists(backend: &Backend) -> bool {
    backend.is_awaited() && !backend.connection.is_ready()
}

/// Checks the health of the node and of each backend. A degraded node counts as serving, because the pods of healthy
/// backends are not affected.
fn look(switch: &Switch) -> NodeHealth {
    let live = switch.live();
    let backends = live.backends.iter();
    let failing: Vec<bool> = backends
        .map(|it| {
            delays_lists(it)
                || fallback::lists_problem(&live, &switch.owners, &switch.question, it).is_some()
        })
        .collect();
    let level = level(switch, &live, failing.contains(&true));
    let faulty = status::faulty(&live);
    NodeHealth {
        node: matches!(level, Level::Serving | Level::Degraded),
        backends: live
            .backends
            .iter()
            .zip(failing)
            .map(|(backend, fails)| (backend.name(), !fails && !faulty.contains(&backend.id)))
            .collect(),
    }
}

/// The health of a service. Checks the health on another thread, unless the last check is younger than `age`.
///
/// # Errors
/// `Internal` if the check panics.
async fn serving(
    switch: &Arc<Switch>,
    service: &str,
    age: Duration,
) -> Result<ServingStatus, Status> {
    let own = Arc::clone(switch);
    let health = switch.watchers.health(age, move || look(&own)).await;
    Ok(match health.ok_or_else(errors::no_state)?.of(service) {
        Some(true) => ServingStatus::Serving,
        Some(false) => ServingStatus::NotServing,
        None => ServingStatus::ServiceUnknown,
    })
}

/// gRPC's health service.
#[derive(Clone, Debug)]
pub(super) struct HealthService(pub(super) Arc<Switch>);

#[tonic::async_trait]
impl Health for HealthService {
    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match serving(&self.0, &service, Duration::ZERO).await? {
            ServingStatus::ServiceUnknown => Err(errors::no_such_service(&service)),
            status => Ok(Response::new(response(status))),
        }
    }

    /// Sends the status of the service now, and after each change.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let (switch, service) = (Arc::clone(&self.0), request.into_inner().service);
        let ended = switch.ending.begun.clone().cancelled_owned();
        let statuses = stream::unfold(None, move |last| {
            let (switch, service) = (Arc::clone(&switch), service.clone());
            async move {
                loop {
                    let status = serving(&switch, &service, LOOK_INTERVAL).await.ok()?;
                    if last != Some(status) {
                        return Some((Ok(response(status)), Some(status)));
                    }
                    tokio::time::sleep(LOOK_INTERVAL).await;
                }
            }
        });
        Ok(Response::new(statuses.take_until(ended).boxed()))
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}
