//! A RuntimeConfig reply that is not protobuf, from an otherwise good runtime.

use super::{Reply, raw};
use crate::frame_raw;

pub fn odd_driver(rpc: &str) -> Option<Reply> {
    // The field is longer than the message.
    (rpc == "RuntimeConfig").then(|| raw(frame_raw(b"\x0a\x7fab"), "0"))
}
