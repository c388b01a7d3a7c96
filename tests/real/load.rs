//! A steady load of calls on a CRI socket, for the real suite: one line of JSON on standard output for each call.
//!
//! `load SOCKET SECONDS BACKEND=POD/CONTAINER...`, where the pods and containers are all that the socket has, running.
//! Never changes anything: it lists, asks for states, and runs `echo` in the containers.
#![allow(clippy::print_stdout, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use criswitch::cri;
use criswitch::cri::runtime_service_client::RuntimeServiceClient;
use futures_util::future::join_all;
use serde_json::json;
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

/// A pod with one container.
struct Pod {
    backend: String,
    pod: String,
    container: String,
}

/// One client, as the kubelet is: all calls share a connection.
#[derive(Clone)]
struct Client(RuntimeServiceClient<Channel>);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, seconds, pods @ ..] = arguments.as_slice() else {
        anyhow::bail!("usage: load SOCKET SECONDS BACKEND=POD/CONTAINER...");
    };
    let pods: Vec<Pod> = pods
        .iter()
        .map(|pod| Pod::parse(pod))
        .collect::<Result<_>>()?;
    ensure!(!pods.is_empty(), "no pods");
    let endpoint = Endpoint::from_shared(format!("unix://{socket}"))?;
    let endpoint = endpoint.origin("http://localhost".parse()?);
    let client = Client(RuntimeServiceClient::new(endpoint.connect_lazy()));
    let seconds = seconds.parse().context("SECONDS is no number")?;
    let load = async {
        let of_pods = join_all(pods.iter().map(|pod| client.clone().ask_for(pod)));
        tokio::join!(client.clone().list(&pods), of_pods);
    };
    // The load has no end of its own.
    timeout(Duration::from_secs(seconds), load).await.ok();
    Ok(())
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
    async fn list(mut self, pods: &[Pod]) {
        let pod_ids: BTreeSet<&str> = pods.iter().map(|pod| pod.pod.as_str()).collect();
        let container_ids: BTreeSet<&str> = pods.iter().map(|pod| pod.container.as_str()).collect();
        let mut pace = pace();
        loop {
            pace.tick().await;
            let call = self.0.list_pod_sandbox(request(Default::default()));
            logged("ListPodSandbox", "all", call, |reply| {
                let ids = reply.items.iter().map(|pod| pod.id.as_str());
                ids.collect::<BTreeSet<_>>() == pod_ids
            })
            .await;
            pace.tick().await;
            let call = self.0.list_containers(request(Default::default()));
            logged("ListContainers", "all", call, |reply| {
                let ids = reply
                    .containers
                    .iter()
                    .map(|container| container.id.as_str());
                ids.collect::<BTreeSet<_>>() == container_ids
            })
            .await;
        }
    }

    /// Asks for one pod's state and its container's in turn, and now and then runs something in it.
    async fn ask_for(mut self, pod: &Pod) {
        let mut pace = pace();
        loop {
            for _ in 0..EXEC_EVERY {
                pace.tick().await;
                self.pod_status(pod).await;
                pace.tick().await;
                self.container_status(pod).await;
            }
            self.exec(pod).await;
        }
    }

    async fn pod_status(&mut self, pod: &Pod) {
        let asked = request(cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.pod.clone(),
            verbose: false,
        });
        let call = self.0.pod_sandbox_status(asked);
        logged("PodSandboxStatus", &pod.backend, call, |reply| {
            let ready = cri::PodSandboxState::SandboxReady;
            let status = reply.status.as_ref();
            status.is_some_and(|status| status.id == pod.pod && status.state() == ready)
        })
        .await;
    }

    async fn container_status(&mut self, pod: &Pod) {
        let asked = request(cri::ContainerStatusRequest {
            container_id: pod.container.clone(),
            verbose: false,
        });
        let call = self.0.container_status(asked);
        logged("ContainerStatus", &pod.backend, call, |reply| {
            let running = cri::ContainerState::ContainerRunning;
            let status = reply.status.as_ref();
            status.is_some_and(|status| status.id == pod.container && status.state() == running)
        })
        .await;
    }

    async fn exec(&mut self, pod: &Pod) {
        let asked = request(cri::ExecSyncRequest {
            container_id: pod.container.clone(),
            cmd: ["echo", "-n", WORD].map(str::to_owned).to_vec(),
            timeout: 0,
        });
        let call = self.0.exec_sync(asked);
        logged("ExecSync", &pod.backend, call, |reply| {
            reply.exit_code == 0 && reply.stdout == WORD.as_bytes()
        })
        .await;
    }
}

/// A call's outcome as a line; a reply is `right` if it says what is so.
async fn logged<T>(
    rpc: &str,
    backend: &str,
    call: impl Future<Output = Result<Response<T>, Status>>,
    right: impl FnOnce(&T) -> bool,
) {
    let began = now_ms();
    let result = call.await;
    let ended = now_ms();
    let mut line = json!({ "began": began, "ended": ended, "rpc": rpc, "backend": backend });
    match result {
        Ok(reply) => {
            line["code"] = json!("Ok");
            line["right"] = json!(right(reply.get_ref()));
        }
        Err(status) => {
            line["code"] = json!(format!("{:?}", status.code()));
            line["text"] = json!(status.message());
            // What the client's own side says of a broken connection has a cause, what came over one has none.
            line["connection"] = json!(std::error::Error::source(&status).is_some());
        }
    }
    println!("{line}");
}

fn request<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(DEADLINE);
    request
}

fn pace() -> Interval {
    let mut pace = interval(EVERY);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    pace
}

fn now_ms() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis()
}
