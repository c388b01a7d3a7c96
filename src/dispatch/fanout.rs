//! Sends a call to several backends and merges their replies. A merged list of pods or containers is complete, or the
//! call fails.

pub(crate) mod fallback;
pub(crate) mod images;
mod large;
pub mod merge;
pub(crate) mod node_config;
pub(crate) mod probe;
pub mod status;

use std::collections::HashSet;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::protobuf::Malformed;
use criswitch_cri::rpc::filter::{filter, without_seen};
use criswitch_cri::rpc::{self, IfUnimplemented, Items, Join, List, Row};
use futures_util::future::join_all;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::answer::Answer;
use crate::backend::state::State;
use crate::backend::{Backend, own_headers};
use crate::call::reply::{self, Reply, Unsent};
use crate::call::{Call, Failed, Request, named};
use crate::dispatch::fanout::fallback::Part;
use crate::dispatch::fanout::large::Answered;
use crate::dispatch::forward;
use crate::dispatch::own::{OwnCalls, unless_silent};
use crate::errors;
use crate::gate::Readable;
use crate::limits::budget::{Reservation, most_streamed};
use crate::limits::{STREAM_WINDOW, give_way};
use crate::ownership::{self, MOST, Mark, Owners};
use crate::switch::act::act;
use crate::switch::learn::{CallMoment, Learner};
use crate::switch::usable::readable;
use crate::switch::view::View;
use crate::switch::{Switch, handlers, labels};
use crate::telemetry::counters::{Counts, Reason};

