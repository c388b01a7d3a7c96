//! A runtime's configuration that is no protobuf, from a runtime that is well otherwise.

use super::{Reply, raw};
use crate::support::frame_raw;

pub fn odd_driver(rpc: &str) -> Option<Reply> {
    // A field that is longer than the message.
    (rpc == "RuntimeConfig").then(|| raw(frame_raw(b"\x0a\x7fab"), "0"))
}
