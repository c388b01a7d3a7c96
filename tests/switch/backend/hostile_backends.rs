//! A misbehaving backend makes only the calls fail that need this backend.

use criswitch::limits::MAX_CALLS;
use criswitch::limits::places::User;
use criswitch_cri::codec::cri;
use http_body_util::BodyExt;
use prost::Message;
use tokio::task::JoinSet;
use tonic::Code;

use crate::calls::{narrowed_to, path, send, text_of};
use crate::faults::{state_of, until_state};
use crate::logged::Logged;
use crate::session::events::{events, next};
use crate::support::misbehaving::*;
use crate::support::{PATIENCE, RawClient, RawReply, Rig, Sim, frame, frame_raw};
use crate::wait::until;

/// A good runtime and a bad one behind one criswitch. The bad one has just begun to misbehave.
struct Beside {
    rig: Rig,
    bad: Misbehaving,
    pod: String,
    container: String,
}

async fn beside(misbehaviour: Misbehaviour) -> Beside {
    beside_with("10s", misbehaviour).await
}

async fn beside_with(list_timeout: &str, misbehaviour: Misbehaviour) -> Beside {
    let keys = format!("list_timeout = '{list_timeout}'");
    let (rig, bad) = Rig::beside_bad(Sim::new("runc"), &keys, misbehaviour).await;
    let (pod, container) = rig.run("runc", "web").await;
    assert_eq!(ids(&list(&rig).await).len(), 2, "both are listed");
    bad.misbehave();
    Beside {
        rig,
        bad,
        pod,
        container,
    }
}

impl Beside {
    /// Asserts that a list of all backends has the cached items of the bad one, and that the daemon's state names the
    /// RPC and the cause.
    async fn is_served_from_cache(&self, words: &str) {
        assert_eq!(ids(&list(&self.rig).await).len(), 2);
        let failing = state_of(&self.rig, "bad").await["failingRpcs"][0].clone();
        assert_eq!(failing["rpc"], "ListContainers");
        let cause = failing["cause"].as_str().unwrap();
        assert!(cause.contains(words), "{cause}");
    }

    /// Asserts that calls for the good runtime's pods succeed: status, lists narrowed to them, new containers.
    async fn others_are_unharmed(&self) {
        let request = frame(&cri::ContainerStatusRequest {
            container_id: self.container.clone(),
            verbose: false,
        });
        let status = send(&self.rig, "ContainerStatus", request).await;
        assert_eq!(status.code(), Code::Ok, "{}", text_of(&status));
        for narrowed in narrowed_to(&self.pod, &self.container, "uid-of-web") {
            let reply = send(&self.rig, narrowed.rpc, narrowed.request.clone()).await;
            assert_eq!(reply.code(), Code::Ok, "{narrowed:?}: {}", text_of(&reply));
        }
        self.rig.run("runc", "another").await;
    }
}

async fn list(rig: &Rig) -> RawReply {
    send(
        rig,
        "ListContainers",
        frame(&cri::ListContainersRequest::default()),
    )
    .await
}

#[track_caller]
fn ids(reply: &RawReply) -> Vec<String> {
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(reply));
    let message = reply.messages().remove(0);
    let list = cri::ListContainersResponse::decode(message).unwrap();
    list.containers.into_iter().map(|one| one.id).collect()
}

/// Lists the containers of the bad backend only: no other backend has an answer that can be used.
async fn list_of_bad(rig: &Rig) -> RawReply {
    let filter = cri::ContainerFilter {
        id: CONTAINER.to_owned(),
        ..Default::default()
    };
    let request = cri::ListContainersRequest {
        filter: Some(filter),
    };
    send(rig, "ListContainers", frame(&request)).await
}

/// Asserts that a list of the bad backend alone fails with an error that names the backend, that a list of all backends
/// has the cached items of the bad backend, and that the good backend is unaffected.
async fn rejected(misbehaviour: Misbehaviour, code: Code, words: &str) {
    let beside = beside(misbehaviour).await;
    let reply = list_of_bad(&beside.rig).await;
    let text = text_of(&reply);
    assert_eq!(reply.code(), code, "{text}");
    assert!(text.contains("\"bad\"") && text.contains(words), "{text}");
    beside.is_served_from_cache(words).await;
    beside.others_are_unharmed().await;
}

#[tokio::test]
async fn a_reply_over_the_limit_is_rejected() {
    rejected(
        too_large,
        Code::ResourceExhausted,
        "larger than max_message (16777216 bytes)",
    )
    .await;
}

#[tokio::test]
async fn a_list_without_end_is_rejected() {
    rejected(endless, Code::ResourceExhausted, "larger than max_message").await;
}

