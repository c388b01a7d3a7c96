//! What a row of the table of RPCs can say; [`ROWS`] is the table.
//!
//! From it come the dispatcher, `criswitch routes`, docs/rpcs.md and the tests that walk the interface.

mod describe;
pub mod fields;
pub mod filter;
mod table;

use crate::codec::protobuf::{self, Path};
pub use describe::Words;
pub use table::*;

/// One RPC of the CRI and what becomes of it.
#[derive(Debug)]
pub struct Row {
    /// Its service.
    pub service: Service,
    /// Its name within the service.
    pub name: &'static str,
    /// Which backends get it.
    pub goes: Goes,
    /// What its reply teaches.
    pub then: Then,
    /// How loudly a call is logged.
    pub log: LogRule,
    /// Whether a call may last as long as its client likes: a stream of events, a command, a pull.
    pub is_long: bool,
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
    /// Its full name.
    pub const fn name(self) -> &'static str {
        match self {
            Service::Runtime => "runtime.v1.RuntimeService",
            Service::Image => "runtime.v1.ImageService",
        }
    }
}

impl Row {
    /// The path of its requests.
    pub fn path(&self) -> String {
        format!("/{}/{}", self.service.name(), self.name)
    }

    /// How its replies are merged, if it goes to several backends for that.
    pub fn merge(&self) -> Option<&Merge> {
        match &self.goes {
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => Some(merge),
            _ => None,
        }
    }

    /// What its reply lists, if it is a list.
    pub fn list(&self) -> Option<List> {
        match self.then {
            Then::List(list) => Some(list),
            _ => None,
        }
    }

    /// Whether its reply lists pods, containers or images.
    pub fn is_list(&self) -> bool {
        self.list().is_some_and(|list| !list.is_stats())
    }

    /// Whether its reply is stats: metrics and their descriptors too.
    pub fn is_stats(&self) -> bool {
        self.list().is_some_and(List::is_stats)
    }

    /// Whether who is late with the one is taken to be late with the other: pods and containers have to agree.
    pub fn goes_with(&self, other: &Row) -> bool {
        let has_owners = |row: &Row| row.list().is_some_and(|list| list.kind().is_some());
        match has_owners(self) && has_owners(other) {
            true => self.streams() == other.streams(),
            false => self.name == other.name,
        }
    }

    /// Where a request has the configuration of its pod, if it has one.
    pub fn pod_config(&self) -> Option<Path> {
        match (&self.goes, &self.then) {
            (_, Then::OwnPod(_, config) | Then::OwnRestored(.., config)) => Some(config),
            (Goes::OwnerWithImage(_) | Goes::Image(_, ImageRule::Pull(_)), _) => {
                Some(fields::POD_CONFIG)
            }
            _ => None,
        }
    }

    /// Where an image call or a request for a pod that exists has the pod's annotations, if it has.
    pub fn pod_annotations(&self) -> Option<Path> {
        match self.goes {
            Goes::OwnerWithImage(_) | Goes::Image(_, ImageRule::Pull(_)) => {
                Some(fields::POD_ANNOTATIONS)
            }
            Goes::Image(_, ImageRule::Find(annotations)) => Some(annotations),
            _ => None,
        }
    }

    /// Whether it changes something on the node.
    pub fn changes(&self) -> bool {
        self.log == LogRule::Change
    }

    /// Whether it stops or removes something, so that `NotFound` means that there is nothing left to do.
    pub fn removes(&self) -> bool {
        matches!(self.goes, Goes::Owner(_, _, Unknown::Ok)) || matches!(self.then, Then::LostImage)
    }

    /// Whether it changes the image store of a backend.
    pub(crate) fn changes_images(&self) -> bool {
        matches!(self.then, Then::NewImage(_) | Then::LostImage)
    }

    /// Whether its reply is a stream of messages.
    pub fn streams(&self) -> bool {
        matches!(self.merge(), Some(Merge::Interleave(_) | Merge::Events))
    }
}

