//! Sends calls to a backend. A call that the backend has certainly not processed is tried again, once. Dropping the
//! future of a call cancels the call.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::LazyLock;

use bytes::Bytes;
use criswitch_cri::codec::frames;
use criswitch_cri::codec::grpc::GRPC_ENCODING;
use criswitch_cri::rpc::{self, List, ROWS, Row};
use http::{HeaderMap, HeaderValue, Uri, header};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::Backend;
use crate::backend::answer::{Answer, Data};
use crate::backend::repeat::Repeat;
use crate::backend::stream::Messages;
use crate::backend::wire::{Progress, Wire};
use crate::errors;
use crate::limits::budget::Budget;
use crate::limits::incoming::IncomingBody;
use crate::limits::places::User;
use crate::telemetry::counters::code_name;

/// The URI of each RPC, by the name of the RPC. No two RPCs have the same name.
static URIS: LazyLock<HashMap<&str, Uri>> = LazyLock::new(|| {
    ROWS.iter()
        .filter_map(|row| {
            let uri = format!("http://localhost{}", row.path());
            Some((row.name, uri.parse().ok()?))
        })
        .collect()
});
/// A list of up to about this many bytes arrives in one DATA frame, and is never copied.
const ONE_FRAME: usize = 16 << 10;

/// A guard for a call that may change a backend's image store; `None` for any other call. Dropping the guard marks all
/// image lists that were requested earlier as outdated.
#[derive(Debug)]
struct Changing<'a>(Option<&'a Backend>);

impl Changing<'_> {
    /// Records that the backend rejected the call, so its image store is unchanged. After any other outcome, the image
    /// store may have changed.
    fn rejected(mut self) {
        self.0 = None;
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(backend) = self.0 {
            backend.outdate(List::Images);
            // Wake the session, even if no list was cached: an image list in flight is outdated too and must be
            // requested again.
            backend.saving.note_change();
        }
    }
}

