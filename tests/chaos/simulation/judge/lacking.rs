//! RPCs that runtimes lack: where another way leads to the same, or the others are enough, a client must not hear of it.

use criswitch::rpc::{self, Goes, ImageRule, Lacking, Merge, Row};

use super::Case;
use crate::simulation::files::RUNTIMES;

impl Case<'_> {
    /// Whether the call may be one that nobody can answer.
    pub(super) fn may_be_unimplemented(&self) -> bool {
        let row = self.asked.call.row;
        match &row.goes {
            Goes::Handler(_) => self.rows().any(|it| self.may_lack(it.backend, row)),
            Goes::Owner(kind, ..) => self
                .thing(*kind)
                .is_some_and(|thing| self.may_lack(thing.backend, row)),
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
                self.may_be_lacking(row, merge)
            }
            Goes::OwnerWithImage(_) | Goes::Image(..) | Goes::Default => false,
        }
    }

    fn may_be_lacking(&self, row: &Row, merge: &Merge) -> bool {
        match merge {
            Merge::Status | Merge::UpdateRuntimeConfig | Merge::Images => false,
            Merge::Events => (0..RUNTIMES).any(|at| self.may_have_no_events(at)),
            Merge::RuntimeConfig => self.all_may_lack(&[row]),
            Merge::Concat(lacking, _) | Merge::Distinct(_, lacking, _) => {
                self.may_fail_for(*lacking, &[row])
            }
            Merge::Interleave(list) => {
                let alone = (0..RUNTIMES).filter(|at| self.sure(*at)).count() < 2;
                let instead = match list.merge() {
                    Some(Merge::Concat(lacking, _)) => self.may_fail_for(*lacking, &[row, list]),
                    _ => false,
                };
                // What one backend alone says passes as it comes.
                alone && self.all_may_lack(&[row]) || instead
            }
        }
    }

    fn may_fail_for(&self, lacking: Lacking, rows: &[&Row]) -> bool {
        let has_had = |at: usize| self.truth.things.iter().any(|thing| thing.backend == at);
        let lacks = |at: &usize| rows.iter().all(|row| self.may_lack(*at, row));
        let mut lack = (0..RUNTIMES).filter(lacks);
        match lacking {
            Lacking::Fails => lack.next().is_some(),
            Lacking::FailsForPods => lack.any(has_had) || self.all_may_lack(rows),
            Lacking::LeftOut => self.all_may_lack(rows),
        }
    }

    /// Whether all may lack these whose word is sure to be heard; a list of one pod is one backend's, and one of images
    /// that of the handler which it names.
    fn all_may_lack(&self, rows: &[&Row]) -> bool {
        let lacks = |at: usize| rows.iter().all(|row| self.may_lack(at, row));
        let heard = |at: &usize| {
            let relied = self.truth.relied_upon(*at, self.asked.at);
            self.sure(*at) && self.may_concern_store(*at) && relied
        };
        let any = (0..RUNTIMES).any(lacks);
        any && (!self.asked.call.filter.is_empty() || (0..RUNTIMES).filter(heard).all(lacks))
    }

    /// Whether a backend may have lacked it when it got it.
    pub(super) fn may_lack(&self, backend: usize, row: &Row) -> bool {
        let begun = self.asked.begun;
        self.was_there(backend) && self.truth.may_lack(backend, row, begun)
    }

    /// What was found out of a backend's events counts until it is asked again.
    fn may_have_no_events(&self, backend: usize) -> bool {
        let relied = self.truth.relied_upon(backend, self.asked.at);
        let since = if relied { self.asked.begun } else { 0 };
        self.was_there(backend) && self.truth.may_lack(backend, &rpc::EVENTS, since)
    }
}
