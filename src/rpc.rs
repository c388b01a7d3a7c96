//! The table of RPCs: one row each, plain data, the only place that names them.
//!
//! From it come the dispatcher, `criswitch routes`, the README's table and the tests that walk the interface.

mod words;

use crate::wire::Path;
pub use words::Words;

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
    pub log: Log,
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

    /// Whether its reply is a stream of messages.
    pub fn streams(&self) -> bool {
        matches!(self.merge(), Some(Merge::Interleave(_) | Merge::Events))
    }
}

/// What stands in for a silent backend in a merge.
pub fn silent(merge: &Merge) -> Option<Silent> {
    match merge {
        Merge::Concat(_, silent) | Merge::Distinct(_, _, silent) => Some(*silent),
        Merge::Images => Some(Silent::LastKnown),
        Merge::Interleave(list) => list.merge().and_then(silent),
        _ => None,
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
    /// Nothing: it is left out.
    LeftOut,
    /// Nothing, except for the default backend, which is waited for.
    LeftOutUnlessDefault,
}

/// A list that is whole, last-known whole, or an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Pod sandboxes.
    Pods,
    /// Containers.
    Containers,
    /// Images.
    Images,
}

impl List {
    /// What its items are to the owners; images have none.
    pub fn kind(self) -> Option<Kind> {
        match self {
            List::Pods => Some(Kind::Pod),
            List::Containers => Some(Kind::Container),
            List::Images => None,
        }
    }
}

/// Where an image call goes that names no handler.
#[derive(Debug)]
pub enum ImageRule {
    /// The owner of the pod whose annotations are at the path; else the first backend that has the image.
    Find(Path),
    /// The owner of the pod whose uid is at the path; else every backend.
    Pull(Path),
    /// Every backend.
    Every,
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
    /// What is listed is the backend's, and the list is kept to stand in for it.
    Learn(List),
    /// The pod's handler gets the table's name back at the path.
    Rename(Path),
    /// The backend has the image of the request, and of the id at the path.
    HaveImage(Path),
    /// The same, and its store has changed.
    NewImage(Path),
    /// The backend's image store has changed.
    LostImage,
}

/// The level of a call's log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log {
    /// INFO: something changes on the node.
    Change,
    /// DEBUG: something is read.
    Read,
    /// TRACE: something is asked again and again.
    Poll,
}

/// Where a list's request says that it wants less than all there is.
pub const LIST_FILTER: Path = &[1];
/// Where a pod in a list has its handler's name (`PodSandbox.runtime_handler`).
pub const LISTED_HANDLER: Path = &[1, 7];
/// Where an event has its pod's handler (`ContainerEventResponse.pod_sandbox_status.runtime_handler`).
pub const EVENT_HANDLER: Path = &[4, 9];
/// The label that carries a pod's uid.
pub const UID_LABEL: &str = "io.kubernetes.pod.uid";
/// The annotation that names a pod exactly: when the kubelet first saw it, in nanoseconds.
pub const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";

/// The owner of these calls is in field 1.
const ID: Path = &[1];
/// `runtime_handler` of the image spec in field 1.
const IMAGE_HANDLER: Path = &[1, 19];
/// `runtime_handler` of the image spec in an image filter.
const FILTER_HANDLER: Path = &[1, 1, 19];

const NO_FILTER: Filter = Filter {
    id: None,
    pod: None,
    labels: None,
};
const POD_FILTER: Filter = Filter {
    id: Some((Kind::Pod, &[1, 1])),
    pod: None,
    labels: Some(&[1, 3]),
};
const CONTAINER_FILTER: Filter = Filter {
    id: Some((Kind::Container, &[1, 1])),
    pod: Some(&[1, 3]),
    labels: Some(&[1, 4]),
};
const CONTAINER_STATS_FILTER: Filter = Filter {
    id: Some((Kind::Container, &[1, 1])),
    pod: Some(&[1, 2]),
    labels: Some(&[1, 3]),
};
const POD_STATS_FILTER: Filter = Filter {
    id: Some((Kind::Pod, &[1, 1])),
    pod: None,
    labels: Some(&[1, 2]),
};

