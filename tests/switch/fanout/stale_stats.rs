//! While a backend is late with its stats, criswitch serves the backend's cached stats for at most two minutes: byte
//! for byte, and filtered as the call asks. Calls for one pod or container still go to the backend.

use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::cri;
use tonic::Code;

use crate::calls::{assert_names_the_dead, narrowed_to, narrowed_to_ids, part, send, stopped};
use crate::faults::{backends_ready, hung, node, state_of, status, until_state, wake};
use crate::logged::Logged;
use crate::support::{PATIENCE, RawReply, Rig, Sim, frame_raw};
use crate::wait;

/// Calls for all stats, and their streams.
const STATS: [&str; 6] = [
    "ListContainerStats",
    "ListPodSandboxStats",
    "ListPodSandboxMetrics",
    "StreamContainerStats",
    "StreamPodSandboxStats",
    "StreamPodSandboxMetrics",
];
const KEYS: &str = "start_wait = \"0s\"\nlist_timeout = \"1h\"\nstats_timeout = \"1s\"";

/// Two backends with one pod each, whose stats were listed once.
async fn asked() -> (Rig, String, String) {
    let rig = node(KEYS, [Sim::new("runc"), Sim::new("crio")]).await;
    rig.run("runc", "plain").await;
    let (pod, container) = rig.run("crio", "web").await;
    for rpc in STATS {
        all(&rig, rpc).await;
    }
    (rig, pod, container)
}

/// Holds calls for all stats, as CRI-O does while one of its containers stops.
fn stops_a_container(sim: &Sim) {
    STATS.iter().for_each(|rpc| sim.hold_all(rpc));
}

async fn all(rig: &Rig, rpc: &str) -> RawReply {
    let reply = send(rig, rpc, frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", reply.text());
    reply
}

/// The items of a list or stream, sorted: streams have no fixed order of messages.
fn items(reply: &RawReply) -> Vec<Vec<u8>> {
    let messages = reply.messages().concat();
    let fields = criswitch_cri::codec::protobuf::fields(&messages).map(Result::unwrap);
    let mut items: Vec<_> = fields.map(|field| field.raw.to_vec()).collect();
    items.sort();
    items
}

/// The items that crio sent last.
fn sent(rig: &Rig, rpc: &str) -> Vec<Vec<u8>> {
    let mut body = rig.sim("crio").sent(rpc);
    let mut items = Vec::new();
    while body.len() > 5 {
        let length = u32::from_be_bytes(body[1..5].try_into().unwrap());
        let message = body.split_to(5 + usize::try_from(length).unwrap());
        let fields = criswitch_cri::codec::protobuf::fields(&message[5..]).map(Result::unwrap);
        items.extend(fields.map(|field| field.raw.to_vec()));
    }
    items
}

#[tokio::test]
async fn cached_stats_are_served_byte_for_byte_while_a_backend_is_late() {
    let (rig, ..) = asked().await;
    // A list and its stream share one cache. The streams were called last, so the cache has their stats.
    let stream = |rpc: &&str| sent(&rig, &rpc.replace("List", "Stream"));
    let last: Vec<_> = STATS.iter().map(stream).collect();
    stops_a_container(rig.sim("crio"));
    // The first call waits, and later calls do not.
    for _ in 0..2 {
        for (rpc, last) in STATS.iter().zip(&last) {
            let reply = items(&all(&rig, rpc).await);
            assert_eq!(reply.len(), 2, "{rpc}");
            assert!(last.iter().all(|item| reply.contains(item)), "{rpc}");
        }
    }
    let at_once = async {
        for rpc in STATS {
            assert_eq!(items(&all(&rig, rpc).await).len(), 2, "{rpc}");
        }
    };
    tokio::time::timeout(Duration::from_millis(900), at_once)
        .await
        .expect("a call waits");
    STATS.iter().for_each(|rpc| rig.sim("crio").release(rpc));
    for (rpc, last) in STATS.iter().zip(&last) {
        // Processor time has passed, so crio's current stats differ.
        let own = async || {
            items(&all(&rig, rpc).await)
                .iter()
                .all(|it| !last.contains(it))
        };
        let is_fixed = rpc.contains("Metrics");
        wait::until(async || is_fixed || own().await).await;
    }
}

/// While CRI-O stops a container, its calls for all stats hang. The stats of any other pod must still be available.
#[tokio::test]
async fn stats_of_one_pod_come_from_its_backend_while_calls_for_all_stats_are_late() {
    let (rig, pod, container) = asked().await;
    let crio = rig.sim("crio");
    stops_a_container(crio);
    for rpc in STATS {
        all(&rig, rpc).await;
    }
    let at_once = async {
        for list in narrowed_to(&pod, &container, "uid-of-web") {
            if !STATS.contains(&list.rpc) {
                continue;
            }
            let before = crio.calls(list.rpc).len();
            let reply = send(&rig, list.rpc, list.request).await;
            assert_eq!(reply.code(), Code::Ok, "{}", list.rpc);
            assert_eq!(items(&reply).len(), 1, "{}", list.rpc);
            assert!(crio.calls(list.rpc).len() > before, "{}", list.rpc);
        }
        for (rpc, id) in [("ContainerStats", &container), ("PodSandboxStats", &pod)] {
            let reply = send(&rig, rpc, frame_raw(&part(1, id.clone().into_bytes()))).await;
            assert_eq!(reply.code(), Code::Ok, "{rpc}");
        }
    };
    tokio::time::timeout(Duration::from_millis(900), at_once)
        .await
        .expect("a call waits");
}

/// A stopping container may delay a call for this container, but must not make calls for all stats late.
#[tokio::test]
async fn a_late_call_for_one_pods_stats_is_served_from_cache_and_makes_no_other_call_late() {
    let (rig, pod, container) = asked().await;
    let crio = rig.sim("crio");
    for list in narrowed_to_ids(&pod, &container) {
        if !STATS.contains(&list.rpc) {
            continue;
        }
        all(&rig, list.rpc).await;
        let last = sent(&rig, list.rpc);
        crio.hold(list.rpc);
        let reply = send(&rig, list.rpc, list.request).await;
        assert_eq!(items(&reply), last, "{} by {:?}", list.rpc, list.by);
        crio.release(list.rpc);
        assert!(state_of(&rig, "crio").await["statsLateSeconds"].is_null());
        all(&rig, list.rpc).await;
    }
}

/// If no stats are cached, the call waits for the owner. The owner will answer, so an empty reply or an error would be
/// wrong.
#[tokio::test]
async fn a_call_for_one_pods_stats_without_cached_stats_waits_for_the_owner() {
    let rig = node(KEYS, [Sim::new("runc"), Sim::new("crio")]).await;
    let (pod, container) = rig.run("crio", "web").await;
    let crio = rig.sim("crio");
    for list in narrowed_to_ids(&pod, &container) {
        if !STATS.contains(&list.rpc) {
            continue;
        }
        crio.hold(list.rpc);
        let release = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            crio.release(list.rpc);
        };
        let (reply, ()) = tokio::join!(send(&rig, list.rpc, list.request), release);
        assert_eq!(reply.code(), Code::Ok, "{} by {:?}", list.rpc, list.by);
        assert_eq!(items(&reply).len(), 1, "{} by {:?}", list.rpc, list.by);
    }
}

