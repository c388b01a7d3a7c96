//! `Status` while the default backend does not answer. criswitch reports the backend's last status, later a node that
//! is not ready, and never an error.

use std::time::Duration;

use criswitch_cri::codec::cri;
use prost::Message;
use tokio::time::Instant;
use tonic::Status;

use crate::fanout::status::{STATUS, both, condition, status};
use crate::faults::{self, hang, hung, state_of, until_state, wake};
use crate::logged::Logged;
use crate::support::clock::later;
use crate::support::{Rig, Sim, frame};
use crate::wait;

const NEEDED: [&str; 2] = ["RuntimeReady", "NetworkReady"];
/// How long criswitch reports the last status of a silent default backend. The kubelet tolerates a missing status for
/// the same time.
const TRUST: Duration = Duration::from_secs(30);

/// Asserts that the node's conditions are false, and that their messages name the backend, its socket and the cause.
#[track_caller]
pub fn is_not_ready(status: &cri::StatusResponse, sim: &Sim, cause: &str) {
    for name in NEEDED {
        let condition = condition(status, name);
        assert!(!condition.status, "{condition:?}");
        assert_eq!(condition.reason, "BackendUnavailable");
        let socket = sim.socket().display().to_string();
        for part in [sim.name(), &socket, cause] {
            assert!(condition.message.contains(part), "{condition:?}");
        }
    }
    let backends = condition(status, "BackendsReady");
    assert!(!backends.status && backends.message.contains(sim.name()));
}

/// A node whose default was never reachable since the machine booted.
async fn never_there() -> Rig {
    let mut rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.stop_switch().await;
    rig.sim("runc").stop().await;
    rig.boot.id = "second".to_owned();
    rig.restart_switch().await;
    rig
}

#[tokio::test]
async fn the_last_status_of_a_default_that_is_down_counts_for_a_while() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    rig.sim("runc").stop().await;
    let status = status(&rig).await;
    assert!(condition(&status, "RuntimeReady").status);
    let ready = condition(&status, "BackendsReady");
    assert!(!ready.status && ready.message.contains("runc"), "{ready:?}");
}

#[tokio::test]
async fn a_node_that_is_not_ready_is_logged_at_once_every_ten_minutes_and_at_its_end() {
    let logged = Logged::here();
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    rig.sim("kata").stop().await;
    rig.sim("runc").stop().await;
    until_state(&rig, "runc", "down").await;
    assert!(rig.state().await["nodeNotReadySeconds"].is_null());
    let lines = || {
        logged
            .lines(&["ERROR", "the node is not ready", "backend=runc"])
            .len()
    };
    for (by, count) in [(30, 1), (300, 1), (300, 2), (600, 3)] {
        later(Duration::from_secs(by)).await;
        wait::until(async || lines() >= count).await;
        assert_eq!(lines(), count, "{}", logged.text());
    }
    assert!(rig.state().await["nodeNotReadySeconds"].as_u64() >= Some(1230));
    rig.sim("runc").start();
    let back = || {
        logged
            .lines(&["INFO", "the default backend is ready again after 20m 3"])
            .len()
    };
    wait::until(async || back() == 1).await;
    assert!(rig.state().await["nodeNotReadySeconds"].is_null());
}

#[tokio::test]
async fn after_30_s_without_a_status_of_the_default_the_node_is_not_ready_and_keeps_its_handlers() {
    let runc = Sim::new("runc").features("runc", both());
    let rig = Rig::start([runc, Sim::new("kata")]).await;
    let before = status(&rig).await;
    rig.sim("runc").stop().await;
    later(TRUST).await;
    let down = status(&rig).await;
    is_not_ready(&down, rig.sim("runc"), crate::support::sockets::REFUSED);
    assert_eq!(down.runtime_handlers, before.runtime_handlers);
    rig.sim("runc").start();
    until_state(&rig, "runc", "ready").await;
    assert_eq!(status(&rig).await, before);
}

#[tokio::test]
async fn a_default_that_was_never_reachable_makes_the_node_not_ready() {
    let rig = never_there().await;
    let status = status(&rig).await;
    is_not_ready(&status, rig.sim("runc"), crate::support::sockets::REFUSED);
    let handlers = status.runtime_handlers.iter();
    let names: Vec<_> = handlers.map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "kata", "runc"]);
}

/// Operators read this status when nothing works.
#[tokio::test]
async fn a_verbose_status_shows_every_backend_though_the_default_was_never_reachable() {
    let rig = never_there().await;
    until_state(&rig, "kata", "ready").await;
    let shown = state_of(&rig, "runc").await;
    assert_eq!(shown["state"], "down");
    assert!(
        shown["cause"]
            .as_str()
            .unwrap()
            .contains(crate::support::sockets::REFUSED)
    );
}

