//! A small model of a runtime. It answers every RPC from the [`Truth`], and fails on demand.

mod answers;
mod damage;
mod faults;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{self, Goes, Kind, Row};
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::DuplexStream;
use tokio::sync::{Notify, broadcast};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::pipe::{Pipe, Valve};
use super::plan::{Damage, Failing};
use super::truth::{CallId, Listing, Moment, Seen, Thing, Truth};
use answers::Asked;
pub use answers::event;
use damage::{Body, Broken, Shown};
use tonic::{Code, Status};

/// The header with the id of a client's call.
pub const CALL: &str = "x-call";
/// The capacity of a connection in memory, in bytes.
pub const PIPE: usize = 64 << 10;
/// How many events a subscriber may leave unread.
const UNREAD_EVENTS: usize = 256;

/// The CRI's numbers of `CONTAINER_STARTED_EVENT` and `CONTAINER_DELETED_EVENT`.
const STARTED: u64 = 1;
pub const DELETED: u64 = 3;

/// The model of one runtime, which criswitch may have as a backend.
pub struct Runtime {
    pub at: usize,
    truth: Arc<Mutex<Truth>>,
    state: Mutex<State>,
    /// Notified when the runtime may answer again.
    answers: Notify,
    valve: Valve,
    events: broadcast::Sender<Shown>,
    /// Shuts the connections down.
    goes_away: broadcast::Sender<()>,
}

#[derive(Default)]
struct State {
    down: bool,
    hung: bool,
    /// The only RPC that the runtime does not answer.
    hung_rpc: Option<&'static str>,
    /// The duration of each list, in milliseconds.
    slow_ms: Option<u32>,
    failing: Option<Failing>,
    /// The damage of the next calls, one for each call.
    spoil: VecDeque<Damage>,
    connections: Vec<AbortHandle>,
    /// The number of times that the runtime has died.
    deaths: u64,
    /// Whether all faults have ended for good.
    healed: bool,
}

impl State {
    /// Whether the runtime does not answer calls of this row.
    fn holds(&self, row: &Row) -> bool {
        self.hung || self.hung_rpc == Some(row.name)
    }
}

impl Runtime {
    pub fn new(at: usize, truth: Arc<Mutex<Truth>>) -> Arc<Runtime> {
        Arc::new(Runtime {
            at,
            truth,
            state: Mutex::default(),
            answers: Notify::new(),
            valve: Valve::default(),
            events: broadcast::Sender::new(UNREAD_EVENTS),
            goes_away: broadcast::Sender::new(1),
        })
    }

    /// Accepts a connection, unless the runtime is down.
    pub fn dial(self: &Arc<Self>) -> io::Result<DuplexStream> {
        let mut state = self.state();
        if state.down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let (runtime, process) = (Arc::clone(self), state.deaths);
        let answer = service_fn(move |request| Arc::clone(&runtime).answer(request, process));
        let connection = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(1 << 20)
            .serve_connection(TokioIo::new(Pipe::new(ours, self.valve.clone())), answer);
        let mut goes_away = self.goes_away.subscribe();
        let task = tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                _ = &mut connection => return,
                _ = goes_away.recv() => connection.as_mut().graceful_shutdown(),
            }
            connection.await.ok();
        });
        state.connections.push(task.abort_handle());
        Ok(theirs)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }
}

