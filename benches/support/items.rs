//! Pods and containers as containerd lists them for a kubelet.

use std::collections::HashMap;

use criswitch_cri::codec::cri;

use crate::support::{container_in, pod_config};

pub const CONTAINERS_OF_A_POD: usize = 2;

/// The id of a backend's pod.
pub fn pod_id(backend: usize, at: usize) -> String {
    format!("{backend:02x}{:062x}", 0x1000_0000 + at)
}

/// The id of a backend's container.
pub fn container_id(backend: usize, at: usize) -> String {
    format!("{backend:02x}{at:062x}")
}

pub fn pod(backend: usize, at: usize) -> cri::PodSandbox {
    let config = pod_config(&format!("web-6d4cf56db6-{backend}-{at}"));
    cri::PodSandbox {
        id: pod_id(backend, at),
        metadata: config.metadata,
        created_at: 1_700_000_000_000_000_000,
        labels: config.labels,
        annotations: config.annotations,
        runtime_handler: format!("h{backend}"),
        ..Default::default()
    }
}

/// A container that a kubelet created, as containerd lists it: about 1 kB.
pub fn container(backend: usize, at: usize) -> cri::Container {
    let pod = at / CONTAINERS_OF_A_POD;
    let name = format!("web-6d4cf56db6-{backend}-{pod}");
    let config = container_in(&pod_config(&name).labels, "server", "web:1.2.3");
    let image = format!("sha256:{}", container_id(backend, 7));
    cri::Container {
        id: container_id(backend, at),
        pod_sandbox_id: pod_id(backend, pod),
        metadata: config.metadata,
        image: config.image,
        image_ref: image.clone(),
        image_id: image,
        state: cri::ContainerState::ContainerRunning.into(),
        created_at: 1_700_000_000_000_000_000,
        labels: config.labels,
        annotations: annotations(),
    }
}

fn annotations() -> HashMap<String, String> {
    let annotations = [
        ("io.kubernetes.container.hash", "5f2c8a1b"),
        (
            "io.kubernetes.container.ports",
            r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#,
        ),
        ("io.kubernetes.container.restartCount", "0"),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
        (
            "io.kubernetes.container.terminationMessagePolicy",
            "FallbackToLogsOnError",
        ),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ];
    annotations
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