#[tokio::test]
async fn a_default_that_fails_status_counts_as_silent() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let before = status(&rig).await;
    let runc = rig.sim("runc");
    runc.fail("Status", Status::internal("containerd is not initialized"));
    let rejected = status(&rig).await;
    for name in NEEDED {
        assert_eq!(condition(&rejected, name), condition(&before, name));
    }
    let backends = condition(&rejected, "BackendsReady");
    assert!(backends.message.contains("containerd is not initialized"));
    later(TRUST).await;
    is_not_ready(&status(&rig).await, runc, "containerd is not initialized");
    runc.fail("Status", Status::unimplemented("no such thing"));
    is_not_ready(&status(&rig).await, runc, "no such thing");
}

#[tokio::test]
async fn a_default_whose_status_is_not_protobuf_counts_as_silent() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("runc")
        .append_raw("Status", b"\x0a\x04\x0a\x7fab".as_slice());
    later(TRUST).await;
    is_not_ready(&status(&rig).await, rig.sim("runc"), "malformed");
}

#[tokio::test]
async fn a_silent_default_counts_with_its_last_status_and_is_named() {
    let runc = Sim::new("runc").features("runc", both());
    let rig = Rig::start([runc, Sim::new("kata")]).await;
    let before = status(&rig).await;
    rig.sim("runc").hold("Status");
    let silent = status(&rig).await;
    assert_eq!(silent.runtime_handlers, before.runtime_handlers);
    for name in NEEDED {
        assert_eq!(condition(&silent, name), condition(&before, name));
    }
    let backends = condition(&silent, "BackendsReady");
    assert!(!backends.status);
    assert!(backends.message.contains("runc"), "{}", backends.message);
}

/// Replies to other calls do not extend the 30 s for which criswitch reports the last status.
#[tokio::test]
async fn a_default_that_hangs_only_on_status_keeps_its_last_status_for_30_s_too() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    rig.sim("runc").hold("Status");
    later(TRUST).await;
    rig.pods().await.unwrap();
    is_not_ready(&status(&rig).await, rig.sim("runc"), "no Status within 1s");
}

/// A slow `Status` is not a reason to report a node as not ready.
#[tokio::test]
async fn a_default_that_is_always_late_with_status_is_asked_again_and_stays_ready() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    let runc = rig.sim("runc");
    for _ in 0..3 {
        runc.hold("Status");
        for _ in 0..2 {
            assert!(condition(&status(&rig).await, "RuntimeReady").status);
        }
        // The clients' calls were cancelled. One call in the background continues until its reply.
        runc.until_held("Status").await;
        runc.release("Status");
        runc.until(|journal| journal.held.is_empty()).await;
        later(TRUST * 2 / 3).await;
    }
}

/// criswitch asks for a status when it connects. Without that, the first slow `Status` would make the node not ready.
#[tokio::test]
async fn the_first_status_may_be_late_because_criswitch_asked_when_it_connected() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let runc = rig.sim("runc");
    runc.until(|journal| journal.calls_of("ListImages").count() > 0)
        .await;
    runc.hold("Status");
    assert!(condition(&status(&rig).await, "RuntimeReady").status);
}

#[tokio::test]
async fn the_last_status_of_a_silent_default_has_no_info_without_verbose() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let verbose = frame(&cri::StatusRequest { verbose: true });
    let reply = rig.raw(STATUS, &[], verbose).await;
    let verbose = cri::StatusResponse::decode(reply.messages()[0].clone()).unwrap();
    assert!(!verbose.info.is_empty());
    rig.sim("runc").hold("Status");
    let info = status(&rig).await.info;
    assert!(info.is_empty(), "{info:?}");
}

#[tokio::test]
async fn an_unresponsive_backend_does_not_delay_status_and_is_named_with_that_cause() {
    let rig = faults::runc_and_kata().await;
    status(&rig).await;
    hang(rig.sim("runc"));
    hung(&rig, "kata").await;
    until_state(&rig, "runc", "unresponsive").await;
    let asked = ["runc", "kata"].map(|name| rig.sim(name).calls("Status").len());
    let begun = Instant::now();
    let shown = status(&rig).await;
    assert!(begun.elapsed() < Duration::from_millis(900));
    let message = &condition(&shown, "BackendsReady").message;
    assert_eq!(
        message.matches("did not answer a probe").count(),
        2,
        "{message}"
    );
    for (name, asked) in ["runc", "kata"].into_iter().zip(asked) {
        assert_eq!(rig.sim(name).calls("Status").len(), asked, "{name}");
        wake(rig.sim(name));
        until_state(&rig, name, "ready").await;
    }
    assert!(condition(&status(&rig).await, "BackendsReady").status);
}
