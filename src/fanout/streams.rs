//! Merges the streams of several backends: forwards whole messages as they arrive, except those of images. The first
//! failure ends the merged stream.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::{frames, grpc, protobuf};
use criswitch_cri::rpc::filter::first_of_each;
use criswitch_cri::rpc::{Items, Join, Lacking, List, Row};
use futures_util::future::try_join_all;
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use http::HeaderMap;
use http_body::Frame;
use parking_lot::Mutex;
use tonic::{Code, Status};

use crate::backend::stream::Messages;
use crate::backend::unsaved::Unsaved;
use crate::backend::{Backend, own_headers};
use crate::call::reply::{self, Reply};
use crate::call::{Call, Failed, named};
use crate::errors;
use crate::fanout::fallback::{self, Part};
use crate::fanout::{self, MergeStart, Parts, Share, merge};
use crate::gate::{Joined, Readable};
use crate::limits::STREAM_WINDOW;
use crate::limits::budget::{Budget, Reservation, Unread};
use crate::ownership::MOST;
use crate::switch::Switch;
use crate::switch::act::act;
use crate::switch::learn::{Asked, Learned, Learner};
use crate::switch::usable::keep_stats;
use crate::switch::view::View;

/// A stream with the messages of all `backends` in the order of arrival. A stream of images begins only when all images
/// have arrived, because the images of several backends may be merged into one. A backend that does not implement the
/// stream gets the unary list call `instead`.
///
/// # Errors
/// `ResourceExhausted` if the HTTP/2 windows of these streams exceed the memory for unread replies.
pub(crate) fn interleave(
    switch: &Arc<Switch>,
    call: &Call,
    backends: Vec<Arc<Backend>>,
    how: &'static Items,
    instead: &'static Row,
) -> Result<Reply, Status> {
    let windows = fanout::windows(&switch.counts, call, backends.len())?;
    let together = Together {
        without_part: backends.len(),
        parts: Parts::default(),
        open: backends.len(),
        ended: Vec::new(),
        begun: MergeStart::now(&switch.owners()),
    };
    let together = Arc::new(Mutex::new(together));
    let has_owners = call.listing().is_some_and(|it| it.list.has_owners());
    let seen = Arc::default();
    let feeds = backends.into_iter().map(|backend| {
        let feed = Feed {
            unlearned: backend.memory.all().limit(),
            unread: MOST,
            whole: StreamedList::Kept(Joined::default(), call.unread.held()),
            switch: Arc::clone(switch),
            call: call.clone(),
            shows: [&backend].into_iter().collect(),
            asked: Asked::now(&switch.owners(), &backend),
            backend,
            how,
            instead,
            together: Some(Arc::clone(&together)),
            messages: None,
            seen: if has_owners {
                Arc::clone(&seen)
            } else {
                Arc::default()
            },
        };
        stream::try_unfold(feed, Feed::next).boxed()
    });
    let messages = match how.join {
        Join::Images => merged_images(call.clone(), feeds.collect()).boxed(),
        _ => stream::select_all(feeds).boxed(),
    };
    let frames = until_failure(messages);
    Ok(reply::holding(reply::of_frames(frames), windows))
}

/// The merged images of `feeds`, which are in the order of the call's backends. Until all images have arrived, they
/// count towards the client's memory for unread replies.
fn merged_images(
    call: Call,
    feeds: Vec<BoxStream<'static, Result<Bytes, Failed>>>,
) -> impl Stream<Item = Result<Bytes, Failed>> + Send {
    let merged = async move {
        let hold = |message: Bytes| {
            let mut held = call.unread.held();
            let held = match held.grow(message.len()) {
                Ok(()) => Ok(held.with(message)),
                Err(_) => Err(errors::unread_replies(call.row.name, call.unread.limit()).into()),
            };
            ready(held)
        };
        let parts = feeds
            .into_iter()
            .map(|feed| feed.and_then(hold).try_collect());
        let parts: Vec<Vec<Bytes>> = try_join_all(parts).await?;
        let merged = merge::images(&parts.concat());
        let merged = merged.map_err(|fault| errors::unmergeable(call.row.name, &fault))?;
        Ok::<_, Failed>(stream::iter(pieces(&merged)).map(Ok))
    };
    stream::once(merged).try_flatten()
}

