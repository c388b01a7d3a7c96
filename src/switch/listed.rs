//! Builds the list item of a pod or container that a call has just created, from the call's request. Does no I/O, but
//! reads the clock.

use std::collections::HashMap;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};

use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::List;
use criswitch_cri::rpc::fields::{
    CONTAINER_IMAGE, CONTAINER_LABELS, CONTAINER_POD, RESTORE_CONFIG, RESTORE_HANDLER, RUN_HANDLER,
    container, container_config, container_metadata, create_container_request, pod_sandbox,
    pod_sandbox_config, restore_pod_request, run_pod_sandbox_request,
};

use crate::gate::MOST_PAIRS;

/// The number of a field in the list item, and the path of its value in the request.
type Copied = (u32, &'static [u32]);

/// The fields of a `PodSandbox` that are copied from a `RunPodSandboxRequest`. The state is absent, because its default
/// is ready.
const POD: [Copied; 4] = [
    (
        pod_sandbox::METADATA,
        &[
            run_pod_sandbox_request::CONFIG,
            pod_sandbox_config::METADATA,
        ],
    ),
    (
        pod_sandbox::LABELS,
        &[run_pod_sandbox_request::CONFIG, pod_sandbox_config::LABELS],
    ),
    (
        pod_sandbox::ANNOTATIONS,
        &[
            run_pod_sandbox_request::CONFIG,
            pod_sandbox_config::ANNOTATIONS,
        ],
    ),
    (pod_sandbox::RUNTIME_HANDLER, RUN_HANDLER),
];
/// The fields of a `Container` that are copied from a `CreateContainerRequest`. The state is absent, because its
/// default is created.
const CONTAINER: [Copied; 6] = [
    (container::POD_SANDBOX_ID, CONTAINER_POD),
    (
        container::METADATA,
        &[create_container_request::CONFIG, container_config::METADATA],
    ),
    (
        container::IMAGE,
        &[create_container_request::CONFIG, container_config::IMAGE],
    ),
    (container::IMAGE_REF, CONTAINER_IMAGE),
    (container::LABELS, CONTAINER_LABELS),
    (
        container::ANNOTATIONS,
        &[
            create_container_request::CONFIG,
            container_config::ANNOTATIONS,
        ],
    ),
];

/// Builds the item of `list` with this id, which `request` has just created.
///
/// # Errors
/// If `request` is not valid protobuf.
pub(crate) fn created(list: List, id: &str, request: &[u8]) -> Result<Bytes, Malformed> {
    let (copied, created_at) = match list {
        List::Pods => (&POD[..], pod_sandbox::CREATED_AT),
        _ => (&CONTAINER[..], container::CREATED_AT),
    };
    let mut item = BytesMut::new();
    protobuf::put_bytes(&mut item, pod_sandbox::ID, id.as_bytes());
    for (number, path) in copied {
        // The gate rejects an item with more pairs.
        for value in protobuf::first_bytes(request, path, MOST_PAIRS + 1)? {
            protobuf::put_bytes(&mut item, *number, value);
        }
    }
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    protobuf::put_varint(
        &mut item,
        created_at,
        u64::try_from(now).unwrap_or_default(),
    );
    Ok(item.freeze())
}

/// A `RestorePodRequest`, which creates a pod and its containers.
pub(crate) struct RestoreRequest<'r> {
    request: &'r [u8],
    /// The configurations of the containers, by the names of the containers.
    configs: HashMap<&'r str, &'r [u8]>,
}

