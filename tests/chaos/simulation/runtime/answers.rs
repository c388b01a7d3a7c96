//! Executes each RPC of a runtime: changes the truth, and makes the reply from the truth.

use std::cell::Cell;

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{Goes, Items, Join, Kind, List, Merge, Row, Then, Unknown};
use prost::Message;
use tonic::Status;

use crate::simulation::filter::Filter;
use crate::simulation::offers::Offers;
use crate::simulation::plan::Garbled;
use crate::simulation::truth::{CallId, Stored, Thing, Truth, annotations};

/// A call that a runtime has received.
pub struct Asked<'a> {
    pub backend: usize,
    pub row: &'static Row,
    pub call: CallId,
    pub message: &'a [u8],
    /// Whether the reply has an item that cannot be decoded.
    pub garbled: Cell<bool>,
}

/// States of pods and containers.
const READY: i32 = cri::PodSandboxState::SandboxReady as i32;
const NOT_READY: i32 = cri::PodSandboxState::SandboxNotready as i32;
const CREATED: i32 = cri::ContainerState::ContainerCreated as i32;
const RUNNING: i32 = cri::ContainerState::ContainerRunning as i32;
const EXITED: i32 = cri::ContainerState::ContainerExited as i32;

type Answer = Result<Vec<Bytes>, Status>;

/// Executes a call and returns the messages of the reply.
pub fn answer(truth: &mut Truth, asked: &Asked<'_>) -> Answer {
    match &asked.row.goes {
        Goes::Handler(path) => {
            let handler = asked.string(path);
            Ok(run(truth, asked, &handler))
        }
        Goes::OwnerWithImage(path) => create(truth, asked, &asked.string(path)),
        Goes::Owner(kind, path, unknown) => {
            of_one(truth, asked, *kind, &asked.string(path), *unknown)
        }
        Goes::Image(..) => image(truth, asked),
        Goes::All(..) | Goes::Default => all(truth, asked),
    }
}

impl Asked<'_> {
    fn string(&self, path: &[u32]) -> String {
        protobuf::string(self.message, path).unwrap().to_owned()
    }

    /// The kind of list that the call asks for, if the call has no filter. `None` for images.
    pub fn lists_whole(&self) -> Option<List> {
        let list = match self.row.then {
            Then::List(List::Images) => return None,
            Then::List(list) => list,
            _ => return None,
        };
        protobuf::bytes(self.message, &[1])
            .unwrap()
            .is_empty()
            .then_some(list)
    }
}

fn run(truth: &mut Truth, asked: &Asked<'_>, handler: &str) -> Vec<Bytes> {
    if let Some(id) = truth.imitated_by(asked.backend, Kind::Pod, asked.call) {
        return one(&cri::RunPodSandboxResponse { pod_sandbox_id: id });
    }
    let id = truth.new_id();
    let config: &[u32] = if asked.row.name == "RestorePod" {
        &[2, 1, 1]
    } else {
        &[1, 1, 1]
    };
    let name = asked.string(config);
    let born = truth.tick();
    let mut pod = Thing {
        handler: handler.to_owned(),
        maker: asked.call,
        unanswered: truth.may_not_learn(asked.call, asked.backend),
        ..Thing::new(Kind::Pod, id.clone(), asked.backend, id.clone(), name, born)
    };
    if let Some(mirror) = truth.mirror_of(asked.backend) {
        pod.copy(mirror, born, false);
        // criswitch may reject an id that another backend has listed before.
        truth.spoil(asked.call, asked.backend);
    }
    truth.things.push(pod);
    one(&cri::RunPodSandboxResponse { pod_sandbox_id: id })
}

