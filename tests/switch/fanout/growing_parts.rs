//! Parts of merged replies that become larger when criswitch rewrites them: the merged reply never fails because of
//! that.

use criswitch_cri::codec::cri;
use prost::Message;
use tonic::Code;

use crate::calls::{send, stopped, text_of};
use crate::faults::{state_of, until_state};
use crate::logged::Logged;
use crate::session::events::{listening, next};
use crate::support::{RawReply, Rig, Sim, frame, frame_raw};
use crate::wait;

const LIMIT: usize = 8 << 10;
/// The equal share of each of two backends.
const SHARE: usize = LIMIT / 2;
/// The longest name of a handler.
const LONG: &str = "sandboxed-by-a-runtime-whose-handler-has-a-name-of-63-letters-x";

/// Handler [`LONG`] is kata's `k`. The backend is named after the handler.
async fn renamed(sims: [Sim; 2]) -> Rig {
    assert_eq!(LONG.len(), 63);
    Rig::with_config(sims, |directory| {
        format!(
            "default_handler = \"runc\"\nmax_message = \"8KiB\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\n\
             {LONG} = {{ socket = \"{directory}/kata.sock\", handler = \"k\" }}\n"
        )
    })
    .await
}

/// A field that no CRI uses. With the field, a message has `length` bytes more.
fn padding(length: usize) -> Vec<u8> {
    let length = length - 5;
    let low = u8::try_from(length % 128).unwrap() | 0x80;
    let high = u8::try_from(length / 128).unwrap();
    [b"\xc2\xb8\x02", &[low, high][..], &vec![b'x'; length]].concat()
}

/// Makes the replies of both runtimes to `rpc` exactly as large as the share of their backends, with a field that no
/// CRI uses.
async fn pad(rig: &Rig, rpc: &str) {
    let reply = send(rig, rpc, frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
    for sim in &rig.sims {
        sim.append_raw(rpc, padding(SHARE - (sim.sent(rpc).len() - 5)));
    }
}

/// The pods of a list, all of which have the name that clients use for their handler.
fn pods(reply: &RawReply) -> usize {
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(reply));
    let message = reply.messages().remove(0);
    assert!(message.len() <= LIMIT, "{}", message.len());
    let pods = cri::ListPodSandboxResponse::decode(message).unwrap().items;
    assert!(pods.iter().all(|pod| pod.runtime_handler == LONG));
    pods.len()
}

#[tokio::test]
async fn a_list_that_renamed_handlers_make_too_large_is_replaced_and_not_cached() {
    let rpc = "ListPodSandbox";
    let sims = [Sim::new("runc"), Sim::new("kata").handlers(["k"])];
    let rig = renamed(sims).await;
    for number in 0..4 {
        rig.run_pod(LONG, &format!("pod-{number}")).await;
    }
    pad(&rig, rpc).await;
    let reply = send(&rig, rpc, frame_raw(b"")).await;
    assert_eq!(pods(&reply), 4);
    let failing = state_of(&rig, LONG).await["failingRpcs"].clone();
    assert_eq!(failing[0]["rpc"], rpc, "{failing}");
    let cause = failing[0]["cause"].as_str().unwrap();
    let renamed = SHARE + 4 * (LONG.len() + 2);
    for part in [format!("{LONG} {renamed}"), format!("runc {SHARE}")] {
        assert!(cause.contains(&part), "{cause} lacks {part}");
    }
    // criswitch lists the backend when it connects again.
    let kata = rig.sim("kata");
    kata.stop().await;
    kata.start();
    until_state(&rig, LONG, "ready").await;
    kata.stop().await;
    until_state(&rig, LONG, "down").await;
    let reply = send(&rig, rpc, frame_raw(b"")).await;
    assert_eq!(pods(&reply), 4);
}

#[tokio::test]
async fn samples_that_label_keys_make_too_large_are_omitted() {
    let logged = Logged::here();
    let rpc = "ListPodSandboxMetrics";
    let describes = |name: &str, keys: &[&str]| {
        let descriptor = cri::MetricDescriptor {
            name: "container_cpu_usage_seconds_total".to_owned(),
            help: String::new(),
            label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        Sim::new(name).set(|settings| settings.descriptors = vec![descriptor])
    };
    let rig = Rig::with_config(
        [
            describes("runc", &["id", "name"]),
            describes("kata", &["id"]),
        ],
        |directory| {
            format!(
                "default_handler = \"runc\"\nmax_message = \"8KiB\"\n[handlers]\n\
                 runc = \"{directory}/runc.sock\"\nkata = \"{directory}/kata.sock\"\n"
            )
        },
    )
    .await;
    rig.run("runc", "one").await;
    rig.run("kata", "two").await;
    pad(&rig, rpc).await;
    let reply = send(&rig, rpc, frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
    let message = reply.messages().remove(0);
    assert!(message.len() <= LIMIT, "{}", message.len());
    let metrics = cri::ListPodSandboxMetricsResponse::decode(message).unwrap();
    let samples = metrics.pod_metrics.iter().map(|pod| pod.metrics.len());
    assert_eq!(samples.filter(|samples| *samples > 0).count(), 1);
    let lines = logged.lines(&["WARN", "backend=kata", "omitted", &SHARE.to_string()]);
    assert_eq!(lines.len(), 1, "{}", logged.text());
}

/// The log line about an event that is too large.
const DROPPED: [&str; 3] = ["WARN", LONG, "it is larger than max_message"];

#[tokio::test]
async fn an_event_that_a_renamed_handler_makes_too_large_is_dropped_and_ends_no_stream() {
    let logged = Logged::here();
    let rig = renamed([Sim::new("runc"), Sim::new("kata").handlers(["k"])]).await;
    let (pod, container) = rig.run(LONG, "web").await;
    let kata = rig.sim("kata");
    let mut events = listening(&rig).await;
    kata.report(&container, &pod);
    let size = next(&mut events).await.unwrap().encoded_len();
    drop(events);
    wait::until(async || kata.listeners() == 0).await;
    // The backend's own event is within the limit.
    kata.append_raw("GetContainerEvents", padding(LIMIT + 1 - size));
    let mut events = listening(&rig).await;
    kata.report(&container, &pod);
    let (other, _) = rig.run("runc", "other").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, other);
    assert_eq!(logged.lines(&DROPPED).len(), 1, "{}", logged.text());
}

#[tokio::test]
async fn an_event_that_criswitch_makes_too_large_is_dropped_and_ends_no_stream() {
    let logged = Logged::here();
    let rig = renamed([Sim::new("runc"), Sim::new("kata").handlers(["k"])]).await;
    let pod = rig.run_pod(LONG, "web").await;
    let mut events = listening(&rig).await;
    let request = frame(&cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod,
        verbose: false,
    });
    send(&rig, "PodSandboxStatus", request).await;
    let kata = rig.sim("kata");
    let size = kata.sent("PodSandboxStatus").len() - 5;
    // The reply is within the limit. The event also has the id of the pod.
    let status = padding(LIMIT - 10 - size);
    kata.append_to_items("PodSandboxStatus", status);
    stopped(&rig, "kata").await;
    kata.start();
    wait::until(async || !logged.lines(&DROPPED).is_empty()).await;
    let (other, _) = rig.run("runc", "other").await;
    assert_eq!(next(&mut events).await.unwrap().container_id, other);
}
