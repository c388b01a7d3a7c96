//! The gate for the bytes of a backend that go to every client: lists, stats, statuses of the node, versions, events,
//! and the kept statuses of pods and containers. It decodes these bytes completely, with the types of the CRI, and
//! makes them [`Readable`]. Does no I/O.
//!
//! criswitch copies these bytes without decoding them. One item that clients cannot decode, such as a label that is not
//! UTF-8, would make the merged reply unreadable for every client. The kubelet reads some submessages without checking
//! that they are present: an item without its metadata, or stats without their attributes, would make it panic.

mod items;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::protobuf::{Editable, EditedMessage, Path};
use criswitch_cri::codec::{cri, protobuf};
use criswitch_cri::rpc::fields::{ITEMS, container_event_response, lists, maps};
use criswitch_cri::rpc::{Kind, List};
use prost::{DecodeError, Message};

use crate::limits::budget::Reservation;

pub(crate) use items::containers_fault;
pub use items::{MOST_CONTAINERS, MOST_DESCRIPTORS, MOST_LABEL_KEYS, MOST_PAIRS};

/// The most handlers that a backend may report. Each Status of the node has the handlers of all backends.
pub const MOST_HANDLERS: usize = 256;

/// Reads a message whole. The error says why clients cannot use it.
type ReadMessage = fn(&[u8]) -> Result<(), String>;

/// A message of a backend that every client can decode. Only this module creates values of this type. Merging, events,
/// the status of the node, the cached lists and the restored state take no other messages.
#[derive(Clone, Debug, Default)]
pub struct Readable {
    message: Bytes,
    /// `None` for an empty message, which is a message of every type.
    form: Option<Form>,
    /// The hash of the items, once it was needed.
    print: OnceLock<Option<u64>>,
}

/// The type of a message.
#[derive(Clone, Copy, Debug)]
enum Form {
    List(List),
    /// Metric descriptors of several backends, which only criswitch reads: clients have received them already.
    GivenDescriptors,
    Disks,
    Profiles,
    Image,
    Status,
    Version,
    Event,
    ItemStatus(Kind),
}

impl Form {
    /// Why clients cannot use the message; `None` if they can.
    fn fault(self, message: &[u8]) -> Option<String> {
        let (read, maps, lists): (ReadMessage, &[Path], &[Path]) = match self {
            Form::List(list) => return items::fault(list, message, &[]),
            Form::Status => (status, maps::STATUS, lists::STATUS),
            Form::GivenDescriptors => (decoded::<cri::ListMetricDescriptorsResponse>, &[], &[]),
            Form::Disks => (disks, &[], lists::DISKS),
            Form::Profiles => (
                decoded::<cri::ListSecurityProfilesResponse>,
                &[],
                lists::PROFILES,
            ),
            Form::Image => (
                decoded::<cri::ImageStatusResponse>,
                maps::IMAGE_STATUS,
                lists::IMAGE_STATUS,
            ),
            Form::Version => (decoded::<cri::VersionResponse>, &[], &[]),
            Form::Event => (event, maps::EVENT, lists::EVENT),
            Form::ItemStatus(Kind::Pod) => (pod_status, maps::POD_STATUS, lists::POD_STATUS),
            Form::ItemStatus(Kind::Container) => (
                container_status,
                maps::CONTAINER_STATUS,
                lists::CONTAINER_STATUS,
            ),
        };
        // Check the counts first, because decoding many values takes a lot of time and memory.
        let containers = match self {
            Form::Event => {
                containers_fault(message, &[container_event_response::CONTAINERS_STATUSES])
            }
            _ => None,
        };
        match containers.or_else(|| items::count_fault(message, maps, lists)) {
            Some(fault) => Some(format!("its reply {fault}")),
            None => read(message).err(),
        }
    }

    fn read(self, message: &Bytes) -> Result<Readable, String> {
        match self.fault(message) {
            Some(fault) => Err(fault),
            None => Ok(Readable::new(message.clone(), Some(self))),
        }
    }
}