/// An empty list would say that the pod uses nothing, so the call must fail.
#[tokio::test]
async fn stats_of_a_pod_newer_than_the_cached_stats_are_not_served_from_cache() {
    let (rig, ..) = asked().await;
    let (pod, container) = rig.run("crio", "since").await;
    stopped(&rig, "crio").await;
    for list in narrowed_to(&pod, &container, "uid-of-since") {
        if STATS.contains(&list.rpc) {
            let reply = send(&rig, list.rpc, list.request).await;
            assert_names_the_dead(&reply, rig.sim("crio"), list.rpc);
        }
    }
}

/// Requests with every kind of filter, and with ids shortened to `length`. Each request has its RPC, and the number of
/// items in the current reply to the request.
async fn filtered(
    rig: &Rig,
    pod: &str,
    container: &str,
    length: usize,
) -> Vec<(&'static str, Bytes, usize)> {
    let text = |field, value: &str| part(field, value.as_bytes().to_vec());
    let label = |field, value| {
        let entry = [text(1, "io.kubernetes.pod.name"), text(2, value)];
        part(field, entry.concat())
    };
    let id = text(1, &container[..length]);
    let of_containers = [
        id.clone(),
        text(2, &pod[..length]),
        [id.clone(), label(3, "web")].concat(),
        label(3, "web"),
        label(3, "nobody"),
    ];
    let id = text(1, &pod[..length]);
    let of_pods = [
        id.clone(),
        [id, label(2, "web")].concat(),
        label(2, "web"),
        label(2, "nobody"),
    ];
    let mut asked = Vec::new();
    for (kind, filters) in [("Container", &of_containers[..]), ("PodSandbox", &of_pods)] {
        let rpcs = STATS
            .iter()
            .filter(|rpc| rpc.ends_with(&format!("{kind}Stats")));
        for rpc in rpcs {
            for filter in filters {
                let request = frame_raw(&part(1, filter.clone()));
                let reply = send(rig, rpc, request.clone()).await;
                assert_eq!(reply.code(), Code::Ok, "{rpc}");
                asked.push((*rpc, request, items(&reply).len()));
            }
        }
    }
    asked
}

