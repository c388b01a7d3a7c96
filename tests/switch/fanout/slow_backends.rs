//! A backend that is slow with a list but answers probes: served from cache, asked again, never reported as hung.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::faults::{hang, names, node, state_of};
use crate::logged::Logged;
use crate::support::{Journal, Rig, Sim};
use crate::wait;

const LISTS: [&str; 2] = ["ListPodSandbox", "ListContainers"];
/// The `list_timeout`: long enough to distinguish calls that wait for it from calls that do not.
const LIST_TIMEOUT: Duration = Duration::from_secs(1);

/// Two backends with one pod each, listed once.
async fn listed() -> Rig {
    let keys = format!("start_wait = \"0s\"\nlist_timeout = {:?}", "1s");
    let rig = node(&keys, [Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("runc", "plain").await;
    rig.run("kata", "boxed").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    rig
}

/// [`listed`], but from now on kata does not reply to lists of pods and containers.
async fn slow() -> Rig {
    let rig = listed().await;
    for rpc in LISTS {
        rig.sim("kata").hold(rpc);
    }
    rig
}

fn held(journal: &Journal, rpc: &str) -> usize {
    journal.held.iter().filter(|held| *held == rpc).count()
}

#[tokio::test]
async fn a_late_list_is_served_from_cache_and_the_next_one_at_once() {
    let rig = slow().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
    assert!(begun.elapsed() >= LIST_TIMEOUT);
    let more = async {
        for _ in 0..5 {
            assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
            assert_eq!(rig.containers().await.unwrap().len(), 2);
        }
    };
    tokio::time::timeout(LIST_TIMEOUT, more)
        .await
        .expect("it waits each time");
}

#[tokio::test]
async fn a_late_backend_is_asked_in_the_background_by_one_call_at_a_time() {
    let rig = slow().await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    // Wait until criswitch has cancelled the client's call and begun a call in the background.
    kata.until(|journal| {
        journal.cancelled == ["ListPodSandbox"] && held(journal, "ListPodSandbox") == 1
    })
    .await;
    let before = kata.calls("ListPodSandbox").len();
    for _ in 0..20 {
        rig.pods().await.unwrap();
        rig.containers().await.unwrap();
    }
    assert_eq!(kata.calls("ListPodSandbox").len(), before);
    assert!(kata.calls("ListContainers").len() <= before);
    kata.until(|journal| held(journal, "ListPodSandbox") == 1)
        .await;
}

#[tokio::test]
async fn a_backend_that_is_late_with_a_list_is_probed_and_stays_ready() {
    let logged = Logged::here();
    let rig = slow().await;
    let kata = rig.sim("kata");
    let (before, probes) = (state_of(&rig, "kata").await, kata.calls("Version").len());
    for _ in 0..3 {
        rig.pods().await.unwrap();
    }
    kata.until(|journal| journal.calls_of("Version").count() > probes)
        .await;
    let shown = state_of(&rig, "kata").await;
    assert_eq!(shown["state"], "ready");
    assert_eq!(shown["transitions"], before["transitions"]);
    assert_eq!(
        logged.lines(&["late with a list", "kata"]).len(),
        1,
        "{}",
        logged.text()
    );
    // While kata's lists hang, other calls to kata succeed.
    rig.run_pod("kata", "next").await;
}

#[tokio::test]
async fn a_late_backends_own_list_is_served_again_when_it_answers() {
    let rig = slow().await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    // The pod is created at kata directly, so that only kata's list can show it.
    kata.until(|journal| held(journal, "ListPodSandbox") == 1)
        .await;
    crate::faults::directly(kata)
        .run_pod("kata", "new")
        .await
        .unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "plain"]);
    for rpc in LISTS {
        kata.release(rpc);
    }
    let now = ["boxed", "new", "plain"];
    wait::until(async || names(&rig.pods().await.unwrap()) == now).await;
    wait::until(async || state_of(&rig, "kata").await["staleListAgeSeconds"].is_null()).await;
    let before = kata.calls("ListPodSandbox").len();
    rig.pods().await.unwrap();
    assert_eq!(kata.calls("ListPodSandbox").len(), before + 1);
}

#[tokio::test]
async fn hanging_image_lists_delay_neither_pod_lists_nor_their_recovery() {
    let rig = listed().await;
    let kata = rig.sim("kata");
    let images = async || {
        let request = criswitch_cri::codec::cri::ListImagesRequest::default();
        rig.images().list_images(request).await.map(drop)
    };
    images().await.unwrap();
    kata.hold("ListImages");
    images().await.unwrap();
    kata.until(|journal| journal.cancelled == ["ListImages"] && held(journal, "ListImages") == 1)
        .await;
    let directly = crate::faults::directly(kata);
    directly.run_pod("kata", "new").await.unwrap();
    assert_eq!(names(&rig.pods().await.unwrap()), ["boxed", "new", "plain"]);
    // Pod lists may be late too, and recover while image lists still hang.
    kata.hold("ListPodSandbox");
    rig.pods().await.unwrap();
    directly.run_pod("kata", "newer").await.unwrap();
    kata.release("ListPodSandbox");
    let now = ["boxed", "new", "newer", "plain"];
    wait::until(async || names(&rig.pods().await.unwrap()) == now).await;
    images().await.unwrap();
    kata.until(|journal| held(journal, "ListImages") == 1).await;
}

/// criswitch adds a pod that it creates to the backend's cached list, so a merged list has the pod even while the
/// backend's own list hangs.
#[tokio::test]
async fn a_pod_created_while_a_list_hangs_is_never_missing() {
    let rig = slow().await;
    rig.pods().await.unwrap();
    rig.run_pod("kata", "meanwhile").await;
    let all = ["boxed", "meanwhile", "plain"];
    assert_eq!(names(&rig.pods().await.unwrap()), all);
    for rpc in LISTS {
        rig.sim("kata").release(rpc);
    }
    assert_eq!(names(&rig.pods().await.unwrap()), all);
}

