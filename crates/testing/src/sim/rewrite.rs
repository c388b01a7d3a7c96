//! Puts raw bytes into replies, to make replies that no generated type can express.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::Frame;
use prost::encoding::{self, DecodeContext, WireType};
use tonic::Status;
use tonic::body::Body;

/// The length of gRPC's prefix of a message: a flag and the length.
pub const PREFIX: usize = 5;

/// A field number that no version of the CRI uses.
const UNKNOWN_FIELD: u32 = 5000;

/// Bytes to put into every message of a reply.
#[derive(Default)]
pub struct Extra {
    /// Appended to the message.
    pub message: Vec<u8>,
    /// Appended to each submessage in field 1.
    pub items: Vec<u8>,
}

impl Extra {
    /// The extra bytes that a future runtime might send.
    pub fn newer(rpc: &str) -> Extra {
        let message = unknown_field();
        let labels = match rpc {
            "PodSandboxStatus" => Some(7),
            "ContainerStatus" => Some(12),
            _ => None,
        };
        let mut items = Vec::new();
        if let Some(labels) = labels {
            items.extend(&message);
            items.extend(label_that_is_not_utf8(labels));
        } else if rpc.starts_with("List") || rpc.starts_with("Stream") || rpc == "Status" {
            items.extend(&message);
        }
        Extra { message, items }
    }

    fn is_empty(&self) -> bool {
        self.message.is_empty() && self.items.is_empty()
    }

    fn put_into(&self, message: Bytes) -> Bytes {
        let mut grown = BytesMut::new();
        if self.items.is_empty() {
            grown.put(message);
        } else {
            grow_items(message, &self.items, &mut grown);
        }
        grown.put_slice(&self.message);
        grown.freeze()
    }
}

fn unknown_field() -> Vec<u8> {
    let mut bytes = Vec::new();
    encoding::string::encode(UNKNOWN_FIELD, &"of a later version".to_owned(), &mut bytes);
    bytes
}

fn label_that_is_not_utf8(labels: u32) -> Vec<u8> {
    let mut entry = Vec::new();
    encoding::string::encode(1, &"latin1".to_owned(), &mut entry);
    encoding::bytes::encode(2, &b"caf\xe9".to_vec(), &mut entry);
    let mut bytes = Vec::new();
    encoding::bytes::encode(labels, &entry, &mut bytes);
    bytes
}

fn grow_items(mut message: Bytes, extra: &[u8], grown: &mut BytesMut) {
    while message.has_remaining() {
        let whole = message.clone();
        let (tag, wire) = encoding::decode_key(&mut message).unwrap();
        if (tag, wire) == (1, WireType::LengthDelimited) {
            let length = encoding::decode_varint(&mut message).unwrap() as usize;
            let item = message.split_to(length);
            encoding::encode_key(tag, wire, grown);
            encoding::encode_varint((length + extra.len()) as u64, grown);
            grown.put(item);
            grown.put_slice(extra);
        } else {
            encoding::skip_field(wire, tag, &mut message, DecodeContext::default()).unwrap();
            grown.put_slice(&whole[..whole.len() - message.len()]);
        }
    }
}

/// Puts the extra bytes into every message of a reply.
pub fn rewrite(reply: http::Response<Body>, extra: Extra) -> http::Response<Body> {
    if extra.is_empty() {
        return reply;
    }
    let buffer = BytesMut::new();
    reply.map(|inner| {
        Body::new(Rewritten {
            inner,
            extra,
            buffer,
        })
    })
}

struct Rewritten {
    inner: Body,
    extra: Extra,
    buffer: BytesMut,
}

impl Rewritten {
    fn next_message(&mut self) -> Option<Bytes> {
        let mut prefix = self.buffer.get(..PREFIX)?;
        let (flag, length) = (prefix.get_u8(), prefix.get_u32() as usize);
        if self.buffer.len() < PREFIX + length {
            return None;
        }
        self.buffer.advance(PREFIX);
        let message = self.extra.put_into(self.buffer.split_to(length).freeze());
        let mut framed = BytesMut::new();
        framed.put_u8(flag);
        framed.put_u32(message.len() as u32);
        framed.put(message);
        Some(framed.freeze())
    }
}

impl http_body::Body for Rewritten {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(message) = self.next_message() {
                return Poll::Ready(Some(Ok(Frame::data(message))));
            }
            match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.buffer.put(data),
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                end => return Poll::Ready(end),
            }
        }
    }
}
