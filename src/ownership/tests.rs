//! Tests of learning from lists, for cases that the fuzz targets' model of the owners does not cover.

use bytes::Bytes;
use criswitch_cri::codec::protobuf::{self, Malformed};
use criswitch_cri::rpc::UID_LABEL;

use super::ids::{A, B, C, D};
use super::*;

/// Encodes a list of containers. `list` has the id and the pod of each container.
fn containers(list: &[(&str, &str)]) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    for (id, pod) in list {
        let item = protobuf::with_string(&protobuf::with_string(&[], &[1], id), &[2], pod);
        protobuf::put_bytes(&mut out, 1, &item);
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
fn a_broken_list_teaches_nothing_and_a_name_that_is_too_long_becomes_empty() {
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
        let learned = owners.learn(Kind::Container, A, &list, owners.mark());
        assert_eq!(learned, Err(refused));
        assert_eq!(owners.count(A), (0, 0));
    }
    let listed = containers(&[(&longest, &longest), ("second", &too_long)]);
    let learned = owners.learn(Kind::Container, A, &listed, owners.mark());
    let expected = LearnedList {
        new: 2,
        changes: true,
        changed: Changed::from([A]),
        ..LearnedList::default()
    };
    assert_eq!(learned, Ok(expected));
    let by_pod = owners.containers.by_pod(A);
    assert_eq!(by_pod[&longest], [longest]);
    assert_eq!(by_pod[""], ["second"]);
    assert!(owners.containers.by_pod(B).is_empty());
}

#[test]
fn a_pod_missing_from_a_whole_list_is_forgotten_with_its_containers_except_those_seen_later() {
    let mut owners = with_pods(&[("gone", A), ("stays", A), ("others", B)]);
    let of_both = [("first", "gone"), ("second", "stays"), ("later", "gone")];
    let listed = containers(&of_both);
    owners
        .learn(Kind::Container, A, &listed, owners.mark())
        .unwrap();
    owners.own_container("third", B, ("gone", None), owners.mark());
    let asked = owners.mark();
    let later = containers(&of_both[2..]);
    owners.learn(Kind::Container, A, &later, asked).unwrap();
    owners.own_pod("stays", A, PodNames::default(), asked);
    assert!(!owners.has_stray(A));
    owners.forget_missing(Kind::Pod, A, asked);
    assert_eq!(owners.find(Kind::Pod, "gone"), None);
    assert_eq!(owners.find(Kind::Container, "first"), None);
    let left = [("second", A), ("later", A), ("third", B)];
    for (id, owner) in left {
        let found = owners.find(Kind::Container, id);
        assert_eq!(found, Some(owner), "{id}");
    }
    assert!(!owners.has_stray(A), "a list of pods lacks later's pod");
    assert_eq!(owners.orphans(A), ["later"]);
    let listed = containers(&[("last", "unknown")]);
    owners
        .learn(Kind::Container, A, &listed, owners.mark())
        .unwrap();
    assert!(owners.has_stray(A), "no list of pods was requested since");
    owners.own_pod("unknown", B, PodNames::default(), owners.mark());
    assert!(!owners.has_stray(A), "B's lists have the pod");
}

/// Encodes a list of pods. `list` has the id and `created_at` of each pod.
fn pods(list: &[(&str, u64)]) -> Vec<u8> {
    let mut out = bytes::BytesMut::new();
    for (id, created_at) in list {
        let mut item = bytes::BytesMut::from(&*protobuf::with_string(&[], &[1], id));
        protobuf::put_varint(&mut item, 4, *created_at);
        protobuf::put_bytes(&mut out, 1, &item);
    }
    out.to_vec()
}

fn listed(owners: &mut Owners, backend: BackendId, list: &[u8]) -> LearnedList {
    let asked = owners.mark();
    owners.learn(Kind::Pod, backend, list, asked).unwrap()
}

