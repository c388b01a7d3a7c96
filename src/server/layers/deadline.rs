//! The body of a reply that ends at the deadline of its call, or when `shutdown_timeout` is over.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use criswitch_cri::codec::grpc::trailers;
use http_body::{Body as _, Frame, SizeHint};
use http_body_util::BodyExt;

use crate::call::ending::Cut;
use crate::call::reply::{self, Body, FramePoll, Reply};

/// Makes `reply` end with the status of `cut` if `cut` completes before the reply does.
pub(super) fn cut_short(reply: Reply, cut: Cut) -> Reply {
    if reply.body().is_end_stream() {
        return reply;
    }
    let cut = Some(cut);
    reply.map(|inner| CutBody { inner, cut }.boxed_unsync())
}

/// The body of a reply. If its [`Cut`] completes first, the body ends with the status of the cut.
struct CutBody {
    inner: Body,
    /// `None` once the cut has completed and ended the body.
    cut: Option<Cut>,
}

impl http_body::Body for CutBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> FramePoll {
        let CutBody { inner, cut } = &mut *self;
        match Pin::new(&mut *inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                // Checks the cut after each data frame too, because a body that always has data never returns
                // `Pending`.
                if frame.is_data()
                    && let Some(ends) = cut
                    && let Poll::Ready(status) = ends.as_mut().poll(cx)
                {
                    *cut = None;
                    *inner = reply::end(trailers(&status));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let Some(ends) = cut else {
                    return Poll::Pending;
                };
                let status = ready!(ends.as_mut().poll(cx));
                *cut = None;
                // Dropping the inner body cancels the call at the backend.
                *inner = Body::default();
                Poll::Ready(Some(Ok(Frame::trailers(trailers(&status)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::time::Duration;

    use criswitch_cri::codec::grpc::GRPC_STATUS;
    use futures_util::stream;

    use super::*;
    use crate::call::ending::Ending;
    use crate::call::reply::of_frames;

    #[tokio::test]
    async fn a_reply_whose_frames_are_always_ready_ends_at_the_shutdown_timeout() {
        let data = || Some((Ok(Frame::data(Bytes::from_static(b"more"))), ()));
        let endless = of_frames(stream::unfold((), move |()| ready(data())));
        let ending = Ending::default();
        let cut = ending.cut("ListPodSandbox", None);
        ending.over.set(Duration::ZERO).unwrap();
        let mut body = cut_short(endless, cut).into_body();
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
