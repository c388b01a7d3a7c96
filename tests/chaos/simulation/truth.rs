//! The truth: every pod, container and image so far, the calls that reached each backend, and the facts that clients
//! saw.
//!
//! A moment is the number of an event in the order of events. The time would not distinguish events, because many
//! events happen within one tick of the paused clock.

mod restart;
mod shared;
mod thing;

use std::time::Duration;

use criswitch_cri::rpc::{Kind, List, Row};
use tokio::time::Instant;

use super::files::RUNTIMES;
use super::lacking::{Lacking, lacks};
use super::offers::Offers;
use super::plan::Garbled;
use super::tables::Tables;
pub use restart::{Before, Next};
pub use thing::{APPS, Copied, DIRECT, Thing, annotations, labels, uid};

/// The default of `shutdown_timeout`.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How long the first calls may wait for backends without a known list.
pub const START_WAIT: Duration = Duration::from_secs(30);

/// A moment in the order of events.
pub type Moment = u64;
/// A client's call; 0 is a call of criswitch itself.
pub type CallId = u64;

/// An image in one backend's store.
#[derive(Debug)]
pub struct Stored {
    pub backend: usize,
    pub image: String,
    pub gone: Option<Moment>,
    /// Whether a client pulled the image, so that an earlier list of the store lacks it.
    pub pulled: bool,
    /// The moment when a client first saw the image; 0 for images from the start.
    pub shown: Option<Moment>,
}

/// A call that reached a backend.
#[derive(Debug)]
pub struct Seen {
    pub call: CallId,
    pub backend: usize,
    pub row: &'static Row,
    /// The handler in the call.
    pub handler: Option<String>,
    pub executed: bool,
    /// Whether a fault affected the call.
    pub spoilt: bool,
    /// Whether the backend rejected the call's stream, so that criswitch may send the call again, once.
    pub was_rejected: bool,
}

/// A list without a filter, or all stats, that a backend sent undamaged.
#[derive(Debug)]
pub struct Listing {
    pub call: CallId,
    pub backend: usize,
    pub list: List,
    pub at: Moment,
    pub taken: Instant,
    /// The moment by which criswitch must have received the list; `None` while the receipt is uncertain.
    pub delivered: Option<Moment>,
    /// Whether the list was for criswitch itself, or for a client's call that succeeded. criswitch may have dropped any
    /// other list.
    pub used: bool,
}

/// A client's streamed list. criswitch may have forwarded the stream without reading it.
#[derive(Debug)]
pub struct Streamed {
    pub call: CallId,
    pub ended: Option<(Moment, Instant)>,
}

/// The state of one backend, apart from its pods and images.
#[derive(Debug, Default)]
pub struct Health {
    /// Whether the backend has a fault now.
    pub faulty: bool,
    /// The time of the backend's last fault.
    pub since: Option<Instant>,
    /// The moments when the backend stopped answering.
    pub silenced: Vec<Moment>,
    /// The only RPC that the backend does not answer now.
    pub hung_rpc: Option<&'static str>,
    /// Whether the backend lists pods and containers that other backends own.
    pub claims: bool,
    /// Whether the backend answers a create with an id that another backend owns.
    pub imitates: bool,
    /// Whether the backend has ever claimed or imitated anything.
    pub was_hostile: bool,
    /// Whether the backend lists each new pod of another backend from its creation on.
    pub mirrors: bool,
    /// The damage of an item in each list, if any.
    pub garbles: Option<Garbled>,
    /// The last runtime configuration that the backend accepted.
    pub config: Vec<u8>,
    /// The RPCs that each version of the backend lacks, with the moment when the version started.
    lacking: Vec<(Moment, Lacking)>,
}

/// The calls that change the runtime's configuration.
#[derive(Debug, Default)]
pub struct Updates {
    under_way: usize,
    /// Whether the last configuration is uncertain, because two updates ran at once, or an update was cancelled or
    /// failed.
    uncertain: bool,
    /// The configuration that every backend must have in the end. `None` means that the judge accepts any.
    pub last: Option<Vec<u8>>,
}

impl Updates {
    pub fn begin(&mut self) {
        self.uncertain |= self.under_way > 0;
        self.under_way += 1;
        self.last = None;
    }

    /// Notes the end of an update; `taken` is the configuration of an update that succeeded.
    pub fn end(&mut self, taken: Option<Vec<u8>>) {
        self.under_way -= 1;
        self.last = taken.filter(|_| !self.uncertain);
    }

