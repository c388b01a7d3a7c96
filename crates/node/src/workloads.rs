//! The pods and containers that a runtime lists, and whether a restart of the kubelet has kept them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, ensure};
use criswitch_client::program::block_on;
use criswitch_client::running::{Running, is_signal_exit_code};
use criswitch_config::address::Address;
use criswitch_cri::codec::cri::{Container, ContainerState, PodSandbox, PodSandboxState};

/// How long a runtime may take to answer all calls.
const LIMIT: Duration = Duration::from_secs(5);

/// Pods and containers, by their ids.
pub(super) type Workloads = BTreeMap<String, Workload>;

/// A pod or a container.
pub(super) struct Workload {
    /// The namespace and the name of the pod, and the name of the container.
    pub(super) name: String,
    /// The pod of a container.
    pub(super) pod: Option<String>,
    pub(super) runs: bool,
    attempt: u32,
    created_at: i64,
}

/// The pods and containers at an endpoint.
pub(super) fn at(endpoint: &str) -> anyhow::Result<Workloads> {
    Ok(now(endpoint, &Workloads::new())?.0)
}

/// Checks that each pod and container that ran in `before` runs at an endpoint. A container may have ended on its own.
pub(super) fn kept(before: &Workloads, endpoint: &str) -> anyhow::Result<()> {
    let (now, ended) = now(endpoint, before)?;
    let changes = changes(before, &now, &ended).join(", ");
    ensure!(
        changes.is_empty(),
        "some pods or containers no longer run: {changes}"
    );
    Ok(())
}

/// The pods and containers at an endpoint, and the containers of `before` that have ended on their own.
fn now(endpoint: &str, before: &Workloads) -> anyhow::Result<(Workloads, BTreeSet<String>)> {
    let socket = Address::parse(endpoint)?;
    let look = async {
        let runtime = Running::connect(&socket).await?;
        let (pods, containers) = runtime.workloads().await?;
        let now = workloads(pods, containers);
        let mut ended = BTreeSet::new();
        for (id, was) in before {
            let has_stopped = now.get(id).is_some_and(|is| was.runs && !is.runs);
            if has_stopped && was.pod.is_some() && has_ended(&runtime, id).await? {
                ended.insert(id.clone());
            }
        }
        Ok((now, ended))
    };
    block_on(async {
        tokio::time::timeout(LIMIT, look)
            .await
            .with_context(|| format!("{endpoint}: no answer within {LIMIT:?}"))?
    })
}

/// Whether a container has ended on its own: no signal ended it, and no client of criswitch stopped it. A runtime does
/// not say whether a client stopped the container.
async fn has_ended(runtime: &Running, id: &str) -> anyhow::Result<bool> {
    let state = runtime.state_if_criswitch().await?.unwrap_or_default();
    let code = runtime.container_status(id).await?.exit_code;
    let has_code = code >= 0 && !is_signal_exit_code(code);
    Ok(has_code && !state.stopped_containers.iter().any(|its| its == id))
}

fn workloads(pods: Vec<PodSandbox>, containers: Vec<Container>) -> Workloads {
    let mut all = Workloads::new();
    for pod in pods {
        let runs = pod.state() == PodSandboxState::SandboxReady;
        let names = pod.metadata.unwrap_or_default();
        let workload = Workload {
            name: format!("{}/{}", names.namespace, names.name),
            pod: None,
            runs,
            attempt: names.attempt,
            created_at: pod.created_at,
        };
        all.insert(pod.id, workload);
    }
    for container in containers {
        let runs = container.state() == ContainerState::ContainerRunning;
        let names = container.metadata.unwrap_or_default();
        let pod = container.pod_sandbox_id;
        let of = all.get(&pod).map_or(pod.as_str(), |pod| pod.name.as_str());
        let workload = Workload {
            name: format!("{of}/{}", names.name),
            pod: Some(pod),
            runs,
            attempt: names.attempt,
            created_at: container.created_at,
        };
        all.insert(container.id, workload);
    }
    all
}

/// The changes of the pods and containers that ran.
fn changes(before: &Workloads, now: &Workloads, ended: &BTreeSet<String>) -> Vec<String> {
    before
        .iter()
        .filter(|(_, was)| was.runs)
        .filter_map(|(id, was)| {
            let how = match now.get(id) {
                None => "no longer exists",
                Some(is) if is.created_at != was.created_at => "was created again",
                Some(is) if is.runs => return None,
                Some(_) if was.is_replaced(now) => "was restarted",
                Some(_) if ended.contains(id) => return None,
                Some(_) if has_ended_with_containers(id, before, ended) => return None,
                Some(_) => "was stopped",
            };
            Some(format!("{} {how}", was.name))
        })
        .collect()
}

/// Whether all containers of a pod that ran have ended on their own: then the kubelet stops the pod.
fn has_ended_with_containers(pod: &str, before: &Workloads, ended: &BTreeSet<String>) -> bool {
    let mut its = before
        .iter()
        .filter(|(_, was)| was.runs)
        .filter(|(_, was)| was.pod.as_deref() == Some(pod))
        .peekable();
    its.peek().is_some() && its.all(|(id, _)| ended.contains(id))
}

impl Workload {
    /// Whether there is a later attempt of the pod or container.
    fn is_replaced(&self, now: &Workloads) -> bool {
        now.values().any(|other| {
            other.pod == self.pod && other.name == self.name && other.attempt > self.attempt
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pod or container with this id, whose name is the id without digits.
    fn one(id: &str, pod: Option<&str>, runs: bool, attempt: u32) -> (String, Workload) {
        let workload = Workload {
            name: id.trim_end_matches(char::is_numeric).to_owned(),
            pod: pod.map(str::to_owned),
            runs,
            attempt,
            created_at: 0,
        };
        (id.to_owned(), workload)
    }

    fn changed(now: Vec<(String, Workload)>, ended: &[&str]) -> Vec<String> {
        let pod = Some("web");
        let before = [
            one("web", None, true, 0),
            one("main", pod, true, 0),
            one("side", pod, true, 0),
            one("done", pod, false, 0),
        ];
        let ended = ended.iter().map(|id| (*id).to_owned()).collect();
        changes(&before.into(), &now.into_iter().collect(), &ended)
    }

    #[test]
    fn each_pod_and_container_that_ran_is_kept_or_has_ended_on_its_own() {
        let pod = Some("web");
        let web = |runs| one("web", None, runs, 0);
        let main = |runs| one("main", pod, runs, 0);
        let side = |runs| one("side", pod, runs, 0);
        assert!(changed(vec![web(true), main(true), side(true)], &[]).is_empty());
        assert!(changed(vec![web(true), main(false), side(true)], &["main"]).is_empty());
        let ended = ["main", "side"];
        assert!(changed(vec![web(false), main(false), side(false)], &ended).is_empty());
        assert_eq!(
            changed(vec![web(false), main(false), side(false)], &["main"]),
            ["side was stopped", "web was stopped"]
        );
        assert_eq!(
            changed(vec![web(true), main(false), side(true)], &[]),
            ["main was stopped"]
        );
        assert_eq!(
            changed(vec![web(true), side(true)], &["main"]),
            ["main no longer exists"]
        );
        let again = one("main2", pod, true, 1);
        assert_eq!(
            changed(vec![web(true), main(false), side(true), again], &["main"]),
            ["main was restarted"]
        );
        let (id, mut other) = main(true);
        other.created_at = 1;
        assert_eq!(
            changed(vec![web(true), (id, other), side(true)], &[]),
            ["main was created again"]
        );
    }
}
