//! The path of a call: read the request, route it, send it, learn from the reply.
//!
//! Nothing is spawned for a call, so a client that goes away takes its calls at the backends with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::join_all;
use http::HeaderMap;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::backend::{Answer, Backend, Wire, error_chain, own_headers};
use crate::config::{Config, Handler, Table};
use crate::images::LastAnswers;
use crate::owners::{BackendId, Owners, PodNames};
use crate::question::Question;
use crate::reply::{self, Reply};
use crate::route::{Known, Refusal, Target};
use crate::rpc::{self, Goes, ImageRule, Kind, LISTED_HANDLER, Log, Row, Then, Unknown};
use crate::{status, wire};

/// The table, its backends, and what is known of them.
#[derive(Debug)]
pub struct Switch {
    /// Handlers and backends.
    pub table: Table,
    /// The backends, in the table's order.
    pub backends: Vec<Arc<Backend>>,
    /// The largest message, in bytes, that is read or made.
    pub max_message: usize,
    /// Which backend last had an image.
    pub images: Mutex<LastAnswers>,
    /// The last `UpdateRuntimeConfig`, framed, for backends that come back.
    pub runtime_config: Mutex<Option<Bytes>>,
    /// The question to all backends that misses share.
    pub(crate) question: Question,
    owners: Mutex<Owners>,
}

/// A request that was read.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its row.
    pub row: &'static Row,
    /// Its headers, as they came.
    pub headers: HeaderMap,
    /// Its body: one framed message.
    pub body: Bytes,
}

impl Call {
    /// Its message.
    pub fn message(&self) -> Bytes {
        self.body.slice(wire::FRAME_HEADER..)
    }

    /// The same call with the string at `path` set.
    pub fn with_string(&self, path: &[u32], value: &str) -> Call {
        Call {
            body: wire::frame(&wire::with_string(&self.message(), path, value)),
            ..self.clone()
        }
    }

    /// Its headers, less what would let the reply come compressed.
    pub fn reading_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove("grpc-accept-encoding");
        headers
    }
}

/// A call that did not go well.
#[derive(Debug)]
pub enum Failed {
    /// By the switch's own word.
    Status(Status),
    /// By a backend's word.
    Answer(Box<Answer>),
}

impl Failed {
    /// Its code.
    pub fn code(&self) -> Code {
        match self {
            Failed::Status(status) => status.code(),
            Failed::Answer(answer) => answer.code(),
        }
    }

    /// What the client gets.
    pub fn into_reply(self) -> Reply {
        match self {
            Failed::Status(status) => reply::of_status(&status),
            Failed::Answer(answer) => reply::of_answer(*answer),
        }
    }

    /// The trailers that end a stream with it.
    pub fn into_trailers(self) -> HeaderMap {
        match self {
            Failed::Status(status) => reply::trailers(&status),
            Failed::Answer(answer) => answer.into_trailers(),
        }
    }
}

impl From<Status> for Failed {
    fn from(status: Status) -> Failed {
        Failed::Status(status)
    }
}

impl Switch {
    /// A switch whose backends are not connected yet: see [`Switch::greet`].
    pub fn new(config: Config) -> Switch {
        let backends = config.table.backends.iter().enumerate();
        Switch {
            backends: backends
                .map(|(id, backend)| Arc::new(Backend::new(id, backend, config.max_message)))
                .collect(),
            table: config.table,
            max_message: config.max_message,
            images: Mutex::default(),
            runtime_config: Mutex::default(),
            question: Question::default(),
            owners: Mutex::default(),
        }
    }

    /// Answers one request; every failure is a reply.
    pub async fn serve(self: Arc<Self>, request: http::Request<Incoming>) -> Reply {
        let started = Instant::now();
        let Some(row) = rpc::find(request.uri().path()) else {
            return reply::of_status(&status::no_such_rpc(request.uri().path()));
        };
        let timeout = request
            .headers()
            .get("grpc-timeout")
            .and_then(|value| wire::timeout(value.to_str().ok()?));
        let answered = self.answer(row, request);
        let reply = match timeout {
            None => answered.await.unwrap_or_else(Failed::into_reply),
            Some(timeout) => {
                let late = status::deadline(row.name, timeout);
                let deadline = started + timeout;
                let answered = tokio::time::timeout_at(deadline, answered).await;
                let answered = answered.unwrap_or_else(|_| Err(late.clone().into()));
                reply::until(answered.unwrap_or_else(Failed::into_reply), deadline, late)
            }
        };
        log(row, &reply, started);
        reply
    }

