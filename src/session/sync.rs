//! The calls that criswitch itself makes to a backend. After each connect criswitch makes all of them. Later it repeats
//! each call that the backend did not answer in time.

use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::{cri, frames, protobuf};
use criswitch_cri::rpc::fields::{linux_runtime_configuration, runtime_config_response};
use criswitch_cri::rpc::{self, List, Row};
use parking_lot::Mutex;
use prost::Message;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::backend::known::WRONG_CGROUP_DRIVER;
use crate::backend::wire::Wire;
use crate::call::Failed;
use crate::dispatch::fanout::status;
use crate::dispatch::own::{self, FirstLists, OwnCalls, unless_silent};
use crate::gate::Readable;
use crate::limits::places::User;
use crate::switch::act::act;
use crate::switch::learn::Learned;
use crate::topology::Live;
use criswitch_cri::facts;

/// A backend with cached lists becomes ready if its lists fail or have no answer for this long. A runtime that has just
/// started may answer its first lists with errors.
const LISTS_MAY_FAIL: Duration = Duration::from_secs(5);
/// The pause between two attempts to list such a backend.
const LIST_PAUSE: Duration = Duration::from_millis(500);
/// The largest `VersionResponse` that criswitch accepts, in bytes.
const LONGEST_VERSION: usize = 64 << 10;

/// Makes a connection to `backend` ready: requests its version, lists its pods and containers, compares its cgroup
/// driver with the default backend's, sends it the runtime configuration, and requests its status. Then the backend has
/// joined.
///
/// # Errors
/// - `Version` fails.
/// - A list fails and there are no cached lists, or the lists of a backend that has not joined cannot be learned.
/// - `Unavailable`: the state of a backend that has not joined cannot be saved, or criswitch forgot the backend
///   meanwhile.
///
/// No other failure prevents the backend from becoming ready.
pub(crate) async fn make_ready(own: OwnCalls<'_>) -> Result<(), Status> {
    let OwnCalls {
        switch,
        backend,
        wire,
    } = own;
    backend.record.connected();
    let forgets = backend.forgets();
    version(backend, wire).await?;
    let listed = list(own).await;
    match &listed {
        Ok(None)
            if backend.may_learn_from(forgets) && switch.live().backend(backend.id).is_ok() =>
        {
            switch.question.listed(backend.id);
        }
        Ok(_) => {}
        // One bad container may fail or delay a list for good. The cached lists have the pods, and the backend may
        // still answer calls for them.
        Err(_) if has_cached_lists(backend) => {
            backend.record.miss(&rpc::LIST_PODS);
            backend.record.miss(&rpc::LIST_CONTAINERS);
        }
        Err(why) => return Err(why.clone()),
    }
    let aside = async {
        compare_cgroup_driver(&switch.live(), backend, wire).await?;
        // A backend that rejects the configuration, or breaks off the call, still becomes ready. criswitch sends the
        // configuration again.
        let replayed = replay_runtime_config(&switch.runtime_config, backend, wire).await;
        if replayed.is_err() {
            backend.wakeups.owed.notify_one();
        }
        Ok::<(), Status>(())
    };
    // New pods wait for these calls, at most `list_timeout`. If one takes longer, criswitch repeats it when the backend
    // is ready.
    let (others, status) = tokio::join!(
        tokio::time::timeout(backend.list_timeout(), aside),
        tokio::time::timeout(backend.list_timeout(), first_status(own)),
    );
    if status.is_err() {
        backend.record.miss(&rpc::STATUS);
    }
    others.unwrap_or_else(|_| {
        backend.wakeups.owed.notify_one();
        Ok(())
    })?;
    if matches!(&listed, Ok(Some(_))) {
        // A list with the backend's items needs the backend's state on disk. Until the state can be saved, lists omit
        // the backend.
        let saved = backend.saving.saved().await;
        saved.map_err(|cause| backend.unavailable(&cause))?;
    }
    if backend.forgets() != forgets {
        return Err(backend.unavailable("criswitch forgot it while it became ready"));
    }
    if let Ok(first) = listed {
        if let Some(first) = first {
            first.join(switch, backend)?;
        }
        // From now on criswitch serves fresh lists instead of the cached ones.
        backend.record.caught_up();
        backend.was_listed();
    }
    Ok(())
}

