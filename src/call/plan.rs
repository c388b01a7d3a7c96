//! Makes the plan of a call. Later steps follow the plan. They ask the RPC's row for single facts, such as its name and
//! its patience, but never match on its columns `goes` and `then`.

use std::sync::Arc;

use criswitch_config::{BackendId, Handler};
use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::rpc::fields::{CREATED_SPECS, RESTORED_SPECS};
use criswitch_cri::rpc::{self, Goes, ImageRule, Items, Kind, Merge, Row, Silent, Then, Unknown};
use tonic::Status;

use crate::backend::Backend;
use crate::call::reply::{self, Reply};
use crate::call::route::{Stores, Target};
use crate::call::{Call, Lesson, Request, lesson};
use crate::errors;

/// The plan of a call.
pub(crate) enum Plan {
    /// Send the call to one backend.
    One(Arc<Backend>),
    /// Send the call, which creates a pod with this uid, to the backend of the handler.
    CreatePod(Arc<Backend>, String),
    /// Send the call to the owner of the pod. If the owner has a different id for the image, replace the id in the
    /// request first.
    CreateContainer(Arc<Backend>),
    /// Reply with the default backend's version, or with its last known version if the backend is slow.
    Version(Arc<Backend>),
    /// Send the call to the only backend, whose reply passes as it is.
    Alone(Arc<Backend>),
    /// Send the call to several backends, and merge their replies.
    Merge(Vec<Arc<Backend>>, &'static Items),
    /// Reply with the merged status of all backends.
    Status,
    /// Reply with the default backend's configuration. If the default backend has none, reply with the configuration of
    /// another of these backends.
    RuntimeConfig(Vec<Arc<Backend>>),
    /// Send the runtime configuration to these backends and to new ones.
    UpdateRuntimeConfig(Vec<Arc<Backend>>),
    /// List the security profiles of these backends.
    ListProfiles(Vec<Arc<Backend>>),
    /// Remove a security profile from these backends.
    RemoveProfile(Vec<Arc<Backend>>),
    /// Subscribe the client to the events of all backends.
    Events,
    /// Look for an image in the stores of these backends, for a client that names no pod.
    FindImage(Vec<Arc<Backend>>),
    /// Look for an image in the stores that an unknown pod may use.
    FindImageForPod(Stores),
    /// Pull an image or a security profile into several stores.
    PullImage(Vec<Arc<Backend>>),
    /// Remove an image from the stores that have it.
    RemoveImage(Vec<Arc<Backend>>),
    /// Ask whether all these backends have the RPC.
    Probe(Vec<Arc<Backend>>),
    /// No backend has the pod or container: send this reply.
    Absent(Reply),
}

/// The plan for `request`, which goes to `target`. `has_one_backend` says whether the reply of a single backend passes
/// as it is.
///
/// # Errors
/// `NotFound` if no backend has the pod or container and the RPC requires it; `Unavailable` if a backend was removed,
/// or if there is no backend to call.
pub(crate) fn plan(
    mut request: Request,
    target: Target,
    has_one_backend: bool,
) -> Result<(Call, Plan), Status> {
    let started_with = lesson::started_with(&request, &target);
    match &target {
        Target::Handler(handler) => {
            with_backends_name(&mut request, handler);
            with_backends_names_of_images(&mut request, handler.backend);
        }
        Target::Owner(owner, ..) => with_backends_names_of_images(&mut request, *owner),
        _ => {}
    }
    let lesson = Lesson::of(&request, &target, started_with);
    let call = Call { request, lesson };
    let planner = Planner {
        call: &call,
        has_one_backend,
    };
    let plan = match target {
        Target::Miss(kind, id) => Plan::Absent(of_absent(&call, kind, &id)?),
        Target::SomePod(stores) => Plan::FindImageForPod(stores),
        Target::Probe(ids) => Plan::Probe(planner.backends(&ids)?),
        Target::Backend(id) | Target::Owner(id, ..) => planner.to_one(id)?,
        Target::Handler(handler) => planner.to_handler(&handler)?,
        Target::Backends(ids) => planner.to_several(&ids)?,
        // Unreachable: `dispatch::resolve` asks all backends for the pod, and returns another target.
        Target::UnknownPod(_) => return Err(errors::impossible(call.row.name)),
    };
    Ok((call, plan))
}

/// The backends that `request` waits for after a start. The first lists wait for backends that have not been listed
/// yet: each may have pods that clients know and criswitch does not. The first calls to the default backend wait for
/// that backend. A call that asks whether the node has an RPC waits for all. Calls for events wait for no backend:
/// subscribers get events of a backend as soon as it is ready.
pub(crate) fn awaited(request: &Request) -> Vec<Arc<Backend>> {
    let live = &request.live;
    match &request.row.goes {
        Goes::All(_, Merge::Events) => Vec::new(),
        Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge))
            if merge
                .items()
                .is_some_and(|items| items.silent == Silent::LastKnown) =>
        {
            live.joined()
        }
        Goes::Default | Goes::All(..) => live
            .backend(live.default_backend())
            .cloned()
            .into_iter()
            .collect(),
        _ if is_probe(request) => live.backends.clone(),
        _ => Vec::new(),
    }
}

/// Whether the request asks with an empty id whether the node has the RPC.
fn is_probe(request: &Request) -> bool {
    request
        .row
        .probe()
        .is_some_and(|(_, path)| protobuf::string(&request.message(), path) == Ok(""))
}

