//! Merged lists: complete or an error, made of the backends' own bytes.

use tonic::{Code, Status};

use crate::calls::{assert_names_the_dead, holds, part, send, stopped, text_of};
use crate::faults::state_of;
use crate::support::{Client, RawReply, Rig, Sim, frame_raw};
use crate::wait;

/// The lists that criswitch merges from all backends: pods and containers, then their stats.
const LISTS: [&str; 4] = [
    "ListPodSandbox",
    "ListContainers",
    "ListContainerStats",
    "ListPodSandboxStats",
];

/// Three backends. The default is not the first in the routing table.
async fn three(kind: fn(Sim) -> Sim) -> Rig {
    three_with("", kind).await
}

async fn three_with(keys: &str, kind: fn(Sim) -> Sim) -> Rig {
    let sims = ["runc", "kata", "gvisor"].map(|name| kind(Sim::new(name)));
    let rig = Rig::with_config(sims, |directory| {
        let row = |name| format!("{name} = \"{directory}/{name}.sock\"\n");
        let rows = ["runc", "kata", "gvisor"].map(row).concat();
        format!("default_handler = \"kata\"\n{keys}[handlers]\n{rows}")
    })
    .await;
    for name in ["runc", "kata", "gvisor"] {
        rig.run(name, &format!("{name}-1")).await;
        rig.run(name, &format!("{name}-2")).await;
    }
    rig
}

/// Asserts that a list consists of the messages of all runtimes, the default's first, and is not empty.
#[track_caller]
fn assert_whole(rig: &Rig, rpc: &str, reply: &RawReply) {
    let sent = ["kata", "runc", "gvisor"].map(|name| rig.sim(name).sent(rpc));
    let whole = sent.map(|sent| sent[5..].to_vec()).concat();
    assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(reply));
    assert!(!whole.is_empty(), "{rpc}");
    // `assert_eq!` would print thousands of bytes.
    assert!(reply.messages() == [whole], "{rpc}: other bytes");
}

#[tokio::test]
async fn a_merged_list_is_the_backends_bytes_concatenated_with_the_default_first() {
    let rig = three(|sim| sim).await;
    for rpc in LISTS.iter().chain(&["ListPodSandboxMetrics"]) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_whole(&rig, rpc, &reply);
    }
}

/// criswitch compares a repeated list with the cached one while the list arrives, and drops the copy.
#[tokio::test]
async fn long_lists_arrive_byte_for_byte_whether_they_repeat_or_change() {
    for names in [&["runc"][..], &["runc", "kata"]] {
        let rig = Rig::start(names.iter().map(|name| Sim::new(name))).await;
        for last in [1, 1, 1, 2, 2, 1] {
            let mut long = vec![7; 100_000];
            long.push(last);
            for name in names {
                let sim = rig.sim(name);
                sim.append_raw("ListContainers", part(100, long.clone()));
            }
            let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
            let sent = names
                .iter()
                .map(|name| rig.sim(name).sent("ListContainers"));
            let whole = sent.map(|sent| sent[5..].to_vec()).collect::<Vec<_>>();
            assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
            assert!(reply.messages() == [whole.concat()], "{names:?}, {last}");
        }
    }
}

#[tokio::test]
async fn lists_arrive_and_are_cached_in_the_backends_latest_order() {
    let rig = three(|sim| sim).await;
    for _ in 0..3 {
        rig.sim("kata").reorder();
        for rpc in &LISTS[..2] {
            // The second list of each pair repeats the bytes of the first one.
            for _ in 0..2 {
                let reply = send(&rig, rpc, frame_raw(b"")).await;
                assert_whole(&rig, rpc, &reply);
            }
        }
    }
    stopped(&rig, "kata").await;
    for rpc in &LISTS[..2] {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_whole(&rig, rpc, &reply);
    }
}

#[tokio::test]
async fn a_merged_list_keeps_unknown_fields() {
    let rig = three(Sim::newer).await;
    for rpc in LISTS.iter().chain(&["ListPodSandboxMetrics"]) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_whole(&rig, rpc, &reply);
        assert!(holds(&reply, "of a later version"), "{rpc}");
    }
}

#[tokio::test]
async fn a_merged_list_has_the_same_order_whichever_backend_answers_first() {
    let rig = three(|sim| sim).await;
    for rpc in LISTS {
        let kata = rig.sim("kata");
        kata.hold(rpc);
        let list = send(&rig, rpc, frame_raw(b""));
        let release = async {
            kata.until_held(rpc).await;
            kata.release(rpc);
        };
        let (reply, ()) = tokio::join!(list, release);
        assert_whole(&rig, rpc, &reply);
    }
}

