//! The RPC table: one row for each RPC, data only. RPCs are named only here.

use super::fields::{
    CONTAINER_MOUNTPOINT, CONTAINER_POD, CONTAINER_STATUS_HANDLERS, FILTER, IMAGE_ANNOTATIONS,
    IMAGE_MOUNTPOINT, NEW_CONTAINER, POD_STATUS_HANDLERS, PULL_UID, PULLED_IMAGE, REQUESTED_ID,
    RESTORE_CONFIG, RESTORE_HANDLER, RESTORED_CONTAINERS, RESTORED_POD, RUN_CONFIG, RUN_HANDLER,
    RUN_POD, STATUS_IMAGE_ID, STREAMING_URL, container, container_filter, container_stats_filter,
    image_filter, image_spec, image_status_request, pod_sandbox, pod_sandbox_filter,
    pod_sandbox_stats_filter,
};
use super::{
    Filter, Goes, IfUnimplemented, ImageRule, Items, Join, Kind, List, LogRule, Merge, Patience,
    Row, Service, Silent, StateChange, Then, Unknown,
};
use crate::codec::protobuf::Path;

/// `runtime_handler` of the image spec in an image call.
const IMAGE_HANDLER: Path = &[image_status_request::IMAGE, image_spec::RUNTIME_HANDLER];
/// `runtime_handler` of the image spec in an image filter.
const FILTER_HANDLER: Path = &[FILTER, image_filter::IMAGE, image_spec::RUNTIME_HANDLER];

const POD_FILTER: Filter = Filter {
    id: Some((Kind::Pod, &[FILTER, pod_sandbox_filter::ID])),
    pod: None,
    labels: Some(&[FILTER, pod_sandbox_filter::LABEL_SELECTOR]),
};
const CONTAINER_FILTER: Filter = Filter {
    id: Some((Kind::Container, &[FILTER, container_filter::ID])),
    pod: Some(&[FILTER, container_filter::POD_SANDBOX_ID]),
    labels: Some(&[FILTER, container_filter::LABEL_SELECTOR]),
};
const CONTAINER_STATS_FILTER: Filter = Filter {
    id: Some((Kind::Container, &[FILTER, container_stats_filter::ID])),
    pod: Some(&[FILTER, container_stats_filter::POD_SANDBOX_ID]),
    labels: Some(&[FILTER, container_stats_filter::LABEL_SELECTOR]),
};
const POD_STATS_FILTER: Filter = Filter {
    id: Some((Kind::Pod, &[FILTER, pod_sandbox_stats_filter::ID])),
    pod: None,
    labels: Some(&[FILTER, pod_sandbox_stats_filter::LABEL_SELECTOR]),
};

/// `Container.state`, from created to running.
const STARTED: StateChange = StateChange {
    list: List::Containers,
    id: container::ID,
    field: container::STATE,
    from: 0,
    now: 1,
};
/// `Container.state`, from running to exited.
const STOPPED: StateChange = StateChange {
    from: 1,
    now: 2,
    ..STARTED
};
/// `Container.state` of a pod's containers, from running to exited.
const STOPPED_WITH_POD: StateChange = StateChange {
    id: container::POD_SANDBOX_ID,
    ..STOPPED
};
/// `PodSandbox.state`, from ready to not ready.
const STOPPED_POD: StateChange = StateChange {
    list: List::Pods,
    id: pod_sandbox::ID,
    field: pod_sandbox::STATE,
    from: 0,
    now: 1,
};

use Goes::{All, Default, Handler, Image, Owner, OwnerWithImage};
use IfUnimplemented::{Error, FailsForPods, Omitted};
use ImageRule::{Find, Pull};
use Kind::{Container, Pod};
use LogRule::{Change, Poll, Read};
use Merge::{Events, Streamed};
use Silent::{LastKnown, LastKnownOrOmitted, OmittedUnlessDefault};
use Then::{
    ChangeState, CompleteUrl, Forget, HaveImage, KeepDisks, List as Listed, LostImage, NewImage,
    Nothing, OwnContainer, OwnPod, OwnRestored, Rename,
};
use Unknown::{NotFound, Ok};

const LISTED: Items = items(Join::Concat, Error, LastKnown);
const STATS: Items = items(Join::Concat, Error, LastKnownOrOmitted);
const POD_STATS: Items = items(Join::Concat, FailsForPods, LastKnownOrOmitted);
const METRICS: Items = items(Join::Concat, Omitted, LastKnownOrOmitted);
const DESCRIPTORS: Items = items(Join::Descriptors, Omitted, LastKnownOrOmitted);
const IMAGES: Items = items(Join::Images, Error, LastKnown);
const DISKS: Items = items(
    Join::Distinct(&[IMAGE_MOUNTPOINT, CONTAINER_MOUNTPOINT]),
    Error,
    OmittedUnlessDefault,
);

const fn items(join: Join, lacking: IfUnimplemented, silent: Silent) -> Items {
    Items {
        join,
        lacking,
        silent,
    }
}

