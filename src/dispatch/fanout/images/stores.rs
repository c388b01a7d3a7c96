//! The answers of image stores to an `ImageStatus`: fresh answers, or the cached list of a store that does not answer.

use std::borrow::Cow;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::fields::{
    IMAGE_REFERENCE, IMAGE_STATUS_HANDLERS, ITEMS, LISTED_ID, image, image_status_response,
    int64_value,
};
use criswitch_cri::rpc::{self, List};
use futures_util::future::join_all;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::backend::lists::Snapshot;
use crate::call::reply::{self, Reply};
use crate::call::{Call, Failed, named};
use crate::dispatch::fanout;
use crate::dispatch::fanout::fallback::NEEDED_LIMIT;
use crate::errors;
use crate::gate::Readable;
use crate::limits::places::User;
use crate::switch::image_references::{self, ImageReference};
use crate::topology::Live;

/// One store's answer to an `ImageStatus`.
#[derive(Debug)]
pub(super) struct StoreAnswer {
    pub backend: Arc<Backend>,
    live: Arc<Live>,
    user: User,
    /// The image in the store's answer, else in its cached list.
    pub image: Stored,
    /// Whether the store gave no answer to a question with [`Wait::ListTimeout`], so that the caller may ask again with
    /// [`Wait::Answer`].
    pub is_late: bool,
    /// The time within which the store did not answer, if the client is not the cause.
    overdue: Option<Duration>,
    /// The store's answer if its code is `OK`, otherwise the error.
    answer: Result<Answer, Failed>,
}

/// Whether a store has the image.
#[derive(Clone, Debug)]
pub(super) enum Stored {
    /// The store has this image, an encoded `Image`.
    Image(Bytes),
    /// The store lacks the image.
    Nothing,
    /// The store does not answer, and no cached list is fresh enough.
    Unknown,
}

/// The properties by which the images of different stores are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageProperties {
    /// The id in the backend's form, with or without `sha256:`.
    pub id: String,
    pub uid: Option<u64>,
    pub username: String,
}

/// How long criswitch waits for a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// At most the store's `list_timeout` if the store has a cached list, otherwise like `Answer`. The caller may wait
    /// again, with `Answer`.
    ListTimeout,
    /// Like `ListTimeout`, but the caller does not wait again: a store that has not answered is late with the call.
    OnlyListTimeout,
    /// At most [`NEEDED_LIMIT`], because only the answer shows that an image is absent.
    Answer,
}

impl StoreAnswer {
    pub(super) fn image(&self) -> Option<&Bytes> {
        match &self.image {
            Stored::Image(image) => Some(image),
            Stored::Nothing | Stored::Unknown => None,
        }
    }

    pub(super) fn has_answered(&self) -> bool {
        self.answer.is_ok()
    }

    /// Whether the store answered with an error.
    pub(super) fn has_rejected(&self) -> bool {
        matches!(self.answer, Err(Failed::Answer(_)))
    }

    /// Returns the error, unless the store answered `OK`.
    pub(super) fn into_failed(self) -> Option<Failed> {
        self.answer.err()
    }

    /// Records that the store is late with `call`, because no call waits for its answer any longer.
    pub(super) fn note_late(&self, call: &Call) {
        if let Some(limit) = self.overdue {
            self.backend.note_late_read(call.row, &call.body, limit);
        }
    }

    /// Whether the store answers that it lacks the image.
    pub(super) fn says_absent(&self) -> bool {
        self.has_answered() && matches!(self.image, Stored::Nothing)
    }

