//! The state that criswitch reports about itself, in the admin service and as `criswitch` in the `info` of a verbose
//! Status.

use std::collections::HashMap;

use criswitch_cri::codec::cri;
use serde_json::{Value as Json, json};
use tonic::Status;

use crate::support::{Rig, Sim};

async fn info(rig: &Rig, verbose: bool) -> HashMap<String, String> {
    let status = rig.runtime().status(cri::StatusRequest { verbose }).await;
    status.unwrap().into_inner().info
}

fn of_backend<'a>(own: &'a Json, name: &str) -> &'a Json {
    let backends = own["backends"].as_array().unwrap();
    let found = backends.iter().find(|backend| backend["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {own}"))
}

#[tokio::test]
async fn only_a_verbose_status_has_info() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    assert!(info(&rig, false).await.is_empty());
    assert!(info(&rig, true).await.contains_key("criswitch"));
}

#[tokio::test]
async fn info_has_the_keys_of_the_default_backend_only() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let info = info(&rig, true).await;
    let mut keys: Vec<_> = info.keys().collect();
    keys.sort();
    assert_eq!(keys, ["config", "criswitch"]);
    // This is the simulated runtime's value. kubeadm reads this key.
    assert_eq!(info["config"], r#"{"runtime":"runc"}"#);
}

#[tokio::test]
async fn the_state_has_the_socket_version_and_counts_of_every_backend() {
    let rig = Rig::start([
        Sim::new("runc").version("2.4.2"),
        Sim::new("kata")
            .version("1.6.20")
            .runtime_name("containerd"),
    ])
    .await;
    rig.run("kata", "one").await;
    rig.run_pod("kata", "two").await;
    let own = rig.state().await;
    assert_eq!(own["backends"].as_array().unwrap().len(), 2);
    let kata = of_backend(&own, "kata");
    assert_eq!(
        kata["socket"],
        rig.sim("kata").socket().display().to_string()
    );
    assert_eq!(kata["state"], "ready");
    let since = kata["since"].as_str().unwrap();
    assert!(humantime::parse_rfc3339(since).is_ok(), "{since}");
    assert!(kata["version"].as_str().unwrap().contains("1.6.20"));
    assert_eq!((&kata["pods"], &kata["containers"]), (&2.into(), &1.into()));
    let runc = of_backend(&own, "runc");
    assert!(runc["version"].as_str().unwrap().contains("2.4.2"));
    assert_eq!((&runc["pods"], &runc["containers"]), (&0.into(), &0.into()));
}

#[tokio::test]
async fn the_state_has_the_conditions_of_every_backend() {
    let kata = Sim::new("kata").set(|settings| {
        settings.conditions[1].status = false;
        settings.conditions[1].reason = "NoNetwork".to_owned();
        settings.conditions[1].message = "a \"quoted\"\nmessage".to_owned();
    });
    let own = Rig::start([Sim::new("runc"), kata]).await.state().await;
    let conditions = of_backend(&own, "kata")["conditions"].as_array().unwrap();
    assert_eq!(conditions.len(), 2);
    assert_eq!(conditions[0]["type"], "RuntimeReady");
    assert_eq!(conditions[0]["status"], true);
    assert_eq!(conditions[1]["type"], "NetworkReady");
    assert_eq!(conditions[1]["status"], false);
    assert_eq!(conditions[1]["reason"], "NoNetwork");
    assert_eq!(conditions[1]["message"], "a \"quoted\"\nmessage");
    let runc = of_backend(&own, "runc")["conditions"].as_array().unwrap();
    assert!(runc.iter().all(|condition| condition["status"] == true));
}

#[tokio::test]
async fn the_state_of_a_backend_that_is_down_has_the_cause_and_its_pods() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run("kata", "web").await;
    rig.sim("kata").stop().await;
    let own = rig.state().await;
    let kata = of_backend(&own, "kata");
    assert_eq!(kata["state"], "down");
    assert!(
        kata["cause"]
            .as_str()
            .unwrap()
            .contains(crate::support::sockets::REFUSED)
    );
    // kata's pods continue to run while kata is down.
    assert_eq!((&kata["pods"], &kata["containers"]), (&1.into(), &1.into()));
    assert_eq!(of_backend(&own, "runc")["state"], "ready");
}

#[tokio::test]
async fn a_backend_that_fails_status_stays_ready() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.sim("kata").fail("Status", Status::internal("shim"));
    let own = rig.state().await;
    assert_eq!(of_backend(&own, "kata")["state"], "ready");
}

#[tokio::test]
async fn a_verbose_status_has_a_short_summary() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    rig.run_pod("kata", "web").await;
    rig.sim("kata").stop().await;
    rig.state().await;
    let summary: Json = serde_json::from_str(&info(&rig, true).await["criswitch"]).unwrap();
    let socket = |name| rig.sim(name).socket();
    let wanted = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "configuration": summary["configuration"],
        "defaultHandler": "runc",
        "handlers": [
            { "name": "kata", "backend": "kata" },
            { "name": "runc", "backend": "runc" },
        ],
        "backends": [
            {
                "name": "runc",
                "socket": socket("runc"),
                "state": "ready",
                "runtime": "runc",
                "version": "1.0.0",
            },
            {
                "name": "kata",
                "socket": socket("kata"),
                "state": "down",
                "runtime": "kata",
                "version": "1.0.0",
            },
        ],
    });
    assert_eq!(summary, wanted);
}

#[tokio::test]
async fn the_state_has_the_routing_table() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             gvisor = {{ socket = \"{directory}/runc.sock\", handler = \"runsc\" }}\n"
        )
    };
    let rig = Rig::with_config([Sim::new("runc").handlers(["runc", "runsc"])], text).await;
    let own = rig.state().await;
    assert_eq!(own["defaultHandler"], "runc");
    let handlers = own["handlers"].as_array().unwrap();
    assert_eq!(handlers.len(), 2);
    assert_eq!(handlers[0]["name"], "gvisor");
    assert_eq!(handlers[0]["backend"], "runc");
    assert_eq!(handlers[0]["backendHandler"], "runsc");
    assert_eq!(handlers[1]["name"], "runc");
}

#[tokio::test]
async fn a_backend_with_an_unreadable_version_is_ready_without_one() {
    let mut rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    // In this field, the runtime's name is a number instead of a string.
    rig.sim("kata")
        .append_raw("Version", [2 << 3, 1].as_slice());
    rig.restart_switch().await;
    let kata = rig.run_pod("kata", "early").await;
    assert!(!kata.is_empty());
    let own = rig.state().await;
    assert_eq!(of_backend(&own, "kata")["runtime"], "");
}
