//! A simulated runtime: a complete CRI server on a Unix socket, for the tests and the demo.
//!
//! A simulated runtime keeps pods, containers and images as containerd does, and runs nothing.

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
use criswitch_cri::codec::cri;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::Status;

use super::{PATIENCE, sockets};
use cut::Rest;
pub use journal::{Call, Journal, ServeError};
pub use settings::{ImageIds, Settings, ShowsHandlers};
use store::Store;

/// A handle to one simulated runtime. Clones share the runtime.
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
    /// The user of the server process, if it is not the user of the tests.
    user: Option<u32>,
}

/// Setters, for a set-up in one line.
impl Sim {
    /// A runtime without images and with one handler, which has the runtime's name. The name is also the seed of the
    /// ids of pods and containers.
    pub fn new(name: &str) -> Sim {
        Sim(Arc::new(Inner {
            name: name.to_owned(),
            store: Mutex::new(Store::new(name)),
            journal: watch::Sender::new(Journal::default()),
            serving: Mutex::default(),
        }))
    }

    /// The handlers of the runtime. The first handler is the runtime's default.
    pub fn handlers<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Sim {
        let handlers = names.into_iter().map(settings::handler).collect();
        self.set(|settings| settings.handlers = handlers)
    }

    /// The features of a handler in Status.
    pub fn features(self, handler: &str, features: cri::RuntimeHandlerFeatures) -> Sim {
        self.set(|settings| {
            for known in settings.handlers.iter_mut().filter(|h| h.name == handler) {
                known.features = Some(features);
            }
        })
    }

    /// The runtime version in Version.
    pub fn version(self, version: &str) -> Sim {
        self.set(|settings| settings.version = version.to_owned())
    }

    /// The runtime name in Version, if it differs from the name of the simulated runtime.
    pub fn runtime_name(self, name: &str) -> Sim {
        self.set(|settings| settings.runtime_name = name.to_owned())
    }

    /// The cgroup driver in RuntimeConfig.
    pub fn cgroup_driver(self, driver: cri::CgroupDriver) -> Sim {
        self.set(|settings| settings.cgroup_driver = driver)
    }

    /// The form of image ids, containerd's or CRI-O's. Call this before adding images.
    pub fn image_ids(self, style: ImageIds) -> Sim {
        self.set(|settings| settings.image_ids = style)
    }

    /// Adds this image.
    pub fn image(self, reference: &str) -> Sim {
        self.add_image(reference);
        self
    }

    /// Adds exactly this image, with every field as given.
    pub fn stores(self, image: cri::Image) -> Sim {
        self.store().images.push(image);
        self
    }

    /// The seed of ids. Two runtimes with the same seed return the same ids.
    pub fn seed(self, seed: &str) -> Sim {
        self.store().ids.seed = seed.to_owned();
        self
    }

    /// The prefixes of the next ids, in this order.
    pub fn next_ids<'a>(self, prefixes: impl IntoIterator<Item = &'a str>) -> Sim {
        self.store()
            .ids
            .prefixes
            .extend(prefixes.into_iter().map(str::to_owned));
        self
    }

    /// Answers these RPCs with `Unimplemented`, as an older runtime does.
    pub fn lacks<'a>(self, rpcs: impl IntoIterator<Item = &'a str>) -> Sim {
        let rpcs: Vec<String> = rpcs.into_iter().map(str::to_owned).collect();
        self.edit(|journal| journal.lacks.extend(rpcs));
        self
    }

    /// Speaks a future CRI: unknown fields in every reply and list item, and labels that are not UTF-8. Generated types
    /// cannot decode such replies.
    pub fn newer(self) -> Sim {
        self.edit(|journal| journal.newer = true);
        self
    }

    /// Changes any setting, before the runtime serves or later.
    pub fn set(self, change: impl FnOnce(&mut Settings)) -> Sim {
        change(&mut self.store().settings);
        self
    }
}

/// Faults on demand.
impl Sim {
    /// Answers an RPC with this status until [`Sim::heal`].
    pub fn fail(&self, rpc: &str, status: Status) {
        self.edit(|journal| {
            journal.fails.insert(rpc.to_owned(), status);
        });
    }