/// Lists the pods and containers of a backend. If there are cached lists, repeats lists that fail, but only for
/// [`LISTS_MAY_FAIL`]. Returns the lists of a backend that has not joined: they are not learned yet.
///
/// # Errors
/// The error of the last list, or `Unavailable` if there are cached lists and a list has no answer.
async fn list(own: OwnCalls<'_>) -> Result<Option<FirstLists>, Status> {
    let backend = own.backend;
    if !backend.has_joined() {
        return own.first_lists().await.map(Some);
    }
    let end = Instant::now() + LISTS_MAY_FAIL;
    loop {
        if !has_cached_lists(backend) {
            return own.list().await.map(|()| None);
        }
        let listed = tokio::time::timeout_at(end, own.list())
            .await
            .unwrap_or_else(|_| {
                let cause = format!("it did not answer its lists within {LISTS_MAY_FAIL:?}");
                Err(backend.unavailable(&cause))
            });
        if listed.is_ok() || Instant::now() >= end {
            return listed.map(|()| None);
        }
        tokio::time::sleep(LIST_PAUSE).await;
    }
}

/// Whether merged calls can have the cached pods and containers of the backend.
fn has_cached_lists(backend: &Backend) -> bool {
    let lists = backend.record.known().lists;
    backend.has_joined() && lists.get(List::Pods).is_some() && lists.get(List::Containers).is_some()
}

/// Requests a backend's version and saves it. A backend that works answers this call at once.
///
/// # Errors
/// The error of the call.
pub(crate) async fn version(backend: &Backend, wire: Option<&Wire>) -> Result<(), Status> {
    let answer = backend
        .ask_own(wire, &rpc::VERSION, frames::frame(&[]))
        .await?;
    let version = backend.message(&answer)?;
    if version.len() > LONGEST_VERSION {
        let length = version.len();
        let cause = format!("its Version has {length} bytes, more than {LONGEST_VERSION}");
        return Err(backend.bad_reply(&cause));
    }
    // A backend with an unreadable version can still serve pods.
    let version = Readable::version(&version).unwrap_or_default();
    backend.learn_saved(|known| {
        let last = std::mem::replace(&mut known.version, version);
        *known.version != *last
    });
    Ok(())
}

/// Makes the call of `row` without a filter, and caches a list, stats or status in the reply.
///
/// # Errors
/// The error of a call that lists pods, containers or images. Any other call fails only with `Unavailable`. `Status`
/// never fails here, because clients request it again.
pub(crate) async fn answers(own: OwnCalls<'_>, row: &'static Row) -> Result<(), Failed> {
    let backend = own.backend;
    match row.list() {
        Some(list) if list.is_stats() => unless_silent(own.ask_stats(row, list).await)?,
        Some(list) => own.list_kind(list, row).await?,
        None if row.name == rpc::STATUS.name => {
            let asked = first_status(own).await.map_err(Failed::from);
            own::note(backend, row, &asked);
        }
        None => {
            let asked = own.ask_for_disks(row).await;
            own::note(backend, row, &asked);
            unless_silent(asked)?;
        }
    }
    Ok(())
}

/// Requests a backend's status and caches it. The cached status is served when a later reply is slow. The status also
/// names the backend's handlers, which should be known before pods come.
async fn first_status(own: OwnCalls<'_>) -> Result<(), Status> {
    let OwnCalls {
        switch,
        backend,
        wire,
    } = own;
    let forgets = backend.forgets();
    let answer = backend
        .ask_own(wire, &rpc::STATUS, frames::frame(&[]))
        .await?;
    let memory = backend.own.of(User::Own, &rpc::STATUS);
    status::keep_status(backend, forgets, &backend.message(&answer)?, &memory)?;
    act(switch, backend, Learned::of_status()).map(drop)
}