impl Runtime {
    /// Answers a call. `process` is the number of deaths of the runtime before the connection was made.
    async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
        process: u64,
    ) -> Result<Response<Body>, Broken> {
        let row = rpc::find(request.uri().path()).expect("an RPC of the table");
        let call = request.headers().get(CALL);
        let call = call.map_or(0, |call| call.to_str().unwrap().parse().unwrap());
        let message = request
            .into_body()
            .collect()
            .await
            .map_err(|_| Broken::Reset)?
            .to_bytes()
            .slice(frames::FRAME_HEADER..);
        let seen = self.note(row, call, &message);
        self.answers(row).await;
        let damage = self.next_damage();
        if damage.is_some_and(|damage| damage != Damage::Split) {
            self.truth().seen[seen].spoilt = true;
        }
        if damage == Some(Damage::RejectStream) {
            self.truth().seen[seen].was_rejected = true;
            return Err(Broken::rejected());
        }
        self.before(damage, row).await?;
        if self.state().deaths != process {
            return Err(Broken::Reset);
        }
        let fails = matches!(damage, Some(Damage::Reject | Damage::FailAfter));
        if fails && row.name == "UpdateRuntimeConfig" {
            self.truth().updates.spoil();
        }
        if damage == Some(Damage::Reject) {
            return Ok(damage::unroutable(&Status::aborted(
                "the simulated runtime rejects this call",
            )));
        }
        if self.truth().lacks(self.at, row) {
            return Ok(damage::unroutable(&Status::unimplemented(
                "not in this version",
            )));
        }
        if let Some(code) = self.fails(row) {
            self.truth().seen[seen].spoilt = true;
            let text = "the simulated runtime cannot list one item";
            return Ok(damage::unroutable(&Status::new(code, text)));
        }
        if row.name == "GetContainerEvents" {
            return Ok(damage::of_events(self.events.subscribe()));
        }
        let answer = self.execute(row, call, seen, &message);
        self.spoilt(damage, answer).await
    }

    fn note(&self, row: &'static Row, call: CallId, message: &[u8]) -> usize {
        let mut truth = self.truth();
        let handler = match row.goes {
            Goes::Handler(path) => Some(path),
            Goes::Image(path, _) => {
                Some(path).filter(|path| protobuf::string(message, path) != Ok(""))
            }
            _ => None,
        };
        let handler =
            handler.and_then(|path| protobuf::string(message, path).ok().map(str::to_owned));
        truth.seen.push(Seen {
            call,
            backend: self.at,
            row,
            handler,
            executed: false,
            spoilt: false,
            was_rejected: false,
        });
        truth.seen.len() - 1
    }

    /// The code with which the runtime answers calls of `row`, if they fail.
    fn fails(&self, row: &Row) -> Option<Code> {
        let failing = self.state().failing?;
        let fails = row.is_stats() && failing.stats || row.is_list() && failing.lists;
        fails.then_some(failing.code)
    }

    fn next_damage(&self) -> Option<Damage> {
        let damage = self.state().spoil.pop_front();
        if damage.is_some() {
            self.note_health();
        }
        damage
    }

    /// Plays the damage and the delay that come before the call has any effect.
    async fn before(&self, damage: Option<Damage>, row: &Row) -> Result<(), Broken> {
        match damage {
            Some(Damage::DieBefore) => {
                self.die_within_call();
                return Err(Broken::Reset);
            }
            Some(Damage::ResetBefore) => return Err(Broken::Reset),
            _ => {}
        }
        let slow = self.state().slow_ms;
        match slow {
            Some(by_ms) if row.name.starts_with("List") || row.name.starts_with("Stream") => {
                self.linger(by_ms).await;
            }
            _ => {}
        }
        Ok(())
    }

    async fn linger(&self, by_ms: u32) {
        tokio::time::sleep(Duration::from_millis(by_ms.into())).await;
        self.truth().slow = Some(Instant::now());
    }

    fn execute(
        &self,
        row: &'static Row,
        call: CallId,
        seen: usize,
        message: &[u8],
    ) -> Result<Vec<Bytes>, Status> {
        let mut truth = self.truth();
        truth.seen[seen].executed = true;
        if row.name == "Status" {
            truth.offers[self.at].ask();
        }
        if call == 0 && row.name == "ListContainers" {
            truth.tables.made_ready(self.at);
        }
        let asked = Asked {
            backend: self.at,
            row,
            call,
            message,
            garbled: Cell::new(false),
        };
        let before = truth.moment();
        let answer = answers::answer(&mut truth, &asked)?;
        truth.seen[seen].spoilt |= asked.garbled.get();
        self.report(&truth, before);
        let alone = call <= truth.alone;
        let unread = row.streams() && alone;
        // criswitch forwards a single backend's stats unchanged and does not cache them.
        let unkept = row.is_stats() && alone;
        // While the runtime has a fault, its connection may pass no bytes, so this reply may never reach criswitch.
        let faulty = truth.health[self.at].faulty;
        let spoilt = truth.seen[seen].spoilt || self.slow() || unread || faulty;
        if row.name == "Status" && call == 0 && !spoilt {
            truth.offers[self.at].report();
        }
        if let (Some(list), false) = (asked.lists_whole(), spoilt || unkept) {
            let at = truth.tick();
            let backend = self.at;
            let used = call == 0;
            truth.listings.push(Listing {
                call,
                backend,
                list,
                at,
                taken: Instant::now(),
                delivered: None,
                used,
            });
        }
        Ok(answer)
    }

    /// Sends an event for each pod that was created or removed after `before`.
    fn report(&self, truth: &Truth, before: Moment) {
        let pods = truth
            .things
            .iter()
            .filter(|it| it.kind == Kind::Pod && it.backend == self.at);
        for pod in pods {
            match pod.gone {
                Some(gone) if gone > before => self.report_of(truth, pod, DELETED),
                None if pod.born > before => self.report_of(truth, pod, STARTED),
                _ => {}
            }
        }
    }

    fn report_of(&self, truth: &Truth, pod: &Thing, kind: u64) {
        let event = answers::event(pod, kind);
        if truth.health[self.at].garbles.is_some() {
            // The id of a pod that is not UTF-8.
            let garbled = [&event[..], b"\x0a\x01\xff"].concat();
            self.events.send(Shown::Event(garbled.into())).ok();
        }
        let event = Shown::Event(event);
        // `send` returns an error if there is no subscriber. That is expected.
        self.events.send(event).ok();
    }

    fn slow(&self) -> bool {
        self.state().slow_ms.is_some()
    }

    /// Returns the reply to a call that was executed, and applies the damage to the reply.
    async fn spoilt(
        self: &Arc<Self>,
        damage: Option<Damage>,
        answer: Result<Vec<Bytes>, Status>,
    ) -> Result<Response<Body>, Broken> {
        match damage {
            Some(Damage::DieAfter) => {
                self.die_within_call();
                Err(Broken::Reset)
            }
            Some(Damage::ResetAfter) => Err(Broken::Reset),
            Some(Damage::FailAfter) => {
                let failed = Status::unknown("it failed half-way");
                Ok(damage::unroutable(&failed))
            }
            Some(Damage::Late(by_ms)) => {
                self.linger(by_ms).await;
                Ok(damage::reply(self, answer, None))
            }
            other => Ok(damage::reply(self, answer, other)),
        }
    }
}