    /// Resets the stream of each call of an RPC until [`Sim::heal`].
    pub fn reset(&self, rpc: &str) {
        self.reset_with(rpc, || "the call is reset".into());
    }

    /// Like [`Sim::reset`], with an error from which hyper takes the HTTP/2 error code.
    pub fn reset_with(&self, rpc: &str, error: fn() -> ServeError) {
        self.edit(|journal| {
            journal.resets.insert(rpc.to_owned(), error);
        });
    }

    /// Ends [`Sim::fail`] and [`Sim::reset`].
    pub fn heal(&self, rpc: &str) {
        self.edit(|journal| {
            journal.fails.remove(rpc);
            journal.resets.remove(rpc);
        });
    }

    /// Rejects each call with this header: with this status, or without a status by a reset of its stream.
    pub fn reject_header(&self, name: &str, with: Option<Status>) {
        self.edit(|journal| journal.rejects = Some((name.to_owned(), with)));
    }

    /// Never answers the next call of an RPC. Answers later calls as before.
    pub fn lose(&self, rpc: &str) {
        self.edit(|journal| {
            journal.loses.insert(rpc.to_owned());
        });
    }

    /// Makes calls of an RPC hang before they have any effect, until [`Sim::release`].
    pub fn hold(&self, rpc: &str) {
        self.edit(|journal| {
            journal.holds.insert(rpc.to_owned());
        });
    }

    /// Makes an RPC's calls hang if they have no filter, until [`Sim::release`]. CRI-O's calls for all stats hang like
    /// this while a container stops.
    pub fn hold_all(&self, rpc: &str) {
        self.hold(&serve::all_of(rpc));
    }

    /// Makes an RPC's calls hang for ever if their requests contain this id.
    pub fn hold_of(&self, rpc: &str, id: &str) {
        self.edit(|journal| journal.holds_of = Some((rpc.to_owned(), id.to_owned())));
    }

    /// Makes calls of an RPC hang after their effect and before their reply, until [`Sim::release`].
    pub fn hold_reply(&self, rpc: &str) {
        self.hold(&serve::reply_of(rpc));
    }

    /// Waits until a call of an RPC has had its effect and its reply is held.
    pub async fn until_done(&self, rpc: &str) {
        let reply = serve::reply_of(rpc);
        self.until(|journal| journal.held.contains(&reply)).await;
    }

    /// Waits until exactly one call is held, and this call is of this RPC.
    pub async fn until_held(&self, rpc: &str) {
        self.until(|journal| journal.held == [rpc]).await;
    }

    /// Lets held calls continue.
    pub fn release(&self, rpc: &str) {
        self.edit(|journal| {
            journal.holds.remove(rpc);
            journal.holds.remove(&serve::reply_of(rpc));
            journal.holds.remove(&serve::all_of(rpc));
        });
    }

    /// Lists pods and containers in a different order from now on. containerd's order is different in each list.
    pub fn reorder(&self) {
        let mut store = self.store();
        store.pods.rotate_left(1);
        store.containers.rotate_left(1);
    }

    /// Appends these bytes to every reply message of an RPC.
    pub fn append_raw(&self, rpc: &str, bytes: impl Into<Bytes>) {
        self.edit(|journal| {
            journal.appended.insert(rpc.to_owned(), bytes.into());
        });
    }

    /// Appends these bytes to every submessage in field 1 of an RPC's replies: the items of a list, or the `status` of
    /// a status.
    pub fn append_to_items(&self, rpc: &str, bytes: impl Into<Bytes>) {
        self.edit(|journal| {
            journal
                .appended_to_items
                .insert(rpc.to_owned(), bytes.into());
        });
    }

    /// Cuts every reply into data frames of `length` bytes.
    pub fn chop(&self, length: usize) {
        self.edit(|journal| journal.chopped = Some(length));
    }

    /// Makes stream lists hang after their first message, until [`Sim::resume_streams`], [`Sim::end_streams`] or the
    /// runtime's end.
    pub fn stall_streams(&self) {
        self.edit(|journal| journal.rest = Rest::Waits);
    }

    /// Lets stream lists continue, including stream lists that hang.
    pub fn resume_streams(&self) {
        self.edit(|journal| journal.rest = Rest::Comes);
    }

