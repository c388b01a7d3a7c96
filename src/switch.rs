//! The path of a call: read the request, route it, send it, learn from the reply.
//!
//! Nothing is spawned for a call, so a client that goes away takes its calls at the backends with it.

mod creating;
mod target;

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use hyper::body::Incoming;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::answer::Answer;
use crate::backend::{Backend, Wire};
use crate::call::{Call, Failed};
use crate::config::{BackendConfig, Config, Handler};
use crate::counts::{Counts, Reason};
use crate::dialer::Dialer;
use crate::ending::Ending;
use crate::events::Events;
use crate::images::PodRequests;
use crate::learn::{Asked, pod_names};
use crate::live::Live;
use crate::log_queue::LogQueue;
use crate::memory::{Memory, Shares, Unread};
use crate::owners::{BackendId, Owners};
use crate::question::Question;
use crate::reload::Reloads;
use crate::reply::{self, Reply};
use crate::route::Target;
use crate::rpc::{self, Goes, ImageRule, Kind, Merge, Row, Silent, Then, Unknown};
use crate::state::BRIEF_WAIT;
use crate::store::{Known, Store};
use crate::telemetry::CallLog;
use crate::{status, wire};

/// Calls in flight at once, of all clients; a kubelet has a few for each pod at most. A reply that is all there and waits
/// to be read counts in memory instead.
pub const MAX_CALLS: usize = 4096;
/// How long a client may take to send a request, which is one message: clients that stop in the middle must not add up.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(30);

/// The header of a call that is to be answered soon, also while backends are waited for at a start.
pub const SOON: &str = "criswitch-soon";

/// The table, its backends, and what is known of them.
#[derive(Debug)]
pub struct Switch {
    /// The table of now.
    pub(crate) live: watch::Sender<Arc<Live>>,
    /// How backends are connected to.
    pub(crate) dialer: Dialer,
    /// The largest message, in bytes, that is read or made.
    pub max_message: usize,
    /// Until when the first calls to all backends wait for these to be there.
    pub start_by: Instant,
    /// The end, once it has begun.
    pub(crate) ending: Ending,
    /// The pods' and containers' events, for all that have subscribed.
    pub(crate) events: Events,
    /// What pods have asked of the image stores.
    pub(crate) pod_requests: Mutex<PodRequests>,
    /// The last `UpdateRuntimeConfig`, framed, for backends that come back.
    pub runtime_config: Mutex<Option<Bytes>>,
    /// The metric descriptors that a client was last given.
    pub(crate) given: Mutex<Option<Bytes>>,
    /// What is counted.
    pub counts: Arc<Counts>,
    /// The log lines that wait to be written, where the process has such a queue.
    pub log: LogQueue,
    /// The question to all backends that misses share.
    pub(crate) question: Question,
    /// What reloads have come to.
    pub(crate) reloads: Mutex<Reloads>,
    /// Where the state is saved, if it is.
    pub(crate) store: Option<Arc<Store>>,
    owners: Mutex<Owners>,
    calls: Arc<Semaphore>,
    /// What the requests in flight take.
    pub memory: Memory,
    /// What the replies take that clients have not read yet.
    pub unread: Shares,
}

impl Switch {
    /// A switch without a state on disk: each of its backends may have pods that clients know.
    pub fn new(config: Config, dialer: &Dialer) -> Switch {
        let switch = Switch::not_started(config, Vec::new(), dialer);
        for backend in &switch.live().backends {
            switch.restore(backend, Known::Unknown);
        }
        switch
    }

    /// A switch with backends that are `kept` for their pods; none of its backends is part of lists yet.
    pub(crate) fn not_started(config: Config, kept: Vec<BackendConfig>, dialer: &Dialer) -> Switch {
        let max_message = config.max_message;
        Switch {
            max_message,
            start_by: Instant::now() + config.start_wait,
            ending: Ending::default(),
            events: Events::default(),
            pod_requests: Mutex::default(),
            runtime_config: Mutex::default(),
            given: Mutex::default(),
            counts: Arc::default(),
            log: LogQueue::default(),
            question: Question::default(),
            store: None,
            owners: Mutex::default(),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            memory: Memory::for_messages(max_message),
            unread: Shares::for_unread(max_message),
            reloads: Mutex::new(Reloads::new(config.table.backends.len() + kept.len())),
            live: watch::Sender::new(Arc::new(Live::first(config, &kept, |row| {
                Backend::new(row, max_message, dialer.clone())
            }))),
            dialer: dialer.clone(),
        }
    }

