//! Many calls on one connection.

use futures_util::future::join_all;
use tonic::Code;

use crate::support::{Rig, Sim, frame, frame_raw};
use criswitch::cri;

/// More than any default of HTTP/2 servers, and than a kubelet has pods.
const CALLS: usize = 1500;

#[tokio::test]
async fn fifteen_hundred_calls_are_in_flight_on_one_connection() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (_, container) = rig.run("kata", "web").await;
    let kata = rig.sim("kata");
    kata.hold("ExecSync");
    let request = cri::ExecSyncRequest {
        container_id: container,
        cmd: vec!["true".to_owned()],
        timeout: 60,
    };
    let body = frame(&request);
    let path = "/runtime.v1.RuntimeService/ExecSync";
    let raw = (*rig).raw().await;
    let calls = join_all((0..CALLS).map(|_| raw.call(path, &[], body.clone())));
    let release = async {
        kata.until(|journal| journal.held.len() == CALLS).await;
        // None of them is in the way of another backend's.
        rig.run("runc", "other").await;
        kata.release("ExecSync");
    };
    let (replies, ()) = tokio::join!(calls, release);
    for reply in replies {
        assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
    }
}

/// What a backend without pods has to say is nothing, and nothing is sent for it: clients that follow HTTP/2's advice
/// take empty frames for a flood.
#[tokio::test]
async fn a_connection_bears_any_number_of_lists_of_which_a_backend_has_no_part() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    let raw = (*rig).raw().await;
    for _ in 0..300 {
        let reply = raw.call(
            "/runtime.v1.RuntimeService/ListPodSandbox",
            &[],
            frame_raw(b""),
        );
        assert_eq!(reply.await.code(), Code::Ok);
    }
}
