//! What replies teach: owners, images, and the names that pods' handlers have in the table.

use bytes::Bytes;
use tonic::Status;

use crate::backend::Backend;
use crate::owners::{BackendId, Mark, PodNames};
use crate::rpc::{Kind, LIST_FILTER, LISTED_HANDLER, Row, Then};
use crate::switch::{Call, Switch};
use crate::telemetry;
use crate::wire::{self, Path};

impl Switch {
    /// Whether a reply has to be read on its way, or passes unread.
    pub(crate) fn must_read(&self, row: &Row, backend: BackendId) -> bool {
        match row.then {
            Then::Nothing => false,
            Then::Rename(_) => self.renames(backend),
            Then::Learn(_) => !row.streams(),
            _ => true,
        }
    }

    /// Learns from the reply to `call`, which went well and is for the pod or container `of`; the message as the
    /// client is to have it, if that is another one.
    ///
    /// # Errors
    /// `Internal` if the reply is not what the CRI says.
    pub(crate) fn learn(
        &self,
        call: &Call,
        backend: &Backend,
        of: Option<(Kind, &str)>,
        reply: &Bytes,
    ) -> Result<Option<Bytes>, Status> {
        match call.row.then {
            Then::Nothing => {}
            Then::HaveImage(_) => self.remember_image(call, backend.id, reply),
            Then::OwnPod(id, config) => {
                self.own_pod(call, backend, reply, id, config)?;
            }
            Then::OwnContainer(path) => {
                let id = created(backend, reply, path)?;
                telemetry::note_id(Kind::Container, id);
                let pod = of.map_or("", |(_, pod)| pod);
                self.owners().own_container(id, backend.id, pod);
            }
            Then::OwnRestored(id, containers, config) => {
                let pod = self.own_pod(call, backend, reply, id, config)?;
                let containers = wire::strings(reply, containers);
                for container in containers.map_err(|fault| backend.malformed(&fault))? {
                    self.owners().own_container(container, backend.id, pod);
                }
            }
            Then::Forget => {
                if let Some((kind, id)) = of {
                    self.owners().forget(kind, id);
                }
            }
            Then::Learn(kind) => return self.learn_list(kind, backend, reply),
            Then::Rename(path) => return self.renamed(backend, reply, path),
        }
        Ok(None)
    }

    /// The list that `call` asked for at `asked` has come whole: what `backend` no longer lists is forgotten, unless
    /// the call asked for less than all there is.
    pub(crate) fn settle(&self, call: &Call, backend: &Backend, asked: Mark) {
        let Then::Learn(kind) = call.row.then else {
            return;
        };
        if wire::bytes(&call.message(), LIST_FILTER).is_ok_and(<[u8]>::is_empty) {
            self.owners().settle(kind, backend.id, asked);
        }
    }

    fn own_pod<'a>(
        &self,
        call: &Call,
        backend: &Backend,
        reply: &'a [u8],
        id: Path,
        config: Path,
    ) -> Result<&'a str, Status> {
        let id = created(backend, reply, id)?;
        telemetry::note_id(Kind::Pod, id);
        // A configuration that cannot be read names no pod, and the backend took it all the same.
        let request = call.message();
        let names = wire::bytes(&request, config).and_then(PodNames::of_config);
        self.owners()
            .own_pod(id, backend.id, names.unwrap_or_default());
        Ok(id)
    }

    /// Learns a list; as the client is to have it, if that is another one.
    pub(crate) fn learn_list(
        &self,
        kind: Kind,
        backend: &Backend,
        list: &Bytes,
    ) -> Result<Option<Bytes>, Status> {
        let learned = self.owners().learn(kind, backend.id, list);
        learned.map_err(|fault| backend.malformed(&fault))?;
        match kind {
            Kind::Pod => self.renamed(backend, list, LISTED_HANDLER),
            Kind::Container => Ok(None),
        }
    }

    /// `message` with the table's names for the handlers at `path`, if the table renames any of the backend's.
    pub(crate) fn renamed(
        &self,
        backend: &Backend,
        message: &Bytes,
        path: &[u32],
    ) -> Result<Option<Bytes>, Status> {
        if !self.renames(backend.id) {
            return Ok(None);
        }
        let new = |name: &str| self.table.name_for(backend.id, name);
        let message = wire::replace_strings(message, path, &new);
        message.map(Some).map_err(|fault| backend.malformed(&fault))
    }

    /// Whether the backend knows a handler by another name than the table.
    pub(crate) fn renames(&self, backend: BackendId) -> bool {
        self.table
            .handlers
            .iter()
            .any(|row| row.backend == backend && row.backend_handler != row.name)
    }
}

/// The id of what a backend created.
fn created<'a>(backend: &Backend, reply: &'a [u8], path: Path) -> Result<&'a str, Status> {
    match wire::string(reply, path) {
        Ok("") => Err(backend.bad_reply("it created something without an id")),
        Ok(id) => Ok(id),
        Err(fault) => Err(backend.malformed(&fault)),
    }
}
