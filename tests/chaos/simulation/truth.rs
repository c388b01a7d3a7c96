//! What is so: every pod, container and image that ever was, which calls reached which backend, what clients were told.
//!
//! Moments are numbers in the order of what happened, since much happens within one tick of the paused clock.

mod restart;
mod thing;

use std::time::Duration;

use criswitch::rpc::{Kind, List, Row};
use tokio::time::Instant;

use super::files::RUNTIMES;
use super::lacking::{Lacking, lacks};
use super::offers::Offers;
use super::tables::Tables;
pub use restart::{Before, Next};
pub use thing::{APPS, DIRECT, Thing, annotations, labels, uid};

/// How long calls in flight may go on when the switch ends, by default.
pub const DRAIN: Duration = Duration::from_secs(10);

/// How long the first calls may wait for backends of which nothing is known.
pub const START_WAIT: Duration = Duration::from_secs(30);

/// A moment in the order of what happened.
pub type Moment = u64;
/// A client's call; 0 is one of the switch's own.
pub type CallId = u64;

/// An image in one backend's store.
#[derive(Debug)]
pub struct Stored {
    pub backend: usize,
    pub image: String,
    pub gone: Option<Moment>,
    /// When a client was told that it is there; 0 for what was from the start.
    pub told: Option<Moment>,
}

/// A call that a backend got.
#[derive(Debug)]
pub struct Seen {
    pub call: CallId,
    pub backend: usize,
    pub row: &'static Row,
    /// The handler that it named.
    pub handler: Option<String>,
    pub executed: bool,
    /// A fault was played on it.
    pub spoilt: bool,
}

/// A whole list, or all stats, that a backend gave unspoilt.
#[derive(Debug)]
pub struct Listing {
    pub call: CallId,
    pub backend: usize,
    pub list: List,
    pub at: Moment,
    pub taken: Instant,
    /// When the switch must have had it; `None` while that is not certain.
    pub delivered: Option<Moment>,
    /// The switch's own, or the client's call that it was for went well: others may have been dropped.
    pub used: bool,
}

/// A client's streamed list, which the switch may have passed unread.
#[derive(Debug)]
pub struct Streamed {
    pub call: CallId,
    pub ended: Option<(Moment, Instant)>,
}

/// What is so at one backend apart from what it has.
#[derive(Debug, Default)]
pub struct Health {
    /// Something is wrong with it now.
    pub faulty: bool,
    /// When something last was.
    pub since: Option<Instant>,
    /// When it stopped to answer.
    pub silenced: Vec<Moment>,
    /// It lists what others own.
    pub claims: bool,
    /// It says that it made what others own.
    pub imitates: bool,
    /// The last runtime configuration that it took.
    pub config: Vec<u8>,
    /// The RPCs that its versions lacked, and since when.
    lacking: Vec<(Moment, Lacking)>,
}

/// The calls that change the runtime's configuration.
#[derive(Debug, Default)]
pub struct Updates {
    under_way: usize,
    /// Which one counts is not certain: two were made at once, or one was refused.
    uncertain: bool,
    /// What every backend must have in the end.
    pub last: Option<Vec<u8>>,
}

impl Updates {
    pub fn begin(&mut self) {
        self.uncertain |= self.under_way > 0;
        self.under_way += 1;
        self.last = None;
    }

    /// One has ended; `taken` is what it said, if it went well.
    pub fn end(&mut self, taken: Option<Vec<u8>>) {
        self.under_way -= 1;
        self.last = taken.filter(|_| !self.uncertain);
    }

    pub fn spoil(&mut self) {
        self.uncertain = true;
        self.last = None;
    }
}

/// A call that makes a pod.
#[derive(Debug)]
pub struct Creating {
    pub call: CallId,
    pub uid: String,
    /// When it was known what it made: until then there may be one that nobody was told of.
    pub settled: Option<Moment>,
}

