//! Samples of metrics follow the label keys of the descriptors that the client received, whatever keys a runtime uses.

use std::collections::BTreeSet;
use std::time::Duration;

use criswitch_cri::codec::cri;

use crate::calls::{send, stopped};
use crate::faults::{node, state_of, until_state};
use crate::logged::Logged;
use crate::support::{Rig, Sim, frame_raw};
use crate::topology::reloads::{reload, table};
use crate::wait;

const CPU: &str = "container_cpu_usage_seconds_total";
const DISK: &str = "container_fs_reads_total";

fn descriptor(name: &str, keys: &[&str]) -> cri::MetricDescriptor {
    cri::MetricDescriptor {
        name: name.to_owned(),
        help: String::new(),
        label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
    }
}

fn describes(name: &str, keys: &[&str]) -> Sim {
    Sim::new(name).set(|settings| settings.descriptors = vec![descriptor(CPU, keys)])
}

/// The default backend and another runtime, with these label keys, and one pod on each.
async fn two(runc: &[&str], kata: &[&str]) -> Rig {
    let sims = [describes("runc", runc), describes("kata", kata)];
    let rig = node("start_wait = \"0s\"\nstats_timeout = \"1s\"", sims).await;
    rig.run("runc", "one").await;
    rig.run("kata", "two").await;
    rig
}

/// The label keys in the descriptors that a client receives.
async fn given(rig: &Rig) -> Vec<String> {
    let request = cri::ListMetricDescriptorsRequest {};
    let reply = rig
        .runtime()
        .list_metric_descriptors(request)
        .await
        .unwrap();
    reply.into_inner().descriptors.remove(0).label_keys
}

async fn pods(rig: &Rig) -> Vec<cri::PodSandboxMetrics> {
    let request = cri::ListPodSandboxMetricsRequest {};
    let reply = rig.runtime().list_pod_sandbox_metrics(request).await;
    reply.unwrap().into_inner().pod_metrics
}

/// The label keys of each sample, of all pods and containers.
async fn labels(rig: &Rig) -> BTreeSet<Vec<String>> {
    keys_of(&pods(rig).await)
}

async fn streamed_labels(rig: &Rig) -> BTreeSet<Vec<String>> {
    let request = cri::StreamPodSandboxMetricsRequest {};
    let mut stream = rig
        .runtime()
        .stream_pod_sandbox_metrics(request)
        .await
        .unwrap()
        .into_inner();
    let mut labels = BTreeSet::new();
    while let Some(message) = stream.message().await.unwrap() {
        labels.extend(keys_of(&message.pod_sandbox_metrics));
    }
    labels
}

/// The label keys of samples. Each label value of a simulated runtime begins with the label's key.
fn keys_of(pods: &[cri::PodSandboxMetrics]) -> BTreeSet<Vec<String>> {
    let containers = pods
        .iter()
        .flat_map(|pod| &pod.container_metrics)
        .flat_map(|container| &container.metrics);
    let samples = pods.iter().flat_map(|pod| &pod.metrics).chain(containers);
    let key = |value: &String| value.split(' ').next().unwrap().to_owned();
    samples
        .map(|sample| sample.label_values.iter().map(key).collect())
        .collect()
}

fn one(keys: &[&str]) -> BTreeSet<Vec<String>> {
    BTreeSet::from([keys.iter().map(|key| (*key).to_owned()).collect()])
}

#[tokio::test]
async fn merged_descriptors_have_the_keys_of_all_backends_and_samples_follow_them() {
    let rig = two(&["id", "name", "image"], &["image", "node", "name", "id"]).await;
    let all = ["id", "name", "image", "node"];
    assert_eq!(given(&rig).await, all);
    let fitting: BTreeSet<_> = [one(&["id", "name", "image", ""]), one(&all)]
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(labels(&rig).await, fitting);
    assert_eq!(streamed_labels(&rig).await, fitting);
}

#[tokio::test]
async fn criswitch_asks_for_descriptors_once_for_each_connection() {
    let rig = two(&["id", "name"], &["name", "id"]).await;
    for _ in 0..3 {
        assert_eq!(labels(&rig).await, one(&["id", "name"]));
    }
    let kata = rig.sim("kata");
    asked_once(kata).await;
    kata.stop().await;
    kata.clone()
        .set(|settings| settings.descriptors = vec![descriptor(CPU, &["x", "name", "id"])]);
    kata.start();
    until_state(&rig, "kata", "ready").await;
    // No client has read the descriptors, so the new label counts.
    let samples: BTreeSet<_> = [one(&["id", "name", ""]), one(&["id", "name", "x"])]
        .into_iter()
        .flatten()
        .collect();
    assert_eq!(labels(&rig).await, samples);
}