fn create(truth: &mut Truth, asked: &Asked<'_>, pod: &str) -> Answer {
    let pod = find(truth, asked.backend, Kind::Pod, pod)?;
    if let Some(container_id) = truth.imitated_by(asked.backend, Kind::Container, asked.call) {
        return Ok(one(&cri::CreateContainerResponse { container_id }));
    }
    let (id, born) = (truth.new_id(), truth.tick());
    let within = truth.thing(Kind::Pod, &pod).unwrap();
    let (uid, others) = (within.uid.clone(), within.others(asked.backend));
    let mut container = Thing {
        maker: asked.call,
        unanswered: truth.may_not_learn(asked.call, asked.backend),
        uid,
        ..Thing::new(
            Kind::Container,
            id.clone(),
            asked.backend,
            pod,
            asked.string(&[2, 1, 1]),
            born,
        )
    };
    for copy in others {
        container.copy(copy.at, born, copy.odd);
        truth.spoil(asked.call, asked.backend);
    }
    truth.things.push(container);
    Ok(one(&cri::CreateContainerResponse { container_id: id }))
}

fn of_one(truth: &mut Truth, asked: &Asked<'_>, kind: Kind, id: &str, unknown: Unknown) -> Answer {
    let id = match (find(truth, asked.backend, kind, id), unknown) {
        (Ok(id), _) => id,
        (Err(_), Unknown::Ok) => {
            // A cached list may still have the removed pod or container, in the state that the client's call asked for.
            stop(truth, asked.row.name, id, |thing| thing.gone.is_some());
            return Ok(vec![Bytes::new()]);
        }
        (Err(status), Unknown::NotFound) => return Err(status),
    };
    match asked.row.name {
        "RemovePodSandbox" | "RemoveContainer" => truth.remove(kind, &id),
        "PodSandboxStatus" => {
            let status = truth.thing(kind, &id).map(|thing| cri::PodSandboxStatus {
                id: id.clone(),
                runtime_handler: thing.handler.clone(),
                state: thing.state(),
                metadata: Some(cri::PodSandboxMetadata::default()),
                ..Default::default()
            });
            let status = cri::PodSandboxStatusResponse {
                status,
                ..Default::default()
            };
            // A label of the pod is not UTF-8.
            let garble = b"\x0a\x05\x3a\x03\x0a\x01\xff";
            return Ok(one_or_garbled(truth, asked, &status, garble));
        }
        "ContainerStatus" => {
            let state = truth.thing(kind, &id).map_or(EXITED, Thing::state);
            let status = Some(cri::ContainerStatus {
                id,
                state,
                image: Some(cri::ImageSpec::default()),
                ..Default::default()
            });
            let status = cri::ContainerStatusResponse {
                status,
                ..Default::default()
            };
            // A label of the container is not UTF-8.
            let garble = b"\x0a\x05\x62\x03\x0a\x01\xff";
            return Ok(one_or_garbled(truth, asked, &status, garble));
        }
        // A cached list shows the state that the client's call asked for, so the model lets the container run even if
        // another call has stopped it.
        "StartContainer" => {
            for from in [CREATED, EXITED] {
                truth.go_on(from, RUNNING, |thing| thing.id == id);
            }
        }
        // The replies of all other RPCs may be empty.
        name => stop(truth, name, &id, |_| true),
    }
    if let Then::CompleteUrl(path) = asked.row.then {
        return Ok(vec![protobuf::with_string(
            &[],
            path,
            "http://127.0.0.1:1/exec",
        )]);
    }
    Ok(vec![Bytes::new()])
}

/// Stops the pod or container `id`, if `rpc` stops one and `which` accepts it.
fn stop(truth: &mut Truth, rpc: &str, id: &str, which: impl Fn(&Thing) -> bool) {
    if rpc == "StopPodSandbox" {
        truth.go_on(READY, NOT_READY, |thing| thing.id == id && which(thing));
    }
    let is_stopped = |thing: &Thing| match rpc {
        "StopPodSandbox" => is_in(thing, id),
        "StopContainer" => thing.id == id,
        _ => false,
    };
    for from in [CREATED, RUNNING] {
        truth.go_on(from, EXITED, |thing| is_stopped(thing) && which(thing));
    }
}

fn is_in(thing: &Thing, pod: &str) -> bool {
    thing.kind == Kind::Container && thing.pod == pod
}

