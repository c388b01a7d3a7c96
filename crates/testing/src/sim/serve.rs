//! A simulated runtime's server: HTTP/2 on a socket. The server records each call before it replies.
//!
//! The server uses hyper, because tonic's server would end calls at their deadline.

use std::convert::Infallible;

use bytes::Bytes;
use criswitch_cri::codec::cri::image_service_server::{self, ImageServiceServer};
use criswitch_cri::codec::cri::runtime_service_server::RuntimeServiceServer;
use criswitch_platform::connect::Stream;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as _;

use super::Sim;
use super::cut::{chop, watch};
use super::journal::{Call, ServeError};
use super::rewrite::rewrite;
use super::runtime::Service;
use crate::clock;
use crate::sockets::{self, Listener};

/// A size limit that is larger than any header or message of a test.
const ANY_SIZE: usize = 256 << 20;

/// The largest length of a request with an empty filter: gRPC's five bytes, and the filter's tag and length.
const NO_FILTER: usize = 7;

/// Serves until the future is dropped, which also ends the connections.
pub async fn run(sim: Sim, listener: Listener) {
    let services = Services::new(&sim);
    let mut connections = JoinSet::new();
    while let Ok(stream) = sockets::accept(&listener).await {
        connections.spawn(serve(sim.clone(), services.clone(), stream));
        while connections.try_join_next().is_some() {}
    }
}

/// The generated services. Both answer `Unimplemented` to unknown RPCs.
#[derive(Clone)]
struct Services {
    runtime: RuntimeServiceServer<Service>,
    images: ImageServiceServer<Service>,
}

impl Services {
    fn new(sim: &Sim) -> Services {
        let service = Service(sim.clone());
        Services {
            runtime: RuntimeServiceServer::new(service.clone()).max_decoding_message_size(ANY_SIZE),
            images: ImageServiceServer::new(service).max_decoding_message_size(ANY_SIZE),
        }
    }

    async fn call(
        &mut self,
        request: http::Request<Full<Bytes>>,
    ) -> Result<http::Response<Body>, Infallible> {
        let service = request
            .uri()
            .path()
            .trim_start_matches('/')
            .split('/')
            .next();
        if service == Some(image_service_server::SERVICE_NAME) {
            self.images.call(request).await
        } else {
            self.runtime.call(request).await
        }
    }
}

async fn serve(sim: Sim, services: Services, stream: Stream) {
    sim.edit(|journal| journal.connections += 1);
    let (answered, streams) = (sim.clone(), sim.store().settings.streams);
    let answer = service_fn(move |request| answer(answered.clone(), services.clone(), request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(streams)
        .max_header_list_size(1 << 20)
        .serve_connection(TokioIo::new(stream), answer);
    // An error is ignored here: the client sees how the connection ended.
    connection.await.ok();
    sim.edit(|journal| journal.connections -= 1);
}

async fn answer(
    sim: Sim,
    mut services: Services,
    request: http::Request<Incoming>,
) -> Result<http::Response<Body>, ServeError> {
    let (head, body) = request.into_parts();
    let rpc = head
        .uri
        .path()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    let Ok(body) = body.collect().await else {
        return Ok(Status::cancelled("the request broke off").into_http());
    };
    let body = body.to_bytes();
    clock::tick();
    sim.edit(|journal| {
        journal.calls.push(Call {
            rpc: rpc.clone(),
            headers: head.headers.clone(),
            body: body.clone(),
        });
        journal.sent.remove(&rpc);
    });
    let rejects = sim.0.journal.borrow().rejects.clone();
    if let Some((name, with)) = rejects
        && head.headers.contains_key(name)
    {
        return Ok(with.ok_or("the header is rejected")?.into_http());
    }
    let reset = sim.0.journal.borrow().resets.get(&rpc).copied();
    if let Some(error) = reset {
        return Err(error());
    }
    let mut is_lost = false;
    sim.edit(|journal| is_lost = journal.loses.remove(&rpc));
    if is_lost {
        std::future::pending::<()>().await;
    }
    hold(&sim, &rpc).await;
    if body.len() <= NO_FILTER {
        hold(&sim, &all_of(&rpc)).await;
    }
    if sim.0.journal.borrow().is_held_for_good(&rpc, &body) {
        return std::future::pending().await;
    }
    if let Some(status) = sim.0.journal.borrow().unroutable(&rpc) {
        return Ok(status.into_http());
    }
    let reply = services
        .call(http::Request::from_parts(head, Full::new(body)))
        .await?;
    hold(&sim, &reply_of(&rpc)).await;
    clock::tick();
    let extra = sim.0.journal.borrow().extra(&rpc);
    let reply = watch(&sim, rpc, rewrite(reply, extra));
    let chopped = sim.0.journal.borrow().chopped;
    Ok(match chopped {
        Some(length) => chop(reply, length),
        None => reply,
    })
}

/// The name under which [`hold`] holds an RPC's replies.
pub fn reply_of(rpc: &str) -> String {
    format!("the reply of {rpc}")
}

/// The name under which [`hold`] holds an RPC's calls without a filter.
pub fn all_of(rpc: &str) -> String {
    format!("all of {rpc}")
}

/// Waits while calls of this RPC are held. If the client cancels the call, the future is dropped and the journal
/// records the cancellation.
async fn hold(sim: &Sim, rpc: &str) {
    if !sim.0.journal.borrow().holds.contains(rpc) {
        return;
    }
    let mut held = Held {
        sim,
        rpc,
        released: false,
    };
    sim.edit(|journal| journal.held.push(rpc.to_owned()));
    let mut journal = sim.0.journal.subscribe();
    held.released = journal
        .wait_for(|journal| !journal.holds.contains(rpc))
        .await
        .is_ok();
}

struct Held<'a> {
    sim: &'a Sim,
    rpc: &'a str,
    released: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.sim.edit(|journal| {
            if let Some(place) = journal.held.iter().position(|rpc| rpc == self.rpc) {
                journal.held.remove(place);
            }
            if !self.released {
                journal.cancelled.push(self.rpc.to_owned());
            }
        });
    }
}