#[tokio::test]
async fn lists_of_a_single_backend_pass_unchanged() {
    let rig = Rig::start([Sim::new("runc").newer()]).await;
    rig.run("runc", "web").await;
    // The added name is not UTF-8. No client can decode it, but with a single backend criswitch forwards it, as the
    // backend does.
    rig.sim("runc")
        .append_to_items("ListPodSandbox", b"\x12\x06\x0a\x04caf\xe9".as_slice());
    let others = ["ListPodSandboxMetrics", "ListMetricDescriptors"];
    for rpc in LISTS.iter().chain(&others) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}");
        assert!(reply.body == rig.sim("runc").sent(rpc), "{rpc}");
    }
}

#[tokio::test]
async fn a_merged_list_without_items_is_one_empty_message() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    for rpc in LISTS {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(
            (reply.code(), reply.messages()),
            (Code::Ok, vec!["".into()])
        );
    }
}

#[tokio::test]
async fn a_list_that_is_not_cached_fails_with_the_name_of_the_backend_that_is_down() {
    let rig = three_with("stale_lists = \"0s\"\n", |sim| sim).await;
    // First the default backend is down, then another backend.
    for name in ["kata", "gvisor"] {
        stopped(&rig, name).await;
        for rpc in &LISTS[..2] {
            let reply = send(&rig, rpc, frame_raw(b"")).await;
            assert_names_the_dead(&reply, rig.sim(name), rpc);
            assert!(reply.body.is_empty(), "{rpc}");
        }
        rig.sim(name).start();
        wait::until(async || rig.pods().await.is_ok()).await;
        for rpc in LISTS {
            let reply = send(&rig, rpc, frame_raw(b"")).await;
            assert_whole(&rig, rpc, &reply);
        }
    }
}

#[tokio::test]
async fn the_cached_list_of_a_dead_backend_is_served_byte_for_byte() {
    let with_unknown_field = |sim: Sim| {
        for rpc in LISTS {
            sim.append_to_items(rpc, b"\xc2\xb8\x02\x04caf\xe9".as_slice());
        }
        sim
    };
    let rig = three(with_unknown_field).await;
    let mut before = Vec::new();
    for rpc in &LISTS[..2] {
        before.push(send(&rig, rpc, frame_raw(b"")).await);
    }
    stopped(&rig, "kata").await;
    for (rpc, before) in LISTS.iter().zip(before) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        assert!(reply.body == before.body, "{rpc}: other bytes");
    }
}

#[tokio::test]
async fn a_cached_list_has_pods_and_containers_created_since() {
    let rig = three(|sim| sim).await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let (pod, container) = rig.run("kata", "since").await;
    stopped(&rig, "kata").await;
    for (rpc, id) in LISTS.iter().zip([&pod, &container]) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        assert!(holds(&reply, id), "{rpc}");
    }
}

#[tokio::test]
async fn stats_omit_a_dead_backend() {
    let rig = three(|sim| sim).await;
    stopped(&rig, "kata").await;
    for rpc in LISTS[2..].iter().chain(&["ListPodSandboxMetrics"]) {
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        let sent = ["runc", "gvisor"].map(|name| rig.sim(name).sent(rpc));
        let whole = sent.map(|sent| sent[5..].to_vec()).concat();
        assert!(!whole.is_empty(), "{rpc}");
        assert!(reply.messages() == [whole], "{rpc}: {}", text_of(&reply));
    }
}

#[tokio::test]
async fn criswitch_reconnects_to_a_backend_without_a_call_for_it() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    stopped(&rig, "kata").await;
    let kata = rig.sim("kata");
    let before = kata.calls("ListContainers").len();
    kata.start();
    kata.until(|journal| journal.calls_of("ListContainers").count() > before)
        .await;
}

#[tokio::test]
async fn the_error_of_a_merged_list_has_the_backends_text_first_and_then_names_the_backend() {
    let rig = three(|sim| sim).await;
    for rpc in LISTS {
        let words = "RegistryUnavailable: 50% of caf\u{e9}s are closed";
        // The error passes because no backend has an answer that can be used.
        for (name, words) in [("kata", words), ("runc", "later"), ("gvisor", "later")] {
            rig.sim(name).fail(rpc, Status::aborted(words));
        }
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        let text = text_of(&reply);
        assert_eq!(reply.code(), Code::Aborted, "{rpc}");
        assert!(text.starts_with(words), "{rpc}: {text}");
        let socket = rig.sim("kata").socket();
        assert!(text.contains(&format!("{:?}", "kata")), "{rpc}: {text}");
        assert!(text.contains(socket.to_str().unwrap()), "{rpc}: {text}");
        assert!(reply.messages().is_empty(), "{rpc}");
    }
}

