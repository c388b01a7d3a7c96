//! A backend that costs little itself: replies are encoded once, and nothing is written down.

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use criswitch::codec::cri;
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

use crate::support::{container_in, frame, pod_config};

pub const PODS: usize = 250;
pub const CONTAINERS: usize = 500;

type Reply = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// A runtime on a thread of its own, as it would be a process of its own; ends when it is dropped.
pub struct Backend {
    faults: Arc<Faults>,
    /// Dropped to end it.
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Faults {
    hung: AtomicBool,
    lists_hang: AtomicBool,
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

    /// From its next call on it does nothing at all, like a stopped process: the kernel accepts connections for it,
    /// and nobody reads them.
    pub fn hang(&self) {
        self.faults.hung.store(true, Ordering::Relaxed);
    }

    /// Lists are not answered from now on, everything else is.
    pub fn hang_lists(&self) {
        self.faults.lists_hang.store(true, Ordering::Relaxed);
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
    /// By RPC.
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
        match self.replies.get(rpc) {
            Some(reply) if self.has(rpc, &request) => fine(reply.clone()),
            Some(_) => refused("5"),
            None => refused("12"),
        }
    }

    /// A call for one id must come to the backend whose number the id begins with.
    fn has(&self, rpc: &str, request: &[u8]) -> bool {
        let by_id = matches!(rpc, "ContainerStatus" | "PodSandboxStatus" | "ExecSync");
        // gRPC's five bytes, the field's tag and its length; then the id.
        !by_id || request.get(7..9) == Some(format!("{:02x}", self.number).as_bytes())
    }
}

/// The id of a backend's pod.
pub fn pod_id(backend: usize, at: usize) -> String {
    format!("{backend:02x}{:062x}", 0x1000_0000 + at)
}

/// The id of a backend's container.
pub fn container_id(backend: usize, at: usize) -> String {
    format!("{backend:02x}{at:062x}")
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

fn pod(backend: usize, at: usize) -> cri::PodSandbox {
    let config = pod_config(&format!("web-6d4cf56db6-{backend}-{at}"));
    cri::PodSandbox {
        id: pod_id(backend, at),
        metadata: config.metadata,
        created_at: 1_700_000_000_000_000_000,
        labels: config.labels,
        annotations: config.annotations,
        runtime_handler: format!("h{backend}"),
        ..Default::default()
    }
}

/// A container as containerd lists one of the kubelet's: about 1 kB.
fn container(backend: usize, at: usize) -> cri::Container {
    let pod = at * PODS / CONTAINERS;
    let name = format!("web-6d4cf56db6-{backend}-{pod}");
    let config = container_in(&pod_config(&name).labels, "server", "web:1.2.3");
    let image = format!("sha256:{}", container_id(backend, 7));
    cri::Container {
        id: container_id(backend, at),
        pod_sandbox_id: pod_id(backend, pod),
        metadata: config.metadata,
        image: config.image,
        image_ref: image.clone(),
        image_id: image,
        state: cri::ContainerState::ContainerRunning.into(),
        created_at: 1_700_000_000_000_000_000,
        labels: config.labels,
        annotations: annotations(),
    }
}

fn annotations() -> HashMap<String, String> {
    let annotations = [
        ("io.kubernetes.container.hash", "5f2c8a1b"),
        (
            "io.kubernetes.container.ports",
            r#"[{"name":"http","containerPort":8080,"protocol":"TCP"}]"#,
        ),
        ("io.kubernetes.container.restartCount", "0"),
        (
            "io.kubernetes.container.terminationMessagePath",
            "/dev/termination-log",
        ),
        (
            "io.kubernetes.container.terminationMessagePolicy",
            "FallbackToLogsOnError",
        ),
        ("io.kubernetes.pod.terminationGracePeriod", "30"),
    ];
    annotations
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
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
