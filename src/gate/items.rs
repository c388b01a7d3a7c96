//! Reads the items of a list, each by its type, and compares lists by their items.

use std::collections::HashSet;
use std::env::consts::OS;
use std::hash::BuildHasher;
use std::sync::LazyLock;

use criswitch_cri::codec::protobuf::Path;
use criswitch_cri::codec::{cri, protobuf};
use criswitch_cri::rpc::fields::{ITEMS, lists, maps, metric_descriptor};
use criswitch_cri::rpc::{List, filter};
use foldhash::fast;
use foldhash::quality::RandomState;
use prost::{DecodeError, Message};

use crate::errors;
use crate::ownership::{MOST, Unlearned};

/// The most metric descriptors of a backend. Each merged reply with metrics looks at the descriptors of all backends.
pub const MOST_DESCRIPTORS: usize = 4096;
/// The most label keys of a metric descriptor. A sample has a value for each key.
pub const MOST_LABEL_KEYS: usize = 64;
/// The most pairs of the maps at one path of an item, such as its labels, or the labels of all its containers.
pub const MOST_PAIRS: usize = 4096;
/// The most containers of a pod in an event. A container's status takes far more memory than its bytes.
pub const MOST_CONTAINERS: usize = 4096;

/// The seed of the hashes of items. The seed is random, so that no backend can make two lists with one hash.
static ITEM_HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// Decodes an item. Returns the name of a required field that it lacks, if any.
type ReadItem = fn(&[u8]) -> Result<Option<&'static str>, DecodeError>;

/// Why clients cannot use this list; `None` if they can. `last` is a list of the same kind that clients can use; its
/// items are not read again. [`Owners::learn`](crate::ownership::Owners::learn) checks the number of items in lists of
/// pods and containers.
pub(super) fn fault(list: List, message: &[u8], last: &[u8]) -> Option<String> {
    let (read, maps, lists) = reading(list);
    let most = match list {
        List::MetricDescriptors => MOST_DESCRIPTORS,
        _ => MOST,
    };
    match filter::count_inside(list, message) {
        Ok(count) if count > MOST => return Some(Unlearned::TooMany.to_string()),
        Ok(_) => {}
        Err(fault) => return Some(format!("its reply is malformed: {fault}")),
    }
    let known: HashSet<u64, fast::RandomState> = protobuf::fields(last)
        .flatten()
        .filter(|field| field.number == ITEMS)
        .map(|field| ITEM_HASHER.hash_one(field.raw))
        .collect();
    let mut count = 0;
    for field in protobuf::fields(message) {
        let (item, is_known) = match field {
            Ok(field) if field.number != ITEMS => continue,
            Ok(field) => {
                let is_known =
                    !known.is_empty() && known.contains(&ITEM_HASHER.hash_one(field.raw));
                (field.bytes(), is_known)
            }
            Err(fault) => (Err(fault), false),
        };
        let item = match item {
            Ok(item) => item,
            Err(fault) => return Some(format!("its reply is malformed: {fault}")),
        };
        count += 1;
        if count > most && list.kind().is_none() {
            return Some(match list {
                List::MetricDescriptors => {
                    format!("it has more than {MOST_DESCRIPTORS} metric descriptors")
                }
                _ => Unlearned::TooMany.to_string(),
            });
        }
        if is_known {
            continue;
        }
        // Check sizes and counts first, because decoding many values takes a lot of time and memory.
        let fault = size_fault(list, item).or_else(|| count_fault(item, maps, lists));
        let fault = match fault {
            Some(fault) => format!("the item {:?} {fault}", id(list, item)),
            None => match read(item) {
                Ok(None) => continue,
                Ok(Some(field)) => format!("the item {:?} has no {field}", id(list, item)),
                Err(fault) => format!(
                    "clients cannot decode the item {:?}: {fault}",
                    id(list, item)
                ),
            },
        };
        return Some(format!("its reply is malformed: {fault}"));
    }
    None
}

