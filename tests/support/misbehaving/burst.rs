//! A burst with more events than criswitch's queue for listeners holds, and events without an end.

use criswitch::codec::cri;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, of_frames};
use crate::support::frame;

/// The number of events in the burst.
pub const BURST: usize = 3000;

fn event(number: usize) -> bytes::Bytes {
    frame(&cri::ContainerEventResponse {
        container_id: number.to_string(),
        ..Default::default()
    })
}

pub fn endless_events(rpc: &str) -> Option<Reply> {
    // Long frames, because criswitch closes a connection that has too many short ones.
    let frame = |first: usize| {
        (first..first + 1000)
            .flat_map(event)
            .collect::<bytes::Bytes>()
    };
    let frames = move || stream::iter((0..).step_by(1000).map(frame).map(Frame::data));
    (rpc == "GetContainerEvents").then(|| of_frames(frames()))
}

pub fn burst(rpc: &str) -> Option<Reply> {
    let burst = || (0..BURST).flat_map(event).collect::<bytes::Bytes>();
    let frames = || stream::iter([Frame::data(burst())]).chain(stream::pending());
    (rpc == "GetContainerEvents").then(|| of_frames(frames()))
}