#[tokio::test]
async fn cached_stats_are_filtered_as_the_runtime_filters_them() {
    // Short ids need the reply of every backend, so they are tested with a late backend only.
    for (fault, length) in [("dead", 64), ("hung", 64), ("late", 12)] {
        let (rig, pod, container) = asked().await;
        rig.run("crio", "other").await;
        let before = filtered(&rig, &pod, &container, length).await;
        for rpc in STATS {
            all(&rig, rpc).await;
        }
        match fault {
            "dead" => stopped(&rig, "crio").await,
            "hung" => hung(&rig, "crio").await,
            _ => {
                STATS.iter().for_each(|rpc| rig.sim("crio").hold(rpc));
            }
        }
        for (rpc, request, before) in before {
            let after = send(&rig, rpc, request.clone()).await;
            let text = crate::calls::text_of(&after);
            assert_eq!(after.code(), Code::Ok, "{fault}: {rpc} {request:?} {text}");
            assert_eq!(items(&after).len(), before, "{fault}: {rpc} {request:?}");
        }
    }
}

#[tokio::test]
async fn cached_stats_omit_removed_pods_and_containers_also_inside_a_pods_stats() {
    let (rig, pod, container) = asked().await;
    let sidecar = rig.create(&pod, "sidecar").await;
    rig.start(&sidecar).await.unwrap();
    let (other, _) = rig.run("crio", "other").await;
    for rpc in STATS {
        all(&rig, rpc).await;
    }
    rig.stop(&container).await.unwrap();
    rig.remove(&container).await.unwrap();
    rig.stop_pod(&other).await.unwrap();
    rig.remove_pod(&other).await.unwrap();
    stopped(&rig, "crio").await;
    for rpc in STATS {
        let reply = all(&rig, rpc).await;
        assert_eq!(items(&reply).len(), 2, "{rpc}");
        let has = |id: &str| crate::calls::holds(&reply, id);
        assert!(!has(&container) && !has(&other), "{rpc}");
        assert!(has(&sidecar), "{rpc}");
    }
}

/// The kubelet ranks pods for eviction by their memory usage, and must not rank them by old stats for long.
#[tokio::test]
async fn cached_stats_are_served_for_two_minutes() {
    let (rig, ..) = asked().await;
    stopped(&rig, "crio").await;
    for rpc in STATS {
        assert_eq!(items(&all(&rig, rpc).await).len(), 2, "{rpc}");
    }
    tokio::time::sleep(Duration::from_secs(120)).await;
    for rpc in STATS {
        assert_eq!(items(&all(&rig, rpc).await).len(), 1, "{rpc}");
    }
}

#[tokio::test]
async fn no_stats_are_cached_if_stale_lists_is_zero() {
    let keys = format!("{KEYS}\nstale_lists = \"0s\"");
    let rig = node(&keys, [Sim::new("runc"), Sim::new("crio")]).await;
    rig.run("runc", "plain").await;
    let (pod, container) = rig.run("crio", "web").await;
    for rpc in STATS {
        assert_eq!(items(&all(&rig, rpc).await).len(), 2, "{rpc}");
    }
    stopped(&rig, "crio").await;
    for rpc in STATS {
        assert_eq!(items(&all(&rig, rpc).await).len(), 1, "{rpc}");
    }
    for list in narrowed_to_ids(&pod, &container) {
        if STATS.contains(&list.rpc) {
            let reply = send(&rig, list.rpc, list.request).await;
            assert_names_the_dead(&reply, rig.sim("crio"), list.rpc);
        }
    }
}

#[tokio::test]
async fn metric_descriptors_are_cached_as_well() {
    let crio =
        Sim::new("crio").set(|settings| settings.descriptors[0].name = "crios_own".to_owned());
    let rig = node(KEYS, [Sim::new("runc"), crio]).await;
    let rpc = "ListMetricDescriptors";
    let before = all(&rig, rpc).await;
    rig.sim("crio").hold(rpc);
    let after = all(&rig, rpc).await;
    assert_eq!(items(&after), items(&before));
    assert!(crate::calls::holds(&after, "crios_own"));
}

/// The cached stats of one backend have at most `max_message` bytes together. Further stats are not cached.
#[tokio::test]
async fn stats_are_cached_up_to_the_size_of_one_message() {
    let keys = format!("{KEYS}\nmax_message = \"4KiB\"");
    let rig = node(&keys, [Sim::new("runc"), Sim::new("crio")]).await;
    rig.run("crio", "web").await;
    let crio = rig.sim("crio");
    // Each reply gets 1,000 bytes in a field number that no CRI uses.
    let padding = [b"\xc2\xb8\x02\xe8\x07".as_slice(), &[b'x'; 1000]].concat();
    let three = [
        "ListContainerStats",
        "ListPodSandboxStats",
        "ListPodSandboxMetrics",
    ];
    for rpc in three {
        crio.append_raw(rpc, padding.clone());
        all(&rig, rpc).await;
    }
    stopped(&rig, "crio").await;
    let served = async |rpc: &str| !all(&rig, rpc).await.messages().concat().is_empty();
    assert!(served(three[0]).await && served(three[1]).await);
    assert!(!served(three[2]).await, "beyond the limit of all");
}

