//! Decides which replies may be cached and merged with the replies of other backends.

use bytes::Bytes;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::List;
use tonic::Status;

use crate::backend::Backend;
use crate::gate::Readable;
use crate::ownership::{self, MOST, Unlearned};
use crate::switch::handlers;
use crate::switch::view::View;
use crate::topology::Live;

/// Reads `reply` at the gate, so that it may be cached and merged with the replies of other backends. Without a `list`,
/// the reply is that of `ImageFsInfo`. `None` if clients cannot decode the reply of the only backend: its replies pass
/// unchanged.
///
/// # Errors
/// `Internal` if the reply has more items than any backend can have, or if there are several backends and clients
/// cannot decode the reply.
pub(crate) fn readable(
    live: &Live,
    list: Option<List>,
    backend: &Backend,
    reply: &Bytes,
) -> Result<Option<Readable>, Status> {
    let read = match list {
        Some(list) => Readable::list(list, reply),
        None => Readable::disks(reply),
    };
    usable(live, list, backend, reply, read)
}

/// Like [`readable`], for a reply that the gate has `read`.
pub(super) fn usable(
    live: &Live,
    list: Option<List>,
    backend: &Backend,
    reply: &Bytes,
    read: Result<Readable, String>,
) -> Result<Option<Readable>, Status> {
    let shows_owners = list.is_some_and(|list| list.kind().is_some());
    if !shows_owners && protobuf::fields(reply).nth(MOST).is_some() {
        return Err(backend.bad_reply(&Unlearned::TooMany.to_string()));
    }
    match read {
        Ok(readable) => Ok(Some(readable)),
        Err(_) if live.has_one_backend() => Ok(None),
        Err(fault) => Err(backend.bad_reply(&fault)),
    }
}

/// Whether merged lists have room for `message`, a list of `backend`, as clients get it: its equal share of
/// `max_message`, and more if the cached lists of the other backends leave room. Several backends may list one image,
/// so their lists of images need less room together: up to `max_message` counts as fitting.
pub(crate) fn has_room(view: &View<'_>, list: List, backend: &Backend, message: &Bytes) -> bool {
    let limit = backend.max_message;
    let most = if list.kind().is_some() {
        let joined = view.live.joined();
        let others = joined.iter().filter(|other| other.id != backend.id);
        let cached = others.map(|it| most_cached(view, list, it)).sum();
        limit
            .saturating_sub(cached)
            .max(limit / joined.len().max(1))
    } else {
        limit
    };
    view.is_at_most(list, backend, message, most)
}

/// The most bytes that clients get for the cached list of `backend`.
fn most_cached(view: &View<'_>, list: List, backend: &Backend) -> usize {
    let Some(message) = backend.record.known().lists.message(list) else {
        return 0;
    };
    let is_rewritten = view.rewrites(list, backend);
    let growth = is_rewritten.then(|| handlers::most_growth(list, &message));
    message.len() + growth.unwrap_or_default()
}

/// Checks that a list of a backend that has not joined can be learned, cached and merged.
///
/// # Errors
/// `Internal` if clients cannot decode the list, or if it has more items than any backend can have.
pub(crate) fn check_first(list: List, backend: &Backend, reply: &Bytes) -> Result<(), Status> {
    let fault = Readable::list(list, reply)
        .err()
        .or_else(|| ownership::check(reply).err().map(|it| it.to_string()));
    fault.map_or(Ok(()), |fault| Err(backend.bad_reply(&fault)))
}
