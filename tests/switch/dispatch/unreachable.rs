//! Unreachable backends: calls for them fail at once, and calls for other backends succeed.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::support::{Rig, Sim, sockets};

async fn runc_and_kata() -> Rig {
    Rig::start([Sim::new("runc"), Sim::new("kata")]).await
}

/// Asserts `Unavailable` with the backend, its socket and the cause.
fn assert_names(failed: &Status, sim: &Sim, cause: &str) {
    assert_eq!(failed.code(), Code::Unavailable, "{failed}");
    let socket = sim.socket().display().to_string();
    for part in [sim.name(), &socket, cause] {
        assert!(failed.message().contains(part), "no {part:?} in {failed}");
    }
}

#[tokio::test]
async fn calls_for_a_pod_of_a_backend_that_is_down_are_unavailable() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.sim("kata").stop().await;
    assert_names(
        &rig.stop(&container).await.unwrap_err(),
        rig.sim("kata"),
        sockets::REFUSED,
    );
    assert_names(
        &rig.remove_pod(&pod).await.unwrap_err(),
        rig.sim("kata"),
        sockets::REFUSED,
    );
    assert_names(
        &(*rig).run_pod("kata", "next").await.unwrap_err(),
        rig.sim("kata"),
        sockets::REFUSED,
    );
}

#[tokio::test]
async fn the_error_for_a_backend_without_a_socket_file_has_that_cause() {
    let rig = runc_and_kata().await;
    rig.sim("kata").stop().await;
    sockets::remove(&rig.sim("kata").socket());
    let failed = (*rig).run_pod("kata", "web").await.unwrap_err();
    let absent = criswitch_cri::error_text::error_chain(&std::io::Error::from_raw_os_error(2));
    assert_names(&failed, rig.sim("kata"), &absent);
}

#[tokio::test]
async fn calls_for_pods_of_other_backends_succeed_while_one_is_down() {
    let rig = runc_and_kata().await;
    rig.sim("kata").stop().await;
    let (pod, container) = rig.run("runc", "web").await;
    rig.stop(&container).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
}

#[tokio::test]
async fn a_list_is_an_error_while_a_backend_is_down_and_whole_when_it_is_back() {
    let mut rig = runc_and_kata().await;
    rig.run("kata", "web").await;
    rig.sim("kata").stop().await;
    rig.restart_switch_without_state().await;
    assert_names(
        &rig.pods().await.unwrap_err(),
        rig.sim("kata"),
        sockets::REFUSED,
    );
    assert_names(
        &rig.containers().await.unwrap_err(),
        rig.sim("kata"),
        sockets::REFUSED,
    );
    rig.sim("kata").start();
    assert_eq!(rig.pods().await.unwrap(), rig.sim("kata").pods());
}

#[tokio::test]
async fn a_backend_that_does_not_speak_http2_is_unavailable() {
    let rig = runc_and_kata().await;
    rig.sim("kata").stop().await;
    // This server accepts connections and sends text that is not HTTP/2.
    let other = sockets::bind(&rig.sim("kata").socket());
    let other = async {
        loop {
            let mut stream = sockets::accept(&other).await.unwrap();
            let greeting = b"220 mail ready\r\n";
            tokio::io::AsyncWriteExt::write_all(&mut stream, greeting)
                .await
                .ok();
        }
    };
    tokio::select! {
        () = other => {}
        failed = (*rig).run_pod("kata", "web") => assert_names(&failed.unwrap_err(), rig.sim("kata"), ""),
    }
}

#[tokio::test]
async fn a_backend_that_cannot_be_listed_is_not_ready_and_named_once_in_the_error() {
    let kata = Sim::new("kata");
    kata.fail(
        "ListPodSandbox",
        Status::internal("\"metadata.db\" is locked"),
    );
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    let failed = (*rig).run_pod("kata", "web").await.unwrap_err();
    assert_names(&failed, rig.sim("kata"), "\"metadata.db\" is locked");
    let named = failed.message().matches("backend \"kata\"").count();
    assert_eq!(named, 1, "{failed}");
}

#[tokio::test]
async fn a_backend_that_dies_during_a_call_fails_that_call_alone() {
    let rig = runc_and_kata().await;
    let (_, boxed) = rig.run("kata", "boxed").await;
    let (_, plain) = rig.run("runc", "plain").await;
    for sim in &rig.sims {
        sim.hold("StopContainer");
    }
    let death = async {
        rig.sim("kata").until_held("StopContainer").await;
        rig.sim("runc").until_held("StopContainer").await;
        rig.sim("kata").stop().await;
    };
    let boxed = async {
        let (stopped, ()) = tokio::join!(rig.stop(&boxed), death);
        // The call to runc is still in flight, on the same connection as the failed call.
        rig.sim("runc").until_held("StopContainer").await;
        rig.sim("runc").release("StopContainer");
        stopped
    };
    let (boxed, plain) = tokio::join!(boxed, rig.stop(&plain));
    assert_names(&boxed.unwrap_err(), rig.sim("kata"), "");
    plain.unwrap();
    assert_eq!(rig.sim("kata").calls("StopContainer").len(), 1);
}

#[tokio::test]
async fn the_next_call_uses_a_backend_that_is_back() {
    let rig = runc_and_kata().await;
    let (_, container) = rig.run("kata", "web").await;
    rig.sim("kata").stop().await;
    rig.stop(&container).await.unwrap_err();
    rig.sim("kata").start();
    rig.stop(&container).await.unwrap();
    let request = cri::ContainerStatusRequest {
        container_id: container,
        verbose: false,
    };
    let status = rig.runtime().container_status(request).await.unwrap();
    let status = status.into_inner().status.unwrap();
    assert_eq!(status.state(), cri::ContainerState::ContainerExited);
}
