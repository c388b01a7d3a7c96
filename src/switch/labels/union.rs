//! Merges the metric descriptors of several backends. Does no I/O.

use std::collections::{HashMap, HashSet};

use bytes::{BufMut, Bytes, BytesMut};

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{ITEMS, metric_descriptor};

use crate::gate::Readable;

/// Merges replies to `ListMetricDescriptors` so that each metric occurs once, with its first descriptor. Label keys
/// that only later descriptors have are appended to the keys of the first one. Keeps every other field unchanged.
///
/// # Errors
/// If a reply is not valid protobuf.
pub fn union(replies: &[Readable]) -> Result<Bytes, Malformed> {
    let (mut places, mut seen) = (HashMap::new(), HashSet::new());
    let mut descriptors: Vec<BytesMut> = Vec::new();
    let (mut out, mut others) = (BytesMut::new(), BytesMut::new());
    for field in replies.iter().flat_map(|reply| protobuf::fields(reply)) {
        let field = field?;
        if field.number != ITEMS {
            others.put_slice(field.raw);
            continue;
        }
        let descriptor = field.bytes()?;
        let name = protobuf::string(descriptor, &[metric_descriptor::NAME])?;
        let keys = protobuf::strings(descriptor, &[metric_descriptor::LABEL_KEYS])?;
        let place = *places.entry(name).or_insert(descriptors.len());
        let is_first = place == descriptors.len();
        if is_first {
            descriptors.push(BytesMut::from(descriptor));
        }
        for key in keys {
            let is_new = seen.insert((name, key)) && !is_first;
            if is_new && let Some(first) = descriptors.get_mut(place) {
                protobuf::put_bytes(first, metric_descriptor::LABEL_KEYS, key.as_bytes());
            }
        }
    }
    for descriptor in descriptors {
        protobuf::put_bytes(&mut out, ITEMS, &descriptor);
    }
    out.unsplit(others);
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use criswitch_cri::codec::cri::{ListMetricDescriptorsResponse, MetricDescriptor};
    use criswitch_cri::rpc::List;
    use prost::Message;

    use super::*;

    fn described(all: &[(&str, &[&str])]) -> ListMetricDescriptorsResponse {
        let descriptor = |(name, keys): &(&str, &[&str])| MetricDescriptor {
            name: (*name).to_owned(),
            help: String::new(),
            label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let descriptors = all.iter().map(descriptor).collect();
        ListMetricDescriptorsResponse { descriptors }
    }

    fn list(message: &[u8]) -> Result<Readable, String> {
        Readable::list(List::MetricDescriptors, &Bytes::copy_from_slice(message))
    }

    #[test]
    fn each_metric_has_the_keys_of_all_replies_and_those_of_the_first_come_first() {
        let (b, a): (&[&str], &[&str]) = (&["id", "b"], &["a", "id", "b"]);
        let replies = [
            described(&[("cpu", b), ("disk", a)]),
            described(&[("new", b), ("cpu", a)]),
            described(&[("disk", &["c", "b"]), ("cpu", &["c", "a"])]),
        ]
        .map(|reply| list(&reply.encode_to_vec()).unwrap());
        let wanted = described(&[
            ("cpu", &["id", "b", "a", "c"]),
            ("disk", &["a", "id", "b", "c"]),
            ("new", b),
        ]);
        let merged = union(&replies).unwrap();
        assert_eq!(ListMetricDescriptorsResponse::decode(merged), Ok(wanted));
    }

    #[test]
    fn fields_that_are_no_descriptors_pass() {
        let unknown = b"\x10\x07".as_slice();
        let descriptor = b"\x0a\x05\x0a\x01m\x20\x01".as_slice();
        let merged = union(&[unknown, descriptor].map(|it| list(it).unwrap()));
        assert_eq!(merged.unwrap(), [descriptor, unknown].concat());
    }
}