impl Readable {
    /// A list, stats, metrics, or their descriptors.
    ///
    /// # Errors
    /// Why clients cannot use the message. The text names the item.
    pub fn list(list: List, message: &Bytes) -> Result<Readable, String> {
        Form::List(list).read(message)
    }

    /// Reads the next list of the same kind. Skips the items that this list also has, because they were read before.
    ///
    /// # Errors
    /// Why clients cannot use the message. The text names the item.
    pub fn next_list(&self, list: List, message: &Bytes) -> Result<Readable, String> {
        let last: &[u8] = match self.form {
            Some(Form::List(of)) if of == list => &self.message,
            _ => &[],
        };
        match items::fault(list, message, last) {
            Some(fault) => Err(fault),
            None => Ok(Readable::new(message.clone(), Some(Form::List(list)))),
        }
    }

    /// A list with this one item, which criswitch made from a client's request.
    ///
    /// # Errors
    /// Why clients cannot use the item.
    pub(crate) fn item(list: List, item: &[u8]) -> Result<Readable, String> {
        let mut message = BytesMut::new();
        protobuf::put_bytes(&mut message, ITEMS, item);
        Readable::list(list, &message.freeze())
    }

    /// A merged `ListMetricDescriptorsResponse` that a client received. It may have more label keys than that of a
    /// backend.
    ///
    /// # Errors
    /// Why the message cannot be decoded.
    pub(crate) fn given_descriptors(message: &Bytes) -> Result<Readable, String> {
        Form::GivenDescriptors.read(message)
    }

    /// An `ImageFsInfoResponse`.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn disks(message: &Bytes) -> Result<Readable, String> {
        Form::Disks.read(message)
    }

    /// A `ListSecurityProfilesResponse`.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn profiles(message: &Bytes) -> Result<Readable, String> {
        Form::Profiles.read(message)
    }

    /// An `ImageStatusResponse`. One store answers for all stores.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn image(message: &Bytes) -> Result<Readable, String> {
        Form::Image.read(message)
    }

    /// A `StatusResponse`.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn status(message: &Bytes) -> Result<Readable, String> {
        Form::Status.read(message)
    }

    /// A `VersionResponse`.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn version(message: &Bytes) -> Result<Readable, String> {
        Form::Version.read(message)
    }

    /// A `ContainerEventResponse`.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn event(message: &Bytes) -> Result<Readable, String> {
        Form::Event.read(message)
    }

    /// The last reply for the status of a pod or container, which criswitch serves while the backend is away.
    ///
    /// # Errors
    /// Why clients cannot use the message.
    pub fn item_status(kind: Kind, message: &Bytes) -> Result<Readable, String> {
        Form::ItemStatus(kind).read(message)
    }

    /// The same message, whose memory is counted until it is dropped.
    pub(crate) fn holding(self, held: Reservation) -> Readable {
        Readable {
            message: held.with(self.message),
            ..self
        }
    }

    /// This list, followed by the items of `others`, which are lists of the same kind.
    pub(crate) fn followed_by<'a>(&self, others: impl Iterator<Item = &'a Readable>) -> Readable {
        let (mut message, mut form) = (BytesMut::from(self.message.as_ref()), self.form);
        for other in others {
            message.extend_from_slice(other);
            form = form.or(other.form);
        }
        Readable::new(message.freeze(), form)
    }

    /// `message` as a `Readable`, if it has the items of this list, in any order. The message is not decoded again.
    pub(crate) fn repeated(&self, message: &Bytes) -> Option<Readable> {
        let other = Readable::new(message.clone(), self.form);
        self.has_items_of(&other).then_some(other)
    }

    /// Whether `other` has the same items, in any order.
    pub(crate) fn has_items_of(&self, other: &Readable) -> bool {
        self.is(other)
            || self.message.len() == other.message.len()
                && self.print().is_some()
                && self.print() == other.print()
    }

    fn print(&self) -> Option<u64> {
        *self.print.get_or_init(|| items::print(&self.message))
    }

    /// Whether the bytes are equal. Two references to the same memory need no comparison.
    pub(crate) fn is(&self, other: &[u8]) -> bool {
        std::ptr::eq(self.as_ref(), other) || items::is_equal(self, other)
    }

    fn new(message: Bytes, form: Option<Form>) -> Readable {
        Readable {
            message,
            form,
            print: OnceLock::new(),
        }
    }
}

