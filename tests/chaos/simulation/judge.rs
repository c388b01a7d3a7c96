//! Compares replies with the truth. A reply is a violation if a kubelet would draw a wrong conclusion from it.

mod ending;
pub mod events;
mod images;
mod lacking;
mod lists;
mod node;
mod tables;
mod time;

use std::fmt;

use criswitch_cri::rpc::{self, Goes, ImageRule, Kind, Merge, Unknown};

use criswitch::switch::Switch;
pub use time::overdue;
use tokio::time::Instant;
use tonic::Code;

use super::client::{Call, Reply};
use super::files::RUNTIMES;
use super::offers::Offers;
use super::plan::creates;
use super::tables::{Places, runtime_of};
use super::truth::{Moment, Seen, Thing, Truth};

/// A call that a client has made.
#[derive(Clone, Debug)]
pub struct Asked {
    pub call: Call,
    pub begun: Moment,
    /// The instance of criswitch that got the call.
    pub life: u64,
    pub at: Instant,
    /// The backends of criswitch when the call began.
    pub places: Places,
    /// The backends that accepted calls and did not answer when the call began.
    pub silent: Vec<usize>,
}

impl Asked {
    pub fn updates(&self) -> bool {
        matches!(self.call.row.goes, Goes::All(_, Merge::UpdateRuntimeConfig))
    }

    /// Whether the call is an image call for one handler or pod.
    pub fn names_store(&self) -> bool {
        !self.call.handler.is_empty() || !self.call.uid.is_empty()
    }

    pub fn is_events(&self) -> bool {
        matches!(self.call.row.goes, Goes::All(_, Merge::Events))
    }
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call {
            id,
            row,
            names,
            filter,
            timeout,
            ..
        } = &self.call;
        write!(f, "call {id}, {}(", row.name)?;
        if filter.is_empty() {
            write!(f, "{names:?}")?
        } else {
            write!(f, "{filter:?}")?
        }
        write!(f, "), timeout {timeout:?}")
    }
}

/// Checks that `reply` is a correct reply to `asked`, and records the facts that the client learns from the reply.
pub fn judge(
    asked: &Asked,
    reply: &Reply,
    truth: &mut Truth,
    switch: &Switch,
) -> Result<(), String> {
    truth.ended(asked.call.id);
    if matches!(asked.call.row.goes, Goes::All(_, Merge::Events)) {
        truth.cancelled();
    }
    if asked.life == truth.life {
        truth.look(switch)?;
    }
    let verdict = Case {
        asked,
        reply,
        truth,
    }
    .judge();
    verdict.map_err(|what| {
        let Reply { code, text, .. } = reply;
        let code = code.map_or("no status".to_owned(), |code| format!("{code:?}"));
        format!("{asked}: {what}; it got {code} {text:?}")
    })?;
    if asked.updates() && asked.life == truth.life {
        let taken = reply.code == Some(Code::Ok);
        truth
            .updates
            .end(taken.then(|| asked.call.message.to_vec()));
    }
    if asked.call.row.name == "Status" && reply.code != Some(Code::Ok) {
        // The failed Status call may have dropped the replies of other backends, and so their reports of handlers.
        truth.offers.iter_mut().for_each(Offers::lose);
    }
    if matches!(reply.code, Some(Code::Ok | Code::InvalidArgument)) {
        truth.settle_creating(asked.call.id);
    }
    if reply.code == Some(Code::Ok) {
        truth.used(asked.call.id);
        note(asked, reply, truth);
    }
    Ok(())
}

/// Checks that every backend has the last runtime configuration that a client sent.
pub fn configured(truth: &Truth) -> Result<(), String> {
    let Some(config) = &truth.updates.last else {
        return Ok(());
    };
    let mut there = (0..RUNTIMES).filter(|at| truth.tables.places[*at].is_some());
    let lacks = |at| truth.lacks(at, &rpc::UPDATE_RUNTIME_CONFIG);
    match there.find(|at| !lacks(*at) && truth.health[*at].config != *config) {
        Some(backend) => Err(format!(
            "backend {backend} does not have the last runtime configuration that a client sent"
        )),
        None => Ok(()),
    }
}

