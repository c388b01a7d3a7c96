//! A subscriber that does not read: cut off when its queue is full, and in nobody's way until then.

use criswitch::codec::cri;
use criswitch::telemetry::counters::Reason;
use tonic::{Code, Streaming};

use crate::calls::stopped;
use crate::faults::runc_and_kata;
use crate::session::events::{listening, next};
use crate::support::{Client, IMAGE, Rig, container_in};
use crate::wait;

/// More than the queue and all windows between hold.
const EVENTS: usize = 4000;

/// More bytes than are held of one backend's events, or of its replies, in so many.
const LARGE: usize = 80;
const TEXT: usize = 2 << 20;

type Events = Streaming<cri::ContainerEventResponse>;

/// Who listens over a connection of its own.
async fn another(rig: &Rig) -> Events {
    let request = cri::GetEventsRequest {};
    let client = Client::new(&rig.socket);
    let events = client.runtime().get_container_events(request).await;
    events.unwrap().into_inner()
}

/// Reads what is left; how many came before it was cut off.
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
async fn one_that_does_not_read_is_cut_off_and_others_get_every_event() {
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.sim("kata").add_image(IMAGE);
    // Large events, so that few fill a window.
    let mut config = container_in(&Default::default(), "main", IMAGE);
    config
        .annotations
        .insert("text".to_owned(), "x".repeat(4096));
    let container = rig.create_from(&pod, config).await.unwrap();
    let mut reads = listening(&rig).await;
    let mut unread = another(&rig).await;
    for at in 0..EVENTS {
        rig.sim("kata").tell(&container, &pod);
        let event = next(&mut reads).await;
        assert_eq!(event.unwrap().container_id, container, "{at}");
    }
    let read = until_cut_off(&mut unread).await;
    assert!(read < EVENTS, "{read}");
    assert_eq!(rig.refused(Reason::Unread), 1);
    // One listener more or less changes nothing at the backends.
    wait::until(async || rig.sim("kata").listeners() == 1).await;
}

#[tokio::test]
async fn large_events_that_one_does_not_read_take_nothing_from_lists_and_from_who_reads() {
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
        kata.tell(&container, &pod);
        let event = next(&mut reads).await;
        assert_eq!(event.unwrap().container_id, container, "{at}");
    }
    assert_eq!(rig.containers().await.unwrap().len(), 1);
    let read = until_cut_off(&mut unread).await;
    assert!(read < LARGE, "{read}");
    assert_eq!(rig.refused(Reason::Unread), 1);
}

#[tokio::test]
async fn states_that_one_does_not_read_are_counted_as_its_events_are() {
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
