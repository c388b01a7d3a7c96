//! The try of each handler before the kubelet uses criswitch, with `criswitch try`.

use std::process::Command;

use anyhow::{Context, ensure};
use criswitch::codec::cri::{RemovePodSandboxRequest, StopPodSandboxRequest};
use criswitch::config::address::Address;
use criswitch::config::specification::Tries;
use serde_json::Value;

use crate::cli::running::Running;
use crate::cli::trial::{NAME_IMAGE, NAMESPACE};
use crate::cli::{block_on, print};

/// Tries each handler. Only prints it if a backend has no image with a shell, so that its handlers cannot be tried.
pub(super) fn all(endpoint: &str, how: Tries) -> anyhow::Result<()> {
    let socket = Address::parse(endpoint)?.to_string();
    let mut own = Command::new(std::env::current_exe()?);
    own.args(["try", "--all", "--json", "--socket", &socket]);
    if how == Tries::HostNetwork {
        own.arg("--host-network");
    }
    let output = own.output().context("cannot start criswitch try")?;
    let found: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("criswitch try: {}", said.trim())
    })?;
    let tries = found.get("tries").and_then(Value::as_array);
    let tries = tries.context("criswitch try printed no tries")?;
    let problems = tries.iter().filter_map(|tried| {
        let of = |key| tried.get(key).unwrap_or(&Value::Null);
        let handler = of("handler").as_str().unwrap_or_default();
        let failure = of("failure").as_str();
        let left = of("leftovers").as_array().into_iter().flatten();
        let left: Vec<_> = left.filter_map(Value::as_str).collect();
        let is_tried = !failure.is_some_and(|why| why.contains(NAME_IMAGE));
        let end = match (failure, is_tried) {
            (None, _) => format!("starts pods, after {} ms", of("milliseconds")),
            (Some(why), true) => format!("failed: {why}"),
            (Some(why), false) => format!("is not tried: {why}"),
        };
        print(format!("try: handler {handler} {end}\n")).ok();
        let failure = failure.filter(|_| is_tried).into_iter().chain(left);
        let failures: Vec<_> = failure.collect();
        (!failures.is_empty()).then(|| format!("handler {handler}: {}", failures.join("; ")))
    });
    let problems: Vec<_> = problems.collect();
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// Removes the pods that a try has left that was interrupted, from the runtimes that answer.
pub(super) fn remove(backends: &[String]) -> anyhow::Result<()> {
    backends.iter().try_for_each(|backend| {
        let socket = Address::parse(backend)?;
        block_on(async { remove_at(&socket).await })
    })
}

async fn remove_at(socket: &Address) -> anyhow::Result<()> {
    let Ok(runtime) = Running::connect(socket).await else {
        print(format!(
            "try: {socket} does not answer, and may have a pod of a try\n"
        ))
        .ok();
        return Ok(());
    };
    let (pods, _) = runtime.workloads().await?;
    let left = pods.into_iter().filter(|pod| {
        let names = pod.metadata.as_ref();
        names.is_some_and(|names| names.namespace == NAMESPACE)
    });
    for pod in left {
        let stop = StopPodSandboxRequest {
            pod_sandbox_id: pod.id.clone(),
        };
        runtime.runtime().stop_pod_sandbox(stop).await?;
        let remove = RemovePodSandboxRequest {
            pod_sandbox_id: pod.id,
        };
        runtime.runtime().remove_pod_sandbox(remove).await?;
    }
    Ok(())
}
