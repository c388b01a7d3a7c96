//! How long a call may take, and which calls must be answered at once although other backends fail.

use std::time::Duration;

use criswitch_cri::rpc::{Goes, ImageRule, Kind, Merge, Patience};
use tonic::Code;

use super::{Asked, Case};
use crate::simulation::files::RUNTIMES;
use crate::simulation::filter::Takes;
use crate::simulation::plan::creates;
use crate::simulation::truth::{DRAIN, Thing, Truth};

/// How long after its deadline a call may end.
pub(super) const SLACK: Duration = Duration::from_millis(100);
/// The time limit of a Status call. It is longer than criswitch waits for a slow backend before it omits the backend.
const STATUS_BOUND: Duration = Duration::from_millis(1100);

/// The time limit of a list from cache. It is longer than a merged call waits for a backend with cached lists.
const LIST_BOUND: Duration = Duration::from_millis(2100);
/// The time limit of a call while a backend hangs. It is longer than criswitch needs to notice the hang.
const HUNG_BOUND: Duration = Duration::from_secs(10);
/// The time limit of a list that needs the answer of a backend that hangs. It is longer than criswitch waits for the
/// lists that show the owner of an id, and then for the answer.
const NEEDED_BOUND: Duration = Duration::from_secs(20);
/// The time limit of a call that changes something while its backend hangs.
const CHANGE_BOUND: Duration = Duration::from_secs(75);
/// The time limit of a call while backends are slow. It is longer than the backends need for a list of pods, a list of
/// containers, and the call.
const SLOW_BOUND: Duration = Duration::from_secs(40);

/// Returns a violation if the call should have ended by now.
pub fn overdue(asked: &Asked, truth: &Truth) -> Option<String> {
    let took = asked.at.elapsed();
    let bound = asked
        .call
        .timeout
        .map(|timeout| timeout + SLACK)
        .or(patience(asked, truth))?;
    (took > bound).then(|| format!("{asked}: has not ended after {took:?}"))
}

/// The longest time that a call without a deadline may take, whatever faults the backends have. `None` means no limit.
fn patience(asked: &Asked, truth: &Truth) -> Option<Duration> {
    let hangs_alone = truth.an_rpc_hung(asked.at);
    let is_alone = asked.call.id <= truth.alone;
    let bound = match asked.call.row.goes {
        // Pulls take as long as the client waits. Events have no end.
        Goes::Image(_, ImageRule::Pull(_) | ImageRule::Remove) | Goes::All(_, Merge::Events) => {
            return None;
        }
        Goes::Handler(_) | Goes::Owner(..) | Goes::OwnerWithImage(_) => {
            match asked.call.row.patience {
                Patience::Create => return None,
                _ if is_alone && hangs_alone => return None,
                Patience::Change | Patience::Read if hangs_alone => return None,
                Patience::Change => CHANGE_BOUND,
                Patience::Short | Patience::Read => HUNG_BOUND,
            }
        }
        // criswitch forwards the reply of the only backend, so the call waits for that backend.
        Goes::All(_, Merge::UpdateRuntimeConfig | Merge::RuntimeConfig)
        | Goes::Image(_, ImageRule::Find(_))
            if is_alone && hangs_alone =>
        {
            return None;
        }
        Goes::All(_, Merge::UpdateRuntimeConfig) if is_alone => CHANGE_BOUND,
        Goes::All(_, Merge::RemoveProfile) if hangs_alone => return None,
        Goes::All(_, Merge::RemoveProfile) => CHANGE_BOUND,
        Goes::Image(_, ImageRule::Find(_)) if asked.names_store() => return None,
        // criswitch has no cached reply for a list that it never received, nor for a list of one handler's images.
        Goes::All(_, Merge::Items(_) | Merge::Streamed(..))
        | Goes::Image(_, ImageRule::List(_))
            if hangs_alone =>
        {
            // One pod's stats come from its backend only.
            if is_alone || !asked.call.row.is_list() {
                return None;
            }
            NEEDED_BOUND
        }
        Goes::All(_, Merge::Status) if truth.started => STATUS_BOUND,
        _ if truth.slow.is_some_and(|at| at > asked.at) => SLOW_BOUND,
        _ => HUNG_BOUND,
    };
    Some(if truth.started {
        bound
    } else {
        bound + truth.start_wait
    })
}

