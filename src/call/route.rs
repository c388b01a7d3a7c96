//! Finds the target of a request, from the RPC's row, the request, the routing table and the owners. This module does
//! no I/O and never waits.
//!
//! The key of a request is the name of the pod, container, handler or image in it. A request with a malformed key has
//! no target: criswitch rejects the request and does not guess.

use std::collections::HashSet;

use criswitch_config::{BackendId, Handler, Table};
use criswitch_cri::codec::protobuf::{self, Malformed, Path};
use criswitch_cri::rpc::{Filter, Goes, ImageRule, Kind, Row, SEEN_ANNOTATION, UID_LABEL};

use crate::ownership::{Named, Owners, PodNames, hash_of_annotations};

/// The target of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Target {
    /// This backend.
    Backend(BackendId),
    /// The owner of the pod or container with this full id.
    Owner(BackendId, Kind, String),
    /// The backend of this handler. The handler also has the name that the backend uses for it.
    Handler(Handler),
    /// These backends, in this order; their replies are merged.
    Backends(Vec<BackendId>),
    /// A pod or container without a known owner: criswitch must ask all backends.
    Miss(Kind, String),
    /// An image to pull for the pod with this uid, when criswitch must ask all backends for the pod. The pod's backend
    /// is unknown, or it is known only from a list while other backends were never listed.
    UnknownPod(String),
    /// No pod or container: the client asks whether these backends have the RPC. They are the backends that get pods.
    Probe(Vec<BackendId>),
    /// An image for an unknown pod, which is on one of these backends.
    SomePod(Stores),
}

/// The image stores that an unknown pod may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stores {
    /// The backends that have a pod with the annotations of the request. Equal to `all` if no backend is known to have
    /// such a pod.
    pub likely: Vec<BackendId>,
    /// All backends that may have the pod.
    pub all: Vec<BackendId>,
}

/// Why a request has no target.
#[derive(Debug, PartialEq, Eq)]
pub enum Unroutable {
    /// The key is malformed.
    Malformed(Malformed),
    /// No handler has this name.
    UnknownHandler(String),
    /// The id is empty.
    EmptyId(Kind),
    /// Several ids begin with this text.
    Ambiguous(String),
    /// Several backends list a pod with this uid.
    DoubledPod(String, Vec<BackendId>),
}

impl From<Malformed> for Unroutable {
    fn from(fault: Malformed) -> Unroutable {
        Unroutable::Malformed(fault)
    }
}

/// The facts by which criswitch routes a request.
#[derive(Clone, Copy, Debug)]
pub struct Knowledge<'a> {
    /// The routing table.
    pub table: &'a Table,
    /// The backend that answers for the node: normally the backend of the default handler.
    pub default_backend: BackendId,
    /// The backends that merged calls include, the default backend first.
    pub all: &'a [BackendId],
    /// The owners of pods and containers.
    pub owners: &'a Owners,
    /// Whether the pods and containers of every backend are known. Otherwise a backend may have an id that `owners`
    /// lacks.
    pub complete: bool,
}