/// Whether a call of this RPC may go to all backends.
pub(crate) fn may_go_to_all(row: &Row) -> bool {
    matches!(row.goes, Goes::All(..) | Goes::Image(..))
}

/// Finds the plan of a call.
struct Planner<'a> {
    call: &'a Call,
    /// Whether the reply of a single backend passes as it is.
    has_one_backend: bool,
}

impl Planner<'_> {
    fn to_one(&self, id: BackendId) -> Result<Plan, Status> {
        let backend = Arc::clone(self.call.live.backend(id)?);
        match &self.call.row.goes {
            Goes::Default => Ok(Plan::Version(backend)),
            Goes::OwnerWithImage(_) => Ok(Plan::CreateContainer(backend)),
            Goes::All(_, merge) => self.merged(vec![backend], merge),
            _ => Ok(Plan::One(backend)),
        }
    }

    /// The plan for a call that is merged by `how`.
    fn merged(&self, mut backends: Vec<Arc<Backend>>, how: &'static Merge) -> Result<Plan, Status> {
        Ok(match how {
            Merge::Status => Plan::Status,
            Merge::Events => Plan::Events,
            Merge::UpdateRuntimeConfig => Plan::UpdateRuntimeConfig(backends),
            _ if backends.is_empty() => return Err(errors::no_backend()),
            _ if self.has_one_backend && backends.len() == 1 => Plan::Alone(backends.remove(0)),
            Merge::RuntimeConfig => Plan::RuntimeConfig(backends),
            Merge::Profiles => Plan::ListProfiles(backends),
            Merge::RemoveProfile => Plan::RemoveProfile(backends),
            Merge::Items(items) | Merge::Streamed(_, items) => Plan::Merge(backends, items),
        })
    }

    /// The plan for a call to the backend of a handler. A list or removal of images is planned like a call to several
    /// backends, because these plans also serve cached lists and handle an unimplemented RPC.
    fn to_handler(&self, row: &Handler) -> Result<Plan, Status> {
        match (&self.call.row.goes, &self.call.lesson) {
            (Goes::Image(_, ImageRule::List(_) | ImageRule::Remove), _) => {
                self.to_several(&[row.backend])
            }
            (_, Lesson::Pod(_, names) | Lesson::Restored(.., names)) => {
                let backend = Arc::clone(self.call.live.backend(row.backend)?);
                Ok(Plan::CreatePod(backend, names.uid.clone()))
            }
            _ => Ok(Plan::One(Arc::clone(self.call.live.backend(row.backend)?))),
        }
    }

    /// The backends with these ids. A backend missing from the call's table is an error, never an empty list.
    fn backends(&self, ids: &[BackendId]) -> Result<Vec<Arc<Backend>>, Status> {
        ids.iter()
            .map(|id| self.call.live.backend(*id).cloned())
            .collect()
    }

    fn to_several(&self, ids: &[BackendId]) -> Result<Plan, Status> {
        let backends = self.backends(ids)?;
        match (&self.call.row.goes, backends.as_slice()) {
            (Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)), _) => {
                self.merged(backends, merge)
            }
            (Goes::Image(_, ImageRule::Find(_)), _) => Ok(Plan::FindImage(backends)),
            (Goes::Image(_, ImageRule::Pull(_)), [only]) => Ok(Plan::One(Arc::clone(only))),
            (Goes::Image(_, ImageRule::Pull(_)), _) => Ok(Plan::PullImage(backends)),
            (Goes::Image(_, ImageRule::Remove), [only]) if self.has_one_backend => {
                Ok(Plan::One(Arc::clone(only)))
            }
            (Goes::Image(_, ImageRule::Remove), _) => Ok(Plan::RemoveImage(backends)),
            // Unreachable: no other RPC goes to several backends.
            _ => Err(errors::impossible(self.call.row.name)),
        }
    }
}

/// Sets the backend's own name of the handler in the request.
fn with_backends_name(request: &mut Request, handler: &Handler) {
    let (Goes::Handler(path) | Goes::Image(path, _)) = request.row.goes else {
        return;
    };
    let message = request.message();
    if protobuf::string(&message, path).is_ok_and(|name| name != handler.backend_handler) {
        let message = protobuf::with_string(&message, path, &handler.backend_handler);
        request.body = frames::frame(&message);
    }
}

/// In the image specs of new containers, replaces each handler with the name that `backend` uses for it.
fn with_backends_names_of_images(request: &mut Request, backend: BackendId) {
    let specs = match (&request.row.goes, &request.row.then) {
        _ if !request.live.table.renames(backend) => return,
        (Goes::OwnerWithImage(_), _) => &CREATED_SPECS,
        (_, Then::OwnRestored(..)) => &RESTORED_SPECS,
        _ => return,
    };
    let renamed = rpc::specs_renamed(&request.message(), specs, |name| {
        let row = request.live.table.handler(name)?;
        (row.backend == backend).then_some(row.backend_handler.as_str())
    });
    if let Some(renamed) = renamed {
        request.body = frames::frame(&renamed);
    }
}

/// The reply to a call for an id that no backend has: an empty reply, or `NotFound`.
fn of_absent(call: &Call, kind: Kind, id: &str) -> Result<Reply, Status> {
    match call.row.goes {
        Goes::Owner(_, _, Unknown::NotFound) | Goes::OwnerWithImage(_) => {
            Err(errors::not_found(kind, id))
        }
        _ if call.row.streams() => Ok(reply::of_status(&Status::ok(""))),
        _ => Ok(reply::of_message(Vec::new())),
    }
}
