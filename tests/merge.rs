//! Merged replies whose encoding is valid protobuf, but unlike that of any known runtime.

use bytes::Bytes;
use criswitch::dispatch::fanout::merge;
use criswitch::gate::Readable;
use criswitch_cri::codec::cri;
use criswitch_cri::rpc::List;
use criswitch_cri::rpc::features::{Feature, OF_RUNTIME};
use criswitch_cri::rpc::filter::filter;
use prost::Message;

fn image(tag: &[u8]) -> Bytes {
    let image = [&[1 << 3 | 2, 1, b'i'], tag].concat();
    Bytes::from([&[1 << 3 | 2, image.len() as u8], image.as_slice()].concat())
}

#[test]
fn a_tag_whose_length_takes_two_bytes_is_the_same_tag() {
    let short = image(&[2 << 3 | 2, 1, b't']);
    let long = image(&[2 << 3 | 2, 0x81, 0, b't']);
    let lists = [short, long].map(|list| Readable::list(List::Images, &list).unwrap());
    let merged = merge::images(&lists).unwrap();
    let merged = cri::ListImagesResponse::decode(merged).unwrap();
    assert_eq!(merged.images.len(), 1);
    assert_eq!(merged.images[0].repo_tags, ["t"]);
}

#[test]
fn a_feature_that_is_not_a_bool_is_dropped_and_the_others_stay() {
    let text = [9 << 3 | 2, 1, b'x'];
    let features = Bytes::from([&[1 << 3, 1], text.as_slice()].concat());
    let common = merge::common_features(&[features.clone(), features], OF_RUNTIME).unwrap();
    assert_eq!(common.as_ref(), [1 << 3, 1]);
}

/// Field 9 is a feature of a later version of the CRI.
#[test]
fn a_feature_is_common_if_all_backends_have_it_whether_it_is_known_or_not() {
    let features = |numbers: &[u8]| -> Bytes {
        let fields = numbers.iter().flat_map(|number| [number << 3, 1]);
        fields.collect()
    };
    let common = |all: &[&[u8]]| {
        let all: Vec<_> = all.iter().map(|numbers| features(numbers)).collect();
        merge::common_features(&all, OF_RUNTIME).unwrap()
    };
    assert_eq!(common(&[&[5, 9], &[9, 5]]), features(&[5, 9]));
    assert_eq!(common(&[&[1, 5, 9], &[1]]), features(&[1]));
}

/// The table has all RPCs of all features of the CRI. So this test has a feature for an RPC that is not in the table.
#[test]
fn a_feature_that_stands_for_rpcs_is_dropped_unless_criswitch_has_the_rpcs() {
    let with = |number: u32, rpcs: &'static [&'static str]| Feature {
        name: "x",
        number,
        rpcs,
    };
    let known = [
        with(1, &[]),
        with(2, &["PullImage"]),
        with(3, &["PullImage", "PullNothing"]),
    ];
    let features = Bytes::from_static(&[1 << 3, 1, 2 << 3, 1, 3 << 3, 1]);
    let common = merge::common_features(&[features.clone(), features], &known).unwrap();
    assert_eq!(common.as_ref(), [1 << 3, 1, 2 << 3, 1]);
}

#[test]
fn an_image_whose_id_is_sent_twice_is_found_by_the_last_one() {
    let list = image(&[1 << 3 | 2, 1, b'j']);
    let asked = |id: &str| {
        let image = cri::ImageSpec {
            image: id.to_owned(),
            ..Default::default()
        };
        let wanted = Some(cri::ImageFilter { image: Some(image) });
        let request = cri::ListImagesRequest { filter: wanted }.encode_to_vec();
        filter(List::Images, &list, &request, |_| true).unwrap()
    };
    assert_eq!(asked("j"), list);
    assert!(asked("i").is_empty());
}

#[test]
fn a_state_that_is_sent_in_64_bits_is_read_in_32() {
    let pod = [3 << 3, 0x81, 0x80, 0x80, 0x80, 0x10];
    let list = Bytes::from([[1 << 3 | 2, 6].as_slice(), &pod].concat());
    let request = [1 << 3 | 2, 4, 2 << 3 | 2, 2, 1 << 3, 1];
    let filtered = filter(List::Pods, &list, &request, |_| true).unwrap();
    assert_eq!(filtered, list);
}
