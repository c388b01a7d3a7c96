//! Merges encoded replies without decoding whole messages. Does no I/O.
//!
//! The messages are in the order of the call's backends. If two messages differ in a value, the first message's value
//! counts, unless the function says otherwise.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};
use foldhash::fast::RandomState;

use criswitch_cri::codec::protobuf::{self, Malformed, Path};
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID, image};

/// Concatenates `messages`. If several items have the same string at one of `keys`, keeps only the first of these
/// items. Drops all items of a keyed field that the first message lacks: otherwise the first item would not be the first
/// message's. Keeps every other field unchanged.
///
/// The first number of a key is the repeated field, the rest is the path from an item to the string.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn distinct(messages: &[Bytes], keys: &[Path]) -> Result<Bytes, Malformed> {
    let mut seen = HashSet::with_hasher(RandomState::default());
    let mut out = BytesMut::new();
    let mut of_first = Vec::new();
    let messages = messages.iter().enumerate();
    for (place, field) in messages
        .flat_map(|(place, message)| protobuf::fields(message).map(move |field| (place, field)))
    {
        let field = field?;
        if place == 0 && !of_first.contains(&field.number) {
            of_first.push(field.number);
        }
        let key = keys.iter().find_map(|key| match key.split_first() {
            Some((number, rest)) if *number == field.number => Some(rest),
            _ => None,
        });
        let first = match key {
            Some(path) => {
                let key = (field.number, protobuf::string(field.bytes()?, path)?);
                of_first.contains(&field.number) && seen.insert(key)
            }
            None => true,
        };
        if first {
            out.put_slice(field.raw);
        }
    }
    Ok(out.freeze())
}

/// The largest size of a merged image. The kubelet reads a larger size as a negative one, and would then remove all
/// unused images to free space.
const LARGEST_IMAGE: u64 = i64::MAX as u64;

/// Merges image lists so that each id occurs once. The merged image has the tags and digests of all its copies. Its size
/// is the sum of the sizes of its copies, because the kubelet removes all of them; it is at most `LARGEST_IMAGE`. The
/// image is pinned only if all copies are pinned: otherwise one store could keep the image in the other stores.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn images(messages: &[Bytes]) -> Result<Bytes, Malformed> {
    // The first copy of each image, and its further copies. Most images have none, and an empty `Vec` is no allocation.
    let mut images: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
    let mut places = HashMap::with_hasher(RandomState::default());
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
        let place = *places.entry(id).or_insert(images.len());
        match images.get_mut(place) {
            Some((_, others)) => others.push(image),
            None => images.push((image, Vec::new())),
        }
    }
    let mut out = BytesMut::new();
    for (first, others) in images {
        let is_as_listed =
            others.is_empty() && protobuf::varint(first, &[image::SIZE])? <= LARGEST_IMAGE;
        match is_as_listed {
            true => protobuf::put_bytes(&mut out, ITEMS, first),
            false => protobuf::put_bytes(&mut out, ITEMS, &one_image(first, &others)?),
        }
    }
    Ok(out.freeze())
}

/// Merges the copies of one image: the first copy's bytes, then the tags and digests that only other copies have, then
/// the merged size and `pinned`. The merged values come last, because in protobuf a later value of a singular field
/// replaces an earlier one.
fn one_image(first: &[u8], others: &[&[u8]]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::from(first);
    let images = [&[first], others].concat();
    let mut names = HashSet::with_hasher(RandomState::default());
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
    let (mut size, mut is_pinned) = (0_u64, true);
    for image in images {
        size = size.saturating_add(protobuf::varint(image, &[image::SIZE])?);
        is_pinned &= protobuf::varint(image, &[image::PINNED])? != 0;
    }
    protobuf::put_varint(&mut out, image::SIZE, size.min(LARGEST_IMAGE));
    protobuf::put_varint(&mut out, image::PINNED, is_pinned.into());
    Ok(out.freeze())
}

/// Returns a `RuntimeFeatures` with the features that are true in all of `features`.
///
/// All fields of `RuntimeFeatures` are bools (cri-api 1.37). A field that this build does not know is merged like a
/// bool, and dropped if its wire type differs from a bool's.
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
