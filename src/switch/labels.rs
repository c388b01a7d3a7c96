//! Labels of metrics. Runtimes use different label keys for the same metric, and a client reads samples by the metric
//! descriptors that it received. So the merged descriptors have the keys of all backends, and criswitch rewrites each
//! backend's samples to the keys that clients received. A sample gets an empty value for a key that its backend lacks.
//! A key that is newer than the descriptors that clients received is omitted.

mod fit;
mod union;

use std::slice;

use bytes::Bytes;
use parking_lot::Mutex;
use tonic::Status;

use crate::backend::Backend;
use crate::errors;
use crate::rpc::List;
use crate::topology::Live;

use fit::fits;
pub use fit::{Fitted, Labels, Misfit, fitted};
pub use union::union;

/// The largest reply with metric descriptors that criswitch remembers, in bytes. If a client received a larger reply,
/// samples are rewritten to the keys of the descriptors that it would receive now.
const MOST_GIVEN: usize = 1 << 20;

/// Remembers the metric descriptors that a client receives, unless they are too large. They are saved in the
/// background, because clients keep them over a restart of criswitch.
pub(crate) fn give_descriptors(given: &Mutex<Option<Bytes>>, live: &Live, descriptors: &Bytes) {
    let now = Some(descriptors.clone()).filter(is_kept);
    let before = std::mem::replace(&mut *given.lock(), now.clone());
    if before != now {
        live.backends.iter().for_each(|it| it.saving.note_change());
    }
}

/// Whether the metrics of the only backend must be rewritten: clients received the label keys of a backend that was
/// removed since.
pub(crate) fn must_fit(given: Option<&Bytes>, only: &Backend) -> bool {
    given.zip(descriptors(only)).is_some_and(|(given, own)| {
        let (own, given) = (Labels::of(slice::from_ref(&own)), slice::from_ref(given));
        !fits(Some(&own), &Labels::of(given)).is_empty()
    })
}

/// Rewrites a backend's metrics to the label keys that clients received. Returns `None` if nothing changes.
///
/// # Errors
/// `Internal` if the metrics are malformed.
pub(crate) fn under_given_labels(
    live: &Live,
    given: Option<&Bytes>,
    backend: &Backend,
    metrics: &[u8],
) -> Result<Option<Bytes>, Status> {
    if live.is_alone() && !must_fit(given, backend) {
        return Ok(None);
    }
    let all = live.joined();
    let all: Vec<_> = all.iter().filter_map(|it| descriptors(it)).collect();
    // Descriptors that cannot be decoded are not cached.
    let now = union(&all).unwrap_or_default();
    let given: Vec<_> = given.cloned().into_iter().chain([now]).collect();
    let own = descriptors(backend);
    let own = own.as_ref().map(|own| Labels::of(slice::from_ref(own)));
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
    let lists = backend.record.known().lists;
    Some(lists.get(List::MetricDescriptors)?.message.clone())
}

/// Logs that labels or samples of a metric are omitted, once for each backend and metric.
fn log_omitted(backend: &Backend, metric: &str, misfit: &Misfit) {
    let metric = errors::cut(metric);
    if backend.record.note_unfit(&metric) {
        let cause = errors::cut(misfit.to_string());
        tracing::warn!(
            backend = %backend.name(), metric = &*metric, cause = &*cause,
            "labels or samples of a metric are omitted: they do not match the metric descriptor that clients have received"
        );
    }
}
