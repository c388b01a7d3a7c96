//! Labels of metrics. Runtimes use different label keys for one metric, and a client reads samples by the descriptors
//! that it received. A backend's samples are rewritten to these keys, or omitted.

mod fit;

use bytes::Bytes;
use tonic::Status;

use crate::backend::Backend;
use crate::errors;
use crate::rpc::List;
use crate::switch::Switch;

pub use fit::{Fitted, Labels, Misfit, fitted};

/// The largest reply of descriptors that criswitch remembers, in bytes. After a larger reply the first backend's count.
const MOST_GIVEN: usize = 1 << 20;

/// Remembers the descriptors that a client receives.
pub(crate) fn give_descriptors(switch: &Switch, descriptors: &Bytes) {
    let given = Some(descriptors.clone()).filter(is_kept);
    *switch.given.lock() = given;
}

/// Rewrites a backend's metrics to the label keys that clients received; `None` if nothing changes.
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

/// Whether a reply of descriptors is remembered.
pub(crate) fn is_kept(descriptors: &Bytes) -> bool {
    descriptors.len() <= MOST_GIVEN
}

/// The metric descriptors that a backend last reported.
pub(crate) fn descriptors(backend: &Backend) -> Option<Bytes> {
    let lists = backend.known().lists;
    Some(lists.get(List::MetricDescriptors)?.message.clone())
}

/// Logs an omission once for each backend and metric.
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
