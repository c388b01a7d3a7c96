//! A call of `criswitch try` over the socket of the daemon: its limit, and its error in the runtime's own words.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use tonic::{Code, Response, Status};

/// The limit on a call: that of the kubelet.
pub(super) const LIMIT: Duration = Duration::from_secs(120);
/// The limit on a pull of an image.
pub(super) const PULL_LIMIT: Duration = Duration::from_secs(600);

/// Why a call or another step failed.
#[derive(Debug)]
pub(super) struct Failure {
    /// The status of the reply; `None` if there was no reply.
    pub(super) code: Option<Code>,
    pub(super) text: String,
    /// Whether the user must name an image, because the backend has none with a shell.
    pub(super) needs_image: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Failure {
    /// A failure that is no reply.
    pub(super) fn new(text: String) -> Failure {
        Failure {
            code: None,
            text,
            needs_image: false,
        }
    }

    /// The failure that a backend has no image with a shell.
    pub(super) fn needs_image(text: &str) -> Failure {
        Failure {
            needs_image: true,
            ..Failure::new(format!("{text}: --image IMAGE"))
        }
    }

    fn of(rpc: &str, status: &Status) -> Failure {
        // A status of the server has no source.
        if let Some(lost) = status.source() {
            let text = format!("criswitch ended the connection during {rpc}: {lost}");
            return Failure::new(text);
        }
        Failure {
            code: Some(status.code()),
            ..Failure::new(format!(
                "{rpc} returned {:?}: {}",
                status.code(),
                status.message()
            ))
        }
    }
}

/// Waits for a reply, at most `limit`.
pub(super) async fn reply<T>(
    limit: Duration,
    rpc: &str,
    reply: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(limit, reply).await {
        Err(_) => Err(Failure::new(format!("no answer to {rpc} within {limit:?}"))),
        Ok(Err(status)) => Err(Failure::of(rpc, &status)),
        Ok(Ok(reply)) => Ok(reply.into_inner()),
    }
}