    /// The table of now.
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Replaces the table of now. Which backend has adopted which handler is saved.
    pub(crate) fn set_live(&self, live: Live) {
        let before = self.live.send_replace(live.into());
        let live = self.live();
        let differs = |id| !before.adopted_by(id).eq(live.adopted_by(id));
        let changed = live.backends.iter().filter(|it| differs(it.id));
        changed.for_each(|backend| backend.has_changed());
    }

    /// Tells when there is another one.
    pub(crate) fn tables(&self) -> watch::Receiver<Arc<Live>> {
        self.live.subscribe()
    }

    /// Answers one request of a connection whose replies count in `unread`; every failure is a reply.
    pub async fn serve(self: Arc<Self>, request: http::Request<Incoming>, unread: Memory) -> Reply {
        if !is_grpc(&request) {
            self.counts.refuse(Reason::NotGrpc);
            return reply::not_grpc();
        }
        let Some(row) = rpc::find(request.uri().path()) else {
            self.counts.refuse(Reason::UnknownRpc);
            return reply::of_status(&status::no_such_rpc(request.uri().path()));
        };
        let Ok(place) = Arc::clone(&self.calls).try_acquire_owned() else {
            self.counts.refuse(Reason::Calls);
            return reply::of_status(&status::too_many_calls(row.name, MAX_CALLS));
        };
        let log = CallLog::begin(row, request.headers(), &self.counts);
        let deadline = log
            .timeout()
            .map(|timeout| (log.started() + timeout, status::deadline(row.name, timeout)));
        let mut cut = self.ending.cut(row.name, deadline);
        let answered = {
            let mut answer = pin!(self.answer(row, request, &unread, &log));
            tokio::select! {
                biased;
                answered = log.doing(answer.as_mut()) => answered.unwrap_or_else(Failed::into_reply),
                status = &mut cut => reply::of_status(&status),
            }
        };
        let (answered, place) = reply::counted(answered, place, row, &unread, &self.counts);
        let reply = reply::watched(answered, log, cut);
        match place {
            Some(place) => reply::holding(reply, place),
            None => reply,
        }
    }

    async fn answer(
        self: &Arc<Self>,
        row: &'static Row,
        request: http::Request<Incoming>,
        unread: &Memory,
        log: &CallLog,
    ) -> Result<Reply, Failed> {
        let call = self.read(row, request, unread).await?;
        log.received(call.body.len());
        log.is_for(&call.message());
        self.started(&call).await;
        let live = Arc::clone(&call.live);
        let target = self.target(&call).await?;
        log.goes_to(&target, &live);
        self.note_handler(&call, &target);
        self.learn_names(&call, &target);
        match target {
            Target::Backend(backend) if matches!(row.goes, Goes::Default) => {
                Box::pin(self.version_of(&call, live.backend(backend)?)).await
            }
            Target::Backend(backend) => self.send(&call, live.backend(backend)?, None).await,
            Target::Owner(backend, ..) if row.merge().is_some() => {
                Box::pin(self.to_backends(call, &[backend])).await
            }
            Target::Owner(backend, kind, id) => {
                self.to_owner(&call, live.backend(backend)?, (kind, &id))
                    .await
            }
            Target::Handler(handler) => self.to_handler(&call, &handler).await,
            Target::Backends(backends) => Box::pin(self.to_backends(call, &backends)).await,
            Target::SomePod(stores) => Box::pin(self.find_for_some_pod(&call, &stores)).await,
            Target::Miss(kind, id) => Ok(of_unknown(row, kind, &id)?),
            // `target` has turned it into a backend, all backends or an error.
            Target::UnknownPod(_) => Err(status::no_backend().into()),
        }
    }

