//! One simulated runtime on a socket, and clients that dial it without a switch between.

use criswitch::cri;
use tempfile::TempDir;
use tonic::Status;

use crate::support::{Images, RawClient, Runtime, Sim, container_config, dial, pod_config};

pub struct Direct {
    pub sim: Sim,
    pub runtime: Runtime,
    pub images: Images,
    _directory: TempDir,
}

impl Direct {
    pub fn new(sim: Sim) -> Direct {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        sim.serve_on(&socket);
        let channel = dial(&socket);
        Direct {
            sim,
            runtime: Runtime::new(channel.clone()),
            images: Images::new(channel),
            _directory: directory,
        }
    }

    pub async fn raw(&self) -> RawClient {
        RawClient::connect(&self.sim.socket()).await
    }

    pub async fn run_pod(&mut self, name: &str) -> Result<String, Status> {
        let reply = self.runtime.run_pod_sandbox(cri::RunPodSandboxRequest {
            config: Some(pod_config(name)),
            runtime_handler: String::new(),
        });
        Ok(reply.await?.into_inner().pod_sandbox_id)
    }

    pub async fn create(&mut self, pod: &str, name: &str) -> Result<String, Status> {
        let reply = self.runtime.create_container(cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(container_config(name, "busybox")),
            sandbox_config: None,
        });
        Ok(reply.await?.into_inner().container_id)
    }

    pub async fn start(&mut self, container: &str) -> Result<(), Status> {
        let container_id = container.to_owned();
        self.runtime
            .start_container(cri::StartContainerRequest { container_id })
            .await?;
        Ok(())
    }

    pub async fn stop(&mut self, container: &str) -> Result<(), Status> {
        let container_id = container.to_owned();
        let request = cri::StopContainerRequest {
            container_id,
            timeout: 0,
        };
        self.runtime.stop_container(request).await?;
        Ok(())
    }

    /// A pod with one running container.
    pub async fn run(&mut self, name: &str) -> (String, String) {
        let pod = self.run_pod(name).await.unwrap();
        let container = self.create(&pod, name).await.unwrap();
        self.start(&container).await.unwrap();
        (pod, container)
    }
}

/// A runtime with the image that [`Direct::create`] wants.
pub fn direct() -> Direct {
    Direct::new(Sim::new("runc").image("busybox"))
}
