//! The handlers that runtimes report, and the handlers that criswitch may register for them.
//!
//! criswitch learns that a report has changed only when it asks the runtime again. Until then, the judge also accepts a
//! table that follows an earlier report.

use std::time::Duration;

use criswitch_config::{Handler, Table};
use fastrand::Rng;
use tokio::time::Instant;

use super::RECOVERY;
use super::tables::{id_of, runtime_of};

/// Handlers that runtimes may have. No file has an entry for the last two.
const POOL: [&str; 6] = ["gvisor", "kata", "old", "runc", "fc", "wasm"];
/// Invalid names that every runtime reports. No table may have them.
const NEVER: [&str; 2] = ["", "Not_a_label"];

/// How long criswitch waits for the first report of a backend with `auto_register`, plus time to apply it.
const AWAITED: Duration = Duration::from_secs(31);

/// A runtime's handlers, one bit for each of `POOL`.
pub type Offer = u8;

pub fn any(rng: &mut Rng) -> Offer {
    rng.u8(..) & rng.u8(..) & ((1 << POOL.len()) - 1)
}

/// The reports of one runtime, each a set of handlers. The last report in `all` is the current one.
#[derive(Debug)]
pub struct Offers {
    all: Vec<Offer>,
    /// The index of the first report that criswitch may still use.
    since: usize,
    /// Whether criswitch may have no report of the runtime yet.
    unanswered: bool,
    /// The handlers that any instance has registered for the runtime. The next instance keeps these handlers until the
    /// runtime's first report.
    registered: Offer,
    had_since: Option<Instant>,
    /// Whether criswitch has asked for the handlers, even if the answer may be lost.
    asked: bool,
    /// The index of a report that may not have arrived yet.
    on_its_way: Option<usize>,
    /// Whether the runtime has had no fault since its start that could delay or lose its report of handlers.
    pub calm: bool,
    /// Whether the runtime reports every handler that it ever had.
    pub forgets_nothing: bool,
}

impl Offers {
    pub fn of(runtime: usize) -> Offers {
        let all = vec![[0b001000, 0b010010, 0b000001, 0b110010][runtime % 4]];
        Offers {
            all,
            since: 0,
            unanswered: true,
            registered: 0,
            had_since: None,
            asked: false,
            on_its_way: None,
            calm: true,
            forgets_nothing: false,
        }
    }

    /// Changes the handlers that the runtime reports.
    pub fn change(&mut self, offer: Offer) {
        self.all.push(offer);
        self.on_its_way = None;
    }

