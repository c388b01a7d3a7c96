//! Each metric's value matches the events that the test causes.

use std::time::Duration;

use criswitch::operator::metrics::FAMILIES;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::ROWS;
use tonic::{Code, Status};

use crate::page::{Page, REAL, ask_for_disks, rig, text, until};
use crate::support::{Client, PATIENCE, Rig, Sim, frame, frame_raw};

pub async fn two() -> Rig {
    rig("", [Sim::new("runc"), Sim::new("kata")]).await
}

#[tokio::test]
async fn calls_are_counted_by_rpc_backend_and_code() {
    let rig = two().await;
    rig.run("runc", "plain").await;
    let (pod, _) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.sim("kata")
        .fail("StopPodSandbox", Status::internal("no"));
    rig.stop_pod(&pod).await.unwrap_err();
    rig.start("nobody").await.unwrap_err();
    let page = Page::of(&rig).await;
    assert_eq!(page.calls("RunPodSandbox", "runc", "OK"), 1.0);
    assert_eq!(page.calls("RunPodSandbox", "kata", "OK"), 1.0);
    assert_eq!(page.calls("StopPodSandbox", "kata", "Internal"), 1.0);
    // Calls to all backends, and calls to no backend, have an empty label `backend`.
    assert_eq!(page.calls("ListPodSandbox", "", "OK"), 1.0);
    assert_eq!(page.calls("StartContainer", "", "NotFound"), 1.0);
    assert_eq!(page.calls("StartContainer", "kata", "OK"), 1.0);
    let run = [("rpc", "RunPodSandbox"), ("backend", "kata")];
    assert_eq!(
        page.value("criswitch_rpc_duration_seconds_count", &run),
        1.0
    );
    // criswitch's own calls, such as its probes, are not counted as clients' calls.
    assert_eq!(page.calls("Version", "runc", "OK"), 0.0);
}

#[tokio::test]
async fn pods_and_their_starts_are_counted_by_the_handlers_of_the_table() {
    let runc = Sim::new("runc").handlers(["runc", "unlisted"]);
    let rig = rig("", [runc, Sim::new("kata")]).await;
    rig.run_pod("kata", "web").await;
    rig.run_pod("", "plain").await;
    rig.sim("kata")
        .fail("RunPodSandbox", Status::internal("no"));
    rig.try_run("kata", "other").await.unwrap_err();
    for handler in ["nowhere", "nobody"] {
        rig.try_run(handler, "stray").await.unwrap_err();
    }
    let page = Page::of(&rig).await;
    let runs = |handler, code| {
        let labels = [("handler", handler), ("code", code)];
        page.find("criswitch_run_podsandbox_total", &labels)
    };
    assert_eq!(runs("kata", "OK"), Some(1.0));
    assert_eq!(runs("kata", "Internal"), Some(1.0));
    assert_eq!(runs("runc", "OK"), Some(1.0));
    assert_eq!(runs("", "InvalidArgument"), Some(2.0));
    assert_eq!(runs("nowhere", "InvalidArgument"), None);
    let times = |handler| {
        let name = "criswitch_run_podsandbox_duration_seconds_count";
        page.value(name, &[("handler", handler)])
    };
    assert_eq!(["kata", "runc", ""].map(times), [2.0, 1.0, 2.0]);
    let pods = |handler| page.value("criswitch_pods", &[("handler", handler)]);
    assert_eq!(["kata", "runc"].map(pods), [1.0, 1.0]);
    Client::new(&rig.sim("runc").socket())
        .run_pod("unlisted", "others")
        .await
        .unwrap();
    rig.pods().await.unwrap();
    let page = Page::of(&rig).await;
    assert_eq!(page.value("criswitch_pods", &[("handler", "")]), 1.0);
}

#[tokio::test]
async fn the_info_of_a_backend_has_its_runtime_version_and_cgroup_driver() {
    let crio = Sim::new("crio").version("1.36.1").runtime_name("cri-o");
    let rig = rig("", [Sim::new("runc"), crio]).await;
    let is_up = |page: &Page| page.backend("criswitch_backend_up", "crio") == 1.0;
    let page = until(&rig, is_up).await;
    let labels = [
        ("backend", "crio"),
        ("runtime", "cri-o"),
        ("version", "1.36.1"),
        ("cgroup_driver", "systemd"),
    ];
    assert_eq!(page.find("criswitch_backend_info", &labels), Some(1.0));
}

