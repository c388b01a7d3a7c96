//! Status: the node's conditions, handlers and features, which the kubelet reads every few seconds.

use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf;
use tonic::{Code, Status};

use crate::support::{PATIENCE, Rig, Sim, frame};

pub const STATUS: &str = "/runtime.v1.RuntimeService/Status";
const HANDLERS: u32 = 3;
const FEATURES: u32 = 4;

pub async fn status(rig: &Rig) -> cri::StatusResponse {
    let mut runtime = rig.runtime();
    let status = runtime.status(cri::StatusRequest { verbose: false });
    // The kubelet reports a node as not ready after 30 s without a status.
    let status = tokio::time::timeout(PATIENCE, status).await;
    status.expect("no status in time").unwrap().into_inner()
}

pub fn conditions(status: &cri::StatusResponse) -> &[cri::RuntimeCondition] {
    &status.status.as_ref().unwrap().conditions
}

pub fn condition<'a>(status: &'a cri::StatusResponse, name: &str) -> &'a cri::RuntimeCondition {
    let mut named = conditions(status).iter().filter(|c| c.r#type == name);
    let found = named.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(named.next(), None, "{name} is there twice");
    found
}

fn handler_names(status: &cri::StatusResponse) -> Vec<&str> {
    let handlers = status.runtime_handlers.iter();
    handlers.map(|handler| handler.name.as_str()).collect()
}

pub fn features_of(status: &cri::StatusResponse, handler: &str) -> cri::RuntimeHandlerFeatures {
    let mut handlers = status.runtime_handlers.iter();
    let found = handlers
        .find(|known| known.name == handler)
        .unwrap_or_else(|| panic!("no handler {handler:?}"));
    found.features.unwrap_or_default()
}

fn user_namespaces() -> cri::RuntimeHandlerFeatures {
    cri::RuntimeHandlerFeatures {
        user_namespaces: true,
        ..Default::default()
    }
}

fn read_only_mounts() -> cri::RuntimeHandlerFeatures {
    cri::RuntimeHandlerFeatures {
        recursive_read_only_mounts: true,
        ..Default::default()
    }
}

pub fn both() -> cri::RuntimeHandlerFeatures {
    cri::RuntimeHandlerFeatures {
        user_namespaces: true,
        recursive_read_only_mounts: true,
        ..Default::default()
    }
}

/// A runtime with one condition that is false.
fn unready(name: &str, condition: &str, message: &str) -> Sim {
    Sim::new(name).set(|settings| {
        for known in settings.conditions.iter_mut() {
            if known.r#type == condition {
                known.status = false;
                known.message = message.to_owned();
            }
        }
    })
}

#[tokio::test]
async fn the_node_is_ready_if_every_backend_is_ready() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let status = status(&rig).await;
    for name in ["RuntimeReady", "NetworkReady", "BackendsReady"] {
        assert!(condition(&status, name).status, "{name}");
    }
    assert_eq!(condition(&status, "BackendsReady").message, "");
}

#[tokio::test]
async fn the_nodes_conditions_are_those_of_the_default_backend() {
    let kata = unready("kata", "NetworkReady", "cni plugin not initialized");
    let rig = Rig::start([Sim::new("runc"), kata]).await;
    let status = status(&rig).await;
    assert_eq!(conditions(&status).len(), 3);
    assert!(condition(&status, "RuntimeReady").status);
    assert!(condition(&status, "NetworkReady").status);
    let backends = condition(&status, "BackendsReady");
    assert!(!backends.status);
    for part in ["kata", "NetworkReady", "cni plugin not initialized"] {
        assert!(backends.message.contains(part), "{}", backends.message);
    }
    assert!(!backends.message.contains("runc.sock"));
}

