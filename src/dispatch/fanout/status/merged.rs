//! Merges the `StatusResponse`s of several backends into one for the node. Does no I/O. Fields that are not replaced
//! are copied unchanged.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criswitch_config::Table;
use criswitch_cri::codec::protobuf::{self, MAP_KEY, MAP_VALUE, Malformed};
use criswitch_cri::facts::{BACKENDS_READY, NEEDED, conditions};
use criswitch_cri::rpc::features::OF_RUNTIME;
use criswitch_cri::rpc::fields::{
    runtime_condition, runtime_handler, runtime_status, status_response,
};
use serde_json::Value as Json;

use super::StatusAnswer;
use crate::backend::known::{Known, WRONG_CGROUP_DRIVER};
use crate::dispatch::fanout::merge;

/// The largest `Status` of a backend, without its info, in bytes.
const LONGEST_STATUS: usize = 64 << 10;
/// The largest size of one handler in a `Status`, and of all features in a `Status`, in bytes.
const LONGEST_PART: usize = 1 << 10;
/// The longest list of faults in the message of the `BackendsReady` condition, in bytes. A longer first fault is not
/// cut.
const LONGEST_FAULTS: usize = 16 << 10;

/// The node's `StatusResponse`: the default backend's, which is the first of `said`, with these changes:
/// - The handlers are the routing table's.
/// - The features are those that all joined backends with handlers share.
/// - A condition for the state of all backends is added.
/// - `info` is added as criswitch's own entry. Without `info`, the default backend's info is dropped.
///
/// # Errors
/// If a status is malformed.
pub fn merged(
    table: &Table,
    said: &[StatusAnswer],
    info: Option<&Json>,
) -> Result<Bytes, Malformed> {
    let Some(default) = said.first() else {
        return Ok(Bytes::new());
    };
    let replaced = match info {
        Some(_) => &[status_response::RUNTIME_HANDLERS, status_response::FEATURES][..],
        None => &[
            status_response::RUNTIME_HANDLERS,
            status_response::FEATURES,
            status_response::INFO,
        ],
    };
    let mut out = without(&default.status, replaced)?;
    let mut status = BytesMut::new();
    protobuf::put_bytes(
        &mut status,
        runtime_status::CONDITIONS,
        &backends_ready(said)?,
    );
    protobuf::put_bytes(&mut out, status_response::STATUS, &status);
    for entry in handlers(table, said)? {
        protobuf::put_bytes(&mut out, status_response::RUNTIME_HANDLERS, &entry);
    }
    let mut shared = Vec::new();
    for said in said {
        let takes_pods = table
            .handlers
            .iter()
            .any(|row| row.backend == said.backend.id);
        if takes_pods && said.backend.has_joined() {
            shared.push(features(&said.status)?);
        }
    }
    let features = merge::common_features(&shared, OF_RUNTIME)?;
    if !features.is_empty() {
        protobuf::put_bytes(&mut out, status_response::FEATURES, &features);
    }
    if let Some(info) = info {
        protobuf::put_bytes(
            &mut out,
            status_response::INFO,
            &string_entry("criswitch", &info.to_string()),
        );
    }
    Ok(out.freeze())
}