/// Checks that criswitch remembers as many pods and containers of each backend as the backend has.
pub fn memory(truth: &Truth, switch: &Switch) -> Result<(), String> {
    for id in &truth.tables.ids {
        let mut places = truth.tables.places.iter();
        let backend = places.position(|place| place.is_some_and(|place| place.id == *id));
        let owners = switch.owners();
        for kind in [Kind::Pod, Kind::Container] {
            let listed = backend.map_or(Vec::new(), |it| truth.listed_by(it, kind).collect());
            let is_own = |thing: &&&Thing| Some(thing.backend) == backend;
            let sure = listed.iter().filter(|it| it.is_sure(Moment::MAX));
            let (least, own) = (
                sure.filter(is_own).count(),
                listed.iter().filter(is_own).count(),
            );
            let others = listed.iter().filter(|it| !is_own(it) && !it.owned).count();
            let remembered = owners.count_of(kind, *id);
            if !(least..=own + others).contains(&remembered) {
                return Err(format!(
                    "backend {id:?} at {backend:?} has {own} of {kind:?} and may have {others} more, criswitch remembers {remembered}"
                ));
            }
        }
    }
    Ok(())
}

/// A call, its reply and the truth.
struct Case<'a> {
    asked: &'a Asked,
    reply: &'a Reply,
    truth: &'a Truth,
}

