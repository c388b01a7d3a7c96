//! The protobuf reader and the two edits (`with_string` and `edited`), compared with prost's results for the same
//! bytes.

use std::fmt::Debug;

use arbitrary::Unstructured;
use bytes::Bytes;
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf::{self, Edit, Edited};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};

use super::messages;
use super::projection::{self, Unreadable};

/// Field numbers whose keys have one, two or three bytes, and 0, which prost rejects.
const NUMBERS: &[u32] = &[1, 2, 3, 4, 5, 7, 18, 19, 5000, 0];
const TYPES: &[&str] = &[
    "CreateContainerRequest",
    "PullImageRequest",
    "RunPodSandboxRequest",
    "ListImagesRequest",
    "ListContainersRequest",
    "ListPodSandboxResponse",
    "PodSandboxStatusResponse",
    "ContainerEventResponse",
];

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let path: Vec<u32> = (0..u.int_in_range(1..=3)?)
        .map(|_| u.choose(NUMBERS).copied())
        .collect::<Result<_, _>>()?;
    let value = messages::text(u)?;
    let empty_has_a_name = u.arbitrary()?;
    let message = match u.int_in_range(0..=TYPES.len())? {
        at if at < TYPES.len() => messages::message(u, TYPES[at])?,
        _ => u.bytes(u.len())?.to_vec(),
    };
    walks(&message);
    reads(&message, &path, &value);
    sets(&message, &path, &value);
    sets_typed(&message, &value);
    replaces_typed(&message, empty_has_a_name);
    Ok(())
}

