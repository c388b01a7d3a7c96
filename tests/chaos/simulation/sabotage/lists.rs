//! Lists that lack what there is, or have what there is not.

use bytes::{Bytes, BytesMut};
use criswitch::rpc::Kind;
use criswitch::wire;

use crate::simulation::client::Reply;
use crate::simulation::filter::Filter;
use crate::simulation::truth::{Moment, Truth};

/// Those pods of the backends that are in order that a list asks for.
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

fn listed(ids: impl Iterator<Item = String>) -> Bytes {
    let mut list = BytesMut::new();
    for id in ids {
        wire::put_bytes(&mut list, 1, &wire::with_string(&[], &[1], &id));
    }
    list.freeze()
}
