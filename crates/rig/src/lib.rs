//! The real criswitch in front of simulated runtimes, on sockets in a temporary directory. Also exports the items of
//! `criswitch-testing`.
#![allow(missing_docs)]
// These lints keep panics out of the daemon. Here they are off, because a panic only fails a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use criswitch::backend::connect::Dialer;
use criswitch::limits::flood::Unaccepted;
use criswitch::limits::places::User;
use criswitch::server::{self, Listener};
use criswitch::store::{Boot, Store};
use criswitch::switch::Switch;
use criswitch::switch::reload::Outcome;
use criswitch::telemetry::counters::Reason;
use criswitch_config::address::Address;
use criswitch_config::{Config, Directories};
use criswitch_platform::file_work::FileWork;
use criswitch_testing::clock::Steps;
use criswitch_testing::misbehaving::{Misbehaving, Misbehaviour};
use tempfile::TempDir;
use tokio::io::DuplexStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::Status;

pub use criswitch_testing::*;

/// criswitch and its runtimes, which end with the test. Dereferences to a [`Client`] of criswitch. The clock is
/// paused, and advances while all tasks wait, except after [`Rig::on_a_real_clock`].
pub struct Rig {
    pub sims: Vec<Sim>,
    client: Client,
    switch: Option<Running>,
    /// The boot id and machine id that criswitch sees.
    pub boot: Boot,
    state_problems: Vec<String>,
    steps: Option<Steps>,
    directory: TempDir,
}

struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    switch: Arc<Switch>,
    /// Runs the writes of the state, one at a time.
    writes: FileWork,
}

impl Rig {
    /// Starts criswitch with one backend for each runtime. The backend has the name and the handlers of the runtime.
    /// The default handler is the first handler of the first runtime.
    pub async fn start(sims: impl IntoIterator<Item = Sim>) -> Rig {
        let sims: Vec<Sim> = sims.into_iter().collect();
        let table = table_of(&sims);
        Rig::with_config(sims, |directory| table.replace("DIRECTORY", directory)).await
    }

    /// Starts criswitch with the default backend `runc`, and with a backend `bad` that can misbehave. `keys` are the
    /// other keys of the configuration.
    pub async fn beside_bad(runc: Sim, keys: &str, bad: Misbehaviour) -> (Rig, Misbehaving) {
        let mut serving = None;
        let rig = Rig::with_config([runc], |directory| {
            serving = Some(Misbehaving::serve_on(
                &Path::new(directory).join("bad.sock"),
                bad,
            ));
            format!(
                "default_handler = 'runc'\n{keys}\n[handlers]\nrunc = '{directory}/runc.sock'\nbad = '{directory}/bad.sock'"
            )
        });
        (rig.await, serving.unwrap())
    }

    /// Starts criswitch with this configuration. `text` gets the directory and returns the configuration without
    /// `listen`. Each runtime serves on `<directory>/<name>.sock`.
    pub async fn with_config(
        sims: impl IntoIterator<Item = Sim>,
        text: impl FnOnce(&str) -> String,
    ) -> Rig {
        let directory = tempfile::Builder::new()
            .prefix("criswitch-")
            .tempdir()
            .unwrap();
        let sims: Vec<Sim> = sims.into_iter().collect();
        for sim in &sims {
            sim.serve_on(&directory.path().join(format!("{}.sock", sim.name())));
        }
        let mut rig = Rig {
            sims,
            client: Client::new(&directory.path().join("criswitch.sock")),
            switch: None,
            boot: Boot {
                id: "first".to_owned(),
                machine: "machine".to_owned(),
            },
            state_problems: Vec::new(),
            steps: Some(Steps::begin()),
            directory,
        };
        rig.configure(text);
        rig.start_switch();
        rig
    }

    pub fn sim(&self, name: &str) -> &Sim {
        self.sims
            .iter()
            .find(|sim| sim.name() == name)
            .unwrap_or_else(|| panic!("no simulated runtime {name}"))
    }

    /// The directory of the sockets and the configuration.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The directory of the saved state.
    pub fn state_directory(&self) -> std::path::PathBuf {
        self.directory().join("criswitch.sock.state")
    }

    fn state_directories(&self) -> Directories {
        Directories {
            runtime: self.state_directory(),
            state: self.state_directory(),
        }
    }