/// Cuts `list` into messages that each fit into an HTTP/2 window, or have one item.
fn pieces(list: &Bytes) -> Vec<Bytes> {
    let mut pieces: Vec<BytesMut> = Vec::new();
    for item in protobuf::fields(list).flatten() {
        match pieces.last_mut() {
            Some(piece) if piece.len() + item.raw.len() <= STREAM_WINDOW as usize => {
                piece.extend_from_slice(item.raw);
            }
            _ => pieces.push(item.raw.into()),
        }
    }
    pieces.into_iter().map(BytesMut::freeze).collect()
}

/// Reads a backend's stream and drops the messages. Only the end of the stream proves that the backend answers such
/// calls again.
///
/// # Errors
/// If the stream fails, or has more messages than any list has items, or more bytes than the memory for criswitch's own
/// calls.
pub(crate) async fn read_to_end(backend: &Backend, row: &'static Row) -> Result<(), Failed> {
    let mut messages = Messages::open_own(backend, row).await?;
    let limit = backend.own.all().limit();
    let mut left = limit;
    let mut unread = MOST;
    while let Some(message) = messages.next(backend).await? {
        count_message(&mut unread, backend)?;
        let bytes = frames::FRAME_HEADER + message.len();
        left = left
            .checked_sub(bytes)
            .ok_or_else(|| backend.unread(&Unread::NoMemory(limit)))?;
    }
    Ok(())
}

/// Counts a message of a stream that may have `left` further messages. Each message of an honest stream has an item,
/// but an endless stream may have only empty messages.
///
/// # Errors
/// If the stream has more messages than any list has items.
fn count_message(left: &mut usize, backend: &Backend) -> Result<(), Status> {
    let cause = || backend.bad_reply(&format!("its stream has more than {MOST} messages"));
    *left = left.checked_sub(1).ok_or_else(cause)?;
    Ok(())
}

/// Turns messages into frames, and ends them with trailers. The first failure ends the stream, and the trailers have
/// its error.
fn until_failure(
    messages: impl Stream<Item = Result<Bytes, Failed>> + Send,
) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    let frames = messages.map_ok(|message| Frame::data(frames::frame(&message)));
    let end = stream::once(ready(Ok(Frame::trailers(grpc::ok_trailers()))));
    let mut failed = false;
    frames.chain(end).scan((), move |(), frame| {
        if failed {
            return ready(None);
        }
        ready(Some(Ok(frame.unwrap_or_else(|failure| {
            failed = true;
            Frame::trailers(failure.into_trailers())
        }))))
    })
}

/// One backend's part of a merged stream.
struct Feed {
    switch: Arc<Switch>,
    call: Call,
    backend: Arc<Backend>,
    how: &'static Items,
    instead: &'static Row,
    asked: Asked,
    /// The facts that all feeds of the call share. `None` once this feed has ended.
    together: Option<Arc<Mutex<Together>>>,
    /// `None` until the first message has arrived.
    messages: Option<Messages>,
    /// How many more bytes of the list criswitch reads, because an endless list must not fill the memory. Stats do not
    /// count.
    unlearned: usize,
    /// How many more messages criswitch reads.
    unread: usize,
    whole: StreamedList,
    /// The backends whose changes the messages so far may show.
    shows: Unsaved,
    /// The ids of the items so far, at most [`MOST`]. All feeds of the call share them, because an item may pass from
    /// one backend to another during the call. Feeds of images do not, because several backends may have an image.
    seen: Arc<Mutex<HashSet<String>>>,
}

/// The facts that the feeds of one call share.
struct Together {
    /// How many of the call's backends have no part yet.
    without_part: usize,
    /// The parts of the other backends.
    parts: Parts,
    /// How many feeds have not ended.
    open: usize,
    /// The lists of the feeds that have ended, unless they are too large.
    ended: Vec<(Arc<Backend>, EndedFeed)>,
    begun: MergeStart,
}

/// The list of a feed that has ended.
enum EndedFeed {
    /// All messages of the backend.
    Own(Readable),
    /// The messages came from the cache.
    Cached,
}

/// The messages of a backend so far.
enum StreamedList {
    /// The messages become the cached list at the stream's end. Until then they count as the client's unread bytes.
    Kept(Joined, Reservation),
    /// The messages are too large for the cache, or for the client's memory for unread replies.
    TooLong,
    /// The messages come from the cache, not from the backend.
    NotItsOwn,
}

impl Feed {
    /// The next message for the client. Skips empty messages, because a client may disconnect if it gets too many.
    async fn next(mut self) -> Result<Option<(Bytes, Feed)>, Failed> {
        loop {
            let message = match self.messages.is_some() {
                true => self.message().await?,
                false => self.first().await?,
            };
            self.call.may_show(&self.shows).await?;
            match message {
                // An empty list is a stream without messages, and further messages may follow.
                Some(message) if message.is_empty() => {}
                message => return Ok(message.map(|message| (message.into(), self))),
            }
        }
    }