impl Case<'_> {
    pub(super) fn deadline(&self, code: Code) -> Result<(), String> {
        let took = self.reply.at - self.asked.at;
        let late = |timeout: Duration| took > timeout + SLACK;
        self.unless(
            self.asked.call.timeout.is_some_and(late),
            "it ended after its deadline",
        )?;
        let early = self.asked.call.timeout.is_none_or(|timeout| took < timeout);
        self.unless(
            code == Code::DeadlineExceeded && early,
            "its deadline has not passed",
        )
    }

    /// The pod or container that the call names, if criswitch must know it. A short id does not count: criswitch needs
    /// every backend's reply to resolve it.
    fn known(&self, kind: Kind) -> Option<&Thing> {
        let thing = self.thing(kind)?;
        (self.is_known(thing) && thing.id == self.asked.call.names).then_some(thing)
    }

    pub(super) fn is_known(&self, thing: &Thing) -> bool {
        let begun = self.asked.begun;
        thing.stood(begun)
            && thing.is_sure(begun)
            && self.sure(thing.backend)
            && thing.learned.is_some_and(|at| at < begun)
    }

    /// Whether the call is a list that concerns only known pods or containers, whose backends are healthy.
    fn narrowed_to_order(&self) -> bool {
        let filter = &self.asked.call.filter;
        let Some(takes) = Takes::of(self.asked.call.row).filter(|_| self.truth.started) else {
            return false;
        };
        let relied = |thing: &Thing| self.truth.relied_upon(thing.backend, self.asked.at);
        if !filter.names().is_empty() {
            let kind = if filter.id.is_empty() {
                Kind::Pod
            } else {
                takes.kind()
            };
            return self.known(kind).is_some_and(relied);
        }
        let Some(uid) = filter.uid() else {
            return false;
        };
        // Removed pods count too, because criswitch may still remember them.
        let things = self.truth.things.iter();
        let mut pods = things.filter(|thing| thing.kind == Kind::Pod && thing.uid == uid);
        let any = pods.clone().any(|pod| self.is_known(pod));
        let begun = self.asked.begun;
        // Calls of the last instance may create pods that criswitch does not know, on any backend. So every backend
        // must be healthy.
        let relies = |at| self.truth.relied_upon(at, self.asked.at);
        let unanswered =
            !(0..RUNTIMES).filter(|at| self.may(*at)).all(relies) || self.names_creation();
        any && pods.all(|pod| relied(pod) && pod.is_sure(begun)) && !unanswered
    }

    /// Whether the list asks for a pod by its uid, and a call that creates a pod with this uid may have an unknown
    /// result. In that case a cached list may lack the pod.
    fn names_creation(&self) -> bool {
        let (uid, begun) = (self.asked.call.filter.uid(), self.asked.begun);
        let mut creating = self.truth.creating.iter();
        creating.any(|it| {
            Some(it.uid.as_str()) == uid && it.settled.is_none_or(|settled| settled > begun)
        })
    }

    /// Whether the list concerns a pod or container of a failing backend. criswitch then asks only that backend, even
    /// if the backend takes no part in other lists.
    fn narrowed_to_failing(&self) -> bool {
        let names = self.asked.call.filter.names();
        let mut things = self.truth.things.iter();
        let relied = |thing: &Thing| self.truth.relied_upon(thing.backend, self.asked.at);
        !names.is_empty() && things.any(|thing| thing.id == names && !relied(thing))
    }

    /// Checks that a call that depends on no failing backend gets an answer at once.
    pub(super) fn service(&self, code: Code) -> Result<(), String> {
        let relied = |backend| self.truth.relied_upon(backend, self.asked.at);
        let known = |kind| self.known(kind);
        let name = self.asked.call.row.name;
        let bound = if name == "Status" {
            STATUS_BOUND
        } else {
            SLACK
        };
        let due = match self.asked.call.row.goes {
            Goes::Handler(_) => self.handler_in_order(),
            Goes::Image(..) if self.handler().is_some() => {
                self.truth.started && self.handler_in_order()
            }
            Goes::Image(..) if !self.asked.call.uid.is_empty() => self
                .stores_of_pod()
                .is_some_and(|stores| stores.into_iter().all(relied)),
            Goes::OwnerWithImage(_) => known(Kind::Pod).is_some_and(|pod| relied(pod.backend)),
            Goes::Owner(kind, ..) => known(kind).is_some_and(|thing| relied(thing.backend)),
            Goes::All(_, Merge::Events) => false,
            // Before the start has ended, a Status may wait for every backend.
            Goes::All(_, Merge::Status) if self.truth.started => true,
            // The default backend answers even before it has joined.
            Goes::Default if self.truth.started || !self.default_backends().all(relied) => {
                self.default_backends().all(relied)
            }
            Goes::Default | Goes::All(..) | Goes::Image(..) => {
                let mut taking_part = (0..RUNTIMES).filter(|at| self.may(*at));
                // Without a joined backend, no answer is due.
                let any = (0..RUNTIMES).any(|at| self.sure(at));
                let relies = taking_part.all(relied) && !self.narrowed_to_failing();
                any && relies && self.somebody_pulls()
            }
        };
        let cached = self.stood_in_for() && !self.names_creation() || self.has_some_stats();
        let due = due || cached || self.narrowed_to_order();
        // Before a call for metrics, criswitch asks for descriptors that it does not know, so the call may take twice
        // as long.
        let times = if name.contains("Metrics") { 2 } else { 1 };
        let bound = match (cached, self.truth.started) {
            (true, true) => times * LIST_BOUND,
            (true, false) => times * LIST_BOUND + self.truth.start_wait,
            (false, _) => bound,
        };
        let took = self.reply.at - self.asked.at;
        let patient = self
            .asked
            .call
            .timeout
            .is_none_or(|timeout| timeout > bound);
        // The shutdown does not wait as long as the first lists may wait.
        let is_cut_off = self.is_ending() && bound > DRAIN;
        let lacking = code == Code::Unimplemented && self.may_be_unimplemented();
        // A hostile backend may answer with an id of another backend. criswitch then rejects the create.
        let refused = creates(self.asked.call.row) && self.got().any(|seen| seen.spoilt);
        let rejected = code == Code::FailedPrecondition && self.may_be_in_use();
        let failed = code != Code::Ok && !lacking && !refused && !rejected;
        self.unless(
            due && patient && !is_cut_off && (failed || took > bound),
            &format!("it failed or was late (after {took:?}), although every backend that it depends on is healthy"),
        )
    }
}
