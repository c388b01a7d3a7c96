//! A pod or container: its data, its history, and when clients learned of it.

use std::collections::HashMap;

use criswitch::rpc::{Kind, SEEN_ANNOTATION};

use super::{CallId, Moment};
use crate::simulation::filter::{APP, UID};

/// Values of the label `app`.
pub const APPS: [&str; 3] = ["web", "db", "batch"];
/// The pods that are created through criswitch share this many uids. A later pod with an earlier pod's uid stands for a
/// recreated pod.
const UIDS: u64 = 6;

/// The uid of a pod with this name.
pub fn uid(name: &str) -> String {
    let number = name.rsplit_once('-').map(|(_, number)| number.parse());
    match number {
        Some(Ok::<u64, _>(number)) if !name.starts_with(DIRECT) => format!("uid-{}", number % UIDS),
        _ => format!("uid-{name}"),
    }
}

/// The labels of a new pod or container with this name, in a pod with this uid.
pub fn labels(uid: &str, name: &str) -> HashMap<String, String> {
    let last = name.bytes().last().unwrap_or(0);
    let app = APPS[usize::from(last) % APPS.len()];
    let pairs = [(UID, uid), (APP, app)];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    HashMap::from(pairs)
}

/// The annotations of a pod with this uid. The kubelet sets new values when it starts. Here the values depend only on
/// the uid.
pub fn annotations(uid: &str) -> HashMap<String, String> {
    HashMap::from([(SEEN_ANNOTATION.to_owned(), format!("seen-{uid}"))])
}

/// The prefix of names of pods that were created without criswitch.
pub const DIRECT: &str = "direct";

/// A pod or container that exists or was removed.
#[derive(Clone, Debug)]
pub struct Thing {
    pub kind: Kind,
    pub id: String,
    pub backend: usize,
    /// The id of the container's pod, or the id of the pod itself.
    pub pod: String,
    pub name: String,
    /// The pod's uid, which an earlier pod may have had too.
    pub uid: String,
    /// The states in the CRI's numbers, each with its first moment.
    pub states: Vec<(Moment, i32)>,
    /// The handler's name at the backend.
    pub handler: String,
    /// The call that created the thing; 0 if the thing was created without criswitch.
    pub maker: CallId,
    /// Whether a hostile runtime created the pod, with the uid and the names of another runtime's pod.
    pub poses: bool,
    pub born: Moment,
    /// The moment when the creating client got its reply.
    pub answered: Option<Moment>,
    pub gone: Option<Moment>,
    /// The moment when a client first learned of the removal.
    pub removal_told: Option<Moment>,
    /// The moment when a client first learned of the thing.
    pub told: Option<Moment>,
    /// The moment when criswitch first learned of the thing: the current instance, or an earlier instance whose state
    /// the current instance has loaded.
    pub learned: Option<Moment>,
    /// Whether an instance of criswitch ended while neither criswitch nor a client knew the pod or container. The
    /// backend may have created it after that end.
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

    pub fn labels(&self) -> HashMap<String, String> {
        labels(&self.uid, &self.name)
    }

    /// The same thing in a wrong state: a ready pod as not ready, a running container as exited, or the reverse.
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

    /// The state at `from`, and all later states.
    pub fn states_since(&self, from: Moment) -> impl Iterator<Item = i32> {
        let first = self.states.iter().rposition(|(at, _)| *at <= from);
        let states = self.states.iter().skip(first.unwrap_or(0));
        states.map(|(_, state)| *state)
    }

    /// Whether the thing existed all the time from `begun` to now.
    pub fn stood(&self, begun: Moment) -> bool {
        self.born < begun && self.gone.is_none()
    }
}