#[test]
fn the_items_of_another_backend_are_dropped_from_a_list_and_reported_once() {
    let mut owners = with_pods(&[("web", A)]);
    let list = pods(&[("own", 1), ("web", 2), ("last", 3)]);
    let first = listed(&mut owners, B, &list);
    let claim = Claim {
        id: "web".to_owned(),
        owner: A,
    };
    assert_eq!(first.claims, [claim]);
    let own = owners.without_foreign_items(Kind::Pod, B, &Bytes::from(list.clone()), owners.mark());
    assert_eq!(own.unwrap().unwrap(), pods(&[("own", 1), ("last", 3)]));
    let second = listed(&mut owners, B, &list);
    assert_eq!((second.claims.len(), second.dropped), (0, 1));
    assert_eq!(owners.claims(B), 1);
    let asked = owners.mark();
    owners.forget_missing(Kind::Pod, B, asked);
    assert_eq!(owners.claims(B), 0, "it no longer lists the pod");
}

#[test]
fn an_item_that_one_list_repeats_is_dropped() {
    let mut owners = Owners::default();
    let list = pods(&[("web", 1), ("web", 1)]);
    assert_eq!(listed(&mut owners, A, &list).dropped, 1);
    let own = owners.without_foreign_items(Kind::Pod, A, &Bytes::from(list.clone()), owners.mark());
    assert_eq!(own.unwrap().unwrap(), pods(&[("web", 1)]));
}

#[test]
fn the_first_backend_that_lists_an_id_owns_it_until_its_list_lacks_the_id() {
    let mut owners = Owners::default();
    listed(&mut owners, A, &pods(&[("web", 1)]));
    listed(&mut owners, B, &pods(&[("web", 2)]));
    listed(&mut owners, A, &pods(&[("web", 3)]));
    assert_eq!(owners.find(Kind::Pod, "web"), Some(A));
    owners.forget_missing(Kind::Pod, A, owners.mark());
    assert_eq!(owners.find(Kind::Pod, "web"), Some(B));
    owners.forget_missing(Kind::Pod, B, owners.mark());
    assert_eq!(owners.find(Kind::Pod, "web"), None);
}

/// A clock that is set back gives a later pod an earlier time of creation.
#[test]
fn a_clock_set_back_changes_no_owner() {
    let mut owners = Owners::default();
    let names = || PodNames {
        uid: "uid".to_owned(),
        ..PodNames::default()
    };
    for (pod, backend) in [("first", A), ("second", B)] {
        let asked = owners.mark();
        owners.own_pod(pod, backend, names(), asked);
    }
    for (pod, backend, created_at) in [("first", A, 100), ("second", B, 1)] {
        listed(&mut owners, backend, &pods(&[(pod, created_at)]));
        assert_eq!(owners.find(Kind::Pod, pod), Some(backend));
    }
    let second = Named::One {
        backend: B,
        id: "second".to_owned(),
        created: true,
    };
    assert_eq!(
        owners
            .pods
            .find_by_name(|pod| pod.uid == "uid", |_, _| true),
        second
    );
}

#[test]
fn a_backend_creates_no_id_that_another_listed_before_the_call() {
    let mut owners = Owners::default();
    let asked = owners.mark();
    owners.forget_missing(Kind::Pod, A, asked);
    listed(&mut owners, A, &pods(&[("old", 1)]));
    let later = owners.mark();
    let names = PodNames::default;
    let claim = owners.own_pod("old", B, names(), later).claim.unwrap();
    assert_eq!((claim.owner, owners.find(Kind::Pod, "old")), (A, Some(A)));
    // Backend 0 may be a second socket of backend 1's runtime, and may list the pod before backend 1 answers the
    // create.
    let owned = owners.own_pod("old", B, names(), asked);
    assert_eq!((owned.claim, owned.changed), (None, Changed::from([A, B])));
    assert_eq!(owners.find(Kind::Pod, "old"), Some(B));
}