#[tokio::test]
async fn rejected_lists_without_end_free_their_memory() {
    // A long `list_timeout` keeps lists from being served from cache on a slow machine.
    let beside = beside_with("1m", endless).await;
    let mut for_memory = 0;
    for _ in 0..3 {
        let lists = (0..20).map(|_| list_of_bad(&beside.rig));
        for reply in futures_util::future::join_all(lists).await {
            for_memory += usize::from(text_of(&reply).contains("all memory"));
            assert_eq!(reply.code(), Code::ResourceExhausted);
            assert!(text_of(&reply).contains("\"bad\""), "{}", text_of(&reply));
        }
    }
    assert!(
        for_memory > 0,
        "sixty of them at 16 MiB are more than there is"
    );
    let reply = list_of_bad(&beside.rig).await;
    assert!(
        text_of(&reply).contains("larger than max_message"),
        "alone it has room again"
    );
    beside.others_are_unharmed().await;
}

/// To stop a pod that no backend has, criswitch lists the pods of all backends. These lists have a separate limit of
/// memory.
#[tokio::test]
async fn criswitchs_own_lists_have_memory_while_replies_to_clients_use_all_memory_for_replies() {
    let beside = beside(unfinished).await;
    let request = frame(&cri::ContainerStatusRequest {
        container_id: CONTAINER.to_owned(),
        verbose: false,
    });
    let client = (*beside.rig).raw().await;
    let mut begun = JoinSet::new();
    for _ in 0..10 {
        let (client, request) = (client.clone(), request.clone());
        begun.spawn(async move { client.call(&path("ContainerStatus"), &[], request).await });
    }
    // The memory for large replies that are not lists holds three of the ten replies, so criswitch rejects seven.
    for _ in 0..7 {
        let reply = begun.join_next().await.unwrap().unwrap();
        assert!(text_of(&reply).contains("all memory"), "{reply:?}");
    }
    let unknown = beside.rig.stop_pod("unknown").await;
    assert!(unknown.is_ok(), "{unknown:?}");
    beside.others_are_unharmed().await;
}

/// Ten clients wait for large replies, such as those of `ExecSync`. A list of the same backend is neither rejected nor
/// served from cache.
#[tokio::test]
async fn a_list_of_a_backend_has_memory_while_its_other_replies_use_all_of_theirs() {
    for user in [User::Own, User::Other(1000)] {
        let beside = beside(unfinished_beside_a_long_list).await;
        let request = frame(&cri::ContainerStatusRequest {
            container_id: CONTAINER.to_owned(),
            verbose: false,
        });
        let client = RawClient::over(beside.rig.connect_as(user)).await;
        let mut begun = JoinSet::new();
        for _ in 0..10 {
            let (client, request) = (client.clone(), request.clone());
            begun.spawn(async move { client.call(&path("ContainerStatus"), &[], request).await });
        }
        let rejected = begun.join_next().await.unwrap().unwrap();
        assert!(text_of(&rejected).contains("all memory"), "{rejected:?}");
        let reply = list(&beside.rig).await;
        assert_eq!(ids(&reply).len(), 2);
        assert!(reply.body.len() > LONG_LIST, "{user:?}: served from cache");
        let failing = state_of(&beside.rig, "bad").await["failingRpcs"].to_string();
        assert!(!failing.contains("ListContainers"), "{failing}");
    }
}

