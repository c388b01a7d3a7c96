//! A steady load of calls on a CRI socket, for the real suite. It prints one line of JSON for each call.
//!
//! `load SOCKET SECONDS FILE [HANDLER...]`: each line of the file is a running pod with its only container, as
//! `BACKEND=POD/CONTAINER`. The file has a line for every pod behind the socket, and may be replaced during the load. A
//! `?` before a line means that the pod may be stopped or removed. A line that is only `?` means that there may be a
//! new pod without a line. The load calls Version, Status, lists and states, and runs `echo` in the containers. It
//! changes nothing, except that it creates and removes pods of the named handlers.
//!
//! `load lives DIRECT THROUGH PODS` runs this many pods at each of two sockets, and prints the times of their calls.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

mod creations;
mod lives;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::cri::runtime_service_client::RuntimeServiceClient;
use futures_util::future::join;
use serde_json::{Value as Json, json};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// The pause between two calls for a pod, and between two lists.
const EVERY: Duration = Duration::from_millis(50);
/// The deadline of each call.
const DEADLINE: Duration = Duration::from_secs(10);
/// One `ExecSync` follows this many status calls of each kind.
const EXEC_EVERY: u32 = 20;
/// The output of the command in the container.
const WORD: &str = "here";

/// The pause between two calls about the node.
const NODE_EVERY: Duration = Duration::from_millis(500);
/// A mark in the file of pods. Alone on a line: more pods may exist than the file lists. Before a pod: the pod may
/// already be stopped or removed.
const UNSURE: &str = "?";

/// A pod with one container.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    backend: String,
    pod: String,
    container: String,
}

/// The path of the file of pods.
#[derive(Clone)]
struct Pods(PathBuf);

/// The content of the file at one time.
struct Reported {
    /// Pods that exist and run.
    here: BTreeSet<Pod>,
    /// Pods that may be stopped or removed already.
    leaving: BTreeSet<Pod>,
    /// Whether the file has the line `?`: there may be pods without a line in the file.
    coming: bool,
}

/// A client that makes all calls on one connection, as the kubelet does.
#[derive(Clone)]
struct Client {
    cri: RuntimeServiceClient<Channel>,
    pods: Pods,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [lives, direct, through, pods] = arguments.as_slice()
        && lives == "lives"
    {
        let pods = pods.parse().context("PODS is not a number")?;
        println!("{}", lives::compare(direct, through, pods).await?);
        return Ok(());
    }
    let [socket, seconds, pods, handlers @ ..] = arguments.as_slice() else {
        anyhow::bail!(
            "usage: load SOCKET SECONDS FILE [HANDLER...], or load lives DIRECT THROUGH PODS"
        );
    };
    let pods = Pods(Path::new(pods).to_owned());
    pods.read()?;
    let cri = connect(socket)?;
    let client = Client { cri, pods };
    let seconds = seconds.parse().context("SECONDS is not a number")?;
    let load = async {
        if !handlers.is_empty() {
            creations::start(&client, socket, handlers);
        }
        let all = join(client.clone().list(), client.clone().ask_for_node());
        join(all, client.follow_pods()).await
    };
    // The load never ends without this limit.
    let limited = timeout(Duration::from_secs(seconds), load);
    match LocalSet::new().run_until(limited).await {
        Ok((_, broken)) => broken,
        Err(_) => Ok(()),
    }
}

fn connect(socket: &str) -> Result<RuntimeServiceClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("unix://{socket}"))?;
    let endpoint = endpoint.origin("http://localhost".parse()?);
    Ok(RuntimeServiceClient::new(endpoint.connect_lazy()))
}

/// The folder of a socket.
fn folder_of(socket: &str) -> String {
    let folder = Path::new(socket).parent();
    folder.map_or(String::new(), |folder| folder.display().to_string())
}

impl Pods {
    fn read(&self) -> Result<Reported> {
        let text = std::fs::read_to_string(&self.0).context("cannot read the pods")?;
        let mut reported = Reported {
            here: BTreeSet::new(),
            leaving: BTreeSet::new(),
            coming: false,
        };
        for line in text.lines() {
            match line.strip_prefix(UNSURE) {
                Some("") => reported.coming = true,
                Some(line) => drop(reported.leaving.insert(Pod::parse(line)?)),
                None => drop(reported.here.insert(Pod::parse(line)?)),
            }
        }
        Ok(reported)
    }

    /// Whether the file has `pod` as a running pod. An unreadable file counts as false: `follow_pods` reports its
    /// error.
    fn have(&self, pod: &Pod) -> bool {
        self.read()
            .is_ok_and(|reported| reported.here.contains(pod))
    }
}

impl Reported {
    /// Whether a list has each id once, has every id that existed all the time from `self` to `after`, and has no id
    /// that cannot have existed in that time.
    fn agrees(&self, after: &Reported, listed: &[&str], id: fn(&Pod) -> &str) -> bool {
        let ids: BTreeSet<&str> = listed.iter().copied().collect();
        let mut all_along = self.here.intersection(&after.here);
        let ever: BTreeSet<&str> = [&self.here, &self.leaving, &after.here, &after.leaving]
            .into_iter()
            .flatten()
            .map(id)
            .collect();
        ids.len() == listed.len()
            && all_along.all(|pod| ids.contains(id(pod)))
            && (self.coming || after.coming || ids.is_subset(&ever))
    }
}

impl Pod {
    fn parse(text: &str) -> Result<Pod> {
        let (backend, ids) = text.split_once('=').context("no = in a pod")?;
        let (pod, container) = ids.split_once('/').context("no / in a pod")?;
        Ok(Pod {
            backend: backend.to_owned(),
            pod: pod.to_owned(),
            container: container.to_owned(),
        })
    }
}

