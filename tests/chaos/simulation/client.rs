//! Clients of criswitch: a call as bytes, and its reply.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criswitch::limits::flood::Unaccepted;
use criswitch::limits::places::User;
use criswitch::server;
use criswitch::switch::Switch;
use criswitch_cri::codec::cri;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::grpc::GRPC_MESSAGE;
use criswitch_cri::codec::grpc::GRPC_STATUS;
use criswitch_cri::codec::protobuf;
use criswitch_cri::rpc::{Goes, ImageRule, Merge, Row};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::Code;

use super::filter::Filter;
use super::runtime::{CALL, PIPE};
use super::truth::{CallId, annotations, uid};

/// A call as the client sends it.
#[derive(Clone, Debug)]
pub struct Call {
    pub id: CallId,
    pub row: &'static Row,
    /// The id, image or handler in the request.
    pub names: String,
    /// The handler in an image call, or empty.
    pub handler: String,
    /// The uid of the pod in an image call, or empty.
    pub uid: String,
    /// The filter of a list.
    pub filter: Filter,
    pub timeout: Option<Duration>,
    pub message: Bytes,
    /// The bytes of the reply so far.
    pub arrived: Arc<Mutex<BytesMut>>,
}

#[derive(Clone, Debug)]
pub struct Reply {
    /// `None` if the call broke off without a status.
    pub code: Option<Code>,
    pub text: String,
    pub messages: Vec<Bytes>,
    pub at: Instant,
}

/// The image that every container of a client uses.
pub const CONTAINER_IMAGE: &str = "image-0";
/// The client's error text for a reply that ends within a message.
const CUT: &str = "the reply ended within a message";

/// One connection to criswitch.
#[derive(Clone)]
pub struct Client(SendRequest<Full<Bytes>>);

impl Client {
    /// Connects to `switch`. `served` runs criswitch's end of the connection, and `tasks` the client's end.
    pub async fn connect(
        switch: &Arc<Switch>,
        served: &mut JoinSet<()>,
        tasks: &mut JoinSet<()>,
    ) -> Client {
        let (ours, theirs) = tokio::io::duplex(PIPE);
        let unread = switch.unread.share(User::Own);
        let (switch, unaccepted) = (Arc::clone(switch), Unaccepted::default());
        let connection = server::connection(
            theirs,
            unaccepted,
            switch,
            User::Own,
            unread,
            Arc::default(),
        );
        served.spawn(async move {
            connection.await.ok();
        });
        let shaken = http2::handshake(TokioExecutor::new(), TokioIo::new(ours)).await;
        let (send, connection) = shaken.expect("a pipe is always there");
        tasks.spawn(async move {
            connection.await.ok();
        });
        Client(send)
    }

    /// Sends a call and reads the reply to its end.
    pub async fn call(mut self, call: &Call) -> Reply {
        let mut request = Request::post(format!("http://localhost{}", call.row.path()))
            .header("content-type", "application/grpc")
            .header(CALL, call.id);
        if let Some(timeout) = call.timeout {
            request = request.header("grpc-timeout", format!("{}m", timeout.as_millis()));
        }
        let request = request
            .body(Full::new(frames::frame(&call.message)))
            .unwrap();
        match self.0.send_request(request).await {
            Ok(response) => read(response, &call.arrived)
                .await
                .taken_by_a_client(call.row),
            Err(error) => Reply::broken(&error),
        }
    }
}

async fn read(response: Response<Incoming>, arrived: &Mutex<BytesMut>) -> Reply {
    let (head, mut body) = response.into_parts();
    let mut end = head.headers;
    while let Some(frame) = body.frame().await {
        match frame.map(http_body::Frame::into_data) {
            Ok(Ok(bytes)) => arrived.lock().unwrap().extend_from_slice(&bytes),
            Ok(Err(frame)) => end = frame.into_trailers().unwrap_or_default(),
            Err(error) => return Reply::broken(&error),
        }
    }
    Reply::of(arrived.lock().unwrap().split(), &end)
}

impl Reply {
    fn of(mut data: BytesMut, end: &HeaderMap) -> Reply {
        let text = |name| {
            end.get(name)
                .map_or("", |value| value.to_str().unwrap_or("?"))
        };
        let messages = messages(&mut data);
        // The remaining bytes are a message that was cut off.
        let text_of_rest = if data.is_empty() {
            text(GRPC_MESSAGE)
        } else {
            CUT
        };
        Reply {
            code: end
                .get(GRPC_STATUS)
                .map(|code| Code::from_bytes(code.as_bytes())),
            text: text_of_rest.to_owned(),
            messages,
            at: Instant::now(),
        }
    }

