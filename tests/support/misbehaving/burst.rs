//! A burst with more events than criswitch's queue for listeners holds.

use criswitch::codec::cri;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, of_frames};
use crate::support::frame;

/// The number of events in the burst.
pub const BURST: usize = 3000;

pub fn burst(rpc: &str) -> Option<Reply> {
    let event = |number: usize| {
        frame(&cri::ContainerEventResponse {
            container_id: number.to_string(),
            ..Default::default()
        })
    };
    let burst = || (0..BURST).flat_map(event).collect::<bytes::Bytes>();
    let frames = || stream::iter([Frame::data(burst())]).chain(stream::pending());
    (rpc == "GetContainerEvents").then(|| of_frames(frames()))
}
