//! Containers of a simulated runtime.

use std::path::Path;

use criswitch_cri::codec::cri::{self, ContainerEventType, ContainerState, PodSandboxState};
use tonic::Status;

use super::ids::{Miss, find};
use super::pods::name_is_reserved;
use super::store::{Answer, Store, admits, info, now, selects};

/// The exit code of a container that was stopped: 128 + SIGTERM.
pub const TERMINATED: i32 = 143;

pub struct Container {
    pub id: String,
    /// The id of the container's pod.
    pub pod: String,
    pub config: cri::ContainerConfig,
    /// The id of the container's image.
    pub image: String,
    pub resources: Option<cri::LinuxContainerResources>,
    pub state: ContainerState,
    pub created_at: i64,
    pub started_at: i64,
    pub finished_at: i64,
    pub exit_code: i32,
}

impl Container {
    fn new(id: String, pod: &str, config: cri::ContainerConfig, image: String) -> Container {
        Container {
            id,
            pod: pod.to_owned(),
            resources: config.linux.clone().and_then(|linux| linux.resources),
            config,
            image,
            state: ContainerState::ContainerCreated,
            created_at: now(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
        }
    }

    pub fn item(&self) -> cri::Container {
        cri::Container {
            id: self.id.clone(),
            pod_sandbox_id: self.pod.clone(),
            metadata: self.config.metadata.clone(),
            image: self.config.image.clone(),
            image_ref: self.image.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            image_id: self.image.clone(),
        }
    }

    pub fn status(&self) -> cri::ContainerStatus {
        cri::ContainerStatus {
            id: self.id.clone(),
            metadata: self.config.metadata.clone(),
            state: self.state.into(),
            created_at: self.created_at,
            started_at: self.started_at,
            finished_at: self.finished_at,
            exit_code: self.exit_code,
            image: self.config.image.clone(),
            image_ref: self.image.clone(),
            reason: self.reason().to_owned(),
            message: String::new(),
            labels: self.config.labels.clone(),
            annotations: self.config.annotations.clone(),
            mounts: self.config.mounts.clone(),
            log_path: self.config.log_path.clone(),
            resources: self.resources.clone().map(|linux| cri::ContainerResources {
                linux: Some(linux),
                windows: None,
            }),
            image_id: self.image.clone(),
            user: None,
            stop_signal: self.config.stop_signal,
        }
    }

    fn reason(&self) -> &'static str {
        match (self.state, self.exit_code) {
            (ContainerState::ContainerExited, 0) => "Completed",
            (ContainerState::ContainerExited, _) => "Error",
            _ => "",
        }
    }
}

impl Store {
    /// Creates a container and returns its id.
    pub fn create_container(
        &mut self,
        pod: &str,
        config: Option<cri::ContainerConfig>,
    ) -> Answer<String> {
        let pod = self.pod(pod)?;
        let pod_id = pod.id.clone();
        let config = config.unwrap_or_default();
        let metadata = config
            .metadata
            .clone()
            .ok_or_else(|| Status::unknown("container config must include metadata"))?;
        if let Some(holder) = self
            .containers
            .iter()
            .find(|c| c.pod == pod_id && c.config.metadata.as_ref() == Some(&metadata))
        {
            let name = format!("{}_{}_{}", metadata.name, pod_id, metadata.attempt);
            return Err(name_is_reserved("container", &name, &holder.id));
        }
        let reference = config.image.clone().unwrap_or_default().image;
        let image = self.find_image(&reference).map(|image| image.id.clone());
        let image = image.ok_or_else(|| {
            Status::not_found(format!(
                "failed to resolve image \"{reference}\": not found"
            ))
        })?;
        let id = self.ids.next();
        self.containers
            .push(Container::new(id.clone(), &pod_id, config, image));
        self.report(&id, &pod_id, ContainerEventType::ContainerCreatedEvent);
        Ok(id)
    }

    pub fn start_container(&mut self, key: &str) -> Answer<()> {
        let place = self.container_place(key)?;
        let pod = self.pod(&self.containers[place].pod)?;
        if pod.state != PodSandboxState::SandboxReady {
            return Err(Status::unknown(format!(
                "sandbox container \"{}\" is not running",
                pod.id
            )));
        }
        let container = &mut self.containers[place];
        if container.state != ContainerState::ContainerCreated {
            let state = container.state.as_str_name();
            return Err(Status::unknown(format!(
                "container is already in {state} state"
            )));
        }
        if self.settings.without_shell.contains(&container.image) {
            let text = "exec: \"sh\": executable file not found in $PATH";
            return Err(Status::unknown(format!(
                "failed to create containerd task: {text}"
            )));
        }
        container.state = ContainerState::ContainerRunning;
        container.started_at = now();
        let (id, pod) = (container.id.clone(), container.pod.clone());
        if self.settings.writes_logs {
            self.write_log(key)?;
        }
        self.report(&id, &pod, ContainerEventType::ContainerStartedEvent);
        Ok(())
    }

    /// Writes the last word of a container's command to its log, in the format of the CRI. Without a log directory the
    /// pod has no logs.
    fn write_log(&self, key: &str) -> Answer<()> {
        let container = self.container(key)?;
        let pod = self.pod(&container.pod)?;
        if pod.config.log_directory.is_empty() {
            return Ok(());
        }
        let path = Path::new(&pod.config.log_directory).join(&container.config.log_path);
        let line = format!(
            "2026-01-01T00:00:00.0Z stdout F {}\n",
            container.config.command.last().cloned().unwrap_or_default()
        );
        let written = std::fs::write(&path, line);
        written.map_err(|error| Status::unknown(format!("{}: {error}", path.display())))
    }

