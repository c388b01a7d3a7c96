//! Every gRPC status that the switch itself makes, and nothing else: a backend's own status is never touched here.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tonic::{Code, Status};

use crate::codec::frames::BadFrame;
use crate::codec::protobuf::Malformed;
use crate::config::address::Address;
use crate::config::{Handler, Table};
use crate::rpc::Kind;

/// What is wrong if a backend has another cgroup driver than the default one.
pub(crate) const WRONG_CGROUP_DRIVER: &str = "its cgroup driver differs from the default backend's, and the kubelet uses one \
    driver for all pods: the limits of its pods are set in the wrong cgroups; set the same driver for all backends";

/// What gRPC wants encoded in a `grpc-message`, apart from all that is not ASCII.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// What is shown of a text that a client sent, in characters; ids have 64.
const SHOWN: usize = 128;

/// The beginning of a text that a client sent: it may be as long as a message.
pub(crate) fn shown(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(SHOWN)
        .map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}

/// The longest text of a backend, in bytes, that criswitch repeats in words of its own: errors, the log, `Status`.
pub const LONGEST_TEXT: usize = 4 << 10;
/// Ends a text that was cut.
const CUT: &str = "... (cut)";

/// The beginning of a text that a backend sent, marked if it is not the whole: it may be as long as a message.
pub(crate) fn cut<'a>(text: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let text = text.into();
    if text.len() <= LONGEST_TEXT {
        return text;
    }
    let end = text.floor_char_boundary(LONGEST_TEXT - CUT.len());
    let begin = text.get(..end).unwrap_or_default();
    format!("{begin}{CUT}").into()
}

/// A path that is no RPC of the table.
pub fn no_such_rpc(path: &str) -> Status {
    Status::unimplemented(format!(
        "criswitch does not implement {}: it serves runtime.v1 of the CRI only",
        shown(path)
    ))
}

/// A request whose routing key cannot be read.
pub fn malformed(rpc: &str, fault: &Malformed) -> Status {
    Status::invalid_argument(format!("{rpc}: the request cannot be routed: {fault}"))
}

/// A request that is not one plain gRPC message.
pub fn bad_frame(rpc: &str, fault: BadFrame) -> Status {
    match fault {
        BadFrame::Length | BadFrame::TooLong(_) => {
            Status::invalid_argument(format!("{rpc}: the request is {fault}"))
        }
        BadFrame::Compressed => Status::unimplemented(format!(
            "{rpc}: the request is {fault}; send it uncompressed"
        )),
    }
}

/// A request above `max_message`.
pub fn request_too_large(rpc: &str, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "{rpc}: the request is larger than max_message ({limit} bytes)"
    ))
}

/// A request for which there is no memory beside the others.
pub fn no_memory_for_request(rpc: &str, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "{rpc}: the requests in flight use all memory for requests ({limit} bytes); try again later"
    ))
}

/// A backend's reply for which there is no memory beside its others.
pub fn no_memory_for_reply(backend: &str, socket: &Address, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "backend {backend:?} ({socket}): its replies use all memory for replies of one backend ({limit} bytes); try again later"
    ))
}

/// A reply for which there is no memory beside those that the same connection leaves unread.
pub fn unread_replies(rpc: &str, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "{rpc}: unread replies use all memory of this connection ({limit} bytes); read them first"
    ))
}

/// A call beyond those that may be in flight.
pub fn too_many_calls(rpc: &str, limit: usize, calls: &str) -> Status {
    Status::resource_exhausted(format!("{rpc}: {limit} {calls} are in flight already"))
}

/// A request whose end does not come.
pub fn unfinished_request(rpc: &str, limit: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "{rpc}: the request was not complete within {limit:?}"
    ))
}

/// A merged reply above `max_message`; the kubelet would refuse it.
pub fn reply_too_large(rpc: &str, limit: usize, sizes: &[(Arc<str>, usize)]) -> Status {
    let total: usize = sizes.iter().map(|(_, size)| size).sum();
    let parts: Vec<_> = sizes
        .iter()
        .map(|(backend, size)| format!("{backend} {size}"))
        .collect();
    Status::resource_exhausted(format!(
        "{rpc}: the merged reply has {total} bytes, more than max_message ({limit}); by backend: {}",
        parts.join(", ")
    ))
}

/// One backend's reply above `max_message` where it has to be read.
pub fn backend_reply_too_large(backend: &str, socket: &Address, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "backend {backend:?} ({socket}): its reply is larger than max_message ({limit} bytes)"
    ))
}

