//! Faults of a runtime, and pods that are created or removed at the runtime without criswitch.

use criswitch_cri::rpc::{self, Kind, Row};

use super::damage::Shown;
use super::{Runtime, State};
use crate::simulation::plan::Fault;
use crate::simulation::truth::{DIRECT, Thing};

impl Runtime {
    /// Starts or ends a fault.
    pub fn play(&self, fault: &Fault) {
        let is_silenced = match fault {
            Fault::Hang(begins) | Fault::Freeze(begins) => *begins,
            Fault::HangRpc(rpc) => *rpc == Some(rpc::EVENTS.name),
            _ => false,
        };
        if is_silenced {
            let mut truth = self.truth();
            let now = truth.tick();
            truth.health[self.at].silenced.push(now);
        }
        if matches!(fault, Fault::Claim(true) | Fault::Imitate(true)) {
            self.truth().health[self.at].was_hostile = true;
        }
        self.note_calm(fault);
        match fault {
            Fault::Offer(offer) => {
                self.truth().offers[self.at].change(*offer);
                self.set_down(false);
            }
            Fault::Lack(lacking) => {
                self.truth().lack(self.at, *lacking);
                self.set_down(false);
            }
            Fault::Die => self.set_down(true),
            Fault::Start => self.set_down(false),
            Fault::StartEmpty if self.state().down => {
                self.truth().lose_all(self.at);
                self.set_down(false);
            }
            Fault::StartEmpty => {}
            Fault::Hang(hung) => self.set_hung(|state| state.hung = *hung),
            Fault::HangRpc(rpc) => {
                self.truth().hang_rpc(self.at, *rpc);
                self.set_hung(|state| state.hung_rpc = *rpc);
            }
            Fault::GoAway => drop(self.goes_away.send(())),
            Fault::Freeze(frozen) => self.valve.set_shut(*frozen),
            Fault::SlowLists(by_ms) => self.state().slow_ms = *by_ms,
            Fault::Sip(bytes) => self.valve.sip((*bytes).into()),
            Fault::Spoil(damage) => self.state().spoil.push_back(*damage),
            Fault::Create => self.create_here(),
            Fault::Lose(which) => self.lose(*which),
            Fault::Pose(which) => self.pose(*which),
            Fault::Claim(claims) => self.truth().health[self.at].claims = *claims,
            Fault::Imitate(imitates) => self.truth().health[self.at].imitates = *imitates,
            Fault::Copy(which, odd) => self.truth().copy_one(self.at, *which as usize, *odd),
            Fault::DropCopies => self.truth().drop_copies(self.at),
            Fault::Mirror(mirrors) => self.truth().health[self.at].mirrors = *mirrors,
            Fault::Serve(other) => {
                let mut truth = self.truth();
                truth.lose_all(self.at);
                truth.copy_all(self.at, *other);
                drop(truth);
                self.set_down(false);
            }
            Fault::Fail(failing) => self.state().failing = *failing,
            Fault::Garble(garbled) => self.truth().health[self.at].garbles = *garbled,
            Fault::EndEvents(well) => drop(self.events.send(Shown::End(*well))),
        }
        self.note_health();
    }

    /// Records whether criswitch must receive the runtime's report of handlers after this fault.
    fn note_calm(&self, fault: &Fault) {
        let calm = match fault {
            Fault::Die
            | Fault::Create
            | Fault::Lose(_)
            | Fault::Pose(_)
            | Fault::Claim(_)
            | Fault::Imitate(_)
            | Fault::EndEvents(_)
            | Fault::Copy(..)
            | Fault::DropCopies
            | Fault::Mirror(_)
            | Fault::Sip(_) => {
                return;
            }
            Fault::Start
            | Fault::StartEmpty
            | Fault::Serve(_)
            | Fault::Offer(_)
            | Fault::Lack(_) => !self.is_disturbed(),
            _ => false,
        };
        self.truth().offers[self.at].calm = calm;
    }

