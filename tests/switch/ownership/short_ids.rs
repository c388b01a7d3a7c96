//! Shortened ids, as people type them. Each stands for the only id with this prefix, on any backend.

use tonic::Code;

use crate::calls::{ID_CALLS, assert_names_the_dead, calls_anywhere, holds, stopped};
use crate::calls::{narrowed_to_ids, send, text_of};
use crate::faults::node;
use crate::support::{IMAGE, Rig, Sim, container_config};

/// Shortens an id to the 13 digits that crictl shows.
fn short(id: &str) -> &str {
    &id[..13]
}

#[tokio::test]
async fn a_short_id_finds_the_owner_in_each_call() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("runc", "other").await;
    for call in ID_CALLS {
        let (pod, container) = rig.run("kata", call.rpc).await;
        let before = rig.sim("kata").calls(call.rpc).len();
        let reply = call.send(&rig, short(call.pick(&pod, &container))).await;
        assert_ne!(reply.code(), Code::NotFound, "{}", call.rpc);
        let arrived = rig.sim("kata").calls(call.rpc).len() - before;
        assert_eq!(arrived, 1, "{}", call.rpc);
    }
}

#[tokio::test]
async fn a_short_id_finds_the_owner_in_each_filter() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    for list in narrowed_to_ids(short(&pod), short(&container)) {
        let reply = send(&rig, list.rpc, list.request.clone()).await;
        assert_eq!(reply.code(), Code::Ok, "{list:?}");
        let pods = list.rpc.contains("Pod");
        let listed = if pods { &pod } else { &container };
        assert!(holds(&reply, listed), "{list:?}");
    }
}

#[tokio::test]
async fn a_container_created_by_its_pods_short_id_is_listed_with_the_whole_id() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let pod = rig.run_pod("kata", "web").await;
    rig.containers().await.unwrap();
    rig.sim("kata").add_image(IMAGE);
    let config = container_config("main", IMAGE);
    rig.create_from(short(&pod), config).await.unwrap();
    stopped(&rig, "kata").await;
    let cached = rig.containers().await.unwrap();
    let pods: Vec<_> = cached.iter().map(|it| &it.pod_sandbox_id).collect();
    assert_eq!(pods, [&pod]);
}

#[tokio::test]
async fn a_short_id_of_two_backends_is_rejected_and_sent_nowhere() {
    let sims = ["runc", "kata"].map(|name| Sim::new(name).next_ids(["abc1", "abc2"]));
    let rig = Rig::start(sims).await;
    // Each backend has a pod and a container with the prefix `abc`.
    rig.run("runc", "one").await;
    rig.run("kata", "two").await;
    assert_refused_as_ambiguous(&rig).await;
}

#[tokio::test]
async fn a_short_id_of_two_pods_of_one_backend_is_rejected_and_sent_nowhere() {
    let kata = Sim::new("kata").next_ids(["abc1", "abc2", "abc3", "abc4"]);
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    rig.run("kata", "one").await;
    rig.run("kata", "two").await;
    assert_refused_as_ambiguous(&rig).await;
}

async fn assert_refused_as_ambiguous(rig: &Rig) {
    let expected = "Multiple IDs found with provided prefix: abc";
    for call in ID_CALLS {
        let before = calls_anywhere(rig, call.rpc);
        let reply = call.send(rig, "abc").await;
        assert_eq!(reply.code(), Code::Unknown, "{}", call.rpc);
        assert_eq!(text_of(&reply), expected, "{}", call.rpc);
        assert_eq!(calls_anywhere(rig, call.rpc), before, "{}", call.rpc);
    }
    for list in narrowed_to_ids("abc", "abc") {
        let reply = send(rig, list.rpc, list.request.clone()).await;
        assert_eq!(reply.code(), Code::Unknown, "{list:?}");
        assert_eq!(text_of(&reply), expected, "{list:?}");
    }
}