#[derive(Debug, Default)]
pub struct Truth {
    now: Moment,
    made: u64,
    calls: CallId,
    /// The last call that began while one backend was alone, whose streams pass unread.
    pub alone: CallId,
    pub seed: u64,
    /// How many switches there have been before this one.
    pub life: u64,
    /// The last call that began before this one.
    first_call: CallId,
    /// When this one started.
    life_began: Moment,
    /// How long the first lists may wait for backends.
    pub start_wait: Duration,
    /// What each backend was to the switch before this one, as far as this one must know.
    pub before: [Before; RUNTIMES],
    /// Which of them are known to this one by a file.
    pub saved: [bool; RUNTIMES],
    /// Which of them were told to end, and when.
    ended: Vec<(u64, Instant)>,
    /// Whether this one has been connected to every backend.
    pub started: bool,
    /// When a backend last answered slowly, if it did.
    pub slow: Option<Instant>,
    /// Moments at which all that was sent had arrived.
    pub arrivals: Vec<Moment>,
    pub updates: Updates,
    /// The calls that make a pod.
    pub creating: Vec<Creating>,
    pub tables: Tables,
    pub things: Vec<Thing>,
    pub images: Vec<Stored>,
    pub seen: Vec<Seen>,
    pub listings: Vec<Listing>,
    pub streamed: Vec<Streamed>,
    pub health: Vec<Health>,
    /// What each runtime tells of its handlers.
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

    /// The next moment.
    pub fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// The last moment.
    pub fn moment(&self) -> Moment {
        self.now
    }

    /// The id of a client's call that begins now, and the moment.
    pub fn begin_call(&mut self) -> (CallId, Moment) {
        self.calls += 1;
        let joined = self.tables.places.iter().flatten();
        if joined.filter(|place| place.joined).count() < 2 {
            self.alone = self.calls;
        }
        (self.calls, self.tick())
    }

    /// An id like no other; most differ in their first digits.
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

    /// What `backend` has now.
    pub fn at(&self, backend: usize, kind: Kind) -> impl Iterator<Item = &Thing> {
        self.things.iter().filter(move |thing| {
            thing.backend == backend && thing.kind == kind && thing.gone.is_none()
        })
    }

    /// What a backend claims: pods or containers of others that were created through the switch that runs now, and not
    /// in the state that they are in.
    pub fn claimed_by(&self, backend: usize, kind: Kind) -> Vec<Thing> {
        if !self.health[backend].claims {
            return Vec::new();
        }
        let others = self.existing(kind).filter(|it| it.backend != backend);
        let ours = others.filter(|thing| self.is_made_by_this_switch(thing));
        ours.map(Thing::misreported).collect()
    }

    /// Whether it was created through the switch that runs now, which has said so.
    pub fn is_made_by_this_switch(&self, thing: &Thing) -> bool {
        thing.maker > self.first_call && thing.answered.is_some()
    }

    /// Whether a client made the call through a switch that has ended, so nobody hears what it makes from now on.
    pub fn is_of_earlier_switch(&self, call: CallId) -> bool {
        call <= self.first_call
    }

    /// What a backend says that it made for a call: something that another backend has, and that the switch knows of.
    pub fn imitated_by(&mut self, backend: usize, kind: Kind, call: CallId) -> Option<String> {
        if !self.health[backend].imitates {
            return None;
        }
        let others = self.existing(kind).filter(|it| it.backend != backend);
        let known = others.filter(|it| {
            let is_there = self.tables.places[it.backend].is_some();
            it.answered.is_some() && it.learned.is_some() && is_there
        });
        let id = known.last()?.id.clone();
        let mut seen = self.seen.iter_mut();
        let its = seen.rfind(|seen| seen.call == call && seen.backend == backend)?;
        its.spoilt = true;
        Some(id)
    }

    /// Everything of this kind that exists.
    pub fn existing(&self, kind: Kind) -> impl Iterator<Item = &Thing> {
        self.things
            .iter()
            .filter(move |thing| thing.kind == kind && thing.gone.is_none())
    }

    pub fn has_image(&self, backend: usize, image: &str) -> bool {
        let mut stored = self.images.iter();
        stored.any(|it| it.backend == backend && it.image == image && it.gone.is_none())
    }

    /// The pod or container is gone, a pod's containers with it.
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

    /// The things of which `which` is true go on from one state to another.
    pub fn go_on(&mut self, from: i32, to: i32, which: impl Fn(&Thing) -> bool) {
        let now = self.tick();
        let going = self.things.iter_mut();
        for thing in going.filter(|thing| thing.state() == from && which(thing)) {
            thing.states.push((now, to));
        }
    }