/// Makes a constant of each row that other modules name.
macro_rules! named {
    ($($(#[$rpc:meta])* $name:ident = $row:expr;)*) => {
        $($(#[$rpc])* pub const $name: Row = $row;)*
    };
}

named! {
    /// `Version`.
    VERSION = short_read(runtime("Version", Poll, Default, Nothing));
    /// `RunPodSandbox`.
    RUN_POD_SANDBOX = runtime("RunPodSandbox", Change, Handler(RUN_HANDLER), OwnPod(RUN_POD, RUN_CONFIG));
    /// `ListPodSandbox`.
    LIST_PODS = runtime("ListPodSandbox", Poll, All(POD_FILTER, Merge::Items(LISTED)), Listed(List::Pods));
    /// `StopContainer`.
    STOP_CONTAINER = runtime("StopContainer", Change, Owner(Container, REQUESTED_ID, Ok), ChangeState(&[STOPPED]));
    /// `ListContainers`.
    LIST_CONTAINERS =
        runtime("ListContainers", Poll, All(CONTAINER_FILTER, Merge::Items(LISTED)), Listed(List::Containers));
    /// `ListContainerStats`.
    LIST_CONTAINER_STATS =
        runtime("ListContainerStats", Poll, All(CONTAINER_STATS_FILTER, Merge::Items(STATS)), Listed(List::ContainerStats));
    /// `PodSandboxStats`.
    POD_SANDBOX_STATS = optional(short_read(runtime("PodSandboxStats", Read, Owner(Pod, REQUESTED_ID, NotFound), Nothing)));
    /// `ListPodSandboxStats`.
    LIST_POD_STATS =
        optional(runtime("ListPodSandboxStats", Poll, All(POD_STATS_FILTER, Merge::Items(POD_STATS)), Listed(List::PodStats)));
    /// `UpdateRuntimeConfig`.
    UPDATE_RUNTIME_CONFIG =
        optional(runtime("UpdateRuntimeConfig", Change, All(Filter::NONE, Merge::UpdateRuntimeConfig), Nothing));
    /// `PodSandboxStatus`.
    POD_STATUS =
        short_read(runtime("PodSandboxStatus", Read, Owner(Pod, REQUESTED_ID, NotFound), Rename(&POD_STATUS_HANDLERS)));
    /// `ContainerStatus`.
    CONTAINER_STATUS =
        short_read(runtime("ContainerStatus", Read, Owner(Container, REQUESTED_ID, NotFound), Rename(&CONTAINER_STATUS_HANDLERS)));
    /// `GetContainerEvents`.
    EVENTS = optional(long(runtime("GetContainerEvents", Read, All(Filter::NONE, Events), Nothing)));
    /// `RuntimeConfig`.
    RUNTIME_CONFIG = optional(short_read(runtime("RuntimeConfig", Poll, All(Filter::NONE, Merge::RuntimeConfig), Nothing)));
    /// `Status`.
    STATUS = runtime("Status", Poll, All(Filter::NONE, Merge::Status), Nothing);
    /// `ListPodSandboxMetrics`.
    LIST_POD_METRICS =
        optional(runtime("ListPodSandboxMetrics", Poll, All(Filter::NONE, Merge::Items(METRICS)), Listed(List::PodMetrics)));
    /// `ListMetricDescriptors`.
    LIST_METRIC_DESCRIPTORS =
        optional(runtime("ListMetricDescriptors", Poll, All(Filter::NONE, Merge::Items(DESCRIPTORS)), Listed(List::MetricDescriptors)));
    /// `ListImages`.
    LIST_IMAGES =
        image("ListImages", Poll, Image(FILTER_HANDLER, ImageRule::List(Merge::Items(IMAGES))), Listed(List::Images));
    /// `ImageStatus`.
    IMAGE_STATUS =
        short_read(image("ImageStatus", Read, Image(IMAGE_HANDLER, Find(IMAGE_ANNOTATIONS)), HaveImage(STATUS_IMAGE_ID)));
    /// `PullImage`.
    PULL_IMAGE = long(image("PullImage", Change, Image(IMAGE_HANDLER, Pull(PULL_UID)), NewImage(PULLED_IMAGE)));
    /// `ListSecurityProfiles`.
    LIST_PROFILES = optional(short_read(image("ListSecurityProfiles", Poll, All(Filter::NONE, Merge::Profiles), Nothing)));
}

/// Every RPC of the CRI, in the order of the interface.
#[rustfmt::skip] // one line for each RPC
pub const ROWS: &[Row] = &[
    VERSION,
    RUN_POD_SANDBOX,
    runtime("StopPodSandbox", Change, Owner(Pod, REQUESTED_ID, Ok), ChangeState(&[STOPPED_POD, STOPPED_WITH_POD])),
    runtime("RemovePodSandbox", Change, Owner(Pod, REQUESTED_ID, Ok), Forget),
    POD_STATUS,
    LIST_PODS,
    optional(runtime("StreamPodSandboxes", Poll, All(POD_FILTER, Streamed(&LIST_PODS, LISTED)), Listed(List::Pods))),
    runtime("CreateContainer", Change, OwnerWithImage(CONTAINER_POD), OwnContainer(NEW_CONTAINER)),
    runtime("StartContainer", Change, Owner(Container, REQUESTED_ID, NotFound), ChangeState(&[STARTED])),
    STOP_CONTAINER,
    runtime("RemoveContainer", Change, Owner(Container, REQUESTED_ID, Ok), Forget),
    LIST_CONTAINERS,
    optional(runtime("StreamContainers", Poll, All(CONTAINER_FILTER, Streamed(&LIST_CONTAINERS, LISTED)), Listed(List::Containers))),
    CONTAINER_STATUS,
    optional(runtime("UpdateContainerResources", Change, Owner(Container, REQUESTED_ID, NotFound), Nothing)),
    optional(short_read(runtime("ReopenContainerLog", Read, Owner(Container, REQUESTED_ID, NotFound), Nothing))),
    optional(long(changing(runtime("ExecSync", Read, Owner(Container, REQUESTED_ID, NotFound), Nothing)))),
    optional(runtime("Exec", Read, Owner(Container, REQUESTED_ID, NotFound), CompleteUrl(STREAMING_URL))),
    optional(runtime("Attach", Read, Owner(Container, REQUESTED_ID, NotFound), CompleteUrl(STREAMING_URL))),
    optional(runtime("PortForward", Read, Owner(Pod, REQUESTED_ID, NotFound), CompleteUrl(STREAMING_URL))),
    optional(short_read(runtime("ContainerStats", Read, Owner(Container, REQUESTED_ID, NotFound), Nothing))),
    LIST_CONTAINER_STATS,
    optional(runtime("StreamContainerStats", Poll, All(CONTAINER_STATS_FILTER, Streamed(&LIST_CONTAINER_STATS, STATS)), Listed(List::ContainerStats))),
    POD_SANDBOX_STATS,
    LIST_POD_STATS,
    optional(runtime("StreamPodSandboxStats", Poll, All(POD_STATS_FILTER, Streamed(&LIST_POD_STATS, POD_STATS)), Listed(List::PodStats))),
    UPDATE_RUNTIME_CONFIG,
    STATUS,
    optional(runtime("CheckpointContainer", Change, Owner(Container, REQUESTED_ID, NotFound), Nothing)),
    EVENTS,
    LIST_METRIC_DESCRIPTORS,
    LIST_POD_METRICS,
    optional(runtime("StreamPodSandboxMetrics", Poll, All(Filter::NONE, Streamed(&LIST_POD_METRICS, METRICS)), Listed(List::PodMetrics))),
    RUNTIME_CONFIG,
    optional(runtime("UpdatePodSandboxResources", Change, Owner(Pod, REQUESTED_ID, NotFound), Nothing)),
    optional(runtime("CheckpointPod", Change, Owner(Pod, REQUESTED_ID, NotFound), Nothing)),
    optional(runtime("RestorePod", Change, Handler(RESTORE_HANDLER), OwnRestored(RESTORED_POD, RESTORED_CONTAINERS, RESTORE_CONFIG))),
    LIST_IMAGES,
    optional(image("StreamImages", Poll, Image(FILTER_HANDLER, ImageRule::List(Streamed(&LIST_IMAGES, IMAGES))), Listed(List::Images))),
    IMAGE_STATUS,
    PULL_IMAGE,
    image("RemoveImage", Change, Image(IMAGE_HANDLER, ImageRule::Remove), LostImage),
    short_read(image("ImageFsInfo", Poll, All(Filter::NONE, Merge::Items(DISKS)), KeepDisks)),
    // The RPCs for security profiles are from k8s.io/cri-api v0.38.0-beta.0.
    optional(long(image("PullSecurityProfile", Change, Image(IMAGE_HANDLER, Pull(PULL_UID)), Nothing))),
    LIST_PROFILES,
    optional(image("RemoveSecurityProfile", Change, All(Filter::NONE, Merge::RemoveProfile), Nothing)),
];

const fn runtime(name: &'static str, log: LogRule, goes: Goes, then: Then) -> Row {
    row(Service::Runtime, name, log, goes, then)
}

const fn image(name: &'static str, log: LogRule, goes: Goes, then: Then) -> Row {
    row(Service::Image, name, log, goes, then)
}

const fn row(service: Service, name: &'static str, log: LogRule, goes: Goes, then: Then) -> Row {
    let patience = match (&then, log) {
        (OwnPod(..) | OwnContainer(_) | OwnRestored(..), _) => Patience::Create,
        (_, Change) => Patience::Change,
        (_, Read | Poll) => Patience::Read,
    };
    Row {
        service,
        name,
        goes,
        then,
        log,
        is_long: false,
        patience,
        may_lack: false,
    }
}

const fn long(row: Row) -> Row {
    Row {
        is_long: true,
        ..row
    }
}

const fn short_read(row: Row) -> Row {
    Row {
        patience: Patience::Short,
        ..row
    }
}

/// For a call that is logged like a read, although the command that it runs may change something.
const fn changing(row: Row) -> Row {
    Row {
        patience: Patience::Change,
        ..row
    }
}

const fn optional(row: Row) -> Row {
    Row {
        may_lack: true,
        ..row
    }
}
