//! Creates and removes pods. A list must have every pod and container whose creation was confirmed before the list
//! began, and none whose removal was confirmed. A container whose start was confirmed must not exit.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use criswitch_cri::codec::cri;
use futures_util::FutureExt;
use tokio::task::spawn_local;
use tonic::{Code, Response, Status};

use crate::{Client, EVERY, folder_of, outcome, pace, request};

/// The number of pods that each handler keeps. When there are more, the oldest pod is removed.
const KEPT: usize = 2;
/// The value of the field `backend` in the output lines of this module's calls.
const CREATED: &str = "created";
const IMAGE: &str = "registry.test/busybox:1";

/// The ids of the pods, or of the containers, as far as replies have confirmed them.
#[derive(Clone, Default)]
struct Ids {
    /// Created ids whose removal was not requested yet.
    here: BTreeSet<String>,
    removed: BTreeSet<String>,
}

#[derive(Default)]
struct Seen {
    pods: RefCell<Ids>,
    containers: RefCell<Ids>,
    /// Containers whose start was confirmed.
    started: RefCell<BTreeSet<String>>,
}

/// A pod whose creation was confirmed, and its container if the container's creation was confirmed too.
struct Pod {
    id: String,
    container: Option<String>,
    /// Whether a removal of the pod was requested: the pod may be removed although no reply confirmed it.
    may_be_removed: bool,
}

/// Creates pods of one handler, one after another.
struct Creator {
    client: Client,
    seen: Rc<Seen>,
    handler: String,
    /// The folder of the socket. Logs are below it, and the cgroups are named after it.
    folder: String,
}

/// Starts a creator for each handler, and a client that lists the created pods and containers.
pub(crate) fn start(client: &Client, socket: &str, handlers: &[String]) {
    let seen = Rc::new(Seen::default());
    let folder = folder_of(socket);
    for handler in handlers {
        let creator = Creator {
            client: client.clone(),
            seen: Rc::clone(&seen),
            handler: handler.clone(),
            folder: folder.clone(),
        };
        spawn_local(creator.create_and_remove());
    }
    spawn_local(list(client.clone(), seen));
}

impl Ids {
    /// Whether a list made between `self` and `after` has every id that existed all the time, and no removed id.
    fn agree(&self, after: &Ids, listed: &BTreeSet<&str>) -> bool {
        let mut all_along = self.here.intersection(&after.here);
        let mut removed = self.removed.iter();
        all_along.all(|id| listed.contains(id.as_str()))
            && removed.all(|id| !listed.contains(id.as_str()))
    }

    /// Records a request for a removal. Until the reply, a list may have the id or lack it.
    fn leave(&mut self, id: &str) {
        self.here.remove(id);
    }
}

/// Lists pods and containers in turn.
async fn list(mut client: Client, seen: Rc<Seen>) {
    let mut pace = pace(EVERY);
    loop {
        pace.tick().await;
        let before = seen.pods.borrow().clone();
        let call = client.cri.list_pod_sandbox(request(Default::default()));
        let line = outcome("ListPodSandbox", CREATED, call, |reply| {
            let listed = reply.items.iter().map(|pod| pod.id.as_str()).collect();
            before.agree(&seen.pods.borrow(), &listed)
        })
        .await;
        println!("{line}");
        pace.tick().await;
        let before = seen.containers.borrow().clone();
        let started = seen.started.borrow().clone();
        let call = client.cri.list_containers(request(Default::default()));
        let line = outcome("ListContainers", CREATED, call, |reply| {
            let (after, all) = (seen.containers.borrow(), reply.containers.iter());
            let exited = cri::ContainerState::ContainerExited;
            let exited = all.clone().filter(|container| container.state() == exited);
            let mut exited = exited.map(|container| &container.id);
            before.agree(
                &after,
                &all.map(|container| container.id.as_str()).collect(),
            ) && !exited.any(|id| started.contains(id) && after.here.contains(id))
        })
        .await;
        println!("{line}");
    }
}

impl Creator {
    async fn create_and_remove(mut self) {
        let mut pods = VecDeque::new();
        let mut pace = pace(EVERY);
        for n in 1_u32.. {
            pace.tick().await;
            pods.extend(self.create(n).await);
            while pods.len() > KEPT {
                pace.tick().await;
                if self.remove(&mut pods[0]).await {
                    pods.pop_front();
                }
            }
        }
    }