#[tokio::test]
async fn a_list_that_every_backend_lacks_is_unimplemented() {
    let rig = three(|sim| sim.lacks(["ListContainerStats"])).await;
    let reply = send(&rig, "ListContainerStats", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Unimplemented);
}

#[tokio::test]
async fn the_largest_part_of_a_merged_reply_above_the_limit_is_replaced_and_the_cause_has_all_sizes()
 {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = Rig::with_config(sims, |directory| {
        format!(
            "default_handler = \"runc\"\nmax_message = \"16KiB\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\nkata = \"{directory}/kata.sock\"\n"
        )
    })
    .await;
    rig.run("kata", "web").await;
    // Each reply gets 10,000 bytes in a field number that no CRI uses.
    let padding = [b"\xc2\xb8\x02\x90\x4e".as_slice(), &[b'x'; 10_000]].concat();
    for rpc in LISTS {
        for sim in &rig.sims {
            sim.append_raw(rpc, padding.clone());
        }
        let reply = send(&rig, rpc, frame_raw(b"")).await;
        assert_eq!(reply.code(), Code::Ok, "{rpc}: {}", text_of(&reply));
        let length = reply.messages()[0].len();
        assert!((10_000..16 << 10).contains(&length), "{rpc}: {length}");
        // The part of kata is larger, because kata has a pod.
        let failing = state_of(&rig, "kata").await["failingRpcs"].clone();
        let mut failing = failing.as_array().unwrap().iter();
        let failed = failing.find(|failed| failed["rpc"] == rpc).unwrap();
        let text = failed["cause"].as_str().unwrap();
        for sim in &rig.sims {
            let size = format!("{} {}", sim.name(), sim.sent(rpc).len() - 5);
            assert!(text.contains(&size), "{rpc}: {text} lacks {size}");
        }
        for sim in &rig.sims {
            sim.append_raw(rpc, Vec::new());
        }
    }
}

#[tokio::test]
async fn a_merged_reply_of_exactly_the_limit_passes() {
    let sims = [Sim::new("runc"), Sim::new("kata")];
    let rig = Rig::with_config(sims, |directory| {
        format!(
            "default_handler = \"runc\"\nmax_message = \"1KiB\"\n[handlers]\n\
             runc = \"{directory}/runc.sock\"\nkata = \"{directory}/kata.sock\"\n"
        )
    })
    .await;
    // The field has 512 bytes: a key of three bytes, a length of two, and 507 bytes of content.
    let half = [b"\xc2\xb8\x02\xfb\x03".as_slice(), &[b'x'; 507]].concat();
    for sim in &rig.sims {
        sim.append_raw("ListContainers", half.clone());
    }
    let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
    assert_eq!(reply.messages(), [[half.clone(), half.clone()].concat()]);
    rig.sim("kata")
        .append_raw("ListContainers", [&half[..], b"\x10\x01"].concat());
    let reply = send(&rig, "ListContainers", frame_raw(b"")).await;
    assert_eq!(reply.code(), Code::Ok, "{}", text_of(&reply));
    assert!(reply.messages()[0].len() <= 1 << 10);
}

#[tokio::test]
async fn a_pod_created_during_a_list_is_forgotten_once_a_later_list_lacks_it() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    // criswitch does not decode a list if the last list had the same items and changed nothing. After three lists this
    // is the case.
    for _ in 0..3 {
        rig.pods().await.unwrap();
    }
    let runc = rig.sim("runc");
    runc.hold_reply("ListPodSandbox");
    let client = Client::clone(&rig);
    let early = tokio::spawn(async move { client.pods().await });
    runc.until_done("ListPodSandbox").await;
    let pod = rig.run_pod("runc", "web").await;
    runc.release("ListPodSandbox");
    early.await.unwrap().unwrap();
    runc.forget();
    assert_eq!(rig.pods().await.unwrap(), []);
    let lost = rig.stop_pod(&pod).await;
    lost.unwrap();
    assert_eq!(
        runc.calls("StopPodSandbox").len(),
        0,
        "criswitch knows that the pod is gone"
    );
}