    /// The next message of the backend's stream. At the end of the stream, its messages become the cached list.
    async fn message(&mut self) -> Result<Option<Readable>, Failed> {
        let (Some(messages), Some(_)) = (&mut self.messages, &self.together) else {
            return Ok(None);
        };
        let next = {
            let next = pin!(messages.next(&self.backend));
            let next = self.backend.patiently(self.call.row, next);
            let record = &self.backend.record;
            record.next_of(self.call.contribution(), next).await
        };
        let next = next.map_err(|failed| self.failed(failed.named(&self.backend)))?;
        let Some(message) = next else {
            self.note(None);
            let ended = self.settle()?;
            return self.end(ended);
        };
        let message = self.readable(message);
        let message = message.map_err(|status| self.failed(status.into()))?;
        self.count_message()?;
        self.learn(message).map(Some)
    }

    /// Records why the backend's answer cannot be used, or that it can. Records nothing if the call has a filter, or if
    /// the messages are not the backend's own.
    fn note(&self, failed: Option<&str>) {
        if self.call.asks_for_all() && !matches!(self.whole, StreamedList::NotItsOwn) {
            self.backend.record.note_answer(self.call.row, failed);
        }
    }

    /// Records that the stream failed before its end.
    fn failed(&self, failed: Failed) -> Failed {
        self.note(Some(&failed.code_and_text()));
        failed
    }

    /// The first message of the backend's stream, or one message with its cached items instead of the whole stream.
    async fn first(&mut self) -> Result<Option<Readable>, Failed> {
        let mut opened = None;
        let own = async {
            let (messages, first) = self.open().await?;
            opened = Some(messages);
            Ok(first)
        };
        let part = Part {
            switch: &self.switch,
            call: &self.call,
            how: self.how,
            backend: &self.backend,
        };
        let share = fallback::with_replacement(part, own).await?;
        let is_its_own = opened.is_some();
        if !is_its_own {
            self.whole = StreamedList::NotItsOwn;
        }
        self.messages = Some(opened.unwrap_or_else(|| Messages::ended(&self.backend)));
        match self.add(share)? {
            Some(message) if message.is_empty() => Ok(Some(message)),
            Some(message) if is_its_own => self.learn(message).map(Some),
            Some(message) => Ok(Some(self.unseen(message)?)),
            None => self.end(None),
        }
    }

    /// Ends the feed. The last feed to end returns the items that no message had, because another backend owned them
    /// until its stream ended without them.
    fn end(&mut self, ended: Option<EndedFeed>) -> Result<Option<Readable>, Failed> {
        let Some(together) = self.together.take() else {
            return Ok(None);
        };
        let mut together = together.lock();
        together.open -= 1;
        let ended = ended.map(|ended| (Arc::clone(&self.backend), ended));
        together.ended.extend(ended);
        let begun = together.begun;
        let is_outdated = begun.is_outdated(&self.switch.owners());
        let is_counted = self.seen.lock().len() < MOST;
        if together.open > 0 || !is_outdated || !is_counted {
            return Ok(None);
        }
        let call = self.call.clone();
        let listing = call.listing().filter(|it| it.list.kind().is_some());
        let Some(listing) = listing else {
            return Ok(None);
        };
        let mut passed = Joined::default();
        for (backend, ended) in std::mem::take(&mut together.ended) {
            let part = Part {
                switch: &self.switch,
                call: &call,
                how: self.how,
                backend: &backend,
            };
            let own = match ended {
                EndedFeed::Own(messages) => {
                    begun.shown(&self.switch, listing.list, &backend, messages)?
                }
                EndedFeed::Cached => part.cached_again(listing)?,
            };
            self.shows.append([&backend].into_iter().collect());
            passed.add_items(&self.unseen(own)?);
        }
        Ok(Some(passed.list()))
    }

    /// Adds the part of the backend to those of the others. Returns its message; `None` if the backend is omitted.
    ///
    /// # Errors
    /// Why the call fails, if this is the last part and no backend's own answer can be used. Cached items may have
    /// passed already: the error says that they are not the whole list.
    fn add(&self, share: Share) -> Result<Option<Readable>, Failed> {
        let Some(together) = &self.together else {
            return Ok(None);
        };
        let mut together = together.lock();
        let message = together.parts.add(share);
        together.without_part -= 1;
        let failure = (together.without_part == 0).then(|| together.parts.failure());
        failure.flatten().map_or(Ok(message), Err)
    }