use Goes::{All, Default, Handler, Image, Owner, OwnerWithImage};
use ImageRule::{Every, Find, Pull};
use Kind::{Container, Pod};
use Lacking::{Fails, FailsForPods, LeftOut};
use Log::{Change, Poll, Read};
use Merge::{Concat, Distinct, Events, Interleave};
use Silent::{LastKnown, LeftOutUnlessDefault};
use Then::{
    Forget, HaveImage, Learn, LostImage, NewImage, Nothing, OwnContainer, OwnPod, OwnRestored,
    Rename,
};
use Unknown::{NotFound, Ok};

/// `Version`.
pub const VERSION: Row = runtime("Version", Poll, Default, Nothing);
/// `ListPodSandbox`.
pub const LIST_PODS: Row = runtime(
    "ListPodSandbox",
    Poll,
    All(POD_FILTER, Concat(Fails, LastKnown)),
    Learn(List::Pods),
);
/// `ListContainers`.
pub const LIST_CONTAINERS: Row = runtime(
    "ListContainers",
    Poll,
    All(CONTAINER_FILTER, Concat(Fails, LastKnown)),
    Learn(List::Containers),
);
/// `ListContainerStats`.
pub const LIST_CONTAINER_STATS: Row = runtime(
    "ListContainerStats",
    Poll,
    All(CONTAINER_STATS_FILTER, Concat(Fails, Silent::LeftOut)),
    Nothing,
);
/// `ListPodSandboxStats`.
pub const LIST_POD_STATS: Row = runtime(
    "ListPodSandboxStats",
    Poll,
    All(POD_STATS_FILTER, Concat(FailsForPods, Silent::LeftOut)),
    Nothing,
);
/// `UpdateRuntimeConfig`.
pub const UPDATE_RUNTIME_CONFIG: Row = runtime(
    "UpdateRuntimeConfig",
    Change,
    All(NO_FILTER, Merge::UpdateRuntimeConfig),
    Nothing,
);
/// `PodSandboxStatus`.
pub const POD_STATUS: Row = runtime(
    "PodSandboxStatus",
    Read,
    Owner(Pod, ID, NotFound),
    Rename(&[1, 9]),
);
/// `ContainerStatus`.
pub const CONTAINER_STATUS: Row = runtime(
    "ContainerStatus",
    Read,
    Owner(Container, ID, NotFound),
    Nothing,
);
/// `GetContainerEvents`.
pub const EVENTS: Row = runtime("GetContainerEvents", Read, All(NO_FILTER, Events), Nothing);
/// `RuntimeConfig`.
pub const RUNTIME_CONFIG: Row = runtime(
    "RuntimeConfig",
    Poll,
    All(NO_FILTER, Merge::RuntimeConfig),
    Nothing,
);
/// `Status`.
pub const STATUS: Row = runtime("Status", Poll, All(NO_FILTER, Merge::Status), Nothing);
/// `ListPodSandboxMetrics`.
pub const LIST_POD_METRICS: Row = runtime(
    "ListPodSandboxMetrics",
    Poll,
    All(NO_FILTER, Concat(LeftOut, Silent::LeftOut)),
    Nothing,
);
/// `ListImages`.
pub const LIST_IMAGES: Row = image(
    "ListImages",
    Poll,
    Image(FILTER_HANDLER, ImageRule::List(Merge::Images)),
    Learn(List::Images),
);
/// `ImageStatus`.
pub const IMAGE_STATUS: Row = image(
    "ImageStatus",
    Read,
    Image(IMAGE_HANDLER, Find(&[1, 2])),
    HaveImage(&[1, 1]),
);

