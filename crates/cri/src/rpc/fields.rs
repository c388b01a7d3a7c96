//! The numbers of the CRI's fields that criswitch uses, by name. `tests/table.rs` compares them with the interface.

use super::HandlerPaths;
use crate::codec::protobuf::Path;

/// Makes a module of constants for each message, and a list of all constants.
macro_rules! messages {
    ($($module:ident: $message:ident { $($field:ident = $number:literal),* }),* $(,)?) => {
        $(
            #[doc = concat!("`", stringify!($message), "`.")]
            pub mod $module {
                $(
                    #[doc = concat!("`", stringify!($message), ".", stringify!($field), "`.")]
                    pub const $field: u32 = $number;
                )*
            }
        )*

        /// The message, field and number of each constant; fields are in capitals.
        pub const ALL: &[(&str, &str, u32)] = &[
            $($((stringify!($message), stringify!($field), $number),)*)*
        ];
    };
}

messages! {
    run_pod_sandbox_request: RunPodSandboxRequest { CONFIG = 1, RUNTIME_HANDLER = 2 },
    pod_sandbox_config: PodSandboxConfig { METADATA = 1, LABELS = 6, ANNOTATIONS = 7 },
    pod_sandbox_metadata: PodSandboxMetadata { NAME = 1, UID = 2, NAMESPACE = 3 },
    pod_sandbox: PodSandbox { ID = 1, METADATA = 2, STATE = 3, CREATED_AT = 4, LABELS = 5, ANNOTATIONS = 6, RUNTIME_HANDLER = 7 },
    pod_sandbox_filter: PodSandboxFilter { ID = 1, STATE = 2, LABEL_SELECTOR = 3 },
    pod_sandbox_status_request: PodSandboxStatusRequest { POD_SANDBOX_ID = 1, VERBOSE = 2 },
    pod_sandbox_status_response: PodSandboxStatusResponse { STATUS = 1, INFO = 2, CONTAINERS_STATUSES = 3 },
    pod_sandbox_status: PodSandboxStatus { ID = 1, METADATA = 2, STATE = 3, CREATED_AT = 4, LABELS = 7, ANNOTATIONS = 8, RUNTIME_HANDLER = 9 },
    run_pod_sandbox_response: RunPodSandboxResponse { POD_SANDBOX_ID = 1 },
    restore_pod_request: RestorePodRequest { CONFIG = 2, RUNTIME_HANDLER = 3, CONTAINER_CONFIGS = 5 },
    restore_pod_response: RestorePodResponse { POD_SANDBOX_ID = 1, RESTORED_CONTAINERS = 2 },
    restored_container: RestoredContainer { NAME = 1, CONTAINER_ID = 2 },
    create_container_response: CreateContainerResponse { CONTAINER_ID = 1 },
    create_container_request: CreateContainerRequest { POD_SANDBOX_ID = 1, CONFIG = 2, SANDBOX_CONFIG = 3 },
    container_config: ContainerConfig { METADATA = 1, IMAGE = 2, MOUNTS = 7, LABELS = 9, ANNOTATIONS = 10 },
    container_metadata: ContainerMetadata { NAME = 1 },
    container: Container { ID = 1, POD_SANDBOX_ID = 2, METADATA = 3, IMAGE = 4, IMAGE_REF = 5, STATE = 6, CREATED_AT = 7, LABELS = 8, ANNOTATIONS = 9, IMAGE_ID = 10 },
    container_filter: ContainerFilter { ID = 1, STATE = 2, POD_SANDBOX_ID = 3, LABEL_SELECTOR = 4 },
    container_status_request: ContainerStatusRequest { CONTAINER_ID = 1, VERBOSE = 2 },
    container_status_response: ContainerStatusResponse { STATUS = 1 },
    container_status: ContainerStatus { ID = 1, STATE = 3, IMAGE = 8, MOUNTS = 14 },
    mount: Mount { IMAGE = 9 },
    exec_response: ExecResponse { URL = 1 },
    container_event_response: ContainerEventResponse { CONTAINER_ID = 1, CONTAINER_EVENT_TYPE = 2, CREATED_AT = 3, POD_SANDBOX_STATUS = 4, CONTAINERS_STATUSES = 5 },
    container_stats: ContainerStats { ATTRIBUTES = 1 },
    container_attributes: ContainerAttributes { ID = 1, LABELS = 3 },
    container_stats_filter: ContainerStatsFilter { ID = 1, POD_SANDBOX_ID = 2, LABEL_SELECTOR = 3 },
    pod_sandbox_stats: PodSandboxStats { ATTRIBUTES = 1, LINUX = 2, WINDOWS = 3 },
    pod_sandbox_attributes: PodSandboxAttributes { ID = 1, LABELS = 3 },
    pod_sandbox_stats_filter: PodSandboxStatsFilter { ID = 1, LABEL_SELECTOR = 2 },
    linux_pod_sandbox_stats: LinuxPodSandboxStats { CONTAINERS = 5 },
    windows_pod_sandbox_stats: WindowsPodSandboxStats { CONTAINERS = 5 },
    windows_container_stats: WindowsContainerStats { ATTRIBUTES = 1 },
    pod_sandbox_metrics: PodSandboxMetrics { POD_SANDBOX_ID = 1, METRICS = 2, CONTAINER_METRICS = 3 },
    container_metrics: ContainerMetrics { CONTAINER_ID = 1, METRICS = 2 },
    metric: Metric { NAME = 1, LABEL_VALUES = 4 },
    metric_descriptor: MetricDescriptor { NAME = 1, LABEL_KEYS = 3 },
    image_spec: ImageSpec { IMAGE = 1, ANNOTATIONS = 2, USER_SPECIFIED_IMAGE = 18, RUNTIME_HANDLER = 19, IMAGE_REF = 20 },
    image_filter: ImageFilter { IMAGE = 1 },
    image_status_request: ImageStatusRequest { IMAGE = 1 },
    image_status_response: ImageStatusResponse { IMAGE = 1 },
    pull_image_request: PullImageRequest { IMAGE = 1, SANDBOX_CONFIG = 3 },
    pull_image_response: PullImageResponse { IMAGE_REF = 1 },
    pod_sandbox_state_value: PodSandboxStateValue { STATE = 1 },
    image: Image { ID = 1, REPO_TAGS = 2, REPO_DIGESTS = 3, SIZE = 4, UID = 5, USERNAME = 6, SPEC = 7, PINNED = 8 },
    int64_value: Int64Value { VALUE = 1 },
    uint64_value: UInt64Value { VALUE = 1 },
    remove_security_profile_request: RemoveSecurityProfileRequest { DIGEST = 1 },
    security_profile_info: SecurityProfileInfo { DIGEST = 1, REFS = 2, SIZE = 3 },
    image_fs_info_response: ImageFsInfoResponse { IMAGE_FILESYSTEMS = 1, CONTAINER_FILESYSTEMS = 2 },
    filesystem_usage: FilesystemUsage { FS_ID = 2, USED_BYTES = 3, INODES_USED = 4 },
    filesystem_identifier: FilesystemIdentifier { MOUNTPOINT = 1 },
    status_request: StatusRequest { VERBOSE = 1 },
    status_response: StatusResponse { STATUS = 1, INFO = 2, RUNTIME_HANDLERS = 3, FEATURES = 4 },
    runtime_status: RuntimeStatus { CONDITIONS = 1 },
    runtime_condition: RuntimeCondition { TYPE = 1, STATUS = 2, REASON = 3, MESSAGE = 4 },
    runtime_handler: RuntimeHandler { NAME = 1, FEATURES = 2 },
    runtime_config_response: RuntimeConfigResponse { LINUX = 1 },
    linux_runtime_configuration: LinuxRuntimeConfiguration { CGROUP_DRIVER = 1 },
}

