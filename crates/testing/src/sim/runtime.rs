//! The RuntimeService of a simulated runtime: each RPC is one call into the store.

use criswitch_cri::codec::cri;
use criswitch_cri::codec::cri::runtime_service_server::RuntimeService;
use futures_util::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use super::Sim;
use super::cut::interruptible;
use super::store::{Answer, Store};

pub type Reply<T> = Answer<Response<T>>;

/// Both services of one simulated runtime.
#[derive(Clone)]
pub struct Service(pub Sim);

impl Service {
    /// Answers from the store in one step, so that no other call sees an incomplete change.
    pub fn with<Q, A>(
        &self,
        r: Request<Q>,
        answer: impl FnOnce(&mut Store, Q) -> Answer<A>,
    ) -> Reply<A> {
        answer(&mut self.0.store(), r.into_inner()).map(Response::new)
    }

    /// Answers with a stream list: `items_a_message` items in each message.
    pub fn stream<I, M>(
        &self,
        list: impl FnOnce(&Store) -> Vec<I>,
        message: impl Fn(Vec<I>) -> M,
    ) -> Reply<BoxStream<M>>
    where
        I: Clone,
        M: Send + 'static,
    {
        let store = self.0.store();
        let items = list(&store);
        let parts = items.chunks(store.settings.items_a_message);
        let empty = store.settings.empty_message_first.then(Vec::new);
        let parts = empty.into_iter().chain(parts.map(<[I]>::to_vec));
        let messages = parts.map(message).collect();
        Ok(Response::new(interruptible(self.0.clone(), messages)))
    }
}

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, r: Request<cri::VersionRequest>) -> Reply<cri::VersionResponse> {
        self.with(r, |store, _| Ok(store.version()))
    }

    async fn run_pod_sandbox(
        &self,
        r: Request<cri::RunPodSandboxRequest>,
    ) -> Reply<cri::RunPodSandboxResponse> {
        self.with(r, |store, r| {
            Ok(cri::RunPodSandboxResponse {
                pod_sandbox_id: store.run_pod(r.config, &r.runtime_handler)?,
            })
        })
    }

    async fn stop_pod_sandbox(
        &self,
        r: Request<cri::StopPodSandboxRequest>,
    ) -> Reply<cri::StopPodSandboxResponse> {
        self.with(r, |store, r| {
            store.stop_pod(&r.pod_sandbox_id)?;
            Ok(cri::StopPodSandboxResponse {})
        })
    }

    async fn remove_pod_sandbox(
        &self,
        r: Request<cri::RemovePodSandboxRequest>,
    ) -> Reply<cri::RemovePodSandboxResponse> {
        self.with(r, |store, r| {
            store.remove_pod(&r.pod_sandbox_id)?;
            Ok(cri::RemovePodSandboxResponse {})
        })
    }

    async fn pod_sandbox_status(
        &self,
        r: Request<cri::PodSandboxStatusRequest>,
    ) -> Reply<cri::PodSandboxStatusResponse> {
        self.with(r, |store, r| store.pod_status(&r))
    }

    async fn list_pod_sandbox(
        &self,
        r: Request<cri::ListPodSandboxRequest>,
    ) -> Reply<cri::ListPodSandboxResponse> {
        self.with(r, |store, r| {
            Ok(cri::ListPodSandboxResponse {
                items: store.list_pods(r.filter),
            })
        })
    }

    async fn stream_pod_sandboxes(
        &self,
        r: Request<cri::StreamPodSandboxesRequest>,
    ) -> Reply<BoxStream<cri::StreamPodSandboxesResponse>> {
        self.stream(
            |store| store.list_pods(r.into_inner().filter),
            |pod_sandboxes| cri::StreamPodSandboxesResponse { pod_sandboxes },
        )
    }

    async fn create_container(
        &self,
        r: Request<cri::CreateContainerRequest>,
    ) -> Reply<cri::CreateContainerResponse> {
        self.with(r, |store, r| {
            Ok(cri::CreateContainerResponse {
                container_id: store.create_container(&r.pod_sandbox_id, r.config)?,
            })
        })
    }

    async fn start_container(
        &self,
        r: Request<cri::StartContainerRequest>,
    ) -> Reply<cri::StartContainerResponse> {
        self.with(r, |store, r| {
            store.start_container(&r.container_id)?;
            Ok(cri::StartContainerResponse {})
        })
    }

    async fn stop_container(
        &self,
        r: Request<cri::StopContainerRequest>,
    ) -> Reply<cri::StopContainerResponse> {
        self.with(r, |store, r| {
            store.stop_container(&r.container_id)?;
            Ok(cri::StopContainerResponse {})
        })
    }

    async fn remove_container(
        &self,
        r: Request<cri::RemoveContainerRequest>,
    ) -> Reply<cri::RemoveContainerResponse> {
        self.with(r, |store, r| {
            store.remove_container(&r.container_id)?;
            Ok(cri::RemoveContainerResponse {})
        })
    }

    async fn list_containers(
        &self,
        r: Request<cri::ListContainersRequest>,
    ) -> Reply<cri::ListContainersResponse> {
        self.with(r, |store, r| {
            Ok(cri::ListContainersResponse {
                containers: store.list_containers(r.filter),
            })
        })
    }

    async fn stream_containers(
        &self,
        r: Request<cri::StreamContainersRequest>,
    ) -> Reply<BoxStream<cri::StreamContainersResponse>> {
        self.stream(
            |store| store.list_containers(r.into_inner().filter),
            |containers| cri::StreamContainersResponse { containers },
        )
    }

    async fn container_status(
        &self,
        r: Request<cri::ContainerStatusRequest>,
    ) -> Reply<cri::ContainerStatusResponse> {
        self.with(r, |store, r| store.container_status(&r))
    }

    async fn update_container_resources(
        &self,
        r: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Reply<cri::UpdateContainerResourcesResponse> {
        self.with(r, |store, r| {
            store.update_container(r)?;
            Ok(cri::UpdateContainerResourcesResponse {})
        })
    }

    async fn reopen_container_log(
        &self,
        r: Request<cri::ReopenContainerLogRequest>,
    ) -> Reply<cri::ReopenContainerLogResponse> {
        self.with(r, |store, r| {
            store.running(&r.container_id)?;
            Ok(cri::ReopenContainerLogResponse {})
        })
    }

    async fn exec_sync(&self, r: Request<cri::ExecSyncRequest>) -> Reply<cri::ExecSyncResponse> {
        self.with(r, |store, r| store.exec_sync(&r))
    }

    async fn exec(&self, r: Request<cri::ExecRequest>) -> Reply<cri::ExecResponse> {
        self.with(r, |store, r| {
            Ok(cri::ExecResponse {
                url: store.container_url("exec", &r.container_id)?,
            })
        })
    }

    async fn attach(&self, r: Request<cri::AttachRequest>) -> Reply<cri::AttachResponse> {
        self.with(r, |store, r| {
            Ok(cri::AttachResponse {
                url: store.container_url("attach", &r.container_id)?,
            })
        })
    }

    async fn port_forward(
        &self,
        r: Request<cri::PortForwardRequest>,
    ) -> Reply<cri::PortForwardResponse> {
        self.with(r, |store, r| {
            Ok(cri::PortForwardResponse {
                url: store.pod_url("portforward", &r.pod_sandbox_id)?,
            })
        })
    }

    async fn container_stats(
        &self,
        r: Request<cri::ContainerStatsRequest>,
    ) -> Reply<cri::ContainerStatsResponse> {
        self.with(r, |store, r| {
            Ok(cri::ContainerStatsResponse {
                stats: Some(store.container_stats(&r.container_id)?),
            })
        })
    }

    async fn list_container_stats(
        &self,
        r: Request<cri::ListContainerStatsRequest>,
    ) -> Reply<cri::ListContainerStatsResponse> {
        self.with(r, |store, r| {
            Ok(cri::ListContainerStatsResponse {
                stats: store.list_container_stats(r.filter),
            })
        })
    }

    async fn stream_container_stats(
        &self,
        r: Request<cri::StreamContainerStatsRequest>,
    ) -> Reply<BoxStream<cri::StreamContainerStatsResponse>> {
        self.stream(
            |store| store.list_container_stats(r.into_inner().filter),
            |container_stats| cri::StreamContainerStatsResponse { container_stats },
        )
    }

    async fn pod_sandbox_stats(
        &self,
        r: Request<cri::PodSandboxStatsRequest>,
    ) -> Reply<cri::PodSandboxStatsResponse> {
        self.with(r, |store, r| {
            Ok(cri::PodSandboxStatsResponse {
                stats: Some(store.pod_stats(&r.pod_sandbox_id)?),
            })
        })
    }

    async fn list_pod_sandbox_stats(
        &self,
        r: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Reply<cri::ListPodSandboxStatsResponse> {
        self.with(r, |store, r| {
            Ok(cri::ListPodSandboxStatsResponse {
                stats: store.list_pod_stats(r.filter),
            })
        })
    }

    async fn stream_pod_sandbox_stats(
        &self,
        r: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Reply<BoxStream<cri::StreamPodSandboxStatsResponse>> {
        self.stream(
            |store| store.list_pod_stats(r.into_inner().filter),
            |pod_sandbox_stats| cri::StreamPodSandboxStatsResponse { pod_sandbox_stats },
        )
    }

    async fn update_runtime_config(
        &self,
        r: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Reply<cri::UpdateRuntimeConfigResponse> {
        self.with(r, |store, r| {
            store.network = r.runtime_config.and_then(|config| config.network_config);
            Ok(cri::UpdateRuntimeConfigResponse {})
        })
    }

    async fn status(&self, r: Request<cri::StatusRequest>) -> Reply<cri::StatusResponse> {
        self.with(r, |store, r| Ok(store.status(&r)))
    }

    async fn checkpoint_container(
        &self,
        r: Request<cri::CheckpointContainerRequest>,
    ) -> Reply<cri::CheckpointContainerResponse> {
        self.with(r, |store, r| {
            store.running(&r.container_id)?;
            Ok(cri::CheckpointContainerResponse {})
        })
    }

    async fn checkpoint_pod(
        &self,
        r: Request<cri::CheckpointPodRequest>,
    ) -> Reply<cri::CheckpointPodResponse> {
        self.with(r, |store, r| {
            store.checkpoint_pod(&r)?;
            Ok(cri::CheckpointPodResponse {})
        })
    }

    async fn restore_pod(
        &self,
        r: Request<cri::RestorePodRequest>,
    ) -> Reply<cri::RestorePodResponse> {
        self.with(r, |store, r| store.restore_pod(r))
    }

    /// Streams events until the connection ends, or until [`Sim::end_events`].
    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Reply<BoxStream<cri::ContainerEventResponse>> {
        let events = BroadcastStream::new(self.0.store().events.subscribe());
        let events =
            events.map(|event| event.unwrap_or_else(|lost| Err(Status::unknown(lost.to_string()))));
        Ok(Response::new(Box::pin(events)))
    }

    async fn list_metric_descriptors(
        &self,
        r: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Reply<cri::ListMetricDescriptorsResponse> {
        self.with(r, |store, _| {
            Ok(cri::ListMetricDescriptorsResponse {
                descriptors: store.settings.descriptors.clone(),
            })
        })
    }

    async fn list_pod_sandbox_metrics(
        &self,
        r: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Reply<cri::ListPodSandboxMetricsResponse> {
        self.with(r, |store, _| {
            Ok(cri::ListPodSandboxMetricsResponse {
                pod_metrics: store.pod_metrics(),
            })
        })
    }

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Reply<BoxStream<cri::StreamPodSandboxMetricsResponse>> {
        self.stream(Store::pod_metrics, |pod_sandbox_metrics| {
            cri::StreamPodSandboxMetricsResponse {
                pod_sandbox_metrics,
            }
        })
    }

    async fn runtime_config(
        &self,
        r: Request<cri::RuntimeConfigRequest>,
    ) -> Reply<cri::RuntimeConfigResponse> {
        self.with(r, |store, _| {
            let cgroup_driver = store.settings.cgroup_driver.into();
            Ok(cri::RuntimeConfigResponse {
                linux: Some(cri::LinuxRuntimeConfiguration { cgroup_driver }),
            })
        })
    }

    async fn update_pod_sandbox_resources(
        &self,
        r: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Reply<cri::UpdatePodSandboxResourcesResponse> {
        self.with(r, |store, r| {
            store.pod(&r.pod_sandbox_id)?;
            Ok(cri::UpdatePodSandboxResourcesResponse {})
        })
    }
}