/// runc, and kata with the new label `cpu` after the client has read the descriptors.
async fn with_a_new_label() -> Rig {
    let rig = two(&["id"], &["id"]).await;
    assert_eq!(given(&rig).await, ["id"]);
    let kata = rig.sim("kata");
    kata.stop().await;
    kata.clone()
        .set(|settings| settings.descriptors = vec![descriptor(CPU, &["id", "cpu"])]);
    kata.start();
    until_state(&rig, "kata", "ready").await;
    rig
}

fn samples(pods: &[cri::PodSandboxMetrics]) -> usize {
    pods.iter().map(|pod| pod.metrics.len()).sum()
}

#[tokio::test]
async fn a_label_that_appears_after_the_client_read_the_descriptors_is_omitted_and_logged_once() {
    let logged = Logged::here();
    let mut rig = with_a_new_label().await;
    for _ in 0..2 {
        // The two samples of kata differ only in the new label.
        let pods = pods(&rig).await;
        assert_eq!((samples(&pods), keys_of(&pods)), (1, one(&["id"])));
        assert_eq!(streamed_labels(&rig).await, one(&["id"]));
        let lines = logged.lines(&["WARN", "kata", CPU, "cpu", "restart the kubelet"]);
        assert_eq!(lines.len(), 1, "{}", logged.text());
    }
    assert!(logged.lines(&["runc", "omitted"]).is_empty());
    // A restart of criswitch does not make the client read the descriptors again.
    rig.restart_switch().await;
    until_state(&rig, "kata", "ready").await;
    assert_eq!(labels(&rig).await, one(&["id"]));
    assert_eq!(given(&rig).await, ["id", "cpu"]);
    assert_eq!(samples(&pods(&rig).await), 3);
}

/// A reload removes kata. The client still knows the label of kata's descriptor.
#[tokio::test]
async fn metrics_of_the_only_backend_follow_the_label_keys_of_a_removed_backend() {
    let sims = [
        describes("runc", &["id", "name"]),
        describes("kata", &["node", "id"]),
    ];
    let both = "runc = \"runc\"\nkata = \"kata\"";
    let mut rig = Rig::with_config(sims, |directory| {
        table("runc", both, &["runc", "kata"], directory)
    })
    .await;
    rig.run("runc", "one").await;
    assert_eq!(given(&rig).await, ["id", "name", "node"]);
    reload(&rig, "runc", "runc = \"runc\"", &["runc"]);
    wait::until(async || rig.state().await["backends"].as_array().unwrap().len() == 1).await;
    for _ in 0..2 {
        assert_eq!(labels(&rig).await, one(&["id", "name", ""]));
        assert_eq!(streamed_labels(&rig).await, one(&["id", "name", ""]));
        rig.restart_switch().await;
        until_state(&rig, "runc", "ready").await;
    }
    assert_eq!(given(&rig).await, ["id", "name"]);
    // After the client has read the new descriptors, criswitch forwards runc's metrics unchanged.
    let reply = send(&rig, "ListPodSandboxMetrics", frame_raw(b"")).await;
    assert_eq!(reply.body, rig.sim("runc").sent("ListPodSandboxMetrics"));
}

#[tokio::test]
async fn samples_pass_unchanged_where_all_descriptors_agree() {
    let rig = two(&["id", "name"], &["id", "name"]).await;
    let kata = rig.sim("kata");
    // Two backends do not disagree if one of them lacks a descriptor.
    kata.clone()
        .set(|settings| settings.descriptors.push(descriptor(DISK, &["disk"])));
    given(&rig).await;
    let rpc = "ListPodSandboxMetrics";
    let reply = send(&rig, rpc, frame_raw(b"")).await;
    let parts = ["runc", "kata"].map(|name| rig.sim(name).sent(rpc)[5..].to_vec());
    assert_eq!(reply.messages(), [parts.concat()]);
}

