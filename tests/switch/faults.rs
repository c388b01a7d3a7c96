//! Backends that hang and come back, and what the switch says of them.

use criswitch::codec::cri;
use criswitch::rpc::ROWS;
use serde_json::Value as Json;

use crate::support::{PATIENCE, Rig, Sim};

/// Each runtime is a backend with one handler, called like itself, the first one's being the default; with these keys.
pub async fn node<const N: usize>(keys: &str, sims: [Sim; N]) -> Rig {
    Rig::with_config(sims.clone(), |directory| text(keys, &sims, directory)).await
}

/// The configuration of [`node`].
pub fn text(keys: &str, sims: &[Sim], directory: &str) -> String {
    let row = |sim: &Sim| format!("{0} = \"{directory}/{0}.sock\"\n", sim.name());
    let rows: String = sims.iter().map(row).collect();
    let default = sims[0].name();
    format!(
        "default_handler = \"{default}\"\nshutdown_timeout = \"1s\"\n{keys}\n[handlers]\n{rows}"
    )
}

/// Two of them whose switch waits for nobody at its start.
pub async fn runc_and_kata() -> Rig {
    node("start_wait = \"0s\"", [Sim::new("runc"), Sim::new("kata")]).await
}

/// It accepts whatever comes and answers nothing any more.
pub fn hang(sim: &Sim) {
    for row in ROWS {
        sim.hold(row.name);
    }
}

/// It goes on where it hung.
pub fn wake(sim: &Sim) {
    for row in ROWS {
        sim.release(row.name);
    }
}

/// What `Status` says of the node.
pub async fn status(rig: &Rig) -> cri::StatusResponse {
    let mut runtime = rig.runtime();
    let status = runtime.status(cri::StatusRequest { verbose: true });
    let status = tokio::time::timeout(PATIENCE, status).await;
    status.expect("no status in time").unwrap().into_inner()
}

/// The message of its condition `BackendsReady`; empty where that is true.
pub fn backends_ready(status: &cri::StatusResponse) -> &str {
    let conditions = &status.status.as_ref().unwrap().conditions;
    let found = conditions.iter().find(|c| c.r#type == "BackendsReady");
    let found = found.unwrap();
    assert_eq!(found.status, found.message.is_empty(), "{found:?}");
    &found.message
}

/// What the switch says of a backend.
pub async fn told_of(rig: &Rig, name: &str) -> Json {
    let own = rig.state().await;
    let backends = own["backends"].as_array().unwrap();
    let found = backends.iter().find(|backend| backend["name"] == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {own}"))
        .clone()
}

/// Waits until a backend is in a state; what the switch says of it then.
pub async fn until_state(rig: &Rig, name: &str, state: &str) -> Json {
    let mut last = Json::Null;
    let reached = async {
        while last["state"] != state {
            last = told_of(rig, name).await;
        }
    };
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{name} never got {state}: {last}"));
    last
}

/// A backend hangs, and the switch has proven it.
pub async fn hung(rig: &Rig, name: &str) {
    hang(rig.sim(name));
    // What takes long is a reason to probe.
    let asked = async { rig.pods().await.map(drop) };
    let (_, _) = tokio::join!(asked, until_state(rig, name, "unresponsive"));
}

/// The names of all pods, sorted.
pub fn names(pods: &[cri::PodSandbox]) -> Vec<&str> {
    let metadata = pods.iter().filter_map(|pod| pod.metadata.as_ref());
    let mut names: Vec<_> = metadata.map(|metadata| metadata.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// A client of a runtime itself, without a switch between.
pub fn directly(sim: &Sim) -> crate::support::Client {
    crate::support::Client::new(&sim.socket())
}
