//! A subscriber that does not read is cut off when its queue is full, and never affects other subscribers.

use std::time::Duration;

use criswitch::limits::USER_SUBSCRIBERS;
use criswitch::limits::places::User;
use criswitch::telemetry::counters::Reason;
use criswitch_cri::codec::cri;
use http::Request;
use http_body_util::Full;
use tokio::time::Instant;
use tonic::{Code, Streaming};

use crate::calls::{path, stopped};
use crate::faults::runc_and_kata;
use crate::server::hostile_clients::sipping_over;
use crate::session::events::{listening, next};
use crate::support::{Client, IMAGE, PATIENCE, Rig, container_in, frame_raw};
use crate::wait;

/// The number of events: more than the queue and all windows on the way hold.
const EVENTS: usize = 4000;

/// A few events more than a subscriber may leave unread.
const UNREAD: usize = 1024 + 8;

/// `LARGE` events of `TEXT` bytes exceed criswitch's limit for the events of one backend, and its limit for the
/// backend's replies.
const LARGE: usize = 80;
const TEXT: usize = 2 << 20;
/// A number of events. Twice as many exceed the limit for the events of one backend, but this number does not.
const EACH: usize = 10;

type Events = Streaming<cri::ContainerEventResponse>;

/// A stream of events on another connection.
async fn another(rig: &Rig) -> Events {
    let request = cri::GetEventsRequest {};
    let client = Client::new(&rig.socket);
    let events = client.runtime().get_container_events(request).await;
    events.unwrap().into_inner()
}

/// Reads the remaining events. Returns how many came before the stream was cut off.
async fn until_cut_off(unread: &mut Events) -> usize {
    let mut read = 0;
    let end = loop {
        match next(unread).await {
            Ok(_) => read += 1,
            Err(end) => break end,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert!(end.message().contains("subscribe again"), "{end}");
    read
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_cut_off_and_others_get_every_event() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.sim("kata").add_image(IMAGE);
    // The events are large, so that few events fill a window.
    let mut config = container_in(&Default::default(), "main", IMAGE);
    config
        .annotations
        .insert("text".to_owned(), "x".repeat(4096));
    let container = rig.create_from(&pod, config).await.unwrap();
    let mut reads = listening(&rig).await;
    let mut unread = another(&rig).await;
    for at in 0..EVENTS {
        rig.sim("kata").report(&container, &pod);
        let event = next(&mut reads).await;
        assert_eq!(event.unwrap().container_id, container, "{at}");
    }
    let read = until_cut_off(&mut unread).await;
    assert!(read < EVENTS, "{read}");
    assert_eq!(rig.rejected(Reason::Unread), 1);
    // The number of subscribers does not change the number of streams at a backend.
    wait::until(async || rig.sim("kata").listeners() == 1).await;
}

#[tokio::test]
async fn large_unread_events_affect_neither_lists_nor_subscribers_that_read() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    let kata = rig.sim("kata");
    kata.add_image(IMAGE);
    let mut config = container_in(&Default::default(), "main", IMAGE);
    config
        .annotations
        .insert("text".to_owned(), "x".repeat(TEXT));
    let container = rig.create_from(&pod, config).await.unwrap();
    let mut reads = listening(&rig).await;
    let mut unread = another(&rig).await;
    for at in 0..LARGE {
        kata.report(&container, &pod);
        let event = next(&mut reads).await;
        assert_eq!(event.unwrap().container_id, container, "{at}");
    }
    assert_eq!(rig.containers().await.unwrap().len(), 1);
    let read = until_cut_off(&mut unread).await;
    assert!(read < LARGE, "{read}");
    assert_eq!(rig.rejected(Reason::Unread), 1);
}

/// Two subscribers do not read. The memory for events is full, and only the one with more unread bytes is cut off.
#[tokio::test]
async fn only_the_subscriber_with_the_most_unread_bytes_is_cut_off() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    let kata = rig.sim("kata");
    kata.add_image(IMAGE);
    let mut config = container_in(&Default::default(), "main", IMAGE);
    config
        .annotations
        .insert("text".to_owned(), "x".repeat(TEXT));
    let container = rig.create_from(&pod, config).await.unwrap();
    let mut reads = listening(&rig).await;
    let mut first = another(&rig).await;
    let mut second = None;
    for at in 0..2 * EACH {
        if at == EACH {
            second = Some(another(&rig).await);
        }
        kata.report(&container, &pod);
        next(&mut reads).await.unwrap();
    }
    until_cut_off(&mut first).await;
    let mut second = second.unwrap();
    for _ in 0..EACH {
        next(&mut second).await.unwrap();
    }
    assert_eq!(rig.rejected(Reason::Unread), 1);
}

#[tokio::test]
async fn unread_states_of_pods_count_as_unread_events_do() {
    let rig = runc_and_kata().await;
    let kata = rig.sim("kata");
    let pods = LARGE / 4;
    for number in 0..pods {
        rig.run_pod("kata", &format!("pod-{number}")).await;
    }
    let mut text = Vec::new();
    prost::encoding::bytes::encode(100, &vec![0; TEXT], &mut text);
    kata.append_to_items("PodSandboxStatus", text);
    let mut unread = listening(&rig).await;
    stopped(&rig, "kata").await;
    kata.start();
    let asked = kata.until(|journal| journal.calls_of("PodSandboxStatus").count() == pods);
    asked.await;
    let read = until_cut_off(&mut unread).await;
    assert!(read < pods, "{read}");
}

/// The other user's subscribers begin one after the other, so they lag one after the other.
#[tokio::test]
async fn no_event_waits_for_a_subscriber_of_another_user_that_does_not_read() {
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    let mut reads = listening(&rig).await;
    let client = sipping_over(rig.connect_as(User::Other(1000))).await;
    let subscribe = async || {
        let request = Request::post(format!("http://localhost{}", path("GetContainerEvents")))
            .header("content-type", "application/grpc")
            .body(Full::new(frame_raw(b"")));
        let reply = client.clone().send_request(request.unwrap());
        tokio::time::timeout(PATIENCE, reply)
            .await
            .unwrap()
            .unwrap()
    };
    let mut unread = Vec::new();
    for at in 0..UNREAD + USER_SUBSCRIBERS {
        if at < USER_SUBSCRIBERS {
            unread.push(subscribe().await);
        }
        let begun = Instant::now();
        rig.sim("kata").report(&container, &pod);
        assert_eq!(next(&mut reads).await.unwrap().container_id, container);
        let waited = begun.elapsed();
        assert!(waited < Duration::from_millis(500), "{at}: {waited:?}");
    }
    let further = subscribe().await;
    assert_eq!(further.headers()["grpc-status"], "8");
}