    /// After a start the first lists wait for backends that have not been listed yet: for each as long as it may have
    /// pods that clients know and criswitch does not. The first calls that the default backend answers wait for that one,
    /// briefly.
    async fn started(&self, call: &Call) {
        if Instant::now() >= self.start_by {
            return;
        }
        let speaker = call.live.speaker();
        let waits: Vec<_> = match &call.row.goes {
            // Subscribers hear of what backends have when these are there.
            Goes::All(_, Merge::Events) => return,
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge))
                if rpc::silent(merge) == Some(Silent::LastKnown) =>
            {
                call.live.joined()
            }
            Goes::Default | Goes::All(..) => {
                let speaker = call.live.backend(speaker).cloned();
                speaker.into_iter().collect()
            }
            _ => return,
        };
        let lists = call.row.is_list() && !call.headers.contains_key(SOON);
        let latest = match lists {
            true => self.start_by,
            false => self.start_by.min(Instant::now() + BRIEF_WAIT),
        };
        join_all(waits.iter().map(|backend| backend.started(latest))).await;
    }

    async fn read(
        &self,
        row: &'static Row,
        request: http::Request<Incoming>,
        unread: &Memory,
    ) -> Result<Call, Status> {
        let (head, body) = request.into_parts();
        let limit = self.max_message.saturating_add(wire::FRAME_HEADER);
        let read = self.memory.read(&head.headers, body, limit);
        let body = match tokio::time::timeout(REQUEST_LIMIT, read).await {
            Ok(Ok(whole)) => whole.body,
            Ok(Err(why)) => return Err(self.no_request(row, &why)),
            Err(_) => {
                self.counts.refuse(Reason::Unfinished);
                return Err(status::unfinished_request(row.name, REQUEST_LIMIT));
            }
        };
        wire::unframe(&body).map_err(|fault| status::bad_frame(row.name, fault))?;
        Ok(Call {
            row,
            headers: head.headers,
            body,
            live: self.live(),
            handler: None,
            unread: unread.clone(),
        })
    }

    fn no_request(&self, row: &Row, why: &Unread) -> Status {
        match why {
            Unread::TooLarge => {
                self.counts.refuse(Reason::Size);
                status::request_too_large(row.name, self.max_message)
            }
            Unread::NoMemory(limit) => {
                self.counts.refuse(Reason::Memory);
                status::no_memory_for_request(row.name, *limit)
            }
            Unread::Broken(cause) => status::broken_request(row.name, cause),
        }
    }

    async fn to_owner(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        of: (Kind, &str),
    ) -> Result<Reply, Failed> {
        match call.row.goes {
            Goes::OwnerWithImage(_) => {
                self.send(&self.with_own_image(call, backend).await, backend, Some(of))
                    .await
            }
            _ => self.send(call, backend, Some(of)).await,
        }
    }

    async fn to_handler(self: &Arc<Self>, call: &Call, handler: &Handler) -> Result<Reply, Failed> {
        let live = Arc::clone(&call.live);
        let backend = live.backend(handler.backend)?;
        let mut call = call.clone();
        call.handler = Some(handler.name.as_str().into());
        if let Goes::Handler(path) | Goes::Image(path, _) = call.row.goes
            && wire::string(&call.message(), path).is_ok_and(|name| name != handler.backend_handler)
        {
            call = call.with_string(path, &handler.backend_handler);
        }
        match call.row.is_special_at_one_backend() {
            // What makes up for an RPC that the backend lacks does so here too, and an image in use is not removed.
            true => Box::pin(self.to_backends(call, &[handler.backend])).await,
            false => self.send(&call, backend, None).await,
        }
    }

    /// Put aside by who calls it: it takes more memory than all else that a call may come to.
    async fn to_backends(
        self: &Arc<Self>,
        call: Call,
        backends: &[BackendId],
    ) -> Result<Reply, Failed> {
        let backends: Vec<_> = backends
            .iter()
            // One that is not in the call's table must not look like one that has nothing.
            .map(|id| call.live.backend(*id).cloned())
            .collect::<Result<_, _>>()?;
        match &call.row.goes {
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
                self.merge(call, merge, backends).await
            }
            Goes::Image(_, rule) => self.to_image_stores(&call, rule, &backends).await,
            _ => Err(status::no_backend().into()),
        }
    }

    /// Sends `call` to one backend; `of` is the pod or container that it is for.
    pub(crate) async fn send(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        of: Option<(Kind, &str)>,
    ) -> Result<Reply, Failed> {
        let (Then::OwnPod(_, config) | Then::OwnRestored(.., config)) = call.row.then else {
            return self.pass(call, backend, of).await;
        };
        let mut creating = self.creating(backend.id, pod_names(call, config).uid);
        // What is not sent makes nothing.
        let wire = backend.wire().await?;
        creating.sent();
        let (asked, answer) = (self.asked(), self.ask(call, backend, Some(wire)).await?);
        let made = answer.code() == Code::Ok;
        let reply = self.learned(call, backend, of, asked, answer).await?;
        if made {
            creating.told();
        }
        Ok(reply)
    }

    async fn pass(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        of: Option<(Kind, &str)>,
    ) -> Result<Reply, Failed> {
        if !Switch::must_read(call.row) {
            return self.pass_as_it_is(call, backend).await;
        }
        let (asked, answer) = (self.asked(), self.ask(call, backend, None).await?);
        self.learned(call, backend, of, asked, answer).await
    }

    /// Sends a call whose reply nobody here looks into. One message is read whole, so that it counts; a stream may be
    /// longer than anybody may hold.
    async fn pass_as_it_is(&self, call: &Call, backend: &Arc<Backend>) -> Result<Reply, Failed> {
        let (row, headers, body) = (call.row, &call.headers, call.body.clone());
        if !row.streams() {
            return Ok(reply::of_answer(backend.ask(row, headers, body).await?));
        }
        let response = backend.call(row, headers, body).await?;
        let list = match row.then {
            Then::Learn(list) => Some(list),
            _ => None,
        };
        if let Some(list) = list {
            // What the client sees of it is in no list here.
            backend.outdate(list);
            backend.saved().await?;
        }
        Ok(reply::passed(response, Arc::clone(backend), list))
    }

    /// Sends a call whose reply is learned from, over `wire` if there is one already.
    async fn ask(
        &self,
        call: &Call,
        backend: &Backend,
        wire: Option<Wire>,
    ) -> Result<Answer, Status> {
        let (headers, body) = (call.reading_headers(), call.body.clone());
        let Some(wire) = wire else {
            return backend.ask(call.row, &headers, body).await;
        };
        let answer = backend.ask_over(wire, call.row, &headers, body).await?;
        backend.is_heard();
        Ok(answer)
    }

    /// The reply to a call that was made then, learned from. A client sees nothing that a restart could forget.
    async fn learned(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        of: Option<(Kind, &str)>,
        asked: Asked,
        answer: Answer,
    ) -> Result<Reply, Failed> {
        if answer.code() != Code::Ok {
            let failed = Failed::Answer(Box::new(answer));
            backend.note_list(call, Some(&failed));
            return Ok(failed.into_reply());
        }
        let message = backend.message(&answer)?;
        let changed = self.learn(call, backend, of, asked, &message)?;
        // Without the saved descriptors of metrics criswitch asks for them again.
        if !call.row.is_stats() {
            backend.saved().await?;
        }
        Ok(match changed {
            Some(message) => reply::of_changed(answer, &message),
            None => reply::of_answer(answer),
        })
    }

    /// The owners, locked.
    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer for an id that no backend has.
fn of_unknown(row: &Row, kind: Kind, id: &str) -> Result<Reply, Status> {
    match row.goes {
        Goes::Owner(_, _, Unknown::NotFound) | Goes::OwnerWithImage(_) => {
            Err(status::not_found(kind, id))
        }
        _ if row.streams() => Ok(reply::of_status(&Status::ok(""))),
        _ => Ok(reply::of_message(Vec::new())),
    }
}

fn is_grpc(request: &http::Request<Incoming>) -> bool {
    let kind = request.headers().get(http::header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}