/// How an item of the list is decoded, and the paths of its maps and lists.
fn reading(list: List) -> (ReadItem, &'static [Path], &'static [Path]) {
    match list {
        List::Pods => (
            |it| {
                let pod = cri::PodSandbox::decode(it)?;
                Ok(missing(&[
                    ("id", !pod.id.is_empty()),
                    ("metadata", pod.metadata.is_some()),
                ]))
            },
            maps::POD,
            &[],
        ),
        List::Containers => (
            |it| {
                let cri::Container { id, metadata, .. } = cri::Container::decode(it)?;
                let has_id = !id.is_empty();
                Ok(missing(&[("id", has_id), ("metadata", metadata.is_some())]))
            },
            maps::CONTAINER,
            &[],
        ),
        List::ContainerStats => (
            |it| {
                let stats = cri::ContainerStats::decode(it)?;
                Ok(of_attributes(stats.attributes.as_ref()))
            },
            maps::CONTAINER_STATS,
            &[],
        ),
        List::PodStats => (
            |it| Ok(of_pod_stats(&cri::PodSandboxStats::decode(it)?)),
            maps::POD_STATS,
            lists::POD_STATS,
        ),
        List::Images => (
            |it| cri::Image::decode(it).map(|_| None),
            maps::IMAGE,
            lists::IMAGE,
        ),
        List::PodMetrics => (
            |it| Ok(of_metrics(&cri::PodSandboxMetrics::decode(it)?)),
            &[],
            lists::POD_METRICS,
        ),
        List::MetricDescriptors => (
            |it| Ok(of_descriptor(&cri::MetricDescriptor::decode(it)?)),
            &[],
            lists::METRIC_DESCRIPTOR,
        ),
    }
}

/// The first field that the attributes of a container's stats lack although the kubelet reads it.
fn of_attributes(attributes: Option<&cri::ContainerAttributes>) -> Option<&'static str> {
    let has_metadata = attributes.is_some_and(|it| it.metadata.is_some());
    missing(&[
        ("attributes", attributes.is_some()),
        ("metadata in its attributes", has_metadata),
    ])
}

/// The field `value`, if a sample lacks it: the kubelet reads the value of each sample.
fn of_metrics(pod: &cri::PodSandboxMetrics) -> Option<&'static str> {
    let of_containers = pod.container_metrics.iter().flat_map(|it| &it.metrics);
    let mut samples = pod.metrics.iter().chain(of_containers);
    missing(&[("value of a metric", samples.all(|it| it.value.is_some()))])
}

/// The first part that this descriptor lacks although the kubelet needs it. The kubelet exits at its start if a name is
/// empty, and has no metrics of any runtime if it cannot register a descriptor.
fn of_descriptor(descriptor: &cri::MetricDescriptor) -> Option<&'static str> {
    let keys = &descriptor.label_keys;
    let unique: HashSet<_> = keys
        .iter()
        .filter(|key| !key.is_empty() && !key.starts_with("__"))
        .collect();
    missing(&[
        ("name", !descriptor.name.is_empty()),
        (
            "label keys that Prometheus accepts",
            unique.len() == keys.len(),
        ),
    ])
}

/// The first field that the stats of a pod or of its containers lack although the kubelet reads it.
fn of_pod_stats(stats: &cri::PodSandboxStats) -> Option<&'static str> {
    let (linux, windows) = (&stats.linux, &stats.windows);
    let on_linux = linux
        .iter()
        .flat_map(|linux| &linux.containers)
        .map(|container| container.attributes.as_ref());
    let on_windows = windows
        .iter()
        .flat_map(|windows| &windows.containers)
        .map(|container| container.attributes.as_ref());
    let mut containers = on_linux.chain(on_windows);
    let are_whole = containers.all(|attributes| of_attributes(attributes).is_none());
    let of_this_system = match OS {
        "windows" => ("windows", windows.is_some()),
        _ => ("linux", linux.is_some()),
    };
    missing(&[
        ("attributes", stats.attributes.is_some()),
        of_this_system,
        ("attributes of a container", are_whole),
    ])
}

