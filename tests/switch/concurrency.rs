//! Many calls at once.

use futures_util::future::join_all;
use tonic::Code;

use crate::support::{Rig, Sim, frame};
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
