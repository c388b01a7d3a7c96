//! A backend that needs little processor time: it encodes each reply once and records nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use criswitch_cri::codec::cri;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::items::{self, container, pod, pod_id};
use crate::support::frame;

pub const BACKENDS: usize = 4;
/// The backend that may hang. The backends before it stay healthy.
pub const FOURTH: usize = 3;
pub const PODS: usize = CONTAINERS / items::CONTAINERS_OF_A_POD;
pub const CONTAINERS: usize = 500;
/// The number of pods in a list that is very long.
const MANY: usize = 100_000;

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A runtime that has its own thread, like its own process on a node. Dropping this value ends the runtime.
pub struct Backend {
    faults: Arc<Faults>,
    /// Dropping this sender ends the runtime.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Faults {
    hung: AtomicBool,
    lists_hang: AtomicBool,
    lists_many: OnceLock<ManyPods>,
}

/// Lists of [`MANY`] pods. The state of every pod changes from one list to the next.
struct ManyPods {
    lists: [Bytes; 2],
    next: AtomicUsize,
}

impl ManyPods {
    fn of(backend: usize) -> ManyPods {
        let list = |state: cri::PodSandboxState| {
            let pod = |at| cri::PodSandbox {
                id: pod_id(backend, at),
                state: state.into(),
                ..Default::default()
            };
            let items = (0..MANY).map(pod).collect();
            frame(&cri::ListPodSandboxResponse { items })
        };
        ManyPods {
            lists: [
                list(cri::PodSandboxState::SandboxReady),
                list(cri::PodSandboxState::SandboxNotready),
            ],
            next: AtomicUsize::new(0),
        }
    }

    fn next(&self) -> Bytes {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.lists.len();
        self.lists[at].clone()
    }
}

impl Backend {
    pub fn serve_on(socket: &Path, number: usize) -> Backend {
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let faults = Arc::<Faults>::default();
        let (end, ended) = oneshot::channel();
        let runtime = Arc::new(Runtime {
            number,
            replies: replies(number),
            faults: Arc::clone(&faults),
        });
        let thread = thread::spawn(move || {
            crate::block_on(async {
                tokio::select! {
                    () = serve(UnixListener::from_std(listener).unwrap(), runtime) => {}
                    _ = ended => {}
                }
            });
        });
        Backend {
            faults,
            end: Some(end),
            thread: Some(thread),
        }
    }

    /// Makes the backend hang from the next call on, like a stopped process: the kernel accepts connections for the
    /// backend, but the backend never reads from them.
    pub fn hang(&self) {
        self.faults.hung.store(true, Ordering::Relaxed);
    }

    /// Makes the backend answer every call except lists from now on.
    pub fn hang_lists(&self) {
        self.faults.lists_hang.store(true, Ordering::Relaxed);
    }

    /// Makes the backend list [`MANY`] changing pods from now on.
    pub fn list_many(&self) {
        self.faults.lists_many.get_or_init(|| ManyPods::of(FOURTH));
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.faults.hung.store(false, Ordering::Relaxed);
        self.end.take();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }
}

struct Runtime {
    number: usize,
    /// Replies by RPC.
    replies: HashMap<&'static str, Bytes>,
    faults: Arc<Faults>,
}

async fn serve(listener: UnixListener, runtime: Arc<Runtime>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let runtime = Arc::clone(&runtime);
        let answer = service_fn(move |request| {
            let runtime = Arc::clone(&runtime);
            async move { Ok::<_, Infallible>(runtime.answer(request).await) }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(None)
            .serve_connection(TokioIo::new(stream), answer);
        connections.spawn(async { connection.await.unwrap_or_default() });
    }
}

impl Runtime {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        let (head, body) = request.into_parts();
        let request = body.collect().await.unwrap_or_default().to_bytes();
        while self.faults.hung.load(Ordering::Relaxed) {
            thread::park();
        }
        let rpc = head.uri.path().rsplit('/').next().unwrap_or_default();
        if rpc.starts_with("List") && self.faults.lists_hang.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        if let ("ListPodSandbox", Some(many)) = (rpc, self.faults.lists_many.get()) {
            return fine(many.next());
        }
        match self.replies.get(rpc) {
            Some(reply) if self.has(rpc, &request) => fine(reply.clone()),
            Some(_) => refused("5"),
            None => refused("12"),
        }
    }

    /// Whether the backend has the pod or container of the call. Each id begins with the number of its backend.
    fn has(&self, rpc: &str, request: &[u8]) -> bool {
        let by_id = matches!(rpc, "ContainerStatus" | "PodSandboxStatus" | "ExecSync");
        // The id comes after the five bytes of gRPC's prefix, the field's tag and the field's length.
        !by_id || request.get(7..9) == Some(format!("{:02x}", self.number).as_bytes())
    }
}

fn replies(backend: usize) -> HashMap<&'static str, Bytes> {
    let pods = cri::ListPodSandboxResponse {
        items: (0..PODS).map(|at| pod(backend, at)).collect(),
    };
    let containers = cri::ListContainersResponse {
        containers: (0..CONTAINERS).map(|at| container(backend, at)).collect(),
    };
    let version = cri::VersionResponse {
        runtime_name: format!("runtime-{backend}"),
        ..Default::default()
    };
    HashMap::from([
        ("Version", frame(&version)),
        ("Status", frame(&cri::StatusResponse::default())),
        ("ListImages", frame(&cri::ListImagesResponse::default())),
        ("ListPodSandbox", frame(&pods)),
        ("ListContainers", frame(&containers)),
        ("PodSandboxStatus", frame(&pod_status(backend))),
        ("ContainerStatus", frame(&container_status(backend))),
        ("ExecSync", frame(&exec_sync())),
    ])
}

fn pod_status(backend: usize) -> cri::PodSandboxStatusResponse {
    let pod = pod(backend, 0);
    let status = cri::PodSandboxStatus {
        id: pod.id,
        metadata: pod.metadata,
        created_at: pod.created_at,
        labels: pod.labels,
        annotations: pod.annotations,
        runtime_handler: pod.runtime_handler,
        ..Default::default()
    };
    cri::PodSandboxStatusResponse {
        status: Some(status),
        ..Default::default()
    }
}

fn container_status(backend: usize) -> cri::ContainerStatusResponse {
    let container = container(backend, 0);
    let status = cri::ContainerStatus {
        id: container.id,
        metadata: container.metadata,
        state: container.state,
        created_at: container.created_at,
        image: container.image,
        image_ref: container.image_ref,
        labels: container.labels,
        annotations: container.annotations,
        ..Default::default()
    };
    cri::ContainerStatusResponse {
        status: Some(status),
        ..Default::default()
    }
}

fn exec_sync() -> cri::ExecSyncResponse {
    cri::ExecSyncResponse {
        stdout: b"ok\n".to_vec(),
        ..Default::default()
    }
}

fn fine(message: Bytes) -> Reply {
    let end = HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    )]);
    let frames = [Frame::data(message), Frame::trailers(end)].map(Ok);
    let body = StreamBody::new(stream::iter(frames)).boxed_unsync();
    let reply = Response::builder().header("content-type", "application/grpc");
    reply.body(body).unwrap()
}

fn refused(code: &'static str) -> Reply {
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", code)
        .body(UnsyncBoxBody::default())
        .unwrap()
}