#[tokio::test]
async fn a_call_to_a_dead_backend_is_counted_for_that_backend() {
    let rig = two().await;
    let (_, container) = rig.run("kata", "web").await;
    rig.sim("kata").stop().await;
    rig.stop(&container).await.unwrap_err();
    let page = Page::of(&rig).await;
    assert_eq!(page.calls("StopContainer", "kata", "Unavailable"), 1.0);
}

#[tokio::test]
async fn proxy_overhead_excludes_the_time_of_backends() {
    let rig = two().await;
    let (_, container) = rig.run("runc", "plain").await;
    rig.sim("runc").hold("StopContainer");
    let stop = rig.raw(
        "/runtime.v1.RuntimeService/StopContainer",
        &[],
        frame(&cri::StopContainerRequest {
            container_id: container,
            ..Default::default()
        }),
    );
    let held = async {
        let asked = rig
            .sim("runc")
            .until(|shown| shown.calls_of("StopContainer").count() > 0);
        asked.await;
        tokio::time::sleep(Duration::from_secs(20)).await;
        rig.sim("runc").release("StopContainer");
    };
    let (reply, ()) = tokio::join!(stop, held);
    assert_eq!(reply.code(), Code::Ok);
    let page = Page::of(&rig).await;
    let of = [("rpc", "StopContainer")];
    let whole = page.value("criswitch_rpc_duration_seconds_sum", &of);
    let own = page.value("criswitch_rpc_own_seconds_sum", &of);
    assert!(whole >= 20.0, "{whole}");
    assert!(own > 0.0 && own < 10.0, "{own}");
    assert_eq!(page.value("criswitch_rpc_own_seconds_count", &of), 1.0);
    let slow = |bound: &str| {
        let bucket = [("rpc", "StopContainer"), ("le", bound)];
        page.value("criswitch_rpc_duration_seconds_bucket", &bucket)
    };
    assert_eq!((slow("10"), slow("+Inf")), (0.0, 1.0));
}

#[tokio::test]
async fn bytes_are_those_of_requests_and_replies() {
    let rig = two().await;
    let request = frame(&cri::ListContainersRequest::default());
    rig.run("runc", "plain").await;
    let list = "/runtime.v1.RuntimeService/ListContainers";
    let reply = rig.raw(list, &[], request.clone()).await;
    let page = Page::of(&rig).await;
    let of = |name: &str| page.value(name, &[("rpc", "ListContainers")]) as usize;
    assert_eq!(of("criswitch_request_bytes_total"), request.len());
    assert_eq!(of("criswitch_reply_bytes_total"), reply.body.len());
    assert!(reply.body.len() > 100);
}

#[tokio::test]
async fn a_stream_is_in_flight_until_its_client_goes() {
    let rig = two().await;
    let mut runtime = rig.runtime();
    let stream = runtime
        .get_container_events(cri::GetEventsRequest {})
        .await
        .unwrap();
    let open =
        |page: &Page| page.value("criswitch_rpcs_in_flight", &[("rpc", "GetContainerEvents")]);
    let page = until(&rig, |page| open(page) == 1.0).await;
    assert_eq!(page.calls("GetContainerEvents", "", "Canceled"), 0.0);
    assert!(page.value("criswitch_open_connections", &[]) >= 1.0);
    drop(stream);
    let page = until(&rig, |page| open(page) == 0.0).await;
    assert_eq!(page.calls("GetContainerEvents", "", "Canceled"), 1.0);
}

#[tokio::test]
async fn rejections_are_counted_and_no_name_from_a_client_is_shown() {
    let rig = two().await;
    rig.pods().await.unwrap();
    let before = Page::of(&rig).await;
    let rejected =
        |page: &Page, reason: &str| page.value("criswitch_rejections_total", &[("reason", reason)]);
    for name in ["secret-1", "secret-2"] {
        rig.try_run(name, name).await.unwrap_err();
        rig.raw(&format!("/runtime.v1.RuntimeService/{name}"), &[], "")
            .await;
        rig.raw(&format!("/{name}/Version"), &[], "").await;
    }
    let page = Page::of(&rig).await;
    assert_eq!(rejected(&page, "unknown_handler"), 2.0);
    assert_eq!(rejected(&page, "unknown_rpc"), 4.0);
    assert!(!page.text.contains("secret"), "{}", page.text);
    assert_eq!(before.values_of("backend"), page.values_of("backend"));
    let names: Vec<_> = ROWS.iter().map(|row| row.name).collect();
    assert!(page.values_of("rpc").iter().all(|rpc| names.contains(rpc)));
}

