//! `criswitch serve`: the log, the socket and the signals; the library does the rest.

use std::io::{self, IsTerminal};
use std::sync::Arc;

use criswitch::config::Config;
use criswitch::dialer::Dialer;
use criswitch::listener::Listener;
use criswitch::switch::Switch;
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::Verdict;

/// Serves until SIGTERM or SIGINT.
pub(super) fn serve(config: Config) -> anyhow::Result<Verdict> {
    log(config.log_level);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before the socket has a name: from then on a signal must drain.
        let shutdown = shutdown()?;
        let listener = Listener::bind(&config.listen, &config.allow_uids)?;
        tracing::info!(listen = %config.listen, "serving");
        let switch = Arc::new(Switch::new(config, &Dialer::Socket));
        criswitch::serve(switch, listener, shutdown).await;
        Ok(Verdict::Fine)
    })
}

/// Writes the switch's own lines, no library's: what h2 and hyper tell at TRACE is about frames and headers, so that
/// nobody could say of it what it never holds. Calls carry secrets.
fn log(level: LevelFilter) {
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr);
    let own = Targets::new().with_target("criswitch", level);
    tracing_subscriber::registry().with(lines).with(own).init();
}

fn shutdown() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
