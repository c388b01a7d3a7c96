//! Splits a backend's stream into messages.

use bytes::{Bytes, BytesMut};
use criswitch_cri::codec::frames::{self, BadFrame};
use criswitch_cri::codec::grpc;
use criswitch_cri::rpc::Row;
use http::HeaderMap;
use http_body_util::BodyExt;
use tonic::{Code, Status};

use crate::backend::answer::{Answer, Data};
use crate::backend::failed::Failed;
use crate::backend::{Backend, own_headers};
use crate::errors;
use crate::limits::budget::{self, Budget, Reservation};
use crate::limits::incoming::IncomingBody;
use crate::limits::places::User;
use crate::ownership::MOST;

/// Splits a backend's stream into messages. An HTTP/2 data frame may end anywhere in a message.
pub(crate) struct Messages {
    row: &'static Row,
    head: http::response::Parts,
    body: IncomingBody,
    buffer: BytesMut,
    /// The memory reserved for `buffer`.
    held: Reservation,
    trailers: Option<HeaderMap>,
}

impl Messages {
    /// Sends a call of criswitch itself and returns the stream of reply messages.
    pub(crate) async fn open_own(backend: &Backend, row: &'static Row) -> Result<Messages, Status> {
        let response = backend
            .call(User::Own, row, &own_headers(), frames::frame(&[]))
            .await?;
        Ok(Messages::of(row, response, &backend.own.of(User::Own, row)))
    }

    /// The messages of `response`. The bytes of an incomplete message count towards `memory`.
    pub(super) fn of(
        row: &'static Row,
        response: http::Response<IncomingBody>,
        memory: &Budget,
    ) -> Messages {
        let (head, body) = response.into_parts();
        Messages {
            row,
            head,
            body,
            buffer: BytesMut::new(),
            held: memory.held(),
            trailers: None,
        }
    }

    /// Reads the whole stream. The answer has one message with the bytes of all messages, which count towards `memory`.
    ///
    /// # Errors
    /// If the stream breaks off, has more bytes than a streamed list may have ([`budget::most_streamed`]), or has more
    /// messages than any list has items: an endless stream may have only empty messages.
    pub(super) async fn whole(
        mut self,
        backend: &Backend,
        memory: &Budget,
    ) -> Result<Answer, Status> {
        let limit = budget::most_streamed(backend.max_message);
        let (mut list, mut held, mut count) = (Vec::new(), memory.held(), 0);
        loop {
            let message = match self.next(backend).await {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(Failed::Status(status)) => return Err(status),
                Err(Failed::Answer(answer)) => return Ok(*answer),
            };
            count += 1;
            if count > MOST {
                return Err(backend.bad_reply(&format!("its stream has more than {MOST} messages")));
            }
            if list.len() + message.len() > limit {
                let (name, socket) = (backend.name(), &backend.socket);
                return Err(errors::backend_list_too_large(&name, socket, limit));
            }
            held.grow(message.len())
                .map_err(|unread| backend.unread(&unread))?;
            list.extend_from_slice(&message);
        }
        // The list may be cached for long, so its spare capacity is released.
        list.shrink_to_fit();
        Ok(Answer {
            head: self.head,
            body: Data::Message(held.with(list.into())),
            trailers: Some(grpc::ok_trailers()),
        })
    }

    pub(crate) async fn next(&mut self, backend: &Backend) -> Result<Option<Bytes>, Failed> {
        loop {
            if let Some(message) = self.take(backend)? {
                return Ok(Some(message));
            }
            let frame = self.body.frame().await.transpose();
            match frame.map_err(|status| backend.broken_off(&status))? {
                None => return self.end(backend),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.add(backend, &data)?,
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }

    fn add(&mut self, backend: &Backend, data: &[u8]) -> Result<(), Status> {
        self.held
            .grow(data.len())
            .map_err(|unread| backend.unread(&unread))?;
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    /// Removes the next complete message from the buffer. `None` if more bytes must arrive first.
    fn take(&mut self, backend: &Backend) -> Result<Option<Bytes>, Status> {
        let message =
            frames::cut(&mut self.buffer, backend.max_message).map_err(|fault| match fault {
                BadFrame::TooLong(limit) => {
                    errors::backend_reply_too_large(&backend.name(), &backend.socket, limit)
                }
                _ => backend.bad_reply(&format!("it sent {fault}")),
            })?;
        self.held.keep(self.buffer.len());
        Ok(message)
    }

    fn end(&mut self, backend: &Backend) -> Result<Option<Bytes>, Failed> {
        if !self.buffer.is_empty() {
            return Err(backend
                .bad_reply("its stream ended within a message")
                .into());
        }
        let answer = Answer {
            head: self.head.clone(),
            body: Data::Raw(Bytes::new()),
            trailers: self.trailers.take(),
        };
        backend.record.note_rpc(self.row, answer.lacks());
        match answer.status() {
            None => Err(backend
                .unavailable("its stream ended without a status")
                .into()),
            Some(Code::Ok) => Ok(None),
            Some(_) => Err(Failed::Answer(Box::new(answer))),
        }
    }
}
