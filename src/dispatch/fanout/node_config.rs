//! The calls with which the kubelet and the runtimes exchange their configuration: `UpdateRuntimeConfig` and
//! `RuntimeConfig`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::cri;
use futures_util::future::join_all;
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::call::reply::{self, Reply, Unsent};
use crate::call::{Call, Failed, named};
use crate::dispatch::fanout::{BackendResult, ask};
use crate::dispatch::forward::short;
use crate::errors;
use crate::topology::Live;

/// `UpdateRuntimeConfig` succeeds if each reachable backend applies the configuration. A backend that is away gets the
/// configuration when it answers again. Even a reply with an error waits until the state file of each backend has the
/// new configuration or is removed, so that no restart restores an older one.
pub(crate) async fn update_runtime_config(
    last: &Mutex<Option<Bytes>>,
    live: &Live,
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    // Reject a request that cannot be decoded before it is stored: backends that answer later get the stored request.
    cri::UpdateRuntimeConfigRequest::decode(call.message())
        .map_err(|fault| errors::undecodable(call.row.name, &fault))?;
    *last.lock() = Some(call.body.clone());
    // A backend that a reload has just added is not in `backends`, and may have the previous configuration. The session
    // of such a backend sends the new configuration.
    for new in &live.backends {
        if backends.iter().all(|asked| asked.id != new.id) {
            new.wakeups.owed.notify_one();
        }
    }
    live.backends.iter().for_each(|it| it.saving.note_change());
    let mut unanswered = Unanswered(backends);
    let parts = gather(call, backends).await;
    unanswered.0 = &[];
    match accepted(parts) {
        Ok(reply) => Ok(Unsent::of(reply, &live.backends)),
        Err(failed) => {
            // If the save fails too, the client still gets the error of the call, which is more important.
            call.may_show(&live.backends.iter().collect()).await.ok();
            Err(failed)
        }
    }
}

/// A `RuntimeConfigResponse` with this cgroup driver.
fn runtime_config_of(driver: u64) -> Bytes {
    let linux = cri::LinuxRuntimeConfiguration {
        cgroup_driver: i32::try_from(driver).unwrap_or_default(),
    };
    cri::RuntimeConfigResponse { linux: Some(linux) }
        .encode_to_vec()
        .into()
}

/// Returns the default backend's reply to `RuntimeConfig`. If the default backend does not implement the RPC, returns
/// the cgroup driver that criswitch has read from its configuration. If that driver is unknown, returns the first
/// successful reply of another backend, in the order of `backends`. criswitch waits at most `list_timeout` for each
/// other backend.
pub(crate) async fn runtime_config(
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Reply, Failed> {
    // A reload may change the default backend during the call. Read its id once, so that no backend is asked twice.
    let default_backend = call.live.default_backend();
    let mut own = None;
    // After a reload, `backends` may lack the default backend.
    if let Some(default) = backends.iter().find(|it| it.id == default_backend) {
        let answer = short::in_time(call, default, pin!(ask(call, default))).await?;
        if answer.code() != Code::Unimplemented {
            return Ok(reply::of_answer(answer));
        }
        if let Some(driver) = default.record.known().cgroup_driver {
            return Ok(reply::of_message(vec![runtime_config_of(driver)]));
        }
        own = Some(answer);
    }
    let others = backends.iter().filter(|it| it.id != default_backend);
    let asked = others.map(|backend| async move {
        let answer = short::in_time(call, backend, pin!(ask(call, backend))).await?;
        if answer.code() != Code::Ok {
            return Err(named(backend, answer));
        }
        let config = cri::RuntimeConfigResponse::decode(backend.message(&answer)?)
            .map_err(|fault| backend.bad_reply(&format!("its reply is malformed: {fault}")))?;
        Ok(reply::of_message(vec![config.encode_to_vec().into()]))
    });
    let mut replies: Vec<Result<Reply, Failed>> = join_all(asked).await;
    match replies.iter().position(Result::is_ok) {
        Some(usable) => replies.swap_remove(usable),
        None => match (own, replies.into_iter().next()) {
            (Some(own), _) => Ok(reply::of_answer(own)),
            (None, Some(failed)) => failed,
            (None, None) => Err(errors::impossible(call.row.name).into()),
        },
    }
}

/// Sends `call` to all `backends` at once and reads their replies. Waits for each backend at most `list_timeout`. Does
/// not wait for a backend that has not answered an earlier configuration: its session sends it the new one.
async fn gather(call: &Call, backends: &[Arc<Backend>]) -> Vec<BackendResult> {
    join_all(backends.iter().cloned().map(|backend| async move {
        let result = in_time(call, &backend).await;
        BackendResult { backend, result }
    }))
    .await
}

async fn in_time(call: &Call, backend: &Backend) -> Result<Answer, Status> {
    let limit = match backend.record.late_config() {
        // If there is only one backend, wait as long as the client does, as if the client called the backend directly.
        _ if call.live.has_one_backend() => Duration::MAX,
        Some(late) => return Err(late),
        None => backend.list_timeout(),
    };
    call.within(limit, pin!(ask(call, backend)))
        .await
        .unwrap_or_else(|late| {
            // Only time in which the configuration was sent counts.
            if late.is_fault_of_backend && backend.connection.was_open_for(limit) {
                backend.record.note_late_config();
            }
            Err(backend.timed_out(call.row))
        })
}

/// Backends that get the runtime configuration again if the client cancels the call before all of them have answered.
struct Unanswered<'a>(&'a [Arc<Backend>]);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|backend| backend.wakeups.owed.notify_one());
    }
}

/// Returns the reply to `UpdateRuntimeConfig`. The call fails if a backend rejects the configuration, or if no backend
/// accepts it. The error names each backend that rejected the configuration or did not answer.
fn accepted(parts: Vec<BackendResult>) -> Result<Reply, Failed> {
    let (mut accepted, mut rejected, mut missed) = (None, Vec::new(), Vec::new());
    for BackendResult { backend, result } in parts {
        match result {
            Ok(answer) if matches!(answer.code(), Code::Ok | Code::Unimplemented) => {
                accepted = accepted.or_else(|| Some(reply::of_message(Vec::new())));
            }
            Ok(answer) => {
                backend.wakeups.owed.notify_one();
                rejected.push(named(&backend, answer));
            }
            Err(status) => {
                backend.wakeups.owed.notify_one();
                let backend = backend.name();
                tracing::warn!(%backend, "backend gets the runtime configuration when it answers again");
                missed.push(status.into());
            }
        }
    }
    match accepted {
        Some(reply) if rejected.is_empty() => Ok(reply),
        _ => {
            rejected.append(&mut missed);
            Err(Failed::all(rejected).unwrap_or_else(|| errors::no_backend().into()))
        }
    }
}
