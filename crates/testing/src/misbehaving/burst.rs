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
    let frame = |first: usize| {
        (first..first + 1000)
            .flat_map(|number| event(endless_id(number)))
            .collect::<bytes::Bytes>()
    };
    let frames = move || stream::iter((0..).step_by(1000).map(frame).map(Frame::data));
    (rpc == "GetContainerEvents").then(|| of_frames(frames()))
}

pub fn burst(rpc: &str) -> Option<Reply> {
    let burst = || {
        (0..BURST)
            .flat_map(|number| event(number.to_string()))
            .collect::<bytes::Bytes>()
    };
    let frames = || stream::iter([Frame::data(burst())]).chain(stream::pending());
    (rpc == "GetContainerEvents").then(|| of_frames(frames()))
}
