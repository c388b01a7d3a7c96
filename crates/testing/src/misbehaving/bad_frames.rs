//! Replies that are not one gRPC message: wrong lengths, an invalid flag, garbage inside.
//!
//! A server with a different protocol, or a broken proxy in front of a runtime, sends such replies.

use super::{Reply, raw};

const LIST: &str = "ListContainers";

/// The prefix promises more bytes than follow.
pub fn a_frame_that_is_too_short(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0, 0, 0, 0, 10, 1, 2, 3][..], "0"))
}

/// More bytes follow than the prefix says.
pub fn a_frame_that_is_too_long(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0, 0, 0, 0, 1, 1, 2, 3][..], "0"))
}

/// The flag is neither 0 (plain) nor 1 (compressed).
pub fn a_flag_that_is_none(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[7, 0, 0, 0, 0][..], "0"))
}

/// Two messages, although replies of the RPC have one.
pub fn two_messages(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0; 10][..], "0"))
}

/// A well-framed message that is not protobuf: its only field is longer than the message.
pub fn no_protobuf(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0, 0, 0, 0, 3, 0x0a, 0xff, 0x01][..], "0"))
}