/// An edit drops items, or replaces the name of a handler, a label or a state, so every client can decode the message
/// after it. Tests read the message again.
impl Editable for Readable {
    fn with(&self, edited: EditedMessage) -> Readable {
        let message = Bytes::from(edited);
        debug_assert_eq!(
            self.form.and_then(|form| form.fault(&message)),
            None,
            "a change that clients cannot decode"
        );
        Readable::new(message, self.form)
    }
}

impl AsRef<[u8]> for Readable {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

impl Deref for Readable {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.message
    }
}

impl From<Readable> for Bytes {
    fn from(readable: Readable) -> Bytes {
        readable.message
    }
}

/// Checks that clients can use an `ImageFsInfoResponse`. The kubelet uses the first image filesystem of a merged reply
/// as the default backend's, so a reply without one must not be merged. The kubelet also reads `used_bytes` without
/// checking that the field is present.
fn disks(message: &[u8]) -> Result<(), String> {
    let info = cri::ImageFsInfoResponse::decode(message).map_err(malformed)?;
    let disks = &info.image_filesystems;
    if disks.is_empty() {
        Err("its reply has no image filesystem".to_owned())
    } else if disks.iter().any(|disk| disk.used_bytes.is_none()) {
        Err("an image filesystem in its reply has no used_bytes".to_owned())
    } else {
        Ok(())
    }
}

/// Kubelets accept no event of a pod without metadata.
fn event(message: &[u8]) -> Result<(), String> {
    let event = cri::ContainerEventResponse::decode(message).map_err(malformed)?;
    of_item_statuses(
        event.pod_sandbox_status.as_ref(),
        &event.containers_statuses,
    )
}

fn pod_status(message: &[u8]) -> Result<(), String> {
    let reply = cri::PodSandboxStatusResponse::decode(message).map_err(malformed)?;
    of_item_statuses(reply.status.as_ref(), &reply.containers_statuses)
}

fn container_status(message: &[u8]) -> Result<(), String> {
    let reply = cri::ContainerStatusResponse::decode(message).map_err(malformed)?;
    of_item_statuses(None, reply.status.as_slice())
}

/// Kubelets read the metadata of a pod and the image of each container without checking that they are present.
fn of_item_statuses(
    pod: Option<&cri::PodSandboxStatus>,
    containers: &[cri::ContainerStatus],
) -> Result<(), String> {
    if pod.is_some_and(|pod| pod.metadata.is_none()) {
        Err("the status of its pod has no metadata".to_owned())
    } else if containers.iter().any(|it| it.image.is_none()) {
        Err("the status of a container has no image".to_owned())
    } else {
        Ok(())
    }
}

fn status(message: &[u8]) -> Result<(), String> {
    let status = cri::StatusResponse::decode(message).map_err(malformed)?;
    let handlers = status.runtime_handlers.len();
    if handlers > MOST_HANDLERS {
        Err(format!(
            "its Status has {handlers} handlers; the limit is {MOST_HANDLERS}"
        ))
    } else {
        Ok(())
    }
}

fn decoded<M: Message + Default>(message: &[u8]) -> Result<(), String> {
    M::decode(message).map(drop).map_err(malformed)
}

fn malformed(fault: DecodeError) -> String {
    format!("its reply is malformed: {fault}")
}