/// The full id for an id or a prefix of an id.
fn find(truth: &Truth, backend: usize, kind: Kind, id: &str) -> Result<String, Status> {
    let mut hits = truth
        .listed_by(backend, kind)
        .filter(|thing| thing.id.starts_with(id));
    match (hits.next(), hits.next()) {
        (Some(thing), None) => Ok(thing.id.clone()),
        (None, _) => Err(Status::not_found(format!("{id:?}: no such id here"))),
        _ => Err(Status::unknown(format!(
            "Multiple IDs found with provided prefix: {id}"
        ))),
    }
}

fn all(truth: &mut Truth, asked: &Asked<'_>) -> Answer {
    let backend = asked.backend;
    match asked.row.name {
        "Version" => {
            let version = cri::VersionResponse {
                runtime_name: format!("runtime-{backend}"),
                ..Default::default()
            };
            // The name of the runtime is not UTF-8.
            return Ok(one_or_garbled(truth, asked, &version, b"\x12\x01\xff"));
        }
        "Status" => {
            let status = status(&truth.offers[backend]);
            // The name of a handler is not UTF-8.
            return Ok(one_or_garbled(
                truth,
                asked,
                &status,
                b"\x1a\x03\x0a\x01\xff",
            ));
        }
        "RuntimeConfig" => {
            // The configuration of Linux is cut off.
            let config = cri::RuntimeConfigResponse::default();
            return Ok(one_or_garbled(truth, asked, &config, b"\x0a\x02\x08"));
        }
        "UpdateRuntimeConfig" => truth.health[backend].config = asked.message.to_vec(),
        "ImageFsInfo" => {
            // The mount point of a file system is not UTF-8.
            let garble = b"\x0a\x05\x12\x03\x0a\x01\xff";
            return Ok(one_or_garbled(truth, asked, &image_fs(backend), garble));
        }
        _ => {}
    }
    if !matches!(
        asked.row.goes,
        Goes::All(
            _,
            Merge::Items(Items {
                join: Join::Concat,
                ..
            }) | Merge::Streamed(..)
        )
    ) {
        return Ok(vec![Bytes::new()]);
    }
    let mut items = items(truth, asked);
    // containerd lists items in a different order each time.
    let first = truth.seen.len() % items.len().max(1);
    items.rotate_left(first);
    if let (Some(garbled), Some(item)) = (truth.health[backend].garbles, items.last_mut()) {
        *item = garble(asked.row, item, garbled);
        asked.garbled.set(true);
    }
    if asked.row.streams() {
        return Ok(items.chunks(2).map(|some| some.concat().into()).collect());
    }
    Ok(vec![items.concat().into()])
}

/// Encodes a message. If the runtime garbles its replies, appends these bytes, which no client can decode.
fn one_or_garbled(
    truth: &Truth,
    asked: &Asked<'_>,
    message: &impl Message,
    garble: &[u8],
) -> Vec<Bytes> {
    let mut messages = one(message);
    if truth.health[asked.backend].garbles.is_some() {
        asked.garbled.set(true);
        messages[0] = [&messages[0][..], garble].concat().into();
    }
    messages
}

/// The items of a list, each encoded as field 1 of the reply.
fn items(truth: &Truth, asked: &Asked<'_>) -> Vec<Vec<u8>> {
    let name = asked.row.name;
    let kind = if name.contains("Container") {
        Kind::Container
    } else {
        Kind::Pod
    };
    let filter = Filter::read(asked.row, asked.message);
    let now = truth.moment();
    let claimed = truth.claimed_by(asked.backend, kind);
    let listed = truth
        .listed_by(asked.backend, kind)
        .chain(&claimed)
        .filter(|thing| filter.must_want(thing, now));
    let imitates = truth.health[asked.backend].imitates;
    let created_at = |thing: &Thing| {
        let mut copies = thing.copies.iter();
        let odd = copies.any(|copy| copy.at == asked.backend && copy.odd);
        match thing.kind {
            Kind::Pod if imitates || thing.poses => i64::MAX,
            _ => i64::from(odd),
        }
    };
    let item = |thing: &Thing| match (name.contains("Stats"), name.contains("Metrics"), kind) {
        (true, _, Kind::Pod) => pod_stats(thing),
        (true, _, Kind::Container) => container_stats(thing),
        (_, true, _) => protobuf::with_string(&[], &[1, 1], &thing.id).to_vec(),
        (_, _, Kind::Pod) => cri::ListPodSandboxResponse {
            items: vec![pod(thing, created_at(thing))],
        }
        .encode_to_vec(),
        (_, _, Kind::Container) => cri::ListContainersResponse {
            containers: vec![container(thing, created_at(thing))],
        }
        .encode_to_vec(),
    };
    listed.map(item).collect()
}

