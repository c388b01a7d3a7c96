//! Every gRPC status that criswitch makes itself. A backend's own status keeps its code and text; only [`named`] and
//! [`appended`] add to the text.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use criswitch_config::address::Address;
use criswitch_config::{Handler, Table};
use criswitch_cri::codec::frames::BadFrame;
use criswitch_cri::codec::grpc;
use criswitch_cri::codec::protobuf::Malformed;
use criswitch_cri::error_text::{self, CLOSING, cut};
use criswitch_cri::rpc::{Kind, Row};
use criswitch_platform::file_work::FILE_LIMIT;
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use tokio::time::Instant;
use tonic::{Code, Status};

/// The ASCII characters that gRPC encodes in a `grpc-message`.
const MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// The most characters of a client's text that criswitch shows. An id has 64 characters, so it is shown completely.
const SHOWN: usize = 128;

/// Cuts a text from a client, which may be as long as a message, to `SHOWN` characters.
pub(crate) fn shown(text: &str) -> &str {
    let end = text
        .char_indices()
        .nth(SHOWN)
        .map_or(text.len(), |(at, _)| at);
    text.get(..end).unwrap_or_default()
}

/// The path in the request is not an RPC of the CRI.
pub fn no_such_rpc(path: &str) -> Status {
    Status::unimplemented(format!(
        "criswitch does not implement {}; it serves only the RPCs of runtime.v1 that `criswitch routes` lists",
        shown(path)
    ))
}

/// The client's `grpc-timeout` is invalid: it must have at most eight digits and a unit.
pub(crate) fn invalid_timeout(value: &http::HeaderValue) -> Status {
    let value = String::from_utf8_lossy(value.as_bytes());
    let value = shown(&value);
    Status::invalid_argument(format!(
        "the header grpc-timeout is {value:?}; it must have at most eight digits and a unit: H, M, S, m, u or n"
    ))
}

/// The routing key of the request cannot be decoded.
pub fn malformed(rpc: &str, fault: &Malformed) -> Status {
    Status::invalid_argument(format!("{rpc}: the request cannot be routed: {fault}"))
}

/// The request cannot be decoded.
pub(crate) fn undecodable(rpc: &str, fault: &impl Display) -> Status {
    Status::invalid_argument(format!("{rpc}: the request cannot be decoded: {fault}"))
}

/// The selector has more labels than any item of a list may have.
pub(crate) fn long_selector(rpc: &str, labels: usize, limit: usize) -> Status {
    Status::invalid_argument(format!(
        "{rpc}: the label selector has {labels} labels; the limit is {limit}"
    ))
}

/// The request has more fields than any client sends.
pub(crate) fn many_fields(rpc: &str, limit: usize) -> Status {
    Status::invalid_argument(format!(
        "{rpc}: the request has more than {limit} fields at its top level"
    ))
}

/// The request is not exactly one uncompressed gRPC message.
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

/// The request is larger than `max_message`.
pub fn request_too_large(rpc: &str, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "{rpc}: the request is larger than max_message ({limit} bytes)"
    ))
}

/// The requests in flight of the connection, of its user or of all clients leave no memory for this request.
pub fn no_memory_for_request(rpc: &str, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "{rpc}: the requests in flight use all memory for requests that this client may use ({limit} bytes); try again later"
    ))
}

/// The backend's other replies leave no memory for this reply.
pub fn no_memory_for_reply(backend: &str, socket: &Address, limit: usize) -> Status {
    let mut status = Status::resource_exhausted(format!(
        "backend {backend:?} ({socket}): its replies use all memory for such replies of one backend ({limit} bytes); try again later"
    ));
    status.set_source(Arc::new(OfClients::Memory));
    status
}

/// Marks the status of a call for which criswitch stopped waiting because the client's deadline is near.
pub(crate) fn of_deadline(mut status: Status) -> Status {
    status.set_source(Arc::new(OfClients::Deadline));
    status
}

