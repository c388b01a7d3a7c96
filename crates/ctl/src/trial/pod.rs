//! One pod with a container, made with the calls of the kubelet, and its removal after any failure.
//!
//! The kubelet finds its pods by the uid in their metadata, whatever labels they have. It stops each pod that it does
//! not know, usually within seconds.

use std::collections::HashMap;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::time::Duration;

use criswitch_advice::verdict::is_ready;
use criswitch_client::running::{self, Running, TRY_LABEL, TRY_NAMESPACE, is_signal_exit_code};
use criswitch_cri::codec::cri::{
    ContainerConfig, ContainerMetadata, ContainerState, ContainerStatusRequest,
    CreateContainerRequest, ExecSyncRequest, ImageSpec, LinuxContainerConfig,
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, ListPodSandboxRequest, NamespaceMode,
    NamespaceOption, PodSandboxConfig, PodSandboxFilter, PodSandboxMetadata, PodSandboxState,
    PodSandboxStatusRequest, RemoveContainerRequest, RemovePodSandboxRequest, RunPodSandboxRequest,
    RunPodSandboxResponse, StartContainerRequest, StopContainerRequest, StopPodSandboxRequest,
};
use criswitch_platform::kernel;
use tokio::task::JoinHandle;
use tonic::Code;

use super::call::{CALL_LIMIT, TryFailure, reply};
use super::steps::Steps;

/// The time limit on all calls that remove a pod after a failure. It is long enough for a call without an answer and a
/// second attempt.
const REMOVAL_LIMIT: Duration = Duration::from_secs(240);
/// The number of attempts to remove a pod, and the time between two attempts.
const REMOVALS: u32 = 20;
const REMOVAL_PERIOD: Duration = Duration::from_millis(500);
/// The time within which the line that the container writes must be in the log, and the time between two reads of the
/// log.
const LOG_LIMIT: Duration = Duration::from_secs(30);
const LOG_PERIOD: Duration = Duration::from_millis(20);
/// The time between two lists while the backend does not answer.
const FIND_PERIOD: Duration = Duration::from_millis(500);
/// The time within which a runtime on a busy machine reports the end of a pod, and the time between two calls for its
/// status.
const END_LIMIT: Duration = Duration::from_secs(10);
const END_PERIOD: Duration = Duration::from_millis(50);
/// The name of the container, and of its log.
const CONTAINER: &str = "try";
const LOG: &str = "try.log";
/// The parent of a pod's cgroup, for each of the cgroup drivers. Nothing is left there after the pod's end.
const SYSTEMD_PARENT: &str = "/system.slice";
const CGROUPFS_PARENT: &str = "/";
/// The limit on the command in the container, in seconds.
const COMMAND_LIMIT_S: i64 = 30;

pub(super) struct PodSettings<'a> {
    pub(super) handler: &'a str,
    /// The name of the handler's backend.
    pub(super) backend: &'a str,
    /// The cgroup driver of the backend, if the backend reports one.
    pub(super) cgroup_driver: Option<&'a str>,
    pub(super) host_network: bool,
}

impl PodSettings<'_> {
    /// The parent of the pod's cgroup; `None` if the backend reports no cgroup driver.
    pub(super) fn cgroup_parent(&self) -> Option<&'static str> {
        self.cgroup_driver.map(|driver| match driver {
            "systemd" => SYSTEMD_PARENT,
            _ => CGROUPFS_PARENT,
        })
    }
}

/// A pod that is removed by [`TrialPod::end`] or [`TrialPod::clean_up`].
pub(super) struct TrialPod<'a> {
    daemon: &'a Running,
    handler: &'a str,
    backend: &'a str,
    config: PodSandboxConfig,
    logs: LogFolder,
    /// The task that creates the pod. The task runs to its end even if nothing waits for it: if it were cancelled, the
    /// id of the pod could be lost.
    creation: Option<JoinHandle<Result<RunPodSandboxResponse, TryFailure>>>,
    /// Whether a pod may exist whose id is unknown.
    may_exist: bool,
    id: Option<String>,
    container: Option<String>,
}

