//! Lists that show new ids each time: complete streams, streams that break off, and replies to a filter.
//!
//! Such a runtime would fill the memory of a client that remembers every id. The runtime does not answer the lists that
//! criswitch requests for itself, because a complete list would make criswitch forget the old ids.

use std::sync::atomic::{AtomicUsize, Ordering};

use criswitch_cri::codec::cri;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, containers, end, fine, of_frames};
use crate::frame;

/// The number of ids in each stream. A list has half as many, because it must fit into one message.
pub const EVER_NEW: usize = 20_000;
const A_MESSAGE: usize = 1000;

pub fn ever_new(rpc: &str) -> Option<Reply> {
    match rpc {
        "StreamPodSandboxes" => Some(streamed("0")),
        "own ListPodSandbox" | "own ListContainers" => Some(of_frames(stream::pending())),
        "ListContainers" => {
            let ids: Vec<_> = ids(EVER_NEW / 2).collect();
            Some(fine(&containers(ids.iter().map(String::as_str))))
        }
        _ => None,
    }
}

pub fn ever_new_and_broken_off(rpc: &str) -> Option<Reply> {
    match rpc {
        "StreamPodSandboxes" => Some(streamed("13")),
        _ => ever_new(rpc).filter(|_| rpc.starts_with("own ")),
    }
}

fn streamed(status: &'static str) -> Reply {
    let messages = (0..EVER_NEW / A_MESSAGE).map(|_| {
        let pods = ids(A_MESSAGE).map(|id| cri::PodSandbox {
            id,
            metadata: Some(cri::PodSandboxMetadata::default()),
            ..Default::default()
        });
        Frame::data(frame(&cri::StreamPodSandboxesResponse {
            pod_sandboxes: pods.collect(),
        }))
    });
    of_frames(stream::iter(messages).chain(stream::iter([end(status)])))
}

fn ids(count: usize) -> impl Iterator<Item = String> {
    static GIVEN: AtomicUsize = AtomicUsize::new(0);
    let first = GIVEN.fetch_add(count, Ordering::Relaxed);
    (first..first + count).map(|number| format!("{number:064}"))
}
