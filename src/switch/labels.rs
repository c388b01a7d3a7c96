//! The labels of metrics: runtimes give one metric different label keys, and a client takes a metric's keys from the
//! descriptors that it was given. A backend's samples come under these keys, or not at all.

mod fit;

use bytes::Bytes;
use tonic::Status;

use crate::backend::Backend;
use crate::errors;
use crate::rpc::List;
use crate::switch::Switch;

pub use fit::{Fitted, Labels, Misfit, fitted};

/// The largest reply of descriptors that is remembered, in bytes. Without one the first backend's descriptors count.
const MOST_GIVEN: usize = 1 << 20;

/// Remembers the descriptors that a client gets.
pub(crate) fn give_descriptors(switch: &Switch, descriptors: &Bytes) {
    let given = Some(descriptors.clone()).filter(is_kept);
    *switch.given.lock() = given;
}

/// A backend's metrics under the label keys that clients were given, if these are different.
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

/// What a backend last reported of its metrics.
pub(crate) fn descriptors(backend: &Backend) -> Option<Bytes> {
    let lists = backend.known().lists;
    Some(lists.get(List::MetricDescriptors)?.message.clone())
}

/// Logs it once for each backend and metric.
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