impl Case<'_> {
    fn judge(&self) -> Result<(), String> {
        let Some(code) = self.reply.code else {
            return self.broke_off();
        };
        self.ends_with_the_switch()?;
        self.deadline(code)?;
        self.unless(
            self.asked.is_events()
                && !self.is_ending()
                && !matches!(code, Code::DeadlineExceeded | Code::Unimplemented),
            "the event stream ended before its deadline and without a shutdown",
        )?;
        self.who_got_it()?;
        self.service(code)?;
        if code != Code::Ok {
            return self.failure(code);
        }
        match &self.asked.call.row.goes {
            Goes::Handler(_) => self.made(Kind::Pod),
            Goes::OwnerWithImage(_) => self.made(Kind::Container),
            Goes::Owner(kind, _, unknown) => self.owned(*kind, *unknown),
            Goes::Image(_, rule) => self.image(rule),
            Goes::All(_, Merge::Status) => self.node(),
            Goes::All(..) => self.list(),
            Goes::Default => Ok(()),
        }
    }

    fn unless(&self, wrong: bool, what: &str) -> Result<(), String> {
        if wrong { Err(what.to_owned()) } else { Ok(()) }
    }

    /// The calls of the same RPC that backends accepted because of this client's call.
    fn got(&self) -> impl Iterator<Item = &Seen> {
        let Call { id, row, .. } = &self.asked.call;
        self.truth
            .seen
            .iter()
            .filter(move |seen| seen.call == *id && seen.row.name == row.name && !seen.was_rejected)
    }

    /// The pod or container that the call names. `None` if no item or several items match.
    fn thing(&self, kind: Kind) -> Option<&Thing> {
        let names = &self.asked.call.names;
        let mut hits = self
            .truth
            .things
            .iter()
            .filter(|thing| thing.kind == kind && thing.id.starts_with(names));
        hits.next()
            .filter(|_| hits.next().is_none() && !names.is_empty())
    }

    /// The backends that the call may go to under at least one of the possible tables. `None` means any backend.
    fn only(&self) -> Option<Vec<usize>> {
        let owners = |kind| self.thing(kind).map(|thing| self.holders(thing));
        match self.asked.call.row.goes {
            Goes::Handler(_) => Some(self.rows().map(runtime_of).collect()),
            Goes::Owner(kind, ..) => Some(owners(kind).unwrap_or_default()),
            Goes::OwnerWithImage(_) => Some(owners(Kind::Pod).unwrap_or_default()),
            Goes::Default => Some(self.default_backends().collect()),
            Goes::Image(..) if self.handler().is_some() => {
                Some(self.rows().map(runtime_of).collect())
            }
            Goes::Image(..) => self.stores_of_pod(),
            _ => None,
        }
    }

    /// The backends to which the call may go if it names `thing`. If the owner no longer lists `thing`, a hostile
    /// backend that claimed `thing` may own it until the next list of that backend.
    fn holders(&self, thing: &Thing) -> Vec<usize> {
        let is_lost = thing.gone.is_some() && thing.removal_reported.is_none();
        let hostile = self.truth.hostile().into_iter().filter(|_| is_lost);
        let holders = thing.holders(self.asked.begun).into_iter();
        holders.chain(hostile).collect()
    }

    /// The largest number of times that one backend may get the call. criswitch looks for an image up to three times:
    /// in the stores of the pods that need the image, then in all stores, then again if a store was late.
    fn most_times(&self) -> usize {
        match self.asked.call.row.goes {
            Goes::Image(_, ImageRule::Find(_)) => 3,
            _ => 1,
        }
    }

    fn who_got_it(&self) -> Result<(), String> {
        let only = self.only();
        let seen = self.truth.seen.iter();
        let rejected = seen.filter(|seen| seen.was_rejected && seen.call == self.asked.call.id);
        self.unless(
            creates(self.asked.call.row) && rejected.count() > 2,
            "a rejected call was sent again more than once",
        )?;
        for seen in self.got() {
            let times = self
                .got()
                .filter(|other| other.backend == seen.backend)
                .count();
            self.unless(times > self.most_times(), "a backend got it too often")?;
            let wrong = only
                .as_ref()
                .is_some_and(|only| !only.contains(&seen.backend));
            self.unless(
                wrong || !self.was_there(seen.backend),
                "the call went to a backend that it does not concern",
            )?;
            let named = |handler: &String| {
                let mut rows = self.rows().filter(|row| runtime_of(row) == seen.backend);
                rows.any(|row| row.backend_handler == *handler)
            };
            self.unless(
                seen.handler.as_ref().is_some_and(|handler| !named(handler)),
                "a backend got a handler name that its row does not have",
            )?;
        }
        self.unless(
            creates(self.asked.call.row) && self.got().count() > 1,
            "it was sent twice",
        )
    }

    fn failure(&self, code: Code) -> Result<(), String> {
        let spoilt = self.truth.seen.iter().any(|seen| seen.spoilt);
        let kind = match self.asked.call.row.goes {
            Goes::Owner(kind, ..) => Some(kind),
            Goes::OwnerWithImage(_) => Some(Kind::Pod),
            _ => None,
        };
        match code {
            Code::NotFound => {
                let begun = self.asked.begun;
                let exists = kind.is_none_or(|kind| {
                    self.thing(kind).is_some_and(|thing| {
                        thing.stood(begun) && thing.is_settled(begun) && self.must_know(thing)
                    })
                });
                self.unless(
                    exists,
                    "NotFound is wrong: the pod or container exists, or the call names none",
                )
            }
            Code::InvalidArgument => {
                self.unless(
                    !self.may_be_unknown(),
                    "InvalidArgument is wrong: no possible table lacks the handler",
                )?;
                self.unless(self.may_be_registered(), "InvalidArgument is wrong: a backend with auto_register has not reported yet and may have the handler")
            }
            Code::Unimplemented => self.unless(
                !self.may_be_unimplemented(),
                "Unimplemented is wrong: a backend or a fallback could answer the call",
            ),
            Code::Unavailable | Code::DeadlineExceeded => Ok(()),
            Code::FailedPrecondition if self.may_be_doubled() || self.may_be_in_use() => Ok(()),
            _ => self.unless(!spoilt, "no fault so far explains this code"),
        }
    }

    /// Checks that the reply names a pod or container that this call created.
    fn made(&self, kind: Kind) -> Result<(), String> {
        let id = self.reply.string(&[1]);
        let thing = self
            .truth
            .thing(kind, &id)
            .ok_or("the reply names no pod or container that a backend created")?;
        if thing.gone.is_some() && self.got().any(|seen| seen.spoilt) {
            // A hostile backend may answer with another backend's id. If that item was removed meanwhile, criswitch
            // cannot notice the wrong id.
            return Ok(());
        }
        self.unless(
            thing.maker != self.asked.call.id,
            "a different call created the pod or container in the reply",
        )?;
        let pod = self.thing(Kind::Pod).is_some_and(|pod| pod.id == thing.pod);
        self.unless(
            kind == Kind::Container && !pod,
            "the container is in another pod",
        )
    }

    /// Whether the reply may be a kept status: the last status of the thing, which criswitch returns while the backend
    /// is down or late. A kept status is never older than the state that a list would show.
    fn is_kept(&self, thing: &Thing) -> bool {
        let begun = self.asked.begun;
        let is_there = thing.removal_reported.is_none_or(|at| at > begun);
        let state = self.reply.number(&[1, 3]) as i32;
        let mut states = thing.states_since(self.as_of_thing(thing));
        self.asked.call.row.name.ends_with("Status")
            && is_there
            && states.any(|shown| shown == state)
    }

    fn owned(&self, kind: Kind, unknown: Unknown) -> Result<(), String> {
        let Some(thing) = self.thing(kind) else {
            return self.unless(
                unknown == Unknown::NotFound,
                "the call succeeded, but the pod or container never existed",
            );
        };
        let done = self.got().any(|seen| seen.executed);
        let there = thing.stood(self.asked.begun) && self.must_know(thing);
        self.unless(
            (there || unknown == Unknown::NotFound) && !done && !self.is_kept(thing),
            "the owner did not execute the call",
        )?;
        // criswitch forwards a status without reading it, but a kept status must be readable.
        let is_spoilt = self.got().any(|seen| seen.spoilt);
        self.unless(
            !is_spoilt && !self.is_readable(),
            "the reply cannot be decoded, although no backend sent it now",
        )?;
        match self.asked.call.row.name {
            "PodSandboxStatus" => {
                self.unless(
                    self.reply.string(&[1, 1]) != thing.id,
                    "the reply is about a different pod",
                )?;
                self.unless(
                    !self.is_name(thing, &self.reply.string(&[1, 9])),
                    "the reply has a wrong handler",
                )
            }
            "ContainerStatus" => self.unless(
                self.reply.string(&[1, 1]) != thing.id,
                "the reply is about a different container",
            ),
            _ => Ok(()),
        }
    }
}

