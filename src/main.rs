//! The criswitch binary.

use std::process::ExitCode;

use criswitch::config::{Config, DEFAULT_PATH};
use criswitch::listener::Listener;
use tokio::signal::unix::{SignalKind, signal};

fn main() -> anyhow::Result<ExitCode> {
    let path = std::env::args()
        .skip_while(|argument| argument != "--config")
        .nth(1);
    let path = path.unwrap_or_else(|| DEFAULT_PATH.to_owned());
    let config = Config::load(path.as_ref())?;
    tracing_subscriber::fmt()
        .with_max_level(config.log_level)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        let listener = Listener::bind(&config.listen)?;
        let shutdown = async {
            tokio::select! { _ = terminate.recv() => {} _ = interrupt.recv() => {} }
        };
        criswitch::serve(config, listener, shutdown).await;
        Ok(ExitCode::SUCCESS)
    })
}