/// The cause in the error for a backend's reply that criswitch must merge or change, but that clients could not decode.
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
    /// The backend's own message, which was requested at this moment. As the client gets it, the message is larger than
    /// the backend's equal share of `max_message`, and criswitch has not learned it: the message is used only if the
    /// merged reply has room for it.
    Large(Readable, CallMoment),
    /// The backend answered that it lacks the RPC, and is omitted.
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
        if message.is_some() {
            self.is_any_cached = true;
        } else {
            self.omitted.get_or_insert(why);
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

/// A backend and its encoded part of a merged reply.
type Message = (Arc<Backend>, Readable);

/// Asks each ready backend for its metric descriptors, unless they are known. After that criswitch can rewrite metrics
/// to the label keys that clients received.
pub(crate) async fn ask_missing_descriptors(switch: &Switch, request: &Request) {
    if request.row.list() != Some(List::PodMetrics) {
        return;
    }
    let joined = request.live.joined();
    if joined.len() > 1 || switch.given.lock().is_some() {
        let asked = joined.iter().map(|it| ask_descriptors(switch, request, it));
        Box::pin(join_all(asked)).await;
    }
}

/// Whether the reply of a single backend passes unchanged: no other backend takes part in merged calls, and criswitch
/// need not rewrite the reply to the label keys that clients received or to the handler names that they use.
pub(crate) fn passes_unchanged(request: &Request, view: &View<'_>) -> bool {
    let joined = request.live.joined();
    let [only] = joined.as_slice() else {
        return false;
    };
    match request.row.list() {
        Some(List::PodMetrics) => !view.must_fit(only),
        // The messages of a stream pass without being decoded.
        Some(list) if request.row.streams() => {
            !handlers::must_rename(&view.live, &view.owners, list, only.id)
        }
        _ => true,
    }
}

/// Sends `call` to the only backend, and returns its reply as it is. Serves no cached list.
pub(crate) async fn send_alone(
    switch: &Arc<Switch>,
    call: &Call,
    only: &Arc<Backend>,
) -> Result<Unsent, Failed> {
    let window = if call.row.streams() {
        Some(window(&switch.counts, call)?)
    } else {
        None
    };
    let mut unsent = forward::send(switch, call, only).await?;
    if call.listing().map(|listing| listing.list) == Some(List::MetricDescriptors)
        && let Some(own) = labels::descriptors(only)
    {
        // A later reload may add backends. Their metric samples must then fit the descriptors that the client receives
        // now.
        labels::give_descriptors(&switch.given, &switch.live(), &own);
    }
    if let Some(window) = window {
        unsent.reply = reply::holding(unsent.reply, window);
    }
    Ok(unsent)
}

/// Joins `messages` as `join` says.
fn joined(join: &Join, messages: impl Iterator<Item = Readable>) -> Result<Vec<Bytes>, Malformed> {
    let messages: Vec<Readable> = messages.collect();
    Ok(match join {
        Join::Concat => messages.into_iter().map(Bytes::from).collect(),
        Join::Distinct(keys) => vec![merge::distinct(&messages, keys)?],
        Join::Images => vec![merge::images(&messages)?],
        Join::Profiles => vec![merge::profiles(&messages)?],
        Join::Descriptors => vec![labels::union(&messages)?],
    })
}

/// Asks the backend for its metric descriptors, once per connection. If the reply takes longer than `stats_timeout`,
/// the call continues without the reply, and criswitch asks again in the background.
async fn ask_descriptors(switch: &Switch, request: &Request, backend: &Arc<Backend>) {
    let row = &rpc::LIST_METRIC_DESCRIPTORS;
    let known = backend.record.known();
    let State::Ready(wire) = backend.connection.link().state else {
        return;
    };
    if known.has_described() || known.is_late_with(row) {
        return;
    }
    let stats = OwnCalls::new(switch, backend, Some(&wire)).ask_stats(row, List::MetricDescriptors);
    let asked = pin!(async { unless_silent(stats.await) });
    match request.within(backend.stats_timeout(), asked).await {
        Ok(Ok(())) => backend.record.learn(|known| known.describe()),
        Err(late) if late.is_fault_of_backend => backend.record.miss(row),
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Reserves memory for the HTTP/2 window of a stream that criswitch passes on, because the client may leave it unread.
fn window(counts: &Counts, call: &Call) -> Result<Reservation, Status> {
    let mut held = call.unread.held();
    if held.grow(STREAM_WINDOW as usize).is_err() {
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
    timed(backend, call.row, async {
        let answer = ask(call.merged_headers()).await;
        if call.may_be_due_to_metadata(code_of(&answer)) {
            ask(own_headers()).await
        } else {
            answer
        }
    })
    .await
}

/// Counts `asked`, a backend's part of a call of `row`, when it has ended, or when criswitch no longer waits for it.
pub(crate) async fn timed(
    backend: &Backend,
    row: &'static Row,
    asked: impl Future<Output = Result<Answer, Status>>,
) -> Result<Answer, Status> {
    let mut timer = PartTimer {
        backend,
        row,
        begun: Instant::now(),
        code: Code::Cancelled,
    };
    let answer = asked.await;
    timer.code = code_of(&answer);
    answer
}

fn code_of(answer: &Result<Answer, Status>) -> Code {
    answer.as_ref().map_or_else(Status::code, Answer::code)
}

/// A part of a call. Counts the part when it is dropped.
struct PartTimer<'a> {
    backend: &'a Backend,
    row: &'static Row,
    begun: Instant,
    code: Code,
}

impl Drop for PartTimer<'_> {
    fn drop(&mut self) {
        let time = self.begun.elapsed();
        self.backend.parts.add(self.row.name, self.code, time);
    }
}

/// Sends `call` to all `backends`, and merges their parts into one reply. The call fails if nothing can replace a part
/// that cannot be used, and for the reasons of [`Parts::failure`]. A backend is omitted only if the RPC allows it.
pub(crate) async fn merge(
    switch: &Switch,
    call: &Call,
    how: &Items,
    backends: &[Arc<Backend>],
) -> Result<Unsent, Failed> {
    let begun = MergeStart::now(&switch.owners());
    let shares = shares(switch, call, how, backends).await?;
    // The code below does not wait, so the owners do not change until it returns.
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
                Some(listing) if is_own => {
                    if is_outdated {
                        let others =
                            begun.new_elsewhere(switch, listing.list, backend, &message)?;
                        earlier.extend(others.map(|others| (Arc::clone(backend), others)));
                    }
                    part.shown(listing.list, message, |view, message| {
                        begun.shown(view, listing.list, backend, message)
                    })?
                }
                Some(listing) if is_outdated && listing.list.kind().is_some() => {
                    earlier.push((Arc::clone(backend), message));
                    part.cached_again(listing)?
                }
                _ => message,
            };
            messages.push((Arc::clone(backend), message));
        }
    }
    // The new owner of an item may have been asked before it had the item, or not asked at all, so the items of earlier
    // owners are added: without them, the tests `a_list_has_a_pod_*` of changed_owners.rs lose a pod. Of two items with
    // the same id, the first is kept, so the parts of the current owners come first.
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
    // An answer of one backend may have changed the items of another. The reply waits for the disk before its parts are
    // merged: the parts count in memory, and a merged copy counts only as an unread reply.
    call.may_show(&backends.iter().collect()).await?;
    Ok(one_message(switch, call, &how.join, messages)?.into())
}