/// Records the facts that the client and criswitch know after a successful reply.
fn note(asked: &Asked, reply: &Reply, truth: &mut Truth) {
    let now = truth.tick();
    let made = truth.things.iter_mut();
    made.filter(|thing| thing.maker == asked.call.id)
        .filter(|thing| !thing.shared || thing.is_settled(Moment::MAX) && !thing.unanswered)
        .for_each(|thing| {
            thing.answered = Some(now);
            thing.owned |= thing.shared;
        });
    let unread = asked.call.row.streams() && asked.call.id <= truth.alone;
    let same_switch = truth.life == asked.life && !unread;
    let (places, calls_before) = (truth.tables.places, truth.tables.calls_before);
    let learn = |thing: &mut Thing| {
        // The reply says nothing about a thing that passed to another backend after the call began. The reply also says
        // nothing about a thing that may come from the cached list of an earlier owner.
        let is_passed = thing.shared && thing.born >= asked.begun;
        if is_passed || !thing.is_settled(asked.begun) {
            return;
        }
        thing.shown = thing.shown.or(Some(now));
        let is_sure = thing.copies.is_empty() || thing.owned;
        // criswitch learns nothing from a call that was sent before the backend was forgotten.
        let is_old = asked.call.id <= calls_before[thing.backend];
        if same_switch && places[thing.backend].is_some() && is_sure && !is_old {
            thing.learned = thing.learned.or(Some(now));
        }
    };
    let names = &asked.call.names;
    match asked.call.row.name {
        "RunPodSandbox" | "RestorePod" => truth
            .thing_mut(Kind::Pod, &reply.string(&[1]))
            .map_or((), learn),
        "CreateContainer" => truth
            .thing_mut(Kind::Container, &reply.string(&[1]))
            .map_or((), learn),
        "ListPodSandbox" | "ListContainers" | "StreamPodSandboxes" | "StreamContainers" => {
            let ids = reply.strings(&[1, 1]);
            truth
                .things
                .iter_mut()
                .filter(|thing| ids.contains(&thing.id))
                .for_each(learn);
        }
        "RemovePodSandbox" | "RemoveContainer" => {
            let removed = truth.things.iter_mut().filter(|thing| {
                thing.gone.is_some() && (thing.id == *names || thing.pod == *names)
            });
            removed.for_each(|thing| thing.removal_reported = thing.removal_reported.or(Some(now)));
        }
        "PullImage" => {
            let got = truth.seen.iter().filter(|it| it.call == asked.call.id);
            let pulled_at: Vec<_> = got.filter(|it| it.executed).map(|it| it.backend).collect();
            let images = truth.images.iter_mut();
            let pulled = images.filter(|it| {
                it.image == *names && it.gone.is_none() && pulled_at.contains(&it.backend)
            });
            pulled.for_each(|it| it.shown = it.shown.or(Some(now)));
        }
        _ => {}
    }
}
