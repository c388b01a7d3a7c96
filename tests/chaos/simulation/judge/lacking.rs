//! RPCs that runtimes lack. A client must see no error if a fallback gives the same result, or if the replies of the
//! other backends suffice.

use criswitch_cri::rpc::{self, Goes, IfUnimplemented, ImageRule, Items, Join, Merge, Row};

use super::Case;
use crate::simulation::files::RUNTIMES;
use crate::simulation::tables::runtime_of;

impl Case<'_> {
    /// Whether `Unimplemented` is a correct reply.
    pub(super) fn may_be_unimplemented(&self) -> bool {
        let row = self.asked.call.row;
        match &row.goes {
            Goes::Handler(_) => self.rows().any(|it| self.may_lack(runtime_of(it), row)),
            Goes::Owner(kind, ..) => self
                .thing(*kind)
                .is_some_and(|thing| thing.sources().any(|at| self.may_lack(at, row))),
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
                self.may_be_lacking(row, merge)
            }
            // A pull for an unknown pod goes to several backends.
            Goes::Image(_, ImageRule::Pull(_)) => {
                (0..RUNTIMES).any(|backend| self.may_lack(backend, row))
            }
            Goes::OwnerWithImage(_) | Goes::Image(..) | Goes::Default => false,
        }
    }

    fn may_be_lacking(&self, row: &Row, merge: &Merge) -> bool {
        match merge {
            Merge::Status | Merge::UpdateRuntimeConfig => false,
            Merge::Events => (0..RUNTIMES).any(|at| self.may_have_no_events(at)),
            Merge::RuntimeConfig | Merge::Profiles | Merge::RemoveProfile => {
                self.all_may_lack(&[row])
            }
            Merge::Items(items) => self.may_be_missed(items, &[row]),
            Merge::Streamed(list, items) => {
                let alone = (0..RUNTIMES).filter(|at| self.sure(*at)).count() < 2;
                // criswitch forwards the reply of a single backend unchanged.
                alone && self.all_may_lack(&[row]) || self.may_be_missed(items, &[row, list])
            }
        }
    }

    fn may_be_missed(&self, items: &Items, rows: &[&Row]) -> bool {
        // Every simulated runtime lists its images.
        !matches!(items.join, Join::Images) && self.may_fail_for(items.lacking, rows)
    }

    fn may_fail_for(&self, lacking: IfUnimplemented, rows: &[&Row]) -> bool {
        let has_had = |at: usize| {
            let mut things = self.truth.things.iter();
            things.any(|thing| thing.sources().any(|source| source == at))
        };
        let lacks = |at: &usize| rows.iter().all(|row| self.may_lack(*at, row));
        let mut lack = (0..RUNTIMES).filter(lacks);
        match lacking {
            IfUnimplemented::Error => lack.next().is_some(),
            IfUnimplemented::FailsForPods => lack.any(has_had) || self.all_may_lack(rows),
            IfUnimplemented::Omitted => self.all_may_lack(rows),
        }
    }

    /// Whether all backends that are sure to reply may lack these RPCs. For a list with a filter, one backend that may
    /// lack the RPCs is enough, because the call may go to one backend only. An image list that names a handler
    /// concerns only the handler's backend.
    fn all_may_lack(&self, rows: &[&Row]) -> bool {
        let lacks = |at: usize| rows.iter().all(|row| self.may_lack(at, row));
        let arrived = |at: &usize| {
            let relied = self.truth.relied_upon(*at, self.asked.at);
            self.sure(*at) && self.may_concern_store(*at) && relied
        };
        let any = (0..RUNTIMES).any(lacks);
        any && (!self.asked.call.filter.is_empty() || (0..RUNTIMES).filter(arrived).all(lacks))
    }

    /// Whether a backend may have lacked the RPC when the call arrived at the backend.
    pub(super) fn may_lack(&self, backend: usize, row: &Row) -> bool {
        let begun = self.asked.begun;
        self.was_there(backend) && self.truth.may_lack(backend, row, begun)
    }

    /// Whether criswitch may believe that the backend has no events. After a fault, an earlier answer may still count.
    fn may_have_no_events(&self, backend: usize) -> bool {
        let relied = self.truth.relied_upon(backend, self.asked.at);
        let since = if relied { self.asked.begun } else { 0 };
        self.was_there(backend) && self.truth.may_lack(backend, &rpc::EVENTS, since)
    }
}