fn size_fault(list: List, item: &[u8]) -> Option<String> {
    if list != List::MetricDescriptors {
        return None;
    }
    let keys = protobuf::count(item, &[metric_descriptor::LABEL_KEYS]).unwrap_or_default();
    (keys > MOST_LABEL_KEYS)
        .then(|| format!("has {keys} label keys; the limit is {MOST_LABEL_KEYS}"))
}

/// The fault of the maps and lists at these paths of a message, as the end of a sentence. prost accepts a map field
/// with a wrong wire type, but Go rejects it.
pub(super) fn count_fault(message: &[u8], maps: &[Path], lists: &[Path]) -> Option<String> {
    maps.iter()
        .find_map(|path| match protobuf::count(message, path) {
            Ok(pairs) if pairs <= MOST_PAIRS => None,
            Ok(pairs) => Some(format!(
                "has maps with {pairs} pairs; the limit is {MOST_PAIRS}"
            )),
            Err(fault) => Some(format!("has a map that clients cannot decode: {fault}")),
        })
        .or_else(|| {
            // A malformed list counts as empty here: the decoder reports its fault later.
            let most = lists
                .iter()
                .map(|path| protobuf::count(message, path).unwrap_or_default())
                .max()
                .filter(|count| *count > MOST)?;
            Some(format!("has lists with {most} values; the limit is {MOST}"))
        })
}

/// Why the statuses of containers at `path` are too many, as the end of a sentence. A malformed list counts as empty
/// here.
pub(crate) fn containers_fault(message: &[u8], path: Path) -> Option<String> {
    let count = protobuf::count(message, path).unwrap_or_default();
    (count > MOST_CONTAINERS)
        .then(|| format!("has the statuses of {count} containers; the limit is {MOST_CONTAINERS}"))
}

/// The id of an item, for an error text; empty if it cannot be read.
fn id(list: List, item: &[u8]) -> &str {
    errors::shown(protobuf::string(item, filter::id(list)).unwrap_or_default())
}

/// The first of these fields that is absent.
fn missing(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    let (name, _) = fields.iter().find(|(_, is_there)| !is_there)?;
    Some(name)
}

/// A hash of the items of `message` that does not depend on their order, because containerd lists items in a different
/// order each time. `None` if the list is not valid protobuf.
pub(super) fn print(message: &[u8]) -> Option<u64> {
    protobuf::fields(message).try_fold(0_u64, |print, field| {
        Some(print.wrapping_add(ITEM_HASHER.hash_one(field.ok()?.raw)))
    })
}

/// Whether the bytes are equal.
pub(super) fn is_equal(a: &[u8], b: &[u8]) -> bool {
    if cfg!(target_env = "musl") {
        is_equal_in_blocks(a, b)
    } else {
        a == b
    }
}

/// Compares 16 bytes at once. musl's own function compares byte by byte.
fn is_equal_in_blocks(a: &[u8], b: &[u8]) -> bool {
    let (blocks, rest) = a.as_chunks::<16>();
    let (other_blocks, other_rest) = b.as_chunks::<16>();
    let mut pairs = blocks.iter().zip(other_blocks);
    a.len() == b.len()
        && rest == other_rest
        && pairs.all(|(a, b)| u128::from_ne_bytes(*a) == u128::from_ne_bytes(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_in_blocks_finds_each_difference() {
        let bytes: Vec<u8> = (0..70).collect();
        for len in 0..bytes.len() {
            let (own, mut other) = (&bytes[..len], bytes[..len].to_vec());
            assert!(is_equal_in_blocks(own, &other));
            assert!(!is_equal_in_blocks(own, &bytes[..=len]));
            for at in 0..len {
                other[at] ^= 1;
                assert!(!is_equal_in_blocks(own, &other), "{len}, {at}");
                other[at] ^= 1;
            }
        }
    }
}
