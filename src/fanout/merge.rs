//! Merges encoded replies without decoding them: pure, no I/O.
//!
//! Messages come in the table's order of backends. The first message wins where messages differ.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};

use crate::codec::protobuf::{self, Malformed, Path};
use crate::rpc::fields::{ITEMS, LISTED_ID, image};

/// Keeps the first of the items that have the same string at one of `keys`, and every other field as it comes.
///
/// The first number of a key is the repeated field, the rest is the path from an item to the string.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn distinct(messages: &[Bytes], keys: &[Path]) -> Result<Bytes, Malformed> {
    let mut seen = HashSet::new();
    let mut out = BytesMut::new();
    for field in messages
        .iter()
        .flat_map(|message| protobuf::fields(message))
    {
        let field = field?;
        let key = keys.iter().find_map(|key| match key.split_first() {
            Some((number, rest)) if *number == field.number => Some(rest),
            _ => None,
        });
        let first = match key {
            Some(path) => seen.insert((field.number, protobuf::string(field.bytes()?, path)?)),
            None => true,
        };
        if first {
            out.put_slice(field.raw);
        }
    }
    Ok(out.freeze())
}

/// Merges image lists so that each id occurs once: with all tags and digests, pinned if any copy is, the largest size.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn images(messages: &[Bytes]) -> Result<Bytes, Malformed> {
    let mut order = Vec::new();
    let mut same: HashMap<&str, Vec<&[u8]>> = HashMap::new();
    for field in messages
        .iter()
        .flat_map(|message| protobuf::fields(message))
    {
        let field = field?;
        if field.number != ITEMS {
            continue;
        }
        let image = field.bytes()?;
        let id = protobuf::string(image, LISTED_ID)?;
        same.entry(id).or_insert_with(|| {
            order.push(id);
            Vec::new()
        });
        if let Some(images) = same.get_mut(id) {
            images.push(image);
        }
    }
    let mut out = BytesMut::new();
    for images in order.iter().filter_map(|id| same.get(id)) {
        protobuf::put_bytes(&mut out, ITEMS, &one_image(images)?);
    }
    Ok(out.freeze())
}

/// The first image's bytes, then the additions of the others. Repeated fields grow; the last singular value counts.
fn one_image(images: &[&[u8]]) -> Result<Bytes, Malformed> {
    let Some((first, others)) = images.split_first() else {
        return Ok(Bytes::new());
    };
    let mut out = BytesMut::from(*first);
    if others.is_empty() {
        return Ok(out.freeze());
    }
    let mut names = HashSet::new();
    for (at, image) in images.iter().enumerate() {
        for field in protobuf::fields(image) {
            let field = field?;
            let new = matches!(field.number, image::REPO_TAGS | image::REPO_DIGESTS)
                && names.insert((field.number, field.bytes()?));
            if new && at > 0 {
                out.put_slice(field.raw);
            }
        }
    }
    protobuf::put_varint(&mut out, image::SIZE, largest(images, image::SIZE)?);
    protobuf::put_varint(&mut out, image::PINNED, largest(images, image::PINNED)?);
    Ok(out.freeze())
}

fn largest(images: &[&[u8]], number: u32) -> Result<u64, Malformed> {
    images.iter().try_fold(0, |largest, image| {
        Ok(protobuf::varint(image, &[number])?.max(largest))
    })
}

/// `RuntimeFeatures` with the features that are true in all of `features`.
///
/// All its fields are bools (cri-api 1.37). A field that this build does not know is merged the same way, and dropped
/// if it is no bool.
///
/// # Errors
/// If one of `features` is not valid protobuf.
pub fn common_features(features: &[Bytes]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::new();
    let Some(first) = features.first() else {
        return Ok(Bytes::new());
    };
    let mut numbers: Vec<u32> = protobuf::fields(first)
        .map(|field| Ok(field?.number))
        .collect::<Result<_, Malformed>>()?;
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let all = features
            .iter()
            .try_fold(true, |all, one| Ok(all && is_true(one, number)?))?;
        if all {
            protobuf::put_varint(&mut out, number, 1);
        }
    }
    Ok(out.freeze())
}

fn is_true(features: &[u8], number: u32) -> Result<bool, Malformed> {
    match protobuf::varint(features, &[number]) {
        Err(Malformed::Type(_)) => Ok(false),
        value => Ok(value? != 0),
    }
}