    pub fn spoil(&mut self) {
        self.uncertain = true;
        self.last = None;
    }
}

/// A call that creates a pod.
#[derive(Debug)]
pub struct Creating {
    pub call: CallId,
    pub uid: String,
    /// The moment when the result of the call was known. Before that moment, a pod may exist that no client knows.
    pub settled: Option<Moment>,
}

#[derive(Debug, Default)]
pub struct Truth {
    now: Moment,
    made: u64,
    calls: CallId,
    /// The last call that began while criswitch had fewer than two joined backends. criswitch forwards the streams of a
    /// single backend without reading them.
    pub alone: CallId,
    pub seed: u64,
    /// The number of instances before the current instance.
    pub life: u64,
    /// The last call that began before the current instance.
    first_call: CallId,
    life_began: Moment,
    /// How long the first lists may wait for backends.
    pub start_wait: Duration,
    /// The role of each backend in the previous instance, as far as the current instance must know it.
    pub before: [Before; RUNTIMES],
    /// For each backend, whether the current instance knows the backend from a file.
    pub saved: [bool; RUNTIMES],
    /// The instances that were asked to shut down, each with the time of the request.
    ended: Vec<(u64, Instant)>,
    /// For each backend, until when the current instance may keep it for a pod that an earlier instance was creating.
    pub kept_until: [Option<Instant>; RUNTIMES],
    /// Whether the current instance has listed every joined backend.
    pub started: bool,
    /// The last time that a backend had an RPC that hung alone.
    pub rpc_hung: Option<Instant>,
    /// The last time that a backend answered slowly.
    pub slow: Option<Instant>,
    /// Moments at which every message had arrived.
    pub arrivals: Vec<Moment>,
    pub updates: Updates,
    pub creating: Vec<Creating>,
    pub tables: Tables,
    pub things: Vec<Thing>,
    pub images: Vec<Stored>,
    pub seen: Vec<Seen>,
    pub listings: Vec<Listing>,
    pub streamed: Vec<Streamed>,
    /// The last time at which criswitch may have dropped replies to its own questions.
    dropped: Option<Instant>,
    pub health: Vec<Health>,
    /// The handlers that each runtime reports.
    pub offers: Vec<Offers>,
}

impl Truth {
    pub fn new(seed: u64) -> Truth {
        Truth {
            seed,
            start_wait: START_WAIT,
            before: [Before::Joined; RUNTIMES],
            health: (0..RUNTIMES).map(|_| Health::default()).collect(),
            offers: (0..RUNTIMES).map(Offers::of).collect(),
            ..Truth::default()
        }
    }

    /// Begins the next moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// The current moment.
    pub fn moment(&self) -> Moment {
        self.now
    }

    /// The id of a client's call that begins now, and the current moment.
    pub fn begin_call(&mut self) -> (CallId, Moment) {
        self.calls += 1;
        let joined = self.tables.places.iter().flatten();
        if joined.filter(|place| place.joined).count() < 2 {
            self.alone = self.calls;
        }
        (self.calls, self.tick())
    }

    /// A unique id. Most ids differ in their first digits.
    pub fn new_id(&mut self) -> String {
        self.made += 1;
        format!(
            "{:016x}",
            fastrand::Rng::with_seed(self.seed << 20 | self.made).u64(..)
        )
    }

    pub fn thing(&self, kind: Kind, id: &str) -> Option<&Thing> {
        self.things
            .iter()
            .find(|thing| thing.kind == kind && thing.id == id)
    }

    pub fn thing_mut(&mut self, kind: Kind, id: &str) -> Option<&mut Thing> {
        self.things
            .iter_mut()
            .find(|thing| thing.kind == kind && thing.id == id)
    }

    /// The existing pods or containers of `backend`.
    pub fn at(&self, backend: usize, kind: Kind) -> impl Iterator<Item = &Thing> {
        self.things.iter().filter(move |thing| {
            thing.backend == backend && thing.kind == kind && thing.gone.is_none()
        })
    }

    /// The items that a backend claims: pods or containers of other backends that were created through the current
    /// instance, in wrong states.
    pub fn claimed_by(&self, backend: usize, kind: Kind) -> Vec<Thing> {
        if !self.health[backend].claims {
            return Vec::new();
        }
        let others = self.existing(kind).filter(|it| it.backend != backend);
        let ours = others.filter(|it| !it.shared && self.is_made_by_this_switch(it));
        ours.map(Thing::misreported).collect()
    }

