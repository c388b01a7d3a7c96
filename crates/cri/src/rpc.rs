//! The columns of the RPC table; [`ROWS`] is the table.
//!
//! The dispatcher, `criswitch routes`, docs/rpcs.md and the tests of all RPCs use the table.

mod describe;
pub mod features;
pub mod fields;
pub mod filter;
mod renames;
mod table;

use bytes::Bytes;

use crate::codec::protobuf::{self, Path};

pub use describe::Words;
pub use renames::{HandlerPaths, MOST_RENAMED, specs_renamed};
pub use table::*;

/// An id that no pod, container or image has.
const NO_ID: &str = "criswitch-probe";

/// A row of the RPC table: one RPC of the CRI, its route, its merge and its effects.
#[derive(Debug)]
pub struct Row {
    /// The RPC's service.
    pub service: Service,
    /// The RPC's name within the service.
    pub name: &'static str,
    /// The backends that receive the call.
    pub goes: Goes,
    /// The facts to learn from the reply.
    pub then: Then,
    /// The level of the call's log line.
    pub log: LogRule,
    /// Whether a call may last as long as its client likes: an event stream, a command, a pull.
    pub is_long: bool,
    /// When a call ends if its backend does not answer.
    pub patience: Patience,
    /// Whether a runtime may lack the RPC, for example because the runtime is older than the RPC. `Unimplemented` to a
    /// call of any other RPC counts as an error, never as "has nothing".
    pub may_lack: bool,
}

/// When a call ends if its backend does not answer. Every call also ends when its client does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// A read that a backend answers at once, and that criswitch may repeat. Without an answer in time, the backend is
    /// late with this RPC, and the call ends.
    Short,
    /// The call ends when the backend becomes unresponsive.
    Read,
    /// The call changes something. It ends when the backend has been unresponsive for `CHANGE_LIMIT`.
    Change,
    /// The call creates a pod or container, so its outcome must stay known: only the client can end it early.
    Create,
}

/// A service of `runtime.v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// `runtime.v1.RuntimeService`.
    Runtime,
    /// `runtime.v1.ImageService`.
    Image,
}

impl Service {
    /// The full name of the service.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Runtime => "runtime.v1.RuntimeService",
            Service::Image => "runtime.v1.ImageService",
        }
    }
}

impl Row {
    /// The HTTP path of requests, such as `/runtime.v1.RuntimeService/Version`.
    pub fn path(&self) -> String {
        format!("/{}/{}", self.service.name(), self.name)
    }

    /// How the replies of several backends are merged; `None` if the RPC has no merged reply.
    pub fn merge(&self) -> Option<&Merge> {
        match &self.goes {
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => Some(merge),
            _ => None,
        }
    }

    /// The kind of list in the reply; `None` if the reply is not a list.
    pub fn list(&self) -> Option<List> {
        match self.then {
            Then::List(list) => Some(list),
            _ => None,
        }
    }

    /// Whether the reply lists pods, containers or images.
    pub fn is_list(&self) -> bool {
        self.list().is_some_and(|list| !list.is_stats())
    }

    /// Whether the reply is stats, metrics or metric descriptors.
    pub fn is_stats(&self) -> bool {
        self.list().is_some_and(List::is_stats)
    }

    /// Whether a backend that is late with this RPC also counts as late with `other`. A list of pods and a list of
    /// containers belong together, because their contents must agree.
    pub fn goes_with(&self, other: &Row) -> bool {
        match [self, other].map(|row| row.list()?.kind()) {
            [Some(_), Some(_)] => self.streams() == other.streams(),
            _ => self.name == other.name,
        }
    }

    /// Whether the replies of both RPCs have the same content, as the replies of a list call and of its stream have.
    pub fn has_content_of(&self, other: &Row) -> bool {
        match (self.list(), other.list()) {
            (None, None) => self.name == other.name,
            (own, others) => own == others,
        }
    }

    /// The path to the pod's configuration in a request; `None` if requests of this RPC have no such field.
    pub fn pod_config(&self) -> Option<Path> {
        match (&self.goes, &self.then) {
            (_, Then::OwnPod(_, config) | Then::OwnRestored(.., config)) => Some(config),
            (Goes::OwnerWithImage(_) | Goes::Image(_, ImageRule::Pull(_)), _) => {
                Some(fields::POD_CONFIG)
            }
            _ => None,
        }
    }

    /// The path to the pod's annotations in a request for an image or an existing pod; `None` if requests of this RPC
    /// have no such field.
    pub fn pod_annotations(&self) -> Option<Path> {
        match self.goes {
            Goes::OwnerWithImage(_) | Goes::Image(_, ImageRule::Pull(_)) => {
                Some(fields::POD_ANNOTATIONS)
            }
            Goes::Image(_, ImageRule::Find(annotations)) => Some(annotations),
            _ => None,
        }
    }

