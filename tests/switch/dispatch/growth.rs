//! The work of a call grows with its bytes, and not with a product of sizes that a client and a backend choose. For
//! each row, each repeated field of the request grows together with all repeated fields of the replies, and each
//! repeated field of the replies grows alone.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criswitch::gate::{MOST_HANDLERS, MOST_LABEL_KEYS};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf::{put_bytes, put_varint};
use criswitch_cri::rpc::{self, ROWS, Row};
use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto};
use rustix::time::{ClockId, clock_gettime};
use tonic::{Code, Streaming};

use crate::calls::{ID_CALLS, text_of};
use crate::faults::{hang, runc_and_kata, state_of, until_state, wake};
use crate::session::events::{listening, next};
use crate::support::{RawReply, Rig, frame_raw, image_spec};

#[path = "../../interface/proto.rs"]
mod proto;

/// The number of values of a repeated field in the first measurement, unless a limit is lower; see [`few`].
const FEW: usize = 256;
/// The second measurement has this many times as many values.
const FACTOR: usize = 4;
/// The work may grow by this factor. Linear work grows by [`FACTOR`], and the work for a product of two sizes by its
/// square.
const MOST_GROWTH: u32 = 6;
/// Less work than this is not compared, because it is about as long as an interruption of the thread.
const SHORT: Duration = Duration::from_millis(10);
/// The RPCs that may fail here. The runtimes reject these requests: they lack a name, or name what exists already or
/// does not exist. `StreamContainers` fails while kata hangs, because only its streams have the containers.
const REJECTED: [&str; 7] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "RestorePod",
    "PullImage",
    "PullSecurityProfile",
    "StreamContainers",
];
/// How often work is measured. The shortest time counts.
const TRIES: usize = 3;

/// The messages of the CRI by name, and the names of the request and the reply of each RPC.
struct Interface {
    messages: BTreeMap<String, DescriptorProto>,
    rpcs: BTreeMap<String, [String; 2]>,
}

/// The fields from a message to a repeated field.
type Dimension = Vec<FieldDescriptorProto>;

impl Interface {
    fn compiled() -> Interface {
        let mut interface = Interface {
            messages: BTreeMap::new(),
            rpcs: BTreeMap::new(),
        };
        for file in proto::CRI.file.clone() {
            let scope = format!(".{}", file.package());
            for method in file.service.iter().flat_map(|service| &service.method) {
                let types = [method.input_type(), method.output_type()].map(str::to_owned);
                interface.rpcs.insert(method.name().to_owned(), types);
            }
            for message in file.message_type {
                for inner in &message.nested_type {
                    let name = format!("{scope}.{}.{}", message.name(), inner.name());
                    interface.messages.insert(name, inner.clone());
                }
                interface
                    .messages
                    .insert(format!("{scope}.{}", message.name()), message);
            }
        }
        interface
    }

    /// All repeated fields below a message.
    fn dimensions(&self, message: &str, before: &[FieldDescriptorProto]) -> Vec<Dimension> {
        let mut found = Vec::new();
        for field in &self.messages[message].field {
            let path = [before, std::slice::from_ref(field)].concat();
            if field.r#type() == Type::Message && !self.is_map(field) && path.len() < 5 {
                found.extend(self.dimensions(field.type_name(), &path));
            }
            if field.label() == Label::Repeated {
                found.push(path);
            }
        }
        found
    }

    fn is_map(&self, field: &FieldDescriptorProto) -> bool {
        let options = self.messages[field.type_name()].options.as_ref();
        options.is_some_and(|options| options.map_entry())
    }

    /// A field with the value number `number`, in which every string and every message is set.
    fn put(&self, field: &FieldDescriptorProto, number: usize, out: &mut BytesMut) {
        let place = u32::try_from(field.number()).unwrap();
        match field.r#type() {
            // No handler of the tests has such a name, and criswitch routes some requests by it.
            Type::String if field.name() == "runtime_handler" => {}
            Type::String | Type::Bytes => {
                put_bytes(out, place, format!("{}-{number}", field.name()).as_bytes());
            }
            Type::Message => {
                let mut inner = BytesMut::new();
                let fields = self.messages[field.type_name()].field.iter();
                for field in fields.filter(|field| field.label() != Label::Repeated) {
                    self.put(field, number, &mut inner);
                }
                put_bytes(out, place, &inner);
            }
            _ => {}
        }
    }

    /// A message whose field at the end of `dimension` has `count` values.
    fn grown(&self, dimension: &[FieldDescriptorProto], count: usize) -> Bytes {
        let mut out = BytesMut::new();
        match dimension {
            [] => {}
            [last] => (0..count).for_each(|number| self.put(last, number, &mut out)),
            [first, rest @ ..] => {
                let mut inner = BytesMut::new();
                let fields = self.messages[first.type_name()].field.iter();
                for field in fields.filter(|field| field.label() != Label::Repeated) {
                    self.put(field, 0, &mut inner);
                }
                inner.extend_from_slice(&self.grown(rest, count));
                put_bytes(&mut out, u32::try_from(first.number()).unwrap(), &inner);
            }
        }
        out.freeze()
    }

    /// A message in which each dimension has `factor` times [`few`] values.
    fn all_grown(&self, dimensions: &[Dimension], factor: usize) -> Bytes {
        let all = dimensions
            .iter()
            .map(|dimension| self.grown(dimension, factor * few(dimension)));
        all.fold(BytesMut::new(), |mut out, part| {
            out.extend_from_slice(&part);
            out
        })
        .freeze()
    }
}