    /// The names that the runtime reports now.
    pub fn shown(&self) -> impl Iterator<Item = &'static str> {
        let all = self.all.iter().fold(0, |all, one| all | one);
        let offer = if self.forgets_nothing {
            all
        } else {
            self.now()
        };
        let names = POOL
            .iter()
            .enumerate()
            .filter(move |(at, _)| has(offer, *at));
        names.map(|(_, name)| *name).chain(NEVER)
    }

    fn now(&self) -> Offer {
        self.all[self.all.len() - 1]
    }

    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether criswitch cannot know any handler of the runtime.
    pub fn are_unknown(&self) -> bool {
        self.unanswered && !self.asked
    }

    /// Records that the runtime has sent a report.
    pub fn report(&mut self) {
        self.on_its_way = Some(self.all.len() - 1);
    }

    /// Records that the last report may be lost.
    pub fn lose(&mut self) {
        self.on_its_way = None;
    }

    pub fn arrive(&mut self) {
        if let Some(arrived) = self.on_its_way.take() {
            self.since = self.since.max(arrived);
            self.unanswered = false;
        }
    }

    /// Whether criswitch must have the last report, if the runtime has been healthy for [`RECOVERY`].
    pub fn are_due(&self) -> bool {
        let had = |since: Instant| since.elapsed() >= RECOVERY;
        self.calm && self.had_since.is_some_and(had)
    }

    /// Notes that an instance of criswitch has registered this handler for the runtime.
    pub fn be_registered(&mut self, name: &str) {
        self.registered |= place(name).map_or(0, |at| 1 << at);
    }

    /// Notes that criswitch has received the last report.
    pub fn receive(&mut self) {
        self.since = self.all.len() - 1;
        self.unanswered = false;
    }

    /// Notes that criswitch has no report of the runtime, because the instance or the backend is new.
    pub fn forget(&mut self) {
        self.since = self.all.len() - 1;
        self.unanswered = true;
        self.asked = false;
        self.had_since = Some(Instant::now());
        self.on_its_way = None;
    }

    /// Whether criswitch may still wait for the first report before it registers handlers of other backends.
    fn may_be_awaited(&self) -> bool {
        let lately = |since: Instant| since.elapsed() <= AWAITED;
        self.unanswered && self.had_since.is_none_or(lately)
    }

    /// Whether criswitch may route the handler to the runtime.
    fn may_have(&self, name: &str) -> bool {
        let mut all = self.all[self.since..].iter();
        let may =
            |at| all.any(|offer| has(*offer, at)) || self.unanswered && has(self.registered, at);
        place(name).is_some_and(may)
    }

    /// Whether criswitch must know that the runtime has the handler.
    fn must_have(&self, name: &str) -> bool {
        let mut all = self.all[self.since..].iter();
        !self.unanswered && place(name).is_some_and(|at| all.all(|offer| has(*offer, at)))
    }
}

fn place(name: &str) -> Option<usize> {
    POOL.iter().position(|it| *it == name)
}

fn has(offer: Offer, at: usize) -> bool {
    offer & (1 << at) != 0
}

/// Checks `live`, which is the table that criswitch uses, against the rows in the files (`written`) and the reports of
/// the runtimes (`offers`). If `had_pods` is true for a backend, the backend may keep a handler that other backends
/// report too. While `is_new` is true for any backend with `auto_register`, a reported handler may still be
/// unregistered.
pub fn wrong_table(
    written: &Table,
    live: &Table,
    offers: &[Offers],
    had_pods: impl Fn(usize) -> bool,
    is_new: impl Fn(usize) -> bool,
) -> Result<(), String> {
    let by_hand = live.handlers.iter().filter(|row| row.origin.is_some());
    if !by_hand.eq(&written.handlers) || live.default != written.default {
        return Err("the rows or the default of the table differ from the files".to_owned());
    }
    let registers = |at: &usize| {
        written
            .backend(id_of(*at))
            .is_some_and(|row| row.auto_register)
    };
    let registering: Vec<usize> = (0..offers.len()).filter(registers).collect();
    let mut all = registering.iter();
    let awaits = all.any(|at| is_new(*at) || offers[*at].may_be_awaited());
    for name in POOL.iter().chain(&NEVER) {
        let row = |row: &&Handler| row.name == *name && row.origin.is_none();
        let mut rows = live.handlers.iter().filter(row);
        let (registered, twice) = (rows.next(), rows.next().is_some());
        let written = !name.is_empty() && written.handler(name).is_some();
        let may = |at: &&usize| !written && offers[**at].may_have(name);
        let must = |at: &&usize| !written && offers[**at].must_have(name);
        let may: Vec<usize> = registering.iter().filter(may).copied().collect();
        let must: Vec<usize> = registering.iter().filter(must).copied().collect();
        let right = match registered {
            Some(row) => {
                let others = must.iter().filter(|at| **at != runtime_of(row));
                let is_alone = others.count() == 0 || had_pods(runtime_of(row));
                may.contains(&runtime_of(row)) && is_alone && row.backend_handler == *name
            }
            None => must.is_empty() || may.len() > 1 || awaits,
        };
        if !right || twice {
            return Err(format!(
                "{name:?} is registered as {registered:?}; backends {must:?} have reported it, and backends {may:?} may have"
            ));
        }
    }
    Ok(())
}
