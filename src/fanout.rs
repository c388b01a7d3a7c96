//! Sends a call to several backends and merges their replies. A merged list of pods, containers or images is complete,
//! or the call fails.

pub(crate) mod fallback;
pub(crate) mod images;
mod large;
pub mod merge;
pub(crate) mod probe;
pub mod status;
pub(crate) mod streams;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::cri;
use criswitch_cri::codec::protobuf::Malformed;
use criswitch_cri::rpc::filter::first_of_each;
use criswitch_cri::rpc::{self, Items, Join, Lacking, List};
use futures_util::future::join_all;
use parking_lot::Mutex;
use prost::Message as _;
use tonic::{Code, Status};

use crate::backend::answer::Answer;
use crate::backend::state::State;
use crate::backend::{Backend, own_headers};
use crate::call::reply::{self, Reply, Unsent};
use crate::call::{Call, Failed, Request, named};
use crate::errors;
use crate::fanout::fallback::Part;
use crate::fanout::large::Answered;
use crate::forward;
use crate::forward::own::{OwnCalls, unless_silent};
use crate::forward::short;
use crate::gate::Readable;
use crate::limits::budget::Reservation;
use crate::limits::{STREAM_WINDOW, give_way};
use crate::ownership::{MOST, Mark, Owners};
use crate::switch::act::act;
use crate::switch::learn::{Asked, Learner};
use crate::switch::usable::readable;
use crate::switch::view::View;
use crate::switch::{Switch, handlers, labels};
use crate::telemetry::counters::{Counts, Reason};
use crate::topology::Live;

/// Why a part of the only backend that criswitch must merge or change cannot be used.
const UNREADABLE: &str = "clients cannot decode its reply";

/// The result of one backend, for a call that goes to several backends.
#[derive(Debug)]
pub(crate) struct BackendResult {
    pub backend: Arc<Backend>,
    /// The backend's reply, or the error if there is no reply.
    pub result: Result<Answer, Status>,
}

/// One backend's part of a merged reply.
pub(crate) enum Share {
    /// The backend's own message, which criswitch has learned. It may have items of other backends.
    Own(Readable),
    /// The backend's own message, asked for at this moment. It is larger than the backend's equal share of
    /// `max_message`, and criswitch has not learned it: it is used only if the merged reply has room for it.
    Large(Readable, Asked),
    /// The backend lacks the RPC, which is its answer, and is omitted.
    Lacking(Failed),
    /// The backend's answer cannot be used, for this reason. The message has its cached items; without a message the
    /// backend is omitted.
    Replaced(Option<Readable>, Failed),
}

/// The parts of one merged reply so far.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    is_any_own: bool,
    is_any_cached: bool,
    /// The first answer that cannot be used.
    failed: Option<Failed>,
    /// Why the first backend without an answer is omitted.
    omitted: Option<Failed>,
}

impl Parts {
    /// Adds a part. Returns its message; `None` if the backend is omitted.
    pub(crate) fn add(&mut self, share: Share) -> Option<Readable> {
        let (message, why) = match share {
            Share::Own(message) | Share::Large(message, _) => {
                self.is_any_own = true;
                return Some(message);
            }
            Share::Lacking(why) => (None, why),
            Share::Replaced(message, why) if why.is_silence() => (message, why),
            Share::Replaced(message, why) => {
                self.failed.get_or_insert(why);
                return message;
            }
        };
        match message.is_some() {
            true => self.is_any_cached = true,
            false => drop(self.omitted.get_or_insert(why)),
        }
        message
    }

    /// Why the call fails, once all parts are added: no backend's own answer can be used, and one of them is an error
    /// or unreadable, or all backends are omitted.
    pub(crate) fn failure(&mut self) -> Option<Failed> {
        if self.is_any_own {
            return None;
        }
        let omitted = self.omitted.take().filter(|_| !self.is_any_cached);
        self.failed.take().or(omitted)
    }
}

/// Backends that get the runtime configuration again if the client cancels the call before all of them have answered.
struct Unanswered<'a>(&'a [Arc<Backend>]);

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|backend| backend.nudges.owed.notify_one());
    }
}

