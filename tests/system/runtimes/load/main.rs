//! A steady load of calls on a CRI socket, for the real suite: one line of JSON on standard output for each call.
//!
//! `load SOCKET SECONDS FILE [HANDLER...]`, where each line of the file is a pod with its one container, `BACKEND=POD/CONTAINER`, and
//! all lines are what the socket has, running. The file may be replaced meanwhile. `?` before a line: it may be stopped
//! or gone already; a line that is only `?`: one may have come that has no line yet.
//! Asks for the node's state, lists, asks for states, and runs `echo` in the containers. Changes nothing, except that it
//! creates and removes pods of the handlers that are named.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

mod creations;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use criswitch::codec::cri;
use criswitch::codec::cri::runtime_service_client::RuntimeServiceClient;
use futures_util::future::join;
use serde_json::{Value as Json, json};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

/// The pace of each pod's calls, and of the lists.
const EVERY: Duration = Duration::from_millis(50);
/// The deadline of each call.
const DEADLINE: Duration = Duration::from_secs(10);
/// One `ExecSync` after so many questions for the state.
const EXEC_EVERY: u32 = 20;
/// What it prints in the container.
const WORD: &str = "here";

/// The pace of the questions about the node.
const NODE_EVERY: Duration = Duration::from_millis(500);
/// A line for what has none yet, and what stands before one that counts no longer.
const UNSURE: &str = "?";

/// A pod with one container.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    backend: String,
    pod: String,
    container: String,
}

/// The file of pods.
#[derive(Clone)]
struct Pods(PathBuf);

/// What the file says at one time.
struct Told {
    /// Pods that are there and run.
    here: BTreeSet<Pod>,
    /// Pods that may be there besides.
    leaving: BTreeSet<Pod>,
    /// Whether there may be any others.
    coming: bool,
}

/// One client, as the kubelet is: all calls share a connection.
#[derive(Clone)]
struct Client {
    cri: RuntimeServiceClient<Channel>,
    pods: Pods,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, seconds, pods, handlers @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: load SOCKET SECONDS FILE [HANDLER...]");
    };
    let pods = Pods(Path::new(pods).to_owned());
    pods.read()?;
    let endpoint = Endpoint::from_shared(format!("unix://{socket}"))?;
    let endpoint = endpoint.origin("http://localhost".parse()?);
    let cri = RuntimeServiceClient::new(endpoint.connect_lazy());
    let client = Client { cri, pods };
    let seconds = seconds.parse().context("SECONDS is no number")?;
    let load = async {
        if !handlers.is_empty() {
            creations::start(&client, socket, handlers);
        }
        let all = join(client.clone().list(), client.clone().ask_for_node());
        join(all, client.follow_pods()).await
    };
    // The load has no end of its own.
    let limited = timeout(Duration::from_secs(seconds), load);
    match LocalSet::new().run_until(limited).await {
        Ok((_, broken)) => broken,
        Err(_) => Ok(()),
    }
}

impl Pods {
    fn read(&self) -> Result<Told> {
        let text = std::fs::read_to_string(&self.0).context("cannot read the pods")?;
        let mut told = Told {
            here: BTreeSet::new(),
            leaving: BTreeSet::new(),
            coming: false,
        };
        for line in text.lines() {
            match line.strip_prefix(UNSURE) {
                Some("") => told.coming = true,
                Some(line) => drop(told.leaving.insert(Pod::parse(line)?)),
                None => drop(told.here.insert(Pod::parse(line)?)),
            }
        }
        Ok(told)
    }

    /// Whether a pod is there for sure. What cannot be read was told at the start.
    fn have(&self, pod: &Pod) -> bool {
        self.read().is_ok_and(|told| told.here.contains(pod))
    }
}

impl Told {
    /// Whether a list of ids, each once, is of all that there was from `self` to `after` and of nothing else.
    fn agrees(&self, after: &Told, listed: &[&str], id: fn(&Pod) -> &str) -> bool {
        let ids: BTreeSet<&str> = listed.iter().copied().collect();
        let mut all_along = self.here.intersection(&after.here);
        let ever = [&self.here, &self.leaving, &after.here, &after.leaving];
        let ever: BTreeSet<&str> = ever.into_iter().flatten().map(id).collect();
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
    /// Lists pods and containers in turn; right is who lists all of them and nothing else.
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
                let listed = reply.containers.iter();
                let listed: Vec<_> = listed.map(|container| container.id.as_str()).collect();
                let after = pods.read();
                after.is_ok_and(|after| before.agrees(&after, &listed, |pod| &pod.container))
            })
            .await;
            println!("{line}");
        }
    }

    /// Asks what the node is and whether it is ready, as the kubelet does.
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
                let ready = conditions.filter(|condition| condition.status);
                let ready: Vec<_> = ready.map(|condition| condition.r#type.as_str()).collect();
                ["RuntimeReady", "NetworkReady"]
                    .iter()
                    .all(|needed| ready.contains(needed))
            })
            .await;
            println!("{line}");
        }
    }

    /// Asks for each pod as long as it has a line.
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

    /// Asks for one pod's state and its container's in turn, and now and then runs something in it.
    async fn ask_for(mut self, pod: Rc<Pod>) {
        let mut pace = pace(EVERY);
        for turn in 1_u32.. {
            pace.tick().await;
            let line = match turn % (2 * EXEC_EVERY + 1) {
                0 => self.exec(&pod).await,
                odd if odd % 2 == 1 => self.pod_status(&pod).await,
                _ => self.container_status(&pod).await,
            };
            // What is said of one that is being stopped does not count.
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

/// A call's outcome; a reply is `right` if it says what is so.
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
            // What the client's own side says of a broken connection has a cause, what came over one has none.
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
