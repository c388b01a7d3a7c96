//! Sabotaged lists, which lack existing items or show removed items.

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::protobuf::{self, Edit};
use criswitch_cri::rpc::Kind;

use crate::simulation::client::Reply;
use crate::simulation::filter::Filter;
use crate::simulation::truth::{Moment, Thing, Truth};

/// The pods of healthy backends that match the filter.
pub fn reachable(truth: &Truth, filter: &Filter) -> Bytes {
    let backends = (0..truth.health.len()).filter(|backend| !truth.health[*backend].faulty);
    let pods = backends.flat_map(|backend| truth.at(backend, Kind::Pod));
    let wanted = pods.filter(|pod| filter.must_want(pod, Moment::MAX));
    listed(wanted.map(|pod| pod.id.clone()))
}

pub fn with_items(reply: &Reply, ids: impl Iterator<Item = String>) -> Vec<Bytes> {
    vec![
        [reply.messages.concat(), listed(ids).to_vec()]
            .concat()
            .into(),
    ]
}

/// A list with a pod that no client can decode: its label is not UTF-8.
pub fn undecodable() -> Bytes {
    Bytes::from_static(b"\x0a\x05\x2a\x03\x0a\x01\xff")
}

/// The messages of a reply without the items for which `drops` is true.
pub fn without(reply: &Reply, truth: &Truth, drops: impl Fn(&Thing) -> bool) -> Vec<Bytes> {
    let is_dropped = |item: &[u8]| {
        let id = [&[1, 1][..], &[1]].map(|path| protobuf::string(item, path).unwrap_or_default());
        let mut things = truth.things.iter();
        let thing = things.find(|thing| id.contains(&thing.id.as_str()));
        thing.is_some_and(&drops)
    };
    let without = |message: &Bytes| {
        let edited = protobuf::edited(message, &[1], &mut |item| {
            Ok(if is_dropped(item) {
                Edit::Dropped
            } else {
                Edit::Same
            })
        });
        edited.unwrap().unwrap_or_else(|| message.clone())
    };
    reply.messages.iter().map(without).collect()
}

fn listed(ids: impl Iterator<Item = String>) -> Bytes {
    let mut list = BytesMut::new();
    for id in ids {
        protobuf::put_bytes(&mut list, 1, &protobuf::with_string(&[], &[1], &id));
    }
    list.freeze()
}
