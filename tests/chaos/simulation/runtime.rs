//! A lean model of a runtime: it answers every RPC from the [`Truth`], and goes wrong on demand.

mod answers;
mod damage;

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use criswitch::rpc::{self, Goes, Kind, Row};
use criswitch::wire;
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
use super::plan::{Damage, Fault};
use super::truth::{CallId, DIRECT, Listing, Moment, Seen, Thing, Truth};
use answers::Asked;
use damage::{Body, Broken};
use tonic::Status;

/// The header that tells which call of a client this is.
pub const CALL: &str = "x-call";
/// What a pipe holds.
pub const PIPE: usize = 64 << 10;
/// Events that a subscriber may leave unread.
const UNREAD_EVENTS: usize = 256;

/// `CONTAINER_STARTED_EVENT` and `CONTAINER_DELETED_EVENT`.
const STARTED: u64 = 1;
pub const DELETED: u64 = 3;

/// One backend of the switch.
pub struct Runtime {
    pub at: usize,
    truth: Arc<Mutex<Truth>>,
    state: Mutex<State>,
    /// Told when it may answer again.
    answers: Notify,
    valve: Valve,
    events: broadcast::Sender<Bytes>,
}

#[derive(Default)]
struct State {
    down: bool,
    hung: bool,
    /// How long its lists take.
    slow_ms: Option<u32>,
    /// What happens to the next calls.
    spoil: VecDeque<Damage>,
    connections: Vec<AbortHandle>,
    /// How often it has died.
    deaths: u64,
    /// Nothing goes wrong any more.
    healed: bool,
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
        })
    }

    /// A connection, unless it is down.
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
        let task = tokio::spawn(async move {
            connection.await.ok();
        });
        state.connections.push(task.abort_handle());
        Ok(theirs)
    }

    /// Starts or ends what is wrong with it.
    pub fn play(&self, fault: &Fault) {
        if matches!(fault, Fault::Hang(true) | Fault::Freeze(true)) {
            let mut truth = self.truth();
            let now = truth.tick();
            truth.health[self.at].silenced.push(now);
        }
        match fault {
            Fault::Die => self.set_down(true),
            Fault::Start => self.set_down(false),
            Fault::StartEmpty if self.state().down => {
                self.truth().lose_all(self.at);
                self.set_down(false);
            }
            Fault::StartEmpty => {}
            Fault::Hang(hung) => self.set_hung(*hung),
            Fault::Freeze(frozen) => self.valve.set_shut(*frozen),
            Fault::SlowLists(by_ms) => self.state().slow_ms = *by_ms,
            Fault::Sip(bytes) => self.valve.sip((*bytes).into()),
            Fault::Spoil(damage) => self.state().spoil.push_back(*damage),
            Fault::Create => self.create_here(),
            Fault::Lose(which) => self.lose(*which),
        }
        self.note_health();
    }

    /// Ends all that is wrong with it.
    pub fn heal(&self) {
        self.state().spoil.clear();
        self.state().healed = true;
        if self.state().down {
            self.play(&Fault::Start);
        }
        for end in [
            Fault::Hang(false),
            Fault::Freeze(false),
            Fault::SlowLists(None),
            Fault::Sip(0),
        ] {
            self.play(&end);
        }
    }

    fn set_hung(&self, hung: bool) {
        self.state().hung = hung;
        self.answers.notify_waiters();
    }

    /// Waits while it hangs.
    async fn answers(&self) {
        loop {
            let changed = self.answers.notified();
            if !self.state().hung {
                return;
            }
            changed.await;
        }
    }

    /// Whether it accepts calls and does not answer.
    pub fn is_silent(&self) -> bool {
        self.state().hung || self.valve.is_shut()
    }

    /// It dies of a call, unless it is past that.
    fn die_within_call(&self) {
        if !self.state().healed {
            self.play(&Fault::Die);
        }
    }

    fn set_down(&self, down: bool) {
        self.state().down = down;
        self.die();
    }

    /// The process ends, and what it had under way with it.
    fn die(&self) {
        let mut state = self.state();
        state.deaths += 1;
        state.connections.drain(..).for_each(|task| task.abort());
        drop(state);
        self.truth().health[self.at].config.clear();
    }

    fn note_health(&self) {
        let state = self.state();
        let faulty = state.down
            || state.slow_ms.is_some()
            || !state.spoil.is_empty()
            || self.valve.is_shut()
            || state.hung;
        drop(state);
        self.truth().set_faulty(self.at, faulty);
    }

    /// Somebody makes a pod without the switch.
    fn create_here(&self) {
        let mut truth = self.truth();
        let before = truth.moment();
        let (id, born) = (truth.new_id(), truth.tick());
        let name = format!("{DIRECT}-{id}");
        truth
            .things
            .push(Thing::new(Kind::Pod, id.clone(), self.at, id, name, born));
        self.tell(&truth, before);
    }

    /// A pod vanishes without the switch.
    fn lose(&self, which: u32) {
        let mut truth = self.truth();
        let pods: Vec<_> = truth
            .at(self.at, Kind::Pod)
            .map(|pod| pod.id.clone())
            .collect();
        if let Some(at) = (which as usize).checked_rem(pods.len()) {
            let before = truth.moment();
            truth.remove(Kind::Pod, &pods[at]);
            self.tell(&truth, before);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }
}

