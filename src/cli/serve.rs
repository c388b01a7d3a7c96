//! `criswitch serve`: the log, the socket and the signals; the library does the rest.

use std::io;
use std::sync::Arc;

use criswitch::config::Config;
use criswitch::dialer::Dialer;
use criswitch::listener::{Listener, Passed};
use criswitch::switch::Switch;
use tokio::signal::unix::{SignalKind, signal};

use super::notify::Notify;
use super::{Verdict, log};

/// Serves until SIGTERM or SIGINT.
pub(super) fn serve(config: Config) -> anyhow::Result<Verdict> {
    log::start(&config.log);
    // While there is one thread only.
    let passed = Passed::take()?;
    let notify = Notify::start()?;
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
        let switch = Arc::new(Switch::new(config, &Dialer::Socket));
        let shutdown = async {
            shutdown.await;
            notify.stopping(switch.live().config.drain);
        };
        tokio::select! {
            () = criswitch::serve(Arc::clone(&switch), listener, shutdown) => Ok(Verdict::Fine),
            never = notify.keep(&switch) => match never {},
        }
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
