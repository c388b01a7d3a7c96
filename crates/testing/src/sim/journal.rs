//! The calls that a simulated runtime received, and the faults that it simulates.

use std::collections::{HashMap, HashSet};
use std::error::Error;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use prost::Message;
use tonic::Status;

use super::cut::Rest;
use super::rewrite::Extra;

/// An error that resets the stream of a call.
pub type ServeError = Box<dyn Error + Send + Sync>;

/// Calls in the order of their arrival, and faults by the name of the RPC.
#[derive(Default)]
pub struct Journal {
    pub calls: Vec<Call>,
    /// The number of open connections.
    pub connections: usize,
    /// The RPCs of the calls that hang now.
    pub held: Vec<String>,
    /// The RPCs of the calls that the client cancelled before the reply.
    pub cancelled: Vec<String>,
    /// The body of the last reply to each RPC, as far as the body was sent.
    pub sent: HashMap<String, BytesMut>,
    pub lacks: HashSet<String>,
    pub fails: HashMap<String, Status>,
    /// The RPCs whose calls get a reset of their stream, and the errors that reset the streams.
    pub resets: HashMap<String, fn() -> ServeError>,
    /// A header that no call may have, and the status of such calls. Without a status their streams are reset.
    pub rejects: Option<(String, Option<Status>)>,
    pub holds: HashSet<String>,
    /// An RPC and an id: the RPC's calls hang if their requests contain the id.
    pub holds_of: Option<(String, String)>,
    /// The RPCs whose next call gets no reply.
    pub loses: HashSet<String>,
    pub appended: HashMap<String, Bytes>,
    pub appended_to_items: HashMap<String, Bytes>,
    pub newer: bool,
    pub chopped: Option<usize>,
    pub rest: Rest,
}

/// A call as the runtime received it.
#[derive(Clone, Debug)]
pub struct Call {
    /// The name of the RPC, which is the last part of the path.
    pub rpc: String,
    /// All headers of the call: the deadline, metadata, the user agent.
    pub headers: HeaderMap,
    /// The whole body, with gRPC's five bytes before the message.
    pub body: Bytes,
}

impl Call {
    /// The bytes of the request message.
    pub fn message(&self) -> Bytes {
        self.body.slice(super::rewrite::PREFIX..)
    }

    /// The request message, decoded.
    pub fn decode<M: Message + Default>(&self) -> M {
        M::decode(self.message()).unwrap()
    }

    /// A header's value, if present and text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Journal {
    /// The calls of an RPC, without criswitch's own calls of `PodSandboxStats`, which name no pod.
    pub fn calls_of(&self, rpc: &str) -> impl Iterator<Item = &Call> {
        self.calls
            .iter()
            .filter(move |call| call.rpc == rpc)
            .filter(|call| call.rpc != "PodSandboxStats" || !call.message().is_empty())
    }

    pub fn is_held_for_good(&self, rpc: &str, request: &[u8]) -> bool {
        self.holds_of.as_ref().is_some_and(|(held, id)| {
            held == rpc && request.windows(id.len()).any(|part| part == id.as_bytes())
        })
    }

    /// The error that replaces the reply, if the RPC is missing or made to fail.
    pub fn unroutable(&self, rpc: &str) -> Option<Status> {
        self.lacks
            .contains(rpc)
            .then(|| Status::unimplemented(format!("unknown method {rpc} for service runtime.v1")))
            .or_else(|| self.fails.get(rpc).cloned())
    }

    /// The bytes to put into the replies of an RPC.
    pub fn extra(&self, rpc: &str) -> Extra {
        let mut extra = if self.newer {
            Extra::newer(rpc)
        } else {
            Extra::default()
        };
        extra
            .message
            .extend(self.appended.get(rpc).into_iter().flatten());
        extra
            .items
            .extend(self.appended_to_items.get(rpc).into_iter().flatten());
        extra
    }
}
