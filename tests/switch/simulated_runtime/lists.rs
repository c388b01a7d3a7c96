//! Lists, their filters, and the runtime's version, status and configuration.

use std::collections::HashMap;

use criswitch::codec::cri::{self, ContainerState, PodSandboxState};
use tokio_stream::StreamExt;

use super::direct::{Direct, direct};
use crate::support::Sim;

/// Two pods with one running container each. The second pod is stopped.
async fn two_pods() -> (Direct, [(String, String); 2]) {
    let direct = direct();
    let one = direct.run("one").await;
    let two = direct.run("two").await;
    direct.stop_pod(&two.0).await.unwrap();
    (direct, [one, two])
}

fn label(key: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(key.to_owned(), value.to_owned())])
}

#[tokio::test]
async fn pods_are_filtered_by_id_state_and_labels() {
    let (direct, [(one, _), (two, _)]) = two_pods().await;
    let mut runtime = direct.runtime();
    let mut list = async |filter: cri::PodSandboxFilter| -> Vec<String> {
        let request = cri::ListPodSandboxRequest {
            filter: Some(filter),
        };
        let reply = runtime
            .list_pod_sandbox(request)
            .await
            .unwrap()
            .into_inner();
        reply.items.into_iter().map(|pod| pod.id).collect()
    };
    let state = |state: PodSandboxState| {
        Some(cri::PodSandboxStateValue {
            state: state.into(),
        })
    };
    let any = cri::PodSandboxFilter::default;
    assert_eq!(list(any()).await, [one.as_str(), two.as_str()]);
    assert_eq!(
        list(cri::PodSandboxFilter {
            id: two[..8].to_owned(),
            ..any()
        })
        .await,
        [two.as_str()]
    );
    assert!(
        list(cri::PodSandboxFilter {
            id: "unknown".to_owned(),
            ..any()
        })
        .await
        .is_empty()
    );
    let ready = cri::PodSandboxFilter {
        state: state(PodSandboxState::SandboxReady),
        ..any()
    };
    assert_eq!(list(ready).await, [one]);
    let labelled = |uid| cri::PodSandboxFilter {
        label_selector: label("io.kubernetes.pod.uid", uid),
        state: state(PodSandboxState::SandboxNotready),
        ..any()
    };
    assert_eq!(list(labelled("uid-of-two")).await, [two]);
    assert!(list(labelled("uid-of-one")).await.is_empty());
}

#[tokio::test]
async fn containers_are_filtered_by_id_pod_state_and_labels() {
    let (direct, [(pod_one, one), (_, two)]) = two_pods().await;
    let mut runtime = direct.runtime();
    let mut list = async |filter: cri::ContainerFilter| -> Vec<String> {
        let request = cri::ListContainersRequest {
            filter: Some(filter),
        };
        let reply = runtime.list_containers(request).await.unwrap().into_inner();
        reply
            .containers
            .into_iter()
            .map(|container| container.id)
            .collect()
    };
    let state = |state: ContainerState| {
        Some(cri::ContainerStateValue {
            state: state.into(),
        })
    };
    let any = cri::ContainerFilter::default;
    assert_eq!(list(any()).await, [one.as_str(), two.as_str()]);
    assert_eq!(
        list(cri::ContainerFilter {
            id: two[..8].to_owned(),
            ..any()
        })
        .await,
        [two.as_str()]
    );
    let of_pod = cri::ContainerFilter {
        pod_sandbox_id: pod_one[..8].to_owned(),
        ..any()
    };
    assert_eq!(list(of_pod).await, [one.as_str()]);
    let exited = cri::ContainerFilter {
        state: state(ContainerState::ContainerExited),
        ..any()
    };
    assert_eq!(list(exited).await, [two]);
    let labelled = cri::ContainerFilter {
        label_selector: label("io.kubernetes.container.name", "one"),
        ..any()
    };
    assert_eq!(list(labelled).await, [one]);
}

#[tokio::test]
async fn stream_lists_have_several_messages_with_the_items_of_the_lists() {
    let direct = direct();
    let mut runtime = direct.runtime();
    for name in ["a", "b", "c"] {
        direct.run(name).await;
    }
    let pods = runtime.stream_pod_sandboxes(cri::StreamPodSandboxesRequest { filter: None });
    let pods: Vec<_> = pods
        .await
        .unwrap()
        .into_inner()
        .map(|m| m.unwrap().pod_sandboxes)
        .collect()
        .await;
    assert_eq!(pods.len(), 2);
    assert_eq!(pods.concat(), direct.sim.pods());
    let containers = runtime.stream_containers(cri::StreamContainersRequest { filter: None });
    let containers: Vec<_> = containers
        .await
        .unwrap()
        .into_inner()
        .map(|m| m.unwrap().containers)
        .collect()
        .await;
    assert_eq!(containers.concat(), direct.sim.containers());
    let stats = runtime.stream_container_stats(cri::StreamContainerStatsRequest { filter: None });
    let stats: Vec<_> = stats
        .await
        .unwrap()
        .into_inner()
        .map(|m| m.unwrap().container_stats)
        .collect()
        .await;
    assert_eq!(stats.concat().len(), 3);
    let stats =
        runtime.stream_pod_sandbox_stats(cri::StreamPodSandboxStatsRequest { filter: None });
    let stats: Vec<_> = stats
        .await
        .unwrap()
        .into_inner()
        .map(|m| m.unwrap().pod_sandbox_stats)
        .collect()
        .await;
    assert_eq!(stats.concat().len(), 3);
    let metrics = runtime.stream_pod_sandbox_metrics(cri::StreamPodSandboxMetricsRequest {});
    let metrics: Vec<_> = metrics
        .await
        .unwrap()
        .into_inner()
        .map(|m| m.unwrap().pod_sandbox_metrics)
        .collect()
        .await;
    assert_eq!(metrics.concat().len(), 3);
}

