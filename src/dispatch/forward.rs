//! Forwards a call to one backend: sends the call, learns from the reply, and returns the reply to the client.

mod creating;
pub(crate) mod short;

use std::pin::pin;
use std::sync::Arc;

use criswitch_cri::rpc::Patience;
use http::HeaderMap;
use tonic::{Code, Status};

use crate::backend::Backend;
use crate::backend::answer::Answer;
use crate::call::reply::{self, Unsent};
use crate::call::{Call, Failed, Lesson};
use crate::errors;
use crate::limits::give_way;
use crate::switch::Switch;
use crate::switch::act::act;
use crate::switch::learn::{CallMoment, Learner};
use crate::switch::view::View;

/// Sends `call`, which creates a pod, to one backend. Until criswitch has read the reply, the backend may have a pod
/// that criswitch does not know.
pub(crate) async fn create(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
    uid: String,
) -> Result<Unsent, Failed> {
    let mut creating = creating::creating(&switch.owners, backend.id, uid);
    // Get the connection first: a call that cannot be sent creates no pod.
    let wire = backend.wire().await?;
    creating.sent();
    // After a restart, only the saved state shows that the backend may have the pod.
    backend.saving.note_change();
    let (asked, headers) = (
        CallMoment::now(&switch.owners(), backend),
        call.reading_headers(),
    );
    let sent = pin!(backend.ask_over(wire, call.user, call.row, &headers, call.body.clone()));
    let answer = backend.patiently(call.row, sent).await?;
    backend.wakeups.answered.notify_waiters();
    let made = answer.code() == Code::Ok;
    let reply = learned(switch, call, backend, asked, answer).await?;
    if made {
        creating.learned();
    }
    Ok(reply)
}

/// Sends `call` to one backend.
pub(crate) async fn send(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
) -> Result<Unsent, Failed> {
    let sent = pin!(async {
        if call.lesson.must_read() {
            pass_learned(switch, call, backend).await
        } else {
            pass_as_it_is(switch, call, backend).await
        }
    });
    let sent = match call.row.patience {
        Patience::Short => short::read(switch, call, backend, sent).await,
        Patience::Read | Patience::Change | Patience::Create => sent.await,
    };
    if let Err(why) = &sent
        && let Some(passed) = call.passed()
        && !why.is_silence()
    {
        passed.note_failed(backend, why);
    }
    sent
}

/// Sends a call and learns from its reply.
async fn pass_learned(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
) -> Result<Unsent, Failed> {
    if call.lesson.creates() {
        // Get the connection first: a list that is requested meanwhile may lack the new item.
        backend.wire().await?;
    }
    let asked = CallMoment::now(&switch.owners(), backend);
    let answer = ask(switch, call, backend, &call.reading_headers()).await?;
    learned(switch, call, backend, asked, answer).await
}

/// Sends a call whose reply criswitch forwards without reading it. criswitch receives a unary reply completely, so that
/// the reply counts towards the memory limit. A stream is forwarded in pieces, because it may be longer than the
/// memory.
async fn pass_as_it_is(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
) -> Result<Unsent, Failed> {
    if !call.row.streams() {
        let answer = ask(switch, call, backend, &call.headers).await?;
        note(call, backend, &answer);
        return Ok(reply::of_answer(answer).into());
    }
    let response = backend
        .call(call.user, call.row, &call.headers, call.body.clone())
        .await?;
    let listing = call.listing().filter(|listing| !listing.list.is_stats());
    let list = listing.map(|listing| listing.list);
    if let Some(list) = list {
        // Drop the cached list, because the client may see items that the cached list lacks.
        backend.outdate(list);
    }
    let reply = reply::passed(response, Arc::clone(backend), list, call.passed());
    Ok(Unsent::of(reply, [backend]))
}

/// Sends a call and reads the whole reply. Keeps the status in the reply, unless there is only one backend: criswitch
/// then serves no kept status. Drops the statuses that the call may have changed.
async fn ask(
    switch: &Switch,
    call: &Call,
    backend: &Backend,
    headers: &HeaderMap,
) -> Result<Answer, Status> {
    let changes = short::begin(call, backend);
    let asked = backend.ask(call.user, call.row, headers, call.body.clone());
    let answer = asked.await;
    if !answer.as_ref().is_err_and(errors::is_silence) {
        short::drop_changed(switch, call, backend);
    }
    if let Ok(answer) = &answer
        && !call.live.has_one_backend()
    {
        short::keep(switch, backend, (call.row, &call.body), answer, changes);
    }
    answer
}

/// Records whether the answer to a call for all items can be used.
fn note(call: &Call, backend: &Backend, answer: &Answer) {
    if let Some(passed) = call.passed() {
        passed.note(backend, answer);
    }
}

/// Learns from the reply to a call sent at `asked`, and acts on what it learned.
///
/// # Errors
/// `Unavailable` if the call created a pod or container at a backend that was removed or forgotten meanwhile, because
/// no later call would find it. Also an error if criswitch cannot read the reply.
async fn learned(
    switch: &Switch,
    call: &Call,
    backend: &Arc<Backend>,
    asked: CallMoment,
    answer: Answer,
) -> Result<Unsent, Failed> {
    note(call, backend, &answer);
    if answer.code() != Code::Ok {
        return Ok(reply::of_answer(answer).into());
    }
    let received = backend.message(&answer)?;
    give_way(&received).await;
    let is_forgotten = backend.connection.is_closed() || backend.forgets() != asked.forgets;
    if call.lesson.creates() && is_forgotten {
        return Err(errors::gone_backend().into());
    }
    // The memory of a rewritten message is counted before the message is made.
    let rewritten = may_rewrite(switch, call, backend).then_some(received.len());
    let held = backend.memory.of(call.user, call.row).held();
    let held = backend.resized(held, rewritten.unwrap_or_default())?;
    let learned = Learner::new(switch, backend, asked).learn(call, &received);
    let (message, shows) = act(switch, backend, learned)?;
    let reply = match message {
        Some(message) => {
            let held = backend.resized(held, message.len())?;
            reply::of_changed(answer, held.with(message))
        }
        None => {
            drop(held);
            reply::of_answer(answer)
        }
    };
    give_way(&received).await;
    let mut unsent = Unsent::of(reply, [backend]);
    unsent.shows.append(shows);
    Ok(unsent)
}

/// Whether criswitch may rewrite handlers, labels or a URL in the reply to `call`.
fn may_rewrite(switch: &Switch, call: &Call, backend: &Backend) -> bool {
    match &call.lesson {
        Lesson::List(listing) => View::of(switch).rewrites(listing.list, backend),
        Lesson::Image(_, handlers) => handlers.is_some() && call.live.table.renames(backend.id),
        Lesson::Handler(_) | Lesson::Url(_) => true,
        _ => false,
    }
}