/// The result of starting a container.
pub(super) enum Started {
    Runs,
    /// The image has no shell, and the container is removed.
    NoShell,
}

/// A directory for the container's log, removed with this value.
struct LogFolder(PathBuf);

impl LogFolder {
    fn create(uid: &str) -> Result<LogFolder, TryFailure> {
        let path = std::env::temp_dir().join(format!("criswitch-try-{uid}"));
        fs::create_dir(&path).map_err(|error| {
            let path = path.display();
            TryFailure::new(format!(
                "cannot create the directory {path} for logs: {error}"
            ))
        })?;
        Ok(LogFolder(path))
    }
}

impl Drop for LogFolder {
    fn drop(&mut self) {
        // If the directory cannot be removed, the system removes it later, because it is in the directory for temporary
        // files.
        fs::remove_dir_all(&self.0).ok();
    }
}

impl<'a> TrialPod<'a> {
    /// Prepares a pod with a new name. Calls nothing.
    ///
    /// # Errors
    /// The directory for its logs cannot be created.
    pub(super) fn new(
        daemon: &'a Running,
        settings: &PodSettings<'a>,
    ) -> Result<TrialPod<'a>, TryFailure> {
        let uid = new_uid();
        let logs = LogFolder::create(&uid)?;
        Ok(TrialPod {
            daemon,
            handler: settings.handler,
            backend: settings.backend,
            config: pod_config(&uid, settings, &logs),
            logs,
            creation: None,
            may_exist: false,
            id: None,
            container: None,
        })
    }

    /// The pod's uid in its metadata and its label.
    pub(super) fn uid(&self) -> &str {
        let metadata = self.config.metadata.as_ref();
        metadata.map_or("", |metadata| metadata.uid.as_str())
    }

    pub(super) async fn create(&mut self) -> Result<(), TryFailure> {
        let request = RunPodSandboxRequest {
            config: Some(self.config.clone()),
            runtime_handler: self.handler.to_owned(),
        };
        let mut runtime = self.daemon.runtime();
        self.may_exist = true;
        self.creation = Some(tokio::spawn(async move {
            reply(
                CALL_LIMIT,
                "RunPodSandbox",
                runtime.run_pod_sandbox(request),
            )
            .await
        }));
        self.created().await
    }

    /// Waits for the end of the call that creates the pod.
    async fn created(&mut self) -> Result<(), TryFailure> {
        let Some(creation) = &mut self.creation else {
            return Ok(());
        };
        let created = creation.await;
        self.creation = None;
        let created = created.map_err(|error| TryFailure::new(error.to_string()))??;
        self.may_exist = false;
        self.id = Some(created.pod_sandbox_id);
        Ok(())
    }

    /// Creates and starts a container, in two steps.
    pub(super) async fn run_container(
        &mut self,
        steps: &mut Steps,
        image: &ImageSpec,
    ) -> Result<Started, TryFailure> {
        steps
            .run("create container", self.create_container(image))
            .await?;
        steps.run("start container", self.start_container()).await
    }

    async fn create_container(&mut self, image: &ImageSpec) -> Result<(), TryFailure> {
        let request = CreateContainerRequest {
            pod_sandbox_id: self.pod_id(),
            config: Some(ContainerConfig {
                metadata: Some(ContainerMetadata {
                    name: CONTAINER.to_owned(),
                    attempt: 0,
                }),
                image: Some(image.clone()),
                command: kernel::keep(self.uid()),
                log_path: LOG.to_owned(),
                labels: self.config.labels.clone(),
                linux: self
                    .config
                    .linux
                    .as_ref()
                    .map(|_| LinuxContainerConfig::default()),
                ..ContainerConfig::default()
            }),
            sandbox_config: Some(self.config.clone()),
        };
        let created = reply(
            CALL_LIMIT,
            "CreateContainer",
            self.daemon.runtime().create_container(request),
        )
        .await?;
        self.container = Some(created.container_id);
        Ok(())
    }

    async fn start_container(&mut self) -> Result<Started, TryFailure> {
        let container_id = self.container_id();
        let mut runtime = self.daemon.runtime();
        let started = runtime.start_container(StartContainerRequest { container_id });
        match reply(CALL_LIMIT, "StartContainer", started).await {
            Err(failure) if lacks_shell(&failure.text) => {
                self.remove_container().await?;
                Ok(Started::NoShell)
            }
            started => started.map(|_| Started::Runs),
        }
    }

    /// Executes a command in the container and returns its standard output.
    pub(super) async fn execute(&self, command: Vec<String>) -> Result<String, TryFailure> {
        let request = ExecSyncRequest {
            container_id: self.container_id(),
            cmd: command,
            timeout: COMMAND_LIMIT_S,
        };
        let executed = reply(
            CALL_LIMIT,
            "ExecSync",
            self.daemon.runtime().exec_sync(request),
        )
        .await?;
        if executed.exit_code != 0 {
            return Err(TryFailure::new(format!(
                "the command ended with exit code {}: {}",
                executed.exit_code,
                String::from_utf8_lossy(&executed.stderr).trim()
            )));
        }
        match String::from_utf8_lossy(&executed.stdout).trim() {
            "" => Err(TryFailure::new(
                "the command ended with exit code 0, but its output is missing".to_owned(),
            )),
            output => Ok(output.to_owned()),
        }
    }

    /// Waits until the log has the line that the container wrote.
    pub(super) async fn read_log(&self) -> Result<(), TryFailure> {
        let path = self.logs.0.join(LOG);
        let line = async {
            while !has_line(&fs::read(&path).unwrap_or_default(), self.uid()) {
                tokio::time::sleep(LOG_PERIOD).await;
            }
        };
        tokio::time::timeout(LOG_LIMIT, line).await.map_err(|_| {
            let what = if path.exists() {
                "has no line of the container"
            } else {
                "does not exist; if the runtime has a /tmp of its own, set TMPDIR to a directory that both see"
            };
            let path = path.display();
            TryFailure::new(format!("after {LOG_LIMIT:?}, the container's log {path} {what}"))
        })
    }

    async fn stop_container(&self) -> Result<(), TryFailure> {
        let request = StopContainerRequest {
            container_id: self.container_id(),
            timeout: 0,
        };
        reply(
            CALL_LIMIT,
            "StopContainer",
            self.daemon.runtime().stop_container(request),
        )
        .await
        .map(drop)
    }

    async fn remove_container(&mut self) -> Result<(), TryFailure> {
        let container_id = self.container_id();
        reply(
            CALL_LIMIT,
            "RemoveContainer",
            self.daemon
                .runtime()
                .remove_container(RemoveContainerRequest { container_id }),
        )
        .await?;
        self.container = None;
        Ok(())
    }

    /// The ids of the pod and of its container, as far as they exist.
    pub(super) fn ids(&self) -> Vec<&str> {
        self.id
            .iter()
            .chain(&self.container)
            .map(|id| &**id)
            .collect()
    }

    /// Stops and removes the container, in two steps.
    pub(super) async fn end_container(&mut self, steps: &mut Steps) -> Result<(), TryFailure> {
        steps.run("stop container", self.stop_container()).await?;
        steps.run("remove container", self.remove_container()).await
    }

    /// Stops and removes the pod, in two steps.
    pub(super) async fn end(&mut self, steps: &mut Steps) -> Result<(), TryFailure> {
        steps.run("stop pod", self.stop()).await?;
        steps.run("remove pod", self.remove()).await
    }

    async fn stop(&self) -> Result<(), TryFailure> {
        let pod_sandbox_id = self.pod_id();
        reply(
            CALL_LIMIT,
            "StopPodSandbox",
            self.daemon
                .runtime()
                .stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id }),
        )
        .await
        .map(drop)
    }

    async fn remove(&mut self) -> Result<(), TryFailure> {
        let pod_sandbox_id = self.pod_id();
        reply(
            CALL_LIMIT,
            "RemovePodSandbox",
            self.daemon
                .runtime()
                .remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }),
        )
        .await?;
        self.id = None;
        Ok(())
    }

    /// Whether the pod or its container ended although criswitch did not stop it. A runtime shows the end a moment
    /// after calls for the pod fail.
    pub(super) async fn was_stopped(&self) -> bool {
        if self.id.is_none() {
            return false;
        }
        let shown = async {
            while !self.container_was_killed().await && !self.pod_has_ended().await {
                tokio::time::sleep(END_PERIOD).await;
            }
        };
        tokio::time::timeout(END_LIMIT, shown).await.is_ok()
    }

    async fn container_was_killed(&self) -> bool {
        let Some(container) = &self.container else {
            return false;
        };
        let mut runtime = self.daemon.runtime();
        let request = ContainerStatusRequest {
            container_id: container.clone(),
            verbose: false,
        };
        match reply(
            CALL_LIMIT,
            "ContainerStatus",
            runtime.container_status(request),
        )
        .await
        {
            Err(failure) => failure.code == Some(Code::NotFound),
            Ok(reply) => reply.status.is_some_and(|status| {
                status.state() == ContainerState::ContainerExited
                    && is_signal_exit_code(status.exit_code)
            }),
        }
    }

    async fn pod_has_ended(&self) -> bool {
        let mut runtime = self.daemon.runtime();
        let request = PodSandboxStatusRequest {
            pod_sandbox_id: self.pod_id(),
            verbose: false,
        };
        let status = runtime.pod_sandbox_status(request);
        match reply(CALL_LIMIT, "PodSandboxStatus", status).await {
            Err(failure) => failure.code == Some(Code::NotFound),
            Ok(reply) => reply
                .status
                .is_some_and(|status| status.state() == PodSandboxState::SandboxNotready),
        }
    }

    /// Removes the pod and its container after a failure. The error says what may be left, and how to remove it.
    pub(super) async fn clean_up(mut self) -> Result<(), String> {
        let failure = match tokio::time::timeout(REMOVAL_LIMIT, self.remove_all()).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(failure)) => failure.text,
            Err(_) => format!("no answer within {REMOVAL_LIMIT:?}"),
        };
        let endpoint = self.daemon.socket.endpoint();
        Err(match &self.id {
            Some(id) => format!(
                "pod {id} was not removed: {failure}; remove it: crictl -r {endpoint} rmp -f {id}"
            ),
            None => format!(
                "a pod may be left: {failure}; look for it: crictl -r {endpoint} pods --label {TRY_LABEL}={}",
                self.uid()
            ),
        })
    }

    async fn remove_all(&mut self) -> Result<(), TryFailure> {
        // A failure to create the pod is in the report already.
        self.created().await.ok();
        if self.may_exist {
            self.find().await?;
        }
        if self.id.is_none() {
            return Ok(());
        }
        // A runtime does not remove a container that is starting, even if the call that starts it was cancelled.
        for _ in 1..REMOVALS {
            if self.remove_once().await.is_ok() {
                return Ok(());
            }
            tokio::time::sleep(REMOVAL_PERIOD).await;
        }
        self.remove_once().await
    }

    async fn remove_once(&mut self) -> Result<(), TryFailure> {
        if self.container.is_some() {
            // The removal of the pod also removes its containers, so errors of these calls do not matter.
            self.stop_container().await.ok();
            self.remove_container().await.ok();
        }
        self.stop().await.ok();
        self.remove().await
    }

    /// Finds the pod by its label, because the call that creates it returned no id. Waits until the backend answers
    /// before and after a list, because a cached list may lack the pod.
    async fn find(&mut self) -> Result<(), TryFailure> {
        loop {
            let answered = self.backend_answers().await;
            let listed = self.list().await;
            if answered && self.backend_answers().await {
                self.may_exist = false;
                self.id = listed?;
                return Ok(());
            }
            tokio::time::sleep(FIND_PERIOD).await;
        }
    }

    /// The id of the pod in a list.
    async fn list(&self) -> Result<Option<String>, TryFailure> {
        let request = ListPodSandboxRequest {
            filter: Some(PodSandboxFilter {
                label_selector: self.config.labels.clone(),
                ..PodSandboxFilter::default()
            }),
        };
        Ok(reply(
            CALL_LIMIT,
            "ListPodSandbox",
            self.daemon.runtime().list_pod_sandbox(request),
        )
        .await?
        .items
        .into_iter()
        .next()
        .map(|pod| pod.id))
    }

    /// Whether the backend is ready, and its part of the daemon's last list came from the backend, not from the cache.
    async fn backend_answers(&self) -> bool {
        self.daemon.state().await.is_ok_and(|state| {
            running::backend(&state, self.backend)
                .is_ok_and(|backend| is_ready(backend) && !backend.pods_from_cache)
        })
    }

    fn pod_id(&self) -> String {
        self.id.clone().unwrap_or_default()
    }

    fn container_id(&self) -> String {
        self.container.clone().unwrap_or_default()
    }
}

