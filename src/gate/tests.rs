use super::*;
use crate::ownership::MOST;

/// A list with one item, which has `id` in field 1, and then these bytes.
fn list(id: &str, more: &[u8]) -> Bytes {
    let mut item = protobuf::with_string(&[], &[1], id).to_vec();
    item.extend_from_slice(more);
    let mut message = BytesMut::new();
    protobuf::put_bytes(&mut message, ITEMS, &item);
    message.freeze()
}

#[test]
fn an_event_has_a_limited_number_of_containers() {
    let containers = |count| {
        let status = cri::ContainerStatus {
            image: Some(cri::ImageSpec::default()),
            ..Default::default()
        };
        let event = cri::ContainerEventResponse {
            containers_statuses: vec![status; count],
            ..Default::default()
        };
        Readable::event(&event.encode_to_vec().into())
    };
    assert!(containers(MOST_CONTAINERS).is_ok());
    let fault = containers(MOST_CONTAINERS + 1).unwrap_err();
    assert!(
        fault.ends_with("of 4097 containers; the limit is 4096"),
        "{fault}"
    );
}

#[test]
fn an_item_that_clients_cannot_decode_is_found_however_deep_the_fault_is() {
    let faults: [(List, &[u8]); 4] = [
        (List::Pods, b"\x2a\x0b\x0a\x03key\x12\x04caf\xe9"),
        (List::Containers, b"\x42\x0b\x0a\x04caf\xe9\x12\x03val"),
        (List::Pods, b"\x12\x04\x0a\x7fab"),
        (List::Images, b"\x12\x04caf\xe9"),
    ];
    for (kind, fault) in faults {
        let text = Readable::list(kind, &list("the-id", fault)).unwrap_err();
        assert!(text.contains("the item \"the-id\""), "{kind:?}: {text}");
    }
    let cut = list("the-id", b"\x12\x04\x0a\x02ab").slice(..9);
    assert!(Readable::list(List::Pods, &cut).is_err());
}

#[test]
fn an_item_that_the_last_list_lacks_is_read() {
    let pods = |pods: &[Bytes]| Bytes::from(pods.concat());
    let [a, b, broken] = [
        list("a", b"\x12\x00"),
        list("b", b"\x12\x00"),
        list("c", b"\x12\x04caf\xe9"),
    ];
    let last = Readable::list(List::Pods, &pods(&[a.clone(), b.clone()])).unwrap();
    let next = last.next_list(List::Pods, &pods(&[b, a.clone()]));
    assert!(last.has_items_of(&next.unwrap()));
    let fault = last.next_list(List::Pods, &pods(&[a.clone(), broken]));
    assert!(fault.unwrap_err().contains("the item \"c\""));
    // An item of another type is read, even if it has the same bytes.
    assert!(last.next_list(List::Containers, &a).is_err());
}

#[test]
fn fields_of_a_later_version_are_no_fault_whatever_they_contain() {
    let kinds: [(List, &[u8]); 3] = [
        (List::Pods, b"\x12\x00\xc2\xb8\x02\x04caf\xe9"),
        (List::Containers, b"\x1a\x00\xc2\xb8\x02\x04caf\xe9"),
        (List::Images, b"\xc2\xb8\x02\x04caf\xe9"),
    ];
    for (kind, newer) in kinds {
        let newer = list("the-id", newer);
        assert!(Readable::list(kind, &newer).is_ok(), "{kind:?}");
    }
    let disks = |message: &'static [u8]| Readable::disks(&Bytes::from_static(message));
    assert!(disks(b"\x0a\x02\x1a\x00\xc2\xb8\x02\x04caf\xe9").is_ok());
    assert!(disks(b"\x0a\x04caf\xe9").is_err());
}

#[test]
fn an_image_fs_info_without_a_file_system_of_images_is_a_fault() {
    for only_of_containers in [&b""[..], b"\x12\x00"] {
        let fault = disks(only_of_containers).unwrap_err();
        assert!(fault.contains("no image filesystem"), "{fault}");
    }
}

#[test]
fn an_item_without_what_the_kubelet_reads_unasked_is_a_fault() {
    let kinds = [
        (List::Pods, "metadata"),
        (List::Containers, "metadata"),
        (List::ContainerStats, "attributes"),
        (List::PodStats, "attributes"),
    ];
    for (kind, field) in kinds {
        let items = match kind {
            List::Pods | List::Containers => list("the-id", b""),
            _ => Bytes::from_static(b"\x0a\x00"),
        };
        let fault = Readable::list(kind, &items).unwrap_err();
        assert!(fault.ends_with(&format!("has no {field}")), "{fault}");
    }
    for (kind, metadata) in [(List::Pods, b"\x12\x00"), (List::Containers, b"\x1a\x00")] {
        let fault = Readable::list(kind, &list("", metadata)).unwrap_err();
        assert!(fault.ends_with("has no id"), "{fault}");
    }
}