    async fn answer(
        self: &Arc<Self>,
        row: &'static Row,
        request: http::Request<Incoming>,
    ) -> Result<Reply, Failed> {
        let call = self.read(row, request).await?;
        let message = call.message();
        match self.target(row, &message).await? {
            Target::Backend(backend) => self.send(&call, self.backend(backend)?, None).await,
            Target::Owner(backend, kind, id) => {
                self.to_owner(&call, self.backend(backend)?, (kind, &id))
                    .await
            }
            Target::Handler(handler) => self.to_handler(&call, &handler).await,
            Target::Backends(backends) => self.to_backends(call, &backends).await,
            Target::Miss(kind, id) => Ok(of_unknown(row, kind, &id)?),
        }
    }

    async fn read(
        &self,
        row: &'static Row,
        request: http::Request<Incoming>,
    ) -> Result<Call, Status> {
        let (head, body) = request.into_parts();
        let limit = self.max_message.saturating_add(wire::FRAME_HEADER);
        let body = match Limited::new(body, limit).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(status::request_too_large(row.name, self.max_message));
            }
            Err(error) => return Err(status::broken_request(row.name, &error_chain(&*error))),
        };
        wire::unframe(&body).map_err(|fault| status::bad_frame(row.name, fault))?;
        Ok(Call {
            row,
            headers: head.headers,
            body,
        })
    }

    /// Where a request goes, all backends asked if nobody is known to own its id.
    async fn target(self: &Arc<Self>, row: &Row, message: &[u8]) -> Result<Target, Status> {
        let target = self
            .with_known(|known| known.route(row, message))
            .map_err(|refusal| self.refuse(row, refusal))?;
        let Target::Miss(kind, id) = target else {
            return Ok(target);
        };
        let answered = self.question.ask(self).await;
        let target = self
            .with_known(|known| known.after_miss(kind, &id))
            .map_err(|refusal| self.refuse(row, refusal))?;
        match (&target, answered) {
            // The full id, so no other backend can have it.
            (Target::Owner(_, _, full), _) if *full == id => Ok(target),
            (_, Err(unanswered)) => Err(status::owner_unknown(kind, &id, &unanswered)),
            (_, Ok(())) => Ok(target),
        }
    }

    fn with_known<T>(&self, use_it: impl FnOnce(Known<'_>) -> T) -> T {
        let owners = self.owners();
        use_it(Known {
            table: &self.table,
            owners: &owners,
            complete: self.question.complete(&self.backends),
        })
    }

    fn refuse(&self, row: &Row, refusal: Refusal) -> Status {
        let name = |id: BackendId| {
            self.backends
                .get(id)
                .map_or("?", |backend| backend.name.as_str())
        };
        match refusal {
            Refusal::Malformed(fault) => status::malformed(row.name, &fault),
            Refusal::UnknownHandler(handler) => status::unknown_handler(&handler, &self.table),
            Refusal::EmptyId(kind) => status::empty_id(row.name, kind),
            Refusal::Ambiguous(prefix) => status::ambiguous(&prefix),
            Refusal::Disputed(kind, id, one, other) => {
                status::disputed(kind, &id, name(one), name(other))
            }
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

    async fn to_handler(&self, call: &Call, handler: &Handler) -> Result<Reply, Failed> {
        let backend = self.backend(handler.backend)?;
        let (Goes::Handler(path) | Goes::Image(path, _)) = call.row.goes else {
            return self.send(call, backend, None).await;
        };
        let asked = call.message();
        if wire::string(&asked, path).is_ok_and(|name| name == handler.backend_handler) {
            return self.send(call, backend, None).await;
        }
        self.send(
            &call.with_string(path, &handler.backend_handler),
            backend,
            None,
        )
        .await
    }

    async fn to_backends(
        self: &Arc<Self>,
        call: Call,
        backends: &[BackendId],
    ) -> Result<Reply, Failed> {
        let backends: Vec<_> = backends
            .iter()
            .filter_map(|id| self.backends.get(*id))
            .cloned()
            .collect();
        match &call.row.goes {
            Goes::All(_, merge) | Goes::Image(_, ImageRule::List(merge)) => {
                self.merge(call, merge, backends).await
            }
            Goes::Image(_, rule) => self.to_image_stores(&call, rule, &backends).await,
            _ => Err(Status::internal("no single target").into()),
        }
    }

    /// Sends `call` to one backend; `of` is the pod or container that it is for.
    pub(crate) async fn send(
        &self,
        call: &Call,
        backend: &Arc<Backend>,
        of: Option<(Kind, &str)>,
    ) -> Result<Reply, Failed> {
        if !self.must_read(call.row, backend.id) {
            let response = backend
                .call(call.row, &call.headers, call.body.clone())
                .await?;
            return Ok(reply::passed(response, Arc::clone(backend)));
        }
        let asked = self.owners().mark();
        let answer = backend
            .ask(call.row, &call.reading_headers(), call.body.clone())
            .await?;
        if answer.code() != Code::Ok {
            return Ok(reply::of_answer(answer));
        }
        let message = backend.message(&answer)?;
        let changed = self.learn(call, backend, of, &message)?;
        if let Then::Learn(kind) = call.row.then
            && is_unfiltered(call)
        {
            self.owners().settle(kind, backend.id, asked);
        }
        Ok(match changed {
            Some(message) => reply::of_changed(answer, &message),
            None => reply::of_answer(answer),
        })
    }

    fn must_read(&self, row: &Row, backend: BackendId) -> bool {
        match row.then {
            Then::Nothing => false,
            Then::Rename(_) => self.renames(backend),
            Then::Learn(_) => !row.streams(),
            _ => true,
        }
    }

    /// Learns from a reply that went well; the message as the client is to have it, if that is another one.
    fn learn(
        &self,
        call: &Call,
        backend: &Backend,
        of: Option<(Kind, &str)>,
        message: &Bytes,
    ) -> Result<Option<Bytes>, Status> {
        let bad = |fault| backend.bad_reply(&format!("its reply is {fault}"));
        let request = call.message();
        let names = |path| {
            wire::bytes(&request, path)
                .and_then(PodNames::of_config)
                .unwrap_or_default()
        };
        match call.row.then {
            Then::Nothing => {}
            Then::HaveImage(_) => self.remember_image(call, backend.id, message),
            Then::OwnPod(id, config) => {
                let id = wire::string(message, id).map_err(bad)?;
                self.owners().own_pod(id, backend.id, names(config));
            }
            Then::OwnContainer(id) => {
                let id = wire::string(message, id).map_err(bad)?;
                self.owners()
                    .own_container(id, backend.id, of.map_or("", |(_, pod)| pod));
            }
            Then::OwnRestored(id, containers, config) => {
                let pod = wire::string(message, id).map_err(bad)?;
                let mut owners = self.owners();
                owners.own_pod(pod, backend.id, names(config));
                for container in wire::strings(message, containers).map_err(bad)? {
                    owners.own_container(container, backend.id, pod);
                }
            }
            Then::Forget => {
                if let Some((kind, id)) = of {
                    self.owners().forget(kind, id);
                }
            }
            Then::Learn(kind) => return self.learn_list(kind, backend, message),
            Then::Rename(path) => return self.renamed(backend, message, path),
        }
        Ok(None)
    }

    /// Learns a list; as the client is to have it, if that is another one.
    pub(crate) fn learn_list(
        &self,
        kind: Kind,
        backend: &Backend,
        list: &Bytes,
    ) -> Result<Option<Bytes>, Status> {
        let learned = self.owners().learn(kind, backend.id, list);
        learned.map_err(|fault| backend.bad_reply(&format!("its list is {fault}")))?;
        match kind {
            Kind::Pod => self.renamed(backend, list, LISTED_HANDLER),
            Kind::Container => Ok(None),
        }
    }

    /// `message` with the table's names for the handlers at `path`, if the table renames any of the backend's.
    pub(crate) fn renamed(
        &self,
        backend: &Backend,
        message: &Bytes,
        path: &[u32],
    ) -> Result<Option<Bytes>, Status> {
        if !self.renames(backend.id) {
            return Ok(None);
        }
        let new = |name: &str| self.table.name_for(backend.id, name);
        let message = wire::replace_strings(message, path, &new);
        message
            .map(Some)
            .map_err(|fault| backend.bad_reply(&format!("its reply is {fault}")))
    }

    /// Whether the backend knows a handler by another name than the table.
    pub(crate) fn renames(&self, backend: BackendId) -> bool {
        self.table
            .handlers
            .iter()
            .any(|row| row.backend == backend && row.backend_handler != row.name)
    }

    /// Makes a new connection to `backend` ready: its pods and containers listed, the runtime's configuration told.
    ///
    /// # Errors
    /// The status of the first call that failed.
    pub async fn greet(&self, backend: &Backend, wire: Wire) -> Result<(), Status> {
        let headers = own_headers();
        let answer = backend
            .ask_over(wire.clone(), &rpc::VERSION, &headers, wire::frame(&[]))
            .await?;
        let said = backend.message(&answer)?;
        backend.learn(|known| known.version = said);
        self.list(backend, Some(&wire)).await?;
        let config = self
            .runtime_config
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if let Some(config) = config {
            backend
                .ask_over(wire, &rpc::UPDATE_RUNTIME_CONFIG, &headers, config)
                .await?;
        }
        self.question.listed(backend.id);
        Ok(())
    }

    /// Asks every backend for its pods and containers and learns them.
    ///
    /// # Errors
    /// The first backend's that did not answer; the others are learned all the same.
    pub(crate) async fn list_every(&self) -> Result<(), Status> {
        join_all(self.backends.iter().map(|backend| self.list(backend, None)))
            .await
            .into_iter()
            .collect()
    }

    async fn list(&self, backend: &Backend, wire: Option<&Wire>) -> Result<(), Status> {
        let list = async |kind, row: &'static Row| {
            let asked = self.owners().mark();
            let (headers, body) = (own_headers(), wire::frame(&[]));
            let answer = match wire {
                Some(wire) => backend.ask_over(wire.clone(), row, &headers, body).await?,
                None => backend.ask(row, &headers, body).await?,
            };
            if answer.code() != Code::Ok {
                let text = String::from_utf8_lossy(answer.text()).into_owned();
                return Err(backend.unavailable(&format!("{} failed: {text}", row.name)));
            }
            self.learn_list(kind, backend, &backend.message(&answer)?)?;
            self.owners().settle(kind, backend.id, asked);
            Ok(())
        };
        list(Kind::Pod, &rpc::LIST_PODS).await?;
        list(Kind::Container, &rpc::LIST_CONTAINERS).await
    }

    /// The owners, locked.
    pub fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn backend(&self, id: BackendId) -> Result<&Arc<Backend>, Status> {
        self.backends
            .get(id)
            .ok_or_else(|| Status::internal("no such backend"))
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

/// Whether the request asks for all there is.
pub(crate) fn is_unfiltered(call: &Call) -> bool {
    wire::bytes(&call.message(), &[1]).is_ok_and(<[u8]>::is_empty)
}

fn log(row: &Row, reply: &Reply, started: Instant) {
    let code = reply
        .headers()
        .get(reply::GRPC_STATUS)
        .map_or("0", |code| code.to_str().unwrap_or("?"));
    let elapsed_ms = started.elapsed().as_secs_f64() * 1000.0;
    match row.log {
        Log::Change => tracing::info!(rpc = row.name, code, elapsed_ms),
        Log::Read => tracing::debug!(rpc = row.name, code, elapsed_ms),
        Log::Poll => tracing::trace!(rpc = row.name, code, elapsed_ms),
    }
}