/// Every RPC of the CRI, in the order of the interface.
#[rustfmt::skip] // one line an RPC
pub const ROWS: &[Row] = &[
    VERSION,
    runtime("RunPodSandbox", Change, Handler(&[2]), OwnPod(&[1], &[1])),
    runtime("StopPodSandbox", Change, Owner(Pod, ID, Ok), Nothing),
    runtime("RemovePodSandbox", Change, Owner(Pod, ID, Ok), Forget),
    POD_STATUS,
    LIST_PODS,
    runtime("StreamPodSandboxes", Poll, All(POD_FILTER, Interleave(&LIST_PODS)), Learn(List::Pods)),
    runtime("CreateContainer", Change, OwnerWithImage(ID), OwnContainer(&[1])),
    runtime("StartContainer", Change, Owner(Container, ID, NotFound), Nothing),
    runtime("StopContainer", Change, Owner(Container, ID, Ok), Nothing),
    runtime("RemoveContainer", Change, Owner(Container, ID, Ok), Forget),
    LIST_CONTAINERS,
    runtime("StreamContainers", Poll, All(CONTAINER_FILTER, Interleave(&LIST_CONTAINERS)), Learn(List::Containers)),
    CONTAINER_STATUS,
    runtime("UpdateContainerResources", Change, Owner(Container, ID, NotFound), Nothing),
    runtime("ReopenContainerLog", Read, Owner(Container, ID, NotFound), Nothing),
    runtime("ExecSync", Read, Owner(Container, ID, NotFound), Nothing),
    runtime("Exec", Read, Owner(Container, ID, NotFound), Nothing),
    runtime("Attach", Read, Owner(Container, ID, NotFound), Nothing),
    runtime("PortForward", Read, Owner(Pod, ID, NotFound), Nothing),
    runtime("ContainerStats", Read, Owner(Container, ID, NotFound), Nothing),
    LIST_CONTAINER_STATS,
    runtime("StreamContainerStats", Poll, All(CONTAINER_STATS_FILTER, Interleave(&LIST_CONTAINER_STATS)), Nothing),
    runtime("PodSandboxStats", Read, Owner(Pod, ID, NotFound), Nothing),
    LIST_POD_STATS,
    runtime("StreamPodSandboxStats", Poll, All(POD_STATS_FILTER, Interleave(&LIST_POD_STATS)), Nothing),
    UPDATE_RUNTIME_CONFIG,
    STATUS,
    runtime("CheckpointContainer", Change, Owner(Container, ID, NotFound), Nothing),
    EVENTS,
    runtime("ListMetricDescriptors", Poll, All(NO_FILTER, Distinct(&[&[1, 1]], LeftOut, Silent::LeftOut)), Nothing),
    LIST_POD_METRICS,
    runtime("StreamPodSandboxMetrics", Poll, All(NO_FILTER, Interleave(&LIST_POD_METRICS)), Nothing),
    RUNTIME_CONFIG,
    runtime("UpdatePodSandboxResources", Change, Owner(Pod, ID, NotFound), Nothing),
    runtime("CheckpointPod", Change, Owner(Pod, ID, NotFound), Nothing),
    runtime("RestorePod", Change, Handler(&[3]), OwnRestored(&[1], &[2, 2], &[2])),
    LIST_IMAGES,
    image("StreamImages", Poll, Image(FILTER_HANDLER, ImageRule::List(Interleave(&LIST_IMAGES))), Learn(List::Images)),
    IMAGE_STATUS,
    image("PullImage", Change, Image(IMAGE_HANDLER, Pull(&[3, 1, 2])), NewImage(&[1])),
    image("RemoveImage", Change, Image(IMAGE_HANDLER, Every), LostImage),
    image("ImageFsInfo", Poll, All(NO_FILTER, Distinct(&[&[1, 2, 1], &[2, 2, 1]], LeftOut, LeftOutUnlessDefault)), Nothing),
];

const fn runtime(name: &'static str, log: Log, goes: Goes, then: Then) -> Row {
    Row {
        service: Service::Runtime,
        name,
        goes,
        then,
        log,
    }
}

const fn image(name: &'static str, log: Log, goes: Goes, then: Then) -> Row {
    Row {
        service: Service::Image,
        name,
        goes,
        then,
        log,
    }
}