/// The source of a status that clients may have caused, so that it says nothing about the backend.
#[derive(Debug, thiserror::Error)]
enum OfClients {
    /// Clients may leave other replies unread.
    #[error("no memory for the reply")]
    Memory,
    #[error("the client's deadline")]
    Deadline,
}

/// Whether clients may have caused this status of a call to a backend.
pub(crate) fn is_of_clients(status: &Status) -> bool {
    source(status).is_some_and(|source| source.is::<OfClients>())
}

fn source(status: &Status) -> Option<&(dyn std::error::Error + 'static)> {
    std::error::Error::source(status)
}

/// The unread replies of the connection leave no memory for this reply.
pub fn unread_replies(rpc: &str, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "{rpc}: unread replies use all memory of this connection ({limit} bytes); read them first"
    ))
}

/// A limit on calls in flight is reached.
pub fn too_many_calls(rpc: &str, limit: usize, calls: &str) -> Status {
    Status::resource_exhausted(format!("{rpc}: {limit} {calls} are in flight already"))
}

/// The client did not complete its request in time.
pub fn unfinished_request(rpc: &str, limit: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "{rpc}: the request was not complete within {limit:?}"
    ))
}

/// The merged reply is larger than its limit: `max_message`, above which the kubelet would reject the reply, or the
/// limit of a streamed list.
pub fn reply_too_large(row: &Row, limit: usize, sizes: &[(Arc<str>, usize)]) -> Status {
    let rpc = row.name;
    let name = if row.streams() {
        "a streamed list may have"
    } else {
        "max_message"
    };
    let total: usize = sizes.iter().map(|(_, size)| size).sum();
    let largest = sizes
        .iter()
        .max_by_key(|(_, size)| size)
        .map(|(backend, size)| {
            format!("; the largest part is that of backend {backend:?}, {size} bytes")
        })
        .unwrap_or_default();
    let parts: Vec<_> = sizes
        .iter()
        .map(|(backend, size)| format!("{backend} {size}"))
        .collect();
    Status::resource_exhausted(format!(
        "{rpc}: the merged reply has {total} bytes, more than {name} ({limit}){largest}; by backend: {}",
        parts.join(", ")
    ))
}

/// A backend's reply that criswitch must decode is larger than `max_message`.
pub fn backend_reply_too_large(backend: &str, socket: &Address, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "backend {backend:?} ({socket}): its reply is larger than max_message ({limit} bytes)"
    ))
}

/// A backend's streamed list is larger than a streamed list may be.
pub fn backend_list_too_large(backend: &str, socket: &Address, limit: usize) -> Status {
    Status::resource_exhausted(format!(
        "backend {backend:?} ({socket}): its streamed list is larger than such a list may be ({limit} bytes, twice \
         max_message or 32 MiB)"
    ))
}

/// The client's own deadline has passed.
pub fn deadline(rpc: &str, timeout: Duration) -> Status {
    Status::deadline_exceeded(format!(
        "{rpc}: no answer within the deadline of {timeout:?}"
    ))
}

/// The client's own deadline has passed, and this backend had the call.
pub(crate) fn by_deadline_of(
    status: &Status,
    backend: &str,
    socket: &Address,
    handler: Option<&str>,
) -> Status {
    let text = format!("{} from backend {backend:?} ({socket})", status.message());
    let status = Status::new(status.code(), text);
    handler.map_or(status.clone(), |handler| of_handler(handler, &status))
}

/// The client broke off its request. `status` is the status of `of_http2`.
pub fn broken_request(rpc: &str, status: &Status) -> Status {
    let cause = status.message();
    Status::new(
        status.code(),
        format!("{rpc}: the request ended early: {cause}"),
    )
}

/// The routing table does not have the handler. The text begins like containerd's text for this error.
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