/// The client's own deadline.
pub fn deadline(rpc: &str, timeout: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "{rpc}: no answer within the deadline of {timeout:?}"
    ))
}

/// A request that the client did not finish.
pub fn broken_request(rpc: &str, cause: &str) -> Status {
    Status::cancelled(format!("{rpc}: the request ended early: {cause}"))
}

/// A handler that the table does not have, in containerd's words.
pub fn unknown_handler(handler: &str, table: &Table) -> Status {
    let known: Vec<_> = table
        .handlers
        .iter()
        .map(|row: &Handler| row.name.as_str())
        .collect();
    Status::invalid_argument(format!(
        "no runtime for {:?} is configured; criswitch has handlers: {}",
        shown(handler),
        known.join(", ")
    ))
}

/// A handler that the table does not have, while a backend with `auto_register` has not reported its own.
pub fn untold_handler(handler: &str, backend: &str, socket: &Address) -> Status {
    Status::unavailable(format!(
        "runtime handler {:?} is not known yet: backend {backend:?} ({socket}, auto_register = true) has not reported its handlers",
        shown(handler)
    ))
}

/// A backend that cannot be reached, or that went away in the middle of a call.
pub fn unavailable(backend: &str, socket: &Address, cause: &str) -> Status {
    Status::unavailable(format!("backend {backend:?} ({socket}): {}", cut(cause)))
}

/// An id that nobody is known to own, while not every backend could be asked.
pub fn owner_unknown(kind: Kind, id: &str, unanswered: &Status) -> Status {
    Status::unavailable(format!(
        "{} {:?} is on no reachable backend; it may be on {}",
        noun(kind),
        shown(id),
        unanswered.message()
    ))
}

/// The beginning of an id that one backend has, while another one that cannot be asked may have a second one.
pub fn short_id_unknown(kind: Kind, id: &str, unanswered: &Status) -> Status {
    Status::unavailable(format!(
        "{} {:?}: the beginning of an id may fit several while a backend does not answer; use the whole id; {}",
        noun(kind),
        shown(id),
        unanswered.message()
    ))
}

/// An id that every backend says it does not have.
pub fn not_found(kind: Kind, id: &str) -> Status {
    Status::not_found(format!(
        "{} {:?}: not found on any backend",
        noun(kind),
        shown(id)
    ))
}

/// A prefix of several ids, in containerd's words.
pub fn ambiguous(prefix: &str) -> Status {
    let prefix = shown(prefix);
    Status::unknown(format!("Multiple IDs found with provided prefix: {prefix}"))
}

/// An id that two backends list, and that neither got through the switch.
pub fn disputed(kind: Kind, id: &str, one: &str, other: &str) -> Status {
    Status::failed_precondition(format!(
        "{} {id:?}: backends {one:?} and {other:?} both list it, and criswitch does not guess which one owns it; if both sockets lead to one runtime, configure one backend for both",
        noun(kind)
    ))
}

/// A pull for a pod that no backend is known to have, while not every backend could be asked. Its credentials go nowhere.
pub fn pod_unknown(uid: &str, unanswered: &Status) -> Status {
    Status::unavailable(format!(
        "pod with uid {:?} is on no reachable backend, so criswitch does not pull its image; it may be on {}",
        shown(uid),
        unanswered.message()
    ))
}

/// A pull for a pod that several backends list, and that was not created through criswitch.
pub fn doubled_pod(uid: &str, backends: &[Arc<str>]) -> Status {
    Status::failed_precondition(format!(
        "pod with uid {:?}: backends {backends:?} list a pod with this uid; criswitch does not guess which one gets the \
         credentials of a pull (remove the pod on the backends where it does not belong)",
        shown(uid)
    ))
}

/// An image that a container uses, which is not removed.
pub fn image_in_use(reference: &str, backend: &str, container: &str) -> Status {
    Status::failed_precondition(format!(
        "image {:?}: not removed, backend {backend:?} has container {:?} that uses it; remove the container first",
        shown(reference),
        shown(container)
    ))
}

/// A name that stands for different images in the stores that an unknown pod may use; each with its id and user.
pub fn images_differ(reference: &str, images: &[(Arc<str>, String)]) -> Status {
    let has = |(backend, image): &(Arc<str>, String)| format!("backend {backend:?} has {image}");
    let images: Vec<_> = images.iter().map(has).collect();
    Status::failed_precondition(format!(
        "image {0:?}: the backends have different images of this name, and it is unknown which backend the container runs \
         on: {1}; try again, use a digest, or pull the image again on every backend (crictl pull {0})",
        shown(reference),
        images.join(", ")
    ))
}

