//! `--watch`: repeats a command's output every 2 seconds.

use std::time::Duration;

use criswitch_config::Problems;

use criswitch_client::exit::Verdict;
use criswitch_client::output::{Encoding, failure};
use criswitch_client::terminal::{self, SafeText, is_read};

const PERIOD: Duration = Duration::from_secs(2);

/// Prints the result of `show` every 2 s, until standard output is closed.
///
/// # Errors
/// The configuration is wrong. Other errors are printed and do not end the watch, because criswitch may be restarting.
pub(super) async fn watch(
    encoding: Option<Encoding>,
    show: impl AsyncFn() -> anyhow::Result<SafeText>,
) -> anyhow::Result<Verdict> {
    loop {
        let (shown, complaint) = match (show().await, encoding) {
            (Err(error), _) if error.is::<Problems>() => return Err(error),
            (Ok(shown), Some(_)) => (shown, None),
            (Ok(shown), None) => (shown.alone(), None),
            (Err(error), Some(encoding)) => (encoding.item(failure(&error))?, None),
            (Err(error), None) => (SafeText::default().alone(), Some(error)),
        };
        if !is_read(&shown)? {
            return Ok(Verdict::Fine);
        }
        if let Some(error) = complaint {
            terminal::print_stderr(&format!("{error:#}\n"));
        }
        tokio::time::sleep(PERIOD).await;
    }
}
