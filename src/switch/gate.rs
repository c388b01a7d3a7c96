//! The gate for the bytes of a backend that go to every client: lists, statuses of the node, and events. It reads them
//! whole, by the CRI's types. Does no I/O.
//!
//! criswitch copies these bytes without decoding them. One item that clients cannot decode, such as a label that is not
//! UTF-8, would make the merged reply unreadable for every client. The kubelet reads some messages without asking whether
//! they are there: an item without its metadata, or stats without their attributes, would make it panic.

use prost::Message;

use crate::codec::{cri, protobuf};
use crate::errors;
use crate::rpc::fields::ITEMS;
use crate::rpc::{List, filter};

/// The most handlers that a backend may report.
const MOST_HANDLERS: usize = 256;

/// Decodes a message, and returns the name of a required field that it lacks, if any.
type ReadItem = fn(&[u8]) -> Result<Option<&'static str>, prost::DecodeError>;

/// Why clients cannot use this reply; `None` if they can. Without a `list`, the reply is an `ImageFsInfoResponse`.
pub(crate) fn list_fault(list: Option<List>, message: &[u8]) -> Option<String> {
    let read: ReadItem = match list {
        Some(List::Pods) => |it| {
            let pod = cri::PodSandbox::decode(it)?;
            Ok(missing(&[
                ("id", !pod.id.is_empty()),
                ("metadata", pod.metadata.is_some()),
            ]))
        },
        Some(List::Containers) => |it| {
            let container = cri::Container::decode(it)?;
            let metadata = container.metadata.is_some();
            Ok(missing(&[
                ("id", !container.id.is_empty()),
                ("metadata", metadata),
            ]))
        },
        Some(List::ContainerStats) => |it| {
            let stats = cri::ContainerStats::decode(it)?;
            Ok(missing(&[("attributes", stats.attributes.is_some())]))
        },
        Some(List::PodStats) => |it| {
            let stats = cri::PodSandboxStats::decode(it)?;
            Ok(missing(&[("attributes", stats.attributes.is_some())]))
        },
        Some(List::Images) => |it| cri::Image::decode(it).map(|_| None),
        Some(List::PodMetrics) => |it| cri::PodSandboxMetrics::decode(it).map(|_| None),
        Some(List::MetricDescriptors) => |it| cri::MetricDescriptor::decode(it).map(|_| None),
        None => return malformed(cri::ImageFsInfoResponse::decode(message).err()?),
    };
    let items = protobuf::fields(message).map(|field| {
        let field = field.map_err(|fault| format!("its reply is malformed: {fault}"))?;
        if field.number != ITEMS {
            return Ok(());
        }
        let item = field.bytes();
        let item = item.map_err(|fault| format!("its reply is malformed: {fault}"))?;
        let id = || {
            let id = list.map(filter::id);
            let id = id.and_then(|path| protobuf::string(item, path).ok());
            errors::shown(id.unwrap_or_default()).to_owned()
        };
        match read(item) {
            Ok(None) => Ok(()),
            Ok(Some(field)) => Err(format!(
                "its reply is malformed: the item {:?} has no {field}",
                id()
            )),
            Err(fault) => Err(format!(
                "its reply is malformed: clients cannot decode the item {:?}: {fault}",
                id()
            )),
        }
    });
    items.collect::<Result<(), String>>().err()
}

/// Why clients cannot use this `StatusResponse`; `None` if they can.
pub(crate) fn status_fault(message: &[u8]) -> Option<String> {
    let status = match cri::StatusResponse::decode(message) {
        Ok(status) => status,
        Err(fault) => return malformed(fault),
    };
    let handlers = status.runtime_handlers.len();
    (handlers > MOST_HANDLERS)
        .then(|| format!("its Status has {handlers} handlers; the limit is {MOST_HANDLERS}"))
}

/// Why clients cannot use this `ContainerEventResponse`; `None` if they can.
pub(crate) fn event_fault(message: &[u8]) -> Option<String> {
    malformed(cri::ContainerEventResponse::decode(message).err()?)
}

fn malformed(fault: prost::DecodeError) -> Option<String> {
    Some(format!("its reply is malformed: {fault}"))
}

