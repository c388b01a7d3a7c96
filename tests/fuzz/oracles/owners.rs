//! The owners of ids and of id prefixes, compared with the model, which searches all its rows.

use arbitrary::Unstructured;
use criswitch::call::route::{Knowledge, Target, Unroutable};
use criswitch::ownership::PodNames;
use criswitch_config::BackendId;
use criswitch_cri::rpc::Kind;

use super::messages::{self, WORDS};
use super::model::{ALL, Model};
use super::route::{TABLE, is_routed};

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let odd = messages::text(u)?;
    let mut model = Model::default();
    while !u.is_empty() {
        model.step(u)?;
        owners_are_found(&model, &odd);
    }
    all_is_known(&model, &odd);
    Ok(())
}

fn owners_are_found(model: &Model, odd: &str) {
    for kind in [Kind::Pod, Kind::Container] {
        for id in WORDS.iter().copied().chain([odd]) {
            assert_eq!(model.owners.find(kind, id), model.find(kind, id), "{id:?}");
        }
    }
}

fn all_is_known(model: &Model, odd: &str) {
    for kind in [Kind::Pod, Kind::Container] {
        for id in WORDS.iter().copied().chain([odd]) {
            let mut found = model.owners.with_prefix(kind, id);
            found.sort_by_key(|(id, _)| *id);
            assert_eq!(found, model.with_prefix(kind, id), "{id:?}");
            assert_eq!(
                after_miss(model, kind, id),
                slow_after_miss(model, kind, id)
            );
        }
    }
    for backend in ALL {
        for kind in [Kind::Pod, Kind::Container] {
            let mut ids: Vec<_> = model.owners.of(kind, backend).into_iter().collect();
            ids.sort_unstable();
            assert_eq!(ids, model.listed_by(kind, backend));
        }
        let count = [Kind::Pod, Kind::Container].map(|kind| model.count(kind, backend));
        assert_eq!(<[usize; 2]>::from(model.owners.count(backend)), count);
    }
    for name in WORDS {
        let of_pod = |backend| model.owners.containers.by_pod(backend).remove(*name);
        let its = ALL.into_iter().filter_map(of_pod);
        let mut containers: Vec<_> = its.flatten().collect();
        containers.sort_unstable();
        assert_eq!(containers, model.containers_of(name));
        assert_eq!(
            model.owners.with_uid(name),
            model.with_uid(name),
            "{name:?}"
        );
        let is_it = |pod: &PodNames| pod.seen == *name;
        assert_eq!(
            model.owners.pods.find_by_name(is_it, is_routed),
            model.named(is_it, is_routed),
            "{name:?}"
        );
    }
}

fn after_miss(model: &Model, kind: Kind, id: &str) -> Result<Target, Unroutable> {
    let known = Knowledge {
        table: &TABLE.table,
        default_backend: TABLE.table.default.backend,
        all: &ALL,
        owners: &model.owners,
        complete: true,
    };
    known.after_miss(kind, id)
}

/// The expected target of an id or of a prefix. A full id names its own item, unless another backend owns a longer id
/// that begins with the full id.
fn slow_after_miss(model: &Model, kind: Kind, id: &str) -> Result<Target, Unroutable> {
    let hits = model.with_prefix(kind, id);
    let exact = hits.iter().find(|(full, _)| *full == id);
    match (exact, hits.as_slice()) {
        (Some((full, owner)), _) | (None, [(full, owner)]) => owned(model, kind, full, *owner),
        (None, []) => Ok(Target::Miss(kind, id.to_owned())),
        (None, _) => Err(Unroutable::Ambiguous(id.to_owned())),
    }
}

pub fn owned(model: &Model, kind: Kind, id: &str, owner: BackendId) -> Result<Target, Unroutable> {
    let is_anothers = |(full, other): &(&str, BackendId)| *full != id && *other != owner;
    let is_short = model.with_prefix(kind, id).iter().any(is_anothers);
    if is_short && id.len() < 64 {
        Err(Unroutable::Ambiguous(id.to_owned()))
    } else {
        Ok(Target::Owner(owner, kind, id.to_owned()))
    }
}