/// The number of values of a repeated field in the first measurement. With [`FACTOR`] times as many, the message is
/// within criswitch's limits, because criswitch does not read the rest of a message that it rejects.
fn few(dimension: &[FieldDescriptorProto]) -> usize {
    match dimension.last().map(|field| field.name()) {
        Some("label_keys") => MOST_LABEL_KEYS / FACTOR,
        // The runtimes have a few handlers already.
        Some("runtime_handlers") => MOST_HANDLERS / FACTOR - 2,
        _ => FEW,
    }
}

fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        now.tv_sec.unsigned_abs(),
        u32::try_from(now.tv_nsec).unwrap(),
    )
}

/// The processor time that this thread needs for a call. If a measurement is at most `enough`, the call is not measured
/// again. The error is the text of a rejection, which takes less work than a reply.
async fn work(rig: &Rig, row: &Row, request: &Bytes, enough: Duration) -> Result<Duration, String> {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let begun = processor_time();
        let reply = rig
            .raw(&row.path(), &[("grpc-timeout", "60S")], frame_raw(request))
            .await;
        shortest = shortest.min(processor_time() - begun);
        accepted(rig, row, &reply).await?;
        if shortest <= enough {
            break;
        }
    }
    Ok(shortest)
}

/// Whether the reply is OK, and neither a cached list nor nothing has replaced the reply of a backend.
async fn accepted(rig: &Rig, row: &Row, reply: &RawReply) -> Result<(), String> {
    if reply.code() != Code::Ok && !REJECTED.contains(&row.name) {
        return Err(text_of(reply));
    }
    for name in ["runc", "kata"] {
        let state = state_of(rig, name).await;
        let mut failing = state["failingRpcs"].as_array().into_iter().flatten();
        if state["state"] == "ready"
            && let Some(failed) = failing.find(|failed| failed["rpc"] == row.name)
        {
            return Err(failed.to_string());
        }
    }
    Ok(())
}

/// A request of the row for the pod or container of the rig.
fn request_of(row: &Row, (pod, container): &(String, String)) -> Bytes {
    match ID_CALLS.iter().find(|call| call.rpc == row.name) {
        Some(call) => call.request(call.pick(pod, container)).slice(5..),
        None => Bytes::new(),
    }
}

/// Whether the work for [`FACTOR`] times as many values is more than linear.
fn grew_too_much([few, many]: [Duration; 2]) -> bool {
    many > SHORT && many > few * MOST_GROWTH
}

/// The names of the fields that grow.
fn names(dimensions: &[Dimension]) -> String {
    let name = |dimension: &Dimension| {
        let fields = dimension.iter().map(|field| field.name());
        fields.collect::<Vec<_>>().join(".")
    };
    dimensions.iter().map(name).collect::<Vec<_>>().join(", ")
}

