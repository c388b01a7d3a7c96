//! The target that a request asks for, found in two ways: `typed` decodes the whole request with prost, and `projected`
//! reads only the fields that the RPC's row names.

use std::collections::HashMap;

use criswitch_cri::codec::cri;
use criswitch_cri::rpc::{Goes, ImageRule, Kind, Row, SEEN_ANNOTATION, UID_LABEL};

use super::messages::decode;
use super::projection::{self, Unreadable};

/// The target that a request asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// The default backend.
    Default,
    /// The backend of a handler.
    Handler(String),
    /// The owner of an id.
    Owner(Kind, String),
    /// A list with a filter by the id of a pod or container.
    Filtered(Kind, String),
    /// A list with a filter by a pod's uid.
    Uid(String),
    /// The pod that the kubelet first saw at this time.
    Seen(String),
    /// The pod with this uid; an empty uid means every backend that gets new pods.
    Pod(String),
    /// All backends.
    All,
}

use Asked::{All, Default, Filtered, Handler, Owner, Pod, Seen, Uid};

macro_rules! listed {
    ($message:ident, $kind:ident, $type:ident) => {{
        let filter = decode::<cri::$type>($message)?.filter.unwrap_or_default();
        filtered(
            Kind::$kind,
            filter.id,
            String::new(),
            &filter.label_selector,
        )
    }};
    ($message:ident, $kind:ident, $type:ident, pod) => {{
        let filter = decode::<cri::$type>($message)?.filter.unwrap_or_default();
        filtered(
            Kind::$kind,
            filter.id,
            filter.pod_sandbox_id,
            &filter.label_selector,
        )
    }};
}
macro_rules! images {
    ($message:ident, $type:ident) => {{
        let filter = decode::<cri::$type>($message)?.filter.unwrap_or_default();
        of_image(filter.image, All)
    }};
}
macro_rules! all {
    ($message:ident, $type:ident) => {{
        decode::<cri::$type>($message)?;
        All
    }};
}

/// The target that a request of this RPC asks for. `None` if prost cannot decode the request.
pub fn typed(rpc: &str, message: &[u8]) -> Option<Asked> {
    Some(match rpc {
        "Version" => {
            decode::<cri::VersionRequest>(message)?;
            Default
        }
        "RunPodSandbox" => Handler(decode::<cri::RunPodSandboxRequest>(message)?.runtime_handler),
        "RestorePod" => Handler(decode::<cri::RestorePodRequest>(message)?.runtime_handler),
        "ListPodSandbox" => listed!(message, Pod, ListPodSandboxRequest),
        "StreamPodSandboxes" => listed!(message, Pod, StreamPodSandboxesRequest),
        "ListPodSandboxStats" => listed!(message, Pod, ListPodSandboxStatsRequest),
        "StreamPodSandboxStats" => listed!(message, Pod, StreamPodSandboxStatsRequest),
        "ListContainers" => listed!(message, Container, ListContainersRequest, pod),
        "StreamContainers" => listed!(message, Container, StreamContainersRequest, pod),
        "ListContainerStats" => listed!(message, Container, ListContainerStatsRequest, pod),
        "StreamContainerStats" => listed!(message, Container, StreamContainerStatsRequest, pod),
        "ListImages" => images!(message, ListImagesRequest),
        "StreamImages" => images!(message, StreamImagesRequest),
        "ImageStatus" => {
            let image = decode::<cri::ImageStatusRequest>(message)?.image;
            let annotations = image.clone().unwrap_or_default().annotations;
            of_image(image, named(Seen, annotations.get(SEEN_ANNOTATION)))
        }
        "PullImage" => {
            let request = decode::<cri::PullImageRequest>(message)?;
            let pod = request.sandbox_config.and_then(|config| config.metadata);
            of_image(request.image, Pod(pod.unwrap_or_default().uid))
        }
        "PullSecurityProfile" => {
            let request = decode::<cri::PullSecurityProfileRequest>(message)?;
            let pod = request.sandbox_config.and_then(|config| config.metadata);
            of_image(request.image, Pod(pod.unwrap_or_default().uid))
        }
        "ListSecurityProfiles" => all!(message, ListSecurityProfilesRequest),
        "RemoveSecurityProfile" => all!(message, RemoveSecurityProfileRequest),
        "RemoveImage" => of_image(decode::<cri::RemoveImageRequest>(message)?.image, All),
        "UpdateRuntimeConfig" => all!(message, UpdateRuntimeConfigRequest),
        "Status" => all!(message, StatusRequest),
        "GetContainerEvents" => all!(message, GetEventsRequest),
        "ListMetricDescriptors" => all!(message, ListMetricDescriptorsRequest),
        "ListPodSandboxMetrics" => all!(message, ListPodSandboxMetricsRequest),
        "StreamPodSandboxMetrics" => all!(message, StreamPodSandboxMetricsRequest),
        "RuntimeConfig" => all!(message, RuntimeConfigRequest),
        "ImageFsInfo" => all!(message, ImageFsInfoRequest),
        _ => of_owner(rpc, message)?,
    })
}

