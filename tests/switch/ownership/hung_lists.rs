//! The lists of one backend hang, but this backend answers all other calls. Calls for pods and containers of another
//! backend do not wait for these lists, or wait at most for `list_timeout`.

use std::time::Duration;

use tonic::Code;

use crate::calls::{ID_CALLS, IdCall};
use crate::questions::{asked, settled};
use crate::support::{Client, PATIENCE, RawReply, Rig, Sim};

/// The default `list_timeout`.
const LIST_TIMEOUT: Duration = Duration::from_secs(2);
const AT_ONCE: Duration = Duration::from_millis(500);
const LISTS: [&str; 2] = ["ListPodSandbox", "ListContainers"];

async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    rig.run("kata", "other").await;
    rig
}

/// Makes merged lists, so that every cached list is complete.
async fn cache_lists(rig: &Rig) {
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
}

/// Sends a call, which must end within `limit`. The clock is paused, and advances only while all tasks wait.
async fn send_within(rig: &Rig, limit: Duration, call: &IdCall, id: &str) -> RawReply {
    let begun = tokio::time::Instant::now();
    let reply = tokio::time::timeout(PATIENCE, call.send(rig, id)).await;
    let elapsed = begun.elapsed();
    assert!(elapsed <= limit, "{} took {elapsed:?}", call.rpc);
    reply.unwrap()
}

fn call(rpc: &str) -> &'static IdCall {
    ID_CALLS.iter().find(|call| call.rpc == rpc).unwrap()
}

#[tokio::test]
async fn calls_for_an_id_that_a_client_removed_wait_for_no_list() {
    for hung in LISTS {
        let rig = runc_and_kata().await;
        let (pod, container) = rig.run("runc", "web").await;
        cache_lists(&rig).await;
        rig.sim("kata").hold(hung);
        rig.remove(&container).await.unwrap();
        rig.remove_pod(&pod).await.unwrap();
        let before = asked(rig.sim("kata"));
        for call in ID_CALLS {
            let id = call.pick(&pod, &container);
            let reply = send_within(&rig, AT_ONCE, call, id).await;
            assert_eq!(reply.code(), call.if_gone, "{hung} {}", call.rpc);
        }
        assert_eq!(asked(rig.sim("kata")), before, "{hung}");
    }
}

#[tokio::test]
async fn calls_by_a_short_id_wait_for_a_late_list_once_and_at_most_for_list_timeout() {
    for hung in LISTS {
        let rig = runc_and_kata().await;
        let mut limit = LIST_TIMEOUT + AT_ONCE;
        for call in ID_CALLS {
            let (pod, container) = rig.run("runc", call.rpc).await;
            cache_lists(&rig).await;
            rig.sim("kata").hold(hung);
            let short = &call.pick(&pod, &container)[..13];
            let before = rig.sim("runc").calls(call.rpc).len();
            send_within(&rig, limit, call, short).await;
            assert_eq!(rig.sim("runc").calls(call.rpc).len(), before + 1);
            limit = AT_ONCE;
        }
    }
}

#[tokio::test]
async fn an_unknown_id_is_unavailable_within_list_timeout_and_never_not_found_while_lists_hang() {
    for hung in LISTS {
        let rig = runc_and_kata().await;
        cache_lists(&rig).await;
        rig.sim("kata").hold(hung);
        let mut limit = LIST_TIMEOUT + AT_ONCE;
        for call in ID_CALLS {
            let reply = send_within(&rig, limit, call, &"0".repeat(64)).await;
            assert_eq!(reply.code(), Code::Unavailable, "{hung} {}", call.rpc);
            limit = AT_ONCE;
        }
        rig.sim("kata").release(hung);
        let gone = call("StopContainer");
        crate::wait::until(async || gone.send(&rig, "nobodys").await.code() == Code::Ok).await;
    }
}

#[tokio::test]
async fn a_client_that_waits_for_a_lost_list_delays_no_other_client() {
    for lost in LISTS {
        let rig = runc_and_kata().await;
        let pod = rig.run_pod("runc", "web").await;
        let kata = rig.sim("kata");
        kata.lose(lost);
        let lists = kata.calls(lost).len();
        let client = Client::new(&rig.socket);
        let waiting = tokio::spawn(async move { client.stop_pod("nobodys").await });
        kata.until(|journal| journal.calls_of(lost).count() > lists)
            .await;
        let status = call("PodSandboxStatus");
        let reply = send_within(&rig, AT_ONCE, status, &pod[..13]).await;
        assert_eq!(reply.code(), Code::Ok, "{lost}");
        assert!(!waiting.is_finished());
        waiting.abort();
    }
}
