//! A burst with more events than criswitch's queue for listeners holds, and events without an end.

use criswitch_cri::codec::cri;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, of_frames};
use crate::frame;

/// The number of events in the burst.
pub const BURST: usize = 3000;

fn event(container_id: String) -> bytes::Bytes {
    frame(&cri::ContainerEventResponse {
        container_id,
        ..Default::default()
    })
}

/// The id in an endless event. The id is as long as a real event. With too many shorter unread frames, h2 would close
/// the connection of the tests' client.
pub fn endless_id(number: usize) -> String {
    format!("{number:0300}")
}

pub fn endless_events(rpc: &str) -> Option<Reply> {
    // The frames are long, because criswitch closes a connection with too many short frames.
    (rpc == "GetContainerEvents").then(|| {
        of_frames(stream::iter((0..).step_by(1000).map(|first| {
            Frame::data(events((first..first + 1000).map(endless_id)))
        })))
    })
}

pub fn burst(rpc: &str) -> Option<Reply> {
    (rpc == "GetContainerEvents").then(|| {
        let burst = Frame::data(events((0..BURST).map(|number| number.to_string())));
        of_frames(stream::iter([burst]).chain(stream::pending()))
    })
}

/// An event about each of these ids.
fn events(ids: impl Iterator<Item = String>) -> bytes::Bytes {
    ids.flat_map(event).collect()
}