    /// Stops criswitch, as SIGTERM does, and starts it again with the same configuration.
    pub async fn restart_switch(&mut self) {
        self.stop_switch().await;
        self.start_switch();
    }

    /// Restarts criswitch without its saved state, as on a node where it never ran.
    pub async fn restart_switch_without_state(&mut self) {
        self.stop_switch().await;
        std::fs::remove_dir_all(self.state_directory()).unwrap();
        self.start_switch();
    }

    /// Restarts criswitch with another configuration.
    pub async fn restart_switch_with(&mut self, text: impl FnOnce(&str) -> String) {
        self.stop_switch().await;
        self.configure(text);
        self.start_switch();
    }

    /// Stops criswitch, as SIGTERM does, and waits for its end. No file changes afterwards.
    pub async fn stop_switch(&mut self) {
        let Some(running) = self.switch.take() else {
            return;
        };
        running.stop.send(()).unwrap();
        running.task.await.unwrap();
        let tasks = Arc::downgrade(&running.switch);
        drop(running.switch);
        let ended = async {
            while tasks.strong_count() > 0 {
                clock::turn().await;
            }
        };
        tokio::time::timeout(PATIENCE, ended).await.unwrap();
        end_writes(&running.writes);
    }

    /// Lets the clock run, for the demo, or for a test that waits for a process.
    pub fn on_a_real_clock(mut self) -> Rig {
        if self.steps.take().is_some() {
            tokio::time::resume();
        }
        self
    }

    /// The number of rejections for this reason since criswitch started.
    pub fn rejected(&self, reason: Reason) -> u64 {
        let running = self.switch.as_ref().expect("criswitch is not running");
        running.switch.counts.rejected(reason)
    }

    /// The number of connected clients.
    pub fn connections(&self) -> u64 {
        let running = self.switch.as_ref().expect("criswitch is not running");
        running.switch.counts.connections().1
    }

    /// The number of reply bytes that clients have not read yet.
    pub fn unread(&self) -> usize {
        let running = self.switch.as_ref().expect("criswitch is not running");
        running.switch.unread.used()
    }

    /// The bytes of the replies of `backend` to clients, and of its cached lists.
    pub fn held(&self, backend: &str) -> usize {
        let running = self.switch.as_ref().expect("criswitch is not running");
        let live = running.switch.live();
        let found = live.backends.iter().find(|it| &*it.name() == backend);
        found.expect("a backend").memory.all().used()
    }

    /// Connects a client of `user` over a pipe in memory.
    pub fn connect_as(&self, user: User) -> DuplexStream {
        let running = self.switch.as_ref().expect("criswitch is not running");
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let switch = Arc::clone(&running.switch);
        let unread = switch.unread.share(user);
        let unaccepted = Unaccepted::default();
        tokio::spawn(server::connection(
            theirs,
            unaccepted,
            switch,
            user,
            unread,
            Arc::default(),
        ));
        ours
    }

    /// The problems that criswitch found in the saved state at its start.
    pub fn state_problems(&self) -> &[String] {
        &self.state_problems
    }

    /// Writes another configuration and reloads it.
    pub fn reload(&self, text: impl FnOnce(&str) -> String) -> Outcome {
        self.configure(text);
        self.reload_file()
    }

    /// Reloads the configuration's files.
    pub fn reload_file(&self) -> Outcome {
        let running = self.switch.as_ref().expect("criswitch is not running");
        running.switch.reloads().begin();
        criswitch::switch::reload::reload(&running.switch, Config::load(&self.config_path()))
    }

    /// Reloads the configuration's files each time a client requests a reload.
    pub async fn answer_reloads(&self) {
        let running = self.switch.as_ref().expect("criswitch is not running");
        loop {
            running.switch.reload_queue.wanted.notified().await;
            self.reload_file();
        }
    }

    fn start_switch(&mut self) {
        let config =
            Config::load(&self.config_path()).unwrap_or_else(|problems| panic!("{problems}"));
        let listener = bind(&config);
        let (stop, stopped) = oneshot::channel();
        let shutdown = async { stopped.await.unwrap_or_default() };
        let (store, found) = Store::open(self.state_directories(), self.boot.clone());
        self.state_problems.clone_from(&found.problems);
        let writes = store.work.clone();
        let switch = criswitch::switch::saved::resume(config, &Dialer::Socket, store, found);
        let switch = Arc::new(switch);
        let task = tokio::spawn(criswitch::serve(
            Arc::clone(&switch),
            listener,
            None,
            shutdown,
        ));
        self.switch = Some(Running {
            stop,
            task,
            switch,
            writes,
        });
    }