/// The faults of a backend, for the `BackendsReady` condition. Warnings in the backend's own conditions are not faults.
pub(super) fn faults(
    said: &StatusAnswer,
    default: &StatusAnswer,
) -> Result<Vec<String>, Malformed> {
    let (backend, known) = (&said.backend, said.backend.record.known());
    let place = format!("backend {:?} ({})", backend.name(), backend.socket);
    let mut faults = Vec::new();
    if let Some(silent) = &said.silent {
        faults.push(silent.message().to_owned());
    } else {
        let instability = backend.connection.link().instability();
        faults.extend(instability.map(|cause| format!("{place}: {cause}")));
        let conditions = conditions(&said.status)?;
        for needed in NEEDED {
            let unmet = conditions.iter().find(|it| it.kind == needed && !it.status);
            if let Some(unmet) = unmet {
                faults.push(format!("{place}: {needed} is false: {}", unmet.message));
            }
        }
    }
    for (age, lists) in [
        (known.stale_age(), "lists"),
        (known.stale_image_age(), "list of images"),
    ] {
        faults.extend(age.map(|age| {
            let seconds = age.as_secs();
            format!("{place}: criswitch serves its cached {lists}, {seconds} s old")
        }));
    }
    if known.claims > 0 {
        let claims = known.claims;
        faults.push(format!(
            "{place}: it lists {claims} pods and containers that other backends own; criswitch ignores these entries; if both \
             sockets belong to one runtime, configure one backend for both"
        ));
    }
    let failing = known.failing_rpcs().into_iter();
    faults.extend(failing.map(|failure| format!("{place}: {}", failure.text())));
    if known.doubles > 0 {
        let doubles = known.doubles;
        faults.push(format!(
            "{place}: it lists {doubles} ready pods with the uid of a pod that criswitch created at another backend; \
             remove these pods, or repair the runtime"
        ));
    }
    if known.mislabelled > 0 {
        let containers = known.mislabelled;
        faults.push(format!(
            "{place}: it lists {containers} containers with the uid label of another backend's pod; criswitch drops them; \
             repair the runtime"
        ));
    }
    if let Some(late) = known.stats_late_for() {
        faults.push(format!("{place}: {}", late_stats(&known, late)));
    }
    if known.has_other_cgroup_driver(&default.backend.record.known()) {
        faults.push(format!("{place}: {WRONG_CGROUP_DRIVER}"));
    }
    Ok(faults)
}

/// Describes how long a backend's stats have been late, and whether replies have its cached stats or omit it.
fn late_stats(known: &Known, late: Duration) -> String {
    let late = format!(
        "its stats have been missing or old for {} s",
        late.as_secs()
    );
    let age = known.stale_stats_age();
    let cached = age.map(|age| format!("; its cached stats are {} s old", age.as_secs()));
    let omitted = if known.is_without_stats() {
        "; it is omitted from stats"
    } else {
        ""
    };
    late + &cached.unwrap_or_default() + omitted
}

/// The condition that says which backends are not ready.
fn backends_ready(said: &[StatusAnswer]) -> Result<Bytes, Malformed> {
    let mut all = Vec::new();
    if let Some(default) = said.first() {
        for said in said {
            all.extend(faults(said, default)?);
        }
    }
    Ok(match all.as_slice() {
        [] => condition(BACKENDS_READY, None),
        all => condition(BACKENDS_READY, Some(("BackendNotReady", &joined(all)))),
    })
}

/// Joins the first faults, up to [`LONGEST_FAULTS`] bytes, and adds the number of the remaining faults.
fn joined(faults: &[String]) -> String {
    let mut text = String::new();
    for (index, fault) in faults.iter().enumerate() {
        if index > 0 && text.len() + fault.len() > LONGEST_FAULTS {
            return format!("{text}; {} more", faults.len() - index);
        }
        text += if index > 0 { "; " } else { "" };
        text += fault;
    }
    text
}

/// Encodes a `RuntimeCondition`. The condition is true if `unmet` is `None`; otherwise it is false, with the reason and
/// the message in `unmet`.
fn condition(kind: &str, unmet: Option<(&str, &str)>) -> Bytes {
    let mut out = BytesMut::new();
    protobuf::put_bytes(&mut out, runtime_condition::TYPE, kind.as_bytes());
    protobuf::put_varint(
        &mut out,
        runtime_condition::STATUS,
        u64::from(unmet.is_none()),
    );
    if let Some((reason, message)) = unmet {
        protobuf::put_bytes(&mut out, runtime_condition::REASON, reason.as_bytes());
        protobuf::put_bytes(&mut out, runtime_condition::MESSAGE, message.as_bytes());
    }
    out.freeze()
}

/// `status` with new conditions: each condition in [`NEEDED`] is false, with `message`. Handlers and features stay
/// unchanged.
pub(super) fn unready(status: &[u8], message: &str) -> Bytes {
    // `status` was already parsed when it was cached.
    let mut out = without(status, &[status_response::STATUS]).unwrap_or_default();
    let mut conditions = BytesMut::new();
    for kind in NEEDED {
        protobuf::put_bytes(
            &mut conditions,
            runtime_status::CONDITIONS,
            &condition(kind, Some(("BackendUnavailable", message))),
        );
    }
    protobuf::put_bytes(&mut out, status_response::STATUS, &conditions);
    out.freeze()
}