impl Client {
    /// Lists pods and containers in turn. A list is right if it has exactly the existing ids.
    async fn list(mut self) -> Result<()> {
        let pods = self.pods.clone();
        let mut pace = pace(EVERY);
        loop {
            pace.tick().await;
            let before = pods.read()?;
            let call = self.cri.list_pod_sandbox(request(Default::default()));
            let line = outcome("ListPodSandbox", "all", call, |reply| {
                let listed: Vec<_> = reply.items.iter().map(|pod| pod.id.as_str()).collect();
                let after = pods.read();
                after.is_ok_and(|after| before.agrees(&after, &listed, |pod| &pod.pod))
            })
            .await;
            println!("{line}");
            pace.tick().await;
            let before = pods.read()?;
            let call = self.cri.list_containers(request(Default::default()));
            let line = outcome("ListContainers", "all", call, |reply| {
                let listed: Vec<_> = reply
                    .containers
                    .iter()
                    .map(|container| container.id.as_str())
                    .collect();
                let after = pods.read();
                after.is_ok_and(|after| before.agrees(&after, &listed, |pod| &pod.container))
            })
            .await;
            println!("{line}");
        }
    }

    /// Calls Version and Status, as the kubelet does. The node must be ready.
    async fn ask_for_node(mut self) {
        let mut pace = pace(NODE_EVERY);
        loop {
            pace.tick().await;
            let call = self.cri.version(request(Default::default()));
            let line = outcome("Version", "node", call, |reply| {
                reply.runtime_name == "containerd"
            })
            .await;
            println!("{line}");
            pace.tick().await;
            let call = self.cri.status(request(Default::default()));
            let line = outcome("Status", "node", call, |reply| {
                let conditions = reply.status.iter().flat_map(|status| &status.conditions);
                let ready: Vec<_> = conditions
                    .filter(|condition| condition.status)
                    .map(|condition| condition.r#type.as_str())
                    .collect();
                ["RuntimeReady", "NetworkReady"]
                    .iter()
                    .all(|needed| ready.contains(needed))
            })
            .await;
            println!("{line}");
        }
    }

    /// Makes calls for each pod as long as the file has the pod as a running pod: a line without `?`.
    async fn follow_pods(self) -> Result<()> {
        let mut asked: BTreeSet<Rc<Pod>> = BTreeSet::new();
        let mut pace = pace(EVERY);
        loop {
            pace.tick().await;
            for pod in self.pods.read()?.here {
                let pod = Rc::new(pod);
                if asked.insert(Rc::clone(&pod)) {
                    spawn_local(self.clone().ask_for(pod));
                }
            }
        }
    }

    /// Asks for the status of a pod and of its container in turn, and sometimes runs a command in the container.
    async fn ask_for(mut self, pod: Rc<Pod>) {
        let mut pace = pace(EVERY);
        for turn in 1_u32.. {
            pace.tick().await;
            let line = match turn % (2 * EXEC_EVERY + 1) {
                0 => self.exec(&pod).await,
                odd if odd % 2 == 1 => self.pod_status(&pod).await,
                _ => self.container_status(&pod).await,
            };
            // A reply for a pod that is being stopped does not count.
            if !self.pods.have(&pod) {
                return;
            }
            println!("{line}");
        }
    }

    async fn pod_status(&mut self, pod: &Pod) -> Json {
        let asked = request(cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.pod.clone(),
            verbose: false,
        });
        let call = self.cri.pod_sandbox_status(asked);
        outcome("PodSandboxStatus", &pod.backend, call, |reply| {
            let ready = cri::PodSandboxState::SandboxReady;
            let status = reply.status.as_ref();
            status.is_some_and(|status| status.id == pod.pod && status.state() == ready)
        })
        .await
    }

    async fn container_status(&mut self, pod: &Pod) -> Json {
        let asked = request(cri::ContainerStatusRequest {
            container_id: pod.container.clone(),
            verbose: false,
        });
        let call = self.cri.container_status(asked);
        outcome("ContainerStatus", &pod.backend, call, |reply| {
            let running = cri::ContainerState::ContainerRunning;
            let status = reply.status.as_ref();
            status.is_some_and(|status| status.id == pod.container && status.state() == running)
        })
        .await
    }

    async fn exec(&mut self, pod: &Pod) -> Json {
        let asked = request(cri::ExecSyncRequest {
            container_id: pod.container.clone(),
            cmd: ["echo", "-n", WORD].map(str::to_owned).to_vec(),
            timeout: 0,
        });
        let call = self.cri.exec_sync(asked);
        outcome("ExecSync", &pod.backend, call, |reply| {
            reply.exit_code == 0 && reply.stdout == WORD.as_bytes()
        })
        .await
    }
}

/// The line of a call's outcome. A reply is `right` if its content is correct.
async fn outcome<T: Debug>(
    rpc: &str,
    backend: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
    right: impl FnOnce(&T) -> bool,
) -> Json {
    let began = now_ms();
    let result = call.await;
    let ended = now_ms();
    let mut line = json!({ "began": began, "ended": ended, "rpc": rpc, "backend": backend });
    match result {
        Ok(reply) => {
            line["code"] = json!("Ok");
            let right = right(reply.get_ref());
            line["right"] = json!(right);
            if !right {
                line["reply"] = json!(format!("{:?}", reply.get_ref()));
            }
        }
        Err(status) => {
            line["code"] = json!(format!("{:?}", status.code()));
            line["text"] = json!(status.message());
            // A status that the client makes because the connection is broken has a source. A status from the server
            // has no source.
            line["connection"] = json!(std::error::Error::source(&status).is_some());
        }
    }
    line
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

fn pace(every: Duration) -> Interval {
    let mut pace = interval(every);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

fn now_ms() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis()
}
