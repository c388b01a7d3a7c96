//! Labels of metrics. Runtimes use different label keys for the same metric, and a client reads samples by the metric
//! descriptors that it received. So the merged descriptors have the keys of all backends, and criswitch rewrites each
//! backend's samples to the keys that clients received. A sample gets an empty value for a key that its backend lacks.
//! A key that is newer than the descriptors that clients received is omitted.

mod fit;
mod union;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use criswitch_config::BackendId;
use criswitch_cri::codec::protobuf::Editable;
use criswitch_cri::error_text;
use criswitch_cri::rpc::List;
use parking_lot::Mutex;
use tonic::Status;

use crate::backend::Backend;
use crate::gate::Readable;
use crate::topology::Live;

use fit::{Fits, Fitted, Labels, Misfit, fits, fitted};
pub use union::union;

/// The largest reply with metric descriptors that criswitch remembers, in bytes. If a client received a larger reply,
/// samples are rewritten to the keys of the descriptors that the client would receive now.
const MOST_GIVEN: usize = 1 << 20;

/// Remembers the metric descriptors that a client receives, unless they are too large. They are saved in the
/// background, because clients keep them over a restart of criswitch.
pub(crate) fn give_descriptors(given: &Mutex<Option<Readable>>, live: &Live, descriptors: &Bytes) {
    let now = given_descriptors(descriptors);
    let bytes = |it: &Option<Readable>| it.as_deref().cloned();
    let mut given = given.lock();
    if bytes(&given) != bytes(&now) {
        live.backends.iter().for_each(|it| it.saving.note_change());
    }
    *given = now;
}

/// Metric descriptors that a client received, unless they are too large to be remembered, or cannot be decoded.
pub(crate) fn given_descriptors(descriptors: &Bytes) -> Option<Readable> {
    Some(descriptors)
        .filter(|it| is_kept(it))
        .and_then(|it| Readable::given_descriptors(it).ok())
}

/// How the samples of each backend are rewritten to the label keys that clients received. Computed again only when
/// descriptors change, because a backend may have thousands of them.
#[derive(Debug, Default)]
pub(crate) struct KnownFits(Mutex<FitCache>);

#[derive(Debug, Default)]
struct FitCache {
    /// The descriptors of all backends, and their union.
    all: (Vec<Readable>, Bytes),
    made: HashMap<BackendId, MadeFits>,
}

#[derive(Debug)]
struct MadeFits {
    /// The descriptors of the backend, those that clients received, and those of all backends.
    from: [Vec<Readable>; 3],
    fits: Arc<Fits>,
}

impl KnownFits {
    fn of(
        &self,
        live: &Live,
        given: Option<&Readable>,
        backend: &Backend,
        all: Vec<Readable>,
    ) -> Arc<Fits> {
        let from = [
            Vec::from_iter(descriptors(backend)),
            Vec::from_iter(given.cloned()),
            all,
        ];
        let mut known = self.0.lock();
        if let Some(made) = known.made.get(&backend.id)
            && made.from.each_ref().map(|it| places(it)) == from.each_ref().map(|it| places(it))
        {
            return Arc::clone(&made.fits);
        }
        let [own, given, all] = &from;
        if places(&known.all.0) != places(all) {
            // `union` does not fail here, because criswitch caches only descriptors that can be decoded.
            known.all = (all.clone(), union(all).unwrap_or_default());
        }
        let given = given.iter().map(AsRef::as_ref);
        let own = (!own.is_empty()).then(|| Labels::of(own.iter().map(AsRef::as_ref)));
        let given = Labels::of(given.chain([known.all.1.as_ref()]));
        let fits = Arc::new(fits(own.as_ref(), &given));
        known.made.retain(|id, _| live.backend(*id).is_ok());
        let made = MadeFits {
            from,
            fits: Arc::clone(&fits),
        };
        known.made.insert(backend.id, made);
        fits
    }

    /// Whether the metrics of the only backend must be rewritten: clients received the label keys of a backend that was
    /// removed since.
    pub(crate) fn must_fit(&self, live: &Live, given: Option<&Readable>, only: &Backend) -> bool {
        let fits = self.of_only(live, given, only);
        fits.is_some_and(|fits| !fits.is_empty())
    }

    fn of_only(&self, live: &Live, given: Option<&Readable>, only: &Backend) -> Option<Arc<Fits>> {
        let given = given?;
        descriptors(only)?;
        Some(self.of(live, Some(given), only, Vec::new()))
    }

    /// How the samples of a backend are rewritten. `None` if no client has received descriptors of another backend.
    fn of_backend(
        &self,
        live: &Live,
        given: Option<&Readable>,
        backend: &Backend,
    ) -> Option<Arc<Fits>> {
        if live.has_one_backend() {
            return self.of_only(live, given, backend);
        }
        let joined = live.joined();
        let all = joined.iter().filter_map(|it| descriptors(it)).collect();
        Some(self.of(live, given, backend, all))
    }

    /// Whether samples of the backend may be rewritten.
    pub(crate) fn rewrites(
        &self,
        live: &Live,
        given: Option<&Readable>,
        backend: &Backend,
    ) -> bool {
        let fits = self.of_backend(live, given, backend);
        fits.is_some_and(|fits| !fits.is_empty())
    }

    /// Rewrites a backend's metrics to the label keys that clients received. Returns `None` if nothing changes.
    ///
    /// # Errors
    /// `Internal` if the metrics are malformed.
    pub(crate) fn under_given_labels<M: Editable>(
        &self,
        live: &Live,
        given: Option<&Readable>,
        backend: &Backend,
        metrics: &M,
    ) -> Result<Option<M>, Status> {
        let Some(fits) = self.of_backend(live, given, backend) else {
            return Ok(None);
        };
        // A part within its equal share of a merged reply stays within it, and a larger part becomes no larger.
        let limit = backend.max_message / live.joined().len().max(1);
        let Fitted { metrics, omitted } =
            fitted(metrics, &fits, limit).map_err(|fault| backend.malformed(&fault))?;
        for (metric, misfit) in omitted {
            log_omitted(backend, &metric, &misfit);
        }
        Ok(metrics)
    }
}

/// The memory of descriptors. Equal memory has equal descriptors, and is compared quickly.
fn places(all: &[Readable]) -> Vec<(*const u8, usize)> {
    all.iter().map(|it| (it.as_ptr(), it.len())).collect()
}

/// Whether a reply with metric descriptors is small enough to be remembered.
pub(crate) fn is_kept(descriptors: &Bytes) -> bool {
    descriptors.len() <= MOST_GIVEN
}

/// The metric descriptors that a backend last reported.
pub(crate) fn descriptors(backend: &Backend) -> Option<Readable> {
    let lists = backend.record.known().lists;
    Some(lists.get(List::MetricDescriptors)?.message.clone())
}

/// Logs that labels or samples of a metric are omitted, once for each backend and metric.
fn log_omitted(backend: &Backend, metric: &str, misfit: &Misfit) {
    let metric = error_text::cut(metric);
    if backend.record.note_unfit(&metric) {
        let cause = error_text::cut(misfit.to_string());
        tracing::warn!(
            backend = %backend.name(), metric = &*metric, cause = &*cause,
            "labels or samples of a metric are omitted: they do not match the metric descriptor that clients have received"
        );
    }
}