    /// Whether the thing was created through the current instance, and the client got the reply.
    pub fn is_made_by_this_switch(&self, thing: &Thing) -> bool {
        thing.maker > self.first_call && thing.answered.is_some()
    }

    /// Whether criswitch may not learn what the call creates at `backend`: an earlier instance received the call, or
    /// criswitch has removed or forgotten the backend since.
    pub fn may_not_learn(&self, call: CallId, backend: usize) -> bool {
        call <= self.first_call || call <= self.tables.calls_before[backend]
    }

    /// The id that an imitating backend returns for a create. Another backend owns the id, and criswitch knows it. The
    /// call is marked as spoilt.
    pub fn imitated_by(&mut self, backend: usize, kind: Kind, call: CallId) -> Option<String> {
        if !self.health[backend].imitates {
            return None;
        }
        let others = self.existing(kind).filter(|it| it.backend != backend);
        let known = others.filter(|it| {
            let is_there = self.tables.places[it.backend].is_some();
            it.answered.is_some() && it.learned.is_some() && is_there && !it.shared
        });
        let id = known.last()?.id.clone();
        self.spoil(call, backend);
        Some(id)
    }

    /// Marks the last call `call` of `backend` as affected by a fault.
    pub fn spoil(&mut self, call: CallId, backend: usize) {
        let mut seen = self.seen.iter_mut();
        if let Some(its) = seen.rfind(|seen| seen.call == call && seen.backend == backend) {
            its.spoilt = true;
        }
    }

    /// All existing pods, or all existing containers.
    pub fn existing(&self, kind: Kind) -> impl Iterator<Item = &Thing> {
        self.things
            .iter()
            .filter(move |thing| thing.kind == kind && thing.gone.is_none())
    }

    pub fn has_image(&self, backend: usize, image: &str) -> bool {
        let mut stored = self.images.iter();
        stored.any(|it| it.backend == backend && it.image == image && it.gone.is_none())
    }

    /// Removes a pod with its containers, or a container.
    pub fn remove(&mut self, kind: Kind, id: &str) {
        let now = self.tick();
        let is_it = |thing: &&mut Thing| match kind {
            Kind::Pod => thing.pod == id,
            Kind::Container => thing.kind == kind && thing.id == id,
        };
        for thing in self.things.iter_mut().filter(is_it) {
            thing.gone = thing.gone.or(Some(now));
        }
    }

    /// Moves the pods and containers that match `which` and are in state `from` to state `to`.
    pub fn go_on(&mut self, from: i32, to: i32, which: impl Fn(&Thing) -> bool) {
        let now = self.tick();
        let going = self.things.iter_mut();
        for thing in going.filter(|thing| thing.state() == from && which(thing)) {
            thing.states.push((now, to));
        }
    }

    /// Removes all pods and containers of a backend, including their copies.
    pub fn end_all(&mut self, backend: usize) {
        let now = self.tick();
        for thing in self
            .things
            .iter_mut()
            .filter(|thing| thing.backend == backend)
        {
            thing.gone = thing.gone.or(Some(now));
        }
    }

    /// Replaces the version of a backend with a version that lacks these RPCs.
    pub fn lack(&mut self, backend: usize, lacking: Lacking) {
        let now = self.tick();
        self.health[backend].lacking.push((now, lacking));
    }

    pub fn lacks(&self, backend: usize, row: &Row) -> bool {
        self.may_lack(backend, row, Moment::MAX)
    }

    /// Whether `backend` has lacked the RPC at any moment from `since` on.
    pub fn may_lack(&self, backend: usize, row: &Row, since: Moment) -> bool {
        let versions = &self.health[backend].lacking;
        let first = versions.iter().rposition(|(from, _)| *from <= since);
        let mut versions = versions.iter().skip(first.unwrap_or(0));
        versions.any(|(_, lacking)| lacks(*lacking, row))
    }

    /// Notes whether `backend` has a fault from now on.
    pub fn set_faulty(&mut self, backend: usize, faulty: bool) {
        self.health[backend].faulty = faulty;
        self.disturbed(backend);
    }

