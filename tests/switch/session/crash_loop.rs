//! A backend that accepts connections, answers nothing, and closes them after some seconds, again and again.

use std::time::Duration;

use criswitch::backend::EARLY_END_LIMIT;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use crate::calls::{ID_CALLS, part, send};
use crate::faults::{backends_ready, names, runc_and_kata, status, until_state};
use crate::support::{Rig, frame_raw, sockets};
use crate::wait::until;

/// How long the backend keeps a connection open: less than it takes to find out that the backend hangs.
const CLOSES_AFTER: Duration = Duration::from_secs(4);
/// The time limit of a short read: `list_timeout`, plus the time for an answer.
const IN_TIME: Duration = Duration::from_millis(2100);
/// The time limit of a call. A call for an id may wait twice: before its owner is known, and before it is sent.
const LIMIT: Duration = EARLY_END_LIMIT
    .saturating_mul(2)
    .saturating_add(Duration::from_millis(10));

/// Accepts connections at kata's socket, and closes them.
fn close_connections(rig: &Rig) -> JoinSet<()> {
    let listener = sockets::bind(&rig.sim("kata").socket());
    let mut closing = JoinSet::new();
    closing.spawn(async move {
        let mut open = JoinSet::new();
        loop {
            let accepted = sockets::accept(&listener).await.unwrap();
            open.spawn(async move {
                tokio::time::sleep(CLOSES_AFTER).await;
                drop(accepted);
            });
        }
    });
    closing
}

#[tokio::test]
async fn no_call_waits_again_for_a_backend_that_closes_each_connection_before_it_answers() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.sim("kata").stop().await;
    let closing = close_connections(&rig);
    until_state(&rig, "kata", "down").await;
    // Only the calls during the first of these connections wait for it.
    let begun = Instant::now();
    send(
        &rig,
        "PodSandboxStatus",
        frame_raw(&part(1, pod.clone().into_bytes())),
    )
    .await;
    assert!(begun.elapsed() < IN_TIME, "{:?}", begun.elapsed());
    rig.stop(&container).await.unwrap_err();
    let begun = Instant::now();
    while begun.elapsed() < 3 * CLOSES_AFTER {
        for call in ID_CALLS {
            let sent = Instant::now();
            let reply = call.send(&rig, call.pick(&pod, &container)).await;
            assert_eq!(reply.code(), Code::Unavailable, "{}", call.rpc);
            assert!(sent.elapsed() < LIMIT, "{}: {:?}", call.rpc, sent.elapsed());
        }
        let sent = Instant::now();
        rig.try_run("kata", "new").await.unwrap_err();
        assert!(sent.elapsed() < LIMIT, "{:?}", sent.elapsed());
        let sent = Instant::now();
        assert_eq!(names(&rig.pods().await.unwrap()), ["web"]);
        assert!(!backends_ready(&status(&rig).await).is_empty());
        assert!(sent.elapsed() < LIMIT, "{:?}", sent.elapsed());
    }
    drop(closing);
    rig.sim("kata").start();
    until(async || rig.try_run("kata", "later").await.is_ok()).await;
}
