//! What lists teach and what they do not, beyond what the fuzz targets' model of the owners says.

use super::*;

/// A list of containers, `(id, pod)`.
fn containers(list: &[(&str, &str)]) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    for (id, pod) in list {
        let item = wire::with_string(&wire::with_string(&[], &[1], id), &[2], pod);
        wire::put_bytes(&mut out, 1, &item);
    }
    out.to_vec()
}

fn with_pods(pods: &[(&str, BackendId)]) -> Owners {
    let mut owners = Owners::default();
    for (id, backend) in pods {
        owners.own_pod(id, *backend, PodNames::default(), owners.mark());
    }
    owners
}

#[test]
fn of_a_list_that_breaks_off_nothing_is_learned_and_names_that_are_too_long_are_none() {
    let mut owners = Owners::default();
    let longest = "x".repeat(LONGEST_ID);
    let too_long = longest.clone() + "x";
    let mut broken = containers(&[("whole", "pod")]);
    broken.push(0x0a);
    let fault = Unlearned::Malformed(Malformed::Encoding);
    for (list, refused) in [
        (broken, fault),
        (
            containers(&[("one", ""), (&too_long, "")]),
            Unlearned::LongId,
        ),
    ] {
        let learned = owners.learn(Kind::Container, 0, &list, owners.mark());
        assert_eq!(learned, Err(refused));
        assert_eq!(owners.count(0), (0, 0));
    }
    let listed = containers(&[(&longest, &longest), ("second", &too_long)]);
    let learned = owners.learn(Kind::Container, 0, &listed, owners.mark());
    assert_eq!(learned, Ok(Vec::new()));
    assert_eq!(owners.containers_of(&longest), [longest]);
    assert_eq!(owners.containers_of(""), ["second"]);
}

#[test]
fn a_pod_that_a_whole_list_lacks_takes_those_containers_along_that_were_not_seen_later() {
    let mut owners = with_pods(&[("gone", 0), ("stays", 0), ("others", 1)]);
    let of_both = [("first", "gone"), ("second", "stays"), ("later", "gone")];
    let listed = containers(&of_both);
    owners
        .learn(Kind::Container, 0, &listed, owners.mark())
        .unwrap();
    owners.own_container("third", 1, "gone", owners.mark());
    let asked = owners.mark();
    let later = containers(&of_both[2..]);
    owners.learn(Kind::Container, 0, &later, asked).unwrap();
    owners.own_pod("stays", 0, PodNames::default(), asked);
    assert!(!owners.has_stray(0));
    owners.settle(Kind::Pod, 0, asked);
    assert_eq!(owners.find(Kind::Pod, "gone"), None);
    assert_eq!(owners.find(Kind::Container, "first"), None);
    let left = [("second", 0), ("later", 0), ("third", 1)];
    for (id, owner) in left {
        let found = owners.find(Kind::Container, id);
        assert_eq!(found, Some(Owner::One(owner)), "{id}");
    }
    assert!(owners.has_stray(0), "later's pod is not known");
}
