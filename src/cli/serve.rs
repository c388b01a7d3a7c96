//! `criswitch serve`: the log, the socket and the signals; the library does the rest.

use std::io::{self, IsTerminal};

use criswitch::config::Config;
use criswitch::listener::{Listener, Passed};
use tokio::signal::unix::{SignalKind, signal};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use super::Verdict;

/// Serves until SIGTERM or SIGINT.
pub(super) fn serve(config: Config) -> anyhow::Result<Verdict> {
    log(config.log_level);
    // While there is one thread only.
    let passed = Passed::take()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before the socket has a name: from then on a signal must drain.
        let shutdown = shutdown()?;
        let (listen, uids) = (&config.listen, &config.allow_uids);
        let (listener, passed) = match passed {
            Some(passed) => (Listener::on(passed, listen, uids)?, true),
            None => (Listener::bind(listen, uids)?, false),
        };
        tracing::info!(%listen, passed, "serving");
        criswitch::serve(config, listener, shutdown).await;
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