#[tokio::test]
async fn a_backend_that_does_not_describe_its_metrics_delays_no_other_and_is_asked_again() {
    let rig = two(&["id", "name"], &["name", "id"]).await;
    let kata = rig.sim("kata");
    kata.hold("ListMetricDescriptors");
    assert_eq!(labels(&rig).await, one(&["id", "name"]));
    assert!(state_of(&rig, "kata").await["statsLateSeconds"].is_u64());
    kata.release("ListMetricDescriptors");
    wait::until(async || state_of(&rig, "kata").await["statsLateSeconds"].is_null()).await;
    let pods = pods(&rig).await;
    let reported = pods.iter().filter(|pod| !pod.metrics.is_empty());
    assert_eq!(reported.count(), 2);
    assert_eq!(labels(&rig).await, one(&["id", "name"]));
}

#[tokio::test]
async fn label_keys_stay_the_same_under_a_new_default_until_the_client_asks_for_descriptors() {
    let sims = [
        describes("runc", &["id", "name"]),
        describes("kata", &["name", "id"]),
    ];
    let rows = "runc = \"runc\"\nkata = \"kata\"";
    let rig = Rig::with_config(sims, |directory| {
        table("runc", rows, &["runc", "kata"], directory)
    })
    .await;
    rig.run("runc", "one").await;
    rig.run("kata", "two").await;
    given(&rig).await;
    reload(&rig, "kata", rows, &["runc", "kata"]);
    assert_eq!(labels(&rig).await, one(&["id", "name"]));
    assert_eq!(given(&rig).await, ["name", "id"]);
    assert_eq!(labels(&rig).await, one(&["name", "id"]));
}

#[tokio::test]
async fn cached_metrics_follow_the_clients_label_keys_too() {
    let rig = two(&["id", "name"], &["name", "id"]).await;
    given(&rig).await;
    labels(&rig).await;
    rig.sim("kata").hold_all("ListPodSandboxMetrics");
    let pods = pods(&rig).await;
    assert_eq!((pods.len(), keys_of(&pods)), (2, one(&["id", "name"])));
}

#[tokio::test]
async fn unreadable_descriptors_are_asked_for_once() {
    let rig = two(&["pod"], &["pod"]).await;
    let kata = rig.sim("kata");
    kata.append_raw("ListMetricDescriptors", b"\x0a\x7f".as_slice());
    for _ in 0..3 {
        pods(&rig).await;
    }
    asked_once(kata).await;
}

/// Asserts that criswitch has asked for the descriptors once, and once whether the backend has the RPC.
async fn asked_once(kata: &Sim) {
    let asked = || kata.calls("ListMetricDescriptors").len();
    wait::until(async || asked() >= 2).await;
    assert_eq!(asked(), 2);
}

#[tokio::test]
async fn label_keys_stay_the_same_after_a_restart() {
    let mut rig = two(&["id", "name"], &["name", "id"]).await;
    assert_eq!(given(&rig).await, ["id", "name"]);
    rig.restart_switch().await;
    until_state(&rig, "kata", "ready").await;
    assert_eq!(labels(&rig).await, one(&["id", "name"]));
    rig.sim("runc").stop().await;
    for _ in 0..2 {
        rig.restart_switch().await;
        until_state(&rig, "kata", "ready").await;
        assert_eq!(labels(&rig).await, one(&["id", "name"]));
        assert_eq!(given(&rig).await, ["id", "name"]);
    }
}

#[tokio::test]
async fn descriptors_asked_for_while_a_backend_is_down_change_no_label_keys() {
    let rig = two(&["id", "name"], &["name", "id"]).await;
    given(&rig).await;
    stopped(&rig, "runc").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(given(&rig).await, ["id", "name"]);
    assert_eq!(labels(&rig).await, one(&["id", "name"]));
}

#[tokio::test]
async fn label_keys_of_the_only_backend_stay_the_same_when_a_reload_adds_a_new_default() {
    let sims = [
        describes("runc", &["id", "name"]),
        describes("kata", &["name", "id"]),
    ];
    let rig = Rig::with_config(sims, |directory| {
        table("runc", "runc = \"runc\"", &["runc"], directory)
    })
    .await;
    rig.run("runc", "one").await;
    assert_eq!(given(&rig).await, ["id", "name"]);
    reload(
        &rig,
        "kata",
        "runc = \"runc\"\nkata = \"kata\"",
        &["runc", "kata"],
    );
    until_state(&rig, "kata", "ready").await;
    rig.run("kata", "two").await;
    assert_eq!(labels(&rig).await, one(&["id", "name"]));
}