#[tokio::test]
async fn a_backends_state_and_its_pods_and_containers_are_shown() {
    let rig = two().await;
    rig.run("kata", "web").await;
    rig.run_pod("kata", "bare").await;
    let page = until(&rig, |page| {
        page.backend("criswitch_backend_up", "runc") == 1.0
    })
    .await;
    let owned =
        |page: &Page, kind| page.value("criswitch_owned", &[("backend", "kata"), ("kind", kind)]);
    assert_eq!((owned(&page, "pod"), owned(&page, "container")), (2.0, 1.0));
    let since = "criswitch_backend_state_since_timestamp_seconds";
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    assert!((page.backend(since, "kata") - now).abs() < 60.0);
    let transitions =
        |page: &Page| page.backend("criswitch_backend_transitions_total", "kata") as u64;
    let before = transitions(&page);
    rig.sim("kata").stop().await;
    let page = until(&rig, |page| {
        page.backend("criswitch_backend_up", "kata") == 0.0
    })
    .await;
    let state = |state| {
        page.value(
            "criswitch_backend_state",
            &[("backend", "kata"), ("state", state)],
        )
    };
    assert_eq!(["ready", "down"].map(state), [0.0, 1.0]);
    assert_eq!(transitions(&page), before + 1);
    assert_eq!(page.backend("criswitch_backend_up", "runc"), 1.0);
    assert_eq!((owned(&page, "pod"), owned(&page, "container")), (2.0, 1.0));
    rig.sim("kata").start();
    let page = until(&rig, |page| {
        page.backend("criswitch_backend_up", "kata") == 1.0
    })
    .await;
    assert_eq!(transitions(&page), before + 2);
}

#[tokio::test]
async fn lists_from_cache_are_shown_with_their_age_until_the_backend_is_back() {
    let rig = two().await;
    rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let before = Page::of(&rig).await;
    for name in ["criswitch_stale_lists", "criswitch_stale_list_age_seconds"] {
        assert_eq!(before.backend(name, "kata"), 0.0);
    }
    let mut images = rig.images();
    let mut list_images = async || images.list_images(cri::ListImagesRequest::default()).await;
    list_images().await.unwrap();
    rig.sim("kata").stop().await;
    list_images().await.unwrap();
    let page = Page::of(&rig).await;
    assert_eq!(page.backend("criswitch_stale_lists", "kata"), 1.0);
    assert_eq!(
        page.backend("criswitch_stale_list_age_seconds", "kata"),
        0.0
    );
    assert!(page.backend("criswitch_stale_image_list_age_seconds", "kata") > 0.0);
    let listed = rig.pods().await.unwrap();
    assert_eq!(listed.len(), 1);
    let mut runtime = rig.runtime();
    runtime
        .list_container_stats(cri::ListContainerStatsRequest::default())
        .await
        .unwrap();
    let page = Page::of(&rig).await;
    assert_eq!(page.backend("criswitch_stale_lists", "kata"), 1.0);
    assert!(page.backend("criswitch_stale_list_age_seconds", "kata") > 0.0);
    assert_eq!(
        page.backend("criswitch_lists_from_cache_total", "kata"),
        2.0
    );
    assert_eq!(page.backend("criswitch_replies_omitted_total", "kata"), 1.0);
    assert_eq!(page.backend("criswitch_stale_lists", "runc"), 0.0);
    rig.sim("kata").start();
    until(&rig, |page| {
        page.backend("criswitch_stale_lists", "kata") == 0.0
    })
    .await;
}

const LISTS: [&str; 3] = ["pods", "containers", "images"];

/// The lists that fail because of a backend.
fn failing(page: &Page, backend: &str) -> Vec<&'static str> {
    let fails = |list: &&str| {
        let labels = [("backend", backend), ("list", list)];
        page.value("criswitch_lists_failing", &labels) == 1.0
    };
    LISTS.into_iter().filter(fails).collect()
}

