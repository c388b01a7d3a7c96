//! Runtimes on sockets that behave well until a test turns on their misbehaviour. Each file of this module has one
//! kind of misbehaviour.
//!
//! The runtimes build HTTP/2 bodies from raw frames, because a gRPC library would not send invalid replies.

mod bad_details;
mod bad_frames;
mod burst;
mod compressed;
mod cut_off;
mod empty_messages;
mod endless;
mod ever_new;
mod lost;
mod many_containers;
mod many_items;
mod never_ending;
mod odd_driver;
mod odd_ids;
mod thief;
mod too_large;
mod trailers_only;
mod unfinished;

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use criswitch_cri::codec::cri;
use futures_util::{Stream, StreamExt, stream};
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::sockets::{self, Listener};
use super::{frame, is_own_agent};

pub use bad_details::bad_details;
pub use bad_frames::{a_flag_that_is_none, a_frame_that_is_too_long, a_frame_that_is_too_short};
pub use bad_frames::{no_protobuf, two_messages};
pub use burst::{BURST, burst, endless_events, endless_id};
pub use compressed::compressed;
pub use cut_off::cut_off;
pub use empty_messages::empty_messages;
pub use endless::{ENDLESS_ENTRY, endless};
pub use ever_new::{EVER_NEW, ever_new, ever_new_and_broken_off};
pub use lost::{lost_list, lost_version};
pub use many_containers::{MANY, many_containers};
pub use many_items::many_items;
pub use never_ending::never_ending;
pub use odd_driver::odd_driver;
pub use odd_ids::{ODD_IDS, long_ids, odd_ids};
pub use thief::{STOLEN, thief};
pub use too_large::too_large;
pub use trailers_only::{fine_without_a_message, refused_in_headers};
pub use unfinished::{LONG_LIST, unfinished, unfinished_beside_a_long_list};

type Body = UnsyncBoxBody<Bytes, Infallible>;
pub type Reply = Response<Body>;
/// The reply to an RPC. `None` means the reply of a good runtime. For a call that criswitch makes for itself, the
/// function is first called with `own ` before the RPC's name, then with the name alone.
pub type Misbehaviour = fn(rpc: &str) -> Option<Reply>;

/// The one pod of every misbehaving runtime, and its container.
pub const POD: &str = "badpod";
pub const CONTAINER: &str = "badcontainer";

/// A runtime that misbehaves after a call of [`Misbehaving::misbehave`]. Dropping this value ends the runtime.
pub struct Misbehaving {
    bad: Arc<AtomicBool>,
    close: Arc<Notify>,
    _serving: JoinSet<()>,
}

impl Misbehaving {
    pub fn serve_on(socket: &Path, misbehaviour: Misbehaviour) -> Misbehaving {
        let listener = sockets::bind(socket);
        let bad = Arc::new(AtomicBool::new(false));
        let mut serving = JoinSet::new();
        let close = Arc::default();
        let closed = Arc::clone(&close);
        serving.spawn(run(listener, misbehaviour, Arc::clone(&bad), closed));
        Misbehaving {
            bad,
            close,
            _serving: serving,
        }
    }

    /// Misbehaves from now on.
    pub fn misbehave(&self) {
        self.bad.store(true, Ordering::Relaxed);
    }

    /// Behaves well from now on.
    pub fn behave(&self) {
        self.bad.store(false, Ordering::Relaxed);
    }

    /// Closes all connections and continues to listen.
    pub fn close(&self) {
        self.close.notify_one();
    }
}

async fn run(
    listener: Listener,
    misbehaviour: Misbehaviour,
    bad: Arc<AtomicBool>,
    close: Arc<Notify>,
) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = sockets::accept(&listener) => accepted.unwrap(),
            () = close.notified() => {
                connections.abort_all();
                continue;
            }
        };
        let bad = Arc::clone(&bad);
        let answer = service_fn(move |request| {
            let misbehaviour = bad.load(Ordering::Relaxed).then_some(misbehaviour);
            async move { Ok::<_, Infallible>(answer(request, misbehaviour).await) }
        });
        let connection = http2::Builder::new(TokioExecutor::new())
            .max_concurrent_streams(None)
            .max_header_list_size(1 << 20)
            .serve_connection(TokioIo::new(stream), answer);
        connections.spawn(async { connection.await.unwrap_or_default() });
    }
}

async fn answer(request: Request<Incoming>, misbehaviour: Option<Misbehaviour>) -> Reply {
    let (head, body) = request.into_parts();
    // The content of the request is ignored. It is read because unread bytes would fill HTTP/2's flow-control window.
    body.collect().await.ok();
    let rpc = head.uri.path().rsplit('/').next().unwrap_or_default();
    let agent = head.headers.get("user-agent");
    let is_own = agent.is_some_and(|agent| is_own_agent(agent.to_str().unwrap()));
    let bad = misbehaviour.and_then(|misbehaviour| {
        let own = is_own.then(|| misbehaviour(&format!("own {rpc}")));
        own.flatten().or_else(|| misbehaviour(rpc))
    });
    bad.unwrap_or_else(|| good(rpc))
}

fn good(rpc: &str) -> Reply {
    match rpc {
        "Version" => fine(&cri::VersionResponse {
            runtime_name: "misbehaving".to_owned(),
            ..Default::default()
        }),
        "ListPodSandbox" => fine(&cri::ListPodSandboxResponse {
            items: vec![cri::PodSandbox {
                id: POD.to_owned(),
                metadata: Some(cri::PodSandboxMetadata::default()),
                ..Default::default()
            }],
        }),
        "ListContainers" => fine(&containers([CONTAINER])),
        "ContainerStatus" => fine(&cri::ContainerStatusResponse::default()),
        "ListImages" => fine(&cri::ListImagesResponse::default()),
        "ListContainerStats" => fine(&cri::ListContainerStatsResponse::default()),
        "Status" => fine(&cri::StatusResponse::default()),
        _ => headers_only("12", "it has no such thing"),
    }
}

fn containers<'a>(ids: impl IntoIterator<Item = &'a str>) -> cri::ListContainersResponse {
    let containers = ids.into_iter().map(|id| cri::Container {
        id: id.to_owned(),
        pod_sandbox_id: POD.to_owned(),
        metadata: Some(cri::ContainerMetadata::default()),
        ..Default::default()
    });
    cri::ListContainersResponse {
        containers: containers.collect(),
    }
}

/// A reply with one message and status OK.
fn fine(message: &impl Message) -> Reply {
    raw(frame(message), "0")
}

/// A reply with these bytes and this status.
fn raw(body: impl Into<Bytes>, status: &'static str) -> Reply {
    of_frames(stream::iter([Frame::data(body.into()), end(status)]))
}

fn end(status: &'static str) -> Frame<Bytes> {
    Frame::trailers(HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        http::HeaderValue::from_static(status),
    )]))
}

fn of_frames(frames: impl Stream<Item = Frame<Bytes>> + Send + 'static) -> Reply {
    let body = StreamBody::new(frames.map(Ok)).boxed_unsync();
    let reply = Response::builder().header("content-type", "application/grpc");
    reply.body(body).unwrap()
}

/// A reply with a status in the headers and without a body.
fn headers_only(status: &str, text: &str) -> Reply {
    Response::builder()
        .header("content-type", "application/grpc")
        .header("grpc-status", status)
        .header("grpc-message", text)
        .body(Body::default())
        .unwrap()
}
