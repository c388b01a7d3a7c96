//! Lists with more images, stats and metric descriptors than any node has. Each item is tiny, so the list is small.

use bytes::Bytes;

use super::{Reply, raw};
use crate::frame_raw;

/// An item of two bytes: an empty submessage in field 1.
const ITEM: &[u8] = &[0x0a, 0];
const ITEMS: usize = 200_000;

pub fn many_items(rpc: &str) -> Option<Reply> {
    ["ListImages", "ListContainerStats", "ListMetricDescriptors"]
        .contains(&rpc)
        .then(|| raw(frame_raw(&Bytes::from(ITEM.repeat(ITEMS))), "0"))
}