impl Backend {
    /// Sends one call of a client of `user` and returns the response once its headers have come. Dropping the future
    /// cancels the call.
    ///
    /// # Errors
    /// `Unavailable` if the backend cannot be reached, dies before it answers, or becomes unresponsive
    /// ([`Patience`](criswitch_cri::rpc::Patience)); the code of `errors::of_http2` if it resets the call; `Internal`
    /// if it does not speak gRPC.
    pub async fn call(
        &self,
        user: User,
        row: &Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<IncomingBody>, Status> {
        let called = pin!(async {
            let wire = self.wire().await?.for_user(user);
            self.call_over(wire, row, headers, body).await
        });
        let response = self.patiently(row, called).await?;
        self.wakeups.answered.notify_waiters();
        Ok(response)
    }

    /// Sends a call over `wire`. A call that the backend has certainly not processed is tried again, once: over `wire`
    /// or, if `wire` takes no further calls, over the next connection. A request for events is never sent again: the
    /// new stream would lack the events since the first request, and only the session knows how to make up for them.
    async fn call_over(
        &self,
        mut wire: Wire,
        row: &Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<http::Response<IncomingBody>, Status> {
        let mut earlier = None;
        let response = loop {
            let failed = match wire.try_send(request(row, headers, body.clone())).await {
                Ok(response) => break response,
                Err(failed) => failed,
            };
            let broken = self.broken_off(&failed.status);
            if failed.progress == Progress::Sent || row.name == rpc::EVENTS.name {
                return Err(broken);
            }
            if let Some(earlier) = earlier
                && !wire.is_paused()
            {
                let were_sent = [earlier, failed.progress] == [Progress::Rejected; 2];
                return Err(if were_sent {
                    errors::sent_twice(&broken)
                } else {
                    broken
                });
            }
            wire = self.wire_after(wire, broken).await?;
            earlier = earlier.max(Some(failed.progress));
        };
        if response.status() != http::StatusCode::OK {
            let cause = format!(
                "its HTTP status is {}, so it does not speak gRPC",
                response.status()
            );
            return Err(errors::bad_reply(&self.name(), &self.socket, &cause));
        }
        Ok(response)
    }

    /// Sends one call of a client of `user` and reads the whole reply.
    ///
    /// # Errors
    /// The errors of [`Backend::call`], and `ResourceExhausted` if the reply is larger than `max_message` or a streamed
    /// list may be, or does not fit in memory.
    pub async fn ask(
        &self,
        user: User,
        row: &'static Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Answer, Status> {
        let asked = pin!(async {
            self.ask_over(self.wire().await?, user, row, headers, body)
                .await
        });
        let answer = self.patiently(row, asked).await?;
        self.wakeups.answered.notify_waiters();
        Ok(answer)
    }

    /// Like [`Backend::ask`], but over the open connection `wire`.
    ///
    /// # Errors
    /// The errors of [`Backend::ask`].
    pub async fn ask_over(
        &self,
        wire: Wire,
        user: User,
        row: &'static Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Answer, Status> {
        let (wire, memory) = (wire.for_user(user), self.memory.of(user, row));
        self.read_over(wire, row, headers, body, &memory).await
    }

    /// Sends a call that criswitch makes itself. The call goes over `wire` if `wire` is given, even before the backend
    /// is ready. The reply uses no memory for replies to clients.
    ///
    /// # Errors
    /// The errors of [`Backend::ask`].
    pub async fn ask_own(
        &self,
        wire: Option<&Wire>,
        row: &'static Row,
        body: Bytes,
    ) -> Result<Answer, Status> {
        let headers = own_headers();
        let memory = self.own.of(User::Own, row);
        if let Some(wire) = wire.cloned() {
            return self.read_over(wire, row, &headers, body, &memory).await;
        }
        let asked = pin!(async {
            self.read_over(self.wire().await?, row, &headers, body, &memory)
                .await
        });
        let answer = self.patiently(row, asked).await?;
        self.wakeups.answered.notify_waiters();
        Ok(answer)
    }

    /// Sends a call over `wire` and reads the whole reply, also of a stream. A backend that lacks a stream of items
    /// gets the unary call for them.
    async fn read_over(
        &self,
        wire: Wire,
        row: &'static Row,
        headers: &HeaderMap,
        body: Bytes,
        memory: &Budget,
    ) -> Result<Answer, Status> {
        let Some(list) = row.unary() else {
            return self.read_unary(wire, row, headers, body, memory).await;
        };
        let response = self
            .call_over(wire.clone(), row, headers, body.clone())
            .await?;
        let answer = Messages::of(row, response, memory)
            .whole(self, memory)
            .await?;
        match answer.code() {
            Code::Unimplemented => self.read_unary(wire, list, headers, body, memory).await,
            _ => Ok(answer),
        }
    }

    async fn read_unary(
        &self,
        wire: Wire,
        row: &Row,
        headers: &HeaderMap,
        body: Bytes,
        memory: &Budget,
    ) -> Result<Answer, Status> {
        let changing = Changing(row.changes_images().then_some(self));
        let (head, body) = self.call_over(wire, row, headers, body).await?.into_parts();
        let limit = self.max_message.saturating_add(frames::FRAME_HEADER);
        let mut body = Repeat::of(body, self.long_list(row));
        let read = memory
            .read(&head.headers, &mut body, limit)
            .await
            .map_err(|unread| self.unread(&unread))?;
        self.record
            .learn(|known| known.answered = Some(Instant::now()));
        let answer = Answer {
            head,
            body: body.whole().map_or(Data::Raw(read.body), Data::Message),
            trailers: read.trailers,
        };
        let Some(code) = answer.status() else {
            return Err(self.unavailable("its reply ended without a status"));
        };
        if code == Code::Ok {
            self.record.note_rpc(row, None);
        } else {
            self.record.note_rpc(row, answer.lacks());
            changing.rejected();
        }
        Ok(answer)
    }

    /// The cached list of this RPC, if it is long; otherwise empty.
    fn long_list(&self, row: &Row) -> Bytes {
        let list = row.list();
        let cached =
            list.and_then(|list| self.record.learn(|known| known.lists.get(list).cloned()));
        let message = cached.map(|cached| Bytes::from(cached.message));
        message
            .filter(|message| message.len() > ONE_FRAME)
            .unwrap_or_default()
    }

    /// The message of a successful reply.
    ///
    /// # Errors
    /// `Unavailable` with the reply's text if the reply failed; `Internal` if the body is not exactly one uncompressed
    /// gRPC message.
    pub fn message(&self, answer: &Answer) -> Result<Bytes, Status> {
        if answer.code() != Code::Ok {
            return Err(self.unavailable(&format!(
                "it returned {}: {}",
                code_name(answer.code()),
                answer.plain_text()
            )));
        }
        let message = match &answer.body {
            Data::Raw(body) => frames::unframe(body),
            Data::Message(message) => Ok(message.clone()),
        };
        message.map_err(|fault| self.bad_reply(&format!("its reply is {fault}")))
    }
}

/// The HTTP/2 request of a call.
fn request(row: &Row, headers: &HeaderMap, body: Bytes) -> http::Request<Bytes> {
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = URIS.get(row.name).cloned().unwrap_or_default();
    request.headers_mut().clone_from(headers);
    // criswitch may have changed the length of the client's body, has checked that the body is not compressed, and sets
    // the host itself.
    for name in [header::CONTENT_LENGTH, GRPC_ENCODING, header::HOST] {
        request.headers_mut().remove(name);
    }
    request
}

/// The headers of criswitch's own calls.
pub fn own_headers() -> HeaderMap {
    HeaderMap::from_iter([
        (
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/grpc"),
        ),
        (header::TE, HeaderValue::from_static("trailers")),
        (
            header::USER_AGENT,
            HeaderValue::from_static(concat!("criswitch/", env!("CARGO_PKG_VERSION"))),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rpc_has_a_uri() {
        assert_eq!(URIS.len(), ROWS.len());
        let uri = URIS["ListImages"].to_string();
        assert_eq!(uri, "http://localhost/runtime.v1.ImageService/ListImages");
    }
}