    /// Creates a pod with a running container. Returns the part that was confirmed.
    async fn create(&mut self, n: u32) -> Option<Pod> {
        // Names are unique, because a runtime keeps the name of a pod whose creation was cancelled.
        let config = pod_config(&self.folder, &format!("created-{}-{n}", self.handler));
        let asked = request(cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: self.handler.clone(),
        });
        let call = self.client.cri.run_pod_sandbox(asked);
        let id = answer("RunPodSandbox", call, |reply| reply.pod_sandbox_id.clone()).await?;
        self.seen.pods.borrow_mut().here.insert(id.clone());
        let container = self.container(&id, config).await;
        let may_be_removed = false;
        Some(Pod {
            id,
            container,
            may_be_removed,
        })
    }

    async fn container(&mut self, pod: &str, config: cri::PodSandboxConfig) -> Option<String> {
        let asked = request(cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(container_config()),
            sandbox_config: Some(config),
        });
        let call = self.client.cri.create_container(asked);
        let id = answer("CreateContainer", call, |reply| reply.container_id.clone()).await?;
        self.seen.containers.borrow_mut().here.insert(id.clone());
        let container_id = id.clone();
        let asked = request(cri::StartContainerRequest { container_id });
        let call = self.client.cri.start_container(asked);
        if answer("StartContainer", call, |_| ()).await.is_some() {
            self.seen.started.borrow_mut().insert(id.clone());
        }
        Some(id)
    }

    /// Removes a pod. Returns whether the removal was confirmed.
    async fn remove(&mut self, pod: &mut Pod) -> bool {
        self.seen.pods.borrow_mut().leave(&pod.id);
        if let Some(container) = &pod.container {
            self.seen.containers.borrow_mut().leave(container);
        }
        let removed = self.stop_and_remove(pod).await.is_some();
        if removed {
            let mut pods = self.seen.pods.borrow_mut();
            pods.removed.insert(pod.id.clone());
            let mut containers = self.seen.containers.borrow_mut();
            containers.removed.extend(pod.container.clone());
        }
        removed
    }

    async fn stop_and_remove(&mut self, pod: &mut Pod) -> Option<()> {
        let may_be_removed = pod.may_be_removed;
        let pod_sandbox_id = pod.id.clone();
        let asked = request(cri::StopPodSandboxRequest { pod_sandbox_id });
        let call = self
            .client
            .cri
            .stop_pod_sandbox(asked)
            .map(|reply| or_removed(reply, may_be_removed));
        answer("StopPodSandbox", call, |_| ()).await?;
        pod.may_be_removed = true;
        let pod_sandbox_id = pod.id.clone();
        let asked = request(cri::RemovePodSandboxRequest { pod_sandbox_id });
        let call = self
            .client
            .cri
            .remove_pod_sandbox(asked)
            .map(|reply| or_removed(reply, may_be_removed));
        answer("RemovePodSandbox", call, |_| ()).await
    }
}

/// The configuration of a pod whose logs are below `folder`, and whose cgroups are named after `folder`.
pub(crate) fn pod_config(folder: &str, name: &str) -> cri::PodSandboxConfig {
    let parent = folder.rsplit('/').next().unwrap_or_default();
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            uid: name.to_owned(),
            namespace: "suite".to_owned(),
            attempt: 0,
            name: name.to_owned(),
        }),
        log_directory: format!("{folder}/logs/{name}"),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: format!("/{parent}"),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// `NotFound` counts as success if the pod may be removed already.
fn or_removed<T: Default>(
    reply: Result<Response<T>, Status>,
    may_be_removed: bool,
) -> Result<Response<T>, Status> {
    match reply {
        Err(status) if may_be_removed && status.code() == Code::NotFound => {
            Ok(Response::new(T::default()))
        }
        reply => reply,
    }
}

pub(crate) fn container_config() -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: "main".to_owned(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: IMAGE.to_owned(),
            ..Default::default()
        }),
        command: ["sleep", "1000000"].map(str::to_owned).to_vec(),
        log_path: "main.log".to_owned(),
        ..Default::default()
    }
}

/// Prints a call's outcome. Returns the value of a successful reply.
async fn answer<T: std::fmt::Debug, V>(
    rpc: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
    of: impl FnOnce(&T) -> V,
) -> Option<V> {
    let mut value = None;
    let line = outcome(rpc, CREATED, call, |reply| {
        value = Some(of(reply));
        true
    })
    .await;
    println!("{line}");
    value
}
