//! Sabotage of the state on disk: files that the real criswitch never writes or would reject.

use bytes::Bytes;
use criswitch::codec::protobuf;
use criswitch::rpc::Kind;

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
        Some(Sabotage::ForgetCreated) => forget_created(disk, truth),
        _ => {}
    }
}

fn forget_created(disk: &Disk, truth: &Truth) {
    disk.change_all(|backend, saved| {
        for (kind, list) in [
            (Kind::Pod, &mut saved.pods),
            (Kind::Container, &mut saved.containers),
        ] {
            let since = |thing: &Thing| is_since_last_list(truth, backend, thing);
            let is_left = |item: &[u8]| {
                let thing = protobuf::string(item, &[1]).map(|id| truth.thing(kind, id));
                Ok(!thing.ok().flatten().is_some_and(since))
            };
            let left = list.as_ref().map(|list| protobuf::retain(list, 1, is_left));
            if let Some(Ok(Some(left))) = left {
                *list = Some(Bytes::clone(&left));
            }
        }
    });
}

fn is_since_last_list(truth: &Truth, backend: usize, thing: &Thing) -> bool {
    let mut lists = truth.listings.iter();
    !lists
        .any(|it| it.backend == backend && it.list.kind() == Some(thing.kind) && it.at > thing.born)
}