/// Damages an item of a list. The damage is in the pod or container itself, or in the attributes of its stats.
fn garble(row: &Row, item: &[u8], garbled: Garbled) -> Vec<u8> {
    let is_of_pods = !row.name.contains("Container");
    // The numbers of `labels` and `metadata` in pods and containers, and of both in the attributes of stats.
    let (labels, metadata) = match (row.is_list(), is_of_pods) {
        (true, true) => (5, 2),
        (true, false) => (8, 3),
        (false, _) => (3, 2),
    };
    let mut damage = BytesMut::new();
    let mut lacks = None;
    match garbled {
        Garbled::Label => protobuf::put_bytes(&mut damage, labels, b"\x0a\x01\xff"),
        Garbled::CutLabel => protobuf::put_bytes(&mut damage, labels, b"\x0a\x05a"),
        Garbled::CutMetadata => protobuf::put_bytes(&mut damage, metadata, b"\x0a\x7f"),
        Garbled::NoMetadata if row.is_list() => lacks = Some(metadata),
        Garbled::NoMetadata => lacks = Some(1),
        Garbled::OddLabels => protobuf::put_varint(&mut damage, labels, 0),
    }
    if row.name.contains("Metrics") {
        // Metrics have no labels: the id of the pod is not UTF-8.
        damage.clear();
        protobuf::put_bytes(&mut damage, 1, b"\xff");
        lacks = None;
    } else if row.is_stats() && lacks.is_none() {
        let attributes = damage.split();
        protobuf::put_bytes(&mut damage, 1, &attributes);
    }
    let inner = protobuf::bytes(item, &[1]).unwrap();
    let kept = protobuf::fields(inner)
        .map(Result::unwrap)
        .filter(|field| Some(field.number) != lacks);
    let inner: Vec<u8> = kept.flat_map(|field| field.raw.to_vec()).collect();
    let mut list = BytesMut::new();
    protobuf::put_bytes(&mut list, 1, &[&inner[..], &damage].concat());
    list.to_vec()
}

fn pod_stats(pod: &Thing) -> Vec<u8> {
    let attributes = cri::PodSandboxAttributes {
        id: pod.id.clone(),
        labels: pod.labels(),
        ..Default::default()
    };
    let stats = cri::PodSandboxStats {
        attributes: Some(attributes),
        linux: Some(cri::LinuxPodSandboxStats::default()),
        ..Default::default()
    };
    cri::ListPodSandboxStatsResponse { stats: vec![stats] }.encode_to_vec()
}

fn container_stats(container: &Thing) -> Vec<u8> {
    let attributes = cri::ContainerAttributes {
        id: container.id.clone(),
        labels: container.labels(),
        metadata: Some(cri::ContainerMetadata::default()),
        ..Default::default()
    };
    let stats = cri::ContainerStats {
        attributes: Some(attributes),
        ..Default::default()
    };
    cri::ListContainerStatsResponse { stats: vec![stats] }.encode_to_vec()
}

fn pod(thing: &Thing, created_at: i64) -> cri::PodSandbox {
    cri::PodSandbox {
        id: thing.id.clone(),
        metadata: Some(cri::PodSandboxMetadata {
            name: thing.name.clone(),
            uid: thing.uid.clone(),
            ..Default::default()
        }),
        state: thing.state(),
        created_at,
        labels: thing.labels(),
        annotations: annotations(&thing.uid),
        runtime_handler: thing.handler.clone(),
    }
}

