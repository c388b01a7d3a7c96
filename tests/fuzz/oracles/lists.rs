//! Merged lists, and the owners that criswitch learns from lists, both compared with the results for lists that prost
//! decodes.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;

use arbitrary::Unstructured;
use bytes::Bytes;
use criswitch::dispatch::fanout::merge;
use criswitch::gate::Readable;
use criswitch::ownership::Owners;
use criswitch::switch::labels::union;
use criswitch_config::{BackendId, BackendIds};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{self, Join, Kind, List, Merge};
use prost::Message;

use super::messages;

const LISTS: &[&str] = &[
    "ListPodSandboxResponse",
    "ListContainersResponse",
    "ListMetricDescriptorsResponse",
    "ImageFsInfoResponse",
];

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let name = *u.choose(LISTS)?;
    let mut lists = Vec::new();
    for _ in 0..u.int_in_range(1..=3)? {
        lists.push(Bytes::from(messages::message(u, name)?));
    }
    match name {
        "ListPodSandboxResponse" => {
            let ids = |list: &[u8]| {
                let list = messages::decode::<cri::ListPodSandboxResponse>(list)?;
                Some(list.items.into_iter().map(|pod| pod.id).collect())
            };
            learns(Kind::Pod, &lists, ids);
            concatenates(&lists, |whole: &mut cri::ListPodSandboxResponse, part| {
                whole.items.extend(part.items);
            });
        }
        "ListContainersResponse" => {
            let ids = |list: &[u8]| {
                let list = messages::decode::<cri::ListContainersResponse>(list)?;
                Some(list.containers.into_iter().map(|pod| pod.id).collect())
            };
            learns(Kind::Container, &lists, ids);
            concatenates(&lists, |whole: &mut cri::ListContainersResponse, part| {
                whole.containers.extend(part.containers);
            });
        }
        "ListMetricDescriptorsResponse" => descriptors(&lists),
        _ => distinct(&lists, "ImageFsInfo", filesystems),
    }
    Ok(())
}

/// Checks that criswitch learns an owner for each id that prost finds in the lists: the first backend that lists the
/// id.
fn learns(kind: Kind, lists: &[Bytes], ids: impl Fn(&[u8]) -> Option<Vec<String>>) {
    let mut owners = Owners::default();
    let mut known: BTreeMap<String, BackendId> = BTreeMap::new();
    let mut backends = BackendIds::default();
    for list in lists {
        let backend = backends.issue();
        let learned = owners.learn(kind, backend, list, owners.mark());
        let Some(ids) = ids(list) else {
            // criswitch may learn a list that prost rejects: the fault may be in a field that criswitch does not read.
            return;
        };
        let mut own = Vec::new();
        for id in ids {
            let is_new = !known.contains_key(&id);
            if *known.entry(id.clone()).or_insert(backend) == backend
                && (is_new || !own.contains(&id))
            {
                own.push(id);
            }
        }
        learned.unwrap();
        let shown = owners
            .without_foreign_items(kind, backend, list, owners.mark())
            .unwrap()
            .unwrap_or_else(|| list.clone());
        assert_eq!(self::ids(&shown), own);
    }
    for (id, wanted) in &known {
        assert_eq!(owners.find(kind, id), Some(*wanted), "{id}");
    }
    assert_eq!(owners.with_prefix(kind, "").len(), known.len());
}

fn ids(list: &[u8]) -> Vec<&str> {
    let items = protobuf::all_bytes(list, &[1]).unwrap().into_iter();
    items
        .map(|item| protobuf::string(item, &[1]).unwrap())
        .collect()
}

fn concatenates<M: Message + Default + PartialEq + Debug>(
    lists: &[Bytes],
    add: impl Fn(&mut M, M),
) {
    let mut wanted = M::default();
    for list in lists {
        match messages::decode(list) {
            Some(part) => add(&mut wanted, part),
            None => return,
        }
    }
    assert_eq!(M::decode(lists.concat().as_slice()).as_ref(), Ok(&wanted));
}

