//! The world of a schedule: backends, criswitch, clients, and the calls in flight.

mod asks;

use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;

use criswitch::backend::connect::Dialer;
use criswitch::server;
use criswitch::switch::{Switch, forget};
use criswitch_config::Config;
use criswitch_config::address::Address;
use criswitch_cri::rpc::{Kind, Row};
use tokio::task::{AbortHandle, JoinSet};

use super::client::Client;
use super::disk::Disk;
use super::files::{Edit, Files, Mistake, RUNTIMES};
use super::judge::{self, Asked, events};
use super::plan::{CLIENTS, IMAGES, Meanwhile, Op, Plan, Step, row};
use super::runtime::Runtime;
use super::sabotage::{self, Sabotage};
use super::tables::{number, unnamed};
use super::truth::{DRAIN, Next, Stored, Truth};
use super::{Played, RECOVERY};
use tokio::time::Instant;

/// The wait before the last check: longer than criswitch keeps a backend that owns nothing.
const LAST_LOOK: Duration = Duration::from_secs(20);

/// How long clients have to read the end of their calls after the shutdown timeout.
const LAST_REPLIES: Duration = Duration::from_millis(1100);

pub struct World {
    files: Files,
    disk: Disk,
    played: Played,
    truth: Arc<Mutex<Truth>>,
    runtimes: Arc<Vec<Arc<Runtime>>>,
    switch: Arc<Switch>,
    /// The clients' ends of their connections.
    connections: JoinSet<()>,
    backends: JoinSet<Infallible>,
    clients: Vec<Client>,
    /// criswitch's ends of these connections.
    served: JoinSet<()>,
    under_way: Vec<(Asked, AbortHandle)>,
    violations: Arc<Mutex<Vec<String>>>,
    sabotage: Option<Sabotage>,
}

/// Plays `plan` to its end or to the first violation.
pub async fn play(
    plan: &Plan,
    directory: &Path,
    sabotage: Option<Sabotage>,
) -> Result<Played, String> {
    let mut world = World::new(plan, directory, sabotage).await?;
    for step in &plan.steps {
        world.step(step).await?;
    }
    world.heal().await?;
    world.end().await?;
    Ok(world.played)
}

impl World {
    async fn new(
        plan: &Plan,
        directory: &Path,
        sabotage: Option<Sabotage>,
    ) -> Result<World, String> {
        let files = Files::of_topology(plan.topology);
        let truth = Arc::new(Mutex::new(Truth::new(plan.seed)));
        stock(&mut truth.lock().unwrap());
        sabotage::at_start(sabotage, &mut truth.lock().unwrap());
        let runtimes = (0..RUNTIMES).map(|at| Runtime::new(at, Arc::clone(&truth)));
        let runtimes = Arc::new(runtimes.collect());
        let disk = Disk::new(directory);
        let switch = new_switch(&config(&files), &runtimes, &disk);
        let mut world = World {
            files,
            disk,
            played: Played::default(),
            truth,
            runtimes,
            switch,
            connections: JoinSet::new(),
            backends: JoinSet::new(),
            clients: Vec::new(),
            served: JoinSet::new(),
            under_way: Vec::new(),
            violations: Arc::default(),
            sabotage,
        };
        world.start().await?;
        Ok(world)
    }