    /// Opens the backend's stream and reads its first message. Calls the unary list if the backend lacks the stream.
    async fn open(&self) -> Result<(Messages, Share), Failed> {
        let mut opened = self.open_with(&self.call.merged_headers()).await;
        // As in `fanout::ask`.
        if let Err(failed) = &opened
            && self.call.may_be_due_to_metadata(failed.code())
        {
            opened = self.open_with(&own_headers()).await;
        }
        match opened {
            Ok((messages, Some(message))) if self.has_failed() => {
                let whole = self.whole(messages, message).await?;
                Ok((Messages::ended(&self.backend), Share::Own(whole)))
            }
            Ok((messages, Some(message))) => Ok((messages, Share::Own(self.readable(message)?))),
            // An empty list is a stream without messages; an empty message means the same.
            Ok((messages, None)) => Ok((messages, Share::Own(Readable::default()))),
            Err(failed) if failed.code() == Code::Unimplemented => {
                Ok((Messages::ended(&self.backend), self.list_instead().await?))
            }
            Err(failed) => Err(failed.named(&self.backend)),
        }
    }

    /// Opens the backend's stream and reads its first message. `None` for a stream without messages.
    async fn open_with(&self, headers: &HeaderMap) -> Result<(Messages, Option<Bytes>), Failed> {
        let (row, body) = (self.call.row, self.call.body.clone());
        let mut messages =
            Messages::open(&self.backend, self.call.user, row, headers, body).await?;
        match messages.next(&self.backend).await? {
            Some(first) => Ok((messages, Some(first))),
            None => Ok((Messages::ended(&self.backend), None)),
        }
    }

    /// Whether the backend's last answer to this call could not be used.
    fn has_failed(&self) -> bool {
        let failures = self.backend.record.known().failures;
        let mut failures = failures.iter();
        failures.any(|failure| failure.row.has_content_of(self.call.row))
    }

    /// Reads the rest of a stream before any message passes, because the last one failed: once a message has passed,
    /// cached items cannot replace the stream any more.
    async fn whole(&self, mut messages: Messages, first: Bytes) -> Result<Readable, Failed> {
        let mut held = self.memory().held();
        let (mut whole, mut unread) = (Joined::default(), MOST);
        let mut next = Some(first);
        while let Some(message) = next {
            count_message(&mut unread, &self.backend)?;
            if whole.len() + message.len() > self.backend.max_message {
                return Err(self.backend.unread(&Unread::TooLarge).into());
            }
            let grown = held.grow(message.len());
            grown.map_err(|unread| self.backend.unread(&unread))?;
            whole.add(&self.readable(message)?);
            let read = messages.next(&self.backend).await;
            next = read.map_err(|failed| failed.named(&self.backend))?;
        }
        Ok(whole.list().holding(held))
    }

    /// Reads a message at the gate. The messages of a single backend that clients cannot decode do not come here,
    /// unless criswitch must change them.
    fn readable(&self, message: Bytes) -> Result<Readable, Status> {
        let list = self.call.listing().map(|listing| listing.list);
        let read = list.map_or_else(
            || Readable::disks(&message),
            |list| Readable::list(list, &message),
        );
        read.map_err(|fault| self.backend.bad_reply(&fault))
    }

    async fn list_instead(&self) -> Result<Share, Failed> {
        let mut call = self.call.clone();
        call.request.row = self.instead;
        let answer = fanout::ask(&call, &self.backend).await?;
        match answer.code() {
            Code::Ok => Ok(Share::Own(self.readable(self.backend.message(&answer)?)?)),
            Code::Unimplemented
                if fanout::may_lack(&self.switch.owners(), self.how, self.backend.id) =>
            {
                Ok(Share::Lacking(Failed::Answer(Box::new(answer))))
            }
            // A client that got `Unimplemented` would make no more calls for this stream, although the other backends
            // have it.
            Code::Unimplemented if self.how.lacking == Lacking::Error => {
                let list = self.instead.name;
                let cause = format!("it lacks {list}, which every runtime must have");
                Err(self.backend.bad_reply(&cause).into())
            }
            _ => Err(named(&self.backend, answer)),
        }
    }

    fn count_message(&mut self) -> Result<(), Failed> {
        let counted = count_message(&mut self.unread, &self.backend);
        counted.map_err(|status| self.failed(status.into()))
    }

