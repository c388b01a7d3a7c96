//! The end of the switch: what goes on for ever ends when it begins, every other call after `shutdown_timeout`.
//!
//! A call that ends here ends with a status, so that no client has to guess from a connection that broke.

use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

use crate::errors;

/// How near it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ShutdownStage {
    Serving,
    Draining,
    /// Calls had this long to finish.
    Over(Duration),
}

/// The end, and all who wait for it.
#[derive(Debug)]
pub(crate) struct Ending {
    stage: watch::Sender<ShutdownStage>,
}

/// What ends a call that does not end by itself: the status that it ends with.
pub(crate) type Cut = Pin<Box<dyn Future<Output = Status> + Send>>;

impl Default for Ending {
    fn default() -> Ending {
        Ending {
            stage: watch::Sender::new(ShutdownStage::Serving),
        }
    }
}

impl Ending {
    /// From now on calls only finish.
    pub(crate) fn begin(&self) {
        self.stage.send_replace(ShutdownStage::Draining);
    }

    /// Whether calls only finish.
    pub(crate) fn has_begun(&self) -> bool {
        *self.stage.borrow() != ShutdownStage::Serving
    }

    /// Cuts what has not finished within `shutdown_timeout`.
    pub(crate) fn cut_off(&self, timeout: Duration) {
        self.stage.send_replace(ShutdownStage::Over(timeout));
    }

    /// Ends at a call's deadline, if it has one, or when `shutdown_timeout` is over.
    pub(crate) fn cut(&self, rpc: &'static str, deadline: Option<(Instant, Status)>) -> Cut {
        let mut stage = self.stage.subscribe();
        let over = async move {
            let over = |stage: &ShutdownStage| matches!(stage, ShutdownStage::Over(_));
            match stage.wait_for(over).await.as_deref() {
                Ok(ShutdownStage::Over(timeout)) => errors::past_shutdown_timeout(rpc, *timeout),
                _ => errors::shutting_down(),
            }
        };
        match deadline {
            None => Box::pin(over),
            Some((at, late)) => Box::pin(async move {
                tokio::select! {
                    biased;
                    () = tokio::time::sleep_until(at) => late,
                    status = over => status,
                }
            }),
        }
    }
}
