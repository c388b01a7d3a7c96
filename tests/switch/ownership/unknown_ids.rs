//! The reply of each call for an id that no backend has. criswitch never guesses an owner.

use criswitch_cri::rpc::ROWS;
use tonic::Code;

use crate::calls::{
    ID_CALLS, assert_names_the_dead, calls_anywhere, narrowed_to, narrowed_to_ids, send, stopped,
    text_of,
};
use crate::support::{Rig, Sim};

const UNOWNED: &str = "5ca1ab1e";

async fn runc_and_kata() -> Rig {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    rig
}

#[tokio::test]
async fn criswitch_answers_a_call_for_an_unknown_id_once_every_backend_has_denied_it() {
    let rig = runc_and_kata().await;
    for call in ID_CALLS {
        let before = calls_anywhere(&rig, call.rpc);
        let reply = call.send(&rig, UNOWNED).await;
        assert_eq!(reply.code(), call.if_gone, "{}", call.rpc);
        match call.if_gone {
            Code::Ok => assert_eq!(reply.messages(), [""], "{}", call.rpc),
            _ => assert!(text_of(&reply).contains(UNOWNED), "{}", call.rpc),
        }
        assert_eq!(calls_anywhere(&rig, call.rpc), before, "{}", call.rpc);
    }
}

#[tokio::test]
async fn a_list_narrowed_to_an_unknown_id_is_empty() {
    let rig = runc_and_kata().await;
    for list in narrowed_to(UNOWNED, UNOWNED, UNOWNED) {
        let reply = send(&rig, list.rpc, list.request.clone()).await;
        assert_eq!(reply.code(), Code::Ok, "{list:?}");
        let messages = reply.messages();
        assert!(
            messages.iter().all(|message| message.is_empty()),
            "{list:?}"
        );
        // A unary call needs one message even if the list is empty. A stream may have none.
        let unary = list.rpc.starts_with("List");
        assert!(!unary || messages.len() == 1, "{list:?}");
    }
}

#[tokio::test]
async fn an_empty_id_is_rejected_by_each_call_and_sent_nowhere_if_every_runtime_has_the_rpc() {
    let rig = runc_and_kata().await;
    let has_always = |rpc: &str| ROWS.iter().any(|row| row.name == rpc && !row.may_lack);
    for call in ID_CALLS.iter().filter(|call| has_always(call.rpc)) {
        let before = calls_anywhere(&rig, call.rpc);
        let reply = call.send(&rig, "").await;
        assert_eq!(reply.code(), Code::InvalidArgument, "{}", call.rpc);
        assert!(text_of(&reply).contains(call.rpc), "{}", call.rpc);
        assert_eq!(calls_anywhere(&rig, call.rpc), before, "{}", call.rpc);
    }
}

#[tokio::test]
async fn calls_for_removed_pods_and_containers_reach_their_backend_while_another_is_down() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "removed").await;
    rig.remove_pod(&pod).await.unwrap();
    stopped(&rig, "runc").await;
    for call in ID_CALLS.iter().chain(ID_CALLS) {
        let before = rig.sim("kata").calls(call.rpc).len();
        let reply = call.send(&rig, call.pick(&pod, &container)).await;
        assert_eq!(reply.code(), call.if_gone, "{}: {}", call.rpc, reply.text());
        assert_eq!(rig.sim("kata").calls(call.rpc).len(), before + 1);
    }
}

#[tokio::test]
async fn no_id_is_reported_absent_while_a_backend_is_down() {
    let rig = runc_and_kata().await;
    stopped(&rig, "runc").await;
    for call in ID_CALLS {
        let before = calls_anywhere(&rig, call.rpc);
        let reply = call.send(&rig, UNOWNED).await;
        assert_names_the_dead(&reply, rig.sim("runc"), call.rpc);
        assert_eq!(calls_anywhere(&rig, call.rpc), before, "{}", call.rpc);
    }
    // Lists by a pod's uid are not tested here: they are served from the cached lists, which are complete.
    for list in narrowed_to_ids(UNOWNED, UNOWNED) {
        let reply = send(&rig, list.rpc, list.request.clone()).await;
        assert_names_the_dead(&reply, rig.sim("runc"), list.rpc);
    }
}

#[tokio::test]
async fn no_id_is_reported_absent_while_a_backend_fails_to_list() {
    let rig = runc_and_kata().await;
    for lists in ["ListPodSandbox", "ListContainers"] {
        let broken = tonic::Status::internal("metadata.db is locked");
        rig.sim("runc").fail(lists, broken);
        for call in ID_CALLS {
            let reply = call.send(&rig, UNOWNED).await;
            let text = text_of(&reply);
            assert_eq!(reply.code(), Code::Unavailable, "{}: {text}", call.rpc);
            assert!(text.contains("runc"), "{}: {text}", call.rpc);
            assert!(text.contains("metadata.db is locked"), "{text}");
        }
        for list in narrowed_to_ids(UNOWNED, UNOWNED) {
            let reply = send(&rig, list.rpc, list.request.clone()).await;
            assert_eq!(reply.code(), Code::Unavailable, "{list:?}");
        }
        rig.sim("runc").heal(lists);
    }
}
