//! The handlers that runtimes tell of, and what a switch may make of them.
//!
//! A switch hears of them when it asks, so there is a while in which what a runtime told before is right too.

use std::time::Duration;

use criswitch::config::{Handler, Table};
use fastrand::Rng;
use tokio::time::Instant;

use super::RECOVERY;

/// Handlers that runtimes may have; of the last two no row is ever written.
const POOL: [&str; 6] = ["gvisor", "kata", "old", "runc", "fc", "wasm"];
/// What every runtime tells of too, and no table may have.
const NEVER: [&str; 2] = ["", "Not_a_label"];

/// How long the switch waits for the first report of a backend with `auto_register`, and a moment to act on it.
const AWAITED: Duration = Duration::from_secs(31);

/// A runtime's handlers, one bit for each of the pool.
pub type Offer = u8;

pub fn any(rng: &mut Rng) -> Offer {
    rng.u8(..) & rng.u8(..) & ((1 << POOL.len()) - 1)
}

/// What one runtime has told of, the last of it now.
#[derive(Debug)]
pub struct Offers {
    all: Vec<Offer>,
    /// The first of them that the switch may go by.
    since: usize,
    /// It may have heard of none yet, since it has had the runtime only since then.
    unheard: bool,
    /// Those that any switch has ever registered for it; the next one goes on with them until it has heard of others.
    registered: Offer,
    had_since: Option<Instant>,
    /// It has asked, whatever became of the answer.
    asked: bool,
    /// Those that it has told, which may not have arrived.
    on_its_way: Option<usize>,
    /// Nothing has been wrong with the runtime since it was started, so the switch must have heard it.
    pub calm: bool,
    /// It goes on telling of all that it ever had.
    pub forgets_nothing: bool,
}

impl Offers {
    pub fn of(runtime: usize) -> Offers {
        let all = vec![[0b001000, 0b010010, 0b000001, 0b110010][runtime % 4]];
        Offers {
            all,
            since: 0,
            unheard: true,
            registered: 0,
            had_since: None,
            asked: false,
            on_its_way: None,
            calm: true,
            forgets_nothing: false,
        }
    }

    /// It has others from now on.
    pub fn change(&mut self, offer: Offer) {
        self.all.push(offer);
        self.on_its_way = None;
    }

    /// The names that it tells now.
    pub fn told(&self) -> impl Iterator<Item = &'static str> {
        let all = self.all.iter().fold(0, |all, one| all | one);
        let offer = if self.forgets_nothing {
            all
        } else {
            self.now()
        };
        let names = POOL.iter().enumerate();
        let names = names.filter(move |(at, _)| has(offer, *at));
        names.map(|(_, name)| *name).chain(NEVER)
    }

    fn now(&self) -> Offer {
        self.all[self.all.len() - 1]
    }

    /// The switch asks for them.
    pub fn ask(&mut self) {
        self.asked = true;
    }

    /// Whether the switch cannot know any.
    pub fn are_unknown(&self) -> bool {
        self.unheard && !self.asked
    }

    /// It has told of them.
    pub fn tell(&mut self) {
        self.on_its_way = Some(self.all.len() - 1);
    }

    /// What it told may have been lost.
    pub fn lose(&mut self) {
        self.on_its_way = None;
    }

    pub fn arrive(&mut self) {
        if let Some(heard) = self.on_its_way.take() {
            self.since = self.since.max(heard);
            self.unheard = false;
        }
    }

    /// Whether the switch must have heard the last if the runtime has been in order for a while.
    pub fn are_due(&self) -> bool {
        let had = |since: Instant| since.elapsed() >= RECOVERY;
        self.calm && self.had_since.is_some_and(had)
    }

    /// A switch has registered this for it.
    pub fn be_registered(&mut self, name: &str) {
        self.registered |= place(name).map_or(0, |at| 1 << at);
    }

    /// The switch has heard the last.
    pub fn be_heard(&mut self) {
        self.since = self.all.len() - 1;
        self.unheard = false;
    }

    /// A switch that has never asked it.
    pub fn forget(&mut self) {
        self.since = self.all.len() - 1;
        self.unheard = true;
        self.asked = false;
        self.had_since = Some(Instant::now());
        self.on_its_way = None;
    }

    /// Whether the switch may still wait for its first report before handlers of other backends are registered.
    fn may_be_awaited(&self) -> bool {
        let lately = |since: Instant| since.elapsed() <= AWAITED;
        self.unheard && self.had_since.is_none_or(lately)
    }

    /// Whether the switch may go by that it has the handler.
    fn may_have(&self, name: &str) -> bool {
        let mut all = self.all[self.since..].iter();
        let may = |at| all.any(|offer| has(*offer, at)) || self.unheard && has(self.registered, at);
        place(name).is_some_and(may)
    }

    /// Whether it must.
    fn must_have(&self, name: &str) -> bool {
        let mut all = self.all[self.since..].iter();
        !self.unheard && place(name).is_some_and(|at| all.all(|offer| has(*offer, at)))
    }
}

fn place(name: &str) -> Option<usize> {
    POOL.iter().position(|it| *it == name)
}

fn has(offer: Offer, at: usize) -> bool {
    offer & (1 << at) != 0
}

/// What is wrong with `live`, the table that the switch goes by, if the files say `written` and runtimes reported these
/// offers. A backend that `had_pods` may have kept a handler that others have too; for one that `is_new` to the switch
/// others may have to wait.
pub fn wrong_table(
    written: &Table,
    live: &Table,
    offers: &[Offers],
    had_pods: impl Fn(usize) -> bool,
    is_new: impl Fn(usize) -> bool,
) -> Result<(), String> {
    let by_hand = live.handlers.iter().filter(|row| row.origin.is_some());
    if !by_hand.eq(&written.handlers) || live.default != written.default {
        return Err("the table has not the rows that are written".to_owned());
    }
    let registering = written.backends.iter().filter(|row| row.auto_register);
    let registering: Vec<usize> = registering.map(|row| row.id).collect();
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
                let others = must.iter().filter(|at| **at != row.backend);
                let is_alone = others.count() == 0 || had_pods(row.backend);
                may.contains(&row.backend) && is_alone && row.backend_handler == *name
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