#[test]
fn the_items_of_a_backends_first_whole_list_count_as_older_than_any_call() {
    let mut owners = Owners::default();
    let asked = owners.mark();
    listed(&mut owners, A, &pods(&[("old", 1)]));
    owners.forget_missing(Kind::Pod, A, asked);
    let claim = owners.own_pod("old", B, PodNames::default(), asked);
    assert_eq!(claim.claim.unwrap().owner, A);
}

#[test]
fn a_backend_keeps_its_pod_though_another_backend_lists_the_pod_too() {
    let mut owners = with_pods(&[("created", A)]);
    for backend in [A, B] {
        listed(&mut owners, backend, &pods(&[("web", 1), ("created", 1)]));
    }
    assert_eq!((owners.count(A), owners.count(B)), ((2, 0), (0, 0)));
    assert_eq!(owners.counts(), [(A, (2, 0))].into());
    assert_eq!(Vec::from_iter(owners.shared()), [(A, B), (A, B)]);
}

#[test]
fn a_pod_that_its_owner_no_longer_lists_passes_to_a_backend_that_lists_it() {
    for create in [false, true] {
        let mut owners = Owners::default();
        if create {
            owners.own_pod("web", A, PodNames::default(), owners.mark());
        }
        listed(&mut owners, A, &pods(&[("web", 1)]));
        listed(&mut owners, B, &pods(&[("web", 1)]));
        let changed = owners.forget_missing(Kind::Pod, A, owners.mark());
        assert_eq!(changed, Changed::from([A, B]), "both are saved");
        assert_eq!(owners.find(Kind::Pod, "web"), Some(B));
        assert!(owners.pods.created_at(B).is_empty());
        assert_eq!(owners.forget(Kind::Pod, "web"), Changed::from([B]));
    }
}

#[test]
fn a_list_is_cut_by_the_owners_that_later_lists_have_shown() {
    let mut owners = with_pods(&[("web", A)]);
    let asked = owners.mark();
    let list = pods(&[("web", 1), ("own", 1)]);
    owners.learn(Kind::Pod, B, &list, asked).unwrap();
    let own = owners.without_foreign_items(Kind::Pod, B, &Bytes::from(list.clone()), asked);
    assert_eq!(own.unwrap().unwrap(), pods(&[("own", 1)]));
    owners.forget_missing(Kind::Pod, A, owners.mark());
    assert_eq!(
        owners.without_foreign_items(Kind::Pod, B, &Bytes::from(list.clone()), asked),
        Ok(None)
    );
}

#[test]
fn a_created_container_whose_label_has_another_uid_than_its_pod_is_found_by_the_label() {
    let mut owners = Owners::default();
    for (pod, backend, uid) in [("one", A, "U"), ("two", B, "V")] {
        let names = PodNames {
            uid: uid.to_owned(),
            ..PodNames::default()
        };
        owners.own_pod(pod, backend, names, owners.mark());
    }
    assert_eq!(owners.with_uid("U"), [A]);
    owners.own_container("odd", B, ("two", Some("U")), owners.mark());
    assert_eq!(owners.with_uid("U"), [A, B]);
}

#[test]
fn a_container_that_moves_into_another_backends_pod_is_dropped() {
    let mut owners = with_pods(&[("web", A), ("own", B)]);
    for (pod, dropped) in [("own", 0), ("web", 1)] {
        let asked = owners.mark();
        let list = containers(&[("one", pod)]);
        let learned = owners.learn(Kind::Container, B, &list, asked).unwrap();
        assert_eq!(learned.dropped, dropped, "{pod}");
    }
    assert_eq!(owners.containers.pod_of("one"), Some("own"));
}

#[test]
fn a_container_in_another_backends_pod_is_dropped_and_not_learned() {
    let mut owners = with_pods(&[("web", A)]);
    let list = containers(&[("forged", "web"), ("own", "other")]);
    let asked = owners.mark();
    owners.learn(Kind::Container, B, &list, asked).unwrap();
    let own = owners.without_foreign_items(Kind::Container, B, &Bytes::from(list.clone()), asked);
    assert_eq!(own.unwrap().unwrap(), containers(&[("own", "other")]));
    assert_eq!(owners.find(Kind::Container, "forged"), None);
}

