//! At the end of a schedule, a client that follows events must know which pods exist.

use std::collections::{HashMap, HashSet};

use bytes::Bytes;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{self, Kind};

use super::Asked;
use crate::simulation::client::messages;
use crate::simulation::files::RUNTIMES;
use crate::simulation::runtime::DELETED;
use crate::simulation::truth::{Thing, Truth};

/// Checks that a client has received the last event of each pod that was created or removed while the client listened.
pub fn judge(asked: &Asked, truth: &Truth) -> Result<(), String> {
    if !asked.is_events() || asked.life != truth.life {
        return Ok(());
    }
    let Some(listens) = truth.arrivals.iter().find(|at| **at > asked.begun) else {
        return Ok(());
    };
    let denied = |backend: &usize| truth.lacks(*backend, &rpc::EVENTS) && there(truth, *backend);
    if let Some(backend) = (0..RUNTIMES).find(denied) {
        return Err(format!(
            "{asked}: the event stream continues although backend {backend} has no events"
        ));
    }
    let arrived = messages(&mut asked.call.arrived.lock().unwrap().clone());
    let last: HashMap<String, u64> = arrived.iter().map(read).collect();
    // After a hang, a backend may answer other calls before the request for events, so criswitch may miss events.
    let silenced = |backend: usize| {
        let mut moments = truth.health[backend].silenced.iter();
        asked.silent.contains(&backend) || moments.any(|at| (asked.begun..*listens).contains(at))
    };
    let shown = |pod: &&Thing| {
        let shown = pod.gone.is_some() || there(truth, pod.backend);
        pod.kind == Kind::Pod && shown && !silenced(pod.backend)
    };
    let deleted: HashSet<String> = arrived
        .iter()
        .map(read)
        .filter(|(_, kind)| *kind == DELETED)
        .map(|(id, _)| id)
        .collect();
    for pod in truth.things.iter().filter(shown) {
        let lives = pod.gone.is_none() && !pod.forgotten;
        if lives && deleted.contains(&pod.id) {
            return Err(format!(
                "{asked}: a deletion event for {pod:?}, which a backend lists"
            ));
        }
        // criswitch drops events with the uid of another backend's pod.
        let mut others = truth.things.iter().filter(|it| it.uid == pod.uid);
        if pod.shared || others.any(|it| it.backend != pod.backend) {
            continue;
        }
        let arrived = last.get(&pod.id);
        let learned = pod
            .learned
            .is_some_and(|at| pod.gone.is_none_or(|gone| at < gone));
        let wrong = match pod.gone {
            None => pod.born > *listens && arrived.is_none_or(|kind| *kind == DELETED),
            Some(gone) => gone > *listens && learned && arrived != Some(&DELETED),
        };
        if wrong {
            return Err(format!("{asked}: the last event of {pod:?} is {arrived:?}"));
        }
    }
    Ok(())
}

fn there(truth: &Truth, backend: usize) -> bool {
    truth.tables.places[backend].is_some()
}

fn read(event: &Bytes) -> (String, u64) {
    let id = protobuf::string(event, &[1]).unwrap().to_owned();
    (id, protobuf::varint(event, &[2]).unwrap())
}
