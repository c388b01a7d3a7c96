//! A reply that has headers but never a body or an end, while the runtime answers all other calls.
//!
//! criswitch may conclude that such a runtime hangs, and must then notice that the runtime answers.

use futures_util::stream;

use super::{Reply, of_frames};

pub fn lost_version(rpc: &str) -> Option<Reply> {
    (rpc == "Version").then(|| of_frames(stream::pending()))
}

pub fn lost_list(rpc: &str) -> Option<Reply> {
    (rpc == "ListPodSandbox").then(|| of_frames(stream::pending()))
}