#[tokio::test]
async fn stats_that_are_not_cached_omit_a_late_backend_after_stats_timeout() {
    let rig = slow().await;
    rig.sim("kata").hold("ListPodSandboxStats");
    let request = criswitch_cri::codec::cri::ListPodSandboxStatsRequest::default();
    let stats = rig.runtime().list_pod_sandbox_stats(request).await.unwrap();
    assert_eq!(stats.into_inner().stats.len(), 1);
}

#[tokio::test]
async fn late_stats_are_omitted_at_once_until_the_backend_answers() {
    let logged = Logged::here();
    let keys = "start_wait = \"0s\"\nstats_timeout = \"1s\"";
    let rig = node(keys, [Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("runc", "plain").await;
    rig.run("kata", "boxed").await;
    let kata = rig.sim("kata");
    let stats = async || {
        let request = criswitch_cri::codec::cri::ListPodSandboxStatsRequest::default();
        let stats = rig.runtime().list_pod_sandbox_stats(request).await.unwrap();
        stats.into_inner().stats.len()
    };
    kata.hold("ListPodSandboxStats");
    assert_eq!(stats().await, 1);
    let more = async {
        for _ in 0..5 {
            assert_eq!(stats().await, 1);
            rig.pods().await.unwrap();
        }
    };
    tokio::time::timeout(LIST_TIMEOUT, more)
        .await
        .expect("it waits each time");
    // Wait until kata holds only the call that criswitch makes in the background.
    kata.until(|journal| held(journal, "ListPodSandboxStats") == 1)
        .await;
    // kata's lists of pods are not served from cache while its stats are late.
    assert_eq!(state_of(&rig, "kata").await["listsFromCache"], 0);
    kata.release("ListPodSandboxStats");
    wait::until(async || stats().await == 2).await;
    for (words, lines) in [
        ("omitting it from merged replies", 1),
        ("answers calls for stats or ImageFsInfo again", 1),
        ("late with a list", 0),
    ] {
        let shown = logged.lines(&["kata", words]);
        assert_eq!(shown.len(), lines, "{words}: {}", logged.text());
    }
}

#[tokio::test]
async fn hanging_pod_stats_do_not_affect_container_stats() {
    let rig = listed().await;
    let kata = rig.sim("kata");
    let pods = async || {
        let request = criswitch_cri::codec::cri::ListPodSandboxStatsRequest::default();
        let stats = rig.runtime().list_pod_sandbox_stats(request).await;
        stats.unwrap().into_inner().stats.len()
    };
    let containers = async || {
        let request = criswitch_cri::codec::cri::ListContainerStatsRequest::default();
        let stats = rig.runtime().list_container_stats(request).await;
        stats.unwrap().into_inner().stats.len()
    };
    let both = ["ListPodSandboxStats", "ListContainerStats"];
    for rpc in both {
        kata.hold(rpc);
    }
    assert_eq!((pods().await, containers().await), (1, 1));
    kata.until(|journal| {
        journal.cancelled == both && both.iter().all(|rpc| held(journal, rpc) == 1)
    })
    .await;
    kata.release("ListContainerStats");
    wait::until(async || containers().await == 2).await;
    assert_eq!(pods().await, 1);
}

#[tokio::test]
async fn a_backends_own_list_timeout_overrides_the_global_one() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\nlist_timeout = \"1h\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\nkata = \"kata\"\n[backends]\n\
             kata = {{ socket = \"{directory}/kata.sock\", list_timeout = \"50ms\" }}\n"
        )
    };
    let rig = Rig::with_config([Sim::new("runc"), Sim::new("kata")], text).await;
    rig.run("kata", "boxed").await;
    rig.pods().await.unwrap();
    rig.sim("kata").hold("ListPodSandbox");
    let pods = tokio::time::timeout(Duration::from_secs(5), rig.pods()).await;
    assert_eq!(names(&pods.unwrap().unwrap()), ["boxed"]);
}

#[tokio::test]
async fn calls_of_other_backends_do_not_wait_for_one_that_hangs() {
    let keys = "start_wait = \"0s\"\nlist_timeout = \"1h\"";
    let rig = node(keys, [Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "boxed").await;
    rig.pods().await.unwrap();
    hang(rig.sim("kata"));
    let whole_life = async {
        let (pod, container) = rig.run("runc", "plain").await;
        rig.stop(&container).await.unwrap();
        rig.remove(&container).await.unwrap();
        rig.remove_pod(&pod).await.unwrap();
    };
    tokio::select! {
        () = whole_life => {}
        pods = rig.pods() => panic!("the list was to wait: {pods:?}"),
        status = crate::faults::status(&rig) => drop(status),
    }
}

#[tokio::test]
async fn a_list_that_is_not_cached_waits_with_a_limit_and_then_fails_at_once_until_the_backend_answers()
 {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = node("start_wait = \"0s\"\nstale_lists = \"0s\"", sims).await;
    rig.pods().await.unwrap();
    let kata = rig.sim("kata");
    kata.hold("ListPodSandbox");
    for limit in [Duration::from_millis(12_100), Duration::from_millis(100)] {
        let begun = Instant::now();
        let failed = rig.pods().await.unwrap_err();
        assert_eq!(failed.code(), Code::Unavailable);
        assert!(failed.message().contains("kata"), "{failed}");
        assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    }
    kata.release("ListPodSandbox");
    wait::until(async || rig.pods().await.is_ok()).await;
}