/// Calls.
impl Runtime {
    /// Answers a call to the process that was started after so many deaths.
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
            .map_err(|_| Broken)?
            .to_bytes();
        let message = message.slice(wire::FRAME_HEADER..);
        let seen = self.note(row, call, &message);
        self.answers().await;
        let damage = self.next_damage();
        if damage.is_some_and(|damage| damage != Damage::Split) {
            self.truth().seen[seen].spoilt = true;
        }
        self.before(damage, row).await?;
        if self.state().deaths != process {
            return Err(Broken);
        }
        let fails = matches!(damage, Some(Damage::Refuse | Damage::FailAfter));
        if fails && row.name == "UpdateRuntimeConfig" {
            self.truth().updates.spoil();
        }
        if damage == Some(Damage::Refuse) {
            return Ok(damage::refusal(&Status::aborted("it does not want to")));
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
            Goes::Handler(path) => wire::string(message, path).ok().map(str::to_owned),
            _ => None,
        };
        truth.seen.push(Seen {
            call,
            backend: self.at,
            row,
            handler,
            executed: false,
            spoilt: false,
        });
        truth.seen.len() - 1
    }

    fn next_damage(&self) -> Option<Damage> {
        let damage = self.state().spoil.pop_front();
        if damage.is_some() {
            self.note_health();
        }
        damage
    }

    /// What goes wrong before the call does anything.
    async fn before(&self, damage: Option<Damage>, row: &Row) -> Result<(), Broken> {
        match damage {
            Some(Damage::DieBefore) => {
                self.die_within_call();
                return Err(Broken);
            }
            Some(Damage::ResetBefore) => return Err(Broken),
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
        if call == 0 && row.name == "ListContainers" {
            truth.tables.greeted(self.at);
        }
        let asked = Asked {
            backend: self.at,
            row,
            call,
            message,
        };
        let before = truth.moment();
        let answer = answers::answer(&mut truth, &asked)?;
        self.tell(&truth, before);
        let unread = row.streams() && call <= truth.alone;
        // What it answers late may find the pipe shut meanwhile.
        let faulty = truth.health[self.at].faulty;
        let spoilt = truth.seen[seen].spoilt || self.slow() || unread || faulty;
        if let (Some(kind), false) = (asked.lists_whole(), spoilt) {
            let at = truth.tick();
            let backend = self.at;
            let used = call == 0;
            truth.listings.push(Listing {
                call,
                backend,
                kind,
                at,
                taken: Instant::now(),
                delivered: None,
                used,
            });
        }
        Ok(answer)
    }

    /// Sends an event for each pod that came or went after `before`.
    fn tell(&self, truth: &Truth, before: Moment) {
        let pods = truth
            .things
            .iter()
            .filter(|it| it.kind == Kind::Pod && it.backend == self.at);
        for pod in pods {
            match pod.gone {
                Some(gone) if gone > before => drop(self.events.send(answers::event(pod, DELETED))),
                None if pod.born > before => drop(self.events.send(answers::event(pod, STARTED))),
                _ => {}
            }
        }
    }

    fn slow(&self) -> bool {
        self.state().slow_ms.is_some()
    }

    /// The reply, with what goes wrong after the call has been done.
    async fn spoilt(
        self: &Arc<Self>,
        damage: Option<Damage>,
        answer: Result<Vec<Bytes>, Status>,
    ) -> Result<Response<Body>, Broken> {
        match damage {
            Some(Damage::DieAfter) => {
                self.die_within_call();
                Err(Broken)
            }
            Some(Damage::ResetAfter) => Err(Broken),
            Some(Damage::FailAfter) => {
                let failed = Status::unknown("it failed half-way");
                Ok(damage::refusal(&failed))
            }
            Some(Damage::Late(by_ms)) => {
                self.linger(by_ms).await;
                Ok(damage::reply(self, answer, None))
            }
            other => Ok(damage::reply(self, answer, other)),
        }
    }
}
