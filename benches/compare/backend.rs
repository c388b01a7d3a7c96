//! A backend that costs as little as HTTP/2 allows: each reply is encoded before the first call.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use tokio::net::{UnixListener, UnixStream};

use crate::events;
use crate::works::Work;
use crate::{CONNECTION_WINDOW, WINDOW};

/// The RPCs that clients call, and the RPCs that criswitch itself calls.
const RPCS: [&str; 7] = [
    "ContainerStatus",
    "CreateContainer",
    "ListContainers",
    "ListImages",
    "ListPodSandbox",
    "Status",
    "Version",
];

struct Backend {
    number: usize,
    /// By RPC: the replies. Successive calls get them in order, and after the last one the first again.
    replies: HashMap<&'static str, Vec<Bytes>>,
    calls: AtomicUsize,
}

impl Backend {
    fn reply(&self, rpc: &str) -> Option<&Bytes> {
        let replies = self.replies.get(rpc)?;
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        replies.get(call % replies.len())
    }
}

/// Serves a socket until the process is killed.
pub async fn serve(socket: &Path, number: usize, work: Work) {
    let listener = UnixListener::bind(socket).unwrap();
    let replies = RPCS.map(|rpc| (rpc, work.replies(number, rpc)));
    let backend: &'static Backend = Box::leak(Box::new(Backend {
        number,
        replies: replies.into(),
        calls: AtomicUsize::new(0),
    }));
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(serve_connection(stream, backend));
    }
}

async fn serve_connection(stream: UnixStream, backend: &'static Backend) {
    let handshake = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake(stream);
    let Ok(mut connection) = handshake.await else {
        return;
    };
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(answer(request, respond, backend));
    }
}

async fn answer(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    backend: &Backend,
) {
    let (head, mut body) = request.into_parts();
    while let Some(Ok(part)) = body.data().await {
        body.flow_control().release_capacity(part.len()).ok();
    }
    let rpc = head.uri.path().rsplit('/').next().unwrap_or_default();
    let response = Response::builder().header("content-type", "application/grpc");
    if rpc == events::RPC {
        let stream = respond.send_response(response.body(()).unwrap(), false);
        return events::send(stream.unwrap(), backend.number).await;
    }
    let Some(reply) = backend.reply(rpc) else {
        let refused = response.header("grpc-status", "12").body(()).unwrap();
        respond.send_response(refused, true).ok();
        return;
    };
    let Ok(mut stream) = respond.send_response(response.body(()).unwrap(), false) else {
        return;
    };
    stream.send_data(reply.clone(), false).ok();
    let status = (
        http::HeaderName::from_static("grpc-status"),
        HeaderValue::from_static("0"),
    );
    stream.send_trailers(HeaderMap::from_iter([status])).ok();
}
