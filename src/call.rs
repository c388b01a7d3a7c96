//! A call after its request was read, and the type of its failures. Each step on the path of a call passes the call on.
//!
//! Does no I/O, and sends no call.

pub(crate) mod ending;
mod lesson;
pub mod log;
pub(crate) mod plan;
pub mod reply;
pub mod route;

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;

pub(crate) use crate::backend::failed::{Failed, named};
pub(crate) use lesson::{Lesson, Listing, pod_names};

use crate::backend::Contribution;
use crate::codec::{frames, protobuf};
use crate::limits::budget::Budget;
use crate::rpc::{List, Row};
use crate::topology::Live;

/// A request that was read.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub row: &'static Row,
    /// The headers as the client sent them.
    pub headers: HeaderMap,
    /// The body: one framed message.
    pub body: Bytes,
    /// The routing table for the whole call, also after a reload.
    pub live: Arc<Live>,
    /// The memory that the reply uses until the client has read it.
    pub unread: Budget,
}

impl Request {
    pub(crate) fn message(&self) -> Bytes {
        self.body.slice(frames::FRAME_HEADER..)
    }
}

/// A call with a plan: its request as the backends get it, and how criswitch learns from their replies.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub request: Request,
    /// How criswitch learns from a reply.
    pub lesson: Lesson,
}

impl Deref for Call {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

impl Call {
    /// The scope of the list, if the reply is one.
    pub(crate) fn listing(&self) -> Option<&Listing> {
        match &self.lesson {
            Lesson::List(listing) => Some(listing),
            _ => None,
        }
    }

    /// The list of pods, containers or images, if the call asks for all items.
    pub(crate) fn whole_list(&self) -> Option<List> {
        let listing = self.listing()?;
        (listing.is_whole && !listing.list.is_stats()).then_some(listing.list)
    }

    /// Whether the call counts for all calls of its RPC. A call for some stats does not: CRI-O lets a call for all
    /// stats wait for one container that stops, and answers calls for the other containers at once.
    pub(crate) fn speaks_for_all(&self) -> bool {
        let listing = self.listing();
        listing.is_none_or(|listing| listing.is_whole || !listing.list.is_stats())
    }

    /// A backend's part of the reply.
    pub(crate) fn contribution(&self) -> Contribution {
        Contribution {
            row: self.row,
            is_of_all: self.speaks_for_all(),
        }
    }

    /// The same call with the string at `path` set.
    pub(crate) fn with_string(&self, path: &[u32], value: &str) -> Call {
        let mut call = self.clone();
        call.request.body = frames::frame(&protobuf::with_string(&self.message(), path, value));
        call
    }

    /// The headers without the headers that permit a compressed reply.
    pub(crate) fn reading_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove("grpc-accept-encoding");
        headers
    }
}