    /// Whether the call changes the node.
    pub fn changes(&self) -> bool {
        self.log == LogRule::Change
    }

    /// Whether the call stops or removes a pod, container, image or security profile, so that `NotFound` means that
    /// nothing is left to do.
    pub fn removes(&self) -> bool {
        matches!(
            (&self.goes, &self.then),
            (
                Goes::Owner(_, _, Unknown::Ok) | Goes::All(_, Merge::RemoveProfile),
                _
            ) | (_, Then::LostImage)
        )
    }

    /// Whether the call changes the image store of a backend.
    pub fn changes_images(&self) -> bool {
        matches!(self.then, Then::NewImage(_) | Then::LostImage)
    }

    /// The pod or container that a call with this request may change.
    pub fn changed_item<'r>(&self, request: &'r [u8]) -> Option<(Kind, &'r str)> {
        let (kind, path) = match self.goes {
            Goes::Owner(kind, path, _) if self.changes() => (kind, path),
            Goes::OwnerWithImage(path) => (Kind::Pod, path),
            _ => return None,
        };
        Some((kind, protobuf::string(request, path).ok()?))
    }

    /// The kind of item whose status the reply is, and the path to the state in the reply. criswitch keeps the last
    /// status of each item. `None` for any other RPC.
    pub fn status(&self) -> Option<(Kind, Path)> {
        match self.name {
            name if name == POD_STATUS.name => Some((Kind::Pod, fields::POD_STATE)),
            name if name == CONTAINER_STATUS.name => {
                Some((Kind::Container, fields::CONTAINER_STATE))
            }
            _ => None,
        }
    }

    /// The kind of the id in requests of this RPC, and the path to the id, if a request with an empty id is a probe
    /// that asks whether the node has the RPC. This is so if calls name one pod or container, and a runtime may lack
    /// the RPC.
    pub fn probe(&self) -> Option<(Kind, Path)> {
        match self.goes {
            Goes::Owner(kind, path, _) if self.may_lack => Some((kind, path)),
            _ => None,
        }
    }

    /// A request whose answer shows whether a backend has the RPC, and which changes nothing and asks for as little as
    /// possible. `None` if there is no such request.
    pub fn probe_request(&self) -> Option<Bytes> {
        let id = match &self.goes {
            Goes::All(filter, _) if !self.changes() => filter.id.map(|(_, path)| path),
            Goes::Image(_, ImageRule::List(_)) => Some(fields::FILTER_IMAGE),
            Goes::Image(_, ImageRule::Find(_)) => None,
            _ => {
                self.probe()?;
                None
            }
        };
        Some(id.map_or_else(Bytes::new, |path| protobuf::with_string(&[], path, NO_ID)))
    }

    /// Whether the reply is a stream of messages.
    pub fn streams(&self) -> bool {
        matches!(self.merge(), Some(Merge::Streamed(..) | Merge::Events))
    }

    /// The unary call for the items of this stream; `None` if the RPC is not a stream of items.
    pub fn unary(&self) -> Option<&'static Row> {
        match self.merge() {
            Some(Merge::Streamed(list, _)) => Some(list),
            _ => None,
        }
    }
}

/// The row for a request path; `None` for any other path.
pub fn find(path: &str) -> Option<&'static Row> {
    let (service, name) = path.strip_prefix('/')?.rsplit_once('/')?;
    ROWS.iter()
        .find(|row| row.name == name && row.service.name() == service)
}

/// The route of a call.
#[derive(Debug)]
pub enum Goes {
    /// The default handler's backend.
    Default,
    /// The backend of the handler named at the path.
    Handler(Path),
    /// The backend that owns the pod or container named at the path.
    Owner(Kind, Path, Unknown),
    /// Like `Owner` of a pod, for `CreateContainer`: the owner's id of the image may replace the id in the request.
    OwnerWithImage(Path),
    /// All backends, or the owner of the id in the filter.
    All(Filter, Merge),
    /// The handler's backend, if the image spec names a handler at the path. Otherwise the `ImageRule` decides.
    Image(Path, ImageRule),
}

/// The kind of thing that an id names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A pod sandbox.
    Pod,
    /// A container.
    Container,
}

/// The reply for an id that no backend knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// An empty reply: a removed pod or container needs no stop and no removal.
    Ok,
    /// `NotFound`.
    NotFound,
}