#[test]
fn a_short_id_that_begins_another_backends_id_is_short_for_it() {
    let long = "a".repeat(WHOLE_ID);
    let mut owners = with_pods(&[(&long[..13], A), (&long, B)]);
    assert!(owners.is_short_for_another(Kind::Pod, &long[..13], A));
    let longer = format!("{long}a");
    listed(&mut owners, A, &pods(&[(&longer, 1)]));
    assert!(
        !owners.is_short_for_another(Kind::Pod, &long, B),
        "a whole id"
    );
}

#[test]
fn a_removed_id_keeps_its_backend() {
    let mut owners = with_pods(&[("a", B), ("c", B)]);
    for id in ["a", "a"] {
        owners.forget(Kind::Pod, id);
    }
    owners.forget_missing(Kind::Pod, B, owners.mark());
    assert_eq!(owners.removals.owner_of("a"), Some(B));
    assert_eq!(owners.removals.owner_of("c"), None, "no client removed it");
}

/// Learns a complete list of containers from `backend`. Returns whether the list counts as a change of known facts.
fn changes(owners: &mut Owners, backend: BackendId, list: &[u8]) -> bool {
    let (asked, before) = (owners.mark(), owners.changes());
    let learned = owners.learn(Kind::Container, backend, list, asked);
    learned.unwrap();
    owners.forget_missing(Kind::Container, backend, asked);
    owners.changes() != before
}

#[test]
fn only_a_list_without_any_consequence_need_not_be_read_again() {
    let mut owners = with_pods(&[("pod", A)]);
    let both = containers(&[("first", "pod"), ("second", "pod")]);
    assert!(changes(&mut owners, A, &both), "the first list");
    assert!(!changes(&mut owners, A, &both), "the same list again");
    let one = containers(&[("first", "pod")]);
    assert!(changes(&mut owners, A, &one), "a container is gone");
    // Every list with another backend's container must be filtered.
    for _ in 0..2 {
        assert!(changes(&mut owners, B, &one), "a claim");
    }
    assert!(changes(&mut owners, B, &[]), "the claim has ended");
    let asked = owners.mark();
    owners.forget(Kind::Container, "first");
    let before = owners.changes();
    // The list was requested before the removal, so its container is not learned. A later list with the same bytes may
    // add the container, so this list counts as a change.
    let learned = owners.learn(Kind::Container, A, &one, asked).unwrap();
    assert_eq!((learned.new, owners.changes()), (0, before + 1));
}

#[test]
fn a_pod_of_a_uid_ranks_by_creation_through_criswitch_and_then_by_lists() {
    let of_uid = |id: &str, uid: &str| {
        let id = protobuf::with_string(&[], &[1], id);
        let mut list = bytes::BytesMut::new();
        protobuf::put_bytes(&mut list, 1, &protobuf::with_string(&id, &[2, 2], uid));
        list.to_vec()
    };
    let mut owners = Owners::default();
    listed(&mut owners, A, &of_uid("first", "U"));
    assert!(!owners.is_uid_of_another("U", A), "only its own");
    assert!(owners.is_uid_of_another("U", B), "no pod");
    let creation = owners.creations.begin(B, "U".to_owned());
    assert!(owners.is_uid_of_another("U", B), "the call is not sent");
    owners.creations.sent(creation);
    assert!(!owners.is_uid_of_another("U", B), "the call is under way");
    owners.creations.end(creation, None);
    listed(&mut owners, B, &of_uid("second", "U"));
    assert!(!owners.is_uid_of_another("U", B), "both are listed");
    assert_eq!([owners.pods.doubles(A), owners.pods.doubles(B)], [0, 0]);
    let names = PodNames {
        uid: "U".to_owned(),
        ..PodNames::default()
    };
    owners.own_pod("third", C, names, owners.mark());
    for backend in [A, B] {
        assert!(owners.is_uid_of_another("U", backend), "{backend:?}");
        assert_eq!(owners.pods.doubles(backend), 1);
    }
    assert!(!owners.is_uid_of_another("U", C));
    assert_eq!(owners.pods.doubles(C), 0);
    owners.forget(Kind::Pod, "third");
    assert!(!owners.is_uid_of_another("U", B), "removed");
    assert!(!owners.is_uid_of_another("", D), "no uid");
}