/// Measures the calls of a row. Returns a text for each combination of fields whose work grew too much.
async fn check(interface: &Interface, row: &Row, is_away: bool) -> Vec<String> {
    let rig = runc_and_kata().await;
    let ids = rig.run("kata", "db").await;
    let [request, reply] = &interface.rpcs[row.name];
    let replies = interface.dimensions(reply, &[]);
    let with_all = interface.dimensions(request, &[]).into_iter();
    let with_all = with_all.map(|dimension| (dimension, &*replies));
    let alone = replies.chunks(1).map(|reply| (Vec::new(), reply));
    let all = [(Vec::new(), &*replies)];
    let mut wrong = Vec::new();
    for (dimension, replies) in with_all.chain(all).chain(alone) {
        let mut times = [Duration::MAX; 2];
        // The work for few values matters only if the work for many values is not short, so many values come first.
        // With a cached list, few values come first, so that the cached list grows.
        let mut sizes = [(1, FACTOR, SHORT), (0, 1, Duration::ZERO)];
        if is_away {
            sizes.reverse();
        }
        let of = format!(
            "{} with {}, {}",
            row.name,
            names(std::slice::from_ref(&dimension)),
            names(replies)
        );
        for (at, factor, enough) in sizes {
            for name in ["runc", "kata"] {
                rig.sim(name)
                    .append_raw(row.name, interface.all_grown(replies, factor));
            }
            let mut request = BytesMut::from(&*request_of(row, &ids));
            let count = factor * few(&dimension);
            request.extend_from_slice(&interface.grown(&dimension, count));
            if is_away {
                // The list of this size is cached before the backend hangs.
                let listed = rig.raw(&row.path(), &[], frame_raw(b"")).await;
                let listed = accepted(&rig, row, &listed).await;
                wrong.extend(listed.err().map(|fault| format!("{of}: {fault}")));
                hang(rig.sim("kata"));
            }
            let time = work(&rig, row, &request.freeze(), enough).await;
            times[at] = time.unwrap_or_else(|fault| {
                wrong.push(format!("{of}: {fault}"));
                Duration::ZERO
            });
            if is_away {
                wake(rig.sim("kata"));
                until_state(&rig, "kata", "ready").await;
            }
            if times[at] <= enough {
                break;
            }
        }
        if grew_too_much(times) {
            wrong.push(format!("{of}: {times:?}"));
        }
    }
    wrong
}

