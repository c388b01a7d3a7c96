//! The client with which commands such as `status` and `reload` call the daemon.

use std::cell::Cell;
use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context, bail};
use criswitch_config::address::Address;
use criswitch_cri::codec::admin::admin_client::AdminClient;
use criswitch_cri::codec::admin::{
    Backend, ForgetRequest, GetMetricsRequest, GetStateRequest, PlanReloadRequest,
    PlanReloadResponse, ReloadRequest, ReloadResponse, State,
};
use criswitch_cri::codec::cri::image_service_client::ImageServiceClient;
use criswitch_cri::codec::cri::runtime_service_client::RuntimeServiceClient;
use criswitch_cri::codec::cri::{
    Container, ContainerStatus, ContainerStatusRequest, ListContainersRequest,
    ListPodSandboxRequest, PodSandbox, RemovePodSandboxRequest, StatusRequest, StatusResponse,
    StopPodSandboxRequest, VersionRequest, VersionResponse,
};
use criswitch_platform::service::QUERY;
use criswitch_platform::users::KEY;
use tonic::{Code, Response, Status};

use crate::connection::{self, Channel, ClientConnection, origin};
use crate::probe;

/// How long a command waits for the daemon's reply.
const LIMIT: Duration = Duration::from_secs(35);
/// The limit on a reply of the daemon, in bytes. It is the largest value that `max_message` may have.
const MAX_MESSAGE: usize = 1 << 30;
/// The smallest exit code of a process that a signal ended: 128 plus the number of the signal, here 1.
const FIRST_SIGNAL: i32 = 129;
/// The namespace of the pods of `criswitch try`.
pub const TRY_NAMESPACE: &str = "criswitch-try";
/// The label of the pods of `criswitch try`; its value is the uid of the pod.
pub const TRY_LABEL: &str = "io.criswitch.try";
/// How long a command waits for the reply to a call that stops or removes a pod: as long as the kubelet.
const END_LIMIT: Duration = Duration::from_secs(120);
/// The operating system's error text for a user that may not connect.
const REFUSED: &str = "Permission denied";

/// A connection to the daemon, or to a different runtime that serves on the socket.
pub struct Running {
    /// The socket of the daemon or runtime.
    pub socket: Address,
    admin: AdminClient<Channel>,
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    /// Whether the server has sent a reply over this connection.
    answered: Cell<bool>,
}

/// criswitch is not running or not reachable, or a different runtime serves on the socket.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotRunning(
    /// The error text: the socket, the cause, and advice.
    pub String,
);

