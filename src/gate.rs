//! The gate for the bytes of a backend that go to every client: lists, stats, statuses of the node, versions and
//! events. It decodes these bytes completely, with the types of the CRI, and makes them [`Readable`]. Does no I/O.
//!
//! criswitch copies these bytes without decoding them. One item that clients cannot decode, such as a label that is not
//! UTF-8, would make the merged reply unreadable for every client. The kubelet reads some submessages without checking
//! that they are present: an item without its metadata, or stats without their attributes, would make it panic.

mod items;

use std::ops::Deref;
use std::sync::OnceLock;

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::protobuf::{Editable, EditedMessage, Path};
use criswitch_cri::codec::{cri, protobuf};
use criswitch_cri::rpc::List;
use criswitch_cri::rpc::fields::{ITEMS, container_event_response, lists, maps};
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

/// The kubelet takes the first file system of images in a merged reply for the default backend's, so a reply without a
/// file system must not be merged. The kubelet reads the used bytes without checking that they are present.
fn disks(message: &[u8]) -> Result<(), String> {
    let info = cri::ImageFsInfoResponse::decode(message).map_err(malformed)?;
    let disks = &info.image_filesystems;
    if disks.is_empty() {
        Err("its reply has no file system of images".to_owned())
    } else if disks.iter().any(|disk| disk.used_bytes.is_none()) {
        Err("a file system of images in its reply has no used_bytes".to_owned())
    } else {
        Ok(())
    }
}

