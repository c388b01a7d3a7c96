//! The stats and metrics of a simulated runtime. The numbers depend only on the ids, except for the processor time in
//! stats and its timestamp: these grow, because crictl computes a rate from two samples.

use criswitch_cri::codec::cri::{self, ContainerState, PodSandboxState};

use super::containers::Container;
use super::pods::Pod;
use super::store::{Answer, Store, admits, now, selects};

impl Store {
    pub fn container_stats(&self, key: &str) -> Answer<cri::ContainerStats> {
        self.container(key).map(stats_of)
    }

    /// The stats of running containers.
    pub fn list_container_stats(
        &self,
        filter: Option<cri::ContainerStatsFilter>,
    ) -> Vec<cri::ContainerStats> {
        let filter = filter.unwrap_or_default();
        let id = self.full_container_id(&filter.id);
        let pod = self.full_pod_id(&filter.pod_sandbox_id);
        let wanted = |container: &&Container| {
            admits(&id, &container.id)
                && admits(&pod, &container.pod)
                && selects(&filter.label_selector, &container.config.labels)
        };
        self.running_containers()
            .filter(wanted)
            .map(stats_of)
            .collect()
    }

    pub fn pod_stats(&self, key: &str) -> Answer<cri::PodSandboxStats> {
        self.pod(key).map(|pod| self.stats_of_pod(pod))
    }

    /// The stats of ready pods.
    pub fn list_pod_stats(
        &self,
        filter: Option<cri::PodSandboxStatsFilter>,
    ) -> Vec<cri::PodSandboxStats> {
        let filter = filter.unwrap_or_default();
        let id = self.full_pod_id(&filter.id);
        self.ready_pods()
            .filter(|pod| {
                admits(&id, &pod.id) && selects(&filter.label_selector, &pod.config.labels)
            })
            .map(|pod| self.stats_of_pod(pod))
            .collect()
    }

    /// The metrics of ready pods: one sample for each descriptor, or for each of two processors if the descriptor has
    /// the label `cpu`.
    pub fn pod_metrics(&self) -> Vec<cri::PodSandboxMetrics> {
        let metrics = self.ready_pods().map(|pod| cri::PodSandboxMetrics {
            pod_sandbox_id: pod.id.clone(),
            metrics: self.metrics(&pod.id, pod.created_at),
            container_metrics: self
                .running_containers()
                .filter(|c| c.pod == pod.id)
                .map(|c| cri::ContainerMetrics {
                    container_id: c.id.clone(),
                    metrics: self.metrics(&c.id, c.created_at),
                })
                .collect(),
        });
        metrics.collect()
    }

    fn metrics(&self, id: &str, timestamp: i64) -> Vec<cri::Metric> {
        let metric = |descriptor: &cri::MetricDescriptor, sample| cri::Metric {
            name: descriptor.name.clone(),
            timestamp,
            metric_type: cri::MetricType::Gauge.into(),
            label_values: values(descriptor, id, sample),
            value: number(id, 1000),
            double_value: None,
        };
        self.settings
            .descriptors
            .iter()
            .flat_map(|descriptor| {
                let is_of_cpu = descriptor.label_keys.iter().any(|key| key == "cpu");
                (0..=usize::from(is_of_cpu)).map(move |sample| metric(descriptor, sample))
            })
            .collect()
    }

    fn stats_of_pod(&self, pod: &Pod) -> cri::PodSandboxStats {
        cri::PodSandboxStats {
            attributes: Some(cri::PodSandboxAttributes {
                id: pod.id.clone(),
                metadata: pod.config.metadata.clone(),
                labels: pod.config.labels.clone(),
                annotations: pod.config.annotations.clone(),
            }),
            linux: Some(cri::LinuxPodSandboxStats {
                cpu: Some(cpu(&pod.id, pod.created_at)),
                memory: Some(memory(&pod.id, pod.created_at)),
                network: Some(network(&pod.id, pod.created_at)),
                process: Some(cri::ProcessUsage {
                    timestamp: pod.created_at,
                    process_count: number(&pod.id, 32),
                }),
                containers: self
                    .running_containers()
                    .filter(|c| c.pod == pod.id)
                    .map(stats_of)
                    .collect(),
                io: None,
            }),
            windows: None,
        }
    }

    fn ready_pods(&self) -> impl Iterator<Item = &Pod> {
        let ready = PodSandboxState::SandboxReady;
        self.pods.iter().filter(move |pod| pod.state == ready)
    }

    fn running_containers(&self) -> impl Iterator<Item = &Container> {
        let running = ContainerState::ContainerRunning;
        self.containers.iter().filter(move |c| c.state == running)
    }
}

fn stats_of(container: &Container) -> cri::ContainerStats {
    let (id, at) = (&container.id, container.created_at);
    let layer = format!("/var/lib/layers/{id}");
    cri::ContainerStats {
        attributes: Some(cri::ContainerAttributes {
            id: id.clone(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: Some(cpu(id, at)),
        memory: Some(memory(id, at)),
        writable_layer: Some(cri::FilesystemUsage {
            timestamp: at,
            ..usage(&layer, 4096, 1)
        }),
        swap: None,
        io: None,
    }
}

/// The processor time of a pod or container that has used a tenth of a processor since `since`, which is Unix time in
/// nanoseconds.
fn cpu(id: &str, since: i64) -> cri::CpuUsage {
    let timestamp = now();
    let value = u64::try_from(timestamp - since).unwrap() / 10;
    cri::CpuUsage {
        timestamp,
        usage_core_nano_seconds: Some(cri::UInt64Value { value }),
        usage_nano_cores: number(id, 1_000_000),
        psi: None,
    }
}

fn memory(id: &str, timestamp: i64) -> cri::MemoryUsage {
    cri::MemoryUsage {
        timestamp,
        working_set_bytes: number(id, 1 << 24),
        usage_bytes: number(id, 1 << 25),
        rss_bytes: number(id, 1 << 23),
        ..Default::default()
    }
}

fn network(id: &str, timestamp: i64) -> cri::NetworkUsage {
    cri::NetworkUsage {
        timestamp,
        default_interface: Some(cri::NetworkInterfaceUsage {
            name: "eth0".to_owned(),
            rx_bytes: number(id, 1 << 20),
            tx_bytes: number(id, 1 << 20),
            ..Default::default()
        }),
        interfaces: Vec::new(),
    }
}

/// The used space of a file system.
pub fn usage(mountpoint: &str, bytes: u64, inodes: u64) -> cri::FilesystemUsage {
    cri::FilesystemUsage {
        timestamp: 1,
        fs_id: Some(cri::FilesystemIdentifier {
            mountpoint: mountpoint.to_owned(),
        }),
        used_bytes: Some(cri::UInt64Value { value: bytes }),
        inodes_used: Some(cri::UInt64Value { value: inodes }),
    }
}

/// The label values of a pod's or container's metric, in the order of the descriptor's keys.
fn values(descriptor: &cri::MetricDescriptor, id: &str, sample: usize) -> Vec<String> {
    let value = |key: &String| match key.as_str() {
        "cpu" => format!("cpu {sample} of {id}"),
        key => format!("{key} of {id}"),
    };
    descriptor.label_keys.iter().map(value).collect()
}

/// A number from 1 to `limit` that depends only on the id.
fn number(id: &str, limit: u64) -> Option<cri::UInt64Value> {
    let digits = id
        .get(..8)
        .and_then(|head| u64::from_str_radix(head, 16).ok());
    let value = 1 + digits.unwrap_or_default() % limit;
    Some(cri::UInt64Value { value })
}