    /// Learns from a message. Returns the message for the client, without the items that an earlier message had.
    fn learn(&mut self, message: Readable) -> Result<Readable, Failed> {
        let learned = self.learned(message);
        learned.map_err(|status| self.failed(status.into()))
    }

    fn learned(&mut self, message: Readable) -> Result<Readable, Status> {
        let Some(list) = self.call.listing().map(|listing| listing.list) else {
            return Ok(message);
        };
        let message = self.listed_as(list, message)?;
        self.unseen(message)
    }

    /// Returns `message` without the items that an earlier message of the call had.
    fn unseen(&self, message: Readable) -> Result<Readable, Status> {
        let Some(list) = self.call.listing().map(|listing| listing.list) else {
            return Ok(message);
        };
        let first = first_of_each(list, &message, &mut self.seen.lock(), MOST);
        let first = first.map_err(|fault| self.backend.malformed(&fault))?;
        Ok(message.rewritten(first))
    }

    fn listed_as(&mut self, list: List, message: Readable) -> Result<Readable, Status> {
        if list.is_stats() {
            // Stats that are too large to be cached are no error: the client gets the message.
            self.whole.add(&message, self.backend.max_message);
            let shown = View::of(&self.switch).shown(list, &self.backend, &message)?;
            return Ok(message.rewritten(shown));
        }
        let left = self.unlearned.checked_sub(message.len());
        let limit = self.backend.memory.all().limit();
        self.unlearned = left.ok_or_else(|| self.backend.unread(&Unread::NoMemory(limit)))?;
        self.whole.add(&message, self.backend.max_message);
        let learned = self.learner().learn_part(list, &message);
        let own = self.act(learned)?;
        Ok(message.rewritten(own))
    }

    /// Forgets items that the whole stream lacked. The stream is too long to be cached.
    fn settle_unkept(&mut self, list: List) -> Result<(), Status> {
        self.backend.saving.note_change();
        let learned = self.learner().settle(list);
        self.act(learned)?;
        Ok(())
    }

    /// Called at the end of the stream. If the call asked for all items, the messages become the cached list. Returns the
    /// list, unless it is too large.
    fn settle(&mut self) -> Result<Option<EndedFeed>, Status> {
        let kept = match std::mem::replace(&mut self.whole, StreamedList::NotItsOwn) {
            StreamedList::NotItsOwn => return Ok(Some(EndedFeed::Cached)),
            StreamedList::Kept(messages, held) => Some((messages.list(), held)),
            StreamedList::TooLong => None,
        };
        let listing = self.call.listing().filter(|listing| listing.is_whole);
        if let Some(list) = listing.map(|listing| listing.list) {
            // The cached list does not count as the client's unread bytes.
            let messages = kept.as_ref().map(|(messages, _)| messages.clone());
            self.settle_whole(list, messages)?;
        }
        Ok(kept.map(|(messages, held)| EndedFeed::Own(messages.holding(held))))
    }

    fn settle_whole(&mut self, list: List, messages: Option<Readable>) -> Result<(), Status> {
        let mut held = self.memory().held();
        let kept = messages.filter(|messages| held.grow(messages.len()).is_ok());
        match kept.map(|messages| messages.holding(held)) {
            Some(messages) if list.is_stats() => {
                keep_stats(list, &self.backend, messages, self.asked);
            }
            Some(messages) => {
                let learned = self.learner().keep_whole(list, messages);
                self.act(learned)?;
            }
            None if list.is_stats() => {}
            None => self.settle_unkept(list)?,
        }
        Ok(())
    }

    /// The memory for lists of the backend that the client asked for.
    fn memory(&self) -> &Budget {
        self.backend.memory.of(self.call.user, self.call.row)
    }

    fn learner(&self) -> Learner<'_> {
        Learner::new(&self.switch, &self.backend, self.asked)
    }

    /// Acts on what a message showed. Returns the message for the client, if it differs.
    fn act(&mut self, learned: Learned) -> Result<Option<Bytes>, Status> {
        let (message, shows) = act(&self.switch, &self.backend, learned)?;
        self.shows.append(shows);
        Ok(message)
    }
}

impl StreamedList {
    fn add(&mut self, message: &Readable, limit: usize) {
        let StreamedList::Kept(kept, held) = self else {
            return;
        };
        if kept.len() + message.len() > limit || held.grow(message.len()).is_err() {
            *self = StreamedList::TooLong;
            return;
        }
        kept.add(message);
    }
}