#[test]
fn stats_file_systems_and_events_have_what_the_kubelet_reads_unasked() {
    let attributes = |metadata: Option<cri::ContainerMetadata>| {
        let id = "the-id".to_owned();
        let attributes = cri::ContainerAttributes {
            id,
            metadata,
            ..cri::ContainerAttributes::default()
        };
        let attributes = Some(attributes);
        cri::ContainerStats {
            attributes,
            ..cri::ContainerStats::default()
        }
    };
    let whole = attributes(Some(cri::ContainerMetadata::default()));
    let pod = |linux: Option<Vec<cri::ContainerStats>>| cri::PodSandboxStats {
        attributes: Some(cri::PodSandboxAttributes::default()),
        linux: linux.map(|containers| cri::LinuxPodSandboxStats {
            containers,
            ..cri::LinuxPodSandboxStats::default()
        }),
        ..cri::PodSandboxStats::default()
    };
    let fault = |kind, item: Vec<u8>| {
        let mut list = bytes::BytesMut::new();
        protobuf::put_bytes(&mut list, 1, &item);
        Readable::list(kind, &list.freeze()).err()
    };
    let on_windows = cri::PodSandboxStats {
        windows: Some(cri::WindowsPodSandboxStats {
            containers: vec![cri::WindowsContainerStats::default()],
            ..cri::WindowsPodSandboxStats::default()
        }),
        ..pod(Some(Vec::new()))
    };
    let sample = |value: Option<cri::UInt64Value>| cri::PodSandboxMetrics {
        metrics: vec![cri::Metric {
            value,
            ..cri::Metric::default()
        }],
        ..cri::PodSandboxMetrics::default()
    };
    let descriptor = |name: &str, keys: &[&str]| cri::MetricDescriptor {
        name: name.to_owned(),
        label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..cri::MetricDescriptor::default()
    };
    let value = Some(cri::UInt64Value::default());
    assert_eq!(fault(List::PodMetrics, sample(value).encode_to_vec()), None);
    let described = descriptor("m", &["a", "b"]).encode_to_vec();
    assert_eq!(fault(List::MetricDescriptors, described), None);
    assert_eq!(fault(List::ContainerStats, whole.encode_to_vec()), None);
    assert_eq!(
        fault(List::PodStats, pod(Some(vec![whole])).encode_to_vec()),
        None
    );
    for (kind, item, lack) in [
        (
            List::ContainerStats,
            attributes(None).encode_to_vec(),
            "metadata in its attributes",
        ),
        (
            List::PodStats,
            pod(None).encode_to_vec(),
            std::env::consts::OS,
        ),
        (
            List::PodMetrics,
            sample(None).encode_to_vec(),
            "value of a metric",
        ),
        (
            List::MetricDescriptors,
            descriptor("", &[]).encode_to_vec(),
            "name",
        ),
        (
            List::MetricDescriptors,
            descriptor("m", &["a", "a"]).encode_to_vec(),
            "label keys that Prometheus accepts",
        ),
        (
            List::MetricDescriptors,
            descriptor("m", &["__name__"]).encode_to_vec(),
            "label keys that Prometheus accepts",
        ),
        (
            List::PodStats,
            pod(Some(vec![attributes(None)])).encode_to_vec(),
            "attributes of a container",
        ),
        (
            List::PodStats,
            on_windows.encode_to_vec(),
            "attributes of a container",
        ),
    ] {
        let fault = fault(kind, item).unwrap();
        assert!(fault.ends_with(&format!("has no {lack}")), "{fault}");
    }
    let fault = disks(b"\x0a\x00").unwrap_err();
    assert!(fault.contains("no used_bytes"), "{fault}");
    let pod_without_metadata = b"\x22\x00";
    let container_without_image = b"\x2a\x00";
    for message in [pod_without_metadata, container_without_image] {
        assert!(event(message).is_err(), "{message:?}");
    }
}