/// The first of these fields that is not there.
fn missing(fields: &[(&'static str, bool)]) -> Option<&'static str> {
    let (name, _) = fields.iter().find(|(_, is_there)| !is_there)?;
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list with one item, which has `id` in field 1, and then these bytes.
    fn list(id: &str, more: &[u8]) -> Vec<u8> {
        let mut item = protobuf::with_string(&[], &[1], id).to_vec();
        item.extend_from_slice(more);
        let mut message = bytes::BytesMut::new();
        protobuf::put_bytes(&mut message, ITEMS, &item);
        message.to_vec()
    }

    #[test]
    fn an_item_that_clients_cannot_decode_is_found_however_deep_the_fault_is() {
        let faults: [(List, &[u8]); 4] = [
            (List::Pods, b"\x2a\x0b\x0a\x03key\x12\x04caf\xe9"),
            (List::Containers, b"\x42\x0b\x0a\x04caf\xe9\x12\x03val"),
            (List::Pods, b"\x12\x04\x0a\x7fab"),
            (List::Images, b"\x12\x04caf\xe9"),
        ];
        for (kind, fault) in faults {
            let text = list_fault(Some(kind), &list("the-id", fault)).unwrap();
            assert!(text.contains("the item \"the-id\""), "{kind:?}: {text}");
        }
        let cut = &list("the-id", b"\x12\x04\x0a\x02ab")[..9];
        assert!(list_fault(Some(List::Pods), cut).is_some());
    }

    #[test]
    fn fields_of_a_later_version_are_no_fault_whatever_they_contain() {
        let kinds: [(List, &[u8]); 3] = [
            (List::Pods, b"\x12\x00\xc2\xb8\x02\x04caf\xe9"),
            (List::Containers, b"\x1a\x00\xc2\xb8\x02\x04caf\xe9"),
            (List::Images, b"\xc2\xb8\x02\x04caf\xe9"),
        ];
        for (kind, newer) in kinds {
            let newer = list("the-id", newer);
            assert_eq!(list_fault(Some(kind), &newer), None, "{kind:?}");
        }
        assert_eq!(list_fault(None, b"\xc2\xb8\x02\x04caf\xe9"), None);
        assert!(list_fault(None, b"\x0a\x04caf\xe9").is_some());
    }

    #[test]
    fn an_item_without_what_the_kubelet_reads_unasked_is_a_fault() {
        let kinds = [
            (List::Pods, "metadata"),
            (List::Containers, "metadata"),
            (List::ContainerStats, "attributes"),
            (List::PodStats, "attributes"),
        ];
        for (kind, field) in kinds {
            let items = match kind {
                List::Pods | List::Containers => list("the-id", b""),
                _ => b"\x0a\x00".to_vec(),
            };
            let fault = list_fault(Some(kind), &items).unwrap();
            assert!(fault.ends_with(&format!("has no {field}")), "{fault}");
        }
        for (kind, metadata) in [(List::Pods, b"\x12\x00"), (List::Containers, b"\x1a\x00")] {
            let fault = list_fault(Some(kind), &list("", metadata)).unwrap();
            assert!(fault.ends_with("has no id"), "{fault}");
        }
    }

    #[test]
    fn a_status_and_an_event_are_read_whole() {
        // A handler whose features are cut off, and a handler whose name is not UTF-8.
        for handler in [
            &b"\x1a\x07\x0a\x01a\x12\x02\x08"[..],
            b"\x1a\x06\x0a\x04caf\xe9",
        ] {
            assert!(status_fault(handler).is_some(), "{handler:?}");
        }
        assert_eq!(status_fault(b"\x1a\x03\x0a\x01a"), None);
        assert_eq!(status_fault(&b"\x1a\x00".repeat(MOST_HANDLERS)), None);
        assert!(status_fault(&b"\x1a\x00".repeat(MOST_HANDLERS + 1)).is_some());
        assert!(event_fault(b"\x0a\x04caf\xe9").is_some());
        assert_eq!(event_fault(b"\x0a\x01a"), None);
    }
}