    /// A backend has lost all that it had.
    pub fn lose_all(&mut self, backend: usize) {
        let now = self.tick();
        for thing in self
            .things
            .iter_mut()
            .filter(|thing| thing.backend == backend)
        {
            thing.gone = thing.gone.or(Some(now));
        }
    }

    /// A backend is of another version from now on.
    pub fn lack(&mut self, backend: usize, lacking: Lacking) {
        let now = self.tick();
        self.health[backend].lacking.push((now, lacking));
    }

    pub fn lacks(&self, backend: usize, row: &Row) -> bool {
        self.may_lack(backend, row, Moment::MAX)
    }

    /// Whether `backend` has lacked it at any time since then.
    pub fn may_lack(&self, backend: usize, row: &Row, since: Moment) -> bool {
        let versions = &self.health[backend].lacking;
        let first = versions.iter().rposition(|(from, _)| *from <= since);
        let mut versions = versions.iter().skip(first.unwrap_or(0));
        versions.any(|(_, lacking)| lacks(*lacking, row))
    }

    /// Whether something is wrong with `backend` from now on.
    pub fn set_faulty(&mut self, backend: usize, faulty: bool) {
        self.health[backend].faulty = faulty;
        self.disturbed(backend);
    }

    /// What `backend` has sent may not have arrived.
    pub fn disturbed(&mut self, backend: usize) {
        self.health[backend].since = Some(Instant::now());
        self.offers[backend].lose();
        self.listings
            .retain(|listing| listing.backend != backend || listing.delivered.is_some());
    }

    /// Nothing has moved for a tick of the clock: what was sent has arrived.
    pub fn all_arrived(&mut self) {
        let now = self.tick();
        self.arrivals.push(now);
        self.offers.iter_mut().for_each(Offers::arrive);
        let Truth {
            listings,
            things,
            tables,
            ..
        } = self;
        for listing in listings
            .iter_mut()
            .filter(|it| it.used && it.delivered.is_none())
        {
            listing.delivered = Some(now);
            if tables.places[listing.backend].is_none() {
                continue;
            }
            let shown = things.iter_mut().filter(|thing| {
                thing.backend == listing.backend
                    && listing.list.kind() == Some(thing.kind)
                    && thing.born < listing.at
            });
            shown.for_each(|thing| thing.learned = thing.learned.or(Some(now)));
        }
        let all = self.tables.places.iter().enumerate();
        let mut joined = all.filter(|(_, place)| place.is_some_and(|place| place.joined));
        self.started |= joined.all(|(backend, _)| self.is_listed(backend));
    }

    /// Whether `backend` is in order and the switch has listed it.
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

    /// A client has gone: what was on its way may not have been read, nor what the switch asked on its account.
    pub fn cancelled(&mut self) {
        self.listings.retain(|listing| listing.delivered.is_some());
        self.offers.iter_mut().for_each(Offers::lose);
    }

    /// A client's call has ended, or nobody waits for it any more.
    pub fn ended(&mut self, call: CallId) {
        let now = self.tick();
        let mut streamed = self.streamed.iter_mut();
        if let Some(streamed) = streamed.find(|streamed| streamed.call == call) {
            streamed.ended = Some((now, Instant::now()));
        }
    }

    /// It is known what a call that makes a pod has made.
    pub fn settle_creating(&mut self, call: CallId) {
        let now = self.tick();
        let mut creating = self.creating.iter_mut();
        if let Some(creating) = creating.find(|creating| creating.call == call) {
            creating.settled = Some(now);
        }
    }

    /// A client's call went well.
    pub fn used(&mut self, call: CallId) {
        let its = self
            .listings
            .iter_mut()
            .filter(|listing| listing.call == call);
        its.for_each(|listing| listing.used = true);
    }

    /// The switch has been told to end.
    pub fn end_switch(&mut self) {
        self.ended.push((self.life, Instant::now()));
    }

    /// When a switch was told to end.
    pub fn ended_at(&self, life: u64) -> Option<Instant> {
        let mut ended = self.ended.iter();
        ended.find(|(ended, _)| *ended == life).map(|(_, at)| *at)
    }

    /// Whether nothing has been wrong with `backend` for so long that whoever asks must get an answer.
    pub fn relied_upon(&self, backend: usize, asked: Instant) -> bool {
        let health = &self.health[backend];
        !health.faulty
            && health
                .since
                .is_none_or(|since| since + super::RECOVERY <= asked)
    }
}
