//! A backend that allows few HTTP/2 streams on each connection.

use std::time::Duration;

use bytes::Bytes;
use criswitch::limits::places::User;
use criswitch::limits::streams::MAX_FURTHER_CONNECTIONS;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::ROWS;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{path, send, text_of};
use crate::faults::{hung, state_of, text, until_state};
use crate::logged::Logged;
use crate::support::{RawClient, RawReply, Rig, Sim, frame};
use crate::wait::until;

/// The streams that the backend allows on each connection.
const STREAMS: u32 = 8;

/// criswitch with a backend that allows few streams, and calls to this backend.
struct Few {
    rig: Rig,
    pod: String,
    exec: Bytes,
}

impl Few {
    async fn start() -> Few {
        Few::with(STREAMS).await
    }

    async fn with(streams: u32) -> Few {
        let few = Sim::new("few").set(|settings| settings.streams = Some(streams));
        let sims = [Sim::new("runc"), few];
        let rig = Rig::with_config(sims.clone(), |directory| {
            text("list_timeout = \"100ms\"", &sims, directory)
        })
        .await;
        let (pod, container_id) = rig.run("few", "web").await;
        until_state(&rig, "few", "ready").await;
        let exec = frame(&cri::ExecSyncRequest {
            container_id,
            cmd: vec!["true".to_owned()],
            timeout: 0,
        });
        Few { rig, pod, exec }
    }

    fn few(&self) -> &Sim {
        self.rig.sim("few")
    }

    /// Begins this many calls of `ExecSync`, and waits until the backend has `held` of them.
    async fn execute(&self, calls: usize, held: usize) -> JoinSet<RawReply> {
        let client = (*self.rig).raw().await;
        self.execute_over(client, calls, held).await
    }

    /// Like [`Few::execute`], with a client.
    async fn execute_over(
        &self,
        client: RawClient,
        calls: usize,
        held: usize,
    ) -> JoinSet<RawReply> {
        self.few().hold("ExecSync");
        let mut begun = JoinSet::new();
        for _ in 0..calls {
            let (client, exec) = (client.clone(), self.exec.clone());
            begun.spawn(async move { client.call(&path("ExecSync"), &[], exec).await });
        }
        self.few().until(|journal| journal.held.len() == held).await;
        begun
    }

    /// Like [`Few::execute`], by a user other than root.
    async fn execute_as(&self, uid: u32, calls: usize, held: usize) -> JoinSet<RawReply> {
        let client = RawClient::over(self.rig.connect_as(User::Other(uid))).await;
        self.execute_over(client, calls, held).await
    }

    async fn pod_status(&self) -> RawReply {
        send(&self.rig, "PodSandboxStatus", self.status_request()).await
    }

    /// Like [`Few::pod_status`], by a user other than root.
    async fn pod_status_as(&self, uid: u32) -> RawReply {
        let client = RawClient::over(self.rig.connect_as(User::Other(uid))).await;
        let path = path("PodSandboxStatus");
        client.call(&path, &[], self.status_request()).await
    }

    fn status_request(&self) -> Bytes {
        frame(&cri::PodSandboxStatusRequest {
            pod_sandbox_id: self.pod.clone(),
            verbose: false,
        })
    }

    /// Makes criswitch probe the backend, and waits until the backend has answered the probe.
    async fn is_probed(&self) {
        let probes = || self.few().calls("Version").len();
        let before = probes();
        self.few().hold("ListPodSandbox");
        // A late list makes criswitch probe the backend.
        self.rig.pods().await.unwrap();
        until(async || probes() > before).await;
        self.few().release("ListPodSandbox");
        assert_eq!(state_of(&self.rig, "few").await["state"], "ready");
    }

    fn connections(&self) -> usize {
        self.few().connections()
    }
}

