//! A subscriber that does not read: cut off when its queue is full, and in nobody's way until then.

use criswitch::counts::Reason;
use criswitch::cri;
use tonic::Code;

use crate::events::{listening, next};
use crate::faults::runc_and_kata;
use crate::support::{IMAGE, container_in};
use crate::wait;

/// More than the queue and all windows between hold.
const EVENTS: usize = 4000;

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
    let request = cri::GetEventsRequest {};
    let other = crate::support::Client::new(&rig.socket);
    let mut unread = other
        .runtime()
        .get_container_events(request)
        .await
        .unwrap()
        .into_inner();
    for at in 0..EVENTS {
        rig.sim("kata").tell(&container, &pod);
        let event = next(&mut reads).await;
        assert_eq!(event.unwrap().container_id, container, "{at}");
    }
    let mut read = 0;
    let end = loop {
        match next(&mut unread).await {
            Ok(_) => read += 1,
            Err(end) => break end,
        }
    };
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert!(end.message().contains("subscribe again"), "{end}");
    assert!(read < EVENTS, "{read}");
    assert_eq!(rig.refused(Reason::Unread), 1);
    // One listener more or less changes nothing at the backends.
    wait::until(async || rig.sim("kata").listeners() == 1).await;
}