/// Kubelets read the image of each container without checking that it is present, and accept no event of a pod without
/// metadata.
fn event(message: &[u8]) -> Result<(), String> {
    let event = cri::ContainerEventResponse::decode(message).map_err(malformed)?;
    let pod = event.pod_sandbox_status;
    if pod.is_some_and(|pod| pod.metadata.is_none()) {
        Err("the status of its pod has no metadata".to_owned())
    } else if event
        .containers_statuses
        .iter()
        .any(|it| it.image.is_none())
    {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ownership::MOST;

    /// A list with one item, which has `id` in field 1, and then these bytes.
    fn list(id: &str, more: &[u8]) -> Bytes {
        let mut item = protobuf::with_string(&[], &[1], id).to_vec();
        item.extend_from_slice(more);
        let mut message = BytesMut::new();
        protobuf::put_bytes(&mut message, ITEMS, &item);
        message.freeze()
    }

    #[test]
    fn an_event_has_a_limited_number_of_containers() {
        let containers = |count| {
            let status = cri::ContainerStatus {
                image: Some(cri::ImageSpec::default()),
                ..Default::default()
            };
            let event = cri::ContainerEventResponse {
                containers_statuses: vec![status; count],
                ..Default::default()
            };
            Readable::event(&event.encode_to_vec().into())
        };
        assert!(containers(MOST_CONTAINERS).is_ok());
        let fault = containers(MOST_CONTAINERS + 1).unwrap_err();
        assert!(
            fault.ends_with("of 4097 containers; the limit is 4096"),
            "{fault}"
        );
    }

    #[test]
    fn an_item_that_clients_cannot_decode_is_found_however_deep_the_fault_is() {
        let faults: [(List, &[u8]); 4] = [
            (List::Pods, b"\x2a\x0b\x0a\x03key\x12\x04caf\xe9"),
            (List::Containers, b"\x42\x0b\x0a\x04caf\xe9\x12\x03val"),
            (List::Pods, b"\x12\x04\x0a\x7fab"),
            (List::Images, b"\x12\x04caf\xe9"),
        ];
        for (kind, fault) in faults {
            let text = Readable::list(kind, &list("the-id", fault)).unwrap_err();
            assert!(text.contains("the item \"the-id\""), "{kind:?}: {text}");
        }
        let cut = list("the-id", b"\x12\x04\x0a\x02ab").slice(..9);
        assert!(Readable::list(List::Pods, &cut).is_err());
    }

    #[test]
    fn an_item_that_the_last_list_lacks_is_read() {
        let pods = |pods: &[Bytes]| Bytes::from(pods.concat());
        let [a, b, broken] = [
            list("a", b"\x12\x00"),
            list("b", b"\x12\x00"),
            list("c", b"\x12\x04caf\xe9"),
        ];
        let last = Readable::list(List::Pods, &pods(&[a.clone(), b.clone()])).unwrap();
        let next = last.next_list(List::Pods, &pods(&[b, a.clone()]));
        assert!(last.has_items_of(&next.unwrap()));
        let fault = last.next_list(List::Pods, &pods(&[a.clone(), broken]));
        assert!(fault.unwrap_err().contains("the item \"c\""));
        // An item of another type is read, even if it has the same bytes.
        assert!(last.next_list(List::Containers, &a).is_err());
    }

    #[test]
    fn fields_of_a_later_version_are_no_fault_whatever_they_contain() {
        let kinds: [(List, &[u8]); 3] = [
            (List::Pods, b"\x12\x00\xc2\xb8\x02\x04caf\xe9"),
            (List::Containers, b"\x1a\x00\xc2\xb8\x02\x04caf\xe9"),
            (List::Images, b"\xc2\xb8\x02\x04caf\xe9"),
        ];
        for (kind, newer) in kinds {
            let newer = list("the-id", newer);
            assert!(Readable::list(kind, &newer).is_ok(), "{kind:?}");
        }
        let disks = |message: &'static [u8]| Readable::disks(&Bytes::from_static(message));
        assert!(disks(b"\x0a\x02\x1a\x00\xc2\xb8\x02\x04caf\xe9").is_ok());
        assert!(disks(b"\x0a\x04caf\xe9").is_err());
    }

    #[test]
    fn an_image_fs_info_without_a_file_system_of_images_is_a_fault() {
        for only_of_containers in [&b""[..], b"\x12\x00"] {
            let fault = disks(only_of_containers).unwrap_err();
            assert!(fault.contains("no file system of images"), "{fault}");
        }
    }

    #[test]
    fn an_item_without_what_the_kubelet_reads_unasked_is_a_fault() {
        let kinds = [
            (List::Pods, "metadata"),
            (List::Containers, "metadata"),
            (List::ContainerStats, "attributes"),
            (List::PodStats, "attributes"),
        ];
        for (kind, field) in kinds {
            let items = match kind {
                List::Pods | List::Containers => list("the-id", b""),
                _ => Bytes::from_static(b"\x0a\x00"),
            };
            let fault = Readable::list(kind, &items).unwrap_err();
            assert!(fault.ends_with(&format!("has no {field}")), "{fault}");
        }
        for (kind, metadata) in [(List::Pods, b"\x12\x00"), (List::Containers, b"\x1a\x00")] {
            let fault = Readable::list(kind, &list("", metadata)).unwrap_err();
            assert!(fault.ends_with("has no id"), "{fault}");
        }
    }

    #[test]
    fn stats_file_systems_and_events_have_what_the_kubelet_reads_unasked() {
        let attributes = |metadata: Option<cri::ContainerMetadata>| {
            let id = "the-id".to_owned();
            let attributes = cri::ContainerAttributes {
                id,
                metadata,
                ..cri::ContainerAttributes::default()
            };
            let attributes = Some(attributes);
            cri::ContainerStats {
                attributes,
                ..cri::ContainerStats::default()
            }
        };
        let whole = attributes(Some(cri::ContainerMetadata::default()));
        let pod = |linux: Option<Vec<cri::ContainerStats>>| cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes::default()),
            linux: linux.map(|containers| cri::LinuxPodSandboxStats {
                containers,
                ..cri::LinuxPodSandboxStats::default()
            }),
            ..cri::PodSandboxStats::default()
        };
        let fault = |kind, item: Vec<u8>| {
            let mut list = bytes::BytesMut::new();
            protobuf::put_bytes(&mut list, 1, &item);
            Readable::list(kind, &list.freeze()).err()
        };
        let on_windows = cri::PodSandboxStats {
            windows: Some(cri::WindowsPodSandboxStats {
                containers: vec![cri::WindowsContainerStats::default()],
                ..cri::WindowsPodSandboxStats::default()
            }),
            ..pod(Some(Vec::new()))
        };
        let sample = |value: Option<cri::UInt64Value>| cri::PodSandboxMetrics {
            metrics: vec![cri::Metric {
                value,
                ..cri::Metric::default()
            }],
            ..cri::PodSandboxMetrics::default()
        };
        let descriptor = |name: &str, keys: &[&str]| cri::MetricDescriptor {
            name: name.to_owned(),
            label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            ..cri::MetricDescriptor::default()
        };
        let value = Some(cri::UInt64Value::default());
        assert_eq!(fault(List::PodMetrics, sample(value).encode_to_vec()), None);
        let described = descriptor("m", &["a", "b"]).encode_to_vec();
        assert_eq!(fault(List::MetricDescriptors, described), None);
        assert_eq!(fault(List::ContainerStats, whole.encode_to_vec()), None);
        assert_eq!(
            fault(List::PodStats, pod(Some(vec![whole])).encode_to_vec()),
            None
        );
        for (kind, item, lack) in [
            (
                List::ContainerStats,
                attributes(None).encode_to_vec(),
                "metadata in its attributes",
            ),
            (
                List::PodStats,
                pod(None).encode_to_vec(),
                std::env::consts::OS,
            ),
            (
                List::PodMetrics,
                sample(None).encode_to_vec(),
                "value of a metric",
            ),
            (
                List::MetricDescriptors,
                descriptor("", &[]).encode_to_vec(),
                "name",
            ),
            (
                List::MetricDescriptors,
                descriptor("m", &["a", "a"]).encode_to_vec(),
                "label keys that Prometheus accepts",
            ),
            (
                List::MetricDescriptors,
                descriptor("m", &["__name__"]).encode_to_vec(),
                "label keys that Prometheus accepts",
            ),
            (
                List::PodStats,
                pod(Some(vec![attributes(None)])).encode_to_vec(),
                "attributes of a container",
            ),
            (
                List::PodStats,
                on_windows.encode_to_vec(),
                "attributes of a container",
            ),
        ] {
            let fault = fault(kind, item).unwrap();
            assert!(fault.ends_with(&format!("has no {lack}")), "{fault}");
        }
        let fault = disks(b"\x0a\x00").unwrap_err();
        assert!(fault.contains("no used_bytes"), "{fault}");
        let pod_without_metadata = b"\x22\x00";
        let container_without_image = b"\x2a\x00";
        for message in [pod_without_metadata, container_without_image] {
            assert!(event(message).is_err(), "{message:?}");
        }
    }

    #[test]
    fn a_status_an_image_and_an_event_are_read_whole() {
        // A handler whose features are cut off, and a handler whose name is not UTF-8.
        for handler in [
            &b"\x1a\x07\x0a\x01a\x12\x02\x08"[..],
            b"\x1a\x06\x0a\x04caf\xe9",
        ] {
            assert!(status(handler).is_err(), "{handler:?}");
        }
        assert_eq!(status(b"\x1a\x03\x0a\x01a"), Ok(()));
        assert_eq!(status(&b"\x1a\x00".repeat(MOST_HANDLERS)), Ok(()));
        assert!(status(&b"\x1a\x00".repeat(MOST_HANDLERS + 1)).is_err());
        let image = |message: &'static [u8]| Readable::image(&Bytes::from_static(message));
        // An image whose tag is not UTF-8, and one whose annotation is cut off.
        for broken in [
            &b"\x0a\x06\x12\x04caf\xe9"[..],
            b"\x0a\x06\x3a\x04\x12\x02\x0a\x05",
        ] {
            assert!(image(broken).is_err(), "{broken:?}");
        }
        assert!(image(b"\x0a\x03\x0a\x01a").is_ok());
        let event = |message: &'static [u8]| Readable::event(&Bytes::from_static(message));
        assert!(event(b"\x0a\x04caf\xe9").is_err());
        assert!(event(b"\x0a\x01a").is_ok());
    }

    #[test]
    fn counts_that_a_backend_chooses_have_limits() {
        let pairs = |count: usize| (0..count).map(|key| (key.to_string(), String::new()));
        let pod = |count| cri::PodSandbox {
            id: "the-id".to_owned(),
            metadata: Some(cri::PodSandboxMetadata::default()),
            labels: pairs(count).collect(),
            ..Default::default()
        };
        let item = |list, item: Vec<u8>| Readable::item(list, &item).map(drop);
        assert_eq!(item(List::Pods, pod(4096).encode_to_vec()), Ok(()));
        let fault = item(List::Pods, pod(4097).encode_to_vec()).unwrap_err();
        assert!(
            fault.ends_with("has maps with 4097 pairs; the limit is 4096"),
            "{fault}"
        );
        let keys = |count| cri::MetricDescriptor {
            name: "m".to_owned(),
            label_keys: (0..count).map(|key| format!("k{key}")).collect(),
            ..Default::default()
        };
        let descriptors = List::MetricDescriptors;
        assert_eq!(item(descriptors, keys(64).encode_to_vec()), Ok(()));
        let fault = item(descriptors, keys(65).encode_to_vec()).unwrap_err();
        assert!(
            fault.ends_with("has 65 label keys; the limit is 64"),
            "{fault}"
        );
        let many = |count| Readable::list(descriptors, &b"\x0a\x03\x0a\x01m".repeat(count).into());
        assert!(many(MOST_DESCRIPTORS).is_ok());
        assert!(many(MOST_DESCRIPTORS + 1).is_err());
    }

    /// A decoded value takes far more memory than its two bytes.
    #[test]
    fn a_message_with_too_many_values_is_not_decoded() {
        let many = b"\x0a\x00".repeat(MOST + 1);
        let fault = Form::Disks.fault(&many).unwrap();
        assert!(
            fault.contains("lists with 131073 values; the limit is 131072"),
            "{fault}"
        );
        // Tags of one image, and samples of one pod.
        for (list, value) in [(List::Images, b"\x12\x00"), (List::PodMetrics, b"\x12\x00")] {
            let fault = Readable::item(list, &value.repeat(MOST + 1)).unwrap_err();
            assert!(fault.contains("has lists with 131073 values"), "{fault}");
        }
    }

    #[test]
    fn the_containers_in_the_stats_of_all_pods_count_together() {
        // Two pods, each with the metrics of many containers.
        let of_pod = b"\x1a\x00".repeat(MOST / 2 + 1);
        let mut metrics = BytesMut::new();
        protobuf::put_bytes(&mut metrics, ITEMS, &of_pod);
        let half = metrics.clone().freeze();
        assert!(Readable::list(List::PodMetrics, &half).is_ok());
        protobuf::put_bytes(&mut metrics, ITEMS, &of_pod);
        let fault = Readable::list(List::PodMetrics, &metrics.freeze()).unwrap_err();
        assert_eq!(fault, crate::ownership::Unlearned::TooMany.to_string());
    }

    /// prost reads the number of a map with a wrong wire type as a length.
    #[test]
    fn a_map_of_a_wrong_wire_type_is_a_fault() {
        let wrong = list("the-id", b"\x12\x00\x28\x00");
        assert!(cri::ListPodSandboxResponse::decode(wrong.clone()).is_ok());
        let fault = Readable::list(List::Pods, &wrong).unwrap_err();
        assert!(
            fault.contains("has a map that clients cannot decode"),
            "{fault}"
        );
        let status = Bytes::from_static(b"\x10\x00");
        assert!(cri::StatusResponse::decode(status.clone()).is_ok());
        assert!(Readable::status(&status).is_err());
    }
}