/// The target of a request for one pod or container.
fn of_owner(rpc: &str, message: &[u8]) -> Option<Asked> {
    macro_rules! owner {
        ($kind:ident, $type:ident, $id:ident) => {
            Owner(Kind::$kind, decode::<cri::$type>(message)?.$id)
        };
    }
    Some(match rpc {
        "StopPodSandbox" => owner!(Pod, StopPodSandboxRequest, pod_sandbox_id),
        "RemovePodSandbox" => owner!(Pod, RemovePodSandboxRequest, pod_sandbox_id),
        "PodSandboxStatus" => owner!(Pod, PodSandboxStatusRequest, pod_sandbox_id),
        "PodSandboxStats" => owner!(Pod, PodSandboxStatsRequest, pod_sandbox_id),
        "PortForward" => owner!(Pod, PortForwardRequest, pod_sandbox_id),
        "UpdatePodSandboxResources" => {
            owner!(Pod, UpdatePodSandboxResourcesRequest, pod_sandbox_id)
        }
        "CheckpointPod" => owner!(Pod, CheckpointPodRequest, pod_sandbox_id),
        "CreateContainer" => owner!(Pod, CreateContainerRequest, pod_sandbox_id),
        "StartContainer" => owner!(Container, StartContainerRequest, container_id),
        "StopContainer" => owner!(Container, StopContainerRequest, container_id),
        "RemoveContainer" => owner!(Container, RemoveContainerRequest, container_id),
        "ContainerStatus" => owner!(Container, ContainerStatusRequest, container_id),
        "ContainerStats" => owner!(Container, ContainerStatsRequest, container_id),
        "ReopenContainerLog" => owner!(Container, ReopenContainerLogRequest, container_id),
        "ExecSync" => owner!(Container, ExecSyncRequest, container_id),
        "Exec" => owner!(Container, ExecRequest, container_id),
        "Attach" => owner!(Container, AttachRequest, container_id),
        "CheckpointContainer" => owner!(Container, CheckpointContainerRequest, container_id),
        "UpdateContainerResources" => {
            owner!(Container, UpdateContainerResourcesRequest, container_id)
        }
        other => panic!("no entry for {other}: add its routing keys to this match"),
    })
}

fn filtered(kind: Kind, id: String, pod: String, labels: &HashMap<String, String>) -> Asked {
    match labels.get(UID_LABEL) {
        _ if !id.is_empty() => Filtered(kind, id),
        _ if !pod.is_empty() => Filtered(Kind::Pod, pod),
        Some(uid) => Uid(uid.clone()),
        None => All,
    }
}

fn of_image(image: Option<cri::ImageSpec>, otherwise: Asked) -> Asked {
    match image.unwrap_or_default().runtime_handler {
        handler if handler.is_empty() => otherwise,
        handler => Handler(handler),
    }
}

fn named(asked: fn(String) -> Asked, name: Option<&String>) -> Asked {
    match name {
        Some(name) if !name.is_empty() => asked(name.clone()),
        _ => All,
    }
}

/// The target that a request asks for, read from only the fields that decide it. `None` if prost reaches its limit of
/// nested groups, which differs from criswitch's limit.
pub fn projected(row: &Row, message: &[u8]) -> Option<Result<Asked, Unreadable>> {
    /// Evaluates to the value that was read. Returns from the function if there is no value.
    macro_rules! read {
        ($read:expr) => {
            match $read? {
                Ok(value) => value,
                Err(unreadable) => return Some(Err(unreadable)),
            }
        };
    }
    let string = |path: &[u32]| projection::read::<String>(message, path);
    Some(Ok(match &row.goes {
        Goes::Default => Default,
        Goes::Handler(path) => Handler(read!(string(path))),
        Goes::Owner(kind, path, _) => Owner(*kind, read!(string(path))),
        Goes::OwnerWithImage(path) => Owner(Kind::Pod, read!(string(path))),
        Goes::All(filter, _) => {
            let pod = filter.pod.map(|path| (Kind::Pod, path));
            for (kind, path) in filter.id.into_iter().chain(pod) {
                let id = read!(string(path));
                if !id.is_empty() {
                    return Some(Ok(Filtered(kind, id)));
                }
            }
            match filter.labels {
                Some(path) => read!(projection::entry(message, path, UID_LABEL)).map_or(All, Uid),
                None => All,
            }
        }
        Goes::Image(handler, rule) => {
            let handler = read!(string(handler));
            if !handler.is_empty() {
                return Some(Ok(Handler(handler)));
            }
            match rule {
                ImageRule::Find(path) => {
                    let seen = read!(projection::entry(message, path, SEEN_ANNOTATION));
                    named(Seen, seen.as_ref())
                }
                ImageRule::Pull(path) => Pod(read!(string(path))),
                ImageRule::Remove | ImageRule::List(_) => All,
            }
        }
    }))
}