    /// The reply to the client: the store's answer with the routing table's names for handlers, else a reply made from
    /// the cached image.
    ///
    /// # Errors
    /// `ResourceExhausted` if the memory for the backend's replies is full.
    pub(super) fn into_reply(self) -> Result<Reply, Failed> {
        let message = match (&self.answer, &self.image) {
            (Ok(answer), _) => self.backend.message(answer)?,
            (Err(_), Stored::Image(image)) => {
                let mut status = BytesMut::new();
                protobuf::put_bytes(&mut status, image_status_response::IMAGE, image);
                status.freeze()
            }
            (Err(_), Stored::Nothing | Stored::Unknown) => Bytes::new(),
        };
        let renamed = self.renamed(&message)?;
        Ok(match (self.answer, renamed) {
            (Ok(answer), Some(renamed)) => reply::of_changed(answer, renamed),
            (Ok(answer), None) => reply::of_answer(answer),
            (Err(_), renamed) => reply::of_message(vec![renamed.unwrap_or(message)]),
        })
    }

    /// The `ImageStatus` reply `message` with the routing table's names for the handlers of the image; `None` if they
    /// are the same. The memory of the copy is counted before the copy is made.
    fn renamed(&self, message: &Bytes) -> Result<Option<Bytes>, Status> {
        let backend = &self.backend;
        if !self.live.table.renames(backend.id) {
            return Ok(None);
        }
        let held = backend.memory.of(self.user, &rpc::IMAGE_STATUS).held();
        let held = backend.resized(held, message.len())?;
        let names = self.live.table.names_of(backend.id);
        let renamed = rpc::specs_renamed(message, IMAGE_STATUS_HANDLERS.images, |handler| {
            names.image_name_for(handler)
        });
        let Some(renamed) = renamed else {
            return Ok(None);
        };
        let held = backend.resized(held, renamed.len())?;
        Ok(Some(held.with(renamed)))
    }
}

impl ImageProperties {
    pub(super) fn of(image: &[u8]) -> Result<ImageProperties, Malformed> {
        let uid = protobuf::has(image, image::UID)?
            .then(|| protobuf::varint(image, &[image::UID, int64_value::VALUE]));
        Ok(ImageProperties {
            id: protobuf::string(image, LISTED_ID)?.to_owned(),
            uid: uid.transpose()?,
            username: protobuf::string(image, &[image::USERNAME])?.to_owned(),
        })
    }

    pub(super) fn is_same(&self, other: &ImageProperties) -> bool {
        image_references::bare_id(&self.id) == image_references::bare_id(&other.id)
            && (self.uid, &self.username) == (other.uid, &other.username)
    }
}

impl fmt::Display for ImageProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = errors::shown(&self.id);
        match (self.uid, self.username.as_str()) {
            (Some(uid), _) => write!(f, "{id} (uid {uid})"),
            (None, "") => write!(f, "{id} (root)"),
            (None, user) => write!(f, "{id} (user {:?})", errors::shown(user)),
        }
    }
}

/// Whether all stores that have an image have the same image.
pub(super) fn agree(all: &[StoreAnswer]) -> bool {
    let contents = all
        .iter()
        .filter_map(StoreAnswer::image)
        .map(|it| ImageProperties::of(it));
    let Ok(contents) = contents.collect::<Result<Vec<_>, _>>() else {
        return false;
    };
    contents.windows(2).all(|pair| match pair {
        [one, other] => one.is_same(other),
        _ => true,
    })
}

/// Sends `call`, an `ImageStatus`, to all `backends` at once.
pub(super) async fn ask_stores(
    call: &Call,
    backends: &[Arc<Backend>],
    wait: Wait,
) -> Vec<StoreAnswer> {
    let asked = backends.iter();
    join_all(asked.map(|backend| ask_store(call, backend, wait))).await
}