/// Reads the stream of containers to its end. Each frame must come in time. Returns the code.
async fn streamed(beside: &Beside) -> String {
    let request = frame(&cri::StreamContainersRequest::default());
    let client = crate::support::Client::raw(&beside.rig).await;
    let reply = client
        .begin(&path("StreamContainers"), &[], request)
        .await
        .unwrap();
    let mut body = reply.into_body();
    let mut trailers = None;
    while let Some(frame) = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap() {
        trailers = frame.unwrap().into_trailers().ok();
    }
    let code = &trailers.unwrap()["grpc-status"];
    code.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_streamed_list_without_end_is_ended_and_replaced() {
    for (misbehaviour, cause) in [
        (endless as Misbehaviour, "larger than"),
        (empty_messages, "more than 131072 messages"),
    ] {
        let beside = beside(misbehaviour).await;
        assert_eq!(streamed(&beside).await, "0", "{cause}");
        let failing = state_of(&beside.rig, "bad").await["failingRpcs"].to_string();
        assert!(failing.contains(cause), "{failing}");
        beside.others_are_unharmed().await;
    }
}

#[tokio::test]
async fn a_list_with_too_many_tiny_items_is_not_merged() {
    let beside = beside(many_items).await;
    let client = crate::support::Client::raw(&beside.rig).await;
    for (service, rpc) in [
        ("ImageService", "ListImages"),
        ("RuntimeService", "ListContainerStats"),
        ("RuntimeService", "ListMetricDescriptors"),
    ] {
        let path = format!("/runtime.v1.{service}/{rpc}");
        let reply = client.call(&path, &[], frame_raw(b"")).await;
        let text = text_of(&reply);
        assert!(reply.body.len() < 100_000, "{rpc}");
        let is_rejected = text.contains("it lists more than 131072 items");
        assert!(reply.code() == Code::Ok || is_rejected, "{rpc}: {text}");
    }
    beside.others_are_unharmed().await;
}

#[tokio::test]
async fn an_unfinished_list_is_served_from_cache_and_an_unfinished_status_ends_in_time() {
    let beside = beside_with("200ms", never_ending).await;
    let mut expected = [CONTAINER, beside.container.as_str()];
    expected.sort_unstable();
    let mut listed = ids(&list(&beside.rig).await);
    listed.sort_unstable();
    assert_eq!(listed, expected);
    let request = frame(&cri::ContainerStatusRequest {
        container_id: CONTAINER.to_owned(),
        verbose: false,
    });
    let path = path("ContainerStatus");
    let reply = beside.rig.raw(&path, &[], request).await;
    assert_eq!(reply.code(), Code::Unavailable, "{}", text_of(&reply));
    beside.others_are_unharmed().await;
}

#[tokio::test]
async fn an_unfinished_reply_counts_as_a_call_in_flight() {
    let beside = beside_with("200ms", never_ending).await;
    let request = frame(&cri::StopContainerRequest {
        container_id: CONTAINER.to_owned(),
        timeout: 0,
    });
    let path = path("StopContainer");
    // Each client begins fewer calls than one connection allows. Together the clients begin at least as many calls as
    // criswitch allows.
    let clients = [0; 5].map(|_| crate::support::Client::raw(&beside.rig));
    let clients = futures_util::future::join_all(clients).await;
    let mut clients = clients.iter().cycle();
    let mut begun = JoinSet::new();
    let mut begin = || {
        let client = clients.next().unwrap().clone();
        let (path, request) = (path.clone(), request.clone());
        begun.spawn(async move { client.begin(&path, &[], request).await });
    };
    (0..MAX_CALLS).for_each(|_| begin());
    until(async || {
        // A list in flight may have taken the slot of one of the calls, so fill the slot again.
        begin();
        text_of(&list(&beside.rig).await).contains("in flight already")
    })
    .await;
    drop(begun);
    until(async || list(&beside.rig).await.code() == Code::Ok).await;
}

#[tokio::test]
async fn a_bad_frame_is_rejected() {
    for bad in [
        a_frame_that_is_too_short,
        a_frame_that_is_too_long,
        two_messages,
        a_flag_that_is_none,
        no_protobuf,
        fine_without_a_message,
    ] {
        rejected(bad, Code::Internal, "its reply is").await;
    }
}

#[tokio::test]
async fn a_compressed_reply_is_rejected_where_criswitch_must_read_it() {
    rejected(compressed, Code::Internal, "compressed").await;
}

#[tokio::test]
async fn error_details_that_are_not_base64_pass_with_the_reply_of_one_backend() {
    let beside = beside(bad_details).await;
    let request = frame(&cri::ContainerStatusRequest {
        container_id: CONTAINER.to_owned(),
        verbose: false,
    });
    let one = send(&beside.rig, "ContainerStatus", request).await;
    let merged = list_of_bad(&beside.rig).await;
    for reply in [&one, &merged] {
        assert_eq!(reply.code(), Code::FailedPrecondition, "{}", text_of(reply));
        assert!(text_of(reply).starts_with("not now"), "{}", text_of(reply));
    }
    let details = "grpc-status-details-bin";
    assert_eq!(one.headers[details], "!! this is not base64 !!");
    assert!(!merged.headers.contains_key(details));
    beside.is_served_from_cache("not now").await;
    beside.others_are_unharmed().await;
}

#[tokio::test]
async fn an_error_in_headers_alone_passes_unchanged() {
    refused_with_words_of_its_own(
        refused_in_headers,
        Code::ResourceExhausted,
        "tired of lists",
    )
    .await;
}

async fn refused_with_words_of_its_own(misbehaviour: Misbehaviour, code: Code, words: &str) {
    let beside = beside(misbehaviour).await;
    let reply = list_of_bad(&beside.rig).await;
    assert_eq!(reply.code(), code, "{}", text_of(&reply));
    assert!(text_of(&reply).starts_with(words), "{}", text_of(&reply));
    beside.is_served_from_cache(words).await;
    beside.others_are_unharmed().await;
}

#[tokio::test]
async fn a_hundred_thousand_containers_are_listed() {
    let beside = beside(many_containers).await;
    let listed = ids(&list(&beside.rig).await);
    assert_eq!(listed.len(), MANY + 1);
    beside.others_are_unharmed().await;
}

#[tokio::test]
async fn ids_with_odd_characters_pass_and_are_routed_to_their_owner() {
    let beside = beside(odd_ids).await;
    let listed = ids(&list(&beside.rig).await);
    for id in ODD_IDS {
        assert!(listed.iter().any(|listed| listed == id), "{id:?}");
    }
    for id in ODD_IDS {
        let request = frame(&cri::ContainerStatusRequest {
            container_id: (*id).to_owned(),
            verbose: false,
        });
        let reply = send(&beside.rig, "ContainerStatus", request).await;
        assert_eq!(reply.code(), Code::Ok, "{id:?}: {}", text_of(&reply));
    }
    beside.others_are_unharmed().await;
}

/// The connection stays open, so no change of the backend's state shows that it has recovered.
#[tokio::test]
async fn a_backend_is_no_longer_served_from_cache_once_its_replies_are_complete_again() {
    let logged = Logged::here();
    let Beside { rig, bad, .. } = beside(cut_off).await;
    let request = || frame(&cri::ListContainerStatsRequest::default());
    for time in 1..=2 {
        bad.misbehave();
        assert_eq!(ids(&list(&rig).await).len(), 2);
        assert_eq!(
            send(&rig, "ListContainerStats", request()).await.code(),
            Code::Ok
        );
        assert!(state_of(&rig, "bad").await["staleListAgeSeconds"].is_u64());
        bad.behave();
        until(async || state_of(&rig, "bad").await["staleListAgeSeconds"].is_null()).await;
        let shown = |words: &str| logged.lines(&["backend=bad", words]).len();
        until(async || shown("backend answers calls for stats or ImageFsInfo again") == time).await;
        // In the first round no stats are cached, so merged replies omit the backend's stats.
        for (words, times) in [
            ("backend does not answer; serving its cached lists", time),
            (
                "backend does not answer; omitting it from merged replies",
                1,
            ),
            (
                "backend does not answer; serving its cached stats",
                time - 1,
            ),
        ] {
            assert_eq!(shown(words), times, "{words}: {}", logged.text());
        }
    }
    assert_eq!(state_of(&rig, "bad").await["state"], "ready");
    assert!(logged.lines(&["is late", "bad"]).is_empty());
}

#[tokio::test]
async fn a_burst_of_events_disconnects_no_client_that_reads() {
    let beside = beside(burst).await;
    let mut events = events(&beside.rig).await.unwrap();
    for number in 0..BURST {
        let event = next(&mut events)
            .await
            .unwrap_or_else(|status| panic!("at {number}: {status}"));
        assert_eq!(event.container_id, number.to_string());
    }
}

#[tokio::test]
async fn events_without_a_pause_disconnect_no_client_that_reads_and_delay_no_other_backend() {
    let beside = beside(endless_events).await;
    // The paused clock stands still while any task runs, so criswitch does not take a slow machine for a slow client.
    let mut events = events(&beside.rig).await.unwrap();
    let (mut expected, mut pod, mut of_pod) = (0, String::new(), 0);
    // The windows between the backend and the client hold thousands of events.
    while of_pod < 2 {
        assert!(expected < 10 * BURST, "no event of another backend");
        // The client reads far more slowly than the backend sends.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let event = next(&mut events)
            .await
            .unwrap_or_else(|status| panic!("at {expected}: {status}"));
        if event.container_id == pod {
            of_pod += 1;
            continue;
        }
        assert_eq!(event.container_id, endless_id(expected));
        expected += 1;
        if expected == BURST {
            pod = beside.rig.run_pod("runc", "another").await;
        }
    }
}

#[tokio::test]
async fn a_backend_with_an_unreadable_cgroup_driver_is_ready() {
    let logged = Logged::here();
    let beside = beside(odd_driver).await;
    // Closing the connection makes criswitch reconnect and ask for the driver again.
    beside.bad.close();
    until(async || {
        !logged
            .lines(&["WARN", "cannot read the cgroup driver"])
            .is_empty()
    })
    .await;
    let shown = until_state(&beside.rig, "bad", "ready").await;
    assert!(shown["cgroupDriver"].is_null(), "{shown}");
}