fn container(thing: &Thing, created_at: i64) -> cri::Container {
    cri::Container {
        metadata: Some(cri::ContainerMetadata::default()),
        created_at,
        id: thing.id.clone(),
        pod_sandbox_id: thing.pod.clone(),
        state: thing.state(),
        labels: thing.labels(),
        ..Default::default()
    }
}

/// A `ContainerEventResponse` of this kind about `pod`.
pub fn event(pod: &Thing, kind: u64) -> Bytes {
    let status = cri::PodSandboxStatus {
        id: pod.id.clone(),
        metadata: Some(cri::PodSandboxMetadata::default()),
        ..Default::default()
    };
    let event = cri::ContainerEventResponse {
        container_id: pod.id.clone(),
        container_event_type: i32::try_from(kind).unwrap(),
        pod_sandbox_status: Some(status),
        ..Default::default()
    };
    event.encode_to_vec().into()
}

fn status(offers: &Offers) -> cri::StatusResponse {
    let condition = |kind: &str| cri::RuntimeCondition {
        r#type: kind.to_owned(),
        status: true,
        ..Default::default()
    };
    let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
    cri::StatusResponse {
        status: Some(cri::RuntimeStatus { conditions }),
        runtime_handlers: offers.shown().map(handler).collect(),
        ..Default::default()
    }
}

fn handler(name: &str) -> cri::RuntimeHandler {
    cri::RuntimeHandler {
        name: name.to_owned(),
        ..Default::default()
    }
}

fn image_fs(backend: usize) -> cri::ImageFsInfoResponse {
    let mountpoint = format!("/var/lib/runtime-{backend}");
    let usage = cri::FilesystemUsage {
        fs_id: Some(cri::FilesystemIdentifier { mountpoint }),
        used_bytes: Some(cri::UInt64Value::default()),
        ..Default::default()
    };
    cri::ImageFsInfoResponse {
        image_filesystems: vec![usage],
        ..Default::default()
    }
}

fn image(truth: &mut Truth, asked: &Asked<'_>) -> Answer {
    let backend = asked.backend;
    let image = match asked.row.name {
        "ListImages" | "StreamImages" => {
            // The id of an image is not UTF-8.
            let garble = b"\x0a\x03\x0a\x01\xff";
            return Ok(one_or_garbled(
                truth,
                asked,
                &images(truth, backend),
                garble,
            ));
        }
        "PullSecurityProfile" => return Ok(vec![Bytes::new()]),
        _ => asked.string(&[1, 1]),
    };
    match asked.row.name {
        "PullImage" => {
            if !truth.has_image(backend, &image) {
                truth.images.push(Stored {
                    backend,
                    image: image.clone(),
                    gone: None,
                    pulled: true,
                    shown: None,
                });
            }
            Ok(one(&cri::PullImageResponse { image_ref: image }))
        }
        "RemoveImage" => {
            let now = truth.tick();
            for stored in truth
                .images
                .iter_mut()
                .filter(|it| it.backend == backend && it.image == image)
            {
                stored.gone = stored.gone.or(Some(now));
            }
            Ok(vec![Bytes::new()])
        }
        _ => {
            let image = truth.has_image(backend, &image).then(|| of_id(image));
            let status = cri::ImageStatusResponse {
                image,
                ..Default::default()
            };
            // A tag of the image is not UTF-8.
            let garble = b"\x0a\x03\x12\x01\xff";
            Ok(one_or_garbled(truth, asked, &status, garble))
        }
    }
}

fn images(truth: &Truth, backend: usize) -> cri::ListImagesResponse {
    let stored = truth
        .images
        .iter()
        .filter(|it| it.backend == backend && it.gone.is_none());
    cri::ListImagesResponse {
        images: stored.map(|it| of_id(it.image.clone())).collect(),
    }
}

fn of_id(id: String) -> cri::Image {
    cri::Image {
        id,
        ..Default::default()
    }
}

fn one(message: &impl Message) -> Vec<Bytes> {
    vec![message.encode_to_vec().into()]
}
