//! Clients of a CRI socket: typed ones, and one that sends and shows bytes as they are.

use std::path::Path;

use bytes::{BufMut, Bytes, BytesMut};
use criswitch::cri::image_service_client::ImageServiceClient;
use criswitch::cri::runtime_service_client::RuntimeServiceClient;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use super::PATIENCE;

pub type Runtime = RuntimeServiceClient<Channel>;
pub type Images = ImageServiceClient<Channel>;

/// A channel to a socket; connects with the first call, and again after the connection broke.
pub fn dial(socket: &Path) -> Channel {
    let address = format!("unix://{}", socket.display());
    let endpoint = Endpoint::from_shared(address).unwrap();
    endpoint
        .origin("http://localhost".parse().unwrap())
        .connect_lazy()
}

/// One HTTP/2 connection, nothing decoded.
#[derive(Clone)]
pub struct RawClient(http2::SendRequest<Full<Bytes>>);

/// A reply as it came over the wire.
#[derive(Debug)]
pub struct RawReply {
    pub headers: HeaderMap,
    /// The whole body: gRPC's five bytes before each message included.
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl RawClient {
    pub async fn connect(socket: &Path) -> RawClient {
        let stream = UnixStream::connect(socket).await.unwrap();
        let (client, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(1 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        RawClient(client)
    }

    /// Sends a call and reads the reply to its end.
    pub async fn call(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> RawReply {
        let reply = async {
            let reply = self.begin(path, headers, body).await.unwrap();
            let (head, body) = reply.into_parts();
            let whole = body.collect().await.unwrap();
            RawReply {
                headers: head.headers,
                trailers: whole.trailers().cloned().unwrap_or_default(),
                body: whole.to_bytes(),
            }
        };
        tokio::time::timeout(PATIENCE, reply)
            .await
            .expect("no reply in time")
    }

    /// Sends a call and leaves the reply's body unread.
    pub async fn begin(
        &self,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> hyper::Result<Response<Incoming>> {
        let mut request = Request::post(format!("http://localhost{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(body.into())).unwrap();
        self.0.clone().send_request(request).await
    }
}

impl RawReply {
    /// gRPC's status code, wherever it stands.
    pub fn code(&self) -> tonic::Code {
        let code = self.status_header("grpc-status").unwrap_or("2");
        tonic::Code::from_bytes(code.as_bytes())
    }

    /// gRPC's message, still percent-encoded.
    pub fn text(&self) -> &str {
        self.status_header("grpc-message").unwrap_or_default()
    }

    /// The bytes of the messages, one after another.
    pub fn messages(&self) -> Vec<Bytes> {
        let mut rest = self.body.clone();
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let prefix = rest.split_to(5);
            let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]);
            messages.push(rest.split_to(length as usize));
        }
        messages
    }

    fn status_header(&self, name: &str) -> Option<&str> {
        let value = self.trailers.get(name).or_else(|| self.headers.get(name));
        value.map(|value| value.to_str().unwrap())
    }
}

/// A message as gRPC sends it.
pub fn frame(message: &impl Message) -> Bytes {
    frame_raw(&message.encode_to_vec())
}

/// Any bytes as gRPC sends a message.
pub fn frame_raw(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}
