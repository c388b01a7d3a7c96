//! A reply whose end is logged, and that ends at the latest with its call.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt;

use crate::call::ending::Cut;
use crate::call::log::CallLog;
use crate::call::reply::{self, Body, Reply};
use crate::codec::grpc::{GRPC_STATUS, trailers};

/// `reply`, with its end told to `log`, and ended with the status of `cut` if it still goes on then.
pub(crate) fn watched(reply: Reply, mut log: CallLog, cut: Cut) -> Reply {
    if reply.headers().contains_key(GRPC_STATUS) {
        log.end(reply.headers());
    }
    if reply.body().is_end_stream() {
        return reply;
    }
    let cut = Some(cut);
    reply.map(|inner| Watched { inner, log, cut }.boxed_unsync())
}

/// A body whose end is logged. It ends at the latest with its [`Cut`].
struct Watched {
    inner: Body,
    log: CallLog,
    /// None once it was.
    cut: Option<Cut>,
}

impl http_body::Body for Watched {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Watched { inner, log, cut } = &mut *self;
        let frame = match log.step(|| Pin::new(&mut *inner).poll_frame(cx)) {
            Poll::Ready(Some(Ok(frame))) => {
                // One that never waits is to end too.
                if frame.is_data()
                    && let Some(ends) = cut
                    && let Poll::Ready(status) = ends.as_mut().poll(cx)
                {
                    *cut = None;
                    *inner = reply::end(trailers(&status));
                }
                frame
            }
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending => {
                let Some(ends) = cut else {
                    return Poll::Pending;
                };
                let status = ready!(ends.as_mut().poll(cx));
                *cut = None;
                // Nothing more is wanted of the backend.
                *inner = Body::default();
                Frame::trailers(trailers(&status))
            }
        };
        if let Some(data) = frame.data_ref() {
            log.sent(data.len());
        }
        let trailers = frame.trailers_ref();
        if let Some(trailers) = trailers.filter(|trailers| trailers.contains_key(GRPC_STATUS)) {
            log.end(trailers);
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use std::sync::Arc;

    use futures_util::stream;
    use http::HeaderMap;

    use super::*;
    use crate::call::ending::Ending;
    use crate::call::reply::of_frames;
    use crate::rpc;

    #[tokio::test]
    async fn a_body_that_never_waits_ends_when_it_is_cut() {
        let data = || Some((Ok(Frame::data(Bytes::from_static(b"more"))), ()));
        let endless = of_frames(stream::unfold((), move |()| ready(data())));
        let log = CallLog::begin(&rpc::LIST_PODS, &HeaderMap::new(), &Arc::default());
        let ending = Ending::default();
        let cut = ending.cut("ListPodSandbox", None);
        ending.cut_off(Duration::ZERO);
        let mut body = watched(endless, log, cut).into_body();
        let mut frames = 0;
        let end = loop {
            match body.frame().await.unwrap().unwrap().into_trailers() {
                Ok(end) => break end,
                Err(_) => frames += 1,
            }
            assert!(frames < 1000, "it goes on");
        };
        assert_eq!(end.get(GRPC_STATUS).unwrap(), "14");
        assert!(body.frame().await.is_none());
    }
}
