//! A simulated runtime: a complete CRI server on a Unix socket, for the tests and the demo.
//!
//! It keeps pods, containers and images as containerd does, and runs nothing.

mod containers;
mod cut;
mod ids;
mod images;
mod journal;
mod pods;
mod rewrite;
mod runtime;
mod serve;
mod settings;
mod stats;
mod store;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use criswitch::codec::cri;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;

use super::PATIENCE;
use cut::Rest;
pub use journal::{Call, Journal};
pub use settings::{ImageIds, Settings, ShowsHandlers};
use store::Store;

/// A handle to one simulated runtime; clones share it.
#[derive(Clone)]
pub struct Sim(Arc<Inner>);

struct Inner {
    name: String,
    store: Mutex<Store>,
    journal: watch::Sender<Journal>,
    serving: Mutex<Serving>,
}

#[derive(Default)]
struct Serving {
    socket: PathBuf,
    task: Option<JoinHandle<()>>,
    /// The user who serves, if not the tests' own.
    user: Option<u32>,
}

/// How it is set up, in one line.
impl Sim {
    /// A runtime with one handler, called like itself, and no image. Its ids follow from its name.
    pub fn new(name: &str) -> Sim {
        Sim(Arc::new(Inner {
            name: name.to_owned(),
            store: Mutex::new(Store::new(name)),
            journal: watch::Sender::new(Journal::default()),
            serving: Mutex::default(),
        }))
    }

    /// Handlers that it knows; the first is its own default.
    pub fn handlers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Sim {
        let handlers = names.into_iter().map(settings::handler).collect();
        self.set(|settings| settings.handlers = handlers)
    }

    /// What Status says that a handler can do.
    pub fn features(self, handler: &str, features: cri::RuntimeHandlerFeatures) -> Sim {
        self.set(|settings| {
            for known in settings.handlers.iter_mut().filter(|h| h.name == handler) {
                known.features = Some(features);
            }
        })
    }

    /// The version that it gives.
    pub fn version(self, version: &str) -> Sim {
        self.set(|settings| settings.version = version.to_owned())
    }

    /// The name that Version gives, if not its own.
    pub fn runtime_name(self, name: &str) -> Sim {
        self.set(|settings| settings.runtime_name = name.to_owned())
    }

    /// The cgroup driver that RuntimeConfig gives.
    pub fn cgroup_driver(self, driver: cri::CgroupDriver) -> Sim {
        self.set(|settings| settings.cgroup_driver = driver)
    }

    /// Image ids as containerd or as CRI-O writes them. Comes before the images.
    pub fn image_ids(self, style: ImageIds) -> Sim {
        self.set(|settings| settings.image_ids = style)
    }

    /// Has this image from the start.
    pub fn image(self, reference: &str) -> Sim {
        self.add_image(reference);
        self
    }

    /// Has this image from the start, every field as given.
    pub fn stores(self, image: cri::Image) -> Sim {
        self.store().images.push(image);
        self
    }

    /// What ids follow from; two runtimes with one seed give the same ids.
    pub fn seed(self, seed: &str) -> Sim {
        self.store().ids.seed = seed.to_owned();
        self
    }

    /// The next ids begin with these, in this order.
    pub fn next_ids<'a>(self, prefixes: impl IntoIterator<Item = &'a str>) -> Sim {
        let prefixes = prefixes.into_iter().map(str::to_owned);
        self.store().ids.prefixes.extend(prefixes);
        self
    }

    /// Answers these RPCs with `Unimplemented`, as an older runtime does.
    pub fn lacks<'a>(self, rpcs: impl IntoIterator<Item = &'a str>) -> Sim {
        let rpcs: Vec<String> = rpcs.into_iter().map(str::to_owned).collect();
        self.edit(|journal| journal.lacks.extend(rpcs));
        self
    }

    /// Speaks a CRI of the future: unknown fields in every reply and every item of the lists, and
    /// labels that are not UTF-8. Generated types cannot decode such replies.
    pub fn newer(self) -> Sim {
        self.edit(|journal| journal.newer = true);
        self
    }

    /// Changes any setting, before it serves or while it does.
    pub fn set(self, change: impl FnOnce(&mut Settings)) -> Sim {
        change(&mut self.store().settings);
        self
    }
}