#[tokio::test]
async fn a_backends_own_stats_timeout_overrides_the_global_one() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\nstart_wait = \"0s\"\nlist_timeout = \"1h\"\nstats_timeout = \"1h\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\ncrio = \"crio\"\n[backends]\n\
             crio = {{ socket = \"{directory}/crio.sock\", stats_timeout = \"50ms\" }}\n"
        )
    };
    let rig = Rig::with_config([Sim::new("runc"), Sim::new("crio")], text).await;
    rig.run("crio", "web").await;
    all(&rig, "ListPodSandboxStats").await;
    rig.sim("crio").hold("ListPodSandboxStats");
    let begun = tokio::time::Instant::now();
    let stats = tokio::time::timeout(PATIENCE, all(&rig, "ListPodSandboxStats")).await;
    assert_eq!(items(&stats.unwrap()).len(), 1);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn status_and_one_log_line_report_a_backend_with_late_stats_and_for_how_long() {
    let logged = Logged::here();
    let (rig, ..) = asked().await;
    let crio = rig.sim("crio");
    stops_a_container(crio);
    for _ in 0..3 {
        all(&rig, "ListContainerStats").await;
    }
    tokio::time::sleep(Duration::from_secs(10)).await;
    let shown = state_of(&rig, "crio").await;
    assert_eq!(shown["state"], "ready");
    assert!(shown["statsLateSeconds"].as_u64().unwrap() >= 10, "{shown}");
    assert!(
        shown["staleStatsAgeSeconds"].as_u64().unwrap() >= 10,
        "{shown}"
    );
    assert_eq!(shown["statsFromCache"], 3);
    assert_eq!(shown["repliesOmitted"], 0);
    assert!(shown["staleListAgeSeconds"].is_null());
    let status = status(&rig).await;
    let message = backends_ready(&status);
    assert!(message.contains("\"crio\""), "{message}");
    assert!(
        message.contains("its stats have been missing or old for "),
        "{message}"
    );
    assert!(message.contains("its cached stats are "), "{message}");
    assert!(state_of(&rig, "runc").await["statsLateSeconds"].is_null());
    // Stats that are too old are omitted, which logs another line.
    tokio::time::sleep(Duration::from_secs(120)).await;
    all(&rig, "ListContainerStats").await;
    let status = crate::faults::status(&rig).await;
    let message = backends_ready(&status);
    assert!(message.contains("it is omitted from stats"), "{message}");
    wake(crio);
    wait::until(async || state_of(&rig, "crio").await["statsLateSeconds"].is_null()).await;
    until_state(&rig, "crio", "ready").await;
    assert_eq!(backends_ready(&crate::faults::status(&rig).await), "");
    for words in [
        "serving its cached stats",
        "omitting it from merged replies",
        "answers calls for stats or ImageFsInfo again",
    ] {
        let lines = logged.lines(&[words, "crio"]);
        assert_eq!(lines.len(), 1, "{words}: {}", logged.text());
    }
}

#[tokio::test]
async fn stats_of_a_single_backend_are_waited_for() {
    let rig = node(KEYS, [Sim::new("crio")]).await;
    rig.run("crio", "web").await;
    let crio = rig.sim("crio");
    for rpc in STATS {
        crio.hold(rpc);
        let release = async {
            crio.until_held(rpc).await;
            crio.release(rpc);
        };
        let (reply, ()) = tokio::join!(all(&rig, rpc), release);
        assert!(reply.body == crio.sent(rpc), "{rpc}");
    }
}

/// Clients see the age of cached stats in the timestamps.
#[tokio::test]
async fn cached_stats_keep_their_timestamps() {
    let (rig, ..) = asked().await;
    let stats = async || {
        let request = cri::ListContainerStatsRequest::default();
        let stats = rig.runtime().list_container_stats(request).await.unwrap();
        let stats = stats.into_inner().stats;
        let named = |name: &str, it: &cri::ContainerStats| {
            let attributes = it.attributes.as_ref().unwrap();
            attributes.metadata.as_ref().unwrap().name == name
        };
        let of = |name| stats.iter().find(|it| named(name, it)).unwrap();
        ["plain", "web"].map(|name| of(name).cpu.as_ref().unwrap().timestamp)
    };
    let before = stats().await;
    stops_a_container(rig.sim("crio"));
    let after = stats().await;
    assert!(after[0] > before[0]);
    assert_eq!(after[1], before[1]);
}
