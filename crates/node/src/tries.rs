//! Tries each handler with `criswitch try`, before the kubelet uses criswitch.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use criswitch_client::program::{block_on, within};
use criswitch_client::running::{Running, TRY_LABEL, TRY_NAMESPACE};
use criswitch_client::terminal::progress;
use criswitch_config::address::Address;
use criswitch_config::specification::Tries;
use serde::Deserialize;

/// The limit on the tries of all handlers. Each call of a try has a limit of its own.
const LIMIT: Duration = Duration::from_secs(60 * 60);

/// The output of `criswitch try`.
#[derive(Deserialize)]
struct TryReport {
    tries: Vec<TryResult>,
}

#[derive(Deserialize)]
struct TryResult {
    handler: String,
    failure: Option<String>,
    untested: bool,
    milliseconds: f64,
    leftovers: Vec<String>,
}

/// Tries each handler. A handler that cannot be tried, because its backend has no image with a shell, is printed and is
/// not an error.
pub(super) fn all(endpoint: &str, how: Tries) -> anyhow::Result<()> {
    let socket = Address::parse(endpoint)?.to_string();
    let mut own = Command::new(std::env::current_exe()?);
    own.args(["try", "--all", "--json", "--socket", &socket]);
    if how == Tries::HostNetwork {
        own.arg("--host-network");
    }
    let output = within(LIMIT, own)?;
    let report: TryReport = serde_json::from_slice(&output.stdout).with_context(|| {
        format!(
            "criswitch try: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )
    })?;
    let problems: Vec<_> = report.tries.iter().filter_map(TryResult::problem).collect();
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// Removes the pods that an interrupted try has left, from the runtimes that answer.
pub(super) fn remove(backends: &[String]) -> anyhow::Result<()> {
    backends.iter().try_for_each(|backend| {
        block_on(async { remove_try_pods_at(&Address::parse(backend)?).await })
    })
}

async fn remove_try_pods_at(socket: &Address) -> anyhow::Result<()> {
    let Ok(runtime) = Running::connect(socket).await else {
        progress(&format!(
            "try: {socket} does not answer, and may have a pod of a try\n"
        ));
        return Ok(());
    };
    let (pods, _) = runtime.workloads().await?;
    for pod in pods {
        let namespace = pod.metadata.map(|names| names.namespace);
        // A namespace of the cluster may have this name too, so the label is required.
        if namespace.as_deref() == Some(TRY_NAMESPACE) && pod.labels.contains_key(TRY_LABEL) {
            runtime.end_pod(&pod.id).await?;
        }
    }
    Ok(())
}

impl TryResult {
    /// Prints the outcome. Returns the problem of the handler. If the handler starts pods, a pod that is left is not a
    /// problem: something else, such as a kubelet, stopped this pod, and the try was repeated with another pod.
    fn problem(&self) -> Option<String> {
        let failure = self.failure.as_deref();
        let end = match failure {
            None => format!("starts pods, after {} ms", self.milliseconds),
            Some(why) if self.untested => format!("is not tried: {why}"),
            Some(why) => format!("failed: {why}"),
        };
        progress(&format!("try: handler {} {end}\n", self.handler));
        if failure.is_none() {
            for pod in &self.leftovers {
                progress(&format!("try: handler {}: {pod}\n", self.handler));
            }
            return None;
        }
        let leftovers = self.leftovers.iter().map(String::as_str);
        let problems: Vec<_> = failure
            .filter(|_| !self.untested)
            .into_iter()
            .chain(leftovers)
            .collect();
        (!problems.is_empty()).then(|| format!("handler {}: {}", self.handler, problems.join("; ")))
    }
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use criswitch_cri::codec::cri::{
        ListContainersResponse, ListPodSandboxResponse, PodSandbox, PodSandboxMetadata,
    };
    use h2::server::SendResponse;
    use prost::Message;
    use tokio::net::UnixListener;

    use super::*;

    /// The list of one pod that a try has left.
    fn pods() -> Vec<u8> {
        let metadata = PodSandboxMetadata {
            namespace: TRY_NAMESPACE.to_owned(),
            ..PodSandboxMetadata::default()
        };
        let pod = PodSandbox {
            metadata: Some(metadata),
            labels: [(TRY_LABEL.to_owned(), String::new())].into(),
            ..PodSandbox::default()
        };
        ListPodSandboxResponse { items: vec![pod] }.encode_to_vec()
    }

    fn answer(mut respond: SendResponse<Bytes>, message: &[u8]) {
        let head = http::Response::builder().header("content-type", "application/grpc");
        let mut body = respond
            .send_response(head.body(()).unwrap(), false)
            .unwrap();
        let length = u32::try_from(message.len()).unwrap().to_be_bytes();
        let frame = [&[0], &length[..], message].concat();
        body.send_data(frame.into(), false).unwrap();
        let status = http::HeaderMap::from_iter([(
            http::HeaderName::from_static("grpc-status"),
            http::HeaderValue::from_static("0"),
        )]);
        body.send_trailers(status).unwrap();
    }

    /// A runtime that lists a pod, and never answers a call that stops it.
    async fn serve(listener: UnixListener) {
        let (stream, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let mut unanswered = Vec::new();
        while let Some(Ok((request, respond))) = connection.accept().await {
            match request.uri().path() {
                "/runtime.v1.RuntimeService/ListPodSandbox" => answer(respond, &pods()),
                "/runtime.v1.RuntimeService/ListContainers" => {
                    answer(respond, &ListContainersResponse::default().encode_to_vec());
                }
                _ => unanswered.push(respond),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_runtime_that_does_not_stop_a_pod_does_not_hold_up_an_undo() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("runtime.sock");
        let _runtime = tokio::spawn(serve(UnixListener::bind(&path).unwrap()));
        let socket = Address::parse(path.to_str().unwrap()).unwrap();
        let error = remove_try_pods_at(&socket).await.unwrap_err();
        let expected = format!("{socket}: no answer to StopPodSandbox within 120s");
        assert_eq!(error.to_string(), expected);
    }
    #[test]
    fn a_pod_that_is_left_fails_no_handler_that_starts_pods() {
        let result = |failure: Option<&str>, untested| TryResult {
            handler: "kata".to_owned(),
            failure: failure.map(str::to_owned),
            untested,
            milliseconds: 1.0,
            leftovers: vec!["pod 1 was not removed".to_owned()],
        };
        assert_eq!(result(None, false).problem(), None);
        for (untested, problem) in [
            (false, "handler kata: no shim; pod 1 was not removed"),
            (true, "handler kata: pod 1 was not removed"),
        ] {
            let shown = result(Some("no shim"), untested).problem();
            assert_eq!(shown.as_deref(), Some(problem));
        }
    }
}
