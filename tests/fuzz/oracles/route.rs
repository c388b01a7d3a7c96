//! Routing: any path and any bytes, against a table and owners that are searched from end to end.

use std::path::Path;
use std::sync::LazyLock;

use arbitrary::Unstructured;
use criswitch::config::Config;
use criswitch::route::{Known, Refusal, Target};
use criswitch::rpc::{self, Row};

use super::asked::{self, Asked};
use super::messages;
use super::model::{ALL, BACKENDS, Model};
use super::owners::owned;

const TEXT: &str = r#"
default = "runc"
[handlers]
runc = "/run/runc.sock"
kata = "/run/kata.sock"
gvisor = { backend = "crio", handler = "runsc" }
b = { backend = "crio", handler = "" }
[backends]
crio = "/run/crio.sock"
old = "/run/old.sock"
"#;

/// A table of every kind of row.
pub static TABLE: LazyLock<Config> = LazyLock::new(|| {
    let config = Config::of_texts(&[(Path::new("table"), TEXT.as_bytes())]).unwrap();
    assert_eq!(config.table.backends.len(), BACKENDS);
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

/// A row is found under the path that the interface gives it, and under no other.
fn find(path: &str) {
    let wanted = messages::paths().find(|known| *known == path);
    let found = rpc::find(path).map(Row::path);
    assert_eq!(found.as_deref(), wanted);
}

fn routes(row: &Row, message: &[u8], model: &Model, complete: bool) {
    let known = Known {
        table: &TABLE.table,
        speaker: TABLE.table.default.backend,
        all: &ALL,
        owners: &model.owners,
        complete,
    };
    let target = known.route(row, message);
    let readable = !matches!(target, Err(Refusal::Malformed(_)));
    let typed = asked::typed(row.name, message);
    if let Some(asked) = &typed {
        assert!(
            slow(asked, model, complete).contains(&target),
            "{asked:?}: {target:?}"
        );
    }
    // What prost refuses for another field's sake is routed by the fields that decide, and by nothing else.
    match asked::projected(row, message) {
        None => {}
        Some(Err(_)) => assert!(!readable, "{target:?}"),
        Some(Ok(asked)) => {
            assert!(
                slow(&asked, model, complete).contains(&target),
                "{asked:?}: {target:?}"
            );
            assert!(typed.is_none_or(|typed| typed == asked));
        }
    }
}

/// Where it goes; more than one answer is right where two pods were created at once.
fn slow(asked: &Asked, model: &Model, complete: bool) -> Vec<Result<Target, Refusal>> {
    let all = || Target::Backends((0..BACKENDS).collect());
    // No row leads to the last one.
    let taking_pods = || Target::Backends((0..BACKENDS - 1).collect());
    let newest = |backends: Vec<usize>, none: Target| match backends.as_slice() {
        [] => vec![Ok(none)],
        some => some
            .iter()
            .map(|backend| Ok(Target::Backend(*backend)))
            .collect(),
    };
    match asked {
        Asked::Default => vec![Ok(Target::Backend(TABLE.table.default.backend))],
        Asked::Handler(name) => vec![handler(name)],
        Asked::Owner(kind, id) | Asked::Filtered(kind, id) => vec![match model.find(*kind, id) {
            _ if id.is_empty() => Err(Refusal::EmptyId(*kind)),
            Some(owner) => owned(model, *kind, id, owner),
            None => Ok(Target::Miss(*kind, id.clone())),
        }],
        Asked::Uid(uid) => vec![Ok(match model.with_uid(uid) {
            backends if complete && !backends.is_empty() => Target::Backends(backends),
            _ => all(),
        })],
        Asked::Seen(seen) => newest(model.newest(|pod| pod.seen == *seen), all()),
        Asked::Pod(uid) if uid.is_empty() => vec![Ok(taking_pods())],
        Asked::Pod(uid) => newest(model.newest(|pod| pod.uid == *uid), taking_pods()),
        Asked::All => vec![Ok(all())],
    }
}

fn handler(name: &str) -> Result<Target, Refusal> {
    let name = if name.is_empty() { "runc" } else { name };
    let row = TABLE.table.handlers.iter().find(|row| row.name == name);
    match row {
        Some(row) => Ok(Target::Handler(row.clone())),
        None => Err(Refusal::UnknownHandler(name.to_owned())),
    }
}
