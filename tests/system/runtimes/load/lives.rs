//! Times the calls of a pod's life on a real runtime, directly and through criswitch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::cri::runtime_service_client::RuntimeServiceClient;
use serde_json::{Value as Json, json};
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::creations::{container_config, pod_config};
use crate::{connect, folder_of, request};

/// The durations of the calls by RPC, and of whole lives under [`LIFE`].
type Times = BTreeMap<&'static str, Vec<Duration>>;

/// The key in [`Times`] for the sum of the times of a pod's calls.
const LIFE: &str = "life";

/// Runs `pods` pods at each of two sockets, in turn, so that both see the same load of the machine. Returns the medians
/// in milliseconds and their ratios.
///
/// # Errors
/// A call has failed.
pub(crate) async fn compare(direct: &str, through: &str, pods: u32) -> Result<Json> {
    let sockets = [direct, through];
    let mut times = [Times::new(), Times::new()];
    for n in 0..2 * pods {
        // Pairs alternate in their order, because the second pod of a pair may find warmer caches.
        let which = ((n + n / 2) % 2) as usize;
        let life = Life {
            cri: connect(sockets[which])?,
            times: &mut times[which],
        };
        let parent = folder_of(through);
        life.live(pod_config(&parent, &format!("life-{n}"))).await?;
    }
    let [direct, through] =
        times.map(|times| times.into_iter().map(|(rpc, all)| (rpc, median_ms(all))));
    let rows = direct.zip(through).map(|((rpc, direct), (_, through))| {
        let row = json!({ "directMs": direct, "throughMs": through, "ratio": through / direct });
        (rpc.to_owned(), row)
    });
    Ok(Json::Object(rows.collect()))
}

fn median_ms(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1000.0
}

/// A pod's life, whose calls are timed.
struct Life<'t> {
    cri: RuntimeServiceClient<Channel>,
    times: &'t mut Times,
}

impl Life<'_> {
    async fn live(mut self, config: cri::PodSandboxConfig) -> Result<()> {
        // The first call also opens the connection, so it is not timed.
        self.cri.version(request(Default::default())).await?;
        let begun = Instant::now();
        let asked = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: "runc".to_owned(),
        };
        let mut cri = self.cri.clone();
        let pod = self
            .timed("RunPodSandbox", cri.run_pod_sandbox(request(asked)))
            .await?
            .pod_sandbox_id;
        let asked = cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.clone(),
            verbose: false,
        };
        self.timed("PodSandboxStatus", cri.pod_sandbox_status(request(asked)))
            .await?;
        let asked = cri::CreateContainerRequest {
            pod_sandbox_id: pod.clone(),
            config: Some(container_config()),
            sandbox_config: Some(config),
        };
        let container = self
            .timed("CreateContainer", cri.create_container(request(asked)))
            .await?
            .container_id;
        let asked = cri::StartContainerRequest {
            container_id: container.clone(),
        };
        self.timed("StartContainer", cri.start_container(request(asked)))
            .await?;
        let asked = cri::ContainerStatusRequest {
            container_id: container.clone(),
            verbose: false,
        };
        self.timed("ContainerStatus", cri.container_status(request(asked)))
            .await?;
        self.timed(
            "ListPodSandbox",
            cri.list_pod_sandbox(request(Default::default())),
        )
        .await?;
        self.timed(
            "ListContainers",
            cri.list_containers(request(Default::default())),
        )
        .await?;
        let asked = cri::ExecSyncRequest {
            container_id: container.clone(),
            cmd: vec!["true".to_owned()],
            timeout: 0,
        };
        self.timed("ExecSync", cri.exec_sync(request(asked)))
            .await?;
        let asked = cri::StopContainerRequest {
            container_id: container.clone(),
            timeout: 0,
        };
        self.timed("StopContainer", cri.stop_container(request(asked)))
            .await?;
        let asked = cri::RemoveContainerRequest {
            container_id: container,
        };
        self.timed("RemoveContainer", cri.remove_container(request(asked)))
            .await?;
        let asked = cri::StopPodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        };
        self.timed("StopPodSandbox", cri.stop_pod_sandbox(request(asked)))
            .await?;
        let asked = cri::RemovePodSandboxRequest {
            pod_sandbox_id: pod,
        };
        self.timed("RemovePodSandbox", cri.remove_pod_sandbox(request(asked)))
            .await?;
        self.times.entry(LIFE).or_default().push(begun.elapsed());
        Ok(())
    }

    async fn timed<T>(
        &mut self,
        rpc: &'static str,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T> {
        let begun = Instant::now();
        let reply = call.await.context(rpc)?;
        self.times.entry(rpc).or_default().push(begun.elapsed());
        Ok(reply.into_inner())
    }
}