impl Running {
    /// Connects to the daemon or runtime that serves on `socket`. Needs a tokio runtime.
    pub async fn connect(socket: &Address) -> anyhow::Result<Running> {
        let channel = tokio::time::timeout(LIMIT, ClientConnection::open(socket))
            .await
            .unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}")))
            .map_err(|cause| cannot_reach(socket, &cause))?
            .channel;
        Ok(Running {
            socket: socket.clone(),
            admin: AdminClient::with_origin(channel.clone(), origin())
                .max_decoding_message_size(MAX_MESSAGE),
            runtime: RuntimeServiceClient::with_origin(channel.clone(), origin())
                .max_decoding_message_size(MAX_MESSAGE),
            images: ImageServiceClient::with_origin(channel, origin())
                .max_decoding_message_size(MAX_MESSAGE),
            answered: Cell::new(false),
        })
    }

    /// A client of the daemon's RuntimeService, for calls whose time limit the caller sets.
    pub fn runtime(&self) -> RuntimeServiceClient<Channel> {
        self.runtime.clone()
    }

    /// A client of the daemon's ImageService, for calls whose time limit the caller sets.
    pub fn images(&self) -> ImageServiceClient<Channel> {
        self.images.clone()
    }

    /// The `Status` of the daemon or runtime.
    pub async fn status(&self) -> anyhow::Result<StatusResponse> {
        self.answer("Status", self.runtime().status(StatusRequest::default()))
            .await
    }

    /// The `Version` of the daemon or runtime.
    pub async fn version(&self) -> anyhow::Result<VersionResponse> {
        self.answer("Version", self.runtime().version(VersionRequest::default()))
            .await
    }

    /// The state of the daemon; `None` if a different runtime serves on the socket.
    pub async fn state_if_criswitch(&self) -> anyhow::Result<Option<State>> {
        let mut admin = self.admin.clone();
        let state = admin.get_state(GetStateRequest {});
        match self.reply(LIMIT, "GetState", state).await? {
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            state => Ok(Some(state.map_err(|it| self.failed("GetState", &it))?)),
        }
    }

    /// The state of the daemon.
    ///
    /// # Errors
    /// The call fails, or a different runtime serves on the socket.
    pub async fn state(&self) -> anyhow::Result<State> {
        self.state_if_criswitch()
            .await?
            .ok_or_else(|| NotRunning(foreign(&self.socket, "a different runtime")).into())
    }

    /// Every pod that the daemon lists. From the list the daemon learns the owners of pods that it did not create.
    ///
    /// # Errors
    /// The call fails. If `state` shows that lists wait for a backend, the error is immediate and names the backend.
    pub async fn pods(&self, state: &State) -> anyhow::Result<Vec<PodSandbox>> {
        if let Some(Backend { name, socket, .. }) = state.backends.iter().find(|it| it.awaited) {
            bail!(
                "lists wait for backend {name} ({socket}), which has not answered a list since criswitch started"
            );
        }
        self.listed_pods().await
    }

    async fn listed_pods(&self) -> anyhow::Result<Vec<PodSandbox>> {
        let mut runtime = self.runtime.clone();
        let pods = runtime.list_pod_sandbox(ListPodSandboxRequest::default());
        Ok(self.answer("ListPodSandbox", pods).await?.items)
    }

    /// Every pod and container that the daemon or runtime lists.
    pub async fn workloads(&self) -> anyhow::Result<(Vec<PodSandbox>, Vec<Container>)> {
        let mut runtime = self.runtime.clone();
        let containers = runtime.list_containers(ListContainersRequest::default());
        let containers = self.answer("ListContainers", containers).await?.containers;
        Ok((self.listed_pods().await?, containers))
    }

    /// The status of a container.
    pub async fn container_status(&self, id: &str) -> anyhow::Result<ContainerStatus> {
        let request = ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        Ok(self
            .answer("ContainerStatus", self.runtime().container_status(request))
            .await?
            .status
            .unwrap_or_default())
    }

    /// Makes the daemon reload its configuration.
    pub async fn reload(&self) -> anyhow::Result<ReloadResponse> {
        self.answer("Reload", self.admin.clone().reload(ReloadRequest {}))
            .await
    }

    /// The changes that a reload would make now.
    ///
    /// # Errors
    /// The call fails, or the daemon is an earlier version that does not have the call.
    pub async fn plan_reload(&self) -> anyhow::Result<PlanReloadResponse> {
        let mut admin = self.admin.clone();
        let plan = admin.plan_reload(PlanReloadRequest {});
        match self.reply(LIMIT, "PlanReload", plan).await? {
            Err(status) if status.code() == Code::Unimplemented => bail!(
                "{}: the running criswitch is an earlier version that has no dry run; restart it with this version, {}, or \
                 run `criswitch check`",
                self.socket,
                env!("CARGO_PKG_VERSION")
            ),
            plan => plan.map_err(|status| self.failed("PlanReload", &status)),
        }
    }

    /// Makes the daemon forget a backend.
    pub async fn forget(&self, backend: String) -> anyhow::Result<()> {
        let request = ForgetRequest { backend };
        self.answer("Forget", self.admin.clone().forget(request))
            .await
            .map(drop)
    }

    /// Stops and removes a pod.
    pub async fn end_pod(&self, id: &str) -> anyhow::Result<()> {
        let mut runtime = self.runtime.clone();
        let pod_sandbox_id = id.to_owned();
        let stop = runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id });
        self.answer_within(END_LIMIT, "StopPodSandbox", stop)
            .await?;
        let pod_sandbox_id = id.to_owned();
        let remove = runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id });
        self.answer_within(END_LIMIT, "RemovePodSandbox", remove)
            .await
            .map(drop)
    }

    /// The daemon's metrics page, in Prometheus' text format.
    pub async fn metrics(&self) -> anyhow::Result<String> {
        let mut admin = self.admin.clone();
        let page = admin.get_metrics(GetMetricsRequest {});
        Ok(self.answer("GetMetrics", page).await?.text)
    }

    async fn answer<T>(
        &self,
        rpc: &str,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> anyhow::Result<T> {
        self.answer_within(LIMIT, rpc, reply).await
    }

    async fn answer_within<T>(
        &self,
        limit: Duration,
        rpc: &str,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> anyhow::Result<T> {
        self.reply(limit, rpc, reply)
            .await?
            .map_err(|status| self.failed(rpc, &status))
    }

    /// Waits for the reply for at most this time. The outer error is a timeout or a lost connection; the inner error is
    /// a status of the server.
    async fn reply<T>(
        &self,
        limit: Duration,
        rpc: &str,
        reply: impl Future<Output = Result<Response<T>, Status>>,
    ) -> anyhow::Result<Result<T, Status>> {
        let Ok(reply) = tokio::time::timeout(limit, reply).await else {
            let late = format!("{}: no answer to {rpc} within {limit:?}", self.socket);
            return Err(NotRunning(late).into());
        };
        if let Some(lost) = reply.as_ref().err().and_then(connection::lost) {
            let cause = if self.answered.get() {
                lost.0
            } else {
                probe::no_grpc(&lost.0)
            };
            return Err(cannot_reach(&self.socket, &cause).into());
        }
        self.answered.set(true);
        Ok(reply.map(Response::into_inner))
    }

    fn failed(&self, rpc: &str, status: &Status) -> anyhow::Error {
        let (code, text) = (status.code(), status.message());
        anyhow::anyhow!("{}: {rpc} returned {code:?}: {text}", self.socket)
    }
}

/// The backend named `name`.
///
/// # Errors
/// No backend has this name.
pub fn backend<'a>(state: &'a State, name: &str) -> anyhow::Result<&'a Backend> {
    state
        .backends
        .iter()
        .find(|it| it.name == name)
        .with_context(|| {
            let names = state.backends.iter().map(|it| it.name.as_str());
            unknown_name("backend", name, names)
        })
}

