//! A backend that sends GOAWAY: criswitch sends a call again exactly if the GOAWAY excludes the call.

use std::path::Path;
use std::sync::{Arc, Mutex};

use criswitch_cri::codec::cri::ContainerEventType;
use futures_util::future::join_all;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tonic::Code;

use crate::calls::ID_CALLS;
use crate::faults::{names, until_state};
use crate::http2::{self, GOAWAY, HEADERS, PREFACE};
use crate::session::events::{events, next};
use crate::support::{Rig, Sim, sockets};

/// The number of next calls that the GOAWAY does not exclude. `None` if no GOAWAY is planned.
type Plan = Arc<Mutex<Option<usize>>>;

/// Forwards connections to a runtime. Sends GOAWAY as planned, and forwards no call that the GOAWAY excludes.
struct Proxy {
    plan: Plan,
    end: Arc<Notify>,
    _serving: JoinSet<()>,
}

impl Proxy {
    fn serve_on(socket: &Path, runtime: &Path) -> Proxy {
        let (listener, runtime) = (sockets::bind(socket), runtime.to_owned());
        let (plan, end) = (Plan::default(), Arc::<Notify>::default());
        let (planned, ended) = (Arc::clone(&plan), Arc::clone(&end));
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let client = sockets::accept(&listener).await.unwrap();
                let server = sockets::connect(&runtime).await.unwrap();
                let (plan, end) = (Arc::clone(&planned), Arc::clone(&ended));
                connections.spawn(forward(client, server, plan, end));
            }
        });
        Proxy {
            plan,
            end,
            _serving: serving,
        }
    }

    /// Sends GOAWAY on the connection of the next call. The GOAWAY excludes all calls after this many.
    fn exclude_after(&self, processed: usize) {
        *self.plan.lock().unwrap() = Some(processed);
    }
}

/// Forwards one connection until either side or the test closes it.
async fn forward<I>(client: I, server: I, plan: Plan, end: Arc<Notify>)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (mut from_client, mut to_client) = tokio::io::split(client);
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let (replies, mut written) = mpsc::unbounded_channel::<Vec<u8>>();
    let injected = replies.clone();
    let requests = async {
        let mut preface = [0; PREFACE.len()];
        from_client.read_exact(&mut preface).await.ok()?;
        to_server.write_all(&preface).await.ok()?;
        let (mut excluding, mut last) = (None::<usize>, 0);
        let mut is_sent = false;
        loop {
            let frame = frame(&mut from_client).await?;
            let stream = u32::from_be_bytes([frame[5], frame[6], frame[7], frame[8]]);
            if frame[3] == HEADERS && stream > last && !is_sent {
                excluding = excluding.or_else(|| plan.lock().unwrap().take());
                if excluding != Some(0) {
                    last = stream;
                    excluding = excluding.map(|processed| processed - 1);
                }
                if excluding == Some(0) {
                    let payload = [last.to_be_bytes(), [0; 4]].concat();
                    let goaway = http2::encoded(GOAWAY, 0, 0, &payload);
                    injected.send(goaway).ok()?;
                    is_sent = true;
                }
            }
            if stream <= last {
                to_server.write_all(&frame).await.ok()?;
            }
        }
    };
    let answers = async {
        while let Some(frame) = frame(&mut from_server).await {
            replies.send(frame).unwrap();
        }
    };
    let writing = async {
        while let Some(frame) = written.recv().await {
            to_client.write_all(&frame).await.ok()?;
        }
        Some(())
    };
    tokio::select! {
        None::<()> = requests => {}
        () = answers => {}
        () = end.notified() => {}
        _ = writing => {}
    }
}

/// The bytes of the next frame; `None` at the end.
async fn frame(peer: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut frame = vec![0; 9];
    peer.read_exact(&mut frame).await.ok()?;
    let length = u32::from_be_bytes([0, frame[0], frame[1], frame[2]]);
    frame.resize(9 + length as usize, 0);
    peer.read_exact(&mut frame[9..]).await.ok()?;
    Some(frame)
}

