//! The lists of a backend as clients get them: without the items of other backends, with the routing table's names for
//! handlers, and with the labels that clients received.

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use criswitch_cri::codec::protobuf::{self, Editable};
use criswitch_cri::rpc::fields::{self, LISTED_CONTAINERS, LISTED_IMAGES, LISTED_PODS};
use criswitch_cri::rpc::filter::{without_nested_containers, without_seen};
use criswitch_cri::rpc::{HandlerPaths, Kind, List};
use parking_lot::MutexGuard;
use tonic::Status;

use crate::backend::Backend;
use crate::gate::Readable;
use crate::ownership::{MOST, Mark, Owners, Unlearned};
use crate::switch::labels::KnownFits;
use crate::switch::{Switch, handlers};
use crate::topology::Live;

/// The facts that decide how clients see the list of a backend. The owners are locked meanwhile.
pub(crate) struct View<'a> {
    pub(crate) owners: MutexGuard<'a, Owners>,
    pub(crate) live: Arc<Live>,
    /// The metric descriptors that clients received.
    pub(crate) given: Option<Readable>,
    pub(crate) fits: &'a KnownFits,
}

impl View<'_> {
    pub(crate) fn of(switch: &Switch) -> View<'_> {
        let given = switch.given.lock().clone();
        View {
            owners: switch.owners(),
            live: switch.live(),
            given,
            fits: &switch.fits,
        }
    }

    /// Like [`View::shown`], for a list that was requested at `asked` and may have items of other backends.
    pub(crate) fn shown_without_foreign_items<M: Editable>(
        &self,
        list: List,
        backend: &Backend,
        message: &M,
        asked: Mark,
    ) -> Result<Option<M>, Status> {
        let Some(kind) = list.kind() else {
            return self.shown(list, backend, message);
        };
        let own = self
            .owners
            .without_foreign_items(kind, backend.id, message, asked)
            .map_err(|unlearned| backend.bad_reply(&unlearned.to_string()))?;
        Ok(self
            .shown(list, backend, own.as_ref().unwrap_or(message))?
            .or(own))
    }

    /// Returns a backend's list as the client gets it, if it differs from `message`. Only a list of stats may still
    /// have items of other backends here.
    pub(crate) fn shown<M: Editable>(
        &self,
        list: List,
        backend: &Backend,
        message: &M,
    ) -> Result<Option<M>, Status> {
        match list {
            List::Pods => self.renamed(backend, message, &LISTED_PODS),
            List::Containers => self.renamed(backend, message, &LISTED_CONTAINERS),
            List::Images => self.renamed(backend, message, &LISTED_IMAGES),
            List::PodMetrics => {
                let own = self.without_others(list, backend, message)?;
                let metrics = own.as_ref().unwrap_or(message);
                let given = self.given.as_ref();
                let fits = self.fits;
                Ok(fits
                    .under_given_labels(&self.live, given, backend, metrics)?
                    .or(own))
            }
            _ => self.without_others(list, backend, message),
        }
    }

    /// Whether the list of `backend` may have handlers or label values that [`View::shown`] rewrites.
    pub(crate) fn rewrites(&self, list: List, backend: &Backend) -> bool {
        let (live, given) = (&self.live, self.given.as_ref());
        match list {
            List::PodMetrics => self.fits.rewrites(live, given, backend),
            _ => handlers::must_rename(live, &self.owners, list, backend.id),
        }
    }

    /// Whether the client gets at most `most` bytes for `message`, a backend's list. A list that must be copied to
    /// measure it counts as larger if there is no memory for the copy.
    pub(crate) fn is_at_most(
        &self,
        list: List,
        backend: &Backend,
        message: &Bytes,
        most: usize,
    ) -> bool {
        let has_room = |size: usize| size <= most;
        has_room(message.len() + handlers::most_growth(list, message))
            || has_room(message.len())
                && (!self.rewrites(list, backend) || {
                    // The memory of the copy is counted before the copy is made.
                    let held = backend.resized(backend.memory.all().held(), message.len());
                    held.is_ok_and(|_held| {
                        self.shown(list, backend, message)
                            .is_ok_and(|shown| shown.is_none_or(|shown| has_room(shown.len())))
                    })
                })
    }

    /// Returns `message` with the names that clients use for the handlers at `paths`; see [`handlers::renamed`].
    pub(crate) fn renamed<M: Editable>(
        &self,
        backend: &Backend,
        message: &M,
        paths: &HandlerPaths,
    ) -> Result<Option<M>, Status> {
        handlers::renamed(&self.live.table, &self.owners, backend, message, paths)
    }

    /// Whether the metrics of the only backend must be rewritten; see [`KnownFits::must_fit`].
    pub(crate) fn must_fit(&self, only: &Backend) -> bool {
        self.fits.must_fit(&self.live, self.given.as_ref(), only)
    }

    /// Removes repeated stats, and the stats of other backends' pods and containers, from `reply`. Stats of other
    /// backends' containers are also removed from the stats of a pod. Returns `None` if nothing is removed.
    ///
    /// # Errors
    /// `Internal` if the reply is malformed.
    fn without_others<M: Editable>(
        &self,
        list: List,
        backend: &Backend,
        reply: &M,
    ) -> Result<Option<M>, Status> {
        let Some((kind, path)) = list.about() else {
            return Ok(None);
        };
        let dropped = Cell::new(0);
        let is_own = |kind, id: &str| {
            let is_own = !self.owners.is_of_another(kind, id, backend.id);
            dropped.set(dropped.get() + usize::from(!is_own));
            is_own
        };
        let inside = Cell::new(0);
        // An item whose id cannot be read counts as the backend's own.
        let retained = protobuf::retain(reply, fields::ITEMS, |item| {
            Ok(is_own(
                kind,
                protobuf::string(item, path).unwrap_or_default(),
            ))
        });
        let own = retained.and_then(|retained| {
            let items = retained.as_ref().unwrap_or(reply);
            let changed = without_nested_containers(list, items, |id| {
                inside.set(inside.get() + 1);
                inside.get() > MOST || is_own(Kind::Container, id)
            })?;
            let own = changed.or(retained);
            let items = own.as_ref().unwrap_or(reply);
            Ok(without_seen(list, items, &mut HashSet::new(), MOST)?.or(own))
        });
        backend.record.drops(dropped.get());
        if inside.get() > MOST {
            return Err(backend.bad_reply(&Unlearned::TooMany.to_string()));
        }
        own.map_err(|fault| backend.malformed(&fault))
    }
}
