//! Calls that criswitch makes itself, for the lists and stats of a backend.

use bytes::Bytes;
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::state::State;
use crate::backend::wire::Wire;
use crate::backend::{Backend, Contribution};
use crate::call::Failed;
use crate::codec::frames;
use crate::rpc::{self, List, Row};
use crate::switch::Switch;
use crate::switch::learn::{self, keep_stats};

/// The lists that show owners. Pods come first, because a container is learned with its pod.
const LISTS: [(List, &Row); 2] = [
    (List::Pods, &rpc::LIST_PODS),
    (List::Containers, &rpc::LIST_CONTAINERS),
];

/// Asks every backend for its pods and containers and learns them. Waits for each backend at most for its
/// `list_timeout`. Does not wait for a backend that a reload removes meanwhile: such a backend owns nothing.
///
/// # Errors
/// The error of the first backend whose lists failed. The lists of the other backends are still learned.
pub(crate) async fn list_every(switch: &Switch) -> Result<(), Status> {
    let joined = switch.live().joined();
    let listed = joined.iter().map(|backend| async {
        tokio::select! {
            biased;
            listed = list_in_time(switch, backend) => listed,
            () = backend.closed() => Ok(()),
        }
    });
    join_all(listed).await.into_iter().collect()
}

/// Lists a backend's pods and containers and learns them, if both lists come within `list_timeout`. A backend that is
/// late counts as silent at once: the session asks it in the background.
async fn list_in_time(switch: &Switch, backend: &Backend) -> Result<(), Status> {
    let latest = Instant::now() + backend.list_timeout();
    for (list, row) in LISTS {
        let contribution = Contribution {
            row,
            is_of_all: true,
        };
        // A backend that is down may be back, so the call waits for the next attempt to connect.
        let is_down = matches!(backend.link().state, State::Down(_));
        if let Some(silent) = backend.silence(contribution).filter(|_| !is_down) {
            return Err(silent);
        }
        let listed = backend.patiently(list_kind(switch, list, row, backend, None));
        let Ok(listed) = tokio::time::timeout_at(latest, listed).await else {
            backend.is_late(contribution);
            return Err(backend.timed_out(row));
        };
        listed?;
    }
    Ok(())
}

/// Lists a backend's pods and containers and learns them. `wire` is needed while the backend is not ready.
///
/// # Errors
/// The status of the first call that failed.
pub(crate) async fn list(
    switch: &Switch,
    backend: &Backend,
    wire: Option<&Wire>,
) -> Result<(), Status> {
    for (list, row) in LISTS {
        list_kind(switch, list, row, backend, wire).await?;
    }
    Ok(())
}

/// Lists a backend's pods or containers, and caches the list.
///
/// # Errors
/// The status of the call.
pub(crate) async fn list_kind(
    switch: &Switch,
    list: List,
    row: &'static Row,
    backend: &Backend,
    wire: Option<&Wire>,
) -> Result<(), Status> {
    let listed = ask_for_list(switch, list, row, backend, wire).await;
    note(backend, row, &listed);
    listed
}

async fn ask_for_list(
    switch: &Switch,
    list: List,
    row: &'static Row,
    backend: &Backend,
    wire: Option<&Wire>,
) -> Result<(), Status> {
    let asked = learn::asked(switch);
    let answer = backend.ask_own(wire, row, frames::frame(&[])).await?;
    let message = backend.message(&answer)?;
    learn::learn_whole(switch, list, backend, &message, asked)?;
    Ok(())
}

/// Records whether the backend's answer to a call for all items can be used.
fn note(backend: &Backend, row: &'static Row, asked: &Result<(), Status>) {
    let failed = asked.as_ref().err();
    let failed = failed.map(|status| Failed::from(status.clone()).code_and_text());
    backend.note_answer(row, failed.as_deref());
}

/// Lists a backend's images and caches the list. For a backend without an image service, caches an empty list.
///
/// # Errors
/// The status of the call.
pub(crate) async fn list_images(
    switch: &Switch,
    backend: &Backend,
    wire: &Wire,
) -> Result<(), Status> {
    let listed = ask_for_images(switch, backend, wire).await;
    note(backend, &rpc::LIST_IMAGES, &listed);
    listed
}

async fn ask_for_images(switch: &Switch, backend: &Backend, wire: &Wire) -> Result<(), Status> {
    let asked = learn::asked(switch);
    let answer = backend
        .ask_own(Some(wire), &rpc::LIST_IMAGES, frames::frame(&[]))
        .await?;
    let images = match answer.code() {
        Code::Unimplemented => Bytes::new(),
        _ => backend.message(&answer)?,
    };
    if learn::readable(switch, Some(List::Images), backend, &images)? {
        learn::keep_whole(switch, List::Images, backend, &images, asked);
    }
    Ok(())
}

/// Turns every error except silence into success, because any other error shows that the backend answers.
///
/// # Errors
/// `Unavailable`, from criswitch or the backend, or the code of a call that the backend broke off.
pub(crate) fn unless_silent(ended: Result<(), Failed>) -> Result<(), Failed> {
    match ended {
        Err(failed) if failed.is_unavailable() => Err(failed),
        _ => Ok(()),
    }
}

/// Requests all stats of a kind from a backend and caches them. Ignores an error reply of the backend.
pub(crate) async fn ask_stats(
    switch: &Switch,
    backend: &Backend,
    wire: &Wire,
    row: &'static Row,
    list: List,
) -> Result<(), Failed> {
    let asked = learn::asked(switch);
    let answer = backend.ask_own(Some(wire), row, frames::frame(&[])).await?;
    backend.note_answer(row, answer.failure().as_deref());
    if answer.code() == Code::Ok {
        let message = backend.message(&answer)?;
        if learn::readable(switch, Some(list), backend, &message)? {
            keep_stats(list, backend, &message, asked);
        }
    }
    Ok(())
}
