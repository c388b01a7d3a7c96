//! Clients of a CRI socket: typed clients, and a client that sends and shows raw bytes.

use std::path::{Path, PathBuf};

use bytes::{BufMut, Bytes, BytesMut};
use criswitch_cri::codec::admin;
use criswitch_cri::codec::admin::admin_client::AdminClient;
use criswitch_cri::codec::cri;
use criswitch_cri::codec::cri::image_service_client::ImageServiceClient;
use criswitch_cri::codec::cri::runtime_service_client::RuntimeServiceClient;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use serde_json::Value as Json;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::{PATIENCE, clock, container_config, pod_config, sockets};

pub type Runtime = RuntimeServiceClient<Channel>;
pub type Admin = AdminClient<Channel>;
pub type Images = ImageServiceClient<Channel>;

/// The image that [`Client::create`] makes containers from.
pub const IMAGE: &str = "busybox:1.36";

/// Typed clients of one socket, and the calls that most tests begin with.
#[derive(Clone)]
pub struct Client {
    runtime: Runtime,
    images: Images,
    admin: Admin,
    channel: Channel,
    pub socket: PathBuf,
}

impl Client {
    /// The client connects at its first call, and connects again after a connection is lost.
    pub fn new(socket: &Path) -> Client {
        let channel = dial(socket);
        Client {
            runtime: Runtime::new(channel.clone()).max_decoding_message_size(usize::MAX),
            admin: Admin::new(channel.clone()).max_decoding_message_size(usize::MAX),
            images: Images::new(channel.clone()).max_decoding_message_size(usize::MAX),
            channel,
            socket: sockets::address(socket),
        }
    }

    pub fn runtime(&self) -> Runtime {
        clock::tick();
        self.runtime.clone()
    }

    pub fn images(&self) -> Images {
        clock::tick();
        self.images.clone()
    }

    /// The channel, for clients of other services.
    pub fn channel(&self) -> Channel {
        clock::tick();
        self.channel.clone()
    }

    pub fn admin(&self) -> Admin {
        self.admin.clone()
    }

    /// Makes a Status call, so that criswitch asks each backend for its status, and then returns the state of
    /// criswitch.
    pub async fn state(&self) -> Json {
        let status = cri::StatusRequest::default();
        self.runtime().status(status).await.unwrap();
        let request = admin::GetStateRequest {};
        let state = self.admin().get_state(request).await.unwrap();
        serde_json::to_value(state.into_inner()).unwrap()
    }

    pub async fn raw(&self) -> RawClient {
        RawClient::connect(&self.socket).await
    }

    pub async fn run_pod(&self, handler: &str, name: &str) -> Result<String, Status> {
        let request = cri::RunPodSandboxRequest {
            config: Some(pod_config(name)),
            runtime_handler: handler.to_owned(),
        };
        let reply = self.runtime().run_pod_sandbox(request).await?;
        Ok(reply.into_inner().pod_sandbox_id)
    }

    /// Creates a container from [`IMAGE`].
    pub async fn create(&self, pod: &str, name: &str) -> Result<String, Status> {
        self.create_from(pod, container_config(name, IMAGE)).await
    }

    pub async fn create_from(
        &self,
        pod: &str,
        config: cri::ContainerConfig,
    ) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: None,
        };
        let reply = self.runtime().create_container(request).await?;
        Ok(reply.into_inner().container_id)
    }

    pub async fn start(&self, container: &str) -> Result<(), Status> {
        let container_id = container.to_owned();
        let request = cri::StartContainerRequest { container_id };
        self.runtime().start_container(request).await?;
        Ok(())
    }

    pub async fn stop(&self, container: &str) -> Result<(), Status> {
        let container_id = container.to_owned();
        let request = cri::StopContainerRequest {
            container_id,
            timeout: 0,
        };
        self.runtime().stop_container(request).await?;
        Ok(())
    }

    pub async fn remove(&self, container: &str) -> Result<(), Status> {
        let container_id = container.to_owned();
        let request = cri::RemoveContainerRequest { container_id };
        self.runtime().remove_container(request).await?;
        Ok(())
    }

    pub async fn stop_pod(&self, pod: &str) -> Result<(), Status> {
        let pod_sandbox_id = pod.to_owned();
        let request = cri::StopPodSandboxRequest { pod_sandbox_id };
        self.runtime().stop_pod_sandbox(request).await?;
        Ok(())
    }

    pub async fn remove_pod(&self, pod: &str) -> Result<(), Status> {
        let pod_sandbox_id = pod.to_owned();
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id };
        self.runtime().remove_pod_sandbox(request).await?;
        Ok(())
    }

    /// Lists all pods, without a filter.
    pub async fn pods(&self) -> Result<Vec<cri::PodSandbox>, Status> {
        let request = cri::ListPodSandboxRequest { filter: None };
        let reply = self.runtime().list_pod_sandbox(request).await?;
        Ok(reply.into_inner().items)
    }

    /// Lists all containers, without a filter.
    pub async fn containers(&self) -> Result<Vec<cri::Container>, Status> {
        let request = cri::ListContainersRequest { filter: None };
        let reply = self.runtime().list_containers(request).await?;
        Ok(reply.into_inner().containers)
    }
}

fn dial(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { sockets::connect(&socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector)
}

/// An HTTP/2 connection that decodes nothing.
#[derive(Clone)]
pub struct RawClient(http2::SendRequest<Full<Bytes>>);

/// A reply as it came over the wire.
#[derive(Debug)]
pub struct RawReply {
    pub headers: HeaderMap,
    /// The whole body, with gRPC's five bytes before each message.
    pub body: Bytes,
    pub trailers: HeaderMap,
}

impl RawClient {
    pub async fn connect(socket: &Path) -> RawClient {
        RawClient::over(sockets::connect(socket).await.unwrap()).await
    }

    /// A client over `stream`, whose other end criswitch serves.
    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> RawClient {
        let (client, connection) = http2::Builder::new(TokioExecutor::new())
            .max_header_list_size(1 << 20)
            .handshake(TokioIo::new(stream))
            .await
            .unwrap();
        tokio::spawn(connection);
        RawClient(client)
    }

    /// Sends a call and reads the whole reply.
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
        self.send(request.body(Full::new(body.into())).unwrap())
            .await
    }

    /// Sends any HTTP request.
    pub async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.0.clone().send_request(request).await
    }
}

impl RawReply {
    /// gRPC's status code, from the trailers or the headers.
    pub fn code(&self) -> tonic::Code {
        let code = self.status_header("grpc-status").unwrap_or("2");
        tonic::Code::from_bytes(code.as_bytes())
    }

    /// gRPC's message, still percent-encoded.
    pub fn text(&self) -> &str {
        self.status_header("grpc-message").unwrap_or_default()
    }

    /// The messages of the body, each without gRPC's five bytes.
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

/// Whether this is the user agent of a call that criswitch makes for itself, not for a client.
pub fn is_own_agent(agent: &str) -> bool {
    agent.starts_with("criswitch/") && !agent.ends_with(" (for a client)")
}

/// Encodes a message as gRPC sends it, with gRPC's five bytes before it.
pub fn frame(message: &impl Message) -> Bytes {
    frame_raw(&message.encode_to_vec())
}

/// Puts gRPC's five bytes before `message`, which may be any bytes.
pub fn frame_raw(message: &[u8]) -> Bytes {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    framed.freeze()
}
