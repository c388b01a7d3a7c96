//! The clients: many call without a pause, one lists like a kubelet, and some call the fourth backend.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criswitch_cri::codec::cri;
use http_body_util::BodyExt;
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::{interval, interval_at, timeout};

use crate::backend::{BACKENDS, CONTAINERS, FOURTH, PODS};
use crate::items::{container_id, pod_id};
use crate::support::{RawClient, frame, frame_raw};

/// The number of clients that call for pods and containers of the three healthy backends.
const BUSY: usize = 180;
/// The number of clients that call for containers of the fourth backend. Each client calls once a second, so that a
/// hang hardly reduces the load.
const PATIENT: usize = 20;
const CONNECTIONS: usize = 10;
const SECOND: Duration = Duration::from_secs(1);
/// How long a call may take. A call that takes longer counts as failed.
const LONGEST: Duration = Duration::from_secs(10);
/// The deadline of calls to the fourth backend.
const DEADLINE: (&str, &str) = ("grpc-timeout", "1S");

/// The outcomes of the calls of one or several clients.
#[derive(Default)]
pub struct Tally {
    /// The time of each call with status OK, in µs; sorted by [`Tally::sort`].
    pub took_us: Vec<u32>,
    pub failed: usize,
    /// The text of the first failure.
    pub failure: Option<String>,
}

impl Tally {
    pub fn calls(&self) -> usize {
        self.took_us.len() + self.failed
    }

    /// Returns the time within which `percent` of the calls with status OK were answered, in µs.
    pub fn percentile_us(&self, percent: usize) -> u32 {
        let last = self.took_us.len().saturating_sub(1);
        let at = self.took_us.len() * percent / 100;
        self.took_us.get(at.min(last)).copied().unwrap_or_default()
    }

    fn note(&mut self, since: Instant, outcome: Result<Bytes, String>) {
        match outcome {
            Ok(_) => self
                .took_us
                .push(since.elapsed().as_micros().try_into().unwrap_or(u32::MAX)),
            Err(text) => {
                self.failed += 1;
                self.failure.get_or_insert(text);
            }
        }
    }

    fn add(&mut self, other: Tally) {
        self.took_us.extend(other.took_us);
        self.failed += other.failed;
        self.failure = self.failure.take().or(other.failure);
    }

    fn sort(mut self) -> Tally {
        self.took_us.sort_unstable();
        self
    }
}

/// The outcomes of the calls of all clients.
pub struct Seen {
    pub busy: Tally,
    pub lists: Tally,
    pub fourth: Tally,
}

/// Connections to criswitch that all clients share.
pub struct Clients {
    connections: Vec<RawClient>,
    /// By RPC: the length in bytes of the list of all pods and of the list of all containers.
    whole: Vec<(&'static str, usize)>,
}

impl Clients {
    /// Connects, and waits until criswitch lists the pods and containers of all backends.
    pub async fn connect(socket: &Path) -> Clients {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            connections.push(RawClient::connect(socket).await);
        }
        let pods = list(&connections[0], "ListPodSandbox").await.unwrap();
        let containers = list(&connections[0], "ListContainers").await.unwrap();
        let whole = vec![
            ("ListPodSandbox", pods.len()),
            ("ListContainers", containers.len()),
        ];
        let pods = cri::ListPodSandboxResponse::decode(&pods[5..]).unwrap();
        assert_eq!(pods.items.len(), BACKENDS * PODS);
        let containers = cri::ListContainersResponse::decode(&containers[5..]).unwrap();
        assert_eq!(containers.containers.len(), BACKENDS * CONTAINERS);
        Clients { connections, whole }
    }

    /// Runs all clients at once for the time `length`.
    pub async fn call_for(&self, length: Duration) -> Seen {
        let end = Instant::now() + length;
        let mut busy = JoinSet::new();
        let mut fourth = JoinSet::new();
        for at in 0..BUSY {
            busy.spawn(call_on(self.connection(at), at, end));
        }
        for at in 0..PATIENT {
            fourth.spawn(call_the_fourth(self.connection(at), at, end));
        }
        let lists = poll(self.connection(0), self.whole.clone(), end).await;
        Seen {
            busy: sum(busy).await,
            lists: lists.sort(),
            fourth: sum(fourth).await,
        }
    }

