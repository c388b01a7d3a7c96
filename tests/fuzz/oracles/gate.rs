//! The gate, compared with what clients can decode: a merge of messages that pass is a message that they can decode.

use arbitrary::Unstructured;
use bytes::Bytes;
use criswitch::gate::Readable;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::fields::{LISTED_CONTAINERS, LISTED_IMAGES};
use criswitch_cri::rpc::{self, Kind, List, filter};

use super::messages;

/// A list, the name of its reply, and whether clients can decode such a reply.
type Reply = (List, &'static str, fn(&[u8]) -> bool);

const REPLIES: &[Reply] = &[
    (List::Pods, "ListPodSandboxResponse", |reply| {
        messages::decode::<cri::ListPodSandboxResponse>(reply).is_some()
    }),
    (List::Containers, "ListContainersResponse", |reply| {
        messages::decode::<cri::ListContainersResponse>(reply).is_some()
    }),
    (List::Images, "ListImagesResponse", |reply| {
        messages::decode::<cri::ListImagesResponse>(reply).is_some()
    }),
    (
        List::ContainerStats,
        "ListContainerStatsResponse",
        |reply| messages::decode::<cri::ListContainerStatsResponse>(reply).is_some(),
    ),
    (List::PodStats, "ListPodSandboxStatsResponse", |reply| {
        messages::decode::<cri::ListPodSandboxStatsResponse>(reply).is_some()
    }),
    (List::PodMetrics, "ListPodSandboxMetricsResponse", |reply| {
        messages::decode::<cri::ListPodSandboxMetricsResponse>(reply).is_some()
    }),
    (
        List::MetricDescriptors,
        "ListMetricDescriptorsResponse",
        |reply| messages::decode::<cri::ListMetricDescriptorsResponse>(reply).is_some(),
    ),
];

/// The name of a message that is not a list, whether the gate accepts it, and whether clients can use such a message.
/// The kubelet reads some fields without checking that they are set.
type Other = (&'static str, fn(&Bytes) -> bool, fn(&[u8]) -> bool);

/// Whether the statuses have the fields that the kubelet reads.
fn can_use(pod: Option<cri::PodSandboxStatus>, containers: &[cri::ContainerStatus]) -> bool {
    pod.is_none_or(|pod| pod.metadata.is_some()) && containers.iter().all(|it| it.image.is_some())
}

const OTHERS: &[Other] = &[
    (
        "ContainerEventResponse",
        |event| Readable::event(event).is_ok(),
        |event| {
            messages::decode::<cri::ContainerEventResponse>(event)
                .is_some_and(|event| can_use(event.pod_sandbox_status, &event.containers_statuses))
        },
    ),
    (
        "PodSandboxStatusResponse",
        |status| Readable::item_status(Kind::Pod, status).is_ok(),
        |status| {
            messages::decode::<cri::PodSandboxStatusResponse>(status)
                .is_some_and(|reply| can_use(reply.status, &reply.containers_statuses))
        },
    ),
    (
        "ContainerStatusResponse",
        |status| Readable::item_status(Kind::Container, status).is_ok(),
        |status| {
            messages::decode::<cri::ContainerStatusResponse>(status)
                .is_some_and(|reply| can_use(None, reply.status.as_slice()))
        },
    ),
    (
        "ImageStatusResponse",
        |image| Readable::image(image).is_ok(),
        |image| messages::decode::<cri::ImageStatusResponse>(image).is_some(),
    ),
    (
        "StatusResponse",
        |status| Readable::status(status).is_ok(),
        |status| messages::decode::<cri::StatusResponse>(status).is_some(),
    ),
    (
        "ImageFsInfoResponse",
        |disks| Readable::disks(disks).is_ok(),
        |disks| {
            messages::decode::<cri::ImageFsInfoResponse>(disks).is_some_and(|disks| {
                let first = disks.image_filesystems.first();
                first.is_some_and(|disk| disk.used_bytes.is_some())
            })
        },
    ),
    (
        "ListSecurityProfilesResponse",
        |profiles| Readable::profiles(profiles).is_ok(),
        |profiles| messages::decode::<cri::ListSecurityProfilesResponse>(profiles).is_some(),
    ),
    (
        "VersionResponse",
        |version| Readable::version(version).is_ok(),
        |version| messages::decode::<cri::VersionResponse>(version).is_some(),
    ),
];

/// Edits a message that the gate has accepted, as criswitch does: drops items and containers, and renames handlers. The
/// gate must accept the edited message too.
fn edited(list: List, readable: Readable, dropped: &str) -> Readable {
    let left = filter::filter(list, &readable, &[], |id| id != dropped).unwrap_or(readable);
    let inside = filter::without_nested_containers(list, &left, |id| id != dropped);
    let left = inside.ok().flatten().unwrap_or(left);
    let handlers = match list {
        List::Containers => LISTED_CONTAINERS.images,
        List::Images => LISTED_IMAGES.images,
        _ => &[],
    };
    let left = rpc::specs_renamed(&left, handlers, |_| Some("another")).unwrap_or(left);
    let passed = Readable::list(list, &left).map(Bytes::from);
    assert_eq!(passed.as_ref(), Ok(&*left), "{list:?}");
    left
}

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let (list, name, clients_decode) = u.choose(REPLIES)?;
    let mut merged = Vec::new();
    let (mut last, mut passed) = (Readable::default(), Vec::new());
    for _ in 0..u.int_in_range(1..=3)? {
        let reply = Bytes::from([&last, &messages::message(u, name)?[..]].concat());
        let read = Readable::list(*list, &reply);
        // A read that reuses the items of the last list must have the same result as a complete read.
        assert_eq!(
            last.next_list(*list, &reply).map(Bytes::from),
            read.clone().map(Bytes::from)
        );
        if let Ok(readable) = read {
            last = readable.clone();
            assert!(clients_decode(&readable), "{list:?}: {reply:?}");
            merged.extend_from_slice(&readable);
            passed.push(readable);
        }
    }
    assert!(clients_decode(&merged), "{list:?}: {merged:?}");
    for (name, passes, clients_can_use) in OTHERS {
        let message = Bytes::from(messages::message(u, name)?);
        if passes(&message) {
            assert!(clients_can_use(&message), "{name}: {message:?}");
        }
    }
    let dropped = messages::text(u)?;
    for readable in passed {
        let edited = edited(*list, readable, &dropped);
        assert!(clients_decode(&edited), "{list:?}: {edited:?}");
    }
    Ok(())
}
