//! Ends calls at their deadline and at the shutdown. Endless streams end when the shutdown begins, every other call
//! after `shutdown_timeout`.
//!
//! A call that is cut off ends with a status, because a broken connection would not show the client the cause.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::SetOnce;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::errors;

/// The stages of the shutdown, which calls in flight wait for.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Cancelled when the shutdown begins. Calls in flight may still finish.
    pub(crate) begun: CancellationToken,
    /// Set when `shutdown_timeout` is over, to the value of `shutdown_timeout`.
    pub(crate) over: Arc<SetOnce<Duration>>,
}

/// Resolves when a call must be cut off, with the status for the client.
pub(crate) type Cut = Pin<Box<dyn Future<Output = Status> + Send>>;

impl Ending {
    /// Returns a future that resolves at the call's deadline, if it has one, or when `shutdown_timeout` is over.
    /// `deadline` has the time of the deadline, and the timeout for the error text.
    pub(crate) fn cut(&self, rpc: &'static str, deadline: Option<(Instant, Duration)>) -> Cut {
        let over = Arc::clone(&self.over);
        Box::pin(async move {
            let late = async {
                match deadline {
                    Some((at, timeout)) => {
                        tokio::time::sleep_until(at).await;
                        errors::deadline(rpc, timeout)
                    }
                    None => pending().await,
                }
            };
            tokio::select! {
                biased;
                late = late => late,
                timeout = over.wait() => errors::past_shutdown_timeout(rpc, *timeout),
            }
        })
    }
}