    pub fn heal(&self) {
        self.state().spoil.clear();
        self.state().healed = true;
        if self.state().down {
            self.play(&Fault::Start);
        }
        for end in [
            Fault::Hang(false),
            Fault::HangRpc(None),
            Fault::Freeze(false),
            Fault::SlowLists(None),
            Fault::Sip(0),
            Fault::Claim(false),
            Fault::Imitate(false),
            Fault::Mirror(false),
            Fault::Fail(None),
            Fault::Garble(None),
        ] {
            self.play(&end);
        }
    }

    /// Reboots the machine: no pod or container is left. `starts` is whether the runtime starts again.
    pub fn reboot(&self, starts: bool) {
        self.play(&Fault::Die);
        self.truth().end_all(self.at);
        if starts {
            self.play(&Fault::Start);
        }
    }

    fn set_hung(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.answers.notify_waiters();
    }

    /// Waits while the runtime hangs, or hangs in this RPC.
    pub(super) async fn answers(&self, row: &Row) {
        loop {
            let changed = self.answers.notified();
            if !self.state().holds(row) {
                return;
            }
            changed.await;
        }
    }

    /// Whether the runtime accepts calls and does not answer.
    pub fn is_silent(&self) -> bool {
        self.state().holds(&rpc::EVENTS) || self.valve.is_shut()
    }

    /// The runtime dies because of a call, unless all faults have ended for good.
    pub(super) fn die_within_call(&self) {
        if !self.state().healed {
            self.play(&Fault::Die);
        }
    }

    fn set_down(&self, down: bool) {
        self.state().down = down;
        self.die();
    }

    /// Ends the process. Its calls break off, and its runtime configuration is lost.
    fn die(&self) {
        let mut state = self.state();
        state.deaths += 1;
        state.connections.drain(..).for_each(|task| task.abort());
        drop(state);
        self.truth().health[self.at].config.clear();
    }

    pub(super) fn note_health(&self) {
        let faulty = self.state().down || self.is_disturbed();
        self.truth().set_faulty(self.at, faulty);
    }

    /// Whether the runtime has a fault while it runs.
    fn is_disturbed(&self) -> bool {
        let state = self.state();
        let disturbed = state.slow_ms.is_some() || !state.spoil.is_empty() || state.hung;
        let disturbed = disturbed || state.hung_rpc.is_some();
        let fails = state.failing.is_some();
        drop(state);
        disturbed || fails || self.valve.is_shut() || self.truth().health[self.at].garbles.is_some()
    }

    /// Creates a pod without criswitch.
    fn create_here(&self) {
        let mut truth = self.truth();
        let before = truth.moment();
        let (id, born) = (truth.new_id(), truth.tick());
        let name = format!("{DIRECT}-{id}");
        truth
            .things
            .push(Thing::new(Kind::Pod, id.clone(), self.at, id, name, born));
        self.report(&truth, before);
    }

    /// Creates a pod with the uid and the names of another runtime's pod, mostly under the same handler.
    fn pose(&self, which: u32) {
        let mut truth = self.truth();
        let others: Vec<_> = truth
            .existing(Kind::Pod)
            .filter(|pod| {
                let is_made_there = !pod.poses && pod.maker != 0;
                pod.backend != self.at && is_made_there
            })
            .cloned()
            .collect();
        let Some(at) = (which as usize).checked_rem(others.len()) else {
            return;
        };
        let other = &others[at];
        let before = truth.moment();
        let (id, born) = (truth.new_id(), truth.tick());
        let handler = if which.is_multiple_of(3) {
            ""
        } else {
            &other.handler
        };
        truth.things.push(Thing {
            uid: other.uid.clone(),
            handler: handler.to_owned(),
            poses: true,
            ..Thing::new(Kind::Pod, id.clone(), self.at, id, other.name.clone(), born)
        });
        self.report(&truth, before);
    }

    /// Removes a pod without criswitch.
    fn lose(&self, which: u32) {
        let mut truth = self.truth();
        let pods: Vec<_> = truth
            .at(self.at, Kind::Pod)
            .map(|pod| pod.id.clone())
            .collect();
        if let Some(at) = (which as usize).checked_rem(pods.len()) {
            let before = truth.moment();
            truth.remove(Kind::Pod, &pods[at]);
            self.report(&truth, before);
        }
    }
}