/// What goes wrong on demand.
impl Sim {
    /// Answers an RPC with this status until [`Sim::heal`].
    pub fn fail(&self, rpc: &str, status: Status) {
        self.edit(|journal| {
            journal.fails.insert(rpc.to_owned(), status);
        });
    }

    /// Ends [`Sim::fail`].
    pub fn heal(&self, rpc: &str) {
        self.edit(|journal| {
            journal.fails.remove(rpc);
        });
    }

    /// Lets calls of an RPC hang, before they do anything, until [`Sim::release`].
    pub fn hold(&self, rpc: &str) {
        self.edit(|journal| {
            journal.holds.insert(rpc.to_owned());
        });
    }

    /// Lets calls of an RPC hang that ask for all there is, until [`Sim::release`]: so does CRI-O with stats, while a
    /// container stops.
    pub fn hold_all(&self, rpc: &str) {
        self.hold(&serve::all_of(rpc));
    }

    /// Lets calls of an RPC hang when they have been done, before they are answered, until [`Sim::release`].
    pub fn hold_reply(&self, rpc: &str) {
        self.hold(&serve::reply_of(rpc));
    }

    /// Waits until an RPC has been done and its answer is held.
    pub async fn until_done(&self, rpc: &str) {
        let reply = serve::reply_of(rpc);
        self.until(|journal| journal.held.contains(&reply)).await;
    }

    /// Lets held calls go on.
    pub fn release(&self, rpc: &str) {
        self.edit(|journal| {
            journal.holds.remove(rpc);
            journal.holds.remove(&serve::reply_of(rpc));
            journal.holds.remove(&serve::all_of(rpc));
        });
    }

    /// Puts these bytes behind every reply message of an RPC.
    pub fn append_raw(&self, rpc: &str, bytes: impl Into<Bytes>) {
        self.edit(|journal| {
            journal.appended.insert(rpc.to_owned(), bytes.into());
        });
    }

    /// Puts these bytes behind every submessage in field 1 of an RPC's replies: the items of a
    /// list, the `status` of a status.
    pub fn append_to_items(&self, rpc: &str, bytes: impl Into<Bytes>) {
        self.edit(|journal| {
            journal
                .appended_to_items
                .insert(rpc.to_owned(), bytes.into());
        });
    }

    /// Cuts every reply into data frames of so many bytes.
    pub fn chop(&self, length: usize) {
        self.edit(|journal| journal.chopped = Some(length));
    }

    /// Lets stream lists hang behind their first message, until it is told otherwise or its death.
    pub fn stall_streams(&self) {
        self.edit(|journal| journal.rest = Rest::Waits);
    }

    /// Lets stream lists go on, those that hang too.
    pub fn resume_streams(&self) {
        self.edit(|journal| journal.rest = Rest::Comes);
    }

    /// Ends stream lists behind their first message with this status, those that hang too.
    pub fn end_streams(&self, status: Status) {
        self.edit(|journal| journal.rest = Rest::Fails(status));
    }

    /// Ends its streams of events, with this status or well, and nothing else.
    pub fn end_events(&self, status: Option<Status>) {
        self.store().end_events(status);
    }

    /// Loses every pod and container, as a machine does that lost its power.
    pub fn forget(&self) {
        let mut store = self.store();
        store.pods.clear();
        store.containers.clear();
    }

    /// Has this image from now on; answers its id.
    pub fn add_image(&self, reference: &str) -> String {
        self.store().add_image(reference)
    }

    /// Tells its listeners of a container that was started.
    pub fn tell(&self, container: &str, pod: &str) {
        let what = cri::ContainerEventType::ContainerStartedEvent;
        self.store().tell(container, pod, what);
    }