    fn configure(&self, text: impl FnOnce(&str) -> String) {
        let text = text(&sockets::text(self.directory.path()));
        let listen = Address::parse(self.client.socket.to_str().unwrap()).unwrap();
        let listen = format!("listen = \"{listen}\"\n");
        std::fs::write(self.config_path(), listen + &text).unwrap();
    }

    fn config_path(&self) -> std::path::PathBuf {
        self.directory.path().join("criswitch.toml")
    }
}

/// Calls through criswitch. A method that returns no `Result` panics on an error.
impl Rig {
    /// Runs a pod and returns its id.
    pub async fn run_pod(&self, handler: &str, name: &str) -> String {
        self.client.run_pod(handler, name).await.unwrap()
    }

    /// Runs a pod, which may fail.
    pub async fn try_run(&self, handler: &str, name: &str) -> Result<String, Status> {
        self.client.run_pod(handler, name).await
    }

    /// Creates a container in a pod, with the pod's labels, and returns its id. The pod's runtime gets the image first.
    pub async fn create(&self, pod: &str, name: &str) -> String {
        let owner = self.owner_of(pod).unwrap();
        owner.add_image(IMAGE);
        let labels = owner
            .pods()
            .into_iter()
            .filter(|p| p.id == pod)
            .flat_map(|p| p.labels)
            .collect();
        let config = container_in(&labels, name, IMAGE);
        self.client.create_from(pod, config).await.unwrap()
    }

    /// Runs a pod with one running container of the same name, and returns both ids.
    pub async fn run(&self, handler: &str, name: &str) -> (String, String) {
        let pod = self.run_pod(handler, name).await;
        let container = self.create(&pod, name).await;
        self.client.start(&container).await.unwrap();
        (pod, container)
    }

    /// The runtime that has this pod.
    pub fn owner_of(&self, pod: &str) -> Option<&Sim> {
        self.sims
            .iter()
            .find(|sim| sim.pods().iter().any(|p| p.id == pod))
    }

    /// Sends any bytes to any path, on a new connection, and returns the raw reply.
    pub async fn raw(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<bytes::Bytes>,
    ) -> RawReply {
        self.client.raw().await.call(path, headers, body).await
    }
}

impl Drop for Rig {
    /// Ends the writes of the state: the directory is removed next, and a write would create it again.
    fn drop(&mut self) {
        let Some(running) = &self.switch else { return };
        running.task.abort();
        end_writes(&running.writes);
    }
}

/// Prevents further writes, and waits for the write in progress.
fn end_writes(writes: &FileWork) {
    writes.close();
    let begun = Instant::now();
    while writes.is_busy() && begun.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
}

impl Deref for Rig {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// Binds the socket, and retries for at most [`PATIENCE`]. The first attempt may fail while another test forks a
/// process, because the process holds a copy of this test's lock file until it calls exec.
fn bind(config: &Config) -> Listener {
    let begun = Instant::now();
    loop {
        match Listener::bind(&config.listen, &config.allow_uids) {
            Ok(listener) => return listener,
            Err(error) if begun.elapsed() > PATIENCE => panic!("{error}"),
            Err(_) => std::thread::yield_now(),
        }
    }
}

/// The configuration of [`Rig::start`]. `DIRECTORY` is a placeholder for the directory of the sockets.
fn table_of(sims: &[Sim]) -> String {
    let first = sims.first().map(Sim::handler_names).unwrap_or_default();
    let default = first.first().cloned().unwrap_or_default();
    let (mut handlers, mut backends) = (String::new(), String::new());
    for sim in sims {
        let name = sim.name();
        for handler in sim.handler_names() {
            handlers += &format!("{handler} = \"{name}\"\n");
        }
        backends += &format!("{name} = \"DIRECTORY/{name}.sock\"\n");
    }
    format!(
        "default_handler = \"{default}\"\nshutdown_timeout = \"1s\"\nstart_wait = \"0s\"\n[handlers]\n{handlers}[backends]\n{backends}"
    )
}