impl Knowledge<'_> {
    /// The target of `message`, a request of `row`.
    ///
    /// # Errors
    /// If the request has no target: the reason.
    pub fn route(&self, row: &Row, message: &[u8]) -> Result<Target, Unroutable> {
        match &row.goes {
            Goes::Default => Ok(Target::Backend(self.default_backend)),
            Goes::Handler(path) => self.handler(protobuf::string(message, path)?),
            Goes::Owner(kind, path, _) => match protobuf::string(message, path)? {
                "" if row.probe().is_some() => Ok(Target::Probe(self.getting_pods())),
                id => self.owner(*kind, id),
            },
            Goes::OwnerWithImage(path) => self.owner(Kind::Pod, protobuf::string(message, path)?),
            Goes::All(filter, _) => self.filtered(filter, message),
            Goes::Image(handler, rule) => match protobuf::string(message, handler)? {
                "" => self.image(rule, message),
                name => self.handler(name),
            },
        }
    }

    fn handler(&self, name: &str) -> Result<Target, Unroutable> {
        let handler = self
            .table
            .handler(name)
            .ok_or_else(|| Unroutable::UnknownHandler(name.to_owned()))?;
        Ok(Target::Handler(handler.clone()))
    }

    fn owner(&self, kind: Kind, id: &str) -> Result<Target, Unroutable> {
        if id.is_empty() {
            return Err(Unroutable::EmptyId(kind));
        }
        match self.owners.find(kind, id) {
            Some(owner) => self.owned(kind, id, owner),
            None => Ok(Target::Miss(kind, id.to_owned())),
        }
    }

    /// The target for a complete id. The id is rejected if a longer id on another backend begins with it.
    fn owned(&self, kind: Kind, id: &str, owner: BackendId) -> Result<Target, Unroutable> {
        if self.owners.is_short_for_another(kind, id, owner) {
            return Err(Unroutable::Ambiguous(id.to_owned()));
        }
        Ok(Target::Owner(owner, kind, id.to_owned()))
    }

    /// The target after a [`Target::Miss`], once all backends have been asked. A short id means the only id that begins
    /// with it.
    ///
    /// # Errors
    /// If several ids have this beginning.
    pub fn after_miss(&self, kind: Kind, id: &str) -> Result<Target, Unroutable> {
        if let Some(owner) = self.owners.find(kind, id) {
            return self.owned(kind, id, owner);
        }
        match self.owners.with_prefix(kind, id).as_slice() {
            [] => Ok(Target::Miss(kind, id.to_owned())),
            [(full, owner)] => self.owned(kind, full, *owner),
            _ => Err(Unroutable::Ambiguous(id.to_owned())),
        }
    }

    fn filtered(&self, filter: &Filter, message: &[u8]) -> Result<Target, Unroutable> {
        let pod = filter.pod.map(|path| (Kind::Pod, path));
        for (kind, path) in filter.id.into_iter().chain(pod) {
            match protobuf::string(message, path)? {
                "" => {}
                id => return self.owner(kind, id),
            }
        }
        let uid = filter
            .labels
            .map_or(Ok(None), |path| protobuf::entry(message, path, UID_LABEL))?;
        Ok(Target::Backends(
            uid.map_or_else(|| self.all(), |uid| self.of_uid(uid)),
        ))
    }

    /// The backends that may have pods with this uid. Returns all backends if none is known to have such a pod, or if a
    /// backend was never listed.
    fn of_uid(&self, uid: &str) -> Vec<BackendId> {
        match self.owners.with_uid(uid) {
            backends if self.complete && !backends.is_empty() => backends,
            _ => self.all(),
        }
    }

    fn all(&self) -> Vec<BackendId> {
        self.all.to_vec()
    }

    /// The backends that may get new pods. No pod needs an image on another backend. If none of these backends has
    /// joined yet, returns the default backend.
    fn taking_pods(&self) -> Vec<BackendId> {
        let mut taking = self.all();
        taking.retain(|id| self.table.handlers.iter().any(|row| row.backend == *id));
        if taking.is_empty() {
            return vec![self.table.default.backend];
        }
        taking
    }

    /// The backends that get new pods or have pods: first the backends in the routing table. Also names backends that
    /// were never listed.
    fn getting_pods(&self) -> Vec<BackendId> {
        let rows = self.table.handlers.iter().map(|row| row.backend);
        let mut having = self.all();
        having.retain(|id| self.owners.count(*id) != (0, 0));
        let mut getting = vec![self.table.default.backend];
        for id in rows.chain(having) {
            if !getting.contains(&id) {
                getting.push(id);
            }
        }
        getting
    }

    fn image(&self, rule: &ImageRule, message: &[u8]) -> Result<Target, Unroutable> {
        match rule {
            ImageRule::Find(annotations) => self.find_image(annotations, message),
            ImageRule::Pull(uid) => match protobuf::string(message, uid)? {
                "" => Ok(Target::Backends(self.taking_pods())),
                uid => self.pull_for(uid),
            },
            ImageRule::Remove | ImageRule::List(_) => Ok(Target::Backends(self.all())),
        }
    }

    /// Routes `ImageStatus` to the backend of the pod that the annotations in the request identify.
    fn find_image(&self, annotations: Path, message: &[u8]) -> Result<Target, Unroutable> {
        let seen = protobuf::entry(message, annotations, SEEN_ANNOTATION)?.unwrap_or_default();
        if seen.is_empty() {
            return Ok(Target::Backends(self.all()));
        }
        match self.find_by_name(|pod| pod.seen == seen) {
            Named::One { backend, id, .. } => Ok(Target::Owner(backend, Kind::Pod, id)),
            Named::Several(backends) => Ok(Target::SomePod(Stores {
                likely: backends.clone(),
                all: backends,
            })),
            Named::NoPod => {
                let annotations = hash_of_annotations(message, annotations);
                Ok(Target::SomePod(self.stores_of_ready(annotations)))
            }
        }
    }

    /// Routes a pull to the backend of the pod with this uid. A pull has credentials, which no other backend may get.
    /// If the pod was not created through criswitch, its backend is certain only when every backend has been listed.
    fn pull_for(&self, uid: &str) -> Result<Target, Unroutable> {
        match self.find_by_name(|pod| pod.uid == uid) {
            Named::One { created, .. } if !created && !self.complete => {
                Ok(Target::UnknownPod(uid.to_owned()))
            }
            Named::One { backend, id, .. } => Ok(Target::Owner(backend, Kind::Pod, id)),
            Named::Several(backends) => Err(Unroutable::DoubledPod(uid.to_owned(), backends)),
            Named::NoPod => Ok(Target::UnknownPod(uid.to_owned())),
        }
    }

    /// The target after a [`Target::UnknownPod`], once every backend has answered. If no backend has the pod now, the
    /// pull goes to the backend that had it, because no other backend may get the pod's credentials. If no backend had
    /// it, the pull goes to all backends that may get new pods.
    ///
    /// # Errors
    /// If several backends list pods of this uid.
    pub fn after_unknown_pod(&self, uid: &str) -> Result<Target, Unroutable> {
        let answered = Knowledge {
            complete: true,
            ..*self
        };
        Ok(match answered.pull_for(uid)? {
            Target::UnknownPod(_) => Target::Backends(self.stores_of_gone(uid)),
            target => target,
        })
    }

    fn stores_of_gone(&self, uid: &str) -> Vec<BackendId> {
        let last = self.owners.removals.last_with_uid(uid);
        match last.filter(|backend| self.all.contains(backend)) {
            Some(backend) => vec![backend],
            None => self.taking_pods(),
        }
    }

    fn find_by_name(&self, has_name: impl Fn(&PodNames) -> bool) -> Named {
        // A backend may list any number of pods with the name, so the look-up for each pod must be fast.
        let rows: HashSet<_> = self
            .table
            .handlers
            .iter()
            .map(|row| (row.backend, row.backend_handler.as_str()))
            .collect();
        self.owners.pods.find_by_name(has_name, |handler, backend| {
            rows.contains(&(backend, handler))
        })
    }

    /// The stores that an unknown pod with these annotations may use. The pod has a ready sandbox, because the kubelet
    /// asks for images after it has run the sandbox. Until every backend has been listed, any backend may have the pod.
    fn stores_of_ready(&self, annotations: Option<u64>) -> Stores {
        let (likely, ready) = if self.complete {
            self.owners.pods.ready(annotations)
        } else {
            Default::default()
        };
        let all = match self.among(&ready) {
            none if none.is_empty() => self.all(),
            ready => ready,
        };
        let likely = match self.among(&likely) {
            none if none.is_empty() => all.clone(),
            likely => likely,
        };
        Stores { likely, all }
    }

    /// The backends of `all` that are in `backends`, in the order of `all`.
    fn among(&self, backends: &[BackendId]) -> Vec<BackendId> {
        self.all
            .iter()
            .copied()
            .filter(|id| backends.contains(id))
            .collect()
    }
}
