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
use crate::http2::IncomingBody;
use crate::limits::budget::{Budget, Reservation};
use crate::limits::places::User;

/// Splits a backend's stream into messages. An HTTP/2 data frame may end anywhere in a message.
pub(crate) struct Messages {
    /// The RPC that was called; `None` for a stream that was not requested.
    row: Option<&'static Row>,
    head: http::response::Parts,
    body: Option<IncomingBody>,
    buffer: BytesMut,
    /// The memory reserved for `buffer`.
    held: Reservation,
    trailers: Option<HeaderMap>,
}

impl Messages {
    /// Sends a call of a client of `user` and returns the stream of reply messages.
    pub(crate) async fn open(
        backend: &Backend,
        user: User,
        row: &'static Row,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Result<Messages, Status> {
        let response = backend.call(row, headers, body).await?;
        Ok(Messages::of(row, response, backend.memory.of(user, row)))
    }

    /// Sends a call of criswitch itself and returns the stream of reply messages.
    pub(crate) async fn open_own(backend: &Backend, row: &'static Row) -> Result<Messages, Status> {
        let response = backend
            .call(row, &own_headers(), frames::frame(&[]))
            .await?;
        Ok(Messages::of(row, response, backend.own.of(User::Own, row)))
    }

    /// The messages of `response`. The bytes of an incomplete message count towards `memory`.
    fn of(row: &'static Row, response: http::Response<IncomingBody>, memory: &Budget) -> Messages {
        let (head, body) = response.into_parts();
        Messages {
            row: Some(row),
            head,
            body: Some(body),
            buffer: BytesMut::new(),
            held: memory.held(),
            trailers: None,
        }
    }

    /// A stream that has ended successfully.
    pub(crate) fn ended(backend: &Backend) -> Messages {
        let (head, ()) = http::Response::new(()).into_parts();
        let trailers = Some(grpc::ok_trailers());
        Messages {
            row: None,
            head,
            body: None,
            buffer: BytesMut::new(),
            held: backend.memory.all().held(),
            trailers,
        }
    }

    pub(crate) async fn next(&mut self, backend: &Backend) -> Result<Option<Bytes>, Failed> {
        loop {
            if let Some(message) = self.take(backend)? {
                return Ok(Some(message));
            }
            let frame = match &mut self.body {
                Some(body) => body.frame().await,
                None => None,
            };
            match frame
                .transpose()
                .map_err(|status| backend.broken_off(&status))?
            {
                None => return self.end(backend),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.add(backend, &data)?,
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
            }
        }
    }

    fn add(&mut self, backend: &Backend, data: &[u8]) -> Result<(), Status> {
        let held = self.held.grow(data.len());
        held.map_err(|unread| backend.unread(&unread))?;
        self.buffer.extend_from_slice(data);
        Ok(())
    }

    /// Removes the next complete message from the buffer. `None` if more bytes must arrive first.
    fn take(&mut self, backend: &Backend) -> Result<Option<Bytes>, Status> {
        let message = frames::cut(&mut self.buffer, backend.max_message);
        let message = message.map_err(|fault| match fault {
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
        if let Some(row) = self.row {
            backend.record.note_rpc(row, answer.lacks());
        }
        match answer.status() {
            None => Err(backend
                .unavailable("its stream ended without a status")
                .into()),
            Some(Code::Ok) => Ok(None),
            Some(_) => Err(Failed::Answer(Box::new(answer))),
        }
    }
}