#[tokio::test]
async fn lists_fail_because_of_a_backend_that_has_never_answered_until_it_answers() {
    let mut rig = two().await;
    rig.sim("kata").stop().await;
    rig.restart_switch_without_state().await;
    let page = until(&rig, |page| !failing(page, "kata").is_empty()).await;
    assert_eq!(failing(&page, "kata"), LISTS);
    assert_eq!(page.backend("criswitch_backend_listed", "kata"), 0.0);
    let age = "criswitch_cached_list_age_seconds";
    assert_eq!(page.find(age, &[("backend", "kata")]), None);
    rig.pods().await.unwrap_err();
    rig.sim("kata").start();
    let page = until(&rig, |page| failing(page, "kata").is_empty()).await;
    assert_eq!(page.backend("criswitch_backend_listed", "kata"), 1.0);
    assert!(page.backend(age, "kata") >= 0.0);
    rig.pods().await.unwrap();
}

#[tokio::test]
async fn lists_fail_because_of_a_ready_backend_only_if_no_other_answer_can_be_used() {
    let cause = || Status::internal("the database is locked");
    let kata = || Sim::new("kata");
    // With two backends, kata's cached list replaces its error, because the answer of the other backend can be used.
    for (rig, fails) in [(rig("", [kata()]).await, true), (two().await, false)] {
        rig.pods().await.unwrap();
        rig.sim("kata").fail("ListPodSandbox", cause());
        assert_eq!(rig.pods().await.is_err(), fails);
        let page = Page::of(&rig).await;
        assert_eq!(page.backend("criswitch_backend_up", "kata"), 1.0);
        let late = [("backend", "kata"), ("rpc", "ListPodSandbox")];
        assert_eq!(page.value("criswitch_backend_failing_rpcs", &late), 1.0);
        assert_eq!(!failing(&page, "kata").is_empty(), fails);
        rig.sim("kata").heal("ListPodSandbox");
        rig.pods().await.unwrap();
        assert_eq!(failing(&Page::of(&rig).await, "kata"), [""; 0]);
    }
}

/// With one backend, criswitch forwards the stream without reading it. With two backends, it merges the streams.
#[tokio::test]
async fn lists_fail_because_of_a_stream_that_ends_with_an_error_after_its_first_message() {
    let kata = || Sim::new("kata");
    for (rig, fails) in [(rig("", [kata()]).await, true), (two().await, false)] {
        for name in ["web", "db", "cache", "queue"] {
            rig.run_pod("kata", name).await;
        }
        let stream = async || {
            let path = "/runtime.v1.RuntimeService/StreamPodSandboxes";
            let reply = rig.raw(path, &[], frame_raw(b"")).await;
            (!reply.messages().is_empty(), reply.code())
        };
        assert_eq!(stream().await, (true, Code::Ok));
        assert_eq!(failing(&Page::of(&rig).await, "kata"), [""; 0]);
        rig.sim("kata").end_streams(Status::data_loss("gone"));
        let code = if fails { Code::DataLoss } else { Code::Ok };
        assert_eq!(stream().await, (true, code));
        let page = Page::of(&rig).await;
        let late = [("backend", "kata"), ("rpc", "StreamPodSandboxes")];
        assert_eq!(page.value("criswitch_backend_failing_rpcs", &late), 1.0);
        assert_eq!(!failing(&page, "kata").is_empty(), fails);
        rig.sim("kata").resume_streams();
        assert_eq!(stream().await, (true, Code::Ok));
        assert_eq!(failing(&Page::of(&rig).await, "kata"), [""; 0]);
    }
}

#[tokio::test]
async fn lists_fail_because_of_a_backend_that_is_late_and_has_no_cached_list() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = rig("stale_lists = \"0s\"\nlist_timeout = \"50ms\"", sims).await;
    rig.pods().await.unwrap();
    rig.sim("kata").hold("ListPodSandbox");
    let listed = async { rig.pods().await.unwrap() };
    let released = async {
        let page = until(&rig, |page| !failing(page, "kata").is_empty()).await;
        assert_eq!(failing(&page, "kata"), ["pods"]);
        rig.sim("kata").release("ListPodSandbox");
    };
    tokio::join!(listed, released);
    until(&rig, |page| failing(page, "kata").is_empty()).await;
}

#[tokio::test]
async fn a_short_read_without_an_answer_is_named_until_the_backend_answers_it() {
    let rig = two().await;
    let (_, container_id) = rig.run("kata", "web").await;
    rig.sim("kata").hold("ContainerStatus");
    let verbose = false;
    let request = cri::ContainerStatusRequest {
        container_id,
        verbose,
    };
    rig.runtime().container_status(request).await.unwrap_err();
    let labels = [("backend", "kata"), ("rpc", "ContainerStatus")];
    let late = |page: &Page| page.find("criswitch_backend_failing_rpcs", &labels);
    assert_eq!(late(&Page::of(&rig).await), Some(1.0));
    rig.sim("kata").release("ContainerStatus");
    until(&rig, |page| late(page).is_none()).await;
}

