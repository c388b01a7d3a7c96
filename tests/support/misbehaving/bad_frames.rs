//! Replies that are not one gRPC message: lengths that are wrong, a flag that is none, garbage inside.
//!
//! What a runtime of another protocol on the same socket, or a broken proxy before it, sends.

use super::{Reply, raw};

const LIST: &str = "ListContainers";

/// Its prefix promises more than comes.
pub fn a_frame_that_is_too_short(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0, 0, 0, 0, 10, 1, 2, 3][..], "0"))
}

/// More comes than its prefix says.
pub fn a_frame_that_is_too_long(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0, 0, 0, 0, 1, 1, 2, 3][..], "0"))
}

/// Neither compressed nor not.
pub fn a_flag_that_is_none(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[7, 0, 0, 0, 0][..], "0"))
}

/// Two messages where there is one.
pub fn two_messages(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0; 10][..], "0"))
}

/// A well framed message that is no protobuf: its only field is longer than all of it.
pub fn no_protobuf(rpc: &str) -> Option<Reply> {
    (rpc == LIST).then(|| raw(&[0, 0, 0, 0, 3, 0x0a, 0xff, 0x01][..], "0"))
}