#[tokio::test]
async fn conditions_of_backends_are_quoted_without_credentials() {
    let message = "pull \"https://me:hunter2@registry.example/pause\": EOF";
    let rig = Rig::start([Sim::new("runc"), unready("kata", "RuntimeReady", message)]).await;
    let status = status(&rig).await;
    let backends = &condition(&status, "BackendsReady").message;
    let state = rig.state().await.to_string();
    for text in [backends, &state] {
        assert!(text.contains("registry.example/pause"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}

#[tokio::test]
async fn a_false_condition_of_the_default_stays_false() {
    let runc = unready("runc", "NetworkReady", "cni plugin not initialized");
    let rig = Rig::start([runc, Sim::new("kata")]).await;
    let status = status(&rig).await;
    assert!(!condition(&status, "NetworkReady").status);
    assert_eq!(
        condition(&status, "NetworkReady").message,
        "cni plugin not initialized"
    );
}

#[tokio::test]
async fn a_backend_that_is_down_is_named_with_its_socket_and_the_cause() {
    let rig = Rig::start([
        Sim::new("runc"),
        Sim::new("kata").features("kata", user_namespaces()),
    ])
    .await;
    status(&rig).await;
    rig.sim("kata").stop().await;
    let status = status(&rig).await;
    assert!(condition(&status, "RuntimeReady").status);
    let backends = condition(&status, "BackendsReady");
    assert!(!backends.status);
    assert!(!backends.reason.is_empty());
    let socket = rig.sim("kata").socket().display().to_string();
    for part in ["kata", &socket, crate::support::sockets::REFUSED] {
        assert!(backends.message.contains(part), "{}", backends.message);
    }
    // Without the last known features the kubelet would reject pods with user namespaces.
    assert_eq!(features_of(&status, "kata"), user_namespaces());
}

#[tokio::test]
async fn a_backend_that_is_back_is_ready_again() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata").stop().await;
    assert!(!condition(&status(&rig).await, "BackendsReady").status);
    rig.sim("kata").start();
    assert!(condition(&status(&rig).await, "BackendsReady").status);
}

#[tokio::test]
async fn a_silent_backend_counts_with_its_last_status() {
    let features = cri::RuntimeFeatures {
        supplemental_groups_policy: true,
        ..Default::default()
    };
    let rig = Rig::start([
        Sim::new("runc"),
        Sim::new("kata").features("kata", user_namespaces()),
    ])
    .await;
    status(&rig).await;
    rig.sim("kata").hold("Status");
    let status = status(&rig).await;
    assert_eq!(features_of(&status, "kata"), user_namespaces());
    assert_eq!(status.features, Some(features));
    let backends = condition(&status, "BackendsReady");
    assert!(!backends.status && backends.message.contains("kata"));
    // criswitch no longer waits for this reply, so it must cancel the call at the backend.
    rig.sim("kata")
        .until(|journal| journal.cancelled == ["Status"])
        .await;
}

#[tokio::test]
async fn a_backend_that_fails_status_is_reported_and_affects_nothing_else() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata")
        .fail("Status", Status::internal("shim \"\u{e9}\" is gone"));
    let status = status(&rig).await;
    assert!(condition(&status, "RuntimeReady").status);
    let backends = condition(&status, "BackendsReady");
    assert!(!backends.status && backends.message.contains("shim \"\u{e9}\" is gone"));
    assert_eq!(handler_names(&status), ["", "kata", "runc"]);
}

#[tokio::test]
async fn a_backend_whose_status_is_not_protobuf_is_reported_and_affects_nothing_else() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    // One condition is cut off, and one is not a message.
    for broken in [b"\x0a\x04\x0a\x7fab".as_slice(), b"\x0a\x02\x08\x01"] {
        rig.sim("kata").append_raw("Status", broken);
        let status = status(&rig).await;
        let backends = condition(&status, "BackendsReady");
        assert!(!backends.status && backends.message.contains("kata"));
        assert!(condition(&status, "NetworkReady").status);
    }
}

#[tokio::test]
async fn a_condition_that_is_not_utf8_does_not_make_status_fail() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    // The field is a second condition NetworkReady, false, with a message that is not UTF-8.
    let condition = b"\x0a\x16\x0a\x14\x0a\x0cNetworkReady\x22\x04caf\xe9";
    for sim in &rig.sims {
        sim.append_raw("Status", condition.as_slice());
        let reply = rig
            .raw(STATUS, &[], frame(&cri::StatusRequest::default()))
            .await;
        assert_eq!(reply.code(), Code::Ok, "{}: {}", sim.name(), reply.text());
    }
}

#[tokio::test]
async fn the_handlers_of_a_backend_that_was_never_up_have_no_features() {
    let kata = Sim::new("kata").features("kata", both());
    let mut rig = Rig::start([Sim::new("runc"), kata]).await;
    rig.stop_switch().await;
    rig.sim("kata").stop().await;
    rig.restart_switch_without_state().await;
    let status = status(&rig).await;
    assert_eq!(handler_names(&status), ["", "kata", "runc"]);
    assert_eq!(features_of(&status, "kata"), Default::default());
    // The features of kata are unknown, so no feature is known to be on every backend.
    let features = status.features.unwrap_or_default();
    assert!(!features.supplemental_groups_policy);
}