/// The field with the items of a list or of a stream message. Its number is the same in every reply with items.
pub const ITEMS: u32 = 1;
/// The field with the filter of a list request. Its number is the same in every request with a filter.
pub const FILTER: u32 = 1;
/// The strings of an image spec.
pub const IMAGE_TEXTS: [u32; 4] = [
    image_spec::IMAGE,
    image_spec::USER_SPECIFIED_IMAGE,
    image_spec::RUNTIME_HANDLER,
    image_spec::IMAGE_REF,
];

/// Makes a constant of each path.
macro_rules! paths {
    ($($(#[$about:meta])* $name:ident = [$($field:expr),* $(,)?];)*) => {
        $($(#[$about])* pub const $name: Path = &[$($field),*];)*
    };
}

paths! {
    /// The path to the id of a listed item. The path is the same for pods, containers and images.
    LISTED_ID = [1];
    /// The path to the id in a request for one pod or container. The path is the same in all these requests.
    REQUESTED_ID = [1];
    /// The pod's configuration in `PullImage`, `PullSecurityProfile` and `CreateContainer`.
    POD_CONFIG = [create_container_request::SANDBOX_CONFIG];
    /// The annotations in the pod's configuration in `PullImage`, `PullSecurityProfile` and `CreateContainer`.
    POD_ANNOTATIONS = [create_container_request::SANDBOX_CONFIG, pod_sandbox_config::ANNOTATIONS];
    /// The handler of an image spec.
    SPEC_HANDLER = [image_spec::RUNTIME_HANDLER];
    /// The container or pod that an event is about.
    EVENT_ID = [container_event_response::CONTAINER_ID];
    /// The id of an event's pod.
    EVENT_POD = [container_event_response::POD_SANDBOX_STATUS, pod_sandbox_status::ID];
    /// The handler of an event's pod.
    EVENT_HANDLER = [container_event_response::POD_SANDBOX_STATUS, pod_sandbox_status::RUNTIME_HANDLER];
    /// The uid of an event's pod.
    EVENT_POD_UID = [
        container_event_response::POD_SANDBOX_STATUS, pod_sandbox_status::METADATA, pod_sandbox_metadata::UID,
    ];
    /// The ids of the containers of an event's pod.
    EVENT_CONTAINERS = [container_event_response::CONTAINERS_STATUSES, container_status::ID];
    /// The handler in the reply to `PodSandboxStatus`.
    STATUS_HANDLER = [pod_sandbox_status_response::STATUS, pod_sandbox_status::RUNTIME_HANDLER];
    /// The state in a pod's status.
    POD_STATE = [pod_sandbox_status_response::STATUS, pod_sandbox_status::STATE];
    /// The state in a container's status.
    CONTAINER_STATE = [container_status_response::STATUS, container_status::STATE];
    /// Whether a request for a pod's or a container's status asks for verbose information too.
    VERBOSE_STATUS = [pod_sandbox_status_request::VERBOSE];
    /// The pod of a new container.
    CONTAINER_POD = [create_container_request::POD_SANDBOX_ID];
    /// The labels of a new container.
    CONTAINER_LABELS = [create_container_request::CONFIG, container_config::LABELS];
    /// The image of a new container.
    CONTAINER_IMAGE = [create_container_request::CONFIG, container_config::IMAGE, image_spec::IMAGE];
    /// The name of a new container's image in the pod's manifest.
    CONTAINER_IMAGE_NAME = [
        create_container_request::CONFIG, container_config::IMAGE, image_spec::USER_SPECIFIED_IMAGE,
    ];
    /// The image in the request of an image call.
    IMAGE_REFERENCE = [image_status_request::IMAGE, image_spec::IMAGE];
    /// The name or id in the filter of a list of images.
    FILTER_IMAGE = [FILTER, image_filter::IMAGE, image_spec::IMAGE];
    /// The pod's annotations in the image spec of an `ImageStatus`.
    IMAGE_ANNOTATIONS = [image_status_request::IMAGE, image_spec::ANNOTATIONS];
    /// The URL in the replies to `Exec`, `Attach` and `PortForward`.
    STREAMING_URL = [exec_response::URL];
    /// The id of the image in the reply to `ImageStatus`.
    STATUS_IMAGE_ID = [image_status_response::IMAGE, image::ID];
    /// The uid of the pod that an image or a security profile is pulled for.
    PULL_UID = [pull_image_request::SANDBOX_CONFIG, pod_sandbox_config::METADATA, pod_sandbox_metadata::UID];
    /// The id of the pulled image.
    PULLED_IMAGE = [pull_image_response::IMAGE_REF];
    /// The digest of the security profile to remove.
    PROFILE_DIGEST = [remove_security_profile_request::DIGEST];
    /// The handler of a new pod.
    RUN_HANDLER = [run_pod_sandbox_request::RUNTIME_HANDLER];
    /// The configuration of a new pod.
    RUN_CONFIG = [run_pod_sandbox_request::CONFIG];
    /// The id of a new pod.
    RUN_POD = [run_pod_sandbox_response::POD_SANDBOX_ID];
    /// The id of a new container.
    NEW_CONTAINER = [create_container_response::CONTAINER_ID];
    /// The handler of a pod to restore.
    RESTORE_HANDLER = [restore_pod_request::RUNTIME_HANDLER];
    /// The configuration of a pod to restore.
    RESTORE_CONFIG = [restore_pod_request::CONFIG];
    /// The id of a restored pod.
    RESTORED_POD = [restore_pod_response::POD_SANDBOX_ID];
    /// The ids of the containers of a restored pod.
    RESTORED_CONTAINERS = [restore_pod_response::RESTORED_CONTAINERS, restored_container::CONTAINER_ID];
    /// The mount point of an image filesystem.
    IMAGE_MOUNTPOINT = [
        image_fs_info_response::IMAGE_FILESYSTEMS, filesystem_usage::FS_ID, filesystem_identifier::MOUNTPOINT,
    ];
    /// The mount point of a file system of containers.
    CONTAINER_MOUNTPOINT = [
        image_fs_info_response::CONTAINER_FILESYSTEMS, filesystem_usage::FS_ID, filesystem_identifier::MOUNTPOINT,
    ];
    /// The id of the pod or container that an item of stats describes.
    STATS_ID = [pod_sandbox_stats::ATTRIBUTES, pod_sandbox_attributes::ID];
    /// The id of the pod that metrics describe.
    METRICS_POD = [pod_sandbox_metrics::POD_SANDBOX_ID];
}

/// The paths to the image specs of a container: of its own image, and of the images that it mounts. `$at` is the field
/// with the container, and `$message` is the message of the container.
macro_rules! specs {
    ($at:path, $message:ident) => {
        [
            &[$at, $message::IMAGE],
            &[$at, $message::MOUNTS, mount::IMAGE],
        ]
    };
}

/// The image specs of a new container.
pub const CREATED_SPECS: [Path; 2] = specs!(create_container_request::CONFIG, container_config);
/// The image specs of the containers of a pod to restore.
pub const RESTORED_SPECS: [Path; 2] =
    specs!(restore_pod_request::CONTAINER_CONFIGS, container_config);
/// The handlers in a list of pods.
pub const LISTED_PODS: HandlerPaths = HandlerPaths {
    pod: Some(&[ITEMS, pod_sandbox::RUNTIME_HANDLER]),
    images: &[],
};
/// The handlers in a list of containers.
pub const LISTED_CONTAINERS: HandlerPaths = HandlerPaths {
    pod: None,
    images: &[&[ITEMS, container::IMAGE]],
};
/// The handlers in a list of images.
pub const LISTED_IMAGES: HandlerPaths = HandlerPaths {
    pod: None,
    images: &[&[ITEMS, image::SPEC]],
};
/// The handlers in the reply to `ImageStatus`.
pub const IMAGE_STATUS_HANDLERS: HandlerPaths = HandlerPaths {
    pod: None,
    images: &[&[image_status_response::IMAGE, image::SPEC]],
};
/// The handlers in the reply to `ContainerStatus`.
pub const CONTAINER_STATUS_HANDLERS: HandlerPaths = HandlerPaths {
    pod: None,
    images: &specs!(container_status_response::STATUS, container_status),
};
/// The handlers in the reply to `PodSandboxStatus`.
pub const POD_STATUS_HANDLERS: HandlerPaths = HandlerPaths {
    pod: Some(STATUS_HANDLER),
    images: &specs!(
        pod_sandbox_status_response::CONTAINERS_STATUSES,
        container_status
    ),
};
/// The handlers in an event.
pub const EVENT_HANDLERS: HandlerPaths = HandlerPaths {
    pod: Some(EVENT_HANDLER),
    images: &specs!(
        container_event_response::CONTAINERS_STATUSES,
        container_status
    ),
};

/// The paths of the maps in messages that go to every client. They are written as numbers, because most of these maps
/// matter only to the gate.
pub mod maps {
    use super::Path;

    /// The maps in a `PodSandbox`.
    pub const POD: &[Path] = &[&[5], &[6]];
    /// The maps in a `Container`.
    pub const CONTAINER: &[Path] = &[&[4, 2], &[8], &[9]];
    /// The maps in a `ContainerStats`.
    pub const CONTAINER_STATS: &[Path] = &[&[1, 3], &[1, 4]];
    /// The maps in a `PodSandboxStats`.
    #[rustfmt::skip]
    pub const POD_STATS: &[Path] = &[&[1, 3], &[1, 4], &[2, 5, 1, 3], &[2, 5, 1, 4], &[3, 5, 1, 3], &[3, 5, 1, 4]];
    /// The maps in an `Image`.
    pub const IMAGE: &[Path] = &[&[7, 2]];
    /// The maps in an `ImageStatusResponse`.
    pub const IMAGE_STATUS: &[Path] = &[&[1, 7, 2], &[2]];
    /// The maps in a `StatusResponse`.
    pub const STATUS: &[Path] = &[&[2]];
    /// The maps in a `ContainerEventResponse`.
    #[rustfmt::skip]
    pub const EVENT: &[Path] = &[&[4, 7], &[4, 8], &[5, 8, 2], &[5, 12], &[5, 13], &[5, 14, 9, 2], &[5, 16, 1, 9]];
    /// The maps in a `PodSandboxStatusResponse`.
    #[rustfmt::skip]
    pub const POD_STATUS: &[Path] = &[
        &[1, 7], &[1, 8], &[2], &[3, 8, 2], &[3, 12], &[3, 13], &[3, 14, 9, 2], &[3, 16, 1, 9],
    ];
    /// The maps in a `ContainerStatusResponse`.
    #[rustfmt::skip]
    pub const CONTAINER_STATUS: &[Path] = &[&[1, 8, 2], &[1, 12], &[1, 13], &[1, 14, 9, 2], &[1, 16, 1, 9], &[2]];

    /// The maps of each message that goes to every client.
    pub const ALL: &[(&str, &[Path])] = &[
        ("PodSandbox", POD),
        ("Container", CONTAINER),
        ("ContainerStats", CONTAINER_STATS),
        ("PodSandboxStats", POD_STATS),
        ("Image", IMAGE),
        ("PodSandboxMetrics", &[]),
        ("MetricDescriptor", &[]),
        ("ImageFsInfoResponse", &[]),
        ("ListSecurityProfilesResponse", &[]),
        ("ImageStatusResponse", IMAGE_STATUS),
        ("VersionResponse", &[]),
        ("StatusResponse", STATUS),
        ("ContainerEventResponse", EVENT),
        ("PodSandboxStatusResponse", POD_STATUS),
        ("ContainerStatusResponse", CONTAINER_STATUS),
    ];
}

/// The paths of the repeated messages and strings in messages that go to every client. A decoded value takes far more
/// memory than its encoded bytes, so the gate limits the number of values.
pub mod lists {
    use super::Path;

    /// The lists in a `PodSandboxStats`.
    pub const POD_STATS: &[Path] = &[&[2, 3, 3], &[2, 5], &[3, 3, 3], &[3, 5]];
    /// The lists in an `Image`.
    pub const IMAGE: &[Path] = &[&[2], &[3]];
    /// The lists in a `PodSandboxMetrics`.
    pub const POD_METRICS: &[Path] = &[&[2], &[2, 4], &[3], &[3, 2], &[3, 2, 4]];
    /// The lists in a `MetricDescriptor`.
    pub const METRIC_DESCRIPTOR: &[Path] = &[&[3]];
    /// The lists in an `ImageFsInfoResponse`.
    pub const DISKS: &[Path] = &[&[1], &[2]];
    /// The lists in a `ListSecurityProfilesResponse`.
    pub const PROFILES: &[Path] = &[&[1], &[1, 2]];
    /// The lists in an `ImageStatusResponse`.
    pub const IMAGE_STATUS: &[Path] = &[&[1, 2], &[1, 3]];
    /// The lists in a `StatusResponse`.
    pub const STATUS: &[Path] = &[&[1, 1], &[3]];
    /// The lists in a `ContainerEventResponse`.
    #[rustfmt::skip]
    pub const EVENT: &[Path] = &[
        &[4, 5, 2], &[4, 6, 1, 2, 5, 2], &[4, 6, 1, 2, 5, 3], &[5], &[5, 14], &[5, 14, 6], &[5, 14, 7], &[5, 14, 11],
        &[5, 16, 1, 8], &[5, 16, 2, 6],
    ];
    /// The lists in a `PodSandboxStatusResponse`.
    #[rustfmt::skip]
    pub const POD_STATUS: &[Path] = &[
        &[1, 5, 2], &[1, 6, 1, 2, 5, 2], &[1, 6, 1, 2, 5, 3], &[3], &[3, 14], &[3, 14, 6], &[3, 14, 7], &[3, 14, 11],
        &[3, 16, 1, 8], &[3, 16, 2, 6],
    ];
    /// The lists in a `ContainerStatusResponse`.
    #[rustfmt::skip]
    pub const CONTAINER_STATUS: &[Path] = &[
        &[1, 14], &[1, 14, 6], &[1, 14, 7], &[1, 14, 11], &[1, 16, 1, 8], &[1, 16, 2, 6],
    ];

    /// The lists of each message that goes to every client.
    pub const ALL: &[(&str, &[Path])] = &[
        ("PodSandbox", &[]),
        ("Container", &[]),
        ("ContainerStats", &[]),
        ("PodSandboxStats", POD_STATS),
        ("Image", IMAGE),
        ("PodSandboxMetrics", POD_METRICS),
        ("MetricDescriptor", METRIC_DESCRIPTOR),
        ("ImageFsInfoResponse", DISKS),
        ("ListSecurityProfilesResponse", PROFILES),
        ("ImageStatusResponse", IMAGE_STATUS),
        ("VersionResponse", &[]),
        ("StatusResponse", STATUS),
        ("ContainerEventResponse", EVENT),
        ("PodSandboxStatusResponse", POD_STATUS),
        ("ContainerStatusResponse", CONTAINER_STATUS),
    ];
}