/// The routing table does not have the handler, but a backend with `auto_register` has not reported its handlers yet.
pub fn unreported_handler(handler: &str, backend: &str, socket: &Address) -> Status {
    Status::unavailable(format!(
        "runtime handler {:?} is not known yet: backend {backend:?} ({socket}, auto_register = true) has not reported its handlers",
        shown(handler)
    ))
}

/// The backend cannot be reached, or was lost during a call.
pub fn unavailable(backend: &str, socket: &Address, cause: &str) -> Status {
    Status::unavailable(format!("backend {backend:?} ({socket}): {}", cut(cause)))
}

/// The peer of a call reset the stream of the call, or the connection ended. The source of the status is `error`.
pub(crate) fn of_http2(error: h2::Error, deadline: Option<Instant>) -> Status {
    let is_late = deadline.is_some_and(|deadline| deadline <= Instant::now());
    let mut status = Status::new(grpc::code_of(&error, is_late), error_text::of_http2(&error));
    status.set_source(Arc::new(error));
    status
}

/// The connection was closed while the call waited for a free stream.
pub(crate) fn connection_over() -> Status {
    Status::unavailable(CLOSING)
}

/// The backend did not process a call, although criswitch sent the call twice. `failed` is the second failure.
pub(crate) fn sent_twice(failed: &Status) -> Status {
    let cause = failed.message();
    Status::unavailable(format!(
        "{cause}; criswitch sent the call twice and the backend processed it neither time; try again later"
    ))
}

/// The backend broke off a call. `status` is the status of `of_http2`.
pub(crate) fn broken_off(backend: &str, socket: &Address, status: &Status) -> Status {
    let mut broken = unavailable(backend, socket, status.message());
    if status.code() != Code::Unavailable {
        broken = Status::new(status.code(), broken.message());
        broken.set_source(Arc::new(status.clone()));
    }
    broken
}

/// Whether the backend gave no answer: it cannot be reached, or it broke off the call, with whatever code.
pub(crate) fn is_silence(status: &Status) -> bool {
    status.code() == Code::Unavailable || source(status).is_some() && !is_of_clients(status)
}

/// A pod with this handler was not created. The text has the handler, then the backend and the cause.
pub(crate) fn of_handler(handler: &str, failure: &Status) -> Status {
    let handler = shown(handler);
    Status::new(
        failure.code(),
        format!("runtime handler {handler:?}: {}", failure.message()),
    )
}

/// The id has no known owner, and some backends did not answer.
pub fn owner_unknown(kind: Kind, id: &str, unanswered: &Status) -> Status {
    Status::unavailable(format!(
        "{} {:?} is on no reachable backend; it may be on {}",
        noun(kind),
        shown(id),
        unanswered.message()
    ))
}

/// One backend has an id with this prefix. A backend that does not answer may have another such id.
pub fn short_id_unknown(kind: Kind, id: &str, unanswered: &Status) -> Status {
    Status::unavailable(format!(
        "{} {:?}: this short id may match several ids, because a backend does not answer; use the complete id; {}",
        noun(kind),
        shown(id),
        unanswered.message()
    ))
}

/// Every backend answered that it does not have the id.
pub fn not_found(kind: Kind, id: &str) -> Status {
    Status::not_found(format!(
        "{} {:?}: not found on any backend",
        noun(kind),
        shown(id)
    ))
}

/// Several ids have this prefix. The text is containerd's.
pub fn ambiguous(prefix: &str) -> Status {
    let prefix = shown(prefix);
    Status::unknown(format!("Multiple IDs found with provided prefix: {prefix}"))
}

/// No backend is known to have the pod of a pull, and some backends did not answer. So criswitch sends the credentials
/// in the pull to no backend.
pub fn pod_unknown(uid: &str, unanswered: &Status) -> Status {
    Status::unavailable(format!(
        "pod with uid {:?} is on no reachable backend, so criswitch does not pull its image; it may be on {}",
        shown(uid),
        unanswered.message()
    ))
}

