//! Sabotage of the state on disk: files that the real criswitch never writes or would reject.

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::Kind;

use super::Sabotage;
use crate::simulation::disk::Disk;
use crate::simulation::truth::{Thing, Truth};

/// Sabotages the state at the start of an instance.
pub fn of_state_at_start(sabotage: Option<Sabotage>, disk: &Disk) {
    if sabotage == Some(Sabotage::SkipWrite) {
        disk.keep_first();
    }
}

/// Sabotages the state that an instance leaves.
pub fn of_state_at_end(sabotage: Option<Sabotage>, disk: &Disk, truth: &Truth) {
    match sabotage {
        Some(Sabotage::TrustTorn) => disk.tear_all(),
        Some(Sabotage::TrustOldRegister) => disk.put_back_register(),
        Some(Sabotage::ForgetRegistered) => {
            disk.change_all(|_, saved| saved.auto_registered.clear());
        }
        Some(Sabotage::ForgetCreated) => {
            forget_items(disk, truth, |it, at| is_since_last_list(truth, at, it));
        }
        Some(Sabotage::ForgetPassed) => {
            forget_items(disk, truth, |thing, _| !thing.left.is_empty());
        }
        Some(Sabotage::ForgetCreator) => {
            forget_items(disk, truth, |it, at| it.backend == at && it.owned);
            give_copies(disk, truth);
        }
        _ => {}
    }
}

/// Removes the items for which `drops` is true from the saved lists of each backend.
fn forget_items(disk: &Disk, truth: &Truth, drops: impl Fn(&Thing, usize) -> bool) {
    disk.change_all(|backend, saved| {
        for (kind, list) in [
            (Kind::Pod, &mut saved.pods),
            (Kind::Container, &mut saved.containers),
        ] {
            let is_left = |item: &[u8]| {
                let thing = protobuf::string(item, &[1]).map(|id| truth.thing(kind, id));
                Ok(!thing.ok().flatten().is_some_and(|it| drops(it, backend)))
            };
            let left = list.as_ref().map(|list| protobuf::retain(list, 1, is_left));
            if let Some(Ok(Some(left))) = left {
                *list = Some(Bytes::clone(&left));
            }
        }
    });
}

/// Adds the pods that a backend lists as copies to its saved list.
fn give_copies(disk: &Disk, truth: &Truth) {
    disk.change_all(|backend, saved| {
        let pods = truth.existing(Kind::Pod).filter(|pod| pod.owned);
        let copies = pods.filter(|pod| pod.backend != backend && pod.is_listed_by(backend));
        let mut list = BytesMut::from(&saved.pods.clone().unwrap_or_default()[..]);
        for pod in copies {
            protobuf::put_bytes(&mut list, 1, &protobuf::with_string(&[], &[1], &pod.id));
        }
        saved.pods = Some(list.freeze())
            .filter(|list| !list.is_empty())
            .or(saved.pods.take());
    });
}

fn is_since_last_list(truth: &Truth, backend: usize, thing: &Thing) -> bool {
    let mut lists = truth.listings.iter();
    !lists
        .any(|it| it.backend == backend && it.list.kind() == Some(thing.kind) && it.at > thing.born)
}
