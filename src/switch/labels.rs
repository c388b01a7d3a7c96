//! Labels of metrics. Runtimes use different label keys for the same metric, and a client reads samples by the metric
//! descriptors that it received. So criswitch rewrites each backend's samples to the keys in these descriptors, or
//! omits them.

mod fit;

use bytes::Bytes;
use tonic::Status;

use crate::backend::Backend;
use crate::errors;
use crate::rpc::List;
use crate::switch::Switch;

pub use fit::{Fitted, Labels, Misfit, fitted};

/// The largest reply with metric descriptors that criswitch remembers, in bytes. If a client received a larger reply,
/// samples are rewritten to the keys of the first backend that describes their metric.
const MOST_GIVEN: usize = 1 << 20;

/// Remembers the metric descriptors that a client receives, unless they are too large.
pub(crate) fn give_descriptors(switch: &Switch, descriptors: &Bytes) {
    let given = Some(descriptors.clone()).filter(is_kept);
    *switch.given.lock() = given;
}

/// Rewrites a backend's metrics to the label keys that clients received. Returns `None` if nothing changes.
///
/// # Errors
/// `Internal` if the metrics are malformed.
pub(crate) fn under_given_labels(
    switch: &Switch,
    backend: &Backend,
    metrics: &[u8],
) -> Result<Option<Bytes>, Status> {
    let live = switch.live();
    if live.is_alone() {
        return Ok(None);
    }
    let given = switch.given.lock().clone();
    let others = live.joined();
    let others = others.iter().filter_map(|other| descriptors(other));
    let given: Vec<_> = given.into_iter().chain(others).collect();
    let own = descriptors(backend);
    let own = own.as_slice();
    let own = own.first().map(|_| Labels::of(own));
    let fitted = fitted(metrics, own.as_ref(), &Labels::of(&given));
    let Fitted { metrics, omitted } = fitted.map_err(|fault| backend.malformed(&fault))?;
    for (metric, misfit) in omitted {
        log_omitted(backend, &metric, &misfit);
    }
    Ok(metrics)
}

/// Whether a reply with metric descriptors is small enough to be remembered.
pub(crate) fn is_kept(descriptors: &Bytes) -> bool {
    descriptors.len() <= MOST_GIVEN
}

/// The metric descriptors that a backend last reported.
pub(crate) fn descriptors(backend: &Backend) -> Option<Bytes> {
    let lists = backend.known().lists;
    Some(lists.get(List::MetricDescriptors)?.message.clone())
}

/// Logs that samples of a metric are omitted, once for each backend and metric.
fn log_omitted(backend: &Backend, metric: &str, misfit: &Misfit) {
    let metric = errors::cut(metric);
    if backend.is_first_unfit(&metric) {
        let cause = errors::cut(misfit.to_string());
        tracing::warn!(
            backend = %backend.name(), metric = &*metric, cause = &*cause,
            "samples of a metric are omitted: their labels do not match the metric descriptor that clients have received"
        );
    }
}