/// Checks that the reader finds the same fields as prost's functions, and no field after the first fault.
fn walks(message: &[u8]) {
    let mut rest = message;
    let mut fields = protobuf::fields(message);
    while !rest.is_empty() {
        let before = rest;
        let skipped = decode_key(&mut rest).and_then(|(number, wire_type)| {
            skip_field(wire_type, number, &mut rest, DecodeContext::default())?;
            Ok((number, wire_type))
        });
        let field = fields.next().expect("prost finds one more");
        assert_eq!(field.is_ok(), skipped.is_ok());
        let (Ok(field), Ok((number, wire_type))) = (field, skipped) else {
            break;
        };
        assert_eq!(field.number, number);
        assert_eq!(field.raw, &before[..before.len() - rest.len()]);
        match (field.value, wire_type) {
            (protobuf::Value::Varint(_), WireType::Varint) => {}
            (protobuf::Value::Bytes(bytes), WireType::LengthDelimited) => {
                assert!(field.raw.ends_with(bytes));
            }
            (protobuf::Value::Other, _) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(fields.next().is_none());
}

/// Asserts that a result equals prost's, if prost has one.
macro_rules! same {
    ($ours:expr, $theirs:expr) => {
        if let Some(theirs) = $theirs {
            assert_eq!($ours.map_err(|_| Unreadable), theirs);
        }
    };
}

fn reads(message: &[u8], path: &[u32], key: &str) {
    use projection::read;
    same!(
        protobuf::string(message, path).map(str::to_owned),
        read::<String>(message, path)
    );
    same!(protobuf::varint(message, path), read::<u64>(message, path));
    same!(
        protobuf::bytes(message, path).map(<[u8]>::to_vec),
        read::<Vec<u8>>(message, path)
    );
    let strings = |found: Vec<&str>| found.into_iter().map(str::to_owned).collect();
    same!(
        protobuf::strings(message, path).map(strings),
        read::<Vec<String>>(message, path)
    );
    let all_bytes = |found: Vec<&[u8]>| found.into_iter().map(<[u8]>::to_vec).collect();
    same!(
        protobuf::all_bytes(message, path).map(all_bytes),
        read::<Vec<Vec<u8>>>(message, path)
    );
    same!(
        protobuf::entry(message, path, key).map(|found| found.map(str::to_owned)),
        projection::entry(message, path, key)
    );
    let occurs = protobuf::fields(message).try_fold(false, |found, field| {
        Ok::<_, protobuf::Malformed>(field?.number == path[0] || found)
    });
    assert_eq!(protobuf::has(message, path[0]).ok(), occurs.ok());
}

/// Checks that prost reads the value that was set, and that the result begins with the unchanged original bytes.
fn sets(message: &[u8], path: &[u32], value: &str) {
    if path.contains(&0) || projection::read::<String>(message, path) == Some(Err(Unreadable)) {
        return;
    }
    let set = protobuf::with_string(message, path, value);
    assert!(set.starts_with(message));
    if let Some(read) = projection::read::<String>(&set, path) {
        assert_eq!(read.as_deref(), Ok(value));
    }
}

/// Checks every type of message that criswitch edits: only the edited field changes.
fn sets_typed(message: &[u8], value: &str) {
    set::<cri::RunPodSandboxRequest>(message, &[2], value, |request, value| {
        request.runtime_handler = value;
    });
    set::<cri::RestorePodRequest>(message, &[3], value, |request, value| {
        request.runtime_handler = value;
    });
    set::<cri::ImageStatusRequest>(message, &[1, 19], value, |request, value| {
        request.image.get_or_insert_default().runtime_handler = value;
    });
    set::<cri::ListImagesRequest>(message, &[1, 1, 19], value, |request, value| {
        let filter = request.filter.get_or_insert_default();
        filter.image.get_or_insert_default().runtime_handler = value;
    });
    set::<cri::CreateContainerRequest>(message, &[2, 2, 1], value, |request, value| {
        let config = request.config.get_or_insert_default();
        config.image.get_or_insert_default().image = value;
    });
}

fn set<M: Message + Default + PartialEq + Debug>(
    message: &[u8],
    path: &[u32],
    value: &str,
    change: impl FnOnce(&mut M, String),
) {
    let Some(mut wanted) = messages::decode::<M>(message) else {
        return;
    };
    change(&mut wanted, value.to_owned());
    let set = M::decode(protobuf::with_string(message, path, value));
    assert_eq!(set.as_ref(), Ok(&wanted));
}

/// Translates a backend's handler name to the table's name.
fn renamed(name: &str, empty_has_a_name: bool) -> Option<&'static str> {
    match name {
        "runsc" => Some("gvisor"),
        "a" => Some(""),
        "" if empty_has_a_name => Some("kata"),
        _ => None,
    }
}

fn replaces_typed(message: &[u8], empty_has_a_name: bool) {
    let rename = |name: &mut String| {
        if let Some(new) = renamed(name, empty_has_a_name) {
            *name = new.to_owned();
        }
    };
    let new = |name: &str| renamed(name, empty_has_a_name);
    replaces::<cri::ListPodSandboxResponse>(message, &[1, 7], &new, |list| {
        for pod in &mut list.items {
            rename(&mut pod.runtime_handler);
        }
    });
    replaces::<cri::PodSandboxStatusResponse>(message, &[1, 9], &new, |reply| {
        if let Some(status) = &mut reply.status {
            rename(&mut status.runtime_handler);
        }
    });
    replaces::<cri::ContainerEventResponse>(message, &[4, 9], &new, |event| {
        if let Some(status) = &mut event.pod_sandbox_status {
            rename(&mut status.runtime_handler);
        }
    });
}

fn replaces<M: Message + Default + PartialEq + Debug>(
    message: &[u8],
    path: &[u32],
    new: &dyn Fn(&str) -> Option<&'static str>,
    change: impl FnOnce(&mut M),
) {
    let replaced = replaced(message, path, new);
    if let Ok(replaced) = &replaced {
        assert!(others(message, path[0]).eq(others(replaced, path[0])));
    }
    let Some(mut wanted) = messages::decode::<M>(message) else {
        return;
    };
    change(&mut wanted);
    let replaced = M::decode(replaced.expect("prost can read it"));
    let times = protobuf::all_bytes(message, &path[..1]).map_or(0, |all| all.len());
    // If a submessage is sent in several parts, criswitch renames the handler in each part. That is correct for lists,
    // where each part is an item. No sender splits other submessages.
    if path == [1, 7] || times < 2 {
        assert_eq!(replaced.as_ref(), Ok(&wanted));
    }
}

/// Replaces names as criswitch does: appends the new value to the item.
fn replaced(
    message: &[u8],
    path: &[u32],
    new: &dyn Fn(&str) -> Option<&'static str>,
) -> Result<Bytes, protobuf::Malformed> {
    let message = Bytes::copy_from_slice(message);
    let edited = protobuf::edited(&message, &path[..1], &mut |item| {
        let name = new(protobuf::string(item, &path[1..])?);
        Ok(name.map_or(Edit::Same, |name| {
            Edit::Other(Edited::with_string(item, &path[1..], name))
        }))
    });
    Ok(edited?.unwrap_or(message))
}

fn others(message: &[u8], number: u32) -> impl Iterator<Item = &[u8]> {
    let fields = protobuf::fields(message).map_while(Result::ok);
    fields
        .filter(move |field| field.number != number)
        .map(|field| field.raw)
}
