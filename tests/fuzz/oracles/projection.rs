//! Reads one field with prost. prost decodes the bytes as a message that has only this field, and merges the
//! occurrences if the field is repeated.

use bytes::Buf;
use prost::encoding::{self, DecodeContext, WireType, message, skip_field};
use prost::{DecodeError, Message};

/// A type of values that prost can read from a field.
pub trait Leaf: Default + std::fmt::Debug + Send + Sync {
    fn merge(
        &mut self,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError>;
}

macro_rules! leaf {
    ($type:ty, $merge:path) => {
        impl Leaf for $type {
            fn merge(
                &mut self,
                wire_type: WireType,
                buf: &mut impl Buf,
                ctx: DecodeContext,
            ) -> Result<(), DecodeError> {
                $merge(wire_type, self, buf, ctx)
            }
        }
    };
}

leaf!(String, encoding::string::merge);
leaf!(u64, encoding::uint64::merge);
leaf!(Vec<u8>, encoding::bytes::merge);
leaf!(Vec<String>, encoding::string::merge_repeated);
leaf!(Vec<Vec<u8>>, encoding::bytes::merge_repeated);

/// A message with only one field: the leaf at `path`, which may be inside of nested messages.
#[derive(Debug)]
struct Along<'p, L> {
    path: &'p [u32],
    leaf: L,
}

impl<L: Leaf> Message for Along<'_, L> {
    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match self.path {
            [number] if *number == tag => self.leaf.merge(wire_type, buf, ctx),
            [number, rest @ ..] if *number == tag => {
                let leaf = std::mem::take(&mut self.leaf);
                let mut inner = Along { path: rest, leaf };
                let merged = message::merge(wire_type, &mut inner, buf, ctx);
                self.leaf = inner.leaf;
                merged
            }
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encode_raw(&self, _: &mut impl bytes::BufMut) {
        unreachable!("only read")
    }

    fn encoded_len(&self) -> usize {
        unreachable!("only read")
    }

    fn clear(&mut self) {
        self.leaf = L::default();
    }
}

/// Bytes that prost cannot read.
#[derive(Debug, PartialEq, Eq)]
pub struct Unreadable;

/// The field at `path`, as prost reads it.
///
/// prost and criswitch limit the depth of nested groups, but prost counts from the outermost message, and criswitch
/// from the message with the groups. `None` means that prost has reached its limit. criswitch may then read the field
/// or fail.
pub fn read<L: Leaf>(message: &[u8], path: &[u32]) -> Option<Result<L, Unreadable>> {
    let leaf = L::default();
    let mut along = Along { path, leaf };
    match along.merge(message) {
        Ok(()) => Some(Ok(along.leaf)),
        Err(error) if error.to_string().contains("recursion limit") => None,
        Err(_) => Some(Err(Unreadable)),
    }
}

/// The value of `key` in the map at `path`. The values of other keys are not read.
pub fn entry(
    message: &[u8],
    path: &[u32],
    key: &str,
) -> Option<Result<Option<String>, Unreadable>> {
    let mut found = None;
    let pairs: Vec<Vec<u8>> = match read(message, path)? {
        Ok(pairs) => pairs,
        Err(unreadable) => return Some(Err(unreadable)),
    };
    for pair in pairs {
        match read::<Vec<u8>>(&pair, &[1])? {
            Ok(theirs) if theirs == key.as_bytes() => match read(&pair, &[2])? {
                Ok(value) => found = Some(value),
                Err(unreadable) => return Some(Err(unreadable)),
            },
            Ok(_) => {}
            Err(unreadable) => return Some(Err(unreadable)),
        }
    }
    Some(Ok(found))
}