async fn ask_store(call: &Call, backend: &Arc<Backend>, wait: Wait) -> StoreAnswer {
    let limit = match wait {
        Wait::Answer => NEEDED_LIMIT,
        _ if cached_image(call, backend).is_none() => NEEDED_LIMIT,
        Wait::ListTimeout | Wait::OnlyListTimeout => backend.list_timeout(),
    };
    let is_last = limit == NEEDED_LIMIT || wait == Wait::OnlyListTimeout;
    let mut overdue = None;
    let answer = match backend.late_read(call.row, &call.body) {
        Some(late) => Err(late),
        None => call
            .within(limit, pin!(fanout::ask(call, backend)))
            .await
            .unwrap_or_else(|late| {
                backend.wakeups.suspected.notify_one();
                overdue = late.is_fault_of_backend.then_some(limit);
                Err(backend.unavailable(&format!("it did not answer within {limit:?}")))
            }),
    };
    let is_late = answer.as_ref().is_err_and(errors::is_silence) && wait == Wait::ListTimeout;
    let read = answer.map_err(Failed::from).and_then(|answer| {
        let image = image_of(backend, call.user, &answer)?;
        match answer.code() {
            Code::Ok => Ok((answer, image)),
            _ => Err(named(backend, answer)),
        }
    });
    let (answer, image) = match read {
        Ok((answer, image)) => (Ok(answer), image),
        Err(failed) => {
            let cached = cached_image(call, backend);
            (Err(failed), cached.unwrap_or(Stored::Unknown))
        }
    };
    let said = StoreAnswer {
        backend: Arc::clone(backend),
        live: Arc::clone(&call.live),
        user: call.user,
        image,
        is_late,
        overdue,
        answer,
    };
    if is_last {
        said.note_late(call);
    }
    said
}

/// Looks up the image that `call` names in the cached list of `backend`. `None` if no cached list is fresh enough.
fn cached_image(call: &Call, backend: &Backend) -> Option<Stored> {
    image_in(
        call,
        backend,
        backend.record.known().lists.complete_images()?,
    )
}

/// Looks up the image that `call` names in the last list of `backend`, which may lack an image that was pulled since.
/// `None` if this list is too old. A call for all images shows the same list.
pub(super) fn last_image(call: &Call, backend: &Backend) -> Option<Stored> {
    image_in(
        call,
        backend,
        backend.record.known().lists.get(List::Images)?,
    )
}

fn image_in(call: &Call, backend: &Backend, snapshot: &Snapshot) -> Option<Stored> {
    if snapshot.age() >= backend.stale_lists() {
        return None;
    }
    let message = call.message();
    let reference = ImageReference::of(protobuf::string(&message, IMAGE_REFERENCE).ok()?);
    for image in protobuf::all_bytes(&snapshot.message, &[ITEMS]).ok()? {
        if reference.is_of(image).ok()? {
            return Some(Stored::Image(snapshot.message.slice_ref(image)));
        }
    }
    Some(Stored::Nothing)
}

/// The image in an answer to the `ImageStatus` of a client of `user`. `Stored::Nothing` if the answer is an error or
/// has no image. A copy of the image counts in the memory for the backend's replies.
///
/// # Errors
/// `Internal` if clients cannot decode the answer; `ResourceExhausted` if the memory is full.
pub(super) fn image_of(backend: &Backend, user: User, answer: &Answer) -> Result<Stored, Status> {
    if answer.code() != Code::Ok {
        return Ok(Stored::Nothing);
    }
    let message = backend.message(answer)?;
    let malformed = |fault| backend.malformed(&fault);
    let message = Readable::image(&message).map_err(|fault| backend.bad_reply(&fault))?;
    if !protobuf::has(&message, image_status_response::IMAGE).map_err(malformed)? {
        return Ok(Stored::Nothing);
    }
    let image = protobuf::submessage(&message, &[image_status_response::IMAGE]);
    let image = match image.map_err(malformed)? {
        Cow::Borrowed(image) => message.slice_ref(image),
        // Protobuf allows a submessage in several parts.
        Cow::Owned(parts) => {
            let held = backend.memory.of(user, &rpc::IMAGE_STATUS).held();
            backend.resized(held, parts.len())?.with(parts.into())
        }
    };
    ImageProperties::of(&image).map_err(malformed)?;
    Ok(Stored::Image(image))
}
