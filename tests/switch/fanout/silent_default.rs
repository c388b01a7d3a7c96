//! Status while the default backend does not give its own: its last word, then a node that is not ready, never an error.

use std::time::Duration;

use criswitch::codec::cri;
use prost::Message;
use tokio::time::Instant;
use tonic::Status;

use crate::fanout::status::{STATUS, both, condition, status};
use crate::faults::{self, hang, hung, told_of, until_state, wake};
use crate::support::{Rig, Sim, frame};
use crate::wait;

const NEEDED: [&str; 2] = ["RuntimeReady", "NetworkReady"];
/// The kubelet itself goes without for as long.
const TRUST: Duration = Duration::from_secs(30);

/// The clock goes on at once.
pub async fn later(by: Duration) {
    tokio::time::pause();
    tokio::time::advance(by).await;
    tokio::time::resume();
}

/// The node is not ready, and it says which backend is why.
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

/// A node whose default refuses since the machine was started.
async fn never_there() -> Rig {
    let mut rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.stop_switch().await;
    rig.sim("runc").stop().await;
    rig.boot.id = "second".to_owned();
    rig.restart_switch().await;
    rig
}

#[tokio::test]
async fn the_last_word_of_a_default_that_is_down_counts_for_a_while() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    rig.sim("runc").stop().await;
    let status = status(&rig).await;
    assert!(condition(&status, "RuntimeReady").status);
    let ready = condition(&status, "BackendsReady");
    assert!(!ready.status && ready.message.contains("runc"), "{ready:?}");
}

#[tokio::test]
async fn behind_that_the_node_is_not_ready_and_its_handlers_stay() {
    let runc = Sim::new("runc").features("runc", both());
    let rig = Rig::start([runc, Sim::new("kata")]).await;
    let before = status(&rig).await;
    rig.sim("runc").stop().await;
    later(TRUST).await;
    let down = status(&rig).await;
    is_not_ready(&down, rig.sim("runc"), "refused");
    assert_eq!(down.runtime_handlers, before.runtime_handlers);
    rig.sim("runc").start();
    until_state(&rig, "runc", "ready").await;
    assert_eq!(status(&rig).await, before);
}

#[tokio::test]
async fn a_default_that_was_never_there_makes_the_node_not_ready() {
    let rig = never_there().await;
    let status = status(&rig).await;
    is_not_ready(&status, rig.sim("runc"), "refused");
    let handlers = status.runtime_handlers.iter();
    let names: Vec<_> = handlers.map(|handler| handler.name.as_str()).collect();
    assert_eq!(names, ["", "kata", "runc"]);
}

/// What an operator asks when nothing works.
#[tokio::test]
async fn verbose_it_tells_of_every_backend_all_the_same() {
    let rig = never_there().await;
    until_state(&rig, "kata", "ready").await;
    let told = told_of(&rig, "runc").await;
    assert_eq!(told["state"], "down");
    assert!(told["cause"].as_str().unwrap().contains("refused"));
}

#[tokio::test]
async fn a_default_that_refuses_status_counts_as_one_that_is_silent() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let before = status(&rig).await;
    let runc = rig.sim("runc");
    runc.fail("Status", Status::internal("containerd is not initialized"));
    let refused = status(&rig).await;
    for name in NEEDED {
        assert_eq!(condition(&refused, name), condition(&before, name));
    }
    let backends = condition(&refused, "BackendsReady");
    assert!(backends.message.contains("containerd is not initialized"));
    later(TRUST).await;
    is_not_ready(&status(&rig).await, runc, "containerd is not initialized");
    runc.fail("Status", Status::unimplemented("no such thing"));
    is_not_ready(&status(&rig).await, runc, "no such thing");
}

#[tokio::test]
async fn a_default_whose_status_is_not_protobuf_counts_as_one_that_is_silent() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("runc")
        .append_raw("Status", b"\x0a\x04\x0a\x7fab".as_slice());
    later(TRUST).await;
    is_not_ready(&status(&rig).await, rig.sim("runc"), "malformed");
}

#[tokio::test]
async fn a_default_that_keeps_silent_counts_with_what_it_said_last_and_is_named() {
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

/// Whatever else it answers.
#[tokio::test]
async fn a_default_whose_status_alone_hangs_keeps_its_last_word_no_longer_than_any_other() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    rig.sim("runc").hold("Status");
    later(TRUST).await;
    // A write of the state that was under way seems to take as long; it is made again.
    wait::until(async || rig.pods().await.is_ok()).await;
    is_not_ready(&status(&rig).await, rig.sim("runc"), "no Status within 1s");
}

/// Being slow is no reason to take a node for one that is not ready.
#[tokio::test]
async fn a_default_that_always_takes_too_long_is_asked_on_and_keeps_its_word() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    status(&rig).await;
    let runc = rig.sim("runc");
    for _ in 0..3 {
        runc.hold("Status");
        for _ in 0..2 {
            tokio::time::pause();
            assert!(condition(&status(&rig).await, "RuntimeReady").status);
            tokio::time::resume();
        }
        // The clients' calls were given up; one goes on, until it is answered.
        runc.until(|journal| journal.held == ["Status"]).await;
        runc.release("Status");
        runc.until(|journal| journal.held.is_empty()).await;
        later(TRUST * 2 / 3).await;
    }
}

/// The kubelet would call the node not ready at the first slow answer.
#[tokio::test]
async fn its_first_status_may_be_late_since_it_was_asked_when_it_was_greeted() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let runc = rig.sim("runc");
    runc.until(|journal| journal.calls_of("ListImages").count() > 0)
        .await;
    runc.hold("Status");
    assert!(condition(&status(&rig).await, "RuntimeReady").status);
}

#[tokio::test]
async fn what_a_silent_default_said_last_holds_no_info_that_nobody_asked_for() {
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
async fn a_backend_that_is_proven_to_hang_costs_status_nothing_and_is_named_with_that() {
    let rig = faults::runc_and_kata().await;
    status(&rig).await;
    hang(rig.sim("runc"));
    hung(&rig, "kata").await;
    until_state(&rig, "runc", "unresponsive").await;
    let asked = ["runc", "kata"].map(|name| rig.sim(name).calls("Status").len());
    tokio::time::pause();
    let begun = Instant::now();
    let told = status(&rig).await;
    assert!(begun.elapsed() < Duration::from_millis(900));
    let message = &condition(&told, "BackendsReady").message;
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