    fn connection(&self, at: usize) -> RawClient {
        self.connections[at % CONNECTIONS].clone()
    }
}

async fn sum(mut clients: JoinSet<Tally>) -> Tally {
    let mut all = Tally::default();
    while let Some(tally) = clients.join_next().await {
        all.add(tally.unwrap());
    }
    all.sort()
}

/// Makes one call after another. The calls are spread over the pods and containers of the healthy backends.
async fn call_on(connection: RawClient, client: usize, end: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut at = client;
    while Instant::now() < end {
        let (rpc, request) = call_for_one(at % FOURTH, at / FOURTH);
        let since = Instant::now();
        tally.note(since, call(&connection, rpc, &[], request).await);
        at += BUSY + 1;
    }
    tally
}

/// Returns the call of a busy client in turn `at`. The proportions of the RPCs are about those of a kubelet's most
/// frequent calls.
fn call_for_one(backend: usize, at: usize) -> (&'static str, Bytes) {
    match at % 8 {
        0..4 => container_status(backend, at),
        4..6 => {
            let request = cri::PodSandboxStatusRequest {
                pod_sandbox_id: pod_id(backend, at % PODS),
                verbose: false,
            };
            ("PodSandboxStatus", frame(&request))
        }
        _ => {
            let request = cri::ExecSyncRequest {
                container_id: container_id(backend, at % CONTAINERS),
                cmd: vec!["/bin/probe".to_owned()],
                timeout: 1,
            };
            ("ExecSync", frame(&request))
        }
    }
}

fn container_status(backend: usize, at: usize) -> (&'static str, Bytes) {
    let request = cri::ContainerStatusRequest {
        container_id: container_id(backend, at % CONTAINERS),
        verbose: false,
    };
    ("ContainerStatus", frame(&request))
}

async fn call_the_fourth(connection: RawClient, client: usize, end: Instant) -> Tally {
    let mut tally = Tally::default();
    // The clients begin at different moments, so that they do not all call at once.
    let first = Instant::now() + SECOND * client.try_into().unwrap() / PATIENT.try_into().unwrap();
    let mut every_second = interval_at(first.into(), SECOND);
    while every_second.tick().await.into_std() < end {
        let (rpc, request) = container_status(FOURTH, client);
        let since = Instant::now();
        tally.note(since, call(&connection, rpc, &[DEADLINE], request).await);
    }
    tally
}

/// Lists pods and containers once a second, as a kubelet does. The lists must be complete. `whole` has the minimum
/// length of each list.
async fn poll(connection: RawClient, whole: Vec<(&'static str, usize)>, end: Instant) -> Tally {
    let mut tally = Tally::default();
    let mut every_second = interval(SECOND);
    while every_second.tick().await.into_std() < end {
        for &(rpc, length) in &whole {
            let since = Instant::now();
            let outcome = list(&connection, rpc).await.and_then(|reply| {
                if reply.len() >= length {
                    Ok(reply)
                } else {
                    Err(format!("{rpc}: {} of {length} bytes", reply.len()))
                }
            });
            tally.note(since, outcome);
        }
    }
    tally
}

async fn list(connection: &RawClient, rpc: &'static str) -> Result<Bytes, String> {
    call(connection, rpc, &[], frame_raw(&[])).await
}

/// Makes a call. Returns the body of the reply if the gRPC status of the reply is 0 (OK).
async fn call(
    connection: &RawClient,
    rpc: &'static str,
    headers: &[(&str, &str)],
    request: Bytes,
) -> Result<Bytes, String> {
    let path = format!("/runtime.v1.RuntimeService/{rpc}");
    let reply = async {
        let reply = connection.begin(&path, headers, request).await?;
        let (head, body) = reply.into_parts();
        let whole = body.collect().await?;
        let end = whole.trailers().cloned().unwrap_or(head.headers);
        Ok::<_, hyper::Error>((end, whole.to_bytes()))
    };
    let reply = timeout(LONGEST, reply).await;
    let reply = reply.map_err(|_| format!("{rpc}: no reply within {LONGEST:?}"))?;
    let (end, body) = reply.map_err(|error| format!("{rpc}: {error}"))?;
    match end.get("grpc-status") {
        Some(code) if code == "0" => Ok(body),
        _ => Err(format!("{rpc}: {end:?}")),
    }
}