#[test]
fn a_container_is_dropped_if_its_label_names_anothers_pod_and_its_own_pod_is_unknown_or_another() {
    let named = |uid: &str| PodNames {
        uid: uid.to_owned(),
        ..PodNames::default()
    };
    let labelled = |id: &str, pod: &str, uid: &str| {
        let entry = [([1], UID_LABEL), ([2], uid)];
        let entry = entry.iter().fold(Bytes::new(), |entry, (path, text)| {
            protobuf::with_string(&entry, path, text)
        });
        let mut item = bytes::BytesMut::from(&containers(&[(id, pod)])[2..]);
        protobuf::put_bytes(&mut item, 8, &entry);
        let mut list = bytes::BytesMut::new();
        protobuf::put_bytes(&mut list, 1, &item);
        list.to_vec()
    };
    let mut owners = with_pods(&[("no-uid", A)]);
    owners.own_pod("own", A, named("V"), owners.mark());
    owners.own_pod("moved", A, named("U"), owners.mark());
    let is_dropped = |owners: &mut Owners, pod: &str, uid: &str| {
        let list = labelled("container", pod, uid);
        let asked = owners.mark();
        let learned = owners.learn(Kind::Container, A, &list, asked);
        owners.forget_missing(Kind::Container, A, asked);
        let is_dropped = learned.unwrap().dropped == 1;
        assert_eq!(owners.mislabelled(A, &list), usize::from(is_dropped));
        let is_known = owners.find(Kind::Container, "container").is_some();
        assert_ne!(is_known, is_dropped, "{pod} {uid}");
        is_dropped
    };
    assert!(!is_dropped(&mut owners, "own", "U"), "no other pod of U");
    owners.own_pod("others", B, named("U"), owners.mark());
    assert!(
        !is_dropped(&mut owners, "own", "U"),
        "A created a pod of U too"
    );
    owners.forget(Kind::Pod, "moved");
    for pod in ["own", "no-uid"] {
        assert!(is_dropped(&mut owners, pod, "U"), "{pod}");
        assert!(!is_dropped(&mut owners, pod, "V"), "{pod}");
        assert!(!is_dropped(&mut owners, pod, ""), "{pod}");
    }
    assert!(is_dropped(&mut owners, "unknown", "U"));
    assert!(
        !is_dropped(&mut owners, "unknown", "V"),
        "A created a pod of V"
    );
    assert!(!is_dropped(&mut owners, "unknown", "W"), "no pod of W");
    let creation = owners.creations.begin(A, "U".to_owned());
    owners.creations.sent(creation);
    assert!(
        !is_dropped(&mut owners, "unknown", "U"),
        "A may be creating its pod"
    );
    owners.creations.end(creation, None);
    let mut list = bytes::BytesMut::new();
    let pod = protobuf::with_string(&protobuf::with_string(&[], &[1], "left"), &[2, 2], "U");
    protobuf::put_bytes(&mut list, 1, &pod);
    owners.learn(Kind::Pod, A, &list, owners.mark()).unwrap();
    assert!(!is_dropped(&mut owners, "left", "U"), "its own pod's uid");
    assert!(is_dropped(&mut owners, "own", "U"), "B's pod was created");
    owners.forget(Kind::Pod, "others");
    assert!(!is_dropped(&mut owners, "own", "U"));
}