/// criswitch with the backend `kata` behind a proxy. The backend is ready.
async fn behind_proxy() -> (Rig, Proxy) {
    let mut proxy = None;
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = Rig::with_config(sims, |directory| {
        let at = |name: &str| Path::new(directory).join(name);
        proxy = Some(Proxy::serve_on(&at("proxy.sock"), &at("kata.sock")));
        format!(
            "default_handler = 'runc'\n[handlers]\nrunc = '{directory}/runc.sock'\nkata = '{directory}/proxy.sock'"
        )
    }).await;
    until_state(&rig, "kata", "ready").await;
    (rig, proxy.unwrap())
}

#[tokio::test]
async fn pods_that_a_goaway_excludes_are_created_once_over_the_next_connection() {
    let (rig, proxy) = behind_proxy().await;
    let kata = rig.sim("kata");
    kata.hold("RunPodSandbox");
    proxy.exclude_after(1);
    let pods: Vec<String> = (10..30).map(|pod| format!("pod-{pod}")).collect();
    let created = join_all(pods.iter().map(|pod| (*rig).run_pod("kata", pod)));
    let released = async {
        // The first pod waits on the old connection until all other pods wait on the new one.
        kata.until(|journal| journal.held.len() == pods.len()).await;
        kata.release("RunPodSandbox");
    };
    let (created, ()) = tokio::join!(created, released);
    for pod in created {
        assert!(pod.is_ok(), "{pod:?}");
    }
    assert_eq!(names(&rig.pods().await.unwrap()), pods);
    assert_eq!(kata.calls("RunPodSandbox").len(), pods.len());
}

#[tokio::test]
async fn a_pod_is_created_once_if_a_goaway_excludes_its_call_only() {
    let (rig, proxy) = behind_proxy().await;
    proxy.exclude_after(0);
    rig.run_pod("kata", "web").await;
    assert_eq!(rig.sim("kata").calls("RunPodSandbox").len(), 1);
}

#[tokio::test]
async fn a_call_for_an_id_that_a_goaway_excludes_is_sent_again() {
    let (rig, proxy) = behind_proxy().await;
    let (pod, container) = rig.run("kata", "web").await;
    for call in ID_CALLS {
        proxy.exclude_after(0);
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_ne!(reply.code(), Code::Unavailable, "{}", call.rpc);
        until_state(&rig, "kata", "ready").await;
    }
}

/// The events between the two requests are lost, so the states of all pods replace them.
#[tokio::test]
async fn after_a_goaway_excludes_the_request_for_events_subscribers_get_the_state_of_each_pod() {
    let (rig, proxy) = behind_proxy().await;
    let pod = rig.run_pod("kata", "web").await;
    proxy.exclude_after(0);
    let mut events = events(&rig).await.unwrap();
    let event = next(&mut events).await.unwrap();
    assert_eq!(event.container_id, pod);
    assert_eq!(
        event.container_event_type(),
        ContainerEventType::ContainerStartedEvent
    );
}

#[tokio::test]
async fn a_pod_that_a_goaway_does_not_exclude_is_not_created_again_when_the_connection_ends() {
    let (rig, proxy) = behind_proxy().await;
    let kata = rig.sim("kata");
    kata.hold("RunPodSandbox");
    proxy.exclude_after(1);
    let ends = async {
        kata.until_held("RunPodSandbox").await;
        proxy.end.notify_waiters();
    };
    let (failed, ()) = tokio::join!(rig.try_run("kata", "web"), ends);
    let failed = failed.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(
        failed.message().contains("the connection ended"),
        "{failed}"
    );
    kata.release("RunPodSandbox");
    until_state(&rig, "kata", "ready").await;
    assert_eq!(kata.calls("RunPodSandbox").len(), 1);
}