/// Several backends list the pod of a pull, and the pod was not created through criswitch.
pub fn doubled_pod(uid: &str, backends: &[Arc<str>]) -> Status {
    Status::failed_precondition(format!(
        "pod with uid {:?}: backends {backends:?} list a pod with this uid; criswitch does not guess which one gets the \
         credentials of a pull (remove the pod on the backends where it does not belong)",
        shown(uid)
    ))
}

/// A container uses the image, so it is not removed.
pub fn image_in_use(reference: &str, backend: &str, container: &str) -> Status {
    Status::failed_precondition(format!(
        "image {:?} is not removed: container {:?} on backend {backend:?} uses it; remove the container first",
        shown(reference),
        shown(container)
    ))
}

/// A pod is about to start with the image, so it is not removed.
pub fn image_awaited(reference: &str, backend: &str) -> Status {
    Status::failed_precondition(format!(
        "image {:?} is not removed: a pod on backend {backend:?} got it less than 10 minutes ago and has no container of \
         it yet; try again later",
        shown(reference)
    ))
}

/// The pod is unknown, and the backends that may have it have different images with this name. `images` has each of
/// these backends, with the id and user of its image.
pub fn images_differ(reference: &str, images: &[(Arc<str>, String)]) -> Status {
    let images: Vec<_> = images
        .iter()
        .map(|(backend, image)| format!("backend {backend:?} has {image}"))
        .collect();
    Status::failed_precondition(format!(
        "image {0:?}: the backends have different images of this name, and it is unknown which backend the container runs \
         on: {1}; try again, use a digest, or pull the image again on every backend (crictl pull {0})",
        shown(reference),
        images.join(", ")
    ))
}

/// The request lacks an id.
pub fn empty_id(rpc: &str, kind: Kind) -> Status {
    Status::invalid_argument(format!("{rpc}: the {} id is empty", noun(kind)))
}

/// The backend does not implement the RPC.
pub fn lacking(rpc: &str, backend: &str) -> Status {
    Status::unimplemented(format!("{rpc}: backend {backend:?} does not implement it"))
}

/// A backend does not answer, and no earlier answer shows that it implements the RPC.
pub(crate) fn may_lack(rpc: &str, cause: &str) -> Status {
    Status::unimplemented(format!(
        "{rpc}: a backend does not answer, so criswitch cannot know whether the backend implements it: {cause}"
    ))
}

/// The backend has no events: each event stream ends at once, with the error `failure` or without an error.
pub(crate) fn no_events(backend: &str, socket: &Address, failure: Option<&str>) -> Status {
    let end = cut(failure.unwrap_or("no error"));
    Status::unimplemented(format!(
        "backend {backend:?} ({socket}): it sends no container events: each event stream ends immediately ({end})"
    ))
}

/// The backend's reply breaks the rules of gRPC or protobuf.
pub fn bad_reply(backend: &str, socket: &Address, cause: &str) -> Status {
    Status::internal(format!("backend {backend:?} ({socket}): {}", cut(cause)))
}

/// The backends' replies cannot be merged, because one of them is malformed.
pub fn unmergeable(rpc: &str, fault: &Malformed) -> Status {
    Status::internal(format!("{rpc}: a backend's reply is malformed: {fault}"))
}

/// A request to forget a backend is rejected or has failed.
pub(crate) fn not_forgotten(cause: &str) -> Status {
    Status::failed_precondition(cause)
}

/// A client asks for the health of a service that is neither the node nor a backend.
pub(crate) fn no_such_service(service: &str) -> Status {
    Status::not_found(format!(
        "no backend is named {service:?}; the empty service is the node"
    ))
}

/// The metrics page cannot be made.
pub(crate) fn no_metrics(cause: &prometheus::Error) -> Status {
    Status::internal(cause.to_string())
}

/// The outcome of the reload is no longer stored, because many reloads followed.
pub(crate) fn too_many_reloads() -> Status {
    Status::aborted(
        "the outcome of this reload is not known any more, because many reloads followed; see the log of criswitch",
    )
}

