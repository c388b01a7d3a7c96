//! Pods of a simulated runtime.

use criswitch_cri::codec::cri::{self, ContainerEventType, PodSandboxState};
use serde_json::json;
use tonic::Status;

use super::ids::{Miss, find};
use super::settings::ShowsHandlers;
use super::store::{Answer, Checkpoint, Store, admits, info, now, selects};

/// The annotation with a pod's handler, in the spec of CRI-O's verbose pod status.
const CRIO_HANDLER: &str = "io.kubernetes.cri-o.RuntimeHandler";

pub struct Pod {
    pub id: String,
    pub config: cri::PodSandboxConfig,
    pub handler: String,
    /// The `info` of a verbose status.
    pub info: serde_json::Value,
    pub state: PodSandboxState,
    pub created_at: i64,
}

impl Pod {
    /// The name that must be unique among existing pods.
    fn reserved_name(&self) -> String {
        reserved_name(&self.config.metadata.clone().unwrap_or_default())
    }

    pub fn item(&self) -> cri::PodSandbox {
        cri::PodSandbox {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }

    pub fn status(&self) -> cri::PodSandboxStatus {
        cri::PodSandboxStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            network: Some(cri::PodSandboxNetworkStatus {
                ip: "10.88.0.2".to_owned(),
                additional_ips: Vec::new(),
            }),
            linux: None,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            runtime_handler: self.handler.clone(),
        }
    }
}

