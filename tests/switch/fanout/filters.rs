//! Lists narrowed to one pod or container go to its owner alone.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::{By, Narrowed, assert_names_the_dead, holds, narrowed_to, send, stopped};
use crate::questions::{Since, settled, settled_at};
use crate::support::{Client, Rig, Sim};
use crate::wait;

struct Known {
    rig: Rig,
    pod: String,
    container: String,
    lists: Vec<Narrowed>,
}

/// One pod on each of two backends. The lists are narrowed to kata's pod.
async fn known() -> Known {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    rig.run("runc", "other").await;
    let (pod, container) = rig.run("kata", "web").await;
    let lists = narrowed_to(&pod, &container, "uid-of-web");
    Known {
        rig,
        pod,
        container,
        lists,
    }
}

impl Known {
    #[track_caller]
    fn assert_listed(&self, list: &Narrowed, reply: &crate::support::RawReply) {
        assert_eq!(reply.code(), Code::Ok, "{list:?}: {}", reply.text());
        let of_pods = list.rpc.contains("Pod");
        let id = if of_pods { &self.pod } else { &self.container };
        assert!(holds(reply, id), "{list:?}");
    }
}

#[tokio::test]
async fn a_narrowed_list_goes_unchanged_to_the_owner_alone() {
    let known = known().await;
    for list in &known.lists {
        let before = [("runc", 0), ("kata", 1)].map(|(name, more)| {
            let sim = known.rig.sim(name);
            (sim, sim.calls(list.rpc).len() + more)
        });
        let reply = send(&known.rig, list.rpc, list.request.clone()).await;
        known.assert_listed(list, &reply);
        for (sim, calls) in before {
            assert_eq!(sim.calls(list.rpc).len(), calls, "{}: {list:?}", sim.name());
        }
        let arrived = known.rig.sim("kata").calls(list.rpc);
        assert_eq!(arrived.last().unwrap().body, list.request);
    }
}

#[tokio::test]
async fn a_narrowed_list_works_while_another_backend_is_down() {
    let known = known().await;
    stopped(&known.rig, "runc").await;
    for list in &known.lists {
        let reply = send(&known.rig, list.rpc, list.request.clone()).await;
        known.assert_listed(list, &reply);
    }
}

#[tokio::test]
async fn a_narrowed_list_is_served_from_cache_while_the_owner_is_down_and_stats_are_unavailable() {
    let known = known().await;
    stopped(&known.rig, "kata").await;
    let kata = known.rig.sim("kata");
    for list in &known.lists {
        let reply = send(&known.rig, list.rpc, list.request.clone()).await;
        if list.rpc.contains("Stats") {
            assert_names_the_dead(&reply, kata, list.rpc);
            assert!(reply.body.is_empty(), "{list:?}");
        } else {
            known.assert_listed(list, &reply);
        }
    }
}

#[tokio::test]
async fn a_list_by_uid_asks_every_backend_while_one_was_never_listed() {
    let mut known = known().await;
    known.rig.sim("runc").stop().await;
    let state = known.rig.state_directory();
    known
        .rig
        .restart_switch_with(|directory| {
            // Without its state, criswitch knows nothing of runc.
            std::fs::remove_dir_all(state).unwrap();
            format!(
                "default_handler = \"runc\"\nstart_wait = \"0s\"\n[handlers]\n\
                 runc = \"{directory}/runc.sock\"\nkata = \"{directory}/kata.sock\"\n"
            )
        })
        .await;
    settled_at(known.rig.sim("kata")).await;
    // kata's pod is known, but runc may have another pod with this uid, so the lists fail. Lists of stats do not fail,
    // because they omit runc.
    let of_all = |list: &&Narrowed| list.by == By::Uid && !list.rpc.contains("Stats");
    for list in known.lists.iter().filter(of_all) {
        let reply = send(&known.rig, list.rpc, list.request.clone()).await;
        assert_names_the_dead(&reply, known.rig.sim("runc"), list.rpc);
    }
    known.rig.sim("runc").start();
    wait::until(async || known.rig.pods().await.is_ok()).await;
    for list in &known.lists {
        let reply = send(&known.rig, list.rpc, list.request.clone()).await;
        known.assert_listed(list, &reply);
    }
}

#[tokio::test]
async fn a_list_by_uid_shows_the_pods_of_every_backend_that_has_one() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata"), Sim::new("third")]).await;
    // The RuntimeClass of the pod `web` was changed from kata to runc. The pod's first sandbox is still on kata.
    let (old, in_old) = rig.run("kata", "web").await;
    let (new, in_new) = rig.run("runc", "web").await;
    for list in narrowed_to("", "", "uid-of-web") {
        if list.by != By::Uid {
            continue;
        }
        let before = rig.sim("third").calls(list.rpc).len();
        let reply = send(&rig, list.rpc, list.request.clone()).await;
        let of_pods = list.rpc.contains("Pod");
        for id in if of_pods {
            [&old, &new]
        } else {
            [&in_old, &in_new]
        } {
            assert!(holds(&reply, id), "{list:?}");
        }
        assert_eq!(rig.sim("third").calls(list.rpc).len(), before, "{list:?}");
    }
}

#[tokio::test]
async fn a_list_by_uid_shows_a_pod_that_a_failed_run_left_on_another_backend() {
    let known = known().await;
    let runc = known.rig.sim("runc");
    runc.fail("RunPodSandbox", Status::unknown("no network"));
    known.rig.try_run("runc", "web").await.unwrap_err();
    runc.heal("RunPodSandbox");
    let left = Client::new(&runc.socket())
        .run_pod("runc", "web")
        .await
        .unwrap();
    for list in &known.lists {
        let reply = send(&known.rig, list.rpc, list.request.clone()).await;
        known.assert_listed(list, &reply);
        if list.by == By::Uid && list.rpc.contains("Pod") {
            assert!(holds(&reply, &left), "{list:?}");
        }
    }
}

#[tokio::test]
async fn a_list_narrowed_to_a_pod_created_without_criswitch_finds_it() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    settled(&rig).await;
    let direct = Client::new(&rig.sim("kata").socket());
    let pod = direct.run_pod("", "web").await.unwrap();
    let since = Since::now(&rig).await;
    let filter = cri::PodSandboxFilter {
        id: pod.clone(),
        ..Default::default()
    };
    let request = cri::ListPodSandboxRequest {
        filter: Some(filter),
    };
    let reply = rig.runtime().list_pod_sandbox(request).await.unwrap();
    assert_eq!(reply.into_inner().items[0].id, pod);
    assert_eq!(since.asked(&rig), [1, 1]);
}

#[tokio::test]
async fn a_list_by_state_or_by_any_other_label_asks_every_backend() {
    let known = known().await;
    let rig = &known.rig;
    let filters = [
        cri::PodSandboxFilter {
            state: Some(cri::PodSandboxStateValue { state: 0 }),
            ..Default::default()
        },
        cri::PodSandboxFilter {
            label_selector: [(
                "io.kubernetes.pod.namespace".to_owned(),
                "default".to_owned(),
            )]
            .into(),
            ..Default::default()
        },
    ];
    for filter in filters {
        let request = cri::ListPodSandboxRequest {
            filter: Some(filter),
        };
        let reply = rig.runtime().list_pod_sandbox(request).await.unwrap();
        assert_eq!(reply.into_inner().items.len(), 2);
    }
}