/// The lists that the gate accepts.
fn readable(lists: &[Bytes], read: impl Fn(&Bytes) -> Result<Readable, String>) -> Vec<Readable> {
    lists.iter().filter_map(|list| read(list).ok()).collect()
}

/// Compares the merged list with the result of `slow`, which merges decoded lists. `slow` returns `None` if prost
/// cannot read the lists.
fn distinct(lists: &[Bytes], rpc: &str, slow: impl Fn(&[Bytes]) -> Option<Bytes>) {
    let row = rpc::ROWS.iter().find(|row| row.name == rpc).unwrap();
    let Some(Join::Distinct(keys)) = row.merge().and_then(Merge::items).map(|items| &items.join)
    else {
        panic!("{rpc} is not joined by Join::Distinct");
    };
    let lists = readable(lists, Readable::disks);
    let merged = merge::distinct(&lists, keys);
    let lists: Vec<_> = lists.into_iter().map(Bytes::from).collect();
    if let Ok(merged) = &merged {
        keeps_order(&lists, merged);
    }
    let Some(wanted) = slow(&lists) else {
        return;
    };
    let merged = merged.expect("prost can read it");
    assert_eq!(slow(&[merged]), Some(wanted));
}

/// Checks that every field of the result is an unchanged field of the lists, and that the order is the same.
pub fn keeps_order(lists: &[Bytes], merged: &[u8]) {
    let mut all = lists.iter().flat_map(|list| protobuf::fields(list));
    for field in protobuf::fields(merged) {
        let field = field.unwrap();
        assert!(all.any(|theirs| theirs.unwrap().raw == field.raw));
    }
}

fn decoded<M: Message + Default>(lists: &[Bytes]) -> Option<Vec<M>> {
    lists.iter().map(|list| messages::decode(list)).collect()
}

/// Compares the merged descriptors with those that are merged after prost has decoded them.
fn descriptors(lists: &[Bytes]) {
    let lists = readable(lists, |list| Readable::list(List::MetricDescriptors, list));
    let merged = union(&lists);
    let lists: Vec<_> = lists.into_iter().map(Bytes::from).collect();
    let Some(lists) = decoded::<cri::ListMetricDescriptorsResponse>(&lists) else {
        return;
    };
    let mut wanted: Vec<cri::MetricDescriptor> = Vec::new();
    for descriptor in lists.into_iter().flat_map(|list| list.descriptors) {
        match wanted.iter_mut().find(|it| it.name == descriptor.name) {
            Some(first) => {
                for key in descriptor.label_keys {
                    if !first.label_keys.contains(&key) {
                        first.label_keys.push(key);
                    }
                }
            }
            None => wanted.push(descriptor),
        }
    }
    let merged = cri::ListMetricDescriptorsResponse::decode(merged.expect("prost can read it"));
    assert_eq!(merged.unwrap().descriptors, wanted);
}

fn filesystems(lists: &[Bytes]) -> Option<Bytes> {
    let lists: Vec<cri::ImageFsInfoResponse> = decoded(lists)?;
    let mut lists = lists.into_iter();
    let mut merged = lists.next().unwrap_or_default();
    for list in lists {
        // The first entry must be one of the first list.
        if !merged.image_filesystems.is_empty() {
            merged.image_filesystems.extend(list.image_filesystems);
        }
        if !merged.container_filesystems.is_empty() {
            let containers = list.container_filesystems;
            merged.container_filesystems.extend(containers);
        }
    }
    for filesystems in [
        &mut merged.image_filesystems,
        &mut merged.container_filesystems,
    ] {
        let mut seen = HashSet::new();
        let mountpoint = |usage: &cri::FilesystemUsage| {
            usage
                .fs_id
                .as_ref()
                .map_or(String::new(), |id| id.mountpoint.clone())
        };
        filesystems.retain(|usage| seen.insert(mountpoint(usage)));
    }
    Some(merged.encode_to_vec().into())
}