/// The error text for a name that is not among the `known` names.
pub fn unknown_name<'a>(kind: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known = known.collect::<Vec<_>>().join(", ");
    format!("no {kind} is named {name:?}; the {kind}s are: {known}")
}

/// Whether a signal ended the process with this exit code.
pub fn is_signal_exit_code(exit_code: i32) -> bool {
    exit_code >= FIRST_SIGNAL
}

/// The backend of each pod, by the pod's id.
pub fn owners(state: &State) -> HashMap<&str, &str> {
    state
        .backends
        .iter()
        .flat_map(|backend| backend.pod_ids.iter().map(|id| (&**id, &*backend.name)))
        .collect()
}

/// The name of a listed pod's handler. If the list has no handler for the pod, the pod counts for the default handler,
/// provided that the default handler's backend owns the pod. Such a pod is older than criswitch, or criswitch has
/// forgotten its handler.
pub fn handler_of<'a>(
    state: &'a State,
    owners: &HashMap<&str, &str>,
    pod: &'a PodSandbox,
) -> &'a str {
    let default = state
        .handlers
        .iter()
        .find(|row| row.name == state.default_handler);
    let owner = owners.get(pod.id.as_str()).copied();
    match default {
        Some(row) if pod.runtime_handler.is_empty() && owner == Some(&row.backend) => &row.name,
        _ => &pod.runtime_handler,
    }
}

/// The error text for a socket that `server` serves instead of criswitch.
pub fn foreign(socket: &Address, server: &str) -> String {
    format!(
        "{socket} is the socket of {server}, not of criswitch; try --config, or --socket with the path of criswitch's socket"
    )
}

fn cannot_reach(socket: &Address, cause: &str) -> NotRunning {
    let hint = if cause.contains(REFUSED) {
        format!("run the command as root, or as a user of `{KEY}`")
    } else {
        format!(
            "check that criswitch is running ({QUERY}), that this is its socket (`listen`, or --socket PATH), and that \
             your user may connect (`{KEY}`)"
        )
    };
    NotRunning(format!("{socket}: {cause}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::is_signal_exit_code;

    #[test]
    fn the_exit_codes_of_signals_begin_after_128() {
        assert!(
            [0, 1, 127, 128]
                .iter()
                .all(|code| !is_signal_exit_code(*code))
        );
        assert!(
            [129, 137, 143]
                .iter()
                .all(|code| is_signal_exit_code(*code))
        );
    }
}
