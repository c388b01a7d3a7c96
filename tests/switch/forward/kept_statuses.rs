//! Kept statuses: criswitch replies with the last status of a pod or container while the backend is down or late.

use std::time::Duration;

use criswitch_cri::codec::cri;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::calls::{ID_CALLS, send, stopped};
use crate::faults::{hang, hung, node, runc_and_kata, until_state};
use crate::logged::Logged;
use crate::session::events::{listening, next};
use crate::support::{Rig, Sim, frame};
use crate::wait;

async fn of_container(rig: &Rig, id: &str, verbose: bool) -> Result<cri::ContainerStatus, Status> {
    let request = cri::ContainerStatusRequest {
        container_id: id.to_owned(),
        verbose,
    };
    let reply = rig.runtime().container_status(request).await?;
    Ok(reply.into_inner().status.unwrap())
}

async fn whole_pod(rig: &Rig, id: &str) -> Result<cri::PodSandboxStatusResponse, Status> {
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: id.to_owned(),
        verbose: false,
    };
    let reply = rig.runtime().pod_sandbox_status(request).await?;
    Ok(reply.into_inner())
}

async fn of_pod(rig: &Rig, id: &str) -> Result<cri::PodSandboxStatus, Status> {
    Ok(whole_pod(rig, id).await?.status.unwrap())
}

const STATUSES: [&str; 2] = ["PodSandboxStatus", "ContainerStatus"];

async fn list(rig: &Rig) {
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
}

/// A pod with a running container on kata. criswitch has listed both and has their statuses.
async fn with_statuses() -> (Rig, String, String) {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    list(&rig).await;
    of_pod(&rig, &pod).await.unwrap();
    of_container(&rig, &container, false).await.unwrap();
    (rig, pod, container)
}

#[tokio::test]
async fn the_last_statuses_answer_while_a_backend_is_down_unresponsive_or_late() {
    for fault in ["down", "unresponsive", "late", "reset"] {
        let (rig, pod, container) = with_statuses().await;
        match fault {
            "down" => stopped(&rig, "kata").await,
            "unresponsive" => hung(&rig, "kata").await,
            "late" => STATUSES.iter().for_each(|rpc| rig.sim("kata").hold(rpc)),
            _ => STATUSES.iter().for_each(|rpc| rig.sim("kata").reset(rpc)),
        }
        for _ in 0..2 {
            let shown = of_pod(&rig, &pod).await.expect(fault);
            assert_eq!(
                (shown.id, shown.runtime_handler),
                (pod.clone(), "kata".into())
            );
            let shown = of_container(&rig, &container, false).await.expect(fault);
            assert_eq!(shown.state(), cri::ContainerState::ContainerRunning);
        }
        let verbose = of_container(&rig, &container, true).await.unwrap_err();
        let code = match fault {
            "reset" => Code::Internal,
            _ => Code::Unavailable,
        };
        assert_eq!(verbose.code(), code, "{fault}");
    }
}

#[tokio::test]
async fn a_short_read_without_an_answer_makes_criswitch_probe_the_backend() {
    let (rig, pod, _) = with_statuses().await;
    hang(rig.sim("kata"));
    let begun = Instant::now();
    of_pod(&rig, &pod).await.unwrap();
    until_state(&rig, "kata", "unresponsive").await;
    // `list_timeout`, and the time of a probe.
    assert!(begun.elapsed() < Duration::from_millis(5200));
}

/// Otherwise the RPC would count as late when the backend is ready, although no call of it was sent.
#[tokio::test]
async fn a_read_that_waited_for_a_connection_only_does_not_make_its_rpc_late() {
    let logged = Logged::here();
    let (rig, pod, container) = with_statuses().await;
    let kata = rig.sim("kata");
    stopped(&rig, "kata").await;
    kata.hold("ListPodSandbox");
    kata.start();
    kata.until_held("ListPodSandbox").await;
    let begun = Instant::now();
    for _ in 0..5 {
        of_pod(&rig, &pod).await.unwrap();
        of_container(&rig, &container, false).await.unwrap();
    }
    // `list_timeout`: only the first read waits for the connection.
    assert!(begun.elapsed() < Duration::from_millis(2100));
    kata.release("ListPodSandbox");
    until_state(&rig, "kata", "ready").await;
    assert_eq!(logged.lines(&["late with a call"]), [""; 0]);
    let asked = kata.calls("PodSandboxStatus").len();
    of_pod(&rig, &pod).await.unwrap();
    assert_eq!(kata.calls("PodSandboxStatus").len(), asked + 1);
}

