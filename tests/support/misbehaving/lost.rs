//! A reply whose end never comes, while the runtime answers all else.
//!
//! Whoever takes that for a runtime that hangs must find out again that it does not.

use futures_util::stream;

use super::{Reply, of_frames};

pub fn lost_version(rpc: &str) -> Option<Reply> {
    (rpc == "Version").then(|| of_frames(stream::pending()))
}

pub fn lost_list(rpc: &str) -> Option<Reply> {
    (rpc == "ListPodSandbox").then(|| of_frames(stream::pending()))
}