    /// Ends stream lists after their first message with this status, including stream lists that hang.
    pub fn end_streams(&self, status: Status) {
        self.edit(|journal| journal.rest = Rest::Fails(status));
    }

    /// Ends the streams of events with this status, or with OK. Other calls are unaffected.
    pub fn end_events(&self, status: Option<Status>) {
        self.store().end_events(status);
    }

    /// Loses every pod and container, as a power failure does.
    pub fn forget(&self) {
        let mut store = self.store();
        store.pods.clear();
        store.containers.clear();
    }

    /// Adds this image and returns its id.
    pub fn add_image(&self, reference: &str) -> String {
        self.store().add_image(reference)
    }

    /// Adds the security profile of this reference.
    pub fn add_profile(&self, reference: &str) {
        self.store().add_profile(reference).unwrap();
    }

    /// Sends the listeners an event: this container started.
    pub fn report(&self, container: &str, pod: &str) {
        let what = cri::ContainerEventType::ContainerStartedEvent;
        self.store().report(container, pod, what);
    }

    /// Ends a container with this exit code.
    pub fn exit(&self, container: &str, code: i32) {
        self.store().exit_container(container, code).unwrap();
    }
}

/// The runtime's state, read without the CRI.
impl Sim {
    /// The name given to [`Sim::new`].
    pub fn name(&self) -> &str {
        &self.0.name
    }

    pub fn handler_names(&self) -> Vec<String> {
        let store = self.store();
        store
            .settings
            .handlers
            .iter()
            .map(|h| h.name.clone())
            .collect()
    }

    pub fn pods(&self) -> Vec<cri::PodSandbox> {
        self.store().list_pods(None)
    }

    pub fn containers(&self) -> Vec<cri::Container> {
        self.store().list_containers(None)
    }

    pub fn images(&self) -> Vec<cri::Image> {
        self.store().images.clone()
    }

    /// The network configuration of the last UpdateRuntimeConfig.
    pub fn network(&self) -> Option<cri::NetworkConfig> {
        self.store().network.clone()
    }

    /// The number of open connections.
    pub fn connections(&self) -> usize {
        self.0.journal.borrow().connections
    }

    /// The calls of an RPC in the order of their arrival.
    pub fn calls(&self, rpc: &str) -> Vec<Call> {
        let journal = self.0.journal.borrow();
        journal.calls_of(rpc).cloned().collect()
    }

    /// Clears the record of calls, which would grow under load.
    pub fn forget_calls(&self) {
        self.edit(|journal| journal.calls.clear());
    }

    /// The body of the last reply to an RPC, with gRPC's five bytes before each message.
    pub fn sent(&self, rpc: &str) -> Bytes {
        let sent = self.0.journal.borrow().sent.get(rpc).cloned();
        sent.unwrap_or_default().freeze()
    }

    /// The RPCs of the calls that the client cancelled before the reply.
    pub fn cancelled(&self) -> Vec<String> {
        self.0.journal.borrow().cancelled.clone()
    }

    /// The number of clients that listen for events.
    pub fn listeners(&self) -> usize {
        self.store().events.receiver_count()
    }

    /// Waits until the journal satisfies `wanted`; panics after [`PATIENCE`].
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

/// The runtime's socket.
impl Sim {
    /// Serves as a process of this user from the next start on. The tests must then run as root.
    pub fn of_user(self, user: u32) -> Sim {
        self.serving().user = Some(user);
        self
    }

    /// Serves on this socket. Needs a tokio runtime.
    pub fn serve_on(&self, socket: &Path) {
        self.serving().socket = sockets::shown(socket);
        self.start();
    }

    /// Serves again on the same socket.
    pub fn start(&self) {
        let mut serving = self.serving();
        let listener = sockets::bind(&serving.socket);
        if let Some(user) = serving.user {
            sockets::listen_as(user, &listener);
        }
        serving.task = Some(tokio::spawn(serve::run(self.clone(), listener)));
    }

    /// Ends as a killed process does: connections break and the socket file stays.
    pub async fn stop(&self) {
        let task = self.serving().task.take();
        if let Some(task) = task {
            task.abort();
            task.await.unwrap_err();
        }
    }

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
