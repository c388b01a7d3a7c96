//! The cost of each step that criswitch adds to a call: `cargo bench`.
//!
//! The targets: reading a key takes less than 1 µs, and a look-up of an owner less than 200 ns. A merge is at least 20
//! times cheaper than decoding, extending and encoding the same lists with prost. The prost variant is measured, too.
#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop")]

use std::sync::Arc;

use bytes::Bytes;
use criswitch::backend::connect::Dialer;
use criswitch::call::log::CallLog;
use criswitch::call::reply;
use criswitch::gate::Readable;
use criswitch::limits::places::User;
use criswitch::operator::metrics;
use criswitch::ownership::{Owners, PodNames};
use criswitch::switch::Switch;
use criswitch::telemetry::counters::Counts;
use criswitch_config::{BackendIds, Config};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::grpc;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{Kind, LIST_CONTAINERS, List, ROWS};
use divan::{Bencher, black_box};
use http::HeaderMap;
use prost::Message;

fn main() {
    divan::main();
}

fn id(at: usize) -> String {
    format!("{at:064x}")
}

/// A container as containerd lists it.
fn container(at: usize) -> cri::Container {
    let labels = [
        ("io.kubernetes.container.name", "server"),
        ("io.kubernetes.pod.name", "web-6d4cf56db6-x7k2p"),
        ("io.kubernetes.pod.namespace", "production"),
        (
            "io.kubernetes.pod.uid",
            "0c6d5a4e-7a4b-4ae0-9d55-5ab2f1a9c0de",
        ),
    ];
    let annotations = [
        ("io.kubernetes.container.hash", "5f2c8a1b"),
        ("io.kubernetes.container.restartCount", "0"),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ];
    let map = |pairs: [(&str, &str); 4]| {
        pairs
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    };
    cri::Container {
        id: id(at),
        pod_sandbox_id: id(1_000_000 + at / 2),
        metadata: Some(cri::ContainerMetadata {
            name: "server".into(),
            attempt: 0,
        }),
        image_ref: format!("sha256:{}", id(7)),
        state: cri::ContainerState::ContainerRunning.into(),
        created_at: 1_700_000_000_000_000_000,
        labels: map(labels),
        annotations: map(annotations),
        ..Default::default()
    }
}

fn list(first: usize, count: usize) -> Bytes {
    let containers = (first..first + count).map(container).collect();
    cri::ListContainersResponse { containers }
        .encode_to_vec()
        .into()
}

/// A `CreateContainerRequest` of about 10 kB, most of it environment.
fn create() -> Bytes {
    let env = |at: usize| cri::KeyValue {
        key: format!("SETTING_{at}"),
        value: Bytes::from(vec![b'x'; 80]),
    };
    let config = cri::ContainerConfig {
        envs: (0..120).map(env).collect(),
        ..Default::default()
    };
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: id(1),
        config: Some(config),
        ..Default::default()
    };
    request.encode_to_vec().into()
}

#[divan::bench]
fn key_of_a_10_kb_create_container(bencher: Bencher) {
    let request = create();
    assert!(request.len() > 10_000);
    bencher.bench(|| protobuf::string(black_box(&request), &[1]).unwrap().len());
}

#[divan::bench]
fn owner_among_5000_containers(bencher: Bencher) {
    let mut owners = Owners::default();
    let (mut ids, asked) = (BackendIds::default(), owners.mark());
    let [a, b] = [ids.issue(), ids.issue()];
    owners.own_pod(&id(1_000_000), a, PodNames::default(), asked);
    owners
        .learn(Kind::Container, a, &list(0, 2500), Owners::default().mark())
        .unwrap();
    owners
        .learn(
            Kind::Container,
            b,
            &list(2500, 2500),
            Owners::default().mark(),
        )
        .unwrap();
    let wanted: Vec<String> = (0..5000).map(id).collect();
    let mut wanted = wanted.iter().cycle();
    bencher.bench_local(|| owners.find(Kind::Container, wanted.next().unwrap()));
}

/// Measures the cost of counting a call. A real call also reads the clock twice in each of its steps, but this call has
/// no steps.
#[divan::bench]
fn a_call_begun_and_ended(bencher: Bencher) {
    let (counts, headers) = (Arc::new(Counts::default()), HeaderMap::new());
    bencher.bench(|| {
        CallLog::begin(&LIST_CONTAINERS, User::Own, &headers, &counts).end(&grpc::ok_trailers())
    });
}

/// Measures the reading of a list of 16 MiB that has changed. All other calls wait during that time.
mod a_list_of_16_mib {
    use super::*;

    fn largest() -> Bytes {
        list(0, (16 << 20) / list(0, 100).len() * 100)
    }

    #[divan::bench]
    fn read_by_the_gate(bencher: Bencher) {
        let list = largest();
        bencher.bench(|| Readable::list(List::Containers, &list).unwrap().len());
    }

    #[divan::bench]
    fn learned(bencher: Bencher) {
        let list = largest();
        let (mut owners, mut ids) = (Owners::default(), BackendIds::default());
        let backend = ids.issue();
        bencher.bench_local(|| {
            owners
                .learn(Kind::Container, backend, &list, Owners::default().mark())
                .unwrap();
        });
    }
}

/// Measures the time to make the metrics page for four backends with 5000 containers together, and one counted call of
/// each RPC.
#[divan::bench]
fn a_page_of_metrics(bencher: Bencher) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("criswitch.toml");
    let rows: String = (0..4)
        .map(|at| format!("h{at} = \"/h{at}.sock\"\n"))
        .collect();
    std::fs::write(
        &path,
        format!("default_handler = \"h0\"\n[handlers]\n{rows}"),
    )
    .unwrap();
    let switch = Switch::new(Config::load(&path).unwrap(), &Dialer::Socket);
    for (at, backend) in switch.live().backends.iter().enumerate() {
        let mut owners = switch.owners();
        let mark = owners.mark();
        owners
            .learn(Kind::Container, backend.id, &list(at * 1250, 1250), mark)
            .unwrap();
    }
    for row in ROWS {
        CallLog::begin(row, User::Own, &HeaderMap::new(), &switch.counts).end(&grpc::ok_trailers());
    }
    bencher.bench(|| metrics::page(&switch).unwrap().len());
}

mod two_lists_of_1000_containers {
    use super::*;

    fn lists() -> [Bytes; 2] {
        [list(0, 1000), list(1000, 1000)]
    }

    /// criswitch's merge: it concatenates the bytes, and reads every id to learn the owner.
    #[divan::bench]
    fn merged(bencher: Bencher) {
        let lists = lists();
        let (mut owners, mut ids) = (Owners::default(), BackendIds::default());
        let backends = [ids.issue(), ids.issue()];
        bencher.bench_local(|| {
            for (backend, list) in backends.into_iter().zip(&lists) {
                owners
                    .learn(Kind::Container, backend, list, Owners::default().mark())
                    .unwrap();
            }
            reply::of_message(lists.to_vec())
        });
    }

    /// The reference: a merge that decodes and encodes with the types that prost generates.
    #[divan::bench]
    fn decoded_extended_encoded_with_prost(bencher: Bencher) {
        let [one, other] = lists();
        bencher.bench(|| {
            let mut merged = cri::ListContainersResponse::decode(one.clone()).unwrap();
            let other = cri::ListContainersResponse::decode(other.clone()).unwrap();
            merged.containers.extend(other.containers);
            merged.encode_to_vec()
        });
    }
}