#[tokio::test]
async fn calls_that_find_no_free_stream_go_over_a_further_connection_that_closes_when_unused() {
    let few = Few::start().await;
    assert_eq!(few.connections(), 1);
    // criswitch reserves one stream of the first connection for probes, so 20 calls need three connections.
    let mut begun = few.execute(20, 20).await;
    assert_eq!(few.connections(), 3);
    assert_eq!(few.pod_status().await.code(), Code::Ok);
    few.is_probed().await;
    few.few().release("ExecSync");
    while let Some(reply) = begun.join_next().await {
        let reply = reply.unwrap();
        assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
    }
    for _ in 0..5 {
        tokio::time::advance(Duration::from_secs(31)).await;
        // Let the tasks of criswitch run, so that they notice the new time.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
    until(async || few.connections() == 1).await;
    assert_eq!(few.pod_status().await.code(), Code::Ok);
}

#[tokio::test]
async fn a_backend_whose_streams_are_all_in_use_is_probed_and_stays_ready() {
    let few = Few::start().await;
    let most = STREAMS as usize * (1 + MAX_FURTHER_CONNECTIONS) - 1;
    let begun = few.execute(most + 20, most).await;
    assert_eq!(few.connections(), 1 + MAX_FURTHER_CONNECTIONS);
    few.is_probed().await;
    assert_eq!(few.few().calls("ExecSync").len(), most);
    // The streams of cancelled calls are free again.
    drop(begun);
    assert_eq!(few.pod_status().await.code(), Code::Ok);
    few.few().until(|journal| journal.held.is_empty()).await;
    assert!(few.few().calls("ExecSync").len() <= most + 20);
}

#[tokio::test]
async fn a_backend_with_one_or_two_streams_is_probed_and_delays_no_read_for_long() {
    for streams in [1, 2] {
        let few = Few::with(streams).await;
        // Some calls leave streams free, for which further connections open.
        let begun = few.execute(3, 3).await;
        few.is_probed().await;
        assert_eq!(few.pod_status().await.code(), Code::Ok);
        drop(begun);
        few.few().until(|journal| journal.held.is_empty()).await;
        let most = (streams * (1 + MAX_FURTHER_CONNECTIONS as u32)) as usize - 1;
        let _begun = few.execute(most + 5, most).await;
        few.is_probed().await;
        // The kept status answers.
        let begun = Instant::now();
        for _ in 0..20 {
            assert_eq!(few.pod_status().await.code(), Code::Ok);
        }
        assert!(begun.elapsed() < Duration::from_secs(1), "{streams}");
        few.is_probed().await;
    }
}

/// The calls that use all other streams go on, so only the kept stream is left for the probe and the lists.
#[tokio::test]
async fn a_backend_with_one_or_two_streams_is_listed_again_while_calls_use_all_others() {
    for streams in [1, 2] {
        let few = Few::with(streams).await;
        let most = (streams * (1 + MAX_FURTHER_CONNECTIONS as u32)) as usize - 1;
        let _begun = few.execute(most + 5, most).await;
        hung(&few.rig, "few").await;
        let others = ROWS.iter().filter(|row| row.name != "ExecSync");
        others.for_each(|row| few.few().release(row.name));
        until_state(&few.rig, "few", "ready").await;
        let held = ["ExecSync"].repeat(most);
        few.few().until(|journal| journal.held == held).await;
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_stream_fails_when_its_backend_is_unresponsive_and_is_never_sent() {
    let few = Few::start().await;
    let most = STREAMS as usize * (1 + MAX_FURTHER_CONNECTIONS) - 1;
    let _begun = few.execute(most, most).await;
    let (probes, sent) = (few.few().calls("Version").len(), Instant::now());
    let create = few.rig.try_run("few", "new");
    let hangs = async {
        crate::faults::hang(few.few());
        few.few()
            .until(|journal| journal.calls_of("Version").count() > probes)
            .await;
        until_state(&few.rig, "few", "unresponsive").await;
        Instant::now()
    };
    let (failed, unresponsive) = tokio::join!(create, hangs);
    let failed = failed.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    assert!(
        failed.message().contains("did not answer a probe"),
        "{failed}"
    );
    assert!(
        unresponsive.elapsed() < Duration::from_secs(1),
        "{:?}",
        sent.elapsed()
    );
    crate::faults::wake(few.few());
    until_state(&few.rig, "few", "ready").await;
    assert_eq!(few.few().calls("RunPodSandbox").len(), 1);
}

#[tokio::test]
async fn calls_of_other_users_leave_streams_for_root_and_calls_of_one_user_for_each_other() {
    let few = Few::start().await;
    let all = STREAMS as usize * (1 + MAX_FURTHER_CONNECTIONS);
    let first = few.execute_as(1000, all, all / 4).await;
    let second = few.execute_as(2000, all, all / 4 + all / 8).await;
    assert_eq!(few.connections(), 1 + MAX_FURTHER_CONNECTIONS);
    assert_eq!(few.pod_status().await.code(), Code::Ok);
    let own = few.execute(all / 2, all / 4 + all / 8 + all / 2).await;
    drop((first, second));
    // The waiting calls were cancelled and are never sent.
    few.few()
        .until(|journal| journal.held.len() == all / 2)
        .await;
    drop(own);
}

#[cfg(unix)] // A pipe is not a file.
#[tokio::test]
async fn calls_of_other_users_leave_streams_for_root_even_if_no_further_connection_opens() {
    let few = Few::start().await;
    std::fs::remove_file(few.few().socket()).unwrap();
    let half = STREAMS as usize / 2;
    let _first = few.execute_as(1000, 2 * half, half / 2).await;
    let _second = few.execute_as(2000, 2 * half, half / 2 + half / 4).await;
    assert_eq!(few.connections(), 1);
    assert_eq!(few.pod_status().await.code(), Code::Ok);
    let own = few.execute(half - 1, half / 2 + half / 4 + half - 1).await;
    drop(own);
}

#[cfg(unix)] // A pipe is not a file.
#[tokio::test]
async fn a_read_that_waits_for_the_streams_of_its_user_does_not_make_its_rpc_late() {
    let logged = Logged::here();
    let few = Few::start().await;
    std::fs::remove_file(few.few().socket()).unwrap();
    let half = STREAMS as usize / 2;
    let _first = few.execute_as(1000, 2 * half, half / 2).await;
    let waited = few.pod_status_as(1000).await;
    assert_eq!(waited.code(), Code::Unavailable, "{}", text_of(&waited));
    assert!(few.few().calls("PodSandboxStatus").is_empty());
    assert_eq!(logged.lines(&["late with a call"]), [""; 0]);
    assert_eq!(few.pod_status().await.code(), Code::Ok);
}

#[cfg(unix)] // A pipe is not a file.
#[tokio::test]
async fn a_call_that_waits_for_a_stream_goes_to_the_process_that_takes_over_the_socket() {
    let few = Few::start().await;
    let all = (MAX_FURTHER_CONNECTIONS + 1) * STREAMS as usize - 1;
    let mut begun = few.execute(all + 1, all).await;
    let socket = few.few().socket();
    std::fs::remove_file(&socket).unwrap();
    let next = Sim::new("few");
    next.serve_on(&socket);
    let answered = begun.join_next().await.unwrap().unwrap();
    assert_eq!(answered.code(), Code::NotFound, "{}", text_of(&answered));
    assert_eq!(next.calls("ExecSync").len(), 1);
}

#[cfg(unix)] // A pipe is not a file.
#[tokio::test]
async fn a_call_that_was_sent_once_after_its_wait_for_a_stream_does_not_fail_as_sent_twice() {
    let few = Few::start().await;
    let all = (MAX_FURTHER_CONNECTIONS + 1) * STREAMS as usize - 1;
    let mut begun = few.execute(all + 1, all).await;
    let socket = few.few().socket();
    std::fs::remove_file(&socket).unwrap();
    let next = Sim::new("few");
    next.reset_with("ExecSync", || {
        h2::Error::from(h2::Reason::REFUSED_STREAM).into()
    });
    next.serve_on(&socket);
    let failed = begun.join_next().await.unwrap().unwrap();
    let text = text_of(&failed);
    assert_eq!(failed.code(), Code::Unavailable, "{text}");
    assert!(text.contains("rejected before it was processed"), "{text}");
    assert!(!text.contains("twice"), "{text}");
    assert_eq!(next.calls("ExecSync").len(), 1);
}
