//! Makes messages of the CRI from fuzz data: any field in any order, any number of times, sometimes with a few damaged
//! bytes.

use std::collections::HashMap;
use std::sync::LazyLock;

use arbitrary::{Result, Unstructured};
use criswitch_cri::rpc::{ROWS, Row, SEEN_ANNOTATION, UID_LABEL};
use prost::Message;
use prost::encoding::{
    DecodeContext, WireType, decode_key, decode_varint, encode_key, encode_varint, skip_field,
};
use prost_types::field_descriptor_proto::Type;
use prost_types::{DescriptorProto, FieldDescriptorProto};

use super::proto;

/// The largest depth of nested messages. An image spec may be three levels deep, and its annotations are one level
/// deeper, so five levels reach both.
const DEPTH: usize = 5;
const MOST_FIELDS: usize = 6;
/// The number of a field that no version of the CRI has.
const UNKNOWN: u32 = 5000;

/// Most random texts are one of these words, so that two fields often have the same text.
pub const WORDS: &[&str] = &[
    "",
    "a",
    "ab",
    "abc",
    "abd",
    "b",
    "runc",
    "kata",
    "gvisor",
    "runsc",
    UID_LABEL,
    SEEN_ANNOTATION,
    "RuntimeReady",
    "NetworkReady",
    "criswitch",
    "sha256:1",
];

struct Interface {
    messages: HashMap<String, Vec<FieldDescriptorProto>>,
    requests: HashMap<String, String>,
}

static INTERFACE: LazyLock<Interface> = LazyLock::new(|| {
    let mut interface = Interface {
        messages: HashMap::new(),
        requests: HashMap::new(),
    };
    for file in proto::CRI.file.clone() {
        let package = file.package().to_owned();
        for message in &file.message_type {
            interface.add(&format!(".{package}"), message);
        }
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{package}.{}/{}", service.name(), method.name());
                let request = method.input_type().to_owned();
                interface.requests.insert(path, request);
            }
        }
    }
    interface
});

impl Interface {
    fn add(&mut self, scope: &str, message: &DescriptorProto) {
        let name = format!("{scope}.{}", message.name());
        for inner in &message.nested_type {
            self.add(&name, inner);
        }
        self.messages.insert(name, message.field.clone());
    }
}

/// The paths of all RPCs of the interface.
pub fn paths() -> impl Iterator<Item = &'static str> {
    INTERFACE.requests.keys().map(String::as_str)
}

/// A row, and a request of its RPC.
pub fn request(u: &mut Unstructured<'_>) -> Result<(&'static Row, Vec<u8>)> {
    let row = u.choose(ROWS)?;
    let name = &INTERFACE.requests[&row.path()];
    Ok((row, any(u, name)?))
}

/// A message of this name in `runtime.v1`: well-formed, damaged, or arbitrary bytes.
pub fn message(u: &mut Unstructured<'_>, name: &str) -> Result<Vec<u8>> {
    any(u, &format!(".runtime.v1.{name}"))
}

/// Decodes with prost, but rejects a map entry or submessage that is encoded with a wrong wire type.
///
/// prost ignores a map's wire type: it reads the bytes of a number or a group as an entry's length. Go and criswitch
/// reject such a message.
pub fn decode<M: Message + Default>(message: &[u8]) -> Option<M> {
    let name = std::any::type_name::<M>().rsplit("::").next().unwrap();
    if !well_typed(&format!(".runtime.v1.{name}"), message) {
        return None;
    }
    M::decode(message).ok()
}

/// Whether every submessage and every map entry has the right wire type.
fn well_typed(name: &str, mut message: &[u8]) -> bool {
    while !message.is_empty() {
        let Ok((number, wire_type)) = decode_key(&mut message) else {
            return false;
        };
        let fields = INTERFACE.messages[name].iter();
        let inner = fields
            .filter(|field| u32::try_from(field.number()) == Ok(number))
            .find(|field| field.r#type() == Type::Message);
        let fine = match inner {
            None => {
                let skipped = skip_field(wire_type, number, &mut message, DecodeContext::default());
                skipped.is_ok()
            }
            Some(field) => {
                wire_type == WireType::LengthDelimited
                    && take_bytes(&mut message)
                        .is_some_and(|inner| well_typed(field.type_name(), inner))
            }
        };
        if !fine {
            return false;
        }
    }
    true
}

fn take_bytes<'a>(message: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(decode_varint(message).ok()?).ok()?;
    let (bytes, rest) = message.split_at_checked(length)?;
    *message = rest;
    Some(bytes)
}