/// Returns the reply to `UpdateRuntimeConfig`. The call fails if a backend rejects the configuration, or if no backend
/// accepts it. The error names each backend that rejected the configuration or did not answer.
fn accepted(parts: Vec<BackendResult>) -> Result<Reply, Failed> {
    let (mut accepted, mut rejected, mut missed) = (None, Vec::new(), Vec::new());
    for BackendResult { backend, result } in parts {
        match result {
            Ok(answer) if answer.code() == Code::Ok => {
                accepted = accepted.or(Some(reply::of_answer(answer)));
            }
            Ok(answer) if answer.code() == Code::Unimplemented => {
                accepted = accepted.or_else(|| Some(reply::of_message(Vec::new())));
            }
            Ok(answer) => {
                backend.nudges.owed.notify_one();
                rejected.push(named(&backend, answer));
            }
            Err(status) => {
                backend.nudges.owed.notify_one();
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

/// A backend and its encoded part of a merged reply.
type Message = (Arc<Backend>, Readable);

/// Asks each backend for its metric descriptors, unless they are known, before metrics are rewritten to the label keys
/// that clients received.
pub(crate) async fn ask_missing_descriptors(switch: &Switch, request: &Request) {
    if request.row.list() != Some(List::PodMetrics) {
        return;
    }
    let joined = request.live.joined();
    if joined.len() > 1 || switch.given.lock().is_some() {
        let asked = joined.iter().map(|it| ask_descriptors(switch, it));
        Box::pin(join_all(asked)).await;
    }
}

/// Whether the reply of a single backend to a call for all passes as it is: no other backend takes part in merged
/// calls, and clients received no label keys and use no names of handlers that the reply lacks.
pub(crate) fn is_alone(request: &Request, view: &View<'_>) -> bool {
    let joined = request.live.joined();
    let [only] = joined.as_slice() else {
        return false;
    };
    match request.row.list() {
        Some(List::PodMetrics) => !labels::must_fit(view, only),
        // The messages of a stream pass without being decoded.
        Some(list) if request.row.streams() => {
            !handlers::must_rename(&view.live, &view.owners, list, only.id)
        }
        _ => true,
    }
}

/// Sends `call` to the only backend, and returns its reply as it is.
pub(crate) async fn send_alone(
    switch: &Arc<Switch>,
    call: &Call,
    only: &Arc<Backend>,
) -> Result<Unsent, Failed> {
    let windows = match call.row.streams() {
        true => Some(windows(&switch.counts, call, 1)?),
        false => None,
    };
    let mut unsent = forward::send(switch, call, only).await?;
    let list = call.listing().map(|listing| listing.list);
    if list == Some(List::MetricDescriptors)
        && let Some(own) = labels::descriptors(only)
    {
        // A later reload may add backends. Their metric samples must then fit the descriptors that the client receives
        // now.
        labels::give_descriptors(&switch.given, &switch.live(), &own);
    }
    if let Some(windows) = windows {
        unsent.reply = reply::holding(unsent.reply, windows);
    }
    Ok(unsent)
}

/// Joins `messages` as `join` says.
fn joined(join: &Join, messages: &[Bytes]) -> Result<Vec<Bytes>, Malformed> {
    Ok(match join {
        Join::Concat => messages.to_vec(),
        Join::Distinct(keys) => vec![merge::distinct(messages, keys)?],
        Join::Images => vec![merge::images(messages)?],
        Join::Descriptors => vec![labels::union(messages)?],
    })
}

/// Asks the backend for its metric descriptors, once per connection. If the reply takes longer than `stats_timeout`,
/// the call continues without the reply, and criswitch asks again in the background.
async fn ask_descriptors(switch: &Switch, backend: &Arc<Backend>) {
    let row = &rpc::LIST_METRIC_DESCRIPTORS;
    let known = backend.record.known();
    let State::Ready(wire) = backend.connection.link().state else {
        return;
    };
    if known.has_described() || known.is_late_with(row) {
        return;
    }
    let own = OwnCalls::new(switch, backend, Some(&wire));
    let asked = own.ask_stats(row, List::MetricDescriptors);
    let asked = async { unless_silent(asked.await) };
    match tokio::time::timeout(backend.stats_timeout(), asked).await {
        Ok(Ok(())) => backend.record.learn(|known| known.describe()),
        Ok(Err(_)) => {}
        Err(_) => backend.record.miss(row),
    }
}

/// Reserves memory for the HTTP/2 windows of `streams` streams, because the client may leave all of them unread.
pub(crate) fn windows(counts: &Counts, call: &Call, streams: usize) -> Result<Reservation, Status> {
    let mut held = call.unread.held();
    if held.grow(streams * STREAM_WINDOW as usize).is_err() {
        counts.reject(Reason::Unread);
        return Err(errors::unread_replies(call.row.name, call.unread.limit()));
    }
    Ok(held)
}

/// Sends `call`, which goes to several backends, to one of them, and reads the reply. A read that fails is sent again
/// without the client's metadata, which may be the cause.
pub(crate) async fn ask(call: &Call, backend: &Backend) -> Result<Answer, Status> {
    let ask = |headers| async move {
        backend
            .ask(call.user, call.row, &headers, call.body.clone())
            .await
    };
    let answer = ask(call.merged_headers()).await;
    let code = answer.as_ref().map_or_else(Status::code, Answer::code);
    match call.may_be_due_to_metadata(code) {
        true => ask(own_headers()).await,
        false => answer,
    }
}

/// Sends `call` to all `backends` at once and reads their replies. Waits for each at most `list_timeout`.
async fn gather(call: &Call, backends: &[Arc<Backend>]) -> Vec<BackendResult> {
    let asked = backends.iter().cloned().map(|backend| async move {
        // A single backend is waited for as long as its client does, as without criswitch.
        let limit = if call.live.is_alone() {
            Duration::MAX
        } else {
            backend.list_timeout()
        };
        let asked = call.within(limit, pin!(ask(call, &backend))).await;
        let result = asked.unwrap_or_else(|_| Err(backend.timed_out(call.row)));
        BackendResult { backend, result }
    });
    join_all(asked).await
}

/// Sends `call` to all `backends`, and merges their parts into one reply; the call fails if nothing can replace a part
/// that cannot be used, or if no backend's own answer can be used. A backend is omitted only if the RPC allows it.
pub(crate) async fn merge(
    switch: &Switch,
    call: &Call,
    how: &Items,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    let begun = MergeStart::now(&switch.owners());
    let shares = shares(switch, call, how, backends).await?;
    // The rest waits for nothing, so the owners stay as they are now.
    let is_outdated = begun.is_outdated(&switch.owners());
    let mut parts = Parts::default();
    let mut messages = Vec::with_capacity(backends.len());
    let mut earlier = Vec::new();
    for (backend, share) in backends.iter().zip(shares) {
        let is_own = matches!(share, Share::Own(_));
        if let Some(message) = parts.add(share) {
            let part = Part {
                switch,
                call,
                how,
                backend,
            };
            let message = match call.listing() {
                Some(listing) if is_own => begun.shown(switch, listing.list, backend, message)?,
                Some(listing) if is_outdated && listing.list.kind().is_some() => {
                    earlier.push((Arc::clone(backend), message));
                    part.cached_again(listing)?
                }
                _ => message,
            };
            messages.push((Arc::clone(backend), message));
        }
    }
    // An item may have passed to a backend that joined later than the call. Of two items with one id, the first counts,
    // so the parts of the owners come first.
    messages.append(&mut earlier);
    let list = call.listing().map(|listing| listing.list);
    // Two backends may have stats of a pod that criswitch does not know yet.
    if let Some(list) = list.filter(|list| list.has_owners())
        && (list.is_stats() || is_outdated)
    {
        each_once(list, &mut messages)?;
    }
    if let Some(why) = parts.failure() {
        return Err(why);
    }
    let merged = one_message(switch, call, &how.join, messages)?;
    // An answer of one backend may have changed the items of another.
    Ok(Unsent::of(merged, backends))
}

/// Asks all `backends` at once, and learns their answers. A part that cannot be used is replaced (see [`fallback`]), also
/// one that is too large (see [`large`]).
async fn shares(
    switch: &Switch,
    call: &Call,
    how: &Items,
    backends: &[Arc<Backend>],
) -> Result<Vec<Share>, Failed> {
    let equal_share = switch.max_message / backends.len().max(1);
    let answered = backends.iter().map(|backend| async move {
        let part = Part {
            switch,
            call,
            how,
            backend,
        };
        let own = own_share(part, equal_share);
        let share = fallback::with_replacement(part, own).await?;
        Ok::<_, Failed>(Answered { part, share })
    });
    let answered = join_all(answered).await.into_iter();
    let mut answered = answered.collect::<Result<Vec<_>, _>>()?;
    large::settle(&mut answered)?;
    Ok(answered.into_iter().map(|it| it.share).collect())
}

/// The beginning of a call to several backends.
#[derive(Clone, Copy)]
struct MergeStart {
    mark: Mark,
    changes: u64,
}

impl MergeStart {
    fn now(owners: &Owners) -> MergeStart {
        let (mark, changes) = (owners.mark(), owners.changes());
        MergeStart { mark, changes }
    }

    /// Whether a fact has changed that a list may show or depend on.
    fn is_outdated(&self, owners: &Owners) -> bool {
        owners.changes() != self.changes
    }

    /// The list `message` of a backend, which is learned, as the client gets it. An answer of one backend may have changed
    /// the items of another, so the owners count that are known now.
    fn shown(
        &self,
        switch: &Switch,
        list: List,
        backend: &Backend,
        message: Readable,
    ) -> Result<Readable, Status> {
        let view = View::of(switch);
        let shown = if self.is_outdated(&view.owners) {
            view.own(list, backend, &message, self.mark)?
        } else {
            view.shown(list, backend, &message)?
        };
        Ok(message.rewritten(shown))
    }
}

/// Drops each item that an earlier part has too.
fn each_once(list: List, messages: &mut [Message]) -> Result<(), Failed> {
    let mut seen = HashSet::new();
    for (backend, message) in messages {
        let first = first_of_each(list, message, &mut seen, MOST);
        if let Some(first) = first.map_err(|fault| backend.malformed(&fault))? {
            *message = std::mem::take(message).rewritten(Some(first));
        }
    }
    Ok(())
}

/// Asks the backend for its part of a merged reply, and learns from the reply unless it is larger than `equal_share`.
async fn own_share(part: Part<'_>, equal_share: usize) -> Result<Share, Failed> {
    let Part {
        switch,
        call,
        how,
        backend,
    } = part;
    let asked = Asked::now(&switch.owners(), backend);
    let answer = ask(call, backend).await?;
    match answer.code() {
        Code::Ok => {
            let message = backend.message(&answer)?;
            give_way(&message).await;
            if message.len() <= equal_share {
                let learned = learned_share(part, &message, asked);
                give_way(&message).await;
                return learned;
            }
            let list = call.listing().map(|listing| listing.list);
            let message = readable(&switch.live(), list, backend, &message)?;
            let message = message.ok_or_else(|| backend.bad_reply(UNREADABLE))?;
            Ok(Share::Large(message, asked))
        }
        Code::Unimplemented if may_lack(&switch.owners(), how, backend.id) => {
            Ok(Share::Lacking(Failed::Answer(Box::new(answer))))
        }
        _ => Err(named(backend, answer)),
    }
}

/// Learns from `message`, the backend's part of a merged reply.
fn learned_share(part: Part<'_>, message: &Bytes, asked: Asked) -> Result<Share, Failed> {
    let Part {
        switch,
        call,
        backend,
        ..
    } = part;
    let mut learned = Learner::new(switch, backend, asked).learn_share(call, message);
    let readable = learned.readable.take();
    act(switch, backend, learned)?;
    let readable = readable.ok_or_else(|| backend.bad_reply(UNREADABLE))?;
    Ok(Share::Own(readable))
}

/// Whether a merged reply may omit a backend that returns `Unimplemented`.
pub(crate) fn may_lack(owners: &Owners, how: &Items, backend: BackendId) -> bool {
    match how.lacking {
        Lacking::LeftOut => true,
        Lacking::FailsForPods => owners.count(backend) == (0, 0),
        Lacking::Error => false,
    }
}

fn one_message(
    switch: &Switch,
    call: &Call,
    join: &Join,
    messages: Vec<Message>,
) -> Result<Reply, Failed> {
    let sizes: Vec<_> = messages
        .iter()
        .map(|(backend, message)| (backend.name(), message.len()))
        .collect();
    let bytes: Vec<_> = messages
        .into_iter()
        .map(|(_, message)| message.into())
        .collect();
    let joined = joined(join, &bytes);
    let merged = joined.map_err(|fault| errors::unmergeable(call.row.name, &fault))?;
    let limit = switch.max_message;
    if merged.iter().map(Bytes::len).sum::<usize>() > limit {
        return Err(errors::reply_too_large(call.row.name, limit, &sizes).into());
    }
    if let (Join::Descriptors, [union]) = (join, merged.as_slice()) {
        labels::give_descriptors(&switch.given, &switch.live(), union);
    }
    Ok(reply::of_message(merged))
}

/// `UpdateRuntimeConfig` succeeds if each reachable backend applies the configuration. A backend that is away gets the
/// configuration when it answers again. Even a reply with an error waits until the state file of each backend has the
/// new configuration or is removed, so that no restart restores an older one.
pub(crate) async fn update_runtime_config(
    last: &Mutex<Option<Bytes>>,
    live: &Live,
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    *last.lock() = Some(call.body.clone());
    // A backend that a reload has just added is not in `backends`, and may have the previous configuration. The session
    // of such a backend sends the new configuration.
    let asked = |new: &Backend| backends.iter().any(|backend| backend.id == new.id);
    let new = live.backends.iter().filter(|backend| !asked(backend));
    new.for_each(|backend| backend.nudges.owed.notify_one());
    live.backends.iter().for_each(|it| it.saving.note_change());
    let mut unanswered = Unanswered(backends);
    let parts = gather(call, backends).await;
    unanswered.0 = &[];
    match accepted(parts) {
        Ok(reply) => Ok(Unsent::of(reply, &live.backends)),
        Err(failed) => {
            // The client needs the cause of a failed save less than that of the failed call.
            call.may_show(&live.backends.iter().collect()).await.ok();
            Err(failed)
        }
    }
}

/// A `RuntimeConfigResponse` with this cgroup driver.
fn runtime_config_of(driver: u64) -> Bytes {
    let driver = i32::try_from(driver).unwrap_or_default();
    let linux = cri::LinuxRuntimeConfiguration {
        cgroup_driver: driver,
    };
    cri::RuntimeConfigResponse { linux: Some(linux) }
        .encode_to_vec()
        .into()
}

/// Returns the default backend's reply to `RuntimeConfig`. If the default backend does not implement the RPC, returns the
/// cgroup driver of its configuration; if that is not known, the first successful reply of another backend, in the order
/// of `backends`. criswitch waits at most `list_timeout` for each other backend.
pub(crate) async fn runtime_config(
    call: &Call,
    backends: &[Arc<Backend>],
) -> Result<Reply, Failed> {
    // A reload may change the default backend during the call. Read its id once, so that no backend is asked twice.
    let default_backend = call.live.default_backend();
    let is_default = |backend: &&Arc<Backend>| backend.id == default_backend;
    let mut own = None;
    // After a reload, `backends` may lack the default backend.
    if let Some(default) = backends.iter().find(is_default) {
        let answer = short::in_time(call, default, pin!(ask(call, default))).await?;
        if answer.code() != Code::Unimplemented {
            return Ok(reply::of_answer(answer));
        }
        if let Some(driver) = default.record.known().cgroup_driver {
            return Ok(reply::of_message(vec![runtime_config_of(driver)]));
        }
        own = Some(answer);
    }
    let others = backends.iter().filter(|backend| !is_default(backend));
    let asked = others.map(|backend| async move {
        let answer = short::in_time(call, backend, pin!(ask(call, backend))).await?;
        if answer.code() != Code::Ok {
            return Err(named(backend, answer));
        }
        let config = cri::RuntimeConfigResponse::decode(backend.message(&answer)?);
        let config = config
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
