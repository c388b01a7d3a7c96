//! Reads and replaces single fields of encoded protobuf without decoding the rest of the message.
//!
//! This module does no I/O, and never panics whatever the bytes are. It follows the rules of protobuf: the last value
//! of a singular field counts, and several occurrences of a submessage are merged.

use std::borrow::Cow;
use std::ops::Deref;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};

/// The wire type of strings, bytes and submessages, in the low three bits of a field's key.
const LENGTH_DELIMITED: u8 = 2;
/// The field number of the key in a map entry.
pub const MAP_KEY: u32 = 1;
/// The field number of the value in a map entry.
pub const MAP_VALUE: u32 = 2;

/// Field numbers from the outermost message to a field: `[1, 19]` is field 19 of the message in field 1.
pub type Path = &'static [u32];

/// Why bytes cannot be decoded as a protobuf message, or why a field of the message cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The encoding breaks off or has an invalid tag.
    #[error("not a protobuf message")]
    Encoding,
    /// The wire type of this field differs from the CRI's.
    #[error("field {0} has the wrong type")]
    Type(u32),
    /// The string in this field is not UTF-8.
    #[error("field {0} is not UTF-8")]
    Utf8(u32),
}

/// The value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// An integer, a bool or an enum.
    Varint(u64),
    /// A string, bytes or a submessage.
    Bytes(&'a [u8]),
    /// A value of a wire type that criswitch never reads: a fixed-width number or a group. It is skipped.
    Other,
}

/// A field as encoded in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The field number.
    pub number: u32,
    /// The value.
    pub value: Value<'a>,
    /// The tag and value, as encoded.
    pub raw: &'a [u8],
}

impl<'a> Field<'a> {
    /// The bytes of a string, bytes or submessage field.
    ///
    /// # Errors
    /// [`Malformed::Type`] for any other type.
    pub fn bytes(&self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            _ => Err(Malformed::Type(self.number)),
        }
    }

    /// The text of a string field.
    ///
    /// # Errors
    /// [`Malformed::Type`] for any other type, [`Malformed::Utf8`] for text that is not UTF-8.
    pub fn str(&self) -> Result<&'a str, Malformed> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Malformed::Utf8(self.number))
    }

    fn varint(&self) -> Result<u64, Malformed> {
        match self.value {
            Value::Varint(value) => Ok(value),
            _ => Err(Malformed::Type(self.number)),
        }
    }
}

/// The fields of a message in the order of their bytes. The iterator ends after the first error.
pub struct Fields<'a> {
    rest: &'a [u8],
}

/// Iterates over the fields of `message` without entering submessages.
pub fn fields(message: &[u8]) -> Fields<'_> {
    Fields { rest: message }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = take(&mut self.rest, |_| true).transpose();
        if matches!(field, Some(Err(_))) {
            self.rest = &[];
        }
        field
    }
}

/// Reads the next field and removes it from `rest`. `None` if the number of the field is not `wanted`. Skipping must be
/// fast, because most fields of long lists are skipped.
#[inline(always)]
fn take<'a>(
    rest: &mut &'a [u8],
    wanted: impl Fn(u32) -> bool,
) -> Result<Option<Field<'a>>, Malformed> {
    let all = *rest;
    let (number, value) = match *all {
        // Nearly all fields of a list are strings and submessages with a one-byte key and a one-byte length.
        [key @ 8..0x80, length @ ..0x80, ref after @ ..] if key & 7 == LENGTH_DELIMITED => {
            let (bytes, after) = after
                .split_at_checked(length.into())
                .ok_or(Malformed::Encoding)?;
            *rest = after;
            (u32::from(key >> 3), Value::Bytes(bytes))
        }
        _ => take_any(rest)?,
    };
    if !wanted(number) {
        return Ok(None);
    }
    let raw = all.get(..all.len() - rest.len());
    Ok(Some(Field {
        number,
        value,
        raw: raw.ok_or(Malformed::Encoding)?,
    }))
}