    /// Turns a reply into an error if a gRPC client would reject it: a message is cut off, or a unary reply does not
    /// have exactly one message.
    fn taken_by_a_client(mut self, row: &Row) -> Reply {
        let whole = self.text != CUT && (row.streams() || self.messages.len() == 1);
        if self.code == Some(Code::Ok) && !whole {
            self.code = Some(Code::Internal);
        }
        self
    }

    fn broken(error: &hyper::Error) -> Reply {
        Reply {
            code: None,
            text: format!("{error:?}"),
            messages: Vec::new(),
            at: Instant::now(),
        }
    }

    /// The strings at `path` in all messages.
    pub fn strings(&self, path: &[u32]) -> Vec<String> {
        let read = |message: &Bytes| {
            protobuf::strings(message, path).map(|all| all.into_iter().map(str::to_owned).collect())
        };
        let all: Result<Vec<Vec<String>>, _> = self.messages.iter().map(read).collect();
        all.unwrap_or_else(|_| vec![vec!["(not protobuf)".to_owned()]])
            .concat()
    }

    pub fn string(&self, path: &[u32]) -> String {
        self.strings(path).pop().unwrap_or_default()
    }

    /// The number at the path in the only message.
    pub fn number(&self, path: &[u32]) -> u64 {
        let message = self.messages.first();
        message.map_or(0, |message| {
            protobuf::varint(message, path).unwrap_or(u64::MAX)
        })
    }
}

/// Removes the complete messages from the start of `data`, and returns them.
pub fn messages(data: &mut BytesMut) -> Vec<Bytes> {
    let mut messages = Vec::new();
    while let Ok(Some(length)) = frames::frame_length(data) {
        if data.len() < frames::FRAME_HEADER + length {
            break;
        }
        let mut frame = data.split_to(frames::FRAME_HEADER + length);
        messages.push(frame.split_off(frames::FRAME_HEADER).freeze());
    }
    messages
}

/// Adds the handler to an image call, so that the call is for the handler's image store.
pub fn of_handler(row: &Row, message: Bytes, handler: &str) -> Bytes {
    match &row.goes {
        Goes::Image(path, _) if !handler.is_empty() => {
            protobuf::with_string(&message, path, handler)
        }
        _ => message,
    }
}

/// Adds the pod to an image call, as the kubelet does.
pub fn of_pod(row: &Row, message: Bytes, uid: &str) -> Bytes {
    let more = match (&row.goes, uid) {
        (_, "") => return message,
        (Goes::Image(_, ImageRule::Find(_)), uid) => cri::ImageStatusRequest {
            image: Some(cri::ImageSpec {
                annotations: annotations(uid),
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec(),
        (Goes::Image(_, ImageRule::Pull(path)), uid) => {
            protobuf::with_string(&[], path, uid).to_vec()
        }
        _ => return message,
    };
    [message, more.into()].concat().into()
}

/// Adds labels to the pod or container that the call creates, and the annotations of a pod with this uid.
pub fn with_labels(row: &Row, message: Bytes, uid: &str, labels: HashMap<String, String>) -> Bytes {
    let more = match row.name {
        "RunPodSandbox" => cri::RunPodSandboxRequest {
            config: Some(cri::PodSandboxConfig {
                labels,
                annotations: annotations(uid),
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec(),
        "RestorePod" => cri::RestorePodRequest {
            config: Some(cri::PodSandboxConfig {
                labels,
                annotations: annotations(uid),
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec(),
        "CreateContainer" => cri::CreateContainerRequest {
            config: Some(cri::ContainerConfig {
                labels,
                ..Default::default()
            }),
            ..Default::default()
        }
        .encode_to_vec(),
        _ => return message,
    };
    [message, more.into()].concat().into()
}

/// The request of a call for `names`, without a filter. A pod or container that the call creates is called `name`.
pub fn message(row: &Row, names: &str, name: &str) -> Bytes {
    let with =
        |message: &[u8], path: &[u32], value: &str| protobuf::with_string(message, path, value);
    match &row.goes {
        Goes::Handler(path) => {
            let config: &[u32] = if row.name == "RestorePod" {
                &[2, 1, 1]
            } else {
                &[1, 1, 1]
            };
            let uid_path = [&config[..2], &[2]].concat();
            let message = with(&with(&[], config, name), &uid_path, &uid(name));
            with(&message, path, names)
        }
        Goes::OwnerWithImage(path) => {
            let message = with(&with(&[], &[2, 1, 1], name), &[2, 2, 1], CONTAINER_IMAGE);
            with(&message, path, names)
        }
        Goes::Owner(_, path, _) => with(&[], path, names),
        Goes::All(_, Merge::UpdateRuntimeConfig) => with(&[], &[1, 1, 1], name),
        Goes::All(..) => Bytes::new(),
        Goes::Image(_, ImageRule::List(_)) | Goes::Default => Bytes::new(),
        Goes::Image(..) => with(&[], &[1, 1], names),
    }
}