    /// Stops a container. An unknown container counts as stopped.
    pub fn stop_container(&mut self, key: &str) -> Answer<()> {
        match self.find_container(key) {
            Err(Miss::Unknown) => Ok(()),
            _ => self.exit_container(key, TERMINATED),
        }
    }

    /// Ends a running container. A container in another state is left unchanged.
    pub fn exit_container(&mut self, key: &str, code: i32) -> Answer<()> {
        let place = self.container_place(key)?;
        let container = &mut self.containers[place];
        if container.state != ContainerState::ContainerRunning {
            return Ok(());
        }
        container.state = ContainerState::ContainerExited;
        container.finished_at = now();
        container.exit_code = code;
        let (id, pod) = (container.id.clone(), container.pod.clone());
        self.report(&id, &pod, ContainerEventType::ContainerStoppedEvent);
        Ok(())
    }

    /// Removes a container, and stops it first if it runs. An unknown container counts as removed.
    pub fn remove_container(&mut self, key: &str) -> Answer<()> {
        if self.find_container(key) == Err(Miss::Unknown) {
            return Ok(());
        }
        self.stop_container(key)?;
        let place = self.container_place(key)?;
        let gone = self.containers.remove(place);
        self.report(
            &gone.id,
            &gone.pod,
            ContainerEventType::ContainerDeletedEvent,
        );
        Ok(())
    }

    pub fn container_status(
        &self,
        request: &cri::ContainerStatusRequest,
    ) -> Answer<cri::ContainerStatusResponse> {
        let container = self.container(&request.container_id)?;
        Ok(cri::ContainerStatusResponse {
            status: Some(container.status()),
            info: info(request.verbose, || {
                ("info", serde_json::json!({ "sandboxID": container.pod }))
            }),
        })
    }

    pub fn list_containers(&self, filter: Option<cri::ContainerFilter>) -> Vec<cri::Container> {
        let filter = filter.unwrap_or_default();
        let id = self.full_container_id(&filter.id);
        let pod = self.full_pod_id(&filter.pod_sandbox_id);
        self.containers
            .iter()
            .filter(|container| {
                admits(&id, &container.id)
                    && admits(&pod, &container.pod)
                    && filter
                        .state
                        .is_none_or(|state| state.state() == container.state)
                    && selects(&filter.label_selector, &container.config.labels)
            })
            .map(Container::item)
            .collect()
    }

    pub fn update_container(
        &mut self,
        request: cri::UpdateContainerResourcesRequest,
    ) -> Answer<()> {
        let place = self.container_place(&request.container_id)?;
        self.containers[place].resources = request.linux;
        Ok(())
    }

    /// Runs nothing. The reply is the one in the settings; without one, the output is the command.
    pub fn exec_sync(&self, request: &cri::ExecSyncRequest) -> Answer<cri::ExecSyncResponse> {
        self.running(&request.container_id)?;
        if let Some(executed) = &self.settings.executed {
            return Ok(executed.clone());
        }
        Ok(cri::ExecSyncResponse {
            stdout: format!("{}\n", request.cmd.join(" ")).into_bytes(),
            ..Default::default()
        })
    }

    /// A URL for streaming to a running container. No process serves the URL.
    pub fn container_url(&mut self, call: &str, key: &str) -> Answer<String> {
        self.running(key)?;
        Ok(self.url(call))
    }

    /// A URL for streaming to a ready pod. No process serves the URL.
    pub fn pod_url(&mut self, call: &str, key: &str) -> Answer<String> {
        let pod = self.pod(key)?;
        if pod.state != PodSandboxState::SandboxReady {
            return Err(Status::unknown(format!(
                "sandbox container \"{}\" is not running",
                pod.id
            )));
        }
        Ok(self.url(call))
    }

    fn url(&mut self, call: &str) -> String {
        let token = self.ids.token();
        let (server, name) = (&self.settings.streaming, &self.settings.runtime_name);
        format!("{server}/{name}/{call}/{token}")
    }

    pub fn running(&self, key: &str) -> Answer<&Container> {
        let container = self.container(key)?;
        if container.state != ContainerState::ContainerRunning {
            let state = container.state.as_str_name();
            return Err(Status::unknown(format!("container is in {state} state")));
        }
        Ok(container)
    }

    pub fn container(&self, key: &str) -> Answer<&Container> {
        self.container_place(key)
            .map(|place| &self.containers[place])
    }

    fn container_place(&self, key: &str) -> Answer<usize> {
        self.find_container(key)
            .map_err(|miss| miss.status("container", key))
    }

    fn find_container(&self, key: &str) -> Result<usize, Miss> {
        find(self.containers.iter().map(|c| c.id.as_str()), key)
    }

    /// The full id for a filter's id. An empty key is returned unchanged, and matches every container. Any other key
    /// that is not the prefix of exactly one id is returned unchanged too, and matches no container.
    pub fn full_container_id(&self, key: &str) -> String {
        self.container(key)
            .map_or_else(|_| key.to_owned(), |container| container.id.clone())
    }
}