/// The files of the configuration, or the sockets in it, cannot be read in time.
pub(crate) fn unread_configuration() -> Status {
    Status::unavailable(format!(
        "the configuration or a socket in it cannot be read: its file system has not answered within {FILE_LIMIT:?}"
    ))
}

/// The thread that makes the state of criswitch has failed.
pub(crate) fn no_state() -> Status {
    Status::internal("the state of criswitch cannot be read; this is a bug, please report it")
}

/// No backend takes part in merged calls yet, because none has been reachable since it was added.
pub fn no_backend() -> Status {
    Status::unavailable(
        "no backend of the routing table has been reachable yet; start the runtime of a backend",
    )
}

/// The caller has reached a case that cannot occur.
pub fn impossible(rpc: &str) -> Status {
    Status::internal(format!(
        "{rpc}: criswitch cannot answer this call; this is a bug, please report it"
    ))
}

/// The cause of a failure at a backend for which the client's deadline is too near.
pub const BEFORE_DEADLINE: &str = "it did not answer before the client's deadline";

/// The client's deadline is too near to wait for further backends. Each status in `silent` names such a backend.
pub fn deadline_before_answers(silent: &[Status]) -> Status {
    let named: Vec<_> = silent.iter().map(Status::message).collect();
    match named.as_slice() {
        [] => Status::unavailable(format!("a backend: {BEFORE_DEADLINE}")),
        named => Status::unavailable(named.join("; ")),
    }
}

/// The backend was removed or forgotten during a call that needs it.
pub fn gone_backend() -> Status {
    Status::unavailable("the backend was removed or forgotten during the call; repeat the call")
}

/// A client subscribed to events and does not read them.
pub fn does_not_read(queue: usize) -> Status {
    Status::resource_exhausted(format!(
        "the client left more than {queue} events unread, or more bytes of events than fit in memory; subscribe again"
    ))
}

/// criswitch is shutting down.
pub fn shutting_down() -> Status {
    Status::new(Code::Unavailable, "criswitch is shutting down")
}

/// The call outlasted `shutdown_timeout`.
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

/// A status of criswitch, followed by the texts of other failures.
pub fn with_others(status: &Status, others: &str) -> Status {
    Status::new(status.code(), format!("{}; {others}", status.message()))
}

/// A backend's text, followed by the texts of other failures; percent-encoded like `message`.
pub fn appended(message: &[u8], others: &str) -> http::HeaderValue {
    behind(message, &format!("; {others}"))
}

/// A backend's text, followed by the backend's name. Clients compare the beginning of the text, so the name is at the
/// end.
///
/// `message` is the percent-encoded `grpc-message`.
pub fn named(message: &[u8], backend: &str, socket: &Address) -> http::HeaderValue {
    behind(message, &format!(" (backend {backend:?}, {socket})"))
}

fn behind(message: &[u8], text: &str) -> http::HeaderValue {
    let text = utf8_percent_encode(text, MESSAGE).to_string();
    http::HeaderValue::from_bytes(&[message, text.as_bytes()].concat())
        .unwrap_or_else(|_| http::HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn the_text_of_a_goaway_has_no_credentials() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let text = b"\0\0\0\0\0\0\0\x02GET https://me:hunter2@registry.example/x";
        let frame = |kind, payload: &[u8]| {
            let head = [0, 0, payload.len() as u8, kind, 0, 0, 0, 0, 0];
            [&head, payload].concat()
        };
        let sent = [frame(4, b""), frame(7, text)].concat();
        far.write_all(&sent).await.unwrap();
        let (_client, connection) = h2::client::handshake(near).await.unwrap();
        let error = connection.await.unwrap_err();
        let chain = error_text::error_chain(&error);
        let status = of_http2(error, None);
        for text in [status.message(), &chain] {
            assert!(text.contains("registry.example/x"), "{text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