#[test]
fn a_status_an_image_and_an_event_are_read_whole() {
    // A handler whose features are cut off, and a handler whose name is not UTF-8.
    for handler in [
        &b"\x1a\x07\x0a\x01a\x12\x02\x08"[..],
        b"\x1a\x06\x0a\x04caf\xe9",
    ] {
        assert!(status(handler).is_err(), "{handler:?}");
    }
    assert_eq!(status(b"\x1a\x03\x0a\x01a"), Ok(()));
    assert_eq!(status(&b"\x1a\x00".repeat(MOST_HANDLERS)), Ok(()));
    assert!(status(&b"\x1a\x00".repeat(MOST_HANDLERS + 1)).is_err());
    let image = |message: &'static [u8]| Readable::image(&Bytes::from_static(message));
    // An image whose tag is not UTF-8, and one whose annotation is cut off.
    for broken in [
        &b"\x0a\x06\x12\x04caf\xe9"[..],
        b"\x0a\x06\x3a\x04\x12\x02\x0a\x05",
    ] {
        assert!(image(broken).is_err(), "{broken:?}");
    }
    assert!(image(b"\x0a\x03\x0a\x01a").is_ok());
    let event = |message: &'static [u8]| Readable::event(&Bytes::from_static(message));
    assert!(event(b"\x0a\x04caf\xe9").is_err());
    assert!(event(b"\x0a\x01a").is_ok());
}

#[test]
fn counts_that_a_backend_chooses_have_limits() {
    let pairs = |count: usize| (0..count).map(|key| (key.to_string(), String::new()));
    let pod = |count| cri::PodSandbox {
        id: "the-id".to_owned(),
        metadata: Some(cri::PodSandboxMetadata::default()),
        labels: pairs(count).collect(),
        ..Default::default()
    };
    let item = |list, item: Vec<u8>| Readable::item(list, &item).map(drop);
    assert_eq!(item(List::Pods, pod(4096).encode_to_vec()), Ok(()));
    let fault = item(List::Pods, pod(4097).encode_to_vec()).unwrap_err();
    assert!(
        fault.ends_with("has maps with 4097 pairs; the limit is 4096"),
        "{fault}"
    );
    let keys = |count| cri::MetricDescriptor {
        name: "m".to_owned(),
        label_keys: (0..count).map(|key| format!("k{key}")).collect(),
        ..Default::default()
    };
    let descriptors = List::MetricDescriptors;
    assert_eq!(item(descriptors, keys(64).encode_to_vec()), Ok(()));
    let fault = item(descriptors, keys(65).encode_to_vec()).unwrap_err();
    assert!(
        fault.ends_with("has 65 label keys; the limit is 64"),
        "{fault}"
    );
    let many = |count| Readable::list(descriptors, &b"\x0a\x03\x0a\x01m".repeat(count).into());
    assert!(many(MOST_DESCRIPTORS).is_ok());
    assert!(many(MOST_DESCRIPTORS + 1).is_err());
}

/// A decoded value takes far more memory than its two bytes.
#[test]
fn a_message_with_too_many_values_is_not_decoded() {
    let many = b"\x0a\x00".repeat(MOST + 1);
    let fault = Form::Disks.fault(&many).unwrap();
    assert!(
        fault.contains("lists with 131073 values; the limit is 131072"),
        "{fault}"
    );
    // Tags of one image, and samples of one pod.
    for (list, value) in [(List::Images, b"\x12\x00"), (List::PodMetrics, b"\x12\x00")] {
        let fault = Readable::item(list, &value.repeat(MOST + 1)).unwrap_err();
        assert!(fault.contains("has lists with 131073 values"), "{fault}");
    }
}

#[test]
fn the_containers_in_the_stats_of_all_pods_count_together() {
    // Two pods, each with the metrics of many containers.
    let of_pod = b"\x1a\x00".repeat(MOST / 2 + 1);
    let mut metrics = BytesMut::new();
    protobuf::put_bytes(&mut metrics, ITEMS, &of_pod);
    let half = metrics.clone().freeze();
    assert!(Readable::list(List::PodMetrics, &half).is_ok());
    protobuf::put_bytes(&mut metrics, ITEMS, &of_pod);
    let fault = Readable::list(List::PodMetrics, &metrics.freeze()).unwrap_err();
    assert_eq!(fault, crate::ownership::Unlearned::TooMany.to_string());
}

/// prost reads the number of a map with a wrong wire type as a length.
#[test]
fn a_map_of_a_wrong_wire_type_is_a_fault() {
    let wrong = list("the-id", b"\x12\x00\x28\x00");
    assert!(cri::ListPodSandboxResponse::decode(wrong.clone()).is_ok());
    let fault = Readable::list(List::Pods, &wrong).unwrap_err();
    assert!(
        fault.contains("has a map that clients cannot decode"),
        "{fault}"
    );
    let status = Bytes::from_static(b"\x10\x00");
    assert!(cri::StatusResponse::decode(status.clone()).is_ok());
    assert!(Readable::status(&status).is_err());
}