/// Reads a field with a key and a length of any size.
fn take_any<'a>(rest: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let (number, wire_type) = decode_key(rest).map_err(|_| Malformed::Encoding)?;
    let value = match wire_type {
        WireType::Varint => Value::Varint(decode_varint(rest).map_err(|_| Malformed::Encoding)?),
        WireType::LengthDelimited => {
            let length = decode_varint(rest).map_err(|_| Malformed::Encoding)?;
            let length = usize::try_from(length).ok();
            let (bytes, after) = length
                .and_then(|length| rest.split_at_checked(length))
                .ok_or(Malformed::Encoding)?;
            *rest = after;
            Value::Bytes(bytes)
        }
        other => {
            skip_field(other, number, rest, DecodeContext::default())
                .map_err(|_| Malformed::Encoding)?;
            Value::Other
        }
    };
    Ok((number, value))
}

/// The string at `path`; empty if absent, as in proto3.
///
/// # Errors
/// If `message` or a submessage on the path is not protobuf, or if the field is not a UTF-8 string.
pub fn string<'a>(message: &'a [u8], path: &[u32]) -> Result<&'a str, Malformed> {
    Ok(last(message, path, Field::str)?.unwrap_or_default())
}

/// The integer at `path`; 0 if absent, as in proto3.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn varint(message: &[u8], path: &[u32]) -> Result<u64, Malformed> {
    Ok(last(message, path, Field::varint)?.unwrap_or_default())
}

/// The value under `key` in the `map<string, string>` at `path`.
///
/// # Errors
/// If `message` or any entry of the map is malformed; see [`string`].
pub fn entry<'a>(message: &'a [u8], path: &[u32], key: &str) -> Result<Option<&'a str>, Malformed> {
    let mut found = None;
    each(message, path, &mut |field| {
        let pair = field.bytes()?;
        if bytes(pair, &[MAP_KEY])? == key.as_bytes() {
            found = Some(string(pair, &[MAP_VALUE])?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// The last bytes value at `path`; empty if absent. To read a submessage, use [`submessage`], which merges several
/// parts.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn bytes<'a>(message: &'a [u8], path: &[u32]) -> Result<&'a [u8], Malformed> {
    Ok(last(message, path, Field::bytes)?.unwrap_or_default())
}

/// The submessage at `path`; empty if absent. Several parts are concatenated, which merges them by protobuf's rules.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn submessage<'a>(message: &'a [u8], path: &[u32]) -> Result<Cow<'a, [u8]>, Malformed> {
    // Joined as they come: a list of many empty parts would take far more memory than the message.
    let mut whole: Option<Cow<'a, [u8]>> = None;
    each(message, path, &mut |field| {
        let part = field.bytes()?;
        match &mut whole {
            None => whole = Some(Cow::Borrowed(part)),
            Some(whole) => whole.to_mut().extend_from_slice(part),
        }
        Ok(())
    })?;
    Ok(whole.unwrap_or_default())
}

/// All strings at `path`, for a path with repeated fields.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn strings<'a>(message: &'a [u8], path: &[u32]) -> Result<Vec<&'a str>, Malformed> {
    all(message, path, Field::str)
}

/// All submessages at `path`.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn all_bytes<'a>(message: &'a [u8], path: &[u32]) -> Result<Vec<&'a [u8]>, Malformed> {
    all(message, path, Field::bytes)
}

/// The number of submessages or strings at `path`. Allocates nothing.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn count(message: &[u8], path: &[u32]) -> Result<usize, Malformed> {
    let mut count = 0;
    each(message, path, &mut |field| {
        count += 1;
        field.bytes().map(drop)
    })?;
    Ok(count)
}

/// The first submessages at `path`, at most `most`.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn first_bytes<'a>(
    message: &'a [u8],
    path: &[u32],
    most: usize,
) -> Result<Vec<&'a [u8]>, Malformed> {
    let mut found = Vec::new();
    each(message, path, &mut |field| {
        if found.len() < most {
            found.push(field.bytes()?);
        }
        Ok(())
    })?;
    Ok(found)
}

/// Whether `message` has a field with this number, of any type.
///
/// # Errors
/// If `message` is malformed; see [`string`].
pub fn has(message: &[u8], number: u32) -> Result<bool, Malformed> {
    Ok(last(message, &[number], |_| Ok(()))?.is_some())
}

