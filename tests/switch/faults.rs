//! Backends that hang and recover, and the state that criswitch reports for them.

use criswitch_cri::codec::cri;
use criswitch_cri::rpc::ROWS;
use serde_json::Value as Json;

use crate::support::{PATIENCE, Rig, Sim, clock};
use crate::wait;

/// Starts criswitch with these runtimes. Each runtime is a backend, with a handler of the same name. The first runtime
/// is the default. `keys` are further configuration keys.
pub async fn node(keys: &str, sims: impl IntoIterator<Item = Sim>) -> Rig {
    let sims: Vec<Sim> = sims.into_iter().collect();
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

/// Two backends, and a criswitch that does not wait for backends at its start.
pub async fn runc_and_kata() -> Rig {
    node("start_wait = \"0s\"", [Sim::new("runc"), Sim::new("kata")]).await
}

/// Makes a backend accept calls and reply to none.
pub fn hang(sim: &Sim) {
    for row in ROWS {
        sim.hold(row.name);
    }
}

/// Ends [`hang`]: the held calls continue.
pub fn wake(sim: &Sim) {
    for row in ROWS {
        sim.release(row.name);
    }
}

/// Returns the reply to a verbose `Status`.
pub async fn status(rig: &Rig) -> cri::StatusResponse {
    let mut runtime = rig.runtime();
    let status = runtime.status(cri::StatusRequest { verbose: true });
    let status = tokio::time::timeout(PATIENCE, status).await;
    status.expect("no status in time").unwrap().into_inner()
}

/// The message of the condition `BackendsReady`. It is empty if the condition is true.
pub fn backends_ready(status: &cri::StatusResponse) -> &str {
    let conditions = &status.status.as_ref().unwrap().conditions;
    let found = conditions
        .iter()
        .find(|c| c.r#type == "BackendsReady")
        .unwrap();
    assert_eq!(found.status, found.message.is_empty(), "{found:?}");
    &found.message
}

/// All that criswitch reports about a backend.
pub async fn state_of(rig: &Rig, name: &str) -> Json {
    let own = rig.state().await;
    let backends = own["backends"].as_array().unwrap();
    let found = backends.iter().find(|backend| backend["name"] == name);
    found
        .unwrap_or_else(|| panic!("no {name} in {own}"))
        .clone()
}

/// Waits until a backend is in `state`. Returns all that criswitch reports about the backend.
pub async fn until_state(rig: &Rig, name: &str, state: &str) -> Json {
    let mut last = Json::Null;
    clock::turn().await;
    let reached = wait::ask(async || {
        last = state_of(rig, name).await;
        last["state"] == state
    });
    let reached = tokio::time::timeout(PATIENCE, reached).await;
    reached.unwrap_or_else(|_| panic!("{name} never got {state}: {last}"));
    last
}

/// Makes a backend hang, and waits until a probe has shown that it hangs.
pub async fn hung(rig: &Rig, name: &str) {
    hang(rig.sim(name));
    // A late list causes a probe.
    let asked = async { rig.pods().await.map(drop) };
    let (_, _) = tokio::join!(asked, until_state(rig, name, "unresponsive"));
}

/// The RPCs of a backend that fail, as `criswitch status` names them.
pub async fn failing_rpcs(rig: &Rig, name: &str) -> Vec<String> {
    let shown = state_of(rig, name).await;
    let failing = shown["failingRpcs"].as_array().unwrap().iter();
    failing
        .map(|it| it["rpc"].as_str().unwrap().to_owned())
        .collect()
}

/// The names of the pods, sorted.
pub fn names(pods: &[cri::PodSandbox]) -> Vec<&str> {
    let metadata = pods.iter().filter_map(|pod| pod.metadata.as_ref());
    let mut names: Vec<_> = metadata.map(|metadata| metadata.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// A client that calls the runtime directly, without criswitch.
pub fn directly(sim: &Sim) -> crate::support::Client {
    crate::support::Client::new(&sim.socket())
}
