//! Events: each backend puts a number and the time into each of its events. The client checks the bytes and the order
//! of the events.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Buf, Bytes, BytesMut};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::frames::FRAME_HEADER;
use h2::{RecvStream, SendStream};
use prost::Message;
use tokio::time::interval;

use crate::items;
use crate::round::Round;
use crate::support::frame;

pub const RPC: &str = "GetContainerEvents";
/// The number of events that two backends together send in a second.
pub const A_SECOND: usize = 10_000;
/// The pause of a backend between two groups of events.
const PAUSE: Duration = Duration::from_millis(1);
/// The number of events that a backend sends after each pause.
const AT_ONCE: usize = A_SECOND / 2 / 1000;
/// The approximate size of an event, in bytes.
const EVENT_BYTES: usize = 1000;

/// Sends events until the client ends the stream.
pub async fn send(mut stream: SendStream<Bytes>, backend: usize) {
    let mut pause = interval(PAUSE);
    for number in 0.. {
        if number % AT_ONCE == 0 {
            pause.tick().await;
        }
        let event = frame(&event(backend, number, now_ns()));
        if stream.send_data(event, false).is_err() {
            return;
        }
    }
}

/// Reads `events` events. The time of an event begins when the backend sends the event, and ends when the client has
/// read it.
pub async fn read(mut stream: RecvStream, events: usize) -> Round {
    let (since, mut took) = (Instant::now(), Vec::with_capacity(events));
    let (mut bytes, mut numbers) = (BytesMut::new(), HashMap::new());
    let mut fault = None;
    while took.len() < events && fault.is_none() {
        let Some(Ok(part)) = stream.data().await else {
            fault = Some(format!("the stream ended: {:?}", stream.trailers().await));
            break;
        };
        stream.flow_control().release_capacity(part.len()).unwrap();
        bytes.extend_from_slice(&part);
        while let Some(message) = first_message(&mut bytes) {
            match check(&message, &mut numbers) {
                Ok(sent_ns) => took.push((now_ns() - sent_ns).try_into().unwrap_or_default()),
                Err(error) => fault = Some(error),
            }
        }
    }
    Round::new(took, since.elapsed(), fault)
}

fn first_message(bytes: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_be_bytes(bytes.get(1..FRAME_HEADER)?.try_into().unwrap()) as usize;
    (bytes.len() >= FRAME_HEADER + length).then(|| {
        bytes.advance(FRAME_HEADER);
        bytes.split_to(length).freeze()
    })
}

/// Checks that the bytes of an event are correct, and that its number follows the number of the backend's last event.
/// Returns the time at which the backend sent the event, in nanoseconds.
fn check(message: &Bytes, numbers: &mut HashMap<usize, usize>) -> Result<i64, String> {
    let seen =
        cri::ContainerEventResponse::decode(message.clone()).map_err(|error| error.to_string())?;
    let backend = seen.container_id.get(..2).unwrap_or_default();
    let backend = usize::from_str_radix(backend, 16).map_err(|error| error.to_string())?;
    let status = seen.pod_sandbox_status.unwrap_or_default();
    let number = usize::try_from(status.created_at).unwrap_or_default();
    if event(backend, number, seen.created_at).encode_to_vec() != *message {
        return Err("wrong bytes in an event".to_owned());
    }
    match numbers.insert(backend, number) {
        Some(last) if last + 1 != number => Err(format!("event {number} came after {last}")),
        _ => Ok(seen.created_at),
    }
}

fn event(backend: usize, number: usize, sent_ns: i64) -> cri::ContainerEventResponse {
    let status = cri::PodSandboxStatus {
        id: items::pod_id(backend, 0),
        created_at: number.try_into().unwrap(),
        runtime_handler: format!("h{backend}"),
        ..Default::default()
    };
    let container = cri::ContainerStatus {
        id: items::container_id(backend, 0),
        message: "x".repeat(EVENT_BYTES),
        ..Default::default()
    };
    cri::ContainerEventResponse {
        container_id: container.id.clone(),
        container_event_type: cri::ContainerEventType::ContainerStartedEvent.into(),
        created_at: sent_ns,
        pod_sandbox_status: Some(status),
        containers_statuses: vec![container],
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_nanos().try_into().unwrap()
}