/// criswitch repeats the read of the one container, and still sends the others.
#[tokio::test]
async fn a_read_that_its_backend_resets_is_named_and_delays_no_other_read() {
    let (rig, pod, container) = with_statuses().await;
    let other = rig.create(&pod, "other").await;
    list(&rig).await;
    of_container(&rig, &container, false).await.unwrap();
    let kata = rig.sim("kata");
    kata.reset("ContainerStatus");
    of_container(&rig, &container, false).await.unwrap();
    let shown = crate::faults::state_of(&rig, "kata").await;
    assert_eq!(shown["failingRpcs"][0]["rpc"], "ContainerStatus", "{shown}");
    kata.heal("ContainerStatus");
    of_container(&rig, &other, false).await.unwrap();
    wait::until(async || {
        let shown = crate::faults::state_of(&rig, "kata").await;
        shown["failingRpcs"][0].is_null()
    })
    .await;
}

/// The kubelet removes containers while it collects garbage, and asks for the status of each container before it
/// removes an image.
#[tokio::test]
async fn a_call_that_is_not_sent_drops_no_status() {
    for fault in ["down", "unresponsive"] {
        let (rig, pod, container) = with_statuses().await;
        match fault {
            "down" => stopped(&rig, "kata").await,
            _ => hung(&rig, "kata").await,
        }
        for call in ID_CALLS {
            call.send(&rig, call.pick(&pod, &container)).await;
        }
        of_pod(&rig, &pod).await.expect(fault);
        of_container(&rig, &container, false).await.expect(fault);
    }
}

#[tokio::test]
async fn no_status_is_served_that_a_call_a_list_or_an_event_contradicts() {
    for change in ["call", "error", "list", "event"] {
        let (rig, pod, container) = with_statuses().await;
        let kata = rig.sim("kata");
        match change {
            "call" => rig.stop(&container).await.unwrap(),
            "error" => {
                kata.fail("StopContainer", Status::internal("half stopped"));
                rig.stop(&container).await.unwrap_err();
            }
            "list" => {
                kata.exit(&container, 1);
                list(&rig).await;
            }
            _ => {
                let mut events = listening(&rig).await;
                kata.exit(&container, 1);
                while next(&mut events).await.unwrap().container_id != container {}
            }
        }
        stopped(&rig, "kata").await;
        let failed = of_container(&rig, &container, false).await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable, "{change}");
        if change == "list" {
            let kept = whole_pod(&rig, &pod).await.unwrap();
            assert!(kept.status.is_some(), "the pod has not changed");
            // Without a timestamp, the kubelet asks for the status of each container.
            assert!(kept.containers_statuses.is_empty() && kept.timestamp == 0);
        }
    }
}

/// An update of resources does not change the container's state, so no list shows the update.
#[tokio::test]
async fn a_change_by_a_short_id_drops_the_kept_status() {
    let (rig, _, container) = with_statuses().await;
    let update = ID_CALLS
        .iter()
        .find(|call| call.rpc == "UpdateContainerResources")
        .unwrap();
    let short = &container[..12];
    assert_eq!(update.send(&rig, short).await.code(), Code::Ok);
    stopped(&rig, "kata").await;
    let failed = of_container(&rig, &container, false).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_status_that_was_asked_for_before_a_change_is_not_kept_after_it() {
    let (rig, _, container) = with_statuses().await;
    let kata = rig.sim("kata");
    kata.hold_reply("ContainerStatus");
    let stop = async {
        kata.until_done("ContainerStatus").await;
        rig.stop(&container).await.unwrap();
        kata.release("ContainerStatus");
    };
    let (read, ()) = tokio::join!(of_container(&rig, &container, false), stop);
    assert_eq!(read.unwrap().state(), cri::ContainerState::ContainerRunning);
    stopped(&rig, "kata").await;
    of_container(&rig, &container, false).await.unwrap_err();
}

#[tokio::test]
async fn no_status_is_kept_on_a_node_with_one_backend_or_without_cached_lists() {
    let alone = node("", [Sim::new("kata")]).await;
    let unlisted = node("stale_lists = \"0s\"", [Sim::new("runc"), Sim::new("kata")]).await;
    for rig in [alone, unlisted] {
        let (_, container) = rig.run("kata", "web").await;
        list(&rig).await;
        of_container(&rig, &container, false).await.unwrap();
        stopped(&rig, "kata").await;
        let failed = of_container(&rig, &container, false).await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable);
    }
}

