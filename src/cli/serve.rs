//! `criswitch serve`: the log, the socket and the signals; the library does the rest.

use std::io::{self, IsTerminal};

use criswitch::config::Config;
use criswitch::listener::Listener;
use tokio::signal::unix::{SignalKind, signal};

use super::Verdict;

/// Serves until SIGTERM or SIGINT.
pub(super) fn serve(config: Config) -> anyhow::Result<Verdict> {
    tracing_subscriber::fmt()
        .with_max_level(config.log_level)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        // Before the socket has a name: from then on a signal must drain.
        let shutdown = shutdown()?;
        let listener = Listener::bind(&config.listen)?;
        tracing::info!(listen = %config.listen, "serving");
        criswitch::serve(config, listener, shutdown).await;
        Ok(Verdict::Fine)
    })
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