/// The row of a request path, `None` for any other path.
pub fn find(path: &str) -> Option<&'static Row> {
    let (service, name) = path.strip_prefix('/')?.rsplit_once('/')?;
    ROWS.iter()
        .find(|row| row.name == name && row.service.name() == service)
}

/// Where a call goes.
#[derive(Debug)]
pub enum Goes {
    /// The default handler's backend.
    Default,
    /// The backend of the handler named at the path.
    Handler(Path),
    /// The backend that owns the pod or container named at the path.
    Owner(Kind, Path, Unknown),
    /// As `Owner`, after the image has been made the owner's: `CreateContainer`.
    OwnerWithImage(Path),
    /// All backends, or the owner that the filter names.
    All(Filter, Merge),
    /// The handler's backend if the image names one, else the pod's owner, else as `ImageRule` says.
    Image(Path, ImageRule),
}

/// What an id means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A pod sandbox.
    Pod,
    /// A container.
    Container,
}

/// The answer for an id that no backend knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// An empty reply: what is gone needs no stop and no removal.
    Ok,
    /// `NotFound`.
    NotFound,
}

/// Where a list's request narrows it to one pod; `None` where it cannot.
#[derive(Debug, Default)]
pub struct Filter {
    /// An id, and of what.
    pub id: Option<(Kind, Path)>,
    /// A pod's id.
    pub pod: Option<Path>,
    /// A label selector.
    pub labels: Option<Path>,
}

impl Filter {
    /// Narrows nothing.
    pub(crate) const NONE: Filter = Filter {
        id: None,
        pod: None,
        labels: None,
    };

    /// Whether `request` names one pod or container, by its id or its pod's.
    pub fn names_one(&self, request: &[u8]) -> bool {
        let id = self.id.map(|(_, path)| path);
        let mut paths = id.into_iter().chain(self.pod);
        paths.any(|path| protobuf::string(request, path).is_ok_and(|id| !id.is_empty()))
    }
}

/// How the replies of several backends become one.
#[derive(Debug)]
pub enum Merge {
    /// The encoded replies one after the other: every field is repeated.
    Concat(Lacking, Silent),
    /// As `Concat`, but of items with the same string at the path (the first number names the repeated field) the
    /// first backend's stands.
    Distinct(&'static [Path], Lacking, Silent),
    /// Images of one id are one image.
    Images,
    /// Messages as they come; the named unary list where a backend lacks the stream.
    Interleave(&'static Row),
    /// Messages as they come, without end, only where every backend has them.
    Events,
    /// The default backend's reply, with the handlers and features of the table.
    Status,
    /// The default backend's reply; a disagreement over the cgroup driver is reported.
    RuntimeConfig,
    /// OK when every reachable backend has taken it; kept for those that come back.
    UpdateRuntimeConfig,
}

impl Merge {
    /// What is served for a silent backend; `None` for the status, the configuration and the events of the node, which have
    /// rules of their own.
    pub fn silent(&self) -> Option<Silent> {
        match self {
            Merge::Concat(_, silent) | Merge::Distinct(_, _, silent) => Some(*silent),
            Merge::Images => Some(Silent::LastKnown),
            Merge::Interleave(list) => list.merge().and_then(Merge::silent),
            _ => None,
        }
    }

    /// What a backend counts for that answers `Unimplemented`.
    pub(crate) fn lacking(&self) -> Lacking {
        match self {
            Merge::Concat(lacking, _) | Merge::Distinct(_, lacking, _) => *lacking,
            Merge::Images => Lacking::LeftOut,
            Merge::Interleave(list) => list.merge().map_or(Lacking::Fails, Merge::lacking),
            _ => Lacking::Fails,
        }
    }
}

/// What a backend means that answers `Unimplemented` to a merged unary call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lacking {
    /// The whole call is `Unimplemented`.
    Fails,
    /// The whole call is `Unimplemented` if that backend owns pods: left out, they would look gone.
    FailsForPods,
    /// It is left out; `Unimplemented` only if all lack it.
    LeftOut,
}

/// What stands in for a backend that does not answer a merged call in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silent {
    /// The last whole list that it gave; without one the call fails.
    LastKnown,
    /// The last reply to a call for all stats, unless it is too old; then the backend is omitted.
    LastKnownOrOmitted,
    /// Nothing, except for the default backend, which is waited for.
    OmittedUnlessDefault,
}

