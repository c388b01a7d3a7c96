//! A pod or container: its data, its history, and when clients learned of it.

use std::collections::HashMap;

use criswitch_cri::rpc::{Kind, SEEN_ANNOTATION};

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
    let pairs = [(UID, uid), (APP, app)].map(|(key, value)| (key.to_owned(), value.to_owned()));
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
    pub removal_reported: Option<Moment>,
    /// The moment when a client first learned of the thing.
    pub shown: Option<Moment>,
    /// The moment when criswitch first learned of the thing: the current instance, or an earlier instance whose state
    /// the current instance has loaded.
    pub learned: Option<Moment>,
    /// Whether an instance of criswitch ended while neither criswitch nor a client knew the pod or container. The
    /// backend may have created it after that end.
    pub unanswered: bool,
    /// The other backends that list the thing.
    pub copies: Vec<Copied>,
    /// The backends that listed the thing and no longer do.
    pub left: Vec<Left>,
    /// Whether criswitch must know that `backend` is the owner, although other backends list the thing too.
    pub owned: bool,
    /// Whether the files lost that the thing was created through criswitch.
    pub lost: bool,
    /// Whether several backends have listed the thing at some time.
    pub shared: bool,
    /// Whether criswitch had to forget the thing while no other backend was known to list it.
    pub forgotten: bool,
}

/// A backend that lists a thing of another backend, like a second socket of one runtime.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    pub at: usize,
    pub since: Moment,
    /// The moment when criswitch first received a list with the copy.
    pub learned: Option<Moment>,
    /// Whether the copy has another time of creation.
    pub odd: bool,
}

/// A backend that no longer lists a thing.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    pub backend: usize,
    pub at: Moment,
    /// Whether criswitch may have taken the backend for the owner.
    pub may_own: bool,
    /// The moment when criswitch received a list without the thing, or removed the backend.
    pub settled: Option<Moment>,
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
            removal_reported: None,
            shown: None,
            learned: None,
            unanswered: false,
            copies: Vec::new(),
            left: Vec::new(),
            owned: false,
            lost: false,
            shared: false,
            forgotten: false,
        }
    }

    /// Notes that the backend `at` lists the thing too.
    pub fn copy(&mut self, at: usize, since: Moment, odd: bool) {
        let alone = self.copies.is_empty() && self.is_settled(Moment::MAX);
        self.owned = alone && self.learned.is_some();
        self.shared = true;
        self.copies.push(Copied {
            at,
            since,
            learned: None,
            odd,
        });
    }

    /// Notes that the backend `at` no longer lists its copy of the thing.
    pub fn drop_copy(&mut self, at: usize, now: Moment) {
        let before = self.copies.len();
        self.copies.retain(|copy| copy.at != at);
        if self.copies.len() < before {
            self.leave(at, now, !self.owned);
            self.forget_if_known_by_copy();
        }
    }

    /// Notes that criswitch has forgotten the backend `at`.
    pub fn forget_copy(&mut self, at: usize) {
        let Some(copy) = self.copies.iter_mut().find(|copy| copy.at == at) else {
            return;
        };
        copy.learned = None;
        self.forget_if_known_by_copy();
    }

    /// Notes that criswitch has lost a copy. If criswitch knew only that copy, it has forgotten the thing.
    fn forget_if_known_by_copy(&mut self) {
        if self.learned.is_none() {
            self.shown = None;
            self.forgotten = true;
        }
    }

    /// Notes that `backend` no longer lists the thing.
    pub fn leave(&mut self, backend: usize, at: Moment, may_own: bool) {
        self.left.push(Left {
            backend,
            at,
            may_own,
            settled: None,
        });
    }

    /// Notes that the owner has lost the thing. A hostile backend that has claimed the thing may own it until a list
    /// shows that this backend does not have it.
    pub fn leave_to(&mut self, hostile: &[usize], now: Moment) {
        hostile.iter().for_each(|at| self.leave(*at, now, true));
        self.shared |= !hostile.is_empty();
    }

    /// Passes the thing to the first backend that lists a copy. If `stays` is true, criswitch has forgotten the
    /// previous backend; otherwise the previous backend no longer lists the thing. Returns whether there is a copy.
    pub fn pass(&mut self, now: Moment, stays: bool) -> bool {
        if self.copies.is_empty() {
            return false;
        }
        let copy = self.copies.remove(0);
        if stays {
            self.copies.push(Copied {
                at: self.backend,
                since: now,
                learned: None,
                odd: copy.odd,
            });
        } else {
            self.leave(self.backend, now, true);
        }
        self.backend = copy.at;
        self.born = now;
        self.learned = copy.learned;
        // If criswitch does not know the copy, it may report the thing as deleted.
        self.forgotten |= copy.learned.is_none();
        (self.shown, self.answered) = (None, None);
        (self.owned, self.unanswered) = (false, true);
        true
    }

    /// Whether criswitch had learned, before the moment `before`, that no earlier backend lists the thing any more.
    pub fn is_settled(&self, before: Moment) -> bool {
        let mut left = self.left.iter().filter(|left| left.may_own);
        left.all(|it| it.settled.is_some_and(|at| at < before))
    }

    /// Whether criswitch must know, at the moment `at`, which backend owns the thing.
    pub fn is_sure(&self, at: Moment) -> bool {
        self.is_settled(at) && (self.copies.is_empty() || self.owned)
    }

    /// All backends that list the thing or have listed it.
    pub fn sources(&self) -> impl Iterator<Item = usize> {
        let copies = self.copies.iter().map(|copy| copy.at);
        let left = self.left.iter().map(|left| left.backend);
        [self.backend].into_iter().chain(copies).chain(left)
    }

    /// The backends to which a call that begins at `begun` may go.
    pub fn holders(&self, begun: Moment) -> Vec<usize> {
        let copies = self.copies.iter().filter(|_| !self.owned);
        let is_open = |left: &&Left| left.may_own && left.settled.is_none_or(|at| at >= begun);
        let left = self.left.iter().filter(is_open).map(|left| left.backend);
        let copies = copies.map(|copy| copy.at);
        [self.backend]
            .into_iter()
            .chain(copies)
            .chain(left)
            .collect()
    }

    /// The other backends that also list the containers that `backend` creates in this pod.
    pub fn others(&self, backend: usize) -> Vec<Copied> {
        let mut others = self.copies.clone();
        if self.backend != backend {
            let own = others.first().copied();
            others.extend(own.map(|copy| Copied {
                at: self.backend,
                ..copy
            }));
        }
        others.retain(|copy| copy.at != backend);
        others
    }

    /// Whether `backend` lists the thing.
    pub fn is_listed_by(&self, backend: usize) -> bool {
        self.backend == backend || self.copies.iter().any(|copy| copy.at == backend)
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