#[tokio::test]
async fn every_row_is_a_handler_with_the_features_that_its_backend_reports() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"plain\"\n[handlers]\n\
             plain = {{ backend = \"runc\", handler = \"runc\" }}\n\
             sandboxed = {{ backend = \"boxes\", handler = \"runsc\" }}\n\
             anything = {{ backend = \"boxes\", handler = \"\" }}\n\
             odd = {{ backend = \"boxes\", handler = \"no-such\" }}\n\
             [backends]\nrunc = \"{directory}/runc.sock\"\nboxes = \"{directory}/boxes.sock\"\n"
        )
    };
    let runc = Sim::new("runc").features("runc", user_namespaces());
    let boxes = Sim::new("boxes")
        .handlers(["kata", "runsc", "not-in-the-table"])
        .features("kata", both())
        .features("runsc", read_only_mounts());
    let status = status(&Rig::with_config([runc, boxes], text).await).await;
    assert_eq!(
        handler_names(&status),
        ["", "anything", "odd", "plain", "sandboxed"]
    );
    assert_eq!(features_of(&status, ""), user_namespaces());
    assert_eq!(features_of(&status, "plain"), user_namespaces());
    assert_eq!(features_of(&status, "sandboxed"), read_only_mounts());
    // The default handler of the backend, which the backend lists under the empty name, has both features.
    assert_eq!(features_of(&status, "anything"), both());
    assert_eq!(features_of(&status, "odd"), Default::default());
}

#[tokio::test]
async fn the_rows_of_a_backend_that_reports_no_handlers_have_no_features() {
    let old = Sim::new("old").set(|settings| settings.advertises_handlers = false);
    let runc = Sim::new("runc").features("runc", both());
    let status = status(&Rig::start([runc, old]).await).await;
    assert_eq!(handler_names(&status), ["", "old", "runc"]);
    assert_eq!(features_of(&status, "old"), Default::default());
    assert_eq!(features_of(&status, "runc"), both());
}

#[tokio::test]
async fn a_feature_is_true_only_if_every_backend_has_it() {
    let with = |name: &str, features| Sim::new(name).set(|settings| settings.features = features);
    let runc = cri::RuntimeFeatures {
        supplemental_groups_policy: true,
        user_namespaces_host_network: true,
        cgroup_mount_mode: true,
        ..Default::default()
    };
    let kata = cri::RuntimeFeatures {
        supplemental_groups_policy: true,
        mount_options: true,
        cgroup_mount_mode: true,
        ..Default::default()
    };
    let rig = Rig::start([with("runc", runc), with("kata", kata)]).await;
    let common = cri::RuntimeFeatures {
        supplemental_groups_policy: true,
        cgroup_mount_mode: true,
        ..Default::default()
    };
    assert_eq!(status(&rig).await.features, Some(common));
}

#[tokio::test]
async fn other_fields_of_the_default_backends_status_pass_byte_for_byte() {
    let rig = Rig::start([Sim::new("runc").newer(), Sim::new("kata")]).await;
    let body = frame(&cri::StatusRequest { verbose: true });
    let direct = crate::support::RawClient::connect(&rig.sim("runc").socket())
        .await
        .call(STATUS, &[], body.clone())
        .await
        .messages()[0]
        .clone();
    let through = rig.raw(STATUS, &[], body).await.messages()[0].clone();
    let kept: Vec<u8> = protobuf::fields(&direct)
        .map(Result::unwrap)
        .filter(|field| ![HANDLERS, FEATURES].contains(&field.number))
        .flat_map(|field| field.raw.to_vec())
        .collect();
    assert!(kept.windows(18).any(|w| w == b"of a later version"));
    assert!(through.starts_with(&kept), "{through:?}");
}

#[tokio::test]
async fn info_that_no_client_can_decode_is_omitted() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let info = b"\x12\x0b\x0a\x03raw\x12\x04caf\xe9";
    rig.sim("runc").append_raw("Status", info.as_slice());
    let status = crate::faults::status(&rig).await;
    assert!(!status.info.contains_key("raw"));
    assert!(status.info.contains_key("criswitch"));
}

#[tokio::test]
async fn a_handler_that_no_client_can_decode_does_not_make_the_status_of_the_node_fail() {
    let mut rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    // The features of a handler are cut off.
    let handler = b"\x1a\x07\x0a\x01a\x12\x02\x08";
    rig.sim("kata").append_raw("Status", handler.as_slice());
    for _ in 0..2 {
        let status = crate::faults::status(&rig).await;
        let message = crate::faults::backends_ready(&status);
        assert!(
            message.contains("\"kata\"") && message.contains("malformed"),
            "{message}"
        );
        rig.restart_switch().await;
    }
}

#[tokio::test]
async fn the_status_of_a_single_backend_is_completed_too() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"gvisor\"\n[handlers]\n\
             gvisor = {{ socket = \"{directory}/runsc.sock\", handler = \"runsc\" }}\n"
        )
    };
    let runsc = Sim::new("runsc").features("runsc", both());
    let status = status(&Rig::with_config([runsc], text).await).await;
    assert_eq!(handler_names(&status), ["", "gvisor"]);
    assert_eq!(features_of(&status, ""), both());
    assert!(condition(&status, "BackendsReady").status);
}