fn pod_config(uid: &str, settings: &PodSettings<'_>, logs: &LogFolder) -> PodSandboxConfig {
    let (network, hostname) = if settings.host_network {
        (NamespaceMode::Node, "")
    } else {
        (NamespaceMode::Pod, TRY_NAMESPACE)
    };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: format!("try-{}", settings.handler),
            uid: uid.to_owned(),
            namespace: TRY_NAMESPACE.to_owned(),
            attempt: 0,
        }),
        hostname: hostname.to_owned(),
        log_directory: logs.0.display().to_string(),
        labels: HashMap::from([(TRY_LABEL.to_owned(), uid.to_owned())]),
        linux: kernel::IS_LINUX.then(|| LinuxPodSandboxConfig {
            cgroup_parent: settings.cgroup_parent().unwrap_or_default().to_owned(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: network.into(),
                    pid: NamespaceMode::Container.into(),
                    ..NamespaceOption::default()
                }),
                ..LinuxSandboxSecurityContext::default()
            }),
            ..LinuxPodSandboxConfig::default()
        }),
        ..PodSandboxConfig::default()
    }
}

/// A random id in the form of a UUID.
fn new_uid() -> String {
    let [one, other] = [(), ()].map(|()| RandomState::new().hash_one(std::process::id()));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        one >> 32,
        one >> 16 & 0xffff,
        one & 0xffff,
        other >> 48,
        other & 0xffff_ffff_ffff
    )
}