impl Store {
    /// Creates a pod and returns its id.
    pub fn run_pod(
        &mut self,
        config: Option<cri::PodSandboxConfig>,
        handler: &str,
    ) -> Answer<String> {
        let config = config.unwrap_or_default();
        let metadata = config
            .metadata
            .clone()
            .ok_or_else(|| Status::unknown("sandbox config must include metadata"))?;
        let name = reserved_name(&metadata);
        if let Some(holder) = self.pods.iter().find(|p| p.reserved_name() == name) {
            return Err(name_is_reserved("sandbox", &name, &holder.id));
        }
        let known = self.known_handler(handler)?;
        let (handler, info) = match self.settings.shows_handlers {
            ShowsHandlers::Everywhere => (known.clone(), json!({ "runtimeHandler": known })),
            ShowsHandlers::InSpec => {
                let spec = json!({ "annotations": { CRIO_HANDLER: handler } });
                (String::new(), json!({ "runtimeSpec": spec }))
            }
            ShowsHandlers::Nowhere => (String::new(), json!({})),
        };
        let id = self.ids.next();
        self.pods.push(Pod {
            id: id.clone(),
            config,
            handler,
            info,
            state: PodSandboxState::SandboxReady,
            created_at: now(),
        });
        self.report(&id, &id, ContainerEventType::ContainerCreatedEvent);
        self.report(&id, &id, ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    fn known_handler(&self, wanted: &str) -> Answer<String> {
        let mut handlers = self.settings.handlers.iter().map(|h| &h.name);
        let known = match wanted {
            "" => handlers.next(),
            _ => handlers.find(|name| *name == wanted),
        };
        known.cloned().ok_or_else(|| {
            let text = format!("no runtime for \"{wanted}\" is configured");
            Status::unknown(format!("failed to get sandbox runtime: {text}"))
        })
    }

    /// Stops a pod. An unknown pod counts as stopped.
    pub fn stop_pod(&mut self, key: &str) -> Answer<()> {
        let Some(place) = known(self.find_pod(key), key)? else {
            return Ok(());
        };
        let id = self.pods[place].id.clone();
        for container in self.containers_of(&id) {
            self.exit_container(&container, super::containers::TERMINATED)?;
        }
        let pod = &mut self.pods[place];
        if pod.state == PodSandboxState::SandboxReady {
            pod.state = PodSandboxState::SandboxNotready;
            self.report(&id, &id, ContainerEventType::ContainerStoppedEvent);
        }
        Ok(())
    }

    /// Removes a pod with its containers. An unknown pod counts as removed.
    pub fn remove_pod(&mut self, key: &str) -> Answer<()> {
        let Some(place) = known(self.find_pod(key), key)? else {
            return Ok(());
        };
        let id = self.pods[place].id.clone();
        self.stop_pod(&id)?;
        for container in self.containers_of(&id) {
            self.remove_container(&container)?;
        }
        self.pods.remove(place);
        self.report(&id, &id, ContainerEventType::ContainerDeletedEvent);
        Ok(())
    }

    pub fn pod_status(
        &self,
        request: &cri::PodSandboxStatusRequest,
    ) -> Answer<cri::PodSandboxStatusResponse> {
        let pod = self.pod(&request.pod_sandbox_id)?;
        Ok(cri::PodSandboxStatusResponse {
            status: Some(pod.status()),
            info: info(request.verbose, || ("info", pod.info.clone())),
            containers_statuses: self.statuses_in(&pod.id),
            timestamp: pod.created_at,
        })
    }

    pub fn list_pods(&self, filter: Option<cri::PodSandboxFilter>) -> Vec<cri::PodSandbox> {
        let filter = filter.unwrap_or_default();
        let id = self.full_pod_id(&filter.id);
        let wanted = |pod: &&Pod| {
            admits(&id, &pod.id)
                && filter.state.is_none_or(|state| state.state() == pod.state)
                && selects(&filter.label_selector, &pod.config.labels)
        };
        self.pods.iter().filter(wanted).map(Pod::item).collect()
    }

    pub fn checkpoint_pod(&mut self, request: &cri::CheckpointPodRequest) -> Answer<()> {
        let pod = self.pod(&request.pod_sandbox_id)?;
        let chosen = &request.container_ids;
        let wanted = self
            .containers
            .iter()
            .filter(|c| c.pod == pod.id)
            .filter(|c| chosen.is_empty() || chosen.contains(&c.id));
        let checkpoint = Checkpoint {
            pod: pod.config.clone(),
            containers: wanted.map(|c| c.config.clone()).collect(),
        };
        self.checkpoints
            .insert(request.output_path.clone(), checkpoint);
        Ok(())
    }

    /// Runs a pod and its containers from a checkpoint. Configurations in the request take precedence.
    pub fn restore_pod(
        &mut self,
        request: cri::RestorePodRequest,
    ) -> Answer<cri::RestorePodResponse> {
        let saved = self
            .checkpoints
            .get(&request.checkpoint_path)
            .cloned()
            .ok_or_else(|| {
                Status::not_found(format!(
                    "checkpoint \"{}\": not found",
                    request.checkpoint_path
                ))
            })?;
        let configs = match request.container_configs {
            given if given.is_empty() => saved.containers,
            given => given,
        };
        let pod = self.run_pod(request.config.or(Some(saved.pod)), &request.runtime_handler)?;
        let mut restored_containers = Vec::new();
        for config in configs {
            let name = config.metadata.clone().unwrap_or_default().name;
            let container_id = self.create_container(&pod, Some(config))?;
            self.start_container(&container_id)?;
            restored_containers.push(cri::RestoredContainer { name, container_id });
        }
        Ok(cri::RestorePodResponse {
            pod_sandbox_id: pod,
            restored_containers,
        })
    }

    pub fn pod(&self, key: &str) -> Answer<&Pod> {
        let place = self
            .find_pod(key)
            .map_err(|miss| miss.status("sandbox", key))?;
        Ok(&self.pods[place])
    }

    /// The full id for a filter's id. An empty key is returned unchanged, and matches every pod. Any other key that is
    /// not the prefix of exactly one id is returned unchanged too, and matches no pod.
    pub fn full_pod_id(&self, key: &str) -> String {
        self.pod(key)
            .map_or_else(|_| key.to_owned(), |pod| pod.id.clone())
    }

    fn find_pod(&self, key: &str) -> Result<usize, Miss> {
        find(self.pods.iter().map(|pod| pod.id.as_str()), key)
    }

    fn containers_of(&self, pod: &str) -> Vec<String> {
        self.containers
            .iter()
            .filter(|c| c.pod == pod)
            .map(|c| c.id.clone())
            .collect()
    }
}

/// The result of a look-up for Stop and Remove: an unknown pod is `None`, not an error.
fn known(found: Result<usize, Miss>, key: &str) -> Answer<Option<usize>> {
    match found {
        Ok(place) => Ok(Some(place)),
        Err(Miss::Unknown) => Ok(None),
        Err(miss) => Err(miss.status("sandbox", key)),
    }
}

fn reserved_name(metadata: &cri::PodSandboxMetadata) -> String {
    let cri::PodSandboxMetadata {
        name,
        uid,
        namespace,
        attempt,
    } = metadata;
    format!("{name}_{namespace}_{uid}_{attempt}")
}

/// containerd's error for a second pod or container with the same name.
pub fn name_is_reserved(what: &str, name: &str, holder: &str) -> Status {
    Status::unknown(format!(
        "failed to reserve {what} name \"{name}\": name \"{name}\" is reserved for \"{holder}\""
    ))
}