    /// Starts an instance from the files and the disk, and connects clients to it.
    async fn start(&mut self) -> Result<(), String> {
        let mut config = config(&self.files);
        sabotage::configure(self.sabotage, &mut config);
        self.switch = new_switch(&config, &self.runtimes, &self.disk);
        sabotage::of_state_at_start(self.sabotage, &self.disk);
        self.truth().begin_era(&config);
        self.truth().begin_places(&self.switch)?;
        self.backends = criswitch::keep_connected(&self.switch);
        self.connections = JoinSet::new();
        self.served = JoinSet::new();
        self.clients.clear();
        // Lets the tasks of the backends begin before anything else happens.
        tokio::task::yield_now().await;
        for _ in 0..CLIENTS {
            self.clients
                .push(Client::connect(&self.switch, &mut self.served, &mut self.connections).await);
        }
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Call(op) => self.begin(op),
            Step::Cancel(which) => self.cancel(*which),
            Step::Fault(backend, fault) => {
                let at = self.runtime(*backend);
                self.runtimes[at].play(fault);
            }
            Step::Reload(edits, mistake) => self.reload(edits, *mistake)?,
            Step::RestartSwitch(meanwhile) => self.restart(*meanwhile).await?,
            Step::HandOver(meanwhile) => self.hand_over(*meanwhile).await?,
            Step::FullDisk(backend, is_full) => {
                let at = self.runtime(*backend);
                self.disk.fill(at, *is_full);
            }
            Step::Forget(which) => self.forget(*which).await,
            Step::Wait(ms) => self.wait(Duration::from_millis(*ms)).await,
        }
        self.check()
    }

    /// Makes criswitch forget a backend. criswitch rejects the request while the backend answers.
    async fn forget(&mut self, which: usize) {
        let at = self.runtime(which);
        let live = self.switch.live();
        let backend = live.backends.iter().find(|it| number(&it.socket) == at);
        let Some(backend) = backend.cloned() else {
            return;
        };
        let had_joined = backend.has_joined();
        let name = backend.name();
        let mut forgets = pin!(forget::forget(&self.switch, &name));
        // criswitch forgets the backend at once, and then waits until this change is saved.
        let shown = futures_util::poll!(&mut forgets);
        let is_rejected = matches!(shown, Poll::Ready(Err(_)));
        if !is_rejected || had_joined && !backend.has_joined() {
            self.truth().forgotten(at);
        }
        if shown.is_pending() {
            forgets.await.ok();
        }
    }

    /// The runtime of a step: mostly a backend of criswitch, otherwise any runtime.
    fn runtime(&self, which: usize) -> usize {
        let live = self.switch.live();
        let ours: Vec<_> = live.backends.iter().map(|it| number(&it.socket)).collect();
        let one = ours.get(which % (ours.len() + 1));
        one.copied().unwrap_or(which % RUNTIMES)
    }

    /// Edits the files and reloads criswitch. Edits with a mistake are undone.
    fn reload(&mut self, edits: &[Edit], mistake: Option<Mistake>) -> Result<(), String> {
        let mut files = self.files.clone();
        edits.iter().for_each(|edit| files.edit(edit));
        let read = files.read(mistake);
        let good = mistake.is_none() && read.is_ok();
        self.truth().look(&self.switch)?;
        if let (true, Ok(config)) = (good, &read) {
            self.truth().begin_era(config);
            self.files = files.clone();
        }
        let read = sabotage::read(self.sabotage, read, &files);
        sabotage::before_reload(self.sabotage, &read, &self.switch);
        let shown = criswitch::switch::reload::reload(&self.switch, read)
            .result
            .map_err(|problems| format!("{problems:?}"));
        let shown = sabotage::after_reload(self.sabotage, good, &self.switch, shown);
        self.played.reloads += 1;
        self.played.rejected += u64::from(!good);
        let mut truth = self.truth();
        truth.look(&self.switch)?;
        match shown {
            Ok(changes) if good => truth.changed(&changes),
            Err(_) if !good => Ok(()),
            other => Err(format!("a reload had the wrong outcome: {other:?}")),
        }
    }

    /// Kills criswitch and starts the next instance.
    async fn restart(&mut self, meanwhile: Meanwhile) -> Result<(), String> {
        self.truth().look(&self.switch)?;
        self.disk
            .hand_on(self.sabotage == Some(Sabotage::SkipWrite));
        sabotage::of_state_at_end(self.sabotage, &self.disk, &self.truth());
        let unsaved = self.disk.lose_unsaved();
        let next = self.happens(meanwhile);
        self.truth().switch_restarted(next, unsaved);
        self.start().await
    }

    /// Plays `meanwhile`, and returns what the next instance can know.
    fn happens(&mut self, meanwhile: Meanwhile) -> Next {
        match meanwhile {
            Meanwhile::Nothing => Next::WithAll,
            Meanwhile::Spoilt(which, spoil) => {
                let runtime = self.runtime(which);
                self.disk.spoil_backend(runtime, spoil);
                Next::Without(runtime)
            }
            Meanwhile::RegisterSpoilt(spoil) => {
                self.disk.spoil_register(spoil);
                self.keep_unnamed();
                Next::WithoutRegister
            }
            Meanwhile::Reboot(away) => {
                if self.sabotage != Some(Sabotage::IgnoreBoot) {
                    self.disk.reboot();
                }
                for (runtime, away) in self.runtimes.iter().zip(away) {
                    runtime.reboot(!away);
                }
                Next::AfterReboot
            }
            Meanwhile::KilledStart(written) => {
                let config = config(&self.files);
                let start = || drop(new_switch(&config, &self.runtimes, &self.disk));
                self.disk.kill_start(written, start);
                self.keep_unnamed();
                Next::WithoutRegister
            }
            Meanwhile::OtherMachine => {
                self.disk.move_to_another();
                self.keep_unnamed();
                Next::WithNothing
            }
        }
    }

    /// Adds entries to the files for the backends that are named in no file.
    fn keep_unnamed(&mut self) {
        for runtime in unnamed(&self.switch.live()) {
            self.files.keep(runtime);
        }
    }

    /// Shuts criswitch down, which ends every call, and starts the next instance.
    async fn hand_over(&mut self, meanwhile: Meanwhile) -> Result<(), String> {
        let begun = Instant::now();
        self.truth().end_switch();
        let served = std::mem::take(&mut self.served);
        if self.sabotage != Some(Sabotage::EndAbruptly) {
            server::finish(&self.switch, served).await;
        } else {
            drop(served);
            self.connections = JoinSet::new();
        }
        if begun.elapsed() > DRAIN + LAST_REPLIES {
            return Err(format!(
                "the shutdown took {:?}, longer than its limit",
                begun.elapsed()
            ));
        }
        self.wait(Duration::from_millis(1)).await;
        self.check()?;
        if let Some((asked, _)) = self.under_way.first() {
            return Err(format!("{asked}: still in flight after the shutdown"));
        }
        self.restart(meanwhile).await
    }

    /// Lets the clock advance. Work that needs no time happens in the first millisecond.
    async fn wait(&mut self, time: Duration) {
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.look();
        self.truth().all_arrived();
        tokio::time::sleep(time.saturating_sub(Duration::from_millis(1))).await;
    }

    /// Checks the backends of criswitch. A wrong backend is a violation.
    fn look(&self) {
        let looked = self.truth().look(&self.switch);
        self.violations.lock().unwrap().extend(looked.err());
    }

    fn check(&mut self) -> Result<(), String> {
        self.look();
        self.under_way.retain(|(_, task)| !task.is_finished());
        let truth = self.truth.lock().unwrap();
        let overdue = self
            .under_way
            .iter()
            .find_map(|(asked, _)| judge::overdue(asked, &truth));
        drop(truth);
        let mut violations = self.violations.lock().unwrap();
        violations.extend(overdue);
        match violations.first() {
            Some(violation) => Err(violation.clone()),
            None => Ok(()),
        }
    }

    fn cancel(&mut self, which: u32) {
        if self.under_way.is_empty() {
            return;
        }
        let (asked, task) = self.under_way.remove(which as usize % self.under_way.len());
        task.abort();
        self.truth().cancelled();
        self.truth().ended(asked.call.id);
        if asked.updates() {
            self.truth().updates.spoil();
        }
    }

    /// Begins a call, which is judged when it ends.
    fn begin(&mut self, op: &Op) {
        let (asked, client) = (self.ask(op), self.clients[op.client].clone());
        let (truth, violations) = (Arc::clone(&self.truth), Arc::clone(&self.violations));
        let (judged, switch, sabotage) = (asked.clone(), Arc::clone(&self.switch), self.sabotage);
        let task = tokio::spawn(async move {
            let reply = sabotage::call(sabotage, client, &judged, &truth).await;
            let verdict = judge::judge(&judged, &reply, &mut truth.lock().unwrap(), &switch);
            if let Err(violation) = verdict {
                violations.lock().unwrap().push(violation);
            }
        });
        self.under_way.push((asked, task.abort_handle()));
    }

    /// Ends all faults, and waits until every backend must have recovered.
    async fn heal(&mut self) -> Result<(), String> {
        self.runtimes.iter().for_each(|runtime| runtime.heal());
        self.disk.make_room();
        self.wait(RECOVERY).await;
        self.check()?;
        let endless = |row: &Row| row.name == "GetContainerEvents";
        match self
            .under_way
            .iter()
            .find(|(asked, _)| !endless(asked.call.row))
        {
            Some((asked, _)) => Err(format!(
                "{asked}: still in flight after all faults have ended"
            )),
            None => Ok(()),
        }
    }

    /// Checks that the kubelet finds all pods and containers once all faults have ended.
    async fn end(&mut self) -> Result<(), String> {
        for name in ["ListPodSandbox", "ListContainers", "Status"] {
            self.ask_for(row(name), 1).await?;
        }
        let (pods, containers) = (self.count(Kind::Pod), self.count(Kind::Container));
        for which in 0..pods {
            self.ask_for(row("PodSandboxStatus"), which).await?;
        }
        for which in 0..containers {
            self.ask_for(row("ContainerStatus"), which).await?;
        }
        self.truth().all_reports_received();
        self.check()?;
        self.idle_are_gone().await?;
        sabotage::at_end(self.sabotage, &self.switch);
        let truth = self.truth();
        for (asked, _) in &self.under_way {
            sabotage::events(self.sabotage, asked, &truth);
            events::judge(asked, &truth)?;
        }
        judge::configured(&truth)?;
        judge::memory(&truth, &self.switch)
    }

    /// Checks that criswitch removes a backend that is named in no file and owns nothing, once criswitch must know all
    /// pods of the backend.
    async fn idle_are_gone(&mut self) -> Result<(), String> {
        if self.truth().idle().is_none() {
            return Ok(());
        }
        self.wait(LAST_LOOK).await;
        self.check()?;
        match self.truth().idle() {
            Some(runtime) => Err(format!(
                "backend {runtime} owns nothing and no file names it, but criswitch has not removed it"
            )),
            None => Ok(()),
        }
    }

    fn count(&self, kind: Kind) -> u32 {
        u32::try_from(self.truth().existing(kind).count()).unwrap()
    }

    async fn ask_for(&mut self, row: &'static Row, which: u32) -> Result<(), String> {
        self.begin(&Op::plain(row, which));
        self.wait(Duration::from_millis(1)).await;
        self.check()
    }

    fn truth(&self) -> MutexGuard<'_, Truth> {
        self.truth.lock().unwrap()
    }
}

fn new_switch(config: &Config, runtimes: &Arc<Vec<Arc<Runtime>>>, disk: &Disk) -> Arc<Switch> {
    let runtimes = Arc::clone(runtimes);
    let dial = move |address: &Address| runtimes[number(address)].dial();
    let dialer = Dialer::Memory(Arc::new(dial));
    let (store, found) = disk.open();
    Arc::new(criswitch::switch::saved::resume(
        config.clone(),
        &dialer,
        store,
        found,
    ))
}

/// Reads the files. They are always valid, because edits with a mistake are undone.
fn config(files: &Files) -> Config {
    files
        .read(None)
        .unwrap_or_else(|problems| panic!("{problems}"))
}

/// Gives the backends their images before the start: the first backend gets all images but the last one, and each of
/// the remaining backends gets a part of them. Clients pull the last image.
fn stock(truth: &mut Truth) {
    for backend in 0..RUNTIMES {
        for image in 0..IMAGES as usize - 1 {
            if image.is_multiple_of(backend + 1) {
                let image = format!("image-{image}");
                truth.images.push(Stored {
                    backend,
                    image,
                    gone: None,
                    pulled: false,
                    shown: Some(0),
                });
            }
        }
    }
}