/// Applies `read` to each field at `path` and returns the last result.
fn last<'a, T>(
    message: &'a [u8],
    path: &[u32],
    read: impl Fn(&Field<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    let mut found = None;
    each(message, path, &mut |field| {
        found = Some(read(&field)?);
        Ok(())
    })?;
    Ok(found)
}

/// Applies `read` to each field at `path` and returns all results.
fn all<'a, T>(
    message: &'a [u8],
    path: &[u32],
    read: impl Fn(&Field<'a>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let mut found = Vec::new();
    each(message, path, &mut |field| {
        found.push(read(&field)?);
        Ok(())
    })?;
    Ok(found)
}

/// Visits all occurrences of the field at `path` in the order of their bytes.
fn each<'a>(
    message: &'a [u8],
    path: &[u32],
    visit: &mut impl FnMut(Field<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let Some((first, rest)) = path.split_first() else {
        return Ok(());
    };
    let mut left = message;
    while !left.is_empty() {
        match take(&mut left, |number| number == *first)? {
            None => {}
            Some(field) if rest.is_empty() => visit(field)?,
            Some(field) => each(field.bytes()?, rest, visit)?,
        }
    }
    Ok(())
}

/// Appends a bytes, string or submessage field.
pub fn put_bytes(out: &mut BytesMut, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.put_slice(value);
}

/// Appends an integer or bool field.
pub fn put_varint(out: &mut BytesMut, number: u32, value: u64) {
    encode_key(number, WireType::Varint, out);
    encode_varint(value, out);
}

/// `message` with the singular string at `path` set to `value`. The new string is appended and the old one stays,
/// because the last value of a field counts and submessages are merged.
pub fn with_string(message: &[u8], path: &[u32], value: &str) -> Bytes {
    let mut out = BytesMut::from(message);
    append_at(&mut out, path, value.as_bytes());
    out.freeze()
}

fn append_at(out: &mut BytesMut, path: &[u32], value: &[u8]) {
    match path {
        [] => {}
        [number] => put_bytes(out, *number, value),
        [number, rest @ ..] => {
            let mut inner = BytesMut::new();
            append_at(&mut inner, rest, value);
            put_bytes(out, *number, &inner);
        }
    }
}

/// A message that can be edited. Clients that can decode the message can decode the edited message.
pub trait Editable: AsRef<[u8]> + Sized {
    /// The message with the bytes that result from an edit. Only this module calls this function.
    #[must_use]
    fn with(&self, edited: EditedMessage) -> Self;
}

/// The bytes of a whole message after an edit. Only this module creates values of this type.
#[derive(Debug)]
pub struct EditedMessage(Bytes);

impl From<EditedMessage> for Bytes {
    fn from(whole: EditedMessage) -> Bytes {
        whole.0
    }
}

impl Editable for Bytes {
    fn with(&self, edited: EditedMessage) -> Bytes {
        edited.into()
    }
}

/// A submessage or a string after an edit that drops submessages or sets strings and numbers, so every client can still
/// decode it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edited(Bytes);

impl Edited {
    /// The new value of a string field.
    pub fn of_string(value: &str) -> Edited {
        Edited(Bytes::copy_from_slice(value.as_bytes()))
    }

    /// `message` with this string; see [`with_string`].
    pub fn with_string(message: &[u8], path: &[u32], value: &str) -> Edited {
        Edited(with_string(message, path, value))
    }

    /// `message` with this value of an integer, bool or enum field at its end. The old value stays, because readers of
    /// protobuf use the last value of a field.
    pub fn with_varint(message: &[u8], number: u32, value: u64) -> Edited {
        let mut out = BytesMut::from(message);
        put_varint(&mut out, number, value);
        Edited(out.freeze())
    }

    /// `message` with these strings as the only values of the repeated field `number`.
    ///
    /// # Errors
    /// If `message` is malformed; see [`string`].
    pub fn with_strings(message: &[u8], number: u32, values: &[&str]) -> Result<Edited, Malformed> {
        let mut out = BytesMut::with_capacity(message.len());
        for field in fields(message) {
            let field = field?;
            if field.number != number {
                out.put_slice(field.raw);
            }
        }
        values
            .iter()
            .for_each(|value| put_bytes(&mut out, number, value.as_bytes()));
        Ok(Edited(out.freeze()))
    }
}