#[tokio::test]
async fn a_read_that_criswitch_repeats_is_kept_too() {
    let rig = runc_and_kata().await;
    let (_, container) = rig.run("kata", "web").await;
    list(&rig).await;
    let kata = rig.sim("kata");
    kata.hold("ContainerStatus");
    of_container(&rig, &container, false).await.unwrap_err();
    kata.release("ContainerStatus");
    let answered = async || crate::faults::state_of(&rig, "kata").await["failingRpcs"][0].is_null();
    wait::until(answered).await;
    stopped(&rig, "kata").await;
    of_container(&rig, &container, false).await.unwrap();
    kata.start();
    until_state(&rig, "kata", "ready").await;
    let request = cri::ContainerStatusRequest {
        container_id: container,
        verbose: false,
    };
    let fresh = send(&rig, "ContainerStatus", frame(&request)).await;
    assert_eq!(fresh.code(), Code::Ok);
}

#[tokio::test]
async fn a_restart_while_a_backend_is_away_keeps_its_statuses() {
    for fault in ["down", "unresponsive", "late"] {
        let (mut rig, pod, container) = with_statuses().await;
        match fault {
            "down" => stopped(&rig, "kata").await,
            "unresponsive" => hung(&rig, "kata").await,
            _ => rig.sim("kata").hold("ContainerStatus"),
        }
        of_container(&rig, &container, false).await.expect(fault);
        let before = of_pod(&rig, &pod).await.expect(fault);
        for _ in 0..2 {
            list(&rig).await;
            rig.restart_switch().await;
            let begun = Instant::now();
            for _ in 0..10 {
                assert_eq!(of_pod(&rig, &pod).await.expect(fault), before);
                of_container(&rig, &container, false).await.expect(fault);
            }
            // The limit is the time until a probe has shown that the backend hangs.
            assert!(
                begun.elapsed() <= Duration::from_millis(8100),
                "{:?}",
                begun.elapsed()
            );
        }
    }
}

/// The cached list shows the same older state. Without the status, the kubelet's garbage collection of images would
/// end.
#[tokio::test]
async fn a_status_answers_until_its_backend_has_answered_the_call_that_changes_it() {
    let (mut rig, pod, container) = with_statuses().await;
    let kata = rig.sim("kata");
    kata.hold("StopContainer");
    let hang = async {
        kata.until_held("StopContainer").await;
        hung(&rig, "kata").await;
        of_container(&rig, &container, false).await.unwrap();
    };
    let (stopped, ()) = tokio::join!(rig.stop(&container), hang);
    stopped.unwrap_err();
    list(&rig).await;
    for _ in 0..2 {
        of_pod(&rig, &pod).await.unwrap();
        let kept = of_container(&rig, &container, false).await.unwrap();
        assert_eq!(kept.state(), cri::ContainerState::ContainerRunning);
        rig.restart_switch().await;
    }
}

#[tokio::test]
async fn a_status_that_clients_cannot_use_passes_from_its_backend_and_is_not_served_again() {
    let faults: [(&str, &[u8]); 3] = [
        // Labels that are not UTF-8, and an image that is cut off.
        (
            "PodSandboxStatus",
            b"\x0a\x0d\x3a\x0b\x0a\x03key\x12\x04caf\xe9",
        ),
        (
            "ContainerStatus",
            b"\x0a\x0d\x62\x0b\x0a\x03key\x12\x04caf\xe9",
        ),
        ("ContainerStatus", b"\x0a\x04\x42\x02\x0a\x05"),
    ];
    for (rpc, fault) in faults {
        let (rig, pod, container) = with_statuses().await;
        rig.sim("kata").append_raw(rpc, fault);
        let request = match rpc {
            "PodSandboxStatus" => frame(&cri::PodSandboxStatusRequest {
                pod_sandbox_id: pod,
                verbose: false,
            }),
            _ => frame(&cri::ContainerStatusRequest {
                container_id: container,
                verbose: false,
            }),
        };
        let read = async || send(&rig, rpc, request.clone()).await.code();
        assert_eq!(read().await, Code::Ok, "{rpc}");
        stopped(&rig, "kata").await;
        assert_eq!(read().await, Code::Unavailable, "{rpc}");
    }
}