#[tokio::test]
async fn a_short_id_of_a_pod_is_not_confused_with_that_of_a_container() {
    let sims = [
        Sim::new("runc").next_ids(["aa", "bb"]),
        Sim::new("kata").next_ids(["bb", "aa"]),
    ];
    let rig = Rig::start(sims).await;
    let (plain, _) = rig.run("runc", "plain").await;
    let (_, boxed) = rig.run("kata", "boxed").await;
    rig.stop_pod("aa").await.unwrap();
    let status = rig.sim("runc").pods()[0].clone();
    assert_eq!(status.id, plain);
    assert_eq!(
        status.state(),
        criswitch_cri::codec::cri::PodSandboxState::SandboxNotready
    );
    rig.stop("aa").await.unwrap();
    let container = rig.sim("kata").containers()[0].clone();
    assert_eq!(container.id, boxed);
    assert_eq!(
        container.state(),
        criswitch_cri::codec::cri::ContainerState::ContainerExited
    );
}

#[tokio::test]
async fn a_short_id_finds_the_owner_while_another_backend_is_served_from_cache() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("runc", "other").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    stopped(&rig, "runc").await;
    for call in ID_CALLS {
        let (pod, container) = rig.run("kata", call.rpc).await;
        let before = rig.sim("kata").calls(call.rpc).len();
        let reply = call.send(&rig, short(call.pick(&pod, &container))).await;
        assert_ne!(reply.code(), Code::Unavailable, "{}", call.rpc);
        let arrived = rig.sim("kata").calls(call.rpc).len() - before;
        assert_eq!(arrived, 1, "{}", call.rpc);
    }
    // No backend is known to have this id, and the backend that is down may have it.
    let unowned = rig.stop_pod("5ca1ab1e").await.unwrap_err();
    assert_eq!(unowned.code(), Code::Unavailable);
}

/// criswitch finds the owner in the owner's cached lists, which are complete after a restart, too.
#[tokio::test]
async fn a_short_id_finds_its_owner_while_the_owner_is_down() {
    let mut rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    rig.sim("kata").stop().await;
    for _ in 0..2 {
        for call in ID_CALLS {
            let reply = call.send(&rig, short(call.pick(&pod, &container))).await;
            assert_names_the_dead(&reply, rig.sim("kata"), call.rpc);
        }
        rig.restart_switch().await;
    }
}

#[tokio::test]
async fn a_short_id_is_unavailable_while_a_backend_without_cached_lists_is_down() {
    let mut rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.sim("runc").stop().await;
    rig.restart_switch_without_state().await;
    rig.pods().await.unwrap_err();
    for call in ID_CALLS {
        let before = calls_anywhere(&rig, call.rpc);
        let reply = call.send(&rig, short(call.pick(&pod, &container))).await;
        assert_names_the_dead(&reply, rig.sim("runc"), call.rpc);
        assert_eq!(calls_anywhere(&rig, call.rpc), before, "{}", call.rpc);
    }
}

#[tokio::test]
async fn a_short_id_is_unavailable_while_another_backend_fails_to_list() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = node("stale_lists = \"0s\"", sims).await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let broken = tonic::Status::internal("metadata.db is locked");
    rig.sim("runc").fail("ListContainers", broken);
    let rejected = rig.stop_pod(short(&pod)).await.unwrap_err();
    assert_eq!(rejected.code(), Code::Unavailable, "{rejected}");
    for part in ["use the complete id", "metadata.db is locked"] {
        assert!(rejected.message().contains(part), "{rejected}");
    }
    rig.sim("runc").heal("ListContainers");
    rig.stop_pod(short(&pod)).await.unwrap();
}

#[tokio::test]
async fn removal_by_a_short_id_ends_the_ownership() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.remove(short(&container)).await.unwrap();
    rig.remove_pod(short(&pod)).await.unwrap();
    for call in ID_CALLS {
        let before = calls_anywhere(&rig, call.rpc);
        let reply = call.send(&rig, short(call.pick(&pod, &container))).await;
        assert_eq!(reply.code(), call.if_gone, "{}", call.rpc);
        assert_eq!(calls_anywhere(&rig, call.rpc), before, "{}", call.rpc);
    }
}
