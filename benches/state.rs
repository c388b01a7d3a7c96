//! The cost of the state on disk: `cargo bench --bench state -- --seconds 120`.
//!
//! A node has 110 pods with two containers each. Each second the benchmark starts one pod and removes the oldest one.
//! Like the kubelet, it lists pods and containers after the start and after the removal. It prints how many bytes are
//! written for each pod, and how long the replies to `RunPodSandbox` and `CreateContainer` take: without a state, with
//! the state on a tmpfs (/dev/shm), and with the state on a disk. The backend answers at once, so the difference is the
//! time that a reply waits for the state.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    reason = "a benchmark may stop"
)]

#[path = "support/cargo_bench.rs"]
mod cargo_bench;

use std::collections::{HashMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criswitch_config::Config;
use criswitch_cri::codec::cri;

use cargo_bench::Wanted;
use clap::Parser;
use criswitch::backend::connect::Dialer;
use criswitch::server::Listener;
use criswitch::store::{Boot, Store};
use criswitch::switch::Switch;
use criswitch_testing::{Client, IMAGE, Sim, container_in, pod_config};
use rustix::fs::inotify;
use tokio::time::{MissedTickBehavior, interval};

/// The kubelet's default limit of pods on a node.
const PODS: usize = 110;
const CONTAINERS_EACH: usize = 2;
const IMAGES: usize = 60;
#[derive(Parser)]
struct Arguments {
    /// The number of pods that each run starts, one per second.
    #[arg(long, default_value_t = 10)]
    seconds: usize,
    /// A directory on a disk, for the state.
    #[arg(long, default_value = env!("CARGO_TARGET_TMPDIR"))]
    disk: PathBuf,
    #[command(flatten)]
    wanted: Wanted,
}

fn main() {
    let arguments = Arguments::parse();
    if !arguments.wanted.has("state") {
        return;
    }
    println!(
        "{PODS} pods, {CONTAINERS_EACH} containers each; {} pods started",
        arguments.seconds
    );
    for (name, place) in [
        ("no state", None),
        ("tmpfs", Some(Path::new("/dev/shm"))),
        ("disk", Some(arguments.disk.as_path())),
    ] {
        measure(name, place, arguments.seconds);
    }
}

/// Measures one location of the state. criswitch has its own thread here, like its own process on a node.
fn measure(name: &str, place: Option<&Path>, seconds: usize) {
    let sockets = tempfile::tempdir().unwrap();
    let state = tempfile::tempdir_in(place.unwrap_or(sockets.path())).unwrap();
    let sim = Sim::new("runc");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        sim.serve_on(&sockets.path().join("runc.sock"));
        let config = configure(sockets.path(), state.path());
        let is_saved = place.is_some();
        let (listens, listening) = std::sync::mpsc::channel();
        std::thread::spawn(move || serve(config, is_saved, &listens));
        listening.recv().unwrap();
        let client = Client::new(&sockets.path().join("criswitch.sock"));
        let mut node = Node::fill(client, &sim).await;
        let written = place.map(|_| Written::watch(state.path()));
        let waits = node.start_pods(seconds).await;
        let written = written.map_or((0, 0), |written| written.so_far(state.path()));
        report(name, waits, written, seconds);
    });
}

fn configure(sockets: &Path, state: &Path) -> Config {
    let path = sockets.join("criswitch.toml");
    let (sockets, state) = (sockets.display(), state.display());
    let text = format!(
        "listen = \"{sockets}/criswitch.sock\"\nruntime_dir = \"{state}\"\nstate_dir = \"{state}\"\n\
         default_handler = \"runc\"\n[handlers]\nrunc = \"{sockets}/runc.sock\"\n"
    );
    std::fs::write(&path, text).unwrap();
    Config::load(&path).unwrap_or_else(|problems| panic!("{problems}"))
}

fn serve(config: Config, is_saved: bool, listens: &std::sync::mpsc::Sender<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let listener = Listener::bind(&config.listen, &config.allow_uids).unwrap();
        listens.send(()).unwrap();
        let switch = if is_saved {
            let directories = config.directories([None, None]);
            let (store, found) = Store::open(directories, Boot::current().unwrap());
            criswitch::switch::saved::resume(config, &Dialer::Socket, store, found)
        } else {
            Switch::new(config, &Dialer::Socket)
        };
        criswitch::serve(Arc::new(switch), listener, None, std::future::pending()).await;
    });
}

/// The pods of the node, and the client that starts and ends them.
struct Node {
    client: Client,
    pods: VecDeque<String>,
    started: usize,
}

/// How long replies took, by RPC.
#[derive(Default)]
struct Waits {
    run_pod: Vec<Duration>,
    create: Vec<Duration>,
}