fn any(u: &mut Unstructured<'_>, name: &str) -> Result<Vec<u8>> {
    match u.int_in_range(0..=7)? {
        7 => some_bytes(u, 32),
        6 => {
            let message = well_formed(u, name, DEPTH)?;
            spoilt(u, message)
        }
        _ => well_formed(u, name, DEPTH),
    }
}

fn some_bytes(u: &mut Unstructured<'_>, most: usize) -> Result<Vec<u8>> {
    let length = u.int_in_range(0..=most)?;
    Ok(u.bytes(length.min(u.len()))?.to_vec())
}

fn spoilt(u: &mut Unstructured<'_>, mut message: Vec<u8>) -> Result<Vec<u8>> {
    for _ in 0..u.int_in_range(1..=3)? {
        let at = u.int_in_range(0..=message.len())?;
        match u.int_in_range(0..=2)? {
            0 => message.truncate(at),
            1 => message.insert(at, u.arbitrary()?),
            _ => {
                let byte = u.arbitrary()?;
                message.get_mut(at).into_iter().for_each(|old| *old = byte);
            }
        }
    }
    Ok(message)
}

fn well_formed(u: &mut Unstructured<'_>, name: &str, depth: usize) -> Result<Vec<u8>> {
    let fields = &INTERFACE.messages[name];
    let mut out = Vec::new();
    if name.ends_with("Entry") {
        // Protobuf allows an entry without a key or a value. With random fields, few entries would have both.
        for field in fields {
            put_field(u, &mut out, field, depth)?;
        }
        return Ok(out);
    }
    for _ in 0..u.int_in_range(0..=MOST_FIELDS)? {
        match u.int_in_range(0..=fields.len())? {
            at if at < fields.len() => put_field(u, &mut out, &fields[at], depth)?,
            _ => put_bytes(&mut out, UNKNOWN, b"new"),
        }
    }
    Ok(out)
}

fn put_field(
    u: &mut Unstructured<'_>,
    out: &mut Vec<u8>,
    field: &FieldDescriptorProto,
    depth: usize,
) -> Result<()> {
    let number = u32::try_from(field.number()).unwrap();
    match field.r#type() {
        Type::Message if depth == 0 => put_bytes(out, number, &[]),
        Type::Message => {
            let inner = well_formed(u, field.type_name(), depth - 1)?;
            put_bytes(out, number, &inner);
        }
        Type::String => put_bytes(out, number, text(u)?.as_bytes()),
        Type::Bytes => put_bytes(out, number, &some_bytes(u, 4)?),
        Type::Double | Type::Fixed64 | Type::Sfixed64 => {
            encode_key(number, WireType::SixtyFourBit, out);
            out.extend(u.arbitrary::<[u8; 8]>()?);
        }
        Type::Float | Type::Fixed32 | Type::Sfixed32 => {
            encode_key(number, WireType::ThirtyTwoBit, out);
            out.extend(u.arbitrary::<[u8; 4]>()?);
        }
        _ => {
            encode_key(number, WireType::Varint, out);
            encode_varint(number_value(u)?, out);
        }
    }
    Ok(())
}

/// A text, mostly one of [`WORDS`].
pub fn text(u: &mut Unstructured<'_>) -> Result<String> {
    match u.int_in_range(0..=WORDS.len())? {
        at if at < WORDS.len() => Ok(WORDS[at].to_owned()),
        _ => Ok(String::from_utf8_lossy(&some_bytes(u, 8)?).into_owned()),
    }
}

fn number_value(u: &mut Unstructured<'_>) -> Result<u64> {
    match u.int_in_range(0..=7)? {
        7 => u.arbitrary(),
        small => Ok(small),
    }
}

fn put_bytes(out: &mut Vec<u8>, number: u32, value: &[u8]) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(value.len() as u64, out);
    out.extend(value);
}
