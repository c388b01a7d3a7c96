//! Sabotaged lists, which lack existing items or show removed items.

use bytes::{Bytes, BytesMut};
use criswitch::codec::protobuf::{self, Edit};
use criswitch::rpc::Kind;

use crate::simulation::client::Reply;
use crate::simulation::filter::Filter;
use crate::simulation::truth::{Moment, Truth};

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

/// The messages of a reply without the items of backends that have a fault.
pub fn without_faulty(reply: &Reply, truth: &Truth) -> Vec<Bytes> {
    let is_faulty = |item: &[u8]| {
        let id = [&[1, 1][..], &[1]].map(|path| protobuf::string(item, path).unwrap_or_default());
        let mut things = truth.things.iter();
        let thing = things.find(|thing| id.contains(&thing.id.as_str()));
        thing.is_some_and(|thing| truth.health[thing.backend].faulty)
    };
    let without = |message: &Bytes| {
        let edited = protobuf::edited(message, &[1], &mut |item| {
            Ok(if is_faulty(item) {
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
