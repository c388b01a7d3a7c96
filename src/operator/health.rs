//! How criswitch serves the node, as `criswitch status` says: for metrics, and for gRPC's health service
//! (`grpc.health.v1.Health`). The empty service is the node, and the name of a backend is that backend.

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
use crate::topology::Live;

/// The time between two looks at the health of a service, for a client that watches it.
const LOOKS_APART: Duration = Duration::from_secs(1);

/// The verdict on the node, by what the backends last answered.
pub(super) fn of_node(switch: &Switch) -> Level {
    let live = switch.live();
    if live
        .backends
        .iter()
        .any(|it| fails_lists(switch, &live, it))
    {
        return Level::ListsFailing;
    }
    if status::faulty(&live).is_empty() {
        Level::Serving
    } else if status::silent_default(&live, switch.created).is_some() {
        Level::NodeNotReady
    } else {
        Level::Degraded
    }
}

fn fails_lists(switch: &Switch, live: &Live, backend: &Backend) -> bool {
    fallback::lists_problem(live, &switch.owners(), &switch.question, backend).is_some()
}

/// Whether a service is served. A degraded node serves: the pods of healthy backends are not affected.
fn of_service(switch: &Switch, service: &str) -> ServingStatus {
    let live = switch.live();
    let serves = if service.is_empty() {
        matches!(of_node(switch), Level::Serving | Level::Degraded)
    } else if let Some(backend) = live.backends.iter().find(|it| *it.name() == *service) {
        !fails_lists(switch, &live, backend) && !status::faulty(&live).contains(&backend.id)
    } else {
        return ServingStatus::ServiceUnknown;
    };
    if serves {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

/// Looks at a service on another thread.
///
/// # Errors
/// `Internal` if the look panics.
async fn look(switch: &Arc<Switch>, service: &str) -> Result<ServingStatus, Status> {
    let (own, service) = (Arc::clone(switch), service.to_owned());
    let looked = switch.watchers.in_turn(move || of_service(&own, &service));
    looked.await.ok_or_else(errors::no_state)
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
        match look(&self.0, &service).await? {
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
                    let status = look(&switch, &service).await.ok()?;
                    if last != Some(status) {
                        return Some((Ok(response(status)), Some(status)));
                    }
                    tokio::time::sleep(LOOKS_APART).await;
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
