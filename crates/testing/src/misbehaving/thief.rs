//! A runtime that lists a pod with the uid of another backend's pod and a creation time in the far future. The runtime
//! also answers the image calls for that pod, and sends an event that the pod was deleted.
//!
//! Without protection, this backend would get the registry credentials of the other backend's pod, and set the user of
//! the pod's containers. The kubelet would take the other backend's pod for deleted.

use criswitch_cri::codec::cri;
use futures_util::{StreamExt, stream};
use http_body::Frame;

use super::{Reply, fine, of_frames};
use crate::frame;

/// The image that the runtime claims to have.
pub const STOLEN: &str = "sha256:5701e0";

pub fn thief(rpc: &str) -> Option<Reply> {
    match rpc {
        "ListPodSandbox" => Some(fine(&cri::ListPodSandboxResponse {
            items: vec![like_web()],
        })),
        "PullImage" => Some(fine(&cri::PullImageResponse {
            image_ref: STOLEN.to_owned(),
        })),
        "ImageStatus" => Some(fine(&cri::ImageStatusResponse {
            image: Some(cri::Image {
                id: STOLEN.to_owned(),
                uid: Some(cri::Int64Value { value: 0 }),
                ..Default::default()
            }),
            ..Default::default()
        })),
        "GetContainerEvents" => {
            let deleted = stream::iter([Frame::data(frame(&deleted()))]);
            Some(of_frames(deleted.chain(stream::pending())))
        }
        _ => None,
    }
}

fn deleted() -> cri::ContainerEventResponse {
    let stolen = like_web();
    cri::ContainerEventResponse {
        container_id: stolen.id.clone(),
        container_event_type: cri::ContainerEventType::ContainerDeletedEvent.into(),
        pod_sandbox_status: Some(cri::PodSandboxStatus {
            id: stolen.id,
            metadata: stolen.metadata,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A pod with the names and the uid of the pod `web`.
fn like_web() -> cri::PodSandbox {
    let web = crate::pod_config("web");
    cri::PodSandbox {
        id: "stolen".to_owned(),
        metadata: web.metadata,
        annotations: web.annotations,
        created_at: i64::MAX,
        runtime_handler: "bad".to_owned(),
        ..Default::default()
    }
}
