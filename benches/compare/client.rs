//! The client. It uses raw HTTP/2 on one connection, and compares every byte of every reply.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use criswitch_cri::codec::frames::FRAME_HEADER;
use h2::RecvStream;
use h2::client::SendRequest;
use http::{HeaderMap, Request, Version};
use tokio::net::UnixStream;
use tokio::task::LocalSet;
use tokio::time::{Interval, interval_at};

use crate::events;
use crate::round::{Round, nanoseconds_since};
use crate::subjects::START_LIMIT;
use crate::support::frame_raw;
use crate::works::Work;
use crate::{CONNECTION_WINDOW, WINDOW};

/// The time between two polls of a kubelet.
const POLL: Duration = Duration::from_secs(1);
/// A kubelet calls `Status` once in this many polls.
const POLLS_OF_A_STATUS: usize = 5;

/// A call, and its correct replies.
pub struct Expected {
    rpc: &'static str,
    request: Bytes,
    /// The correct replies. If the list is empty, every reply counts as correct.
    replies: Vec<Bytes>,
}

impl Expected {
    fn anything(rpc: &'static str) -> Expected {
        Expected {
            rpc,
            request: Work::request(rpc),
            replies: Vec::new(),
        }
    }

    /// Returns the calls of a work. A correct reply is one gRPC message: the messages of all backends, concatenated in
    /// the order of the backends.
    pub async fn of(work: Work, backends: &[PathBuf]) -> Vec<Expected> {
        let mut calls = Vec::new();
        for rpc in work.rpcs() {
            let mut call = Expected::anything(rpc);
            while call.replies.len() < work.replies_of_a_backend() {
                let reply = joined(&call, backends).await;
                if !call.replies.contains(&reply) {
                    call.replies.push(reply);
                }
            }
            calls.push(call);
        }
        calls
    }
}

async fn joined(call: &Expected, backends: &[PathBuf]) -> Bytes {
    let call = Expected::anything(call.rpc);
    let mut message = Vec::new();
    for backend in backends {
        let send = connect(backend).await.unwrap();
        let reply = reply(&send, &call).await.unwrap();
        message.extend_from_slice(&reply[FRAME_HEADER..]);
    }
    frame_raw(&message)
}

/// Makes one round of calls, and compares each reply. `calls` is the number of calls, polls or events.
pub async fn measure(socket: &Path, work: Work, calls: usize, backends: &[PathBuf]) -> Round {
    let send = connect(socket).await.unwrap();
    if work == Work::Streams {
        return match begin(&send, &Expected::anything(events::RPC)).await {
            Ok((_, stream)) => events::read(stream, calls).await,
            Err(error) => Round::new(Vec::new(), Duration::ZERO, Some(error)),
        };
    }
    let expected = Rc::new(Expected::of(work, backends).await);
    let local = LocalSet::new();
    let (begun, fault) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(None)));
    let since = Instant::now();
    let tasks: Vec<_> = (0..work.in_flight())
        .map(|_| {
            let (send, begun, fault) = (send.clone(), Rc::clone(&begun), Rc::clone(&fault));
            let expected = Rc::clone(&expected);
            let mut poll = work
                .is_poll()
                .then(|| interval_at((since + POLL).into(), POLL));
            local.spawn_local(async move {
                let mut took = Vec::with_capacity(calls);
                while begun.replace(begun.get() + 1) < calls {
                    let since = Instant::now();
                    let mut right = all_replies(&send, &expected).await;
                    took.push(nanoseconds_since(since));
                    if let Some(poll) = &mut poll {
                        right = right.and(rest_of_poll(&send, took.len(), poll).await);
                    }
                    if let Err(error) = right {
                        fault.set(Some(error));
                        break;
                    }
                }
                took
            })
        })
        .collect();
    let took = local.run_until(futures_util::future::join_all(tasks)).await;
    let length = since.elapsed();
    let took = took.into_iter().flat_map(Result::unwrap).collect();
    Round::new(took, length, fault.take())
}

async fn rest_of_poll(
    send: &SendRequest<Bytes>,
    polls: usize,
    poll: &mut Interval,
) -> Result<(), String> {
    if polls.is_multiple_of(POLLS_OF_A_STATUS) {
        reply(send, &Expected::anything("Status")).await?;
    }
    poll.tick().await;
    Ok(())
}

/// Repeats the calls until all replies are correct. The subject may not listen yet.
pub async fn first_replies(socket: &Path, expected: &[Expected]) {
    let begin = Instant::now();
    while let Err(fault) = connect_and_call(socket, expected).await {
        assert!(begin.elapsed() < START_LIMIT, "{socket:?}: {fault}");
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
}

async fn connect_and_call(socket: &Path, expected: &[Expected]) -> Result<(), String> {
    all_replies(&connect(socket).await?, expected).await
}

async fn connect(socket: &Path) -> Result<SendRequest<Bytes>, String> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(|error| error.to_string())?;
    let handshake = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .handshake::<_, Bytes>(stream);
    let (send, connection) = handshake.await.map_err(text)?;
    tokio::spawn(connection);
    Ok(send)
}

async fn all_replies(send: &SendRequest<Bytes>, expected: &[Expected]) -> Result<(), String> {
    for call in expected {
        reply(send, call).await?;
    }
    Ok(())
}

/// Sends a call. Returns the headers and the body of the reply.
async fn begin(
    send: &SendRequest<Bytes>,
    call: &Expected,
) -> Result<(HeaderMap, RecvStream), String> {
    let head = Request::builder()
        .method("POST")
        .version(Version::HTTP_2)
        .uri(format!(
            "http://localhost/runtime.v1.RuntimeService/{}",
            call.rpc
        ))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "grpc-go/1.82.1")
        .body(())
        .unwrap();
    let mut send = send.clone().ready().await.map_err(text)?;
    let (response, mut body) = send.send_request(head, false).map_err(text)?;
    body.send_data(call.request.clone(), true).map_err(text)?;
    let (head, body) = response.await.map_err(text)?.into_parts();
    match head.status.as_u16() {
        200 => Ok((head.headers, body)),
        status => Err(format!("HTTP status {status}")),
    }
}

/// Makes a call and compares the reply. If every reply counts as correct, returns the bytes of the reply; otherwise
/// returns no bytes.
async fn reply(send: &SendRequest<Bytes>, call: &Expected) -> Result<Vec<u8>, String> {
    let (head, mut body) = begin(send, call).await?;
    let (mut at, mut reply) = (0, Vec::new());
    // The correct replies that begin with the bytes received so far.
    let mut right: Vec<&Bytes> = call.replies.iter().collect();
    while let Some(part) = body.data().await {
        let part = part.map_err(text)?;
        if right.is_empty() {
            reply.extend_from_slice(&part);
        } else {
            right.retain(|right| right.get(at..at + part.len()) == Some(&part[..]));
            if right.is_empty() {
                return Err(format!("wrong bytes after {at}"));
            }
        }
        at += part.len();
        body.flow_control()
            .release_capacity(part.len())
            .map_err(text)?;
    }
    let trailers = body.trailers().await.map_err(text)?;
    let end = trailers.as_ref().unwrap_or(&head);
    let is_whole = right.is_empty() || right.iter().any(|right| right.len() == at);
    match end.get("grpc-status") {
        Some(code) if code == "0" && is_whole => Ok(reply),
        Some(code) if code == "0" => Err(format!("the reply ended after {at} bytes")),
        _ => Err(format!("{end:?}")),
    }
}

fn text(error: h2::Error) -> String {
    error.to_string()
}
