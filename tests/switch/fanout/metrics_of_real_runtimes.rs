//! The metrics of containerd 2.4.2 beside CRI-O 1.36.3, with the descriptors that both report: each sample arrives with
//! its own labels and with as many values as its metric has keys.

use std::collections::{BTreeMap, HashMap};

use criswitch_cri::codec::cri;

use crate::faults::node;
use crate::support::{Client, Rig, Sim};

const CONTAINERD: &[&str] = &["pod", "namespace", "container", "id", "image"];
const CRIO: &[&str] = &["id", "image", "namespace", "pod", "container"];

/// The metrics of both runtimes without the prefix `container_`, and the further label keys of each runtime. `None` if
/// the runtime does not describe the metrics.
type Group = (
    &'static str,
    Option<&'static [&'static str]>,
    Option<&'static [&'static str]>,
);

const METRICS: &[Group] = &[
    ("cpu_usage_seconds_total", Some(&[]), Some(&["cpu"])),
    (
        "cpu_user_seconds_total cpu_system_seconds_total cpu_cfs_periods_total cpu_cfs_throttled_periods_total \
         cpu_cfs_throttled_seconds_total memory_cache memory_rss memory_kernel_usage memory_mapped_file memory_swap \
         memory_failcnt memory_usage_bytes memory_max_usage_bytes memory_working_set_bytes oom_events_total processes \
         file_descriptors sockets threads_max threads last_seen start_time_seconds spec_cpu_period spec_cpu_shares \
         spec_memory_limit_bytes spec_memory_reservation_limit_bytes spec_memory_swap_limit_bytes",
        Some(&[]),
        Some(&[]),
    ),
    (
        "memory_total_active_file_bytes memory_total_inactive_file_bytes",
        Some(&[]),
        None,
    ),
    (
        "memory_failures_total",
        Some(&["failure_type", "scope"]),
        Some(&["failure_type", "scope"]),
    ),
    (
        "fs_inodes_free fs_inodes_total fs_limit_bytes fs_usage_bytes",
        Some(&["device"]),
        Some(&[]),
    ),
    (
        "fs_reads_bytes_total fs_reads_total fs_writes_bytes_total fs_writes_total",
        Some(&["device"]),
        Some(&["device"]),
    ),
    (
        "blkio_device_usage_total",
        Some(&["device", "major", "minor", "operation"]),
        Some(&["device", "major", "minor", "operation"]),
    ),
    (
        "network_receive_bytes_total network_receive_packets_total network_receive_packets_dropped_total \
         network_receive_errors_total network_transmit_bytes_total network_transmit_packets_total \
         network_transmit_packets_dropped_total network_transmit_errors_total",
        Some(&["interface"]),
        Some(&["interface"]),
    ),
    ("ulimits_soft", Some(&["ulimit"]), Some(&["ulimit"])),
    (
        "hugetlb_usage_bytes hugetlb_max_usage_bytes",
        None,
        Some(&["pagesize"]),
    ),
    (
        "spec_cpu_quota pressure_cpu_stalled_seconds_total pressure_cpu_waiting_seconds_total \
         pressure_memory_stalled_seconds_total pressure_memory_waiting_seconds_total \
         pressure_io_stalled_seconds_total pressure_io_waiting_seconds_total",
        None,
        Some(&[]),
    ),
];

fn descriptors(
    base: &[&str],
    more: impl Fn(&Group) -> Option<&'static [&'static str]>,
) -> Vec<cri::MetricDescriptor> {
    let described = METRICS
        .iter()
        .filter_map(|group| Some((group.0, more(group)?)));
    let descriptors = described.flat_map(|(names, more)| {
        names.split(' ').map(move |name| cri::MetricDescriptor {
            name: format!("container_{name}"),
            help: String::new(),
            label_keys: base
                .iter()
                .chain(more)
                .map(|key| (*key).to_owned())
                .collect(),
        })
    });
    descriptors.collect()
}

/// Both runtimes with one pod each. The first one is the default backend.
async fn beside(default: &str, other: &str) -> Rig {
    let sims = [default, other].map(|name| {
        let descriptors = match name {
            "containerd" => descriptors(CONTAINERD, |group| group.1),
            _ => descriptors(CRIO, |group| group.2),
        };
        Sim::new(name).set(|settings| settings.descriptors = descriptors)
    });
    let rig = node("start_wait = \"0s\"", sims).await;
    rig.run(default, "one").await;
    rig.run(other, "two").await;
    rig
}

async fn described(client: &Client) -> HashMap<String, Vec<String>> {
    let request = cri::ListMetricDescriptorsRequest {};
    let reply = client.runtime().list_metric_descriptors(request).await;
    let descriptors = reply.unwrap().into_inner().descriptors;
    let count = descriptors.len();
    let keys: HashMap<_, _> = descriptors
        .into_iter()
        .map(|it| (it.name, it.label_keys))
        .collect();
    assert_eq!(keys.len(), count, "each metric is described once");
    keys
}

async fn listed(client: &Client) -> Vec<cri::PodSandboxMetrics> {
    let request = cri::ListPodSandboxMetricsRequest {};
    let reply = client.runtime().list_pod_sandbox_metrics(request).await;
    reply.unwrap().into_inner().pod_metrics
}

async fn streamed(client: &Client) -> Vec<cri::PodSandboxMetrics> {
    let request = cri::StreamPodSandboxMetricsRequest {};
    let stream = client.runtime().stream_pod_sandbox_metrics(request).await;
    let (mut stream, mut pods) = (stream.unwrap().into_inner(), Vec::new());
    while let Some(message) = stream.message().await.unwrap() {
        pods.extend(message.pod_sandbox_metrics);
    }
    pods
}

/// A sample as Prometheus sees it: the id of its pod or container, its metric, and its labels with a value.
type Sample = (String, String, BTreeMap<String, String>);

fn seen(pods: Vec<cri::PodSandboxMetrics>, keys: &HashMap<String, Vec<String>>) -> Vec<Sample> {
    let mut samples = Vec::new();
    for pod in pods {
        let containers = pod
            .container_metrics
            .into_iter()
            .map(|container| (container.container_id, container.metrics));
        for (id, metrics) in containers.chain([(pod.pod_sandbox_id, pod.metrics)]) {
            for metric in metrics {
                let keys = &keys[&metric.name];
                assert_eq!(metric.label_values.len(), keys.len(), "{}", metric.name);
                let labels = keys
                    .iter()
                    .cloned()
                    .zip(metric.label_values)
                    .filter(|(_, value)| !value.is_empty());
                samples.push((id.clone(), metric.name, labels.collect()));
            }
        }
    }
    samples.sort();
    samples
}

#[tokio::test]
async fn every_sample_of_containerd_and_crio_arrives_with_its_own_labels() {
    for (default, other) in [("containerd", "crio"), ("crio", "containerd")] {
        let mut rig = beside(default, other).await;
        let mut sent = Vec::new();
        for sim in &rig.sims {
            let direct = crate::faults::directly(sim);
            sent.extend(seen(listed(&direct).await, &described(&direct).await));
        }
        sent.sort();
        // The pod and its container each have one sample for each descriptor. CRI-O has two samples of the processor
        // time.
        assert_eq!(sent.len(), 2 * (49 + 56 + 1));
        let keys = described(&rig).await;
        assert_eq!(keys.len(), 58);
        for _ in 0..2 {
            assert_eq!(seen(listed(&rig).await, &keys), sent, "{default}");
            assert_eq!(seen(streamed(&rig).await, &keys), sent, "{default}");
            rig.restart_switch().await;
            crate::faults::until_state(&rig, other, "ready").await;
        }
    }
}
