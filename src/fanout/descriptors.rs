//! The descriptors of metrics, asked for before metrics are merged.

use std::sync::Arc;

use futures_util::future::join_all;

use crate::backend::Backend;
use crate::backend::state::State;
use crate::forward::own;
use crate::rpc::{self, List};
use crate::switch::Switch;

/// Asks backends for their descriptors before their metrics are merged, where they are not known.
pub(crate) async fn know_descriptors(switch: &Switch, backends: &[Arc<Backend>]) {
    if backends.len() > 1 {
        let asked = backends
            .iter()
            .map(|backend| ask_descriptors(switch, backend));
        join_all(asked).await;
    }
}

/// Asks once for each connection; for as long as a client would wait, and then in the background.
async fn ask_descriptors(switch: &Switch, backend: &Arc<Backend>) {
    let row = &rpc::LIST_METRIC_DESCRIPTORS;
    let known = backend.known();
    let State::Ready(wire) = backend.link().state else {
        return;
    };
    if known.has_described() || known.is_late_with(row) {
        return;
    }
    let asked = own::ask_stats(switch, backend, &wire, row, List::MetricDescriptors);
    let asked = async { own::unless_silent(asked.await) };
    match tokio::time::timeout(backend.stats_timeout(), asked).await {
        Ok(Ok(())) => backend.learn(|known| known.describe()),
        Ok(Err(_)) => {}
        Err(_) => backend.miss(row),
    }
}
