//! The merged status of several backends, compared with the same merge of statuses that prost decodes.

use std::sync::{Arc, LazyLock};

use arbitrary::Unstructured;
use bytes::Bytes;
use criswitch::backend::Backend;
use criswitch::backend::connect::Dialer;
use criswitch::dispatch::fanout::status::{self, StatusAnswer};
use criswitch::gate::Readable;
use criswitch_config::Handler;
use criswitch_cri::codec::cri;
use prost::Message;
use tonic::Status;

use super::messages;
use super::route::TABLE;

static BACKENDS: LazyLock<Vec<Arc<Backend>>> = LazyLock::new(|| {
    let backends = TABLE.table.backends.iter();
    backends
        .map(|row| {
            let backend = Backend::new(row, 1 << 20, Dialer::Socket);
            backend.join();
            Arc::new(backend)
        })
        .collect()
});

const BACKENDS_WITH_ROWS: usize = 3;

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let verbose: bool = u.arbitrary()?;
    let mut said = Vec::new();
    for backend in BACKENDS.iter() {
        let status = Bytes::from(messages::message(u, "StatusResponse")?);
        // A status that the gate rejects does not come to the merge.
        said.push(StatusAnswer {
            backend: Arc::clone(backend),
            status: Readable::status(&status).unwrap_or_default(),
            silent: u.ratio(1, 8)?.then(|| Status::unavailable("it is away")),
        });
    }
    let info = serde_json::json!({ "version": "0" });
    let merged = |said| status::merged(&TABLE.table, said, verbose.then_some(&info));
    let merged = merged(&said).unwrap();
    let decoded = said
        .iter()
        .map(|said| messages::decode::<cri::StatusResponse>(&said.status).unwrap());
    let merged = cri::StatusResponse::decode(merged).unwrap();
    compare(merged, decoded.collect(), &said, verbose);
    Ok(())
}

fn compare(
    mut merged: cri::StatusResponse,
    decoded: Vec<cri::StatusResponse>,
    said: &[StatusAnswer],
    verbose: bool,
) {
    let conditions = &mut merged.status.get_or_insert_default().conditions;
    backends_ready(&conditions.pop().unwrap(), &decoded, said);
    let mut wanted = decoded[0].clone();
    wanted.status.get_or_insert_default();
    if verbose {
        let ours = r#"{"version":"0"}"#.to_owned();
        wanted.info.insert("criswitch".to_owned(), ours);
    } else {
        wanted.info.clear();
    }
    let default = handler(&TABLE.table.default, "", &decoded);
    let rows = TABLE
        .table
        .handlers
        .iter()
        .map(|row| handler(row, &row.name, &decoded));
    wanted.runtime_handlers = [default].into_iter().chain(rows).collect();
    // No handler is routed to the last backend.
    wanted.features = common(&decoded[..BACKENDS_WITH_ROWS]);
    assert_eq!(merged, wanted);
}

fn backends_ready(
    condition: &cri::RuntimeCondition,
    decoded: &[cri::StatusResponse],
    said: &[StatusAnswer],
) {
    let needed = |condition: &&cri::RuntimeCondition| {
        !condition.status && ["RuntimeReady", "NetworkReady"].contains(&condition.r#type.as_str())
    };
    let mut faults = 0;
    for (said, status) in said.iter().zip(decoded) {
        let conditions = status.status.iter().flat_map(|status| &status.conditions);
        let missing = conditions.filter(needed).count();
        match &said.silent {
            Some(silent) => {
                faults += 1;
                assert!(condition.message.contains(silent.message()));
            }
            None if missing > 0 => {
                faults += missing;
                assert!(condition.message.contains(&*said.backend.name()));
            }
            None => {}
        }
    }
    assert_eq!(condition.r#type, "BackendsReady");
    assert_eq!(condition.status, faults == 0);
    assert_eq!(condition.message.is_empty(), faults == 0);
}

/// Returns the runtime handler that the merged status must report for a row: the entry for the row's backend handler in
/// the backend's status, renamed to `name`.
fn handler(row: &Handler, name: &str, decoded: &[cri::StatusResponse]) -> cri::RuntimeHandler {
    let mut backends = TABLE.table.backends.iter();
    let place = backends.position(|it| it.id == row.backend).unwrap();
    let mut theirs = decoded[place]
        .runtime_handlers
        .iter()
        .filter(|handler| handler.name == row.backend_handler);
    cri::RuntimeHandler {
        name: name.to_owned(),
        ..theirs.next().cloned().unwrap_or_default()
    }
}

fn common(decoded: &[cri::StatusResponse]) -> Option<cri::RuntimeFeatures> {
    let all = |has: fn(&cri::RuntimeFeatures) -> bool| {
        decoded
            .iter()
            .all(|status| status.features.as_ref().is_some_and(has))
    };
    let features = cri::RuntimeFeatures {
        supplemental_groups_policy: all(|features| features.supplemental_groups_policy),
        user_namespaces_host_network: all(|features| features.user_namespaces_host_network),
        mount_options: all(|features| features.mount_options),
        cgroup_mount_mode: all(|features| features.cgroup_mount_mode),
        seccomp_profile_oci: all(|features| features.seccomp_profile_oci),
    };
    (features != cri::RuntimeFeatures::default()).then_some(features)
}