impl Node {
    async fn fill(client: Client, sim: &Sim) -> Node {
        for image in 0..IMAGES {
            sim.add_image(&format!("registry.example/team/service-{image}:1.{image}"));
        }
        sim.add_image(IMAGE);
        let mut node = Node {
            client,
            pods: VecDeque::new(),
            started: 0,
        };
        for _ in 0..PODS {
            node.start_pod(&mut Waits::default()).await;
        }
        node.list().await;
        node
    }

    async fn start_pods(&mut self, count: usize) -> Waits {
        let mut waits = Waits::default();
        let mut every_second = interval(Duration::from_secs(1));
        every_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for _ in 0..count {
            every_second.tick().await;
            self.start_pod(&mut waits).await;
            self.list().await;
            let oldest = self.pods.pop_front().unwrap();
            self.client.stop_pod(&oldest).await.unwrap();
            self.client.remove_pod(&oldest).await.unwrap();
            self.list().await;
        }
        waits
    }

    async fn start_pod(&mut self, waits: &mut Waits) {
        self.started += 1;
        let config = pod(self.started);
        let labels = config.labels.clone();
        let request = cri::RunPodSandboxRequest {
            config: Some(config),
            runtime_handler: "runc".to_owned(),
        };
        let began = Instant::now();
        let reply = self.client.runtime().run_pod_sandbox(request).await;
        waits.run_pod.push(began.elapsed());
        let pod = reply.unwrap().into_inner().pod_sandbox_id;
        for number in 0..CONTAINERS_EACH {
            let config = container(&labels, number);
            let began = Instant::now();
            let container = self.client.create_from(&pod, config).await.unwrap();
            waits.create.push(began.elapsed());
            self.client.start(&container).await.unwrap();
        }
        self.pods.push_back(pod);
    }

    async fn list(&self) {
        self.client.pods().await.unwrap();
        self.client.containers().await.unwrap();
    }
}

/// A pod with the labels and annotations of a Deployment's pods.
fn pod(number: usize) -> cri::PodSandboxConfig {
    let mut config = pod_config(&format!("service-{number}-6d4cf56db6-x7k2p"));
    config.labels.extend(texts([
        ("app.kubernetes.io/name", "service"),
        ("app.kubernetes.io/instance", "service-production"),
        ("app.kubernetes.io/part-of", "shop"),
        ("pod-template-hash", "6d4cf56db6"),
    ]));
    config.annotations.extend(texts([
        ("prometheus.io/scrape", "true"),
        (
            "checksum/config",
            "8e5b8e8c9a1fcd8c1f8c2f4f2f0c3b1e5b8e8c9a1fcd8c1f8c2f4f2f0c3b1e42",
        ),
    ]));
    config
}

fn container(labels: &HashMap<String, String>, number: usize) -> cri::ContainerConfig {
    let mut config = container_in(labels, &format!("main-{number}"), IMAGE);
    config.annotations.extend(texts([
        ("io.kubernetes.container.hash", "5f2c8a1b"),
        ("io.kubernetes.container.restartCount", "0"),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
        ("io.kubernetes.container.terminationMessagePolicy", "File"),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ]));
    config
}

fn texts<const N: usize>(entries: [(&str, &str); N]) -> HashMap<String, String> {
    entries
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// Counts the files that are replaced in a directory.
struct Written(OwnedFd);

impl Written {
    /// Starts to count. inotify merges consecutive events if they are identical. The CREATE event of the temporary file
    /// separates two renames, so each replacement is counted.
    fn watch(directory: &Path) -> Written {
        let watching = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
        let flags = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&watching, directory, flags).unwrap();
        Written(watching)
    }

    /// Returns the number of files written so far, and their bytes. Each write of a file counts with the file's current
    /// length.
    fn so_far(&self, directory: &Path) -> (usize, u64) {
        let mut buffer = [MaybeUninit::uninit(); 65536];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        let (mut files, mut bytes) = (0, 0);
        while let Ok(event) = events.next() {
            if event.events().contains(inotify::ReadFlags::MOVED_TO) {
                let name = event.file_name().unwrap().to_str().unwrap();
                files += 1;
                bytes += std::fs::metadata(directory.join(name)).unwrap().len();
            }
        }
        (files, bytes)
    }
}

fn report(name: &str, waits: Waits, (files, bytes): (usize, u64), pods: usize) {
    let pods_count = pods as f64;
    let (files, kib) = (
        files as f64 / pods_count,
        bytes as f64 / 1024.0 / pods_count,
    );
    println!("{name}: {files:.1} files with {kib:.0} KiB written for each pod");
    for (rpc, mut took) in [
        ("RunPodSandbox", waits.run_pod),
        ("CreateContainer", waits.create),
    ] {
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() * percent / 100).min(took.len() - 1)];
        println!("  {rpc}: p50 {:.2?}, p99 {:.2?}", at(50), at(99));
    }
}