/// Asks all `backends` at once, and learns their answers. Replaces a part that cannot be used (see [`fallback`]) or
/// that is too large (see [`large`]).
async fn shares(
    switch: &Switch,
    call: &Call,
    how: &Items,
    backends: &[Arc<Backend>],
) -> Result<Vec<Share>, Failed> {
    let equal_share = most(switch, call.row) / backends.len().max(1);
    let answered = backends.iter().map(|backend| async move {
        let part = Part {
            switch,
            call,
            how,
            backend,
        };
        let share = fallback::with_replacement(part, own_share(part, equal_share)).await?;
        Ok::<_, Failed>(Answered { part, share })
    });
    let mut answered = join_all(answered)
        .await
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    large::replace_large_parts(&mut answered)?;
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

    /// Returns the list `message` of a backend, which criswitch has learned already, as the client gets it, if it
    /// differs. Uses the owners that are known now, because an answer of one backend may have changed the items of
    /// another.
    fn shown(
        &self,
        view: &View<'_>,
        list: List,
        backend: &Backend,
        message: &Readable,
    ) -> Result<Option<Readable>, Status> {
        if self.is_outdated(&view.owners) {
            view.shown_without_foreign_items(list, backend, message, self.mark)
        } else {
            view.shown(list, backend, message)
        }
    }

    /// Returns, as the client gets them, the items of the list `message` of `backend` that other backends own now
    /// because those backends listed the items after the merge began.
    fn new_elsewhere(
        &self,
        switch: &Switch,
        list: List,
        backend: &Backend,
        message: &Readable,
    ) -> Result<Option<Readable>, Status> {
        let view = View::of(switch);
        let Some(ids) = list
            .kind()
            .map(|kind| ownership::new_elsewhere(&view.owners, kind, backend.id, self.mark))
            .filter(|ids| !ids.is_empty())
        else {
            return Ok(None);
        };
        let items = filter(list, message, &[], |id| ids.contains(id))
            .map_err(|fault| backend.malformed(&fault))?;
        Ok(Some(view.shown(list, backend, &items)?.unwrap_or(items)))
    }
}

/// Drops each item that an earlier part has too.
fn each_once(list: List, messages: &mut [Message]) -> Result<(), Failed> {
    let mut seen = HashSet::new();
    for (backend, message) in messages {
        let first = without_seen(list, message, &mut seen, MOST);
        if let Some(first) = first.map_err(|fault| backend.malformed(&fault))? {
            *message = first;
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
    let asked = CallMoment::now(&switch.owners(), backend);
    let answer = ask(call, backend).await?;
    match answer.code() {
        Code::Ok => {
            let message = backend.message(&answer)?;
            give_way(&message).await;
            let list = call.listing().map(|listing| listing.list);
            let fits = match list {
                Some(list) => View::of(switch).is_at_most(list, backend, &message, equal_share),
                None => message.len() <= equal_share,
            };
            if fits {
                let learned = learned_share(part, &message, asked);
                give_way(&message).await;
                return learned;
            }
            let message = readable(&switch.live(), list, backend, &message)?
                .ok_or_else(|| backend.bad_reply(UNREADABLE))?;
            Ok(Share::Large(message, asked))
        }
        Code::Unimplemented if may_lack(&switch.owners(), how, backend.id) => {
            Ok(Share::Lacking(Failed::Answer(Box::new(answer))))
        }
        // A client that got `Unimplemented` would make no more calls for this stream, although the other backends have
        // it.
        Code::Unimplemented if how.lacking == IfUnimplemented::Error && call.row.streams() => {
            let list = call.row.unary().map_or(call.row.name, |list| list.name);
            let cause = format!("it lacks {list}, which every runtime must have");
            Err(backend.bad_reply(&cause).into())
        }
        _ => Err(named(backend, answer)),
    }
}

/// The most bytes of a merged reply. The messages of a stream are small, so `max_message` does not limit the whole.
fn most(switch: &Switch, row: &Row) -> usize {
    if row.streams() {
        most_streamed(switch.max_message)
    } else {
        switch.max_message
    }
}

/// Learns from `message`, the backend's part of a merged reply.
fn learned_share(part: Part<'_>, message: &Bytes, asked: CallMoment) -> Result<Share, Failed> {
    let Part {
        switch,
        call,
        backend,
        ..
    } = part;
    let mut learned = Learner::new(switch, backend, asked).learn_share(call, message);
    let readable = learned.readable.take();
    act(switch, backend, learned)?;
    Ok(Share::Own(
        readable.ok_or_else(|| backend.bad_reply(UNREADABLE))?,
    ))
}

/// Whether a merged reply may omit a backend that returns `Unimplemented`.
fn may_lack(owners: &Owners, how: &Items, backend: BackendId) -> bool {
    match how.lacking {
        IfUnimplemented::Omitted => true,
        IfUnimplemented::FailsForPods => owners.count(backend) == (0, 0),
        IfUnimplemented::Error => false,
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
    let merged = joined(join, messages.into_iter().map(|(_, message)| message))
        .map_err(|fault| errors::unmergeable(call.row.name, &fault))?;
    let limit = most(switch, call.row);
    if merged.iter().map(Bytes::len).sum::<usize>() > limit {
        return Err(errors::reply_too_large(call.row, limit, &sizes).into());
    }
    if let (Join::Descriptors, [union]) = (join, merged.as_slice()) {
        labels::give_descriptors(&switch.given, &switch.live(), union);
    }
    if call.row.streams() {
        let pieces = merged
            .iter()
            .flat_map(|list| merge::pieces(list, STREAM_WINDOW as usize));
        return Ok(reply::of_messages(pieces.collect()));
    }
    Ok(reply::of_message(merged))
}
