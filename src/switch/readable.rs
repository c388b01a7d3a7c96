//! Checks that clients can decode the items of a list, completely and by the CRI's types. Does no I/O.
//!
//! criswitch copies items without decoding them. One item that clients cannot decode, such as a label that is not
//! UTF-8, would make the merged list unreadable for every client.

use prost::{DecodeError, Message};

use crate::codec::{cri, protobuf};
use crate::errors;
use crate::rpc::fields::ITEMS;
use crate::rpc::{List, filter};

/// Why clients cannot decode this reply; `None` if they can. Without a `list`, the reply is an `ImageFsInfoResponse`.
pub(crate) fn fault(list: Option<List>, message: &[u8]) -> Option<String> {
    let decode = match list {
        Some(List::Pods) => decode::<cri::PodSandbox>,
        Some(List::Containers) => decode::<cri::Container>,
        Some(List::Images) => decode::<cri::Image>,
        Some(List::ContainerStats) => decode::<cri::ContainerStats>,
        Some(List::PodStats) => decode::<cri::PodSandboxStats>,
        Some(List::PodMetrics) => decode::<cri::PodSandboxMetrics>,
        Some(List::MetricDescriptors) => decode::<cri::MetricDescriptor>,
        None => {
            let fault = decode::<cri::ImageFsInfoResponse>(message).err()?;
            return Some(format!("its reply is malformed: {fault}"));
        }
    };
    let items = protobuf::fields(message).map(|field| {
        let field = field.map_err(|fault| format!("its reply is malformed: {fault}"))?;
        if field.number != ITEMS {
            return Ok(());
        }
        let item = field.bytes();
        let item = item.map_err(|fault| format!("its reply is malformed: {fault}"))?;
        decode(item).map_err(|fault| {
            let id = list.map(filter::id);
            let id = id.and_then(|path| protobuf::string(item, path).ok());
            let id = errors::shown(id.unwrap_or_default());
            format!("its reply is malformed: clients cannot decode the item {id:?}: {fault}")
        })
    });
    items.collect::<Result<(), String>>().err()
}

fn decode<M: Message + Default>(item: &[u8]) -> Result<(), DecodeError> {
    M::decode(item).map(drop)
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
            let text = super::fault(Some(kind), &list("the-id", fault)).unwrap();
            assert!(text.contains("the item \"the-id\""), "{kind:?}: {text}");
        }
        let cut = &list("the-id", b"\x12\x04\x0a\x02ab")[..9];
        assert!(fault(Some(List::Pods), cut).is_some());
    }

    #[test]
    fn fields_of_a_later_version_are_no_fault_whatever_they_contain() {
        for kind in [List::Pods, List::Containers, List::Images] {
            let newer = list("the-id", b"\xc2\xb8\x02\x04caf\xe9");
            assert_eq!(fault(Some(kind), &newer), None, "{kind:?}");
        }
        assert_eq!(fault(None, b"\xc2\xb8\x02\x04caf\xe9"), None);
        assert!(fault(None, b"\x0a\x04caf\xe9").is_some());
    }
}