#[tokio::test]
async fn lists_fail_because_of_a_backend_whose_cached_lists_are_too_old() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = rig("stale_lists = \"1m\"", sims).await;
    rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let images = cri::ListImagesRequest::default();
    rig.images().list_images(images).await.unwrap();
    rig.sim("kata").stop().await;
    let page = until(&rig, |page| {
        page.backend("criswitch_backend_up", "kata") == 0.0
    })
    .await;
    assert_eq!(failing(&page, "kata"), [""; 0]);
    rig.pods().await.unwrap();
    crate::support::clock::later(Duration::from_secs(61)).await;
    rig.pods().await.unwrap_err();
    let page = Page::of(&rig).await;
    assert_eq!(failing(&page, "kata"), LISTS);
    assert_eq!(failing(&page, "runc"), [""; 0]);
    assert!(page.backend("criswitch_cached_list_age_seconds", "kata") >= 61.0);
}

#[tokio::test]
async fn stats_that_are_late_are_counted_with_their_age_until_they_come() {
    let sims = [Sim::new("runc"), Sim::new("crio")];
    let rig = rig("stats_timeout = \"50ms\"", sims).await;
    rig.run("crio", "web").await;
    let stats = async || {
        let request = cri::ListContainerStatsRequest::default();
        let stats = rig.runtime().list_container_stats(request).await.unwrap();
        assert_eq!(stats.into_inner().stats.len(), 1);
    };
    stats().await;
    let names = [
        "criswitch_stats_late_seconds",
        "criswitch_stale_stats_age_seconds",
    ];
    let page = Page::of(&rig).await;
    assert_eq!(names.map(|name| page.backend(name, "crio")), [0.0; 2]);
    rig.sim("crio").hold_all("ListContainerStats");
    stats().await;
    let page = Page::of(&rig).await;
    assert!(names.iter().all(|name| page.backend(name, "crio") > 0.0));
    assert_eq!(names.map(|name| page.backend(name, "runc")), [0.0; 2]);
    assert_eq!(
        page.backend("criswitch_stats_from_cache_total", "crio"),
        1.0
    );
    assert_eq!(page.backend("criswitch_replies_omitted_total", "crio"), 0.0);
    rig.sim("crio").release("ListContainerStats");
    until(&rig, |page| {
        names.iter().all(|name| page.backend(name, "crio") == 0.0)
    })
    .await;
}

#[cfg(unix)] // The mount point in the test is a Unix path.
#[tokio::test]
async fn metrics_of_image_file_systems_exist_for_ten_minutes_after_image_fs_info() {
    let runc = Sim::new("runc").runtime_name(REAL).image("busybox:1.36");
    let kata = Sim::new("kata").runtime_name("no-such-runtime");
    let rig = rig("", [runc, kata.image("a:1").image("b:1")]).await;
    rig.pods().await.unwrap();
    let used = |page: &Page, name| page.find("criswitch_image_fs_used_bytes", &[("backend", name)]);
    assert_eq!(used(&Page::of(&rig).await, "runc"), None);
    ask_for_disks(&rig).await;
    let page = Page::of(&rig).await;
    for (name, images) in [("runc", 1), ("kata", 2)] {
        let sizes: u64 = rig.sim(name).images().iter().map(|image| image.size).sum();
        assert_eq!(used(&page, name), Some(sizes as f64));
        let inodes = page.backend("criswitch_image_fs_used_inodes", name);
        assert_eq!(inodes, f64::from(images));
    }
    let at = [("backend", "runc"), ("mountpoint", "/var/lib/..")];
    let room = |page: &Page, name| page.find(name, &at);
    let size = "criswitch_image_fs_size_bytes";
    until(&rig, |page| room(page, size).is_some()).await;
    let page = Page::of(&rig).await;
    let left = room(&page, "criswitch_image_fs_available_bytes").unwrap();
    assert!(left > 0.0 && left < room(&page, size).unwrap());
    let (inodes, free) = (
        "criswitch_image_fs_inodes",
        "criswitch_image_fs_free_inodes",
    );
    assert!(room(&page, free).unwrap() <= room(&page, inodes).unwrap());
    assert_eq!(page.find(size, &[("backend", "kata")]), None);
    crate::support::clock::later(Duration::from_secs(601)).await;
    let page = Page::of(&rig).await;
    assert_eq!((used(&page, "runc"), room(&page, size)), (None, None));
}