impl<'r> RestoreRequest<'r> {
    pub(crate) fn of(request: &'r [u8]) -> RestoreRequest<'r> {
        let configs = protobuf::all_bytes(request, &[restore_pod_request::CONTAINER_CONFIGS]);
        let configs = configs
            .unwrap_or_default()
            .into_iter()
            .filter_map(|config| {
                let name = &[container_config::METADATA, container_metadata::NAME];
                Some((protobuf::string(config, name).ok()?, config))
            });
        let configs = configs.collect();
        RestoreRequest { request, configs }
    }

    /// The `RunPodSandboxRequest` that creates the same pod.
    pub(crate) fn pod(&self) -> Bytes {
        let mut request = BytesMut::new();
        for config in protobuf::all_bytes(self.request, RESTORE_CONFIG).unwrap_or_default() {
            protobuf::put_bytes(&mut request, run_pod_sandbox_request::CONFIG, config);
        }
        let handler = protobuf::string(self.request, RESTORE_HANDLER).unwrap_or_default();
        let number = run_pod_sandbox_request::RUNTIME_HANDLER;
        protobuf::put_bytes(&mut request, number, handler.as_bytes());
        request.freeze()
    }

    /// The `CreateContainerRequest` that creates the same container in `pod`.
    pub(crate) fn container(&mut self, pod: &str, name: &str) -> Bytes {
        let mut request = BytesMut::new();
        let number = create_container_request::POD_SANDBOX_ID;
        protobuf::put_bytes(&mut request, number, pod.as_bytes());
        // The CRI has one container for each configuration.
        if let Some(config) = self.configs.remove(name) {
            protobuf::put_bytes(&mut request, create_container_request::CONFIG, config);
        }
        request.freeze()
    }
}

#[cfg(test)]
mod tests {
    use criswitch_cri::codec::cri;
    use prost::Message;

    use super::*;

    fn metadata() -> cri::PodSandboxMetadata {
        cri::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: "uid".to_owned(),
            namespace: "default".to_owned(),
            attempt: 2,
        }
    }

    #[test]
    fn a_created_pod_is_listed_as_its_request_says() {
        let pairs = |text: &str| [(text.to_owned(), "value".to_owned())].into();
        let config = cri::PodSandboxConfig {
            metadata: Some(metadata()),
            labels: pairs("label"),
            annotations: pairs("annotation"),
            hostname: "not listed".to_owned(),
            ..Default::default()
        };
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: "kata".to_owned(),
        };
        let item = created(List::Pods, "id", &request.encode_to_vec()).unwrap();
        let pod = cri::PodSandbox::decode(item).unwrap();
        assert!(pod.created_at > 0);
        let expected = cri::PodSandbox {
            id: "id".to_owned(),
            metadata: Some(metadata()),
            state: cri::PodSandboxState::SandboxReady.into(),
            created_at: pod.created_at,
            labels: pairs("label"),
            annotations: pairs("annotation"),
            runtime_handler: "kata".to_owned(),
        };
        assert_eq!(pod, expected);
    }

    #[test]
    fn a_created_container_is_listed_as_its_request_says() {
        let pairs = |text: &str| [(text.to_owned(), "value".to_owned())].into();
        let image = cri::ImageSpec {
            image: "image".to_owned(),
            user_specified_image: "name".to_owned(),
            ..Default::default()
        };
        let metadata = cri::ContainerMetadata {
            name: "main".to_owned(),
            attempt: 1,
        };
        let config = cri::ContainerConfig {
            metadata: Some(metadata.clone()),
            image: Some(image.clone()),
            labels: pairs("label"),
            annotations: pairs("annotation"),
            log_path: "not listed".to_owned(),
            ..Default::default()
        };
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: "pod".to_owned(),
            config: Some(config),
            ..Default::default()
        };
        let item = created(List::Containers, "id", &request.encode_to_vec()).unwrap();
        let container = cri::Container::decode(item).unwrap();
        assert!(container.created_at > 0);
        let expected = cri::Container {
            id: "id".to_owned(),
            pod_sandbox_id: "pod".to_owned(),
            metadata: Some(metadata),
            image: Some(image),
            image_ref: "image".to_owned(),
            state: cri::ContainerState::ContainerCreated.into(),
            created_at: container.created_at,
            labels: pairs("label"),
            annotations: pairs("annotation"),
            ..Default::default()
        };
        assert_eq!(container, expected);
    }
}
