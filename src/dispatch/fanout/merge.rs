//! Merges encoded replies without decoding whole messages. Does no I/O.
//!
//! The messages are in the order of the call's backends. If two messages differ in a value, the first message's value
//! counts, unless the function says otherwise.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};
use foldhash::fast::RandomState;

use criswitch_cri::codec::protobuf::{self, Malformed, Path};
use criswitch_cri::rpc::features::{self, Feature};
use criswitch_cri::rpc::fields::{ITEMS, LISTED_ID, image, security_profile_info};

use crate::gate::Readable;

/// Concatenates `messages`. If several items have the same string at one of `keys`, keeps only the first of these
/// items. If the first message has no items of a keyed field, drops the items of this field in all messages: clients
/// assume that the first item is from the first message. Keeps every other field unchanged.
///
/// The first number of a key is the repeated field, the rest is the path from an item to the string.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn distinct(messages: &[Readable], keys: &[Path]) -> Result<Bytes, Malformed> {
    let mut seen = HashSet::with_hasher(RandomState::default());
    let mut out = BytesMut::new();
    let mut of_first = Vec::new();
    for (place, message) in messages.iter().enumerate() {
        for field in protobuf::fields(message) {
            let field = field?;
            let key = keys.iter().find_map(|key| match key.split_first() {
                Some((number, rest)) if *number == field.number => Some(rest),
                _ => None,
            });
            if place == 0 && key.is_some() && !of_first.contains(&field.number) {
                of_first.push(field.number);
            }
            let is_first = match key {
                Some(path) => {
                    let key = (field.number, protobuf::string(field.bytes()?, path)?);
                    of_first.contains(&field.number) && seen.insert(key)
                }
                None => true,
            };
            if is_first {
                out.put_slice(field.raw);
            }
        }
    }
    Ok(out.freeze())
}

/// The largest size of a merged image. The kubelet reads a larger size as a negative one, and would then remove all
/// unused images to free space.
const LARGEST_IMAGE: u64 = i64::MAX as u64;

/// Merges image lists so that each id occurs once. The merged image has the tags and digests of all its copies. Its
/// size is the sum of the sizes of its copies, because the kubelet removes all of them; it is at most `LARGEST_IMAGE`.
/// The image is pinned only if all copies are pinned: otherwise a pin in one store would keep the image in the other
/// stores.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn images(messages: &[Readable]) -> Result<Bytes, Malformed> {
    const IMAGES: Copies = Copies {
        names: &[image::REPO_TAGS, image::REPO_DIGESTS],
        size: image::SIZE,
        pinned: Some(image::PINNED),
    };
    IMAGES.merged(messages)
}

/// Merges lists of security profiles like [`images`]: each digest occurs once, with the references of all its copies.
///
/// # Errors
/// If a message is not valid protobuf.
pub fn profiles(messages: &[Readable]) -> Result<Bytes, Malformed> {
    const PROFILES: Copies = Copies {
        names: &[security_profile_info::REFS],
        size: security_profile_info::SIZE,
        pinned: None,
    };
    PROFILES.merged(messages)
}

/// The fields of items that several stores may have.
struct Copies {
    /// The names of the item. The merged item has those of all copies.
    names: &'static [u32],
    /// The size in bytes. The merged item has the sum.
    size: u32,
    /// Whether the item is pinned. The merged item is pinned if all copies are.
    pinned: Option<u32>,
}