/// Logs an error if the cgroup driver of a backend differs from the default backend's. The kubelet uses the default
/// backend's driver for the whole node.
pub(crate) async fn compare_cgroup_driver(
    live: &Live,
    backend: &Backend,
    wire: Option<&Wire>,
) -> Result<(), Status> {
    backend
        .record
        .learn(|known| known.owes_cgroup_driver = true);
    let driver = reported_cgroup_driver(backend, wire).await;
    backend.record.learn(|known| {
        known.cgroup_driver = driver;
        known.owes_cgroup_driver = false;
    });
    let default = live.backend(live.default_backend())?;
    for other in &live.backends {
        let differs = other
            .record
            .known()
            .has_other_cgroup_driver(&default.record.known());
        if differs && (other.id == backend.id || default.id == backend.id) {
            tracing::error!(backend = %other.name(), "{}", WRONG_CGROUP_DRIVER);
        }
    }
    Ok(())
}

/// Sends the kubelet's last runtime configuration to a backend that may have missed it.
///
/// # Errors
/// `Unavailable` if the backend did not receive the configuration, else the backend's error.
pub(crate) async fn replay_runtime_config(
    config: &Mutex<Option<Bytes>>,
    backend: &Backend,
    wire: Option<&Wire>,
) -> Result<(), Failed> {
    let config = config.lock().clone();
    let Some(config) = config else { return Ok(()) };
    let row = &rpc::UPDATE_RUNTIME_CONFIG;
    let answer = backend.ask_own(wire, row, config).await?;
    backend.record.learn(|known| known.config_late = None);
    match answer.code() {
        Code::Ok | Code::Unimplemented => Ok(()),
        _ => Err(Failed::Answer(Box::new(answer))),
    }
}

/// Reads `RuntimeConfigResponse.linux.cgroup_driver` from an answer.
///
/// # Errors
/// If the reply does not follow the CRI.
pub(crate) fn cgroup_driver(backend: &Backend, answer: &Answer) -> Result<u64, Status> {
    let driver = protobuf::varint(
        &backend.message(answer)?,
        &[
            runtime_config_response::LINUX,
            linux_runtime_configuration::CGROUP_DRIVER,
        ],
    );
    driver.map_err(|fault| backend.malformed(&fault))
}

/// Requests a backend's cgroup driver. Returns `None` if the call fails or the reply cannot be read: the backend can
/// still serve pods.
async fn reported_cgroup_driver(backend: &Backend, wire: Option<&Wire>) -> Option<u64> {
    let answer = backend
        .ask_own(wire, &rpc::RUNTIME_CONFIG, frames::frame(&[]))
        .await;
    let driver = match answer {
        Ok(answer) if answer.code() == Code::Unimplemented => {
            return configured_cgroup_driver(backend, wire).await;
        }
        Ok(answer) if answer.code() != Code::Ok => return None,
        Ok(answer) => cgroup_driver(backend, &answer),
        Err(status) => Err(status),
    };
    // The end of a lost connection is logged elsewhere, so `Unavailable` is not logged here.
    if let Err(status) = driver.as_ref()
        && status.code() != Code::Unavailable
    {
        let cause = status.message();
        tracing::warn!(backend = %backend.name(), cause, "cannot read the cgroup driver of the backend");
    }
    driver.ok()
}

/// Reads the cgroup driver from the configuration of a runtime that lacks `RuntimeConfig`.
async fn configured_cgroup_driver(backend: &Backend, wire: Option<&Wire>) -> Option<u64> {
    let request = cri::StatusRequest { verbose: true }.encode_to_vec();
    let request = frames::frame(&request);
    let answer = backend.ask_own(wire, &rpc::STATUS, request).await.ok()?;
    let status = cri::StatusResponse::decode(backend.message(&answer).ok()?).ok()?;
    facts::configured_cgroup_driver(&facts::configuration(&status.info)?)
}
