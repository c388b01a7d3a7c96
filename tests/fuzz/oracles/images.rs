//! Merged image lists, compared with the same merge of lists that prost decodes.

use arbitrary::Unstructured;
use criswitch::dispatch::fanout::merge;
use criswitch::gate::Readable;
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::List;
use prost::Message;

use super::messages;

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let mut lists = Vec::new();
    for _ in 0..u.int_in_range(1..=3)? {
        let list = messages::message(u, "ListImagesResponse")?.into();
        lists.extend(Readable::list(List::Images, &list).ok());
    }
    let merged = merge::images(&lists);
    if let Ok(merged) = &merged {
        begins_with_the_first(&lists, merged);
        let again = Readable::list(List::Images, merged).expect("clients can decode it");
        assert_eq!(merge::images(&[again]).as_ref(), Ok(merged));
    }
    let decoded = lists
        .iter()
        .map(|list| messages::decode::<cri::ListImagesResponse>(list));
    if let Some(decoded) = decoded.collect::<Option<Vec<_>>>() {
        let merged = cri::ListImagesResponse::decode(merged.expect("prost can read it"));
        assert_eq!(merged.unwrap().images, slow(decoded));
    }
    Ok(())
}

/// Checks that a merged image begins with the bytes of the first image with its id, so that unknown fields are kept.
fn begins_with_the_first(lists: &[Readable], merged: &[u8]) {
    let images = |list| protobuf::all_bytes(list, &[1]).unwrap();
    let id = |image| protobuf::string(image, &[1]).unwrap();
    let all: Vec<&[u8]> = lists
        .iter()
        .flat_map(|list| images(list.as_ref()))
        .collect();
    for image in images(merged) {
        let first = all.iter().find(|first| id(first) == id(image)).unwrap();
        assert!(image.starts_with(first));
    }
}

fn slow(lists: Vec<cri::ListImagesResponse>) -> Vec<cri::Image> {
    let mut merged: Vec<cri::Image> = Vec::new();
    for image in lists.into_iter().flat_map(|list| list.images) {
        match merged.iter_mut().find(|first| first.id == image.id) {
            None => merged.push(image),
            Some(first) => add(first, image),
        }
    }
    for image in &mut merged {
        // The kubelet reads the size as an `i64`.
        image.size = image.size.min(i64::MAX as u64);
    }
    merged
}

fn add(first: &mut cri::Image, other: cri::Image) {
    unite(&mut first.repo_tags, other.repo_tags);
    unite(&mut first.repo_digests, other.repo_digests);
    first.size = first.size.saturating_add(other.size);
    first.pinned &= other.pinned;
}

fn unite(names: &mut Vec<String>, others: Vec<String>) {
    for name in others {
        if !names.contains(&name) {
            names.push(name);
        }
    }
}
