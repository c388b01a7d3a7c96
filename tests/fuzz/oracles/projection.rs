//! prost's reading of one field: a message that has that field and no other, with prost's own merging.

use bytes::Buf;
use prost::encoding::{self, DecodeContext, WireType, message, skip_field};
use prost::{DecodeError, Message};

/// What a field holds.
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

/// The messages on the way to a field.
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
/// prost counts groups from the outermost message, the switch from the one that they are in, so a field behind a
/// hundred groups is `None`: each may say of it what it likes.
pub fn read<L: Leaf>(message: &[u8], path: &[u32]) -> Option<Result<L, Unreadable>> {
    let leaf = L::default();
    let mut along = Along { path, leaf };
    match along.merge(message) {
        Ok(()) => Some(Ok(along.leaf)),
        Err(error) if error.to_string().contains("recursion limit") => None,
        Err(_) => Some(Err(Unreadable)),
    }
}

/// The value under `key` in the map at `path`; the other entries' values are not looked at.
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
