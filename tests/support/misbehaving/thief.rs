//! Lists a pod of another backend's uid, made in the far future, and answers the image calls that this brings.
//!
//! What it gets are the credentials of that pod's pulls, and its user would be the other pod's.

use criswitch::codec::cri;

use super::{Reply, fine};

/// The image that it claims to have.
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
        _ => None,
    }
}

/// With the names of the pod `web`.
fn like_web() -> cri::PodSandbox {
    let web = crate::support::pod_config("web");
    cri::PodSandbox {
        id: "stolen".to_owned(),
        metadata: web.metadata,
        annotations: web.annotations,
        created_at: i64::MAX,
        runtime_handler: "bad".to_owned(),
        ..Default::default()
    }
}