/// `status` without `info`, the field that only a verbose status has.
///
/// # Errors
/// If `status` is malformed.
pub(super) fn without_info(status: &[u8]) -> Result<Bytes, Malformed> {
    without(status, &[status_response::INFO]).map(BytesMut::freeze)
}

/// Describes the first part of `status` that is larger than a runtime can need; `None` if there is no such part.
/// `status` must be without info. The caller rejects such a status, because criswitch copies these parts into every
/// `Status` of the node, and copies a handler once for each row that routes to it.
pub(super) fn oversized(status: &[u8]) -> Option<String> {
    let sizes = [
        ("its Status without info", status.len(), LONGEST_STATUS),
        (
            "a handler in its Status",
            sizes_of(status, status_response::RUNTIME_HANDLERS)
                .max()
                .unwrap_or_default(),
            LONGEST_PART,
        ),
        (
            "the features in its Status",
            sizes_of(status, status_response::FEATURES).sum(),
            LONGEST_PART,
        ),
    ];
    let mut oversized = sizes.into_iter().filter(|(_, size, limit)| size > limit);
    let (what, size, limit) = oversized.next()?;
    Some(format!("{what} has {size} bytes, more than {limit}"))
}

fn sizes_of(message: &[u8], number: u32) -> impl Iterator<Item = usize> {
    protobuf::fields(message)
        .flatten()
        .filter_map(move |field| (field.number == number).then_some(field.raw.len()))
}

/// The `RuntimeHandler`s of the node: one without a name for the default handler, then one for each row of the routing
/// table.
fn handlers(table: &Table, said: &[StatusAnswer]) -> Result<Vec<Bytes>, Malformed> {
    let rows = [("", &table.default)]
        .into_iter()
        .chain(table.handlers.iter().map(|row| (row.name.as_str(), row)));
    // Each status is read once: a node may have thousands of rows, and a backend hundreds of handlers.
    let mut advertised = HashMap::new();
    for said in said {
        for handler in protobuf::all_bytes(&said.status, &[status_response::RUNTIME_HANDLERS])? {
            let name = protobuf::bytes(handler, &[runtime_handler::NAME])?;
            advertised.entry((said.backend.id, name)).or_insert(handler);
        }
    }
    Ok(rows
        .map(|(name, row)| {
            let theirs = advertised
                .get(&(row.backend, row.backend_handler.as_bytes()))
                .copied()
                .unwrap_or_default();
            protobuf::with_string(theirs, &[runtime_handler::NAME], name)
        })
        .collect())
}

/// Returns the `RuntimeHandler` with this name in a `StatusResponse`.
pub(super) fn advertised<'a>(status: &'a [u8], name: &str) -> Result<Option<&'a [u8]>, Malformed> {
    for handler in protobuf::all_bytes(status, &[status_response::RUNTIME_HANDLERS])? {
        if protobuf::bytes(handler, &[runtime_handler::NAME])? == name.as_bytes() {
            return Ok(Some(handler));
        }
    }
    Ok(None)
}

fn features(status: &Bytes) -> Result<Bytes, Malformed> {
    Ok(protobuf::all_bytes(status, &[status_response::FEATURES])?
        .concat()
        .into())
}

/// Returns `message` without the fields whose numbers are in `numbers`.
fn without(message: &[u8], numbers: &[u32]) -> Result<BytesMut, Malformed> {
    let mut out = BytesMut::with_capacity(message.len());
    for field in protobuf::fields(message) {
        let field = field?;
        if !numbers.contains(&field.number) {
            out.extend_from_slice(field.raw);
        }
    }
    Ok(out)
}

fn string_entry(key: &str, value: &str) -> Bytes {
    protobuf::with_string(
        &protobuf::with_string(&[], &[MAP_KEY], key),
        &[MAP_VALUE],
        value,
    )
}