#[tokio::test]
async fn reloads_are_counted_and_a_removed_backend_leaves_no_metrics() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = rig("", sims.clone()).await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.remove(&container).await.unwrap();
    rig.remove_pod(&pod).await.unwrap();
    let hash = |page: &Page| {
        page.values_of("hash")
            .iter()
            .map(|hash| (*hash).to_owned())
            .collect::<Vec<_>>()
    };
    let page = Page::of(&rig).await;
    let first = hash(&page);
    assert_eq!(first.len(), 1);
    assert_eq!(
        page.value("criswitch_config_last_reload_successful", &[]),
        1.0
    );
    assert_eq!(
        page.find("criswitch_config_last_reload_timestamp_seconds", &[]),
        None
    );
    assert_eq!(
        page.value(
            "criswitch_handler_info",
            &[("handler", "kata"), ("backend", "kata")]
        ),
        1.0
    );

    rig.reload(|_| "default_handler = \"nobody\"".to_owned());
    let page = Page::of(&rig).await;
    let reloads =
        |page: &Page, result| page.value("criswitch_reloads_total", &[("result", result)]);
    assert_eq!(
        (reloads(&page, "ok"), reloads(&page, "rejected")),
        (0.0, 1.0)
    );
    assert_eq!(
        page.value("criswitch_config_last_reload_successful", &[]),
        0.0
    );
    assert!(page.value("criswitch_config_last_reload_timestamp_seconds", &[]) > 1e9);
    assert_eq!(hash(&page), first);
    assert!(page.values_of("backend").contains("kata"));

    rig.reload(|directory| text("", &sims[..1], directory));
    let page = until(&rig, |page| !page.values_of("backend").contains("kata")).await;
    assert_eq!(
        (reloads(&page, "ok"), reloads(&page, "rejected")),
        (1.0, 1.0)
    );
    assert_eq!(
        page.value("criswitch_config_last_reload_successful", &[]),
        1.0
    );
    assert_ne!(hash(&page), first);
    assert!(!page.text.contains("kata"), "{}", page.text);
}

#[test]
fn no_family_has_the_name_of_a_counter_without_its_suffix() {
    // In OpenMetrics, the name of a counter's family has no suffix `_total`.
    for counter in FAMILIES
        .iter()
        .filter_map(|it| it.name.strip_suffix("_total"))
    {
        assert!(FAMILIES.iter().all(|it| it.name != counter), "{counter}");
    }
}

#[cfg(unix)] // The mount point in the test is a Unix path.
#[tokio::test]
async fn the_page_has_every_family_of_the_table_in_its_order_and_the_process() {
    let runc = Sim::new("runc").runtime_name(REAL);
    let rig = rig("", [runc, Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    rig.reload_file();
    ask_for_disks(&rig).await;
    let fails = Status::internal("no");
    rig.sim("kata").fail("ListPodSandbox", fails);
    rig.pods().await.unwrap();
    let page = until(&rig, |page| {
        page.backend("criswitch_backend_up", "kata") == 1.0
            && page.find("criswitch_image_fs_size_bytes", &[]).is_some()
    })
    .await;
    let table = FAMILIES
        .iter()
        .map(|family| (family.name, family.kind.as_ref()));
    assert_eq!(page.types(), table.collect::<Vec<_>>());
    let resident = page.value("process_resident_memory_bytes", &[]);
    assert!((1e6..1e10).contains(&resident), "{resident}");
    assert!(page.value("process_open_fds", &[]) > 3.0);
    assert!(page.value("process_cpu_seconds_total", &[]) > 0.0);
    let started = page.value("process_start_time_seconds", &[]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let age = now.unwrap().as_secs_f64() - started;
    assert!(
        (-2.0..PATIENCE.as_secs_f64() * 60.0).contains(&age),
        "{age}"
    );
    assert_eq!(
        page.value(
            "criswitch_build_info",
            &[
                ("version", env!("CARGO_PKG_VERSION")),
                (
                    "revision",
                    option_env!("CRISWITCH_COMMIT").unwrap_or("unknown")
                ),
            ]
        ),
        1.0
    );
}
