//! A call after criswitch has read its request: its target, plan, log line and reply. Each step on the path of a call
//! hands the call to the next step.
//!
//! This module does no I/O, and sends no call.

pub(crate) mod ending;
pub(crate) mod fault;
mod lesson;
pub mod log;
pub(crate) mod plan;
pub mod reply;
pub mod route;

use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use criswitch_cri::codec::{frames, protobuf};
use criswitch_cri::rpc::Row;
use http::HeaderMap;
use tokio::time::Instant;
use tonic::Status;

pub(crate) use crate::backend::failed::{Failed, named};
pub(crate) use lesson::{Lesson, Listing, pod_names};

use crate::backend::Contribution;
use crate::backend::unsaved::Unsaved;
use crate::limits::budget::Budget;
use crate::limits::places::User;
use crate::topology::Live;

/// A request that criswitch has read completely.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub row: &'static Row,
    /// The headers as the client sent them.
    pub headers: HeaderMap,
    /// The body: one framed message.
    pub body: Bytes,
    /// The routing table of the call. A reload does not change it during the call.
    pub live: Arc<Live>,
    /// The client's user.
    pub user: User,
    /// The memory that the reply uses until the client has read it.
    pub unread: Budget,
    /// The client's deadline.
    pub deadline: Option<Instant>,
}

impl Request {
    pub(crate) fn message(&self) -> Bytes {
        self.body.slice(frames::FRAME_HEADER..)
    }
}

/// A planned call: the request as the backends receive it, and the facts that criswitch learns from their replies.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub request: Request,
    /// The facts that criswitch learns from a reply.
    pub lesson: Lesson,
}

impl Deref for Call {
    type Target = Request;

    fn deref(&self) -> &Request {
        &self.request
    }
}

impl Call {
    /// The scope of the list that the call asks for. `None` if the call asks for no list.
    pub(crate) fn listing(&self) -> Option<&Listing> {
        match &self.lesson {
            Lesson::List(listing) => Some(listing),
            _ => None,
        }
    }

    /// Whether the call asks for all items of its list, or for the file systems of all images. Only the answer to such
    /// a call shows whether the answers of a backend can be used.
    pub(crate) fn asks_for_all(&self) -> bool {
        match &self.lesson {
            Lesson::List(listing) => listing.is_whole,
            Lesson::Disks => true,
            _ => false,
        }
    }

    /// Whether a late or missing answer to this call counts for all calls of its RPC. A late answer to a call for only
    /// some stats does not count: CRI-O delays a call for all stats while one container stops, but answers calls for
    /// the other containers at once.
    pub(crate) fn counts_for_all(&self) -> bool {
        let listing = self.listing();
        listing.is_none_or(|listing| listing.is_whole || !listing.list.is_stats())
    }

    /// A backend's part of the reply, to record whether that part is late or missing.
    pub(crate) fn contribution(&self) -> Contribution {
        Contribution {
            row: self.row,
            is_of_all: self.counts_for_all(),
        }
    }

    /// Waits until the changes of these backends, which the reply to this call shows, are saved. A reply does not wait
    /// if criswitch does not serve its content after a restart.
    ///
    /// # Errors
    /// `Unavailable` if a change cannot be saved.
    pub(crate) async fn may_show(&self, shows: &Unsaved) -> Result<(), Status> {
        if self.lesson.waits_for_save() {
            shows.saved().await
        } else {
            Ok(())
        }
    }

    /// The same call with the string at `path` set to `value`.
    pub(crate) fn with_string(&self, path: &[u32], value: &str) -> Call {
        let mut call = self.clone();
        call.request.body = frames::frame(&protobuf::with_string(&self.message(), path, value));
        call
    }
}
