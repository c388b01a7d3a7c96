//! A call that was read, and how it fails: what the path of a call hands from step to step.
//!
//! Does no I/O, and sends a call nowhere.

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
    /// The row of its RPC.
    pub row: &'static Row,
    /// Its headers, as they came.
    pub headers: HeaderMap,
    /// Its body: one framed message.
    pub body: Bytes,
    /// The table that the call begins with, and ends with.
    pub live: Arc<Live>,
    /// Where the reply counts until the client has read it.
    pub unread: Budget,
}

impl Request {
    /// Its message.
    pub(crate) fn message(&self) -> Bytes {
        self.body.slice(frames::FRAME_HEADER..)
    }
}

/// A call that has a plan: its request as the backends get it, and what their replies teach.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub request: Request,
    /// What a reply teaches.
    pub lesson: Lesson,
}

impl Deref for Call {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

impl Call {
    /// What it asks for, if its reply is a list.
    pub(crate) fn listing(&self) -> Option<&Listing> {
        match &self.lesson {
            Lesson::List(listing) => Some(listing),
            _ => None,
        }
    }

    /// The list of what there is, if it asks for all items.
    pub(crate) fn whole_list(&self) -> Option<List> {
        let listing = self.listing()?;
        (listing.is_whole && !listing.list.is_stats()).then_some(listing.list)
    }

    /// Whether it may be taken for all calls of its RPC. One for the stats of some may not: CRI-O keeps a call for all
    /// waiting for one container that stops, and answers for each of the others at once.
    pub(crate) fn speaks_for_all(&self) -> bool {
        let listing = self.listing();
        listing.is_none_or(|listing| listing.is_whole || !listing.list.is_stats())
    }

    /// What a backend contributes to the reply.
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

    /// Its headers, less what would let the reply come compressed.
    pub(crate) fn reading_headers(&self) -> HeaderMap {
        let mut headers = self.headers.clone();
        headers.remove("grpc-accept-encoding");
        headers
    }
}