    /// A container ends by itself.
    pub fn exit(&self, container: &str, code: i32) {
        self.store().exit_container(container, code).unwrap();
    }
}

/// What can be seen of it from outside of the CRI.
impl Sim {
    /// The name that it was made with.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The handlers that it knows.
    pub fn handler_names(&self) -> Vec<String> {
        let store = self.store();
        store
            .settings
            .handlers
            .iter()
            .map(|h| h.name.clone())
            .collect()
    }

    /// Every pod that it has.
    pub fn pods(&self) -> Vec<cri::PodSandbox> {
        self.store().list_pods(None)
    }

    /// Every container that it has.
    pub fn containers(&self) -> Vec<cri::Container> {
        self.store().list_containers(None)
    }

    /// Every image that it has.
    pub fn images(&self) -> Vec<cri::Image> {
        self.store().images.clone()
    }

    /// What UpdateRuntimeConfig told it last.
    pub fn network(&self) -> Option<cri::NetworkConfig> {
        self.store().network.clone()
    }

    /// The calls of an RPC, as they came in.
    pub fn calls(&self, rpc: &str) -> Vec<Call> {
        let journal = self.0.journal.borrow();
        journal.calls_of(rpc).cloned().collect()
    }

    /// Forgets its calls, which would add up under load.
    pub fn forget_calls(&self) {
        self.edit(|journal| journal.calls.clear());
    }

    /// The body of its last reply to an RPC: gRPC's five bytes before each message included.
    pub fn sent(&self, rpc: &str) -> Bytes {
        let sent = self.0.journal.borrow().sent.get(rpc).cloned();
        sent.unwrap_or_default().freeze()
    }

    /// The RPCs of the calls that went away before they were answered.
    pub fn cancelled(&self) -> Vec<String> {
        self.0.journal.borrow().cancelled.clone()
    }

    /// How many clients listen for events.
    pub fn listeners(&self) -> usize {
        self.store().events.receiver_count()
    }

    /// Waits until its journal is as wanted; panics when that takes too long.
    pub async fn until(&self, wanted: impl FnMut(&Journal) -> bool) {
        let mut journal = self.0.journal.subscribe();
        if tokio::time::timeout(PATIENCE, journal.wait_for(wanted))
            .await
            .is_err()
        {
            let journal = self.0.journal.borrow();
            let calls: Vec<&str> = journal.calls.iter().map(|call| call.rpc.as_str()).collect();
            let (held, cancelled) = (&journal.held, &journal.cancelled);
            panic!(
                "{}: waited in vain; calls {calls:?}, held {held:?}, cancelled {cancelled:?}",
                self.name()
            );
        }
    }
}

/// Its socket.
impl Sim {
    /// Serves as this user from the next start on, for which the tests have to run as root.
    pub fn of_user(self, user: u32) -> Sim {
        self.serving().user = Some(user);
        self
    }

    /// Serves on this socket; needs a tokio runtime.
    pub fn serve_on(&self, socket: &Path) {
        self.serving().socket = socket.to_owned();
        self.start();
    }

    /// Serves again on the socket that it had.
    pub fn start(&self) {
        let mut serving = self.serving();
        let listener = serve::bind(&serving.socket);
        if let Some(user) = serving.user {
            serve::listen_as(user, &listener);
        }
        serving.task = Some(tokio::spawn(serve::run(self.clone(), listener)));
    }

    /// Dies as a killed process does: connections break and the socket's file stays.
    pub async fn stop(&self) {
        let task = self.serving().task.take();
        if let Some(task) = task {
            task.abort();
            task.await.unwrap_err();
        }
    }

    /// Where it serves.
    pub fn socket(&self) -> PathBuf {
        self.serving().socket.clone()
    }

    fn serving(&self) -> MutexGuard<'_, Serving> {
        self.0.serving.lock().unwrap()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.store.lock().unwrap()
    }

    fn edit(&self, change: impl FnOnce(&mut Journal)) {
        self.0.journal.send_modify(change);
    }
}
