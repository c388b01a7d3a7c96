//! criswitch: one CRI socket in front of several container runtimes.

use std::sync::Arc;

use tokio::task::JoinSet;

pub mod address;
pub mod admission;
pub mod answer;
pub mod backend;
mod call;
pub mod config;
pub mod cri;
pub mod dialer;
mod events;
mod fanout;
pub mod filter;
mod images;
pub mod known;
mod learn;
pub mod link;
pub mod listener;
mod listing;
pub mod lists;
pub mod memory;
pub mod merge;
mod node;
pub mod owners;
mod question;
pub mod reply;
pub mod route;
pub mod rpc;
mod session;
mod stand_in;
pub mod status;
mod streams;
pub mod switch;
pub mod telemetry;
pub mod wire;

/// Serves `config`'s table on `listener` until `shutdown`, and for at most `drain` longer what is in flight then.
pub async fn serve(
    config: config::Config,
    listener: listener::Listener,
    shutdown: impl Future<Output = ()>,
) {
    let drain = config.drain;
    let switch = Arc::new(switch::Switch::new(config, &dialer::Dialer::Socket));
    // Ends with this function, and the connections with it.
    let _connected = keep_connected(&switch);
    listener.serve(switch, shutdown, drain).await;
}

/// Keeps `switch` connected to its backends as long as the tasks live.
pub fn keep_connected(switch: &Arc<switch::Switch>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    for backend in &switch.backends {
        tasks.spawn(session::keep(Arc::clone(switch), Arc::clone(backend)));
        tasks.spawn(events::follow(Arc::clone(switch), Arc::clone(backend)));
    }
    tasks
}