impl Deref for Edited {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The submessages of the repeated field `number` that `keep` accepts, without any other field.
///
/// # Errors
/// If `message` is malformed (see [`string`]), and the errors of `keep`.
pub fn only<M: Editable>(
    message: &M,
    number: u32,
    mut keep: impl FnMut(&[u8]) -> Result<bool, Malformed>,
) -> Result<M, Malformed> {
    let bytes = message.as_ref();
    let mut out = BytesMut::with_capacity(bytes.len());
    for field in fields(bytes) {
        let field = field?;
        if field.number == number && keep(field.bytes()?)? {
            out.put_slice(field.raw);
        }
    }
    Ok(message.with(EditedMessage(out.freeze())))
}

/// Drops the submessages of the repeated field `number` for which `keep` returns `false`. Returns `None` if nothing is
/// dropped.
///
/// # Errors
/// If `message` is malformed (see [`string`]), and the errors of `keep`.
pub fn retain<M: Editable>(
    message: &M,
    number: u32,
    mut keep: impl FnMut(&[u8]) -> Result<bool, Malformed>,
) -> Result<Option<M>, Malformed> {
    edited(message, &[number], &mut |item| {
        Ok(if keep(item)? {
            Edit::Same
        } else {
            Edit::Dropped
        })
    })
}

/// The change that [`edited`] and [`edit_within`] make to a submessage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The submessage stays unchanged.
    Same,
    /// These bytes replace the submessage or the string.
    Other(Edited),
    /// The submessage is dropped.
    Dropped,
}

/// Applies `edit` to each submessage at `path` and keeps all other bytes. `None` if nothing changes.
///
/// # Errors
/// If `message` is malformed (see [`string`]), and the errors of `edit`.
pub fn edited<M: Editable>(
    message: &M,
    path: &[u32],
    edit: &mut dyn FnMut(&[u8]) -> Result<Edit, Malformed>,
) -> Result<Option<M>, Malformed> {
    let edited = edit_within(message.as_ref(), path, edit)?;
    Ok(edited.map(|edited| message.with(EditedMessage(edited.0))))
}

/// Like [`edited`], for a submessage.
///
/// # Errors
/// The errors of [`edited`].
pub fn edit_within(
    message: &[u8],
    path: &[u32],
    edit: &mut dyn FnMut(&[u8]) -> Result<Edit, Malformed>,
) -> Result<Option<Edited>, Malformed> {
    let Some((number, rest)) = path.split_first() else {
        return Ok(None);
    };
    let mut out = BytesMut::new();
    let (mut at, mut copied) = (0, 0);
    for field in fields(message) {
        let field = field?;
        let begin = at;
        at += field.raw.len();
        if field.number != *number {
            continue;
        }
        let inner = field.bytes()?;
        let edit = match rest {
            [] => edit(inner)?,
            _ => edit_within(inner, rest, edit)?.map_or(Edit::Same, Edit::Other),
        };
        if edit == Edit::Same {
            continue;
        }
        out.put_slice(message.get(copied..begin).unwrap_or_default());
        copied = at;
        if let Edit::Other(inner) = edit {
            put_bytes(&mut out, *number, &inner);
        }
    }
    if copied == 0 {
        return Ok(None);
    }
    out.put_slice(message.get(copied..).unwrap_or_default());
    Ok(Some(Edited(out.freeze())))
}

/// Parses a `grpc-timeout`: at most eight digits and a unit (gRPC over HTTP/2: `Timeout`). `None` if invalid.
pub fn timeout(value: &str) -> Option<Duration> {
    let (digits, unit) = value.split_at_checked(value.len().checked_sub(1)?)?;
    if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let amount: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(amount * 3600)),
        "M" => Some(Duration::from_secs(amount * 60)),
        "S" => Some(Duration::from_secs(amount)),
        "m" => Some(Duration::from_millis(amount)),
        "u" => Some(Duration::from_micros(amount)),
        "n" => Some(Duration::from_nanos(amount)),
        _ => None,
    }
}
