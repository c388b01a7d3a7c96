//! A list's filter, applied to a list that the switch kept as a runtime would apply it: pure, no I/O.

use bytes::{Bytes, BytesMut};

use crate::rpc::List;
use crate::wire::{self, Malformed};

/// Where a listed item and a filter have what is compared (cri-api 1.37: `PodSandbox`, `Container` and their filters).
struct Shape {
    /// The item's state; the filter's is wrapped in a message at the second number.
    state: Option<(u32, u32)>,
    /// The item's pod id, and the filter's.
    pod: Option<(u32, u32)>,
    /// The item's labels, and the filter's selector.
    labels: (u32, u32),
}

const PODS: Shape = Shape {
    state: Some((3, 2)),
    pod: None,
    labels: (5, 3),
};
const CONTAINERS: Shape = Shape {
    state: Some((6, 2)),
    pod: Some((2, 3)),
    labels: (8, 4),
};

/// The items of `list` that `keep` wants, by their ids, and that `request`'s filter matches; their bytes are unchanged.
///
/// Ids match by prefix, as runtimes match short ids; labels match if all of the selector's are there.
///
/// # Errors
/// If `list` or `request` is not valid protobuf.
pub fn filter(
    list: List,
    items: &[u8],
    request: &[u8],
    mut keep: impl FnMut(&str) -> bool,
) -> Result<Bytes, Malformed> {
    let filter = wire::all_bytes(request, &[1])?.concat();
    let mut out = BytesMut::with_capacity(items.len());
    for field in wire::fields(items) {
        let field = field?;
        if field.number != 1 {
            continue;
        }
        let item = field.bytes()?;
        if keep(wire::string(item, &[1])?) && matches(list, item, &filter)? {
            out.extend_from_slice(field.raw);
        }
    }
    Ok(out.freeze())
}

fn matches(list: List, item: &[u8], filter: &[u8]) -> Result<bool, Malformed> {
    match list {
        List::Pods => matches_shape(&PODS, item, filter),
        List::Containers => matches_shape(&CONTAINERS, item, filter),
        List::Images => matches_image(item, filter),
    }
}

fn matches_shape(shape: &Shape, item: &[u8], filter: &[u8]) -> Result<bool, Malformed> {
    if !has_prefix(item, 1, filter, 1)? {
        return Ok(false);
    }
    if let Some((of_item, of_filter)) = shape.pod
        && !has_prefix(item, of_item, filter, of_filter)?
    {
        return Ok(false);
    }
    if let Some((of_item, of_filter)) = shape.state
        && wire::has(filter, of_filter)?
        && state(item, &[of_item])? != state(filter, &[of_filter, 1])?
    {
        return Ok(false);
    }
    has_labels(item, shape.labels.0, filter, shape.labels.1)
}

/// An enum, which has 32 bits however many are sent.
fn state(message: &[u8], path: &[u32]) -> Result<i32, Malformed> {
    Ok(wire::varint(message, path)? as i32)
}

fn has_prefix(item: &[u8], of_item: u32, filter: &[u8], of_filter: u32) -> Result<bool, Malformed> {
    let prefix = wire::string(filter, &[of_filter])?;
    Ok(wire::string(item, &[of_item])?.starts_with(prefix))
}

fn has_labels(item: &[u8], of_item: u32, filter: &[u8], of_filter: u32) -> Result<bool, Malformed> {
    for label in wire::all_bytes(filter, &[of_filter])? {
        let key = wire::string(label, &[1])?;
        // A key that stands twice counts with its last value.
        let wanted = wire::entry(filter, &[of_filter], key)?;
        if wire::entry(item, &[of_item], key)? != wanted {
            return Ok(false);
        }
    }
    Ok(true)
}

/// An image is asked for by its id, one of its tags or one of its digests.
fn matches_image(image: &[u8], filter: &[u8]) -> Result<bool, Malformed> {
    let wanted = wire::string(filter, &[1, 1])?;
    if wanted.is_empty() || wire::string(image, &[1])? == wanted {
        return Ok(true);
    }
    for names in [2, 3] {
        if wire::strings(image, &[names])?.contains(&wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}