/// No id where one is needed.
pub fn empty_id(rpc: &str, kind: Kind) -> Status {
    Status::invalid_argument(format!("{rpc}: the {} id is empty", noun(kind)))
}

/// An RPC that the backends lack.
pub fn lacking(rpc: &str, backend: &str) -> Status {
    Status::unimplemented(format!("{rpc}: backend {backend:?} does not implement it"))
}

/// A backend that has no events, as each stream of them ends at once: with this failure, or well.
pub(crate) fn no_events(backend: &str, socket: &Address, failure: Option<&str>) -> Status {
    let end = cut(failure.unwrap_or("without an error"));
    Status::unimplemented(format!(
        "backend {backend:?} ({socket}): it sends no container events, each event stream ends immediately: {end}"
    ))
}

/// A backend's reply that breaks gRPC's or protobuf's rules.
pub fn bad_reply(backend: &str, socket: &Address, cause: &str) -> Status {
    Status::internal(format!("backend {backend:?} ({socket}): {}", cut(cause)))
}

/// Replies of backends that cannot be merged.
pub fn unmergeable(rpc: &str, fault: &Malformed) -> Status {
    Status::internal(format!("{rpc}: a backend's reply is malformed: {fault}"))
}

/// A backend that must not be forgotten, or cannot be.
pub(crate) fn not_forgotten(cause: &str) -> Status {
    Status::failed_precondition(cause)
}

/// A reload whose outcome is forgotten.
pub(crate) fn too_many_reloads() -> Status {
    Status::aborted(
        "the outcome of this reload is not known any more, because many reloads followed; see the log of criswitch",
    )
}

/// Nobody to ask: none of the backends that the table has since a reload has been there yet.
pub fn no_backend() -> Status {
    Status::unavailable(
        "no backend of the routing table has been reachable yet; start the runtime of a backend",
    )
}

/// A backend that a reload has taken out of the table, while a call was on its way there.
pub fn gone_backend() -> Status {
    Status::unavailable("the backend was removed during the call; call again")
}

/// A client that subscribed to events and does not read them.
pub fn does_not_read(queue: usize) -> Status {
    Status::resource_exhausted(format!(
        "the client left more than {queue} events unread, or more bytes of events than fit in memory; subscribe again"
    ))
}

/// The switch is ending.
pub fn shutting_down() -> Status {
    Status::new(Code::Unavailable, "criswitch is shutting down")
}

/// A call that the end of the switch did not wait for any longer.
pub fn past_shutdown_timeout(rpc: &str, timeout: Duration) -> Status {
    Status::unavailable(format!(
        "criswitch is shutting down, and {rpc} has taken longer than `shutdown_timeout` ({timeout:?})"
    ))
}

fn noun(kind: Kind) -> &'static str {
    match kind {
        Kind::Pod => "pod",
        Kind::Container => "container",
    }
}

/// A status of the switch's own with the texts of other failures behind its own.
pub fn with_others(status: &Status, others: &str) -> Status {
    Status::new(status.code(), format!("{}; {others}", status.message()))
}

/// A backend's text with those of other failures behind it; percent-encoded like `message`.
pub fn appended(message: &[u8], others: &str) -> http::HeaderValue {
    behind(message, &format!("; {others}"))
}

/// Names the backend where several were asked, behind its own text: clients match the beginning.
///
/// `message` is the percent-encoded `grpc-message`.
pub fn named(message: &[u8], backend: &str, socket: &Address) -> http::HeaderValue {
    behind(message, &format!(" (backend {backend:?}, {socket})"))
}

fn behind(message: &[u8], text: &str) -> http::HeaderValue {
    let text = utf8_percent_encode(text, MESSAGE).to_string();
    let text = [message, text.as_bytes()].concat();
    http::HeaderValue::from_bytes(&text).unwrap_or_else(|_| http::HeaderValue::from_static(""))
}

/// An error and its causes, outermost first; cut, since what HTTP/2 reports may have the peer's own words.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let causes: Vec<_> = causes.map(ToString::to_string).collect();
    cut(causes.join(": ")).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_two_characters_and_only_once() {
        assert_eq!(cut("short"), "short");
        let longest = "x".repeat(LONGEST_TEXT);
        assert_eq!(cut(&*longest), longest);
        let long = "\u{20ac}".repeat(LONGEST_TEXT);
        let once = cut(&*long);
        assert!(once.len() <= LONGEST_TEXT && once.ends_with(CUT), "{once}");
        assert_eq!(cut(&*once), once);
    }
}