    /// Notes that from now on only this RPC of `backend` hangs. `None` means that no RPC hangs alone.
    pub fn hang_rpc(&mut self, backend: usize, rpc: Option<&'static str>) {
        let before = std::mem::replace(&mut self.health[backend].hung_rpc, rpc);
        if before.is_some() {
            self.rpc_hung = Some(Instant::now());
        }
    }

    /// Whether an RPC of any backend hung alone at some time since `asked`.
    pub fn an_rpc_hung(&self, asked: Instant) -> bool {
        self.health.iter().any(|it| it.hung_rpc.is_some())
            || self.rpc_hung.is_some_and(|at| at >= asked)
    }

    /// Notes that messages of `backend` may be lost.
    pub fn disturbed(&mut self, backend: usize) {
        self.health[backend].since = Some(Instant::now());
        self.offers[backend].lose();
        self.listings
            .retain(|listing| listing.backend != backend || listing.delivered.is_some());
    }

    /// Notes that every message has arrived. The caller has waited for one tick of the clock, in which all tasks were
    /// idle.
    pub fn all_arrived(&mut self) {
        let now = self.tick();
        self.arrivals.push(now);
        self.offers.iter_mut().for_each(Offers::arrive);
        let Truth {
            listings,
            things,
            tables,
            dropped,
            ..
        } = self;
        for listing in listings
            .iter_mut()
            .filter(|it| it.used && it.delivered.is_none() && *dropped != Some(it.taken))
        {
            listing.delivered = Some(now);
            if tables.places[listing.backend].is_none() {
                continue;
            }
            let kind = listing.list.kind();
            for thing in things.iter_mut().filter(|it| kind == Some(it.kind)) {
                thing.be_listed(listing.backend, listing.at, now);
            }
        }
        let all = self.tables.places.iter().enumerate();
        let mut joined = all.filter(|(_, place)| place.is_some_and(|place| place.joined));
        self.started |= joined.all(|(backend, _)| self.is_listed(backend));
    }

    /// Whether `backend` is healthy and the current instance has listed the backend's containers.
    fn is_listed(&self, backend: usize) -> bool {
        let mut listings = self.listings.iter();
        let listed = listings.any(|it| {
            it.backend == backend
                && it.list == List::Containers
                && it.call == 0
                && it.at > self.life_began
        });
        listed && self.relied_upon(backend, Instant::now())
    }

    /// Notes that a client has cancelled a call, or that a stream of events has ended. criswitch may have dropped
    /// replies that were on their way, including replies to its own questions for that call.
    pub fn cancelled(&mut self) {
        self.dropped = Some(Instant::now());
        self.listings.retain(|listing| listing.delivered.is_some());
        self.offers.iter_mut().for_each(Offers::lose);
    }

    /// Notes that a client's call has ended or was cancelled.
    pub fn ended(&mut self, call: CallId) {
        let now = self.tick();
        let mut streamed = self.streamed.iter_mut();
        if let Some(streamed) = streamed.find(|streamed| streamed.call == call) {
            streamed.ended = Some((now, Instant::now()));
        }
    }

    /// Notes that the result of a call that creates a pod is known.
    pub fn settle_creating(&mut self, call: CallId) {
        let now = self.tick();
        let mut creating = self.creating.iter_mut();
        if let Some(creating) = creating.find(|creating| creating.call == call) {
            creating.settled = Some(now);
        }
    }

    /// Notes that a client's call has succeeded.
    pub fn used(&mut self, call: CallId) {
        let its = self
            .listings
            .iter_mut()
            .filter(|listing| listing.call == call);
        its.for_each(|listing| listing.used = true);
    }

    /// Notes that criswitch was asked to shut down.
    pub fn end_switch(&mut self) {
        self.ended.push((self.life, Instant::now()));
    }

    /// The time when an instance was asked to shut down.
    pub fn ended_at(&self, life: u64) -> Option<Instant> {
        let mut ended = self.ended.iter();
        ended.find(|(ended, _)| *ended == life).map(|(_, at)| *at)
    }

    /// Whether `backend` counts as healthy at `asked`: it has no fault, and its last fault is so long ago that every
    /// call for the backend must succeed.
    pub fn relied_upon(&self, backend: usize, asked: Instant) -> bool {
        let health = &self.health[backend];
        !health.faulty
            && health
                .since
                .is_none_or(|since| since + super::RECOVERY <= asked)
    }
}