/// What a merged reply lists: of a silent backend its cached list is served.
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
    /// Stats of pods, with those of their containers inside.
    PodStats,
    /// Metrics of pods, with those of their containers inside.
    PodMetrics,
    /// What the metrics are called, and their labels.
    MetricDescriptors,
}

impl List {
    /// The lists of what a backend has, as metrics name them. A backend without these makes a merged list fail.
    pub(crate) const OF_ITEMS: [(List, &str); 3] = [
        (List::Pods, "pods"),
        (List::Containers, "containers"),
        (List::Images, "images"),
    ];

    /// What its items are to the owners, if the list tells what there is.
    pub fn kind(self) -> Option<Kind> {
        match self {
            List::Pods => Some(Kind::Pod),
            List::Containers => Some(Kind::Container),
            _ => None,
        }
    }

    /// Whether it lists stats, or what describes them.
    pub fn is_stats(self) -> bool {
        !matches!(self, List::Pods | List::Containers | List::Images)
    }

    /// What its stats are about, and where an item has the id of that.
    pub fn about(self) -> Option<(Kind, Path)> {
        match self {
            List::PodStats => Some((Kind::Pod, fields::STATS_ID)),
            List::PodMetrics => Some((Kind::Pod, fields::METRICS_POD)),
            List::ContainerStats => Some((Kind::Container, fields::STATS_ID)),
            _ => None,
        }
    }
}

/// Where an image call goes that names no handler.
#[derive(Debug)]
pub enum ImageRule {
    /// The owner of the pod whose annotations are at the path; else every backend that a pod may use which asks.
    Find(Path),
    /// The owner of the pod whose uid is at the path; else every backend.
    Pull(Path),
    /// The backends whose stores have the image that the request names.
    Remove,
    /// Every backend, merged.
    List(Merge),
}

/// What a successful reply teaches about owners.
#[derive(Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// The pod at the path is the backend's; its configuration stands at the second path of the request.
    OwnPod(Path, Path),
    /// The container at the path is the backend's.
    OwnContainer(Path),
    /// The pod at the first path and the containers at the second are the backend's; configuration as in `OwnPod`.
    OwnRestored(Path, Path, Path),
    /// The pod or container of the request is gone.
    Forget,
    /// The pod or container of the request is in another state, and with a pod its containers.
    ChangeState(&'static [StateChange]),
    /// The list is cached, to be served while the backend is silent. What pods and containers it lists is the backend's.
    List(List),
    /// The file systems of the backend's images are kept for metrics.
    KeepDisks,
    /// The pod's handler at the path gets the name that clients know.
    Rename(Path),
    /// The backend has the image of the request, and of the id at the path.
    HaveImage(Path),
    /// The same, and its store has changed.
    NewImage(Path),
    /// The backend's image store has changed.
    LostImage,
}

/// The state of listed items from a call on.
#[derive(Debug)]
pub struct StateChange {
    /// Which list they are in.
    pub list: List,
    /// Where an item has the id that the call's request has.
    pub id: u32,
    /// Where an item has its state.
    pub field: u32,
    /// Only items in this state change it.
    pub from: u64,
    /// Their state from then on.
    pub now: u64,
}

impl StateChange {
    /// The ids of the items in `message` that change their state with the pod or container `id`.
    ///
    /// # Errors
    /// If `message` is not a list.
    pub(crate) fn items<'a>(
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

/// The level of a call's log line, as far as the outcome does not decide it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogRule {
    /// INFO: something changes on the node. WARN if it fails.
    Change,
    /// DEBUG: something is read.
    Read,
    /// TRACE: something is asked again and again. Of failures the first one and then one a minute is WARN, others DEBUG.
    Poll,
}

/// The label that carries a pod's uid.
pub const UID_LABEL: &str = "io.kubernetes.pod.uid";
/// The annotation that names a pod exactly: when the kubelet first saw it, in nanoseconds.
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
