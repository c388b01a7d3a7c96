//! Configurations of pods and containers, with the fields that the kubelet always sets.

use std::collections::HashMap;

use criswitch_cri::codec::cri;

/// A pod in the namespace `default`; its uid follows from its name.
pub fn pod_config(name: &str) -> cri::PodSandboxConfig {
    let uid = format!("uid-of-{name}");
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: uid.clone(),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        labels: map([
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", &uid),
        ]),
        annotations: map([
            (
                "kubernetes.io/config.seen",
                &format!("2026-01-01T00:00:00.000000001Z {name}"),
            ),
            ("kubernetes.io/config.source", "api"),
        ]),
        ..Default::default()
    }
}

pub fn container_config(name: &str, image: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(image)),
        command: vec!["sleep".to_owned(), "infinity".to_owned()],
        labels: map([("io.kubernetes.container.name", name)]),
        log_path: format!("{name}/0.log"),
        ..Default::default()
    }
}

/// [`container_config`] with the labels that name the pod. The kubelet sets these labels on every container.
pub fn container_in(
    pod_labels: &HashMap<String, String>,
    name: &str,
    image: &str,
) -> cri::ContainerConfig {
    let mut config = container_config(name, image);
    config.labels.extend(
        pod_labels
            .iter()
            .filter(|(key, _)| key.starts_with("io.kubernetes.pod."))
            .map(|(key, value)| (key.clone(), value.clone())),
    );
    config
}

/// An image as the kubelet names it in a container's configuration.
pub fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        user_specified_image: image.to_owned(),
        ..Default::default()
    }
}

fn map<const N: usize>(entries: [(&str, &str); N]) -> HashMap<String, String> {
    entries
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
