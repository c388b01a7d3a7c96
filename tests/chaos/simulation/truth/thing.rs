//! A pod or container: what it is, what has become of it, and who has been told.

use std::collections::HashMap;

use criswitch::rpc::{Kind, SEEN_ANNOTATION};

use super::{CallId, Moment};
use crate::simulation::filter::{APP, UID};

/// Values of a label.
pub const APPS: [&str; 3] = ["web", "db", "batch"];
/// How many pods have uids of their own; a further one is one of them made anew.
const UIDS: u64 = 6;

/// The uid of a pod of this name.
pub fn uid(name: &str) -> String {
    let number = name.rsplit_once('-').map(|(_, number)| number.parse());
    match number {
        Some(Ok::<u64, _>(number)) if !name.starts_with(DIRECT) => format!("uid-{}", number % UIDS),
        _ => format!("uid-{name}"),
    }
}

/// The labels that the pod or container of this name in a pod of this uid is created with.
pub fn labels(uid: &str, name: &str) -> HashMap<String, String> {
    let last = name.bytes().last().unwrap_or(0);
    let app = APPS[usize::from(last) % APPS.len()];
    let pairs = [(UID, uid), (APP, app)];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    HashMap::from(pairs)
}

/// The annotations of a pod, which are new when the kubelet starts and the same for the same uid here.
pub fn annotations(uid: &str) -> HashMap<String, String> {
    HashMap::from([(SEEN_ANNOTATION.to_owned(), format!("seen-{uid}"))])
}

/// What the names of pods begin with that were made without the switch.
pub const DIRECT: &str = "direct";

/// A pod or container that is or was.
#[derive(Clone, Debug)]
pub struct Thing {
    pub kind: Kind,
    pub id: String,
    pub backend: usize,
    /// A container's pod; a pod's own id.
    pub pod: String,
    pub name: String,
    /// Of the pod, which may be that of an earlier one.
    pub uid: String,
    /// Its states, as the CRI numbers them, and since when.
    pub states: Vec<(Moment, i32)>,
    /// The handler's name at the backend.
    pub handler: String,
    /// The call that made it; 0 if nobody did through the switch.
    pub maker: CallId,
    /// A hostile runtime has made it, with the uid and names of another runtime's pod.
    pub poses: bool,
    pub born: Moment,
    /// When its maker heard so.
    pub answered: Option<Moment>,
    pub gone: Option<Moment>,
    /// When a client was told that it is removed.
    pub removal_told: Option<Moment>,
    /// When a client first learned of it.
    pub told: Option<Moment>,
    /// When the switch that runs now, or one whose state it has, first learned of it.
    pub learned: Option<Moment>,
    /// A switch ended before it knew of it, and no client knew either. It may have been made only after that end.
    pub unheard: bool,
}

impl Thing {
    pub fn new(
        kind: Kind,
        id: String,
        backend: usize,
        pod: String,
        name: String,
        born: Moment,
    ) -> Thing {
        Thing {
            kind,
            id,
            backend,
            pod,
            uid: uid(&name),
            name,
            states: vec![(born, 0)],
            born,
            handler: String::new(),
            maker: 0,
            poses: false,
            answered: None,
            gone: None,
            removal_told: None,
            told: None,
            learned: None,
            unheard: false,
        }
    }

    /// Its labels, as its runtime lists them.
    pub fn labels(&self) -> HashMap<String, String> {
        labels(&self.uid, &self.name)
    }

    /// The same in a state that it is not in: a pod that has ended, a container that has exited, or the other way round.
    pub fn misreported(&self) -> Thing {
        let ended = match self.kind {
            Kind::Pod => 1,
            Kind::Container => 2,
        };
        let state = if self.state() == ended { 0 } else { ended };
        Thing {
            states: vec![(self.born, state)],
            ..self.clone()
        }
    }

    pub fn state(&self) -> i32 {
        self.states[self.states.len() - 1].1
    }

    /// The states that it has had since then.
    pub fn states_since(&self, from: Moment) -> impl Iterator<Item = i32> {
        let first = self.states.iter().rposition(|(at, _)| *at <= from);
        let states = self.states.iter().skip(first.unwrap_or(0));
        states.map(|(_, state)| *state)
    }

    /// Whether it was there all the time from `begun` to now.
    pub fn stood(&self, begun: Moment) -> bool {
        self.born < begun && self.gone.is_none()
    }
}