#[tokio::test]
async fn stats_and_metrics_are_those_of_running_containers_and_ready_pods() {
    let (direct, [(pod, container), (stopped, _)]) = two_pods().await;
    let mut runtime = direct.runtime();
    let stats = runtime.list_container_stats(cri::ListContainerStatsRequest { filter: None });
    let stats = stats.await.unwrap().into_inner().stats;
    assert_eq!(stats.len(), 1);
    assert_eq!(stats[0].attributes.as_ref().unwrap().id, container);
    let filter = Some(cri::PodSandboxStatsFilter {
        id: stopped,
        ..Default::default()
    });
    let none = runtime.list_pod_sandbox_stats(cri::ListPodSandboxStatsRequest { filter });
    assert!(none.await.unwrap().into_inner().stats.is_empty());
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: pod.clone(),
    };
    let stats = runtime
        .pod_sandbox_stats(request)
        .await
        .unwrap()
        .into_inner()
        .stats
        .unwrap();
    assert_eq!(stats.linux.unwrap().containers.len(), 1);
    let request = cri::ContainerStatsRequest {
        container_id: container[..5].to_owned(),
    };
    let stats = runtime
        .container_stats(request)
        .await
        .unwrap()
        .into_inner()
        .stats
        .unwrap();
    assert_eq!(stats.attributes.unwrap().id, container);

    let described = runtime.list_metric_descriptors(cri::ListMetricDescriptorsRequest {});
    let described = described.await.unwrap().into_inner().descriptors;
    let metrics = runtime.list_pod_sandbox_metrics(cri::ListPodSandboxMetricsRequest {});
    let metrics = metrics.await.unwrap().into_inner().pod_metrics;
    assert_eq!(metrics.len(), 1);
    assert_eq!(metrics[0].pod_sandbox_id, pod);
    assert_eq!(metrics[0].metrics.len(), described.len());
    assert_eq!(metrics[0].container_metrics[0].container_id, container);
}

#[tokio::test]
async fn processor_time_passes_between_two_samples() {
    let direct = direct();
    let (_, container_id) = direct.run("web").await;
    let mut samples = Vec::new();
    for _ in 0..2 {
        let request = cri::ContainerStatsRequest {
            container_id: container_id.clone(),
        };
        let reply = direct.runtime().container_stats(request).await.unwrap();
        let cpu = reply.into_inner().stats.unwrap().cpu.unwrap();
        samples.push((cpu.timestamp, cpu.usage_core_nano_seconds.unwrap().value));
    }
    assert!(
        samples[0].0 < samples[1].0 && samples[0].1 < samples[1].1,
        "{samples:?}"
    );
}

#[tokio::test]
async fn version_status_and_configuration_are_as_set() {
    let features = cri::RuntimeHandlerFeatures {
        user_namespaces: true,
        ..Default::default()
    };
    let sim = Sim::new("kata")
        .handlers(["kata", "kata-fc"])
        .features("kata-fc", features)
        .runtime_name("containerd")
        .version("2.4.2")
        .cgroup_driver(cri::CgroupDriver::Cgroupfs);
    let direct = Direct::new(sim);
    let mut runtime = direct.runtime();
    let version = runtime
        .version(cri::VersionRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        (
            version.runtime_name.as_str(),
            version.runtime_version.as_str()
        ),
        ("containerd", "2.4.2")
    );

    let status = runtime
        .status(cri::StatusRequest { verbose: true })
        .await
        .unwrap()
        .into_inner();
    let conditions = status.status.unwrap().conditions;
    assert_eq!(
        conditions
            .iter()
            .map(|c| c.r#type.as_str())
            .collect::<Vec<_>>(),
        ["RuntimeReady", "NetworkReady"]
    );
    let names: Vec<_> = status
        .runtime_handlers
        .iter()
        .map(|h| h.name.as_str())
        .collect();
    assert_eq!(names, ["", "kata", "kata-fc"]);
    assert_eq!(status.runtime_handlers[2].features, Some(features));
    serde_json::from_str::<serde_json::Value>(&status.info["config"]).unwrap();

    let config = runtime
        .runtime_config(cri::RuntimeConfigRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        config.linux.unwrap().cgroup_driver(),
        cri::CgroupDriver::Cgroupfs
    );
    let network = cri::NetworkConfig {
        pod_cidr: "10.1.0.0/24".to_owned(),
    };
    let runtime_config = Some(cri::RuntimeConfig {
        network_config: Some(network.clone()),
    });
    runtime
        .update_runtime_config(cri::UpdateRuntimeConfigRequest { runtime_config })
        .await
        .unwrap();
    assert_eq!(direct.sim.network(), Some(network));
}