/// Whether a log has a line of standard output that ends with this text.
fn has_line(log: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(log)
        .lines()
        .any(|line| line.contains(" stdout ") && line.trim_end().ends_with(text))
}

/// Whether a container did not start because its image has no shell. Each low-level runtime has its own words.
fn lacks_shell(text: &str) -> bool {
    let quoted = ["\"sh\"", "`sh`", "'sh'", "\\\"sh\\\"", "\"cmd\""];
    let missing = ["not found", "no such file", "cannot find"];
    let lower = text.to_lowercase();
    quoted.iter().any(|name| lower.contains(name)) && missing.iter().any(|it| lower.contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtimes_report_a_missing_shell_in_their_own_words() {
        let texts = [
            "runc create failed: unable to start container process: exec: \"sh\": executable file not found in $PATH",
            "executable file `sh` not found in $PATH: No such file or directory",
            "error finding executable \"sh\" in PATH [/bin]: no such file or directory",
        ];
        assert!(texts.iter().all(|text| lacks_shell(text)));
        assert!(!lacks_shell(
            "\"containerd-shim-runsc-v1\": file does not exist"
        ));
        assert!(!lacks_shell("no space left on device"));
    }

    #[test]
    fn each_uid_is_new_and_has_the_form_of_a_uuid() {
        let uid = new_uid();
        assert_eq!(uid.len(), 36);
        assert_eq!(uid.split('-').count(), 5);
        assert_ne!(uid, new_uid());
    }

    #[test]
    fn a_line_of_a_log_ends_with_the_text_and_comes_from_standard_output() {
        let log = b"2026-11-23T19:00:00.1Z stdout F abc\r\n";
        assert!(has_line(log, "abc"));
        assert!(!has_line(log, "ab"));
        assert!(!has_line(b"2026-11-23T19:00:00.1Z stderr F abc\n", "abc"));
    }
}
