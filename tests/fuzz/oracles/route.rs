//! Routing for any path and any bytes, compared with a simple search of the table and of the model's owners.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use criswitch::call::route::{Knowledge, Stores, Target, Unroutable};
use criswitch::ownership::Named;
use criswitch_config::{BackendId, Config};
use criswitch_cri::rpc::{self, Kind, Row};
use criswitch_testing::native;

use super::asked::{self, Asked};
use super::messages;
use super::model::{ALL, Model};
use super::owners::owned;

const TEXT: &str = r#"
default_handler = "runc"
[handlers]
runc = "/run/runc.sock"
kata = "/run/kata.sock"
gvisor = { backend = "crio", handler = "runsc" }
b = { backend = "crio", handler = "" }
[backends]
crio = "/run/crio.sock"
old = "/run/old.sock"
"#;

/// A table with every kind of row.
pub static TABLE: LazyLock<Config> = LazyLock::new(|| {
    let text = native(TEXT);
    let config = Config::of_texts(&[(Path::new("table"), text.as_bytes())]).unwrap();
    let ids: BTreeSet<_> = config.table.backends.iter().map(|row| row.id).collect();
    assert_eq!(ids, BTreeSet::from(ALL));
    config
});

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    if u.ratio(1, 8)? {
        find(&String::from_utf8_lossy(u.bytes(u.len())?));
        return Ok(());
    }
    let (row, message) = messages::request(u)?;
    let complete = u.arbitrary()?;
    let model = Model::grown(u)?;
    find(&row.path());
    routes(row, &message, &model, complete);
    Ok(())
}

/// Checks that `find` returns a row for exactly the paths of the interface.
fn find(path: &str) {
    let wanted = messages::paths().find(|known| *known == path);
    let found = rpc::find(path).map(Row::path);
    assert_eq!(found.as_deref(), wanted);
}

fn routes(row: &Row, message: &[u8], model: &Model, complete: bool) {
    let known = Knowledge {
        table: &TABLE.table,
        default_backend: TABLE.table.default.backend,
        all: &ALL,
        owners: &model.owners,
        complete,
    };
    let target = known.route(row, message);
    let readable = !matches!(target, Err(Unroutable::Malformed(_)));
    let typed = asked::typed(row.name, message);
    if let Some(asked) = &typed {
        let wanted = slow(row, asked, model, complete);
        assert!(
            is_same(&target, &wanted),
            "{asked:?}: {target:?}, {wanted:?}"
        );
    }
    // criswitch reads only the fields that decide the route. prost may reject the same message because of another
    // field.
    match asked::projected(row, message) {
        None => {}
        Some(Err(_)) => assert!(!readable, "{target:?}"),
        Some(Ok(asked)) => {
            let wanted = slow(row, &asked, model, complete);
            assert!(
                is_same(&target, &wanted),
                "{asked:?}: {target:?}, {wanted:?}"
            );
            assert!(typed.is_none_or(|typed| typed == asked));
        }
    }
}

/// The expected target of a call. An image call for an unknown pod goes to the backends with ready pods. The model does
/// not compute which of these backends are likely: `is_same` only checks that the likely backends are a part of them.
fn slow(row: &Row, asked: &Asked, model: &Model, complete: bool) -> Result<Target, Unroutable> {
    let all = || Target::Backends(ALL.to_vec());
    // No handler is routed to the backend `old`, so it gets no new pods.
    let rows: Vec<_> = TABLE.table.handlers.iter().map(|row| row.backend).collect();
    let taking_pods = || Target::Backends(ALL.into_iter().filter(|id| rows.contains(id)).collect());
    let pod = |backend, id| Target::Owner(backend, Kind::Pod, id);
    Ok(match asked {
        Asked::Default => Target::Backend(TABLE.table.default.backend),
        Asked::Handler(name) => return handler(name),
        Asked::Owner(_, id) if id.is_empty() && row.probe().is_some() => {
            Target::Probe(rows.clone())
        }
        Asked::Owner(kind, id) | Asked::Filtered(kind, id) => match model.find(*kind, id) {
            _ if id.is_empty() => return Err(Unroutable::EmptyId(*kind)),
            Some(owner) => return owned(model, *kind, id, owner),
            None => Target::Miss(*kind, id.clone()),
        },
        Asked::Uid(uid) => match model.with_uid(uid) {
            backends if complete && !backends.is_empty() => Target::Backends(backends),
            _ => all(),
        },
        Asked::Seen(seen) => match model.named(|pod| pod.seen == *seen, is_routed) {
            Named::One { backend, id, .. } => pod(backend, id),
            Named::Several(several) => some_pod(several),
            Named::NoPod => match model.ready() {
                ready if complete && !ready.is_empty() => some_pod(ready),
                _ => some_pod(ALL.to_vec()),
            },
        },
        Asked::Pod(uid) if uid.is_empty() => taking_pods(),
        Asked::Pod(uid) => match model.named(|pod| pod.uid == *uid, is_routed) {
            Named::One {
                backend,
                id,
                created,
            } if created || complete => pod(backend, id),
            Named::One { .. } | Named::NoPod => Target::UnknownPod(uid.clone()),
            Named::Several(several) => {
                return Err(Unroutable::DoubledPod(uid.clone(), several));
            }
        },
        Asked::All => all(),
    })
}

fn some_pod(all: Vec<BackendId>) -> Target {
    Target::SomePod(Stores {
        likely: all.clone(),
        all,
    })
}

/// Whether two targets are equal, apart from their likely stores, and from backends that only have old pods.
fn is_same(one: &Result<Target, Unroutable>, other: &Result<Target, Unroutable>) -> bool {
    match (one, other) {
        (Ok(Target::SomePod(one)), Ok(Target::SomePod(other))) => {
            let is_part = |likely: &[BackendId]| likely.iter().all(|id| one.all.contains(id));
            one.all == other.all && is_part(&one.likely) && !one.likely.is_empty()
        }
        // The model does not count pods: further backends may have some.
        (Ok(Target::Probe(one)), Ok(Target::Probe(wanted))) => {
            let mut ids = one.clone();
            ids.sort_unstable();
            ids.dedup();
            ids.len() == one.len() && wanted.iter().all(|id| one.contains(id))
        }
        _ => one == other,
    }
}

/// Whether a row of the table routes to the backend handler `handler` of `backend`.
pub fn is_routed(handler: &str, backend: BackendId) -> bool {
    let mut rows = TABLE.table.handlers.iter();
    rows.any(|row| (row.backend, row.backend_handler.as_str()) == (backend, handler))
}

fn handler(name: &str) -> Result<Target, Unroutable> {
    let name = if name.is_empty() { "runc" } else { name };
    let row = TABLE.table.handlers.iter().find(|row| row.name == name);
    match row {
        Some(row) => Ok(Target::Handler(row.clone())),
        None => Err(Unroutable::UnknownHandler(name.to_owned())),
    }
}