async fn check_all(rows: impl Iterator<Item = &'static Row>, is_away: bool) {
    let interface = Interface::compiled();
    let mut wrong = Vec::new();
    for row in rows {
        wrong.extend(check(&interface, row, is_away).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_work_of_each_rpc_is_linear_in_each_size_that_a_client_or_a_backend_chooses() {
    check_all(
        ROWS.iter().filter(|row| row.name != rpc::EVENTS.name),
        false,
    )
    .await;
}

/// Measures calls of the row for few and for many values, which `prepare` gives to the runtimes. Returns both times if
/// the work grew too much.
async fn grown_too_much(
    row: &'static Row,
    prepare: impl AsyncFn(&Rig, usize) -> Bytes,
) -> Option<[Duration; 2]> {
    let rig = runc_and_kata().await;
    let mut times = [Duration::MAX; 2];
    for (at, count) in [FEW, FACTOR * FEW].into_iter().enumerate() {
        let request = prepare(&rig, count).await;
        let time = work(&rig, row, &request, Duration::ZERO).await;
        times[at] = time.expect("the call is accepted");
    }
    grew_too_much(times).then_some(times)
}

fn row(name: &str) -> &'static Row {
    ROWS.iter().find(|row| row.name == name).unwrap()
}

/// The client chooses the length of the name, and the backend the number of images in its cached list.
#[tokio::test]
async fn a_long_name_is_not_read_again_for_each_cached_image() {
    let grown = grown_too_much(row("ImageStatus"), async |rig, count| {
        let image = |number| cri::Image {
            id: format!("sha256:{number}"),
            ..cri::Image::default()
        };
        let images = cri::ListImagesResponse {
            images: (0..count).map(image).collect(),
        };
        rig.sim("kata")
            .append_raw("ListImages", images.encode_to_vec());
        let listed = rig
            .raw(&row("ListImages").path(), &[], frame_raw(b""))
            .await;
        assert_eq!(listed.code(), Code::Ok);
        let request = cri::ImageStatusRequest {
            image: Some(image_spec(&"x".repeat(256 * count))),
            ..cri::ImageStatusRequest::default()
        };
        request.encode_to_vec().into()
    });
    assert_eq!(grown.await, None);
}

/// The backend chooses the number of containers and the number of names of an image.
#[tokio::test]
async fn the_names_of_an_image_are_not_read_again_for_each_container() {
    let grown = grown_too_much(row("RemoveImage"), async |rig, count| {
        let image = cri::Image {
            id: "app".to_owned(),
            repo_tags: (0..count).map(|tag| format!("app:{tag}")).collect(),
            ..cri::Image::default()
        };
        let status = cri::ImageStatusResponse {
            image: Some(image),
            ..cri::ImageStatusResponse::default()
        };
        let container = |number| cri::Container {
            id: format!("container-{number}"),
            metadata: Some(cri::ContainerMetadata::default()),
            image_ref: "other".to_owned(),
            ..cri::Container::default()
        };
        let containers = cri::ListContainersResponse {
            containers: (0..count).map(container).collect(),
        };
        let kata = rig.sim("kata");
        kata.append_raw("ImageStatus", status.encode_to_vec());
        kata.append_raw("ListContainers", containers.encode_to_vec());
        let request = cri::RemoveImageRequest {
            image: Some(image_spec("app")),
        };
        request.encode_to_vec().into()
    });
    assert_eq!(grown.await, None);
}

/// The backend chooses how many fields a reply has that this build does not know.
#[tokio::test]
async fn unknown_fields_of_a_reply_are_not_compared_with_each_other() {
    let grown = grown_too_much(row("ImageFsInfo"), async |rig, count| {
        let mut fields = BytesMut::new();
        for number in 0..64 * count {
            put_varint(&mut fields, 1000 + u32::try_from(number).unwrap(), 1);
        }
        rig.sim("runc").append_raw("ImageFsInfo", fields.freeze());
        Bytes::new()
    });
    assert_eq!(grown.await, None);
}

/// The processor time that this thread needs until a client has received another event of kata's `pod` and `container`.
async fn work_for_event(
    rig: &Rig,
    (pod, container): &(String, String),
    events: &mut Streaming<cri::ContainerEventResponse>,
) -> Duration {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let begun = processor_time();
        rig.sim("kata").report(container, pod);
        next(events).await.unwrap();
        shortest = shortest.min(processor_time() - begun);
    }
    shortest
}

#[tokio::test]
async fn the_work_for_an_event_is_linear_in_each_size_that_a_backend_chooses() {
    let interface = Interface::compiled();
    let row = &rpc::EVENTS;
    let [_, event] = &interface.rpcs[row.name];
    let dimensions = interface.dimensions(event, &[]);
    let each = dimensions.iter().map(std::slice::from_ref);
    let mut wrong = Vec::new();
    for grown in each.chain([&*dimensions]) {
        let mut times = [Duration::MAX; 2];
        for (at, factor) in [1, FACTOR].into_iter().enumerate() {
            let rig = runc_and_kata().await;
            let ids = rig.run("kata", "db").await;
            // The bytes of a stream are chosen when it begins.
            let grown = interface.all_grown(grown, factor);
            rig.sim("kata").append_raw(row.name, grown);
            let mut events = listening(&rig).await;
            times[at] = work_for_event(&rig, &ids, &mut events).await;
        }
        if grew_too_much(times) {
            wrong.push(format!("{}: {times:?}", names(grown)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_work_for_a_cached_list_is_linear_in_each_size_that_a_client_or_a_backend_chooses() {
    check_all(ROWS.iter().filter(|row| row.is_list()), true).await;
}

/// The backend chooses the number of descriptors and the number of samples.
#[tokio::test]
async fn metric_descriptors_are_not_read_again_for_each_sample() {
    const KEYS: usize = 16;
    let name = |number: usize| format!("metric_{number}");
    let grown = grown_too_much(row("ListPodSandboxMetrics"), async |rig, count| {
        let count = 2 * count;
        for backend in ["runc", "kata"] {
            let descriptor = |number| cri::MetricDescriptor {
                name: name(number),
                label_keys: (0..KEYS).map(|key| format!("{backend}_{key}")).collect(),
                ..cri::MetricDescriptor::default()
            };
            let descriptors = cri::ListMetricDescriptorsResponse {
                descriptors: (0..count).map(descriptor).collect(),
            };
            let sample = |number| cri::Metric {
                name: name(number),
                label_values: vec![backend.to_owned(); KEYS],
                value: Some(cri::UInt64Value::default()),
                ..cri::Metric::default()
            };
            let of_pod = cri::PodSandboxMetrics {
                pod_sandbox_id: format!("pod-of-{backend}"),
                metrics: (0..count).map(sample).collect(),
                ..cri::PodSandboxMetrics::default()
            };
            let metrics = cri::ListPodSandboxMetricsResponse {
                pod_metrics: vec![of_pod],
            };
            let sim = rig.sim(backend);
            sim.append_raw("ListMetricDescriptors", descriptors.encode_to_vec());
            sim.append_raw("ListPodSandboxMetrics", metrics.encode_to_vec());
        }
        for rpc in ["ListMetricDescriptors", "ListPodSandboxMetrics"] {
            let read = rig.raw(&row(rpc).path(), &[], frame_raw(b"")).await;
            assert_eq!(read.code(), Code::Ok, "{rpc}");
        }
        Bytes::new()
    });
    assert_eq!(grown.await, None);
}
