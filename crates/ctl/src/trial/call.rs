//! A call of `criswitch try` over the socket of the daemon: its limit, and its error in the runtime's own words.

use std::error::Error;
use std::time::Duration;

use tonic::{Code, Response, Status};

/// The time limit on a call, as long as the kubelet's.
pub(super) const CALL_LIMIT: Duration = Duration::from_secs(120);
/// The time limit on a pull of an image.
pub(super) const PULL_LIMIT: Duration = Duration::from_secs(600);

/// Why a call or another step failed.
#[derive(Debug)]
pub(super) struct TryFailure {
    /// The status of the reply; `None` if there was no reply.
    pub(super) code: Option<Code>,
    pub(super) text: String,
    /// Whether the user must name an image, because the backend has none with a shell.
    pub(super) needs_image: bool,
}

impl TryFailure {
    /// A failure that is not a reply.
    pub(super) fn new(text: String) -> TryFailure {
        TryFailure {
            code: None,
            text,
            needs_image: false,
        }
    }

    /// The failure that a backend has no image with a shell.
    pub(super) fn needs_image(text: &str) -> TryFailure {
        TryFailure {
            needs_image: true,
            ..TryFailure::new(format!("{text}: --image IMAGE"))
        }
    }

    fn of(rpc: &str, status: &Status) -> TryFailure {
        // A status of the server has no source.
        if let Some(lost) = status.source() {
            return TryFailure::new(format!(
                "criswitch ended the connection during {rpc}: {lost}"
            ));
        }
        let (code, message) = (status.code(), status.message());
        TryFailure {
            code: Some(code),
            ..TryFailure::new(format!("{rpc} returned {code:?}: {message}"))
        }
    }
}

/// Waits for a reply, at most `limit`.
pub(super) async fn reply<T>(
    limit: Duration,
    rpc: &str,
    reply: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, TryFailure> {
    match tokio::time::timeout(limit, reply).await {
        Err(_) => Err(TryFailure::new(format!(
            "no answer to {rpc} within {limit:?}"
        ))),
        Ok(reply) => reply
            .map(Response::into_inner)
            .map_err(|status| TryFailure::of(rpc, &status)),
    }
}