/// The fields of a list request that narrow it to one pod or container; `None` if the request lacks the field.
#[derive(Debug, Default)]
pub struct Filter {
    /// The path to an id, and its kind.
    pub id: Option<(Kind, Path)>,
    /// The path to a pod's id.
    pub pod: Option<Path>,
    /// The path to a label selector.
    pub labels: Option<Path>,
}

impl Filter {
    /// The filter of requests that cannot be narrowed to one pod or container.
    pub const NONE: Filter = Filter {
        id: None,
        pod: None,
        labels: None,
    };

    /// Whether `request` names one pod or container, by its id or its pod's id.
    pub fn names_one(&self, request: &[u8]) -> bool {
        [self.id.map(|(_, path)| path), self.pod]
            .into_iter()
            .flatten()
            .any(|path| protobuf::string(request, path).is_ok_and(|id| !id.is_empty()))
    }
}

/// How the replies of several backends are merged.
#[derive(Debug)]
pub enum Merge {
    /// Joins the items of all replies.
    Items(Items),
    /// Joins the items of all replies, and streams them. A backend that does not implement the stream gets this unary
    /// call for the same items.
    Streamed(&'static Row, Items),
    /// Forwards the messages in the order of arrival. The stream has no end. The stream fails if a backend does not
    /// implement the RPC.
    Events,
    /// The default backend's reply, with the routing table's handlers, the features that all backends with handlers
    /// share, and a condition for all backends.
    Status,
    /// The default backend's reply. If the default backend does not implement the RPC, the first reply of another
    /// backend. criswitch reports backends with a different cgroup driver.
    RuntimeConfig,
    /// OK if every reachable backend accepts the call. criswitch repeats the call on backends that come back later.
    UpdateRuntimeConfig,
    /// The security profiles of all backends, one for each digest. Backends that do not implement the RPC are omitted.
    /// Fails if the answer of a backend cannot be used: the kubelet asks again later.
    Profiles,
    /// OK if no backend lists the security profile, or each backend that lists it returns OK. Backends that do not
    /// implement `ListSecurityProfiles` are omitted.
    RemoveProfile,
}

impl Merge {
    /// The items of the reply; `None` for replies without items.
    pub fn items(&self) -> Option<&Items> {
        match self {
            Merge::Items(items) | Merge::Streamed(_, items) => Some(items),
            _ => None,
        }
    }
}

/// How the items of several replies are combined into one reply.
#[derive(Debug)]
pub struct Items {
    /// How the items are joined.
    pub join: Join,
    /// The meaning of `Unimplemented` from a backend.
    pub lacking: IfUnimplemented,
    /// The replacement for a backend that does not answer.
    pub silent: Silent,
}

/// The way in which items are joined.
#[derive(Debug)]
pub enum Join {
    /// Concatenates the encoded replies. All fields of such a reply are repeated fields, so the result has the items of
    /// all replies.
    Concat,
    /// Like `Concat`, but if several items have the same string at one of the paths, only the first of these items
    /// stays. The first number of a path is the repeated field. The field is omitted if the first reply lacks it.
    Distinct(&'static [Path]),
    /// Merges images with the same id into one.
    Images,
    /// Merges security profiles with the same digest into one.
    Profiles,
    /// Merges descriptors of the same metric into one, with the label keys of all backends.
    Descriptors,
}

/// The effect of a backend that answers a merged unary call with `Unimplemented`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfUnimplemented {
    /// `Unimplemented` is an error like any other: every runtime must have the RPC.
    Error,
    /// The whole call is `Unimplemented` if that backend owns pods or containers, because without the backend they
    /// would seem to be removed. Otherwise the backend is omitted.
    FailsForPods,
    /// The backend is omitted. The call is `Unimplemented` only if all backends lack the RPC.
    Omitted,
}

/// The replacement for a part of a merged reply that cannot be used: the backend does not answer in time, returns an
/// error, or sends a reply that criswitch cannot read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// The backend's last complete list; without a cached list the call fails.
    LastKnown,
    /// The backend's last reply to a call for all stats; if that is too old, the backend is omitted.
    LastKnownOrOmitted,
    /// The backend is omitted, unless it is the default backend, because the kubelet would mistake the file system of
    /// another backend for the node's. The call waits for the default backend, and fails with its error. If the default
    /// backend does not answer, or its reply cannot be used, its last reply may be used instead.
    OmittedUnlessDefault,
}

/// The content of a list reply. If a backend does not answer, its cached list may replace its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum List {
    /// Pod sandboxes.
    Pods,
    /// Containers.
    Containers,
    /// Images.
    Images,
    /// Stats of containers.
    ContainerStats,
    /// Stats of pods, including their containers.
    PodStats,
    /// Metrics of pods, including their containers.
    PodMetrics,
    /// The names and labels of metrics.
    MetricDescriptors,
}

