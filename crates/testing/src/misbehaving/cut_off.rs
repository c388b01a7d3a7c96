//! A reply that is cut off: its message is complete, but the stream ends without a status.
//!
//! A runtime that recovers from a panic during a call sends such a reply and keeps the connection open.

use criswitch_cri::codec::cri;
use futures_util::stream;
use http_body::Frame;

use super::{CONTAINER, Reply, containers, frame, of_frames};

pub fn cut_off(rpc: &str) -> Option<Reply> {
    let message = match rpc {
        "ListContainers" => frame(&containers([CONTAINER])),
        "ListContainerStats" => frame(&cri::ListContainerStatsResponse::default()),
        _ => return None,
    };
    Some(of_frames(stream::iter([Frame::data(message)])))
}