impl Copies {
    fn merged(&self, messages: &[Readable]) -> Result<Bytes, Malformed> {
        // The first copy of each item, and its further copies. Most items have no further copies, and an empty `Vec`
        // allocates nothing.
        let mut items: Vec<(&[u8], Vec<&[u8]>)> = Vec::new();
        let mut places = HashMap::with_hasher(RandomState::default());
        for field in messages
            .iter()
            .flat_map(|message| protobuf::fields(message))
        {
            let field = field?;
            if field.number != ITEMS {
                continue;
            }
            let item = field.bytes()?;
            let id = protobuf::string(item, LISTED_ID)?;
            let place = *places.entry(id).or_insert(items.len());
            match items.get_mut(place) {
                Some((_, others)) => others.push(item),
                None => items.push((item, Vec::new())),
            }
        }
        let mut out = BytesMut::new();
        for (first, others) in items {
            if others.is_empty() && protobuf::varint(first, &[self.size])? <= LARGEST_IMAGE {
                protobuf::put_bytes(&mut out, ITEMS, first);
            } else {
                protobuf::put_bytes(&mut out, ITEMS, &self.one(first, &others)?);
            }
        }
        Ok(out.freeze())
    }

    /// Merges the copies of one item: the first copy's bytes, then the names that only other copies have, then the
    /// merged size and `pinned`. The merged values come last, because in protobuf a later value of a singular field
    /// replaces an earlier one.
    fn one(&self, first: &[u8], others: &[&[u8]]) -> Result<Bytes, Malformed> {
        let mut out = BytesMut::from(first);
        let copies = [&[first], others].concat();
        let mut names = HashSet::with_hasher(RandomState::default());
        for (at, copy) in copies.iter().enumerate() {
            for field in protobuf::fields(copy) {
                let field = field?;
                let new = self.names.contains(&field.number)
                    && names.insert((field.number, field.bytes()?));
                if new && at > 0 {
                    out.put_slice(field.raw);
                }
            }
        }
        let (mut size, mut is_pinned) = (0_u64, true);
        for copy in copies {
            size = size.saturating_add(protobuf::varint(copy, &[self.size])?);
            if let Some(pinned) = self.pinned {
                is_pinned &= protobuf::varint(copy, &[pinned])? != 0;
            }
        }
        protobuf::put_varint(&mut out, self.size, size.min(LARGEST_IMAGE));
        if let Some(pinned) = self.pinned {
            protobuf::put_varint(&mut out, pinned, is_pinned.into());
        }
        Ok(out.freeze())
    }
}

/// Cuts the list `list` into lists of at most `most` bytes, or of one item. They share the memory of `list`.
pub fn pieces(list: &Bytes, most: usize) -> Vec<Bytes> {
    let (mut pieces, mut start, mut end) = (Vec::new(), 0, 0);
    for item in protobuf::fields(list).flatten() {
        let next = end + item.raw.len();
        if next - start > most && end > start {
            pieces.push(list.slice(start..end));
            start = end;
        }
        end = next;
    }
    if end > start {
        pieces.push(list.slice(start..end));
    }
    pieces
}

/// Returns a `RuntimeFeatures` with the features that are true in each message of `all`.
///
/// All fields of `RuntimeFeatures` are bools (cri-api v0.38.0-beta.0). A field that this build does not know is merged
/// like a bool, and dropped if its wire type differs from a bool's. A feature of `known` that stands for RPCs is
/// dropped unless criswitch serves these RPCs.
///
/// # Errors
/// If one of `all` is not valid protobuf.
pub fn common_features(all: &[Bytes], known: &[Feature]) -> Result<Bytes, Malformed> {
    let mut out = BytesMut::new();
    let Some(first) = all.first() else {
        return Ok(Bytes::new());
    };
    let mut numbers: Vec<u32> = protobuf::fields(first)
        .map(|field| Ok(field?.number))
        .collect::<Result<_, Malformed>>()?;
    numbers.retain(|number| {
        known
            .iter()
            .find(|it| it.number == *number)
            .is_none_or(Feature::is_served)
    });
    numbers.sort_unstable();
    numbers.dedup();
    for number in numbers {
        let is_common = all.iter().try_fold(true, |is_common, one| {
            Ok(is_common && features::is_true(one, number)?)
        })?;
        if is_common {
            protobuf::put_varint(&mut out, number, 1);
        }
    }
    Ok(out.freeze())
}