impl List {
    /// The lists of pods, containers and images, with their names in metrics. If one backend's list is missing, the
    /// merged list fails.
    pub const OF_ITEMS: [(List, &str); 3] = [
        (List::Pods, "pods"),
        (List::Containers, "containers"),
        (List::Images, "images"),
    ];

    /// The kind of the listed items, if the list shows which pods or containers exist.
    pub fn kind(self) -> Option<Kind> {
        match self {
            List::Pods => Some(Kind::Pod),
            List::Containers => Some(Kind::Container),
            _ => None,
        }
    }

    /// Whether the list has stats, metrics or metric descriptors.
    pub fn is_stats(self) -> bool {
        !matches!(self, List::Pods | List::Containers | List::Images)
    }

    /// Whether each item belongs to one backend: to the owner of its pod or container.
    pub fn has_owners(self) -> bool {
        self.kind().is_some() || self.about().is_some()
    }

    /// Whether an item of stats describes a pod or a container, and the path to the id in the item. `None` for a list
    /// whose items describe neither.
    pub fn about(self) -> Option<(Kind, Path)> {
        match self {
            List::PodStats => Some((Kind::Pod, fields::STATS_ID)),
            List::PodMetrics => Some((Kind::Pod, fields::METRICS_POD)),
            List::ContainerStats => Some((Kind::Container, fields::STATS_ID)),
            _ => None,
        }
    }
}

/// The route of an image call without a handler.
#[derive(Debug)]
pub enum ImageRule {
    /// The owner of the pod whose annotations are at the path; else every backend that may have that pod.
    Find(Path),
    /// The owner of the pod whose uid is at the path; else every backend that takes new pods.
    Pull(Path),
    /// The backends whose stores have the image in the request.
    Remove,
    /// All backends, merged.
    List(Merge),
}

/// The facts to learn from a successful reply.
#[derive(Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// The backend owns the pod at the path. The second path is the pod's configuration in the request.
    OwnPod(Path, Path),
    /// The backend owns the container at the path.
    OwnContainer(Path),
    /// The backend owns the pod at the first path and the containers at the second. The third path is the pod's
    /// configuration in the request.
    OwnRestored(Path, Path, Path),
    /// The pod or container of the request was removed.
    Forget,
    /// The pod or container of the request changes its state. The containers of a pod may change with it.
    ChangeState(&'static [StateChange]),
    /// The list is cached, and served while the backend is silent. The backend owns the listed pods and containers.
    List(List),
    /// The reply names the file systems of the backend's images, which criswitch measures for metrics.
    KeepDisks,
    /// The handlers at the paths are translated to the routing table's names.
    Rename(&'static HandlerPaths),
    /// The URL at the path gets the scheme `http` if it begins with `//`.
    CompleteUrl(Path),
    /// The backend has the image that the request names. The image's id is at the path in the reply.
    HaveImage(Path),
    /// Like `HaveImage`, and the backend's image store has changed.
    NewImage(Path),
    /// The backend's image store has changed.
    LostImage,
}

/// How a call changes the state of listed items.
#[derive(Debug)]
pub struct StateChange {
    /// The list with the items.
    pub list: List,
    /// The field with the id of an item. The item's state changes if its id is that of the request.
    pub id: u32,
    /// The field with the state of an item.
    pub field: u32,
    /// Only items in this state change.
    pub from: u64,
    /// The new state.
    pub now: u64,
}

impl StateChange {
    /// The ids of the items in `message` whose state changes with the pod or container `id`.
    ///
    /// # Errors
    /// `message` is not a list.
    pub fn items<'a>(
        &self,
        message: &'a [u8],
        id: &str,
    ) -> Result<Vec<&'a str>, protobuf::Malformed> {
        let mut ids = Vec::new();
        for item in protobuf::all_bytes(message, &[fields::ITEMS])? {
            if protobuf::string(item, &[self.id])? == id
                && protobuf::varint(item, &[self.field])? == self.from
            {
                ids.push(protobuf::string(item, fields::LISTED_ID)?);
            }
        }
        Ok(ids)
    }
}

/// The level of a call's log line, unless the outcome raises it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRule {
    /// INFO: the call changes the node. WARN if it fails.
    Change,
    /// DEBUG: the call reads.
    Read,
    /// TRACE: clients repeat the call. The first failure, and then one failure a minute, is WARN. Other failures are
    /// DEBUG.
    Poll,
}

/// The label with a pod's uid.
pub const UID_LABEL: &str = "io.kubernetes.pod.uid";
/// The annotation that identifies a pod: the time, with nanoseconds, at which the running kubelet first saw the pod.
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
