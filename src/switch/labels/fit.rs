//! Rewrites samples of metrics to other label keys. Does no I/O. Does not change a reply whose label keys already
//! match.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher, RandomState};

use criswitch_cri::codec::protobuf::{self, Edit, Editable, Edited, Malformed};
use criswitch_cri::rpc::fields::{ITEMS, metric, metric_descriptor, pod_sandbox_metrics};

/// By metric: the label keys, in the order of the label values in the metric's samples.
#[derive(Debug, Default)]
pub(super) struct Labels<'a>(HashMap<&'a str, Vec<&'a str>>);

impl<'a> Labels<'a> {
    /// Collects the labels in several replies to `ListMetricDescriptors`. If a metric has several descriptors, the
    /// first one counts. Malformed descriptors are ignored, because no client can read samples by them.
    pub(super) fn of(replies: impl IntoIterator<Item = &'a [u8]>) -> Labels<'a> {
        let mut labels = HashMap::new();
        for reply in replies {
            for descriptor in protobuf::all_bytes(reply, &[ITEMS]).unwrap_or_default() {
                let name = protobuf::string(descriptor, &[metric_descriptor::NAME]);
                let keys = protobuf::strings(descriptor, &[metric_descriptor::LABEL_KEYS]);
                if let (Ok(name), Ok(keys)) = (name, keys) {
                    labels.entry(name).or_insert(keys);
                }
            }
        }
        Labels(labels)
    }
}

/// The result of rewriting metrics to other label keys.
#[derive(Debug)]
pub(super) struct Fitted<M> {
    /// The rewritten metrics; `None` if nothing changed.
    pub(super) metrics: Option<M>,
    /// The names of the metrics with omitted labels or samples, and why they are omitted.
    pub(super) omitted: BTreeMap<String, Misfit>,
}

/// Why a sample is not what the backend sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Misfit {
    /// The backend has not reported its descriptors.
    Undescribed,
    /// A sample has a different number of label values (first) than the backend's descriptor has label keys (second).
    Values(usize, usize),
    /// The clients' descriptor lacks this label key.
    New(String),
    /// With the clients' label keys, the samples of the backend take more than this many bytes.
    NoRoom(usize),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Undescribed => f.write_str("the backend has not reported its descriptors"),
            Misfit::Values(values, keys) => write!(
                f,
                "a sample has {values} label values, and its descriptor has {keys} label keys"
            ),
            Misfit::New(key) => write!(
                f,
                "label {key:?} is newer than the descriptors that clients have received, so it is omitted with the \
                 samples that differ only in it; restart the kubelet, which reads descriptors at its start"
            ),
            Misfit::NoRoom(limit) => write!(
                f,
                "with the label keys of all backends, the metrics of this backend are larger than {limit} bytes"
            ),
        }
    }
}

/// Rewrites the label keys of `metrics`, a backend's reply to `ListPodSandboxMetrics`. A label that the backend lacks
/// is empty. Omits the samples that would make the metrics longer than `limit` bytes, and longer than they were.
///
/// # Errors
/// If the metrics are malformed. If the descriptors agree, the metrics are not read.
pub(super) fn fitted<M: Editable>(
    metrics: &M,
    fits: &Fits,
    limit: usize,
) -> Result<Fitted<M>, Malformed> {
    if fits.is_empty() {
        return Ok(Fitted {
            metrics: None,
            omitted: BTreeMap::new(),
        });
    }
    let mut fitting = Fitting {
        fits,
        limit,
        left: limit.saturating_sub(metrics.as_ref().len()),
        omitted: BTreeMap::new(),
    };
    let metrics = protobuf::edited(metrics, &[ITEMS], &mut |pod| {
        let fitted_containers = protobuf::edit_within(
            pod,
            &[pod_sandbox_metrics::CONTAINER_METRICS],
            &mut |item| fitting.item(item),
        )?;
        let edit = fitting.item(fitted_containers.as_deref().unwrap_or(pod))?;
        Ok(match (edit, fitted_containers) {
            (Edit::Same, Some(fitted_containers)) => Edit::Other(fitted_containers),
            (edit, _) => edit,
        })
    })?;
    let omitted = fitting.omitted;
    Ok(Fitted { metrics, omitted })
}

/// By metric: how its samples are rewritten. A metric whose samples are not rewritten is absent.
pub(super) type Fits = HashMap<String, Fit>;

/// How samples with the label keys of the descriptors `own` are rewritten to those of the descriptors `given`. A metric
/// without a descriptor in both is not rewritten. If the backend has no descriptors (`own` is `None`), all metrics in
/// `given` are omitted.
pub(super) fn fits(own: Option<&Labels<'_>>, given: &Labels<'_>) -> Fits {
    let fits = given.0.iter().filter_map(|(name, keys)| {
        let fit = match own {
            Some(own) => Fit::of(own.0.get(name)?, keys)?,
            None => Fit::Never(Misfit::Undescribed),
        };
        Some(((*name).to_owned(), fit))
    });
    fits.collect()
}

/// How a metric's label values are rewritten to other keys.
#[derive(Debug)]
pub(super) enum Fit {
    Order {
        /// For each new key, the index of its value in the sample. A key without an index gets an empty value.
        places: Vec<Option<usize>>,
        /// The number of values in the sample.
        values: usize,
        /// The most bytes by which a sample becomes longer.
        growth: usize,
        /// A label of the sample that the new keys lack.
        lost: Option<String>,
    },
    Never(Misfit),
}

impl Fit {
    /// Compares the label keys of a metric. Returns `None` if they are the same.
    fn of(own: &[&str], given: &[&str]) -> Option<Fit> {
        if own == given {
            return None;
        }
        // A map, because a backend may have any number of keys. If a key occurs twice, its first place counts.
        let places: HashMap<_, _> = own
            .iter()
            .enumerate()
            .rev()
            .map(|(place, key)| (key, place))
            .collect();
        let known: HashSet<_> = given.iter().collect();
        let lost = own.iter().find(|key| !known.contains(key));
        let places: Vec<_> = given.iter().map(|key| places.get(key).copied()).collect();
        let empty = places.iter().filter(|place| place.is_none()).count();
        Some(Fit::Order {
            places,
            values: own.len(),
            growth: match empty {
                0 => 0,
                _ => empty * EMPTY_VALUE + LENGTHS,
            },
            lost: lost.map(|key| (*key).to_owned()),
        })
    }

    /// A label that samples lose.
    fn lost(&self) -> Option<&String> {
        match self {
            Fit::Order { lost, .. } => lost.as_ref(),
            Fit::Never(_) => None,
        }
    }

    /// The most bytes by which a sample becomes longer.
    fn growth(&self) -> usize {
        match self {
            Fit::Order { growth, .. } => *growth,
            Fit::Never(_) => 0,
        }
    }

    /// Returns the label values of a sample in their new order, or why the sample is omitted.
    fn values<'m>(&self, metric: &'m [u8]) -> Result<Result<Vec<&'m str>, Misfit>, Malformed> {
        let (places, keys) = match self {
            Fit::Order { places, values, .. } => (places, *values),
            Fit::Never(misfit) => return Ok(Err(misfit.clone())),
        };
        let values = protobuf::strings(metric, &[metric::LABEL_VALUES])?;
        if values.len() != keys {
            return Ok(Err(Misfit::Values(values.len(), keys)));
        }
        let ordered = places.iter().map(|place| {
            place
                .and_then(|place| values.get(place).copied())
                .unwrap_or_default()
        });
        Ok(Ok(ordered.collect()))
    }
}

/// The bytes of an empty label value: the number of the field, and the length 0.
const EMPTY_VALUE: usize = 2;
/// The most bytes by which the lengths of a sample, its container and its pod become longer.
const LENGTHS: usize = 3 * 4;

struct Fitting<'a> {
    fits: &'a Fits,
    /// The most bytes of the rewritten metrics, unless they were longer before.
    limit: usize,
    /// By how many bytes the metrics may still become longer.
    left: usize,
    omitted: BTreeMap<String, Misfit>,
}

impl Fitting<'_> {
    /// Rewrites the samples of one pod or container.
    fn item(&mut self, item: &[u8]) -> Result<Edit, Malformed> {
        let same = self.same(item)?;
        let edited = protobuf::edit_within(item, &[pod_sandbox_metrics::METRICS], &mut |metric| {
            let name = protobuf::string(metric, &[metric::NAME])?;
            let Some(fit) = self.fits.get(name) else {
                return Ok(Edit::Same);
            };
            // Take the room before the values are read, because a backend may send many samples without room.
            let Some(left) = self.left.checked_sub(fit.growth()) else {
                let misfit = Misfit::NoRoom(self.limit);
                self.omitted.entry(name.to_owned()).or_insert(misfit);
                return Ok(Edit::Dropped);
            };
            self.left = left;
            let (values, misfit) = match fit.values(metric)? {
                Ok(values) => {
                    // Copy the key only once for each metric, because a backend may send many samples and long keys.
                    let lost = fit.lost().filter(|_| !self.omitted.contains_key(name));
                    let misfit = lost.map(|key| Misfit::New(key.clone()));
                    (Some(values).filter(|_| !same.contains(name)), misfit)
                }
                Err(misfit) => (None, Some(misfit)),
            };
            if let Some(misfit) = misfit {
                self.omitted.entry(name.to_owned()).or_insert(misfit);
            }
            values.map_or(Ok(Edit::Dropped), |values| {
                Edited::with_strings(metric, metric::LABEL_VALUES, &values).map(Edit::Other)
            })
        })?;
        Ok(edited.map_or(Edit::Same, Edit::Other))
    }

    /// Returns the names of metrics of a pod or container that would have several samples with the same label values
    /// after the rewrite, because the samples differ only in lost labels. Ignores samples that have no room:
    /// [`Fitting::item`] omits them.
    fn same<'m>(&self, item: &'m [u8]) -> Result<HashSet<&'m str>, Malformed> {
        let hasher = RandomState::new();
        let (mut seen, mut same) = (HashSet::new(), HashSet::new());
        let mut left = self.left;
        for metric in protobuf::all_bytes(item, &[pod_sandbox_metrics::METRICS])? {
            let name = protobuf::string(metric, &[metric::NAME])?;
            let Some(fit) = self.fits.get(name).filter(|fit| fit.lost().is_some()) else {
                continue;
            };
            let Some(rest) = left.checked_sub(fit.growth()) else {
                continue;
            };
            left = rest;
            // Keep only the hash of the values, because a backend may send many samples.
            if let Ok(values) = fit.values(metric)?
                && !seen.insert(hasher.hash_one((name, values)))
            {
                same.insert(name);
            }
        }
        Ok(same)
    }
}

#[cfg(test)]
mod tests {
    use bytes::{Bytes, BytesMut};
    use criswitch_cri::codec::cri;
    use prost::Message;

    use super::*;

    fn descriptors(keys: &[&str]) -> Vec<Bytes> {
        let list = cri::ListMetricDescriptorsResponse {
            descriptors: vec![cri::MetricDescriptor {
                name: "cpu".to_owned(),
                help: String::new(),
                label_keys: keys.iter().map(|key| (*key).to_owned()).collect(),
            }],
        };
        vec![list.encode_to_vec().into()]
    }

    fn labels(replies: &[Bytes]) -> Labels<'_> {
        Labels::of(replies.iter().map(AsRef::as_ref))
    }

    fn sample(name: &str, values: &[&str]) -> cri::Metric {
        cri::Metric {
            name: name.to_owned(),
            timestamp: 7,
            metric_type: cri::MetricType::Gauge.into(),
            label_values: values.iter().map(|value| (*value).to_owned()).collect(),
            value: Some(cri::UInt64Value { value: 8 }),
            double_value: Some(cri::DoubleValue { value: 0.5 }),
        }
    }

    /// Encodes the metrics of a pod with these samples and one container with the same samples.
    fn metrics(samples: &[cri::Metric]) -> Bytes {
        let container = cri::ContainerMetrics {
            container_id: "c".to_owned(),
            metrics: samples.to_vec(),
        };
        let pod = cri::PodSandboxMetrics {
            pod_sandbox_id: "p".to_owned(),
            metrics: samples.to_vec(),
            container_metrics: vec![container],
        };
        let pod_metrics = vec![pod];
        let list = cri::ListPodSandboxMetricsResponse { pod_metrics };
        list.encode_to_vec().into()
    }

    /// Checks how these samples of a pod and its container are rewritten.
    #[track_caller]
    fn assert_fitted(
        own: Option<&[&str]>,
        samples: &[cri::Metric],
        wanted: &[cri::Metric],
        misfit: Option<Misfit>,
    ) {
        let (own, given) = (own.map(descriptors), descriptors(&["id", "name"]));
        let own = own.as_deref().map(labels);
        let encoded = metrics(samples);
        let fits = fits(own.as_ref(), &labels(&given));
        let fitted = fitted(&encoded, &fits, usize::MAX).unwrap();
        let shown = fitted.metrics.unwrap_or(encoded);
        let shown = cri::ListPodSandboxMetricsResponse::decode(shown).unwrap();
        let [pod] = shown.pod_metrics.as_slice() else {
            panic!("{shown:?}")
        };
        assert_eq!(pod.metrics, wanted);
        assert_eq!(pod.container_metrics[0].metrics, wanted);
        assert_eq!(fitted.omitted.get("cpu"), misfit.as_ref());
    }

    #[test]
    fn values_follow_their_keys_and_a_missing_label_is_empty_and_everything_else_stays() {
        let other = sample("of no other backend", &["x"]);
        for (own, values, wanted) in [
            (&["name", "id"][..], &["n", "1"][..], &["1", "n"][..]),
            (&["id"], &["1"], &["1", ""]),
            (&[], &[], &["", ""]),
        ] {
            let samples = [sample("cpu", values), other.clone()];
            let wanted = [sample("cpu", wanted), other.clone()];
            assert_fitted(Some(own), &samples, &wanted, None);
        }
    }

    #[test]
    fn a_reply_whose_descriptors_agree_is_not_read() {
        let own = descriptors(&["id", "name"]);
        let same = labels(&own);
        let fitted = fitted(
            &Bytes::from_static(b"\x0a\xff"),
            &fits(Some(&same), &same),
            0,
        )
        .unwrap();
        assert!(fitted.metrics.is_none() && fitted.omitted.is_empty());
    }

    #[test]
    fn a_sample_without_a_label_for_each_value_is_omitted() {
        let own: &[&str] = &["name", "id"];
        for (own, values, misfit) in [
            (None, &["1", "n"][..], Misfit::Undescribed),
            (Some(own), &["n"], Misfit::Values(1, 2)),
        ] {
            assert_fitted(own, &[sample("cpu", values)], &[], Some(misfit));
        }
    }

    #[test]
    fn a_new_label_is_omitted_with_the_samples_that_differ_only_in_it() {
        let new = || Some(Misfit::New("core".to_owned()));
        let own = Some(&["id", "name", "core"][..]);
        let (zero, one) = (
            sample("cpu", &["1", "n", "0"]),
            sample("cpu", &["1", "n", "1"]),
        );
        let known = [sample("cpu", &["1", "n"])];
        assert_fitted(own, std::slice::from_ref(&zero), &known, new());
        assert_fitted(own, &[zero, one], &[], new());
    }

    #[test]
    fn samples_that_would_be_larger_than_the_limit_are_omitted() {
        let (own, given) = (descriptors(&["id"]), descriptors(&["id", "name"]));
        let fits = fits(Some(&labels(&own)), &labels(&given));
        let encoded = metrics(&[sample("cpu", &["1"])]);
        let fitted = |limit| fitted(&encoded, &fits, limit).unwrap();
        assert!(fitted(1 << 10).omitted.is_empty());
        assert_eq!(fitted(10).omitted["cpu"], Misfit::NoRoom(10));
        // Two samples of a pod and two of its container, each of which gets an empty label value.
        let encoded = metrics(&[sample("cpu", &["1"]), sample("cpu", &["2"])]);
        let room = 4 * (EMPTY_VALUE + LENGTHS);
        for limit in 0..=encoded.len() + room {
            let fitted = super::fitted(&encoded, &fits, limit).unwrap();
            let longest = limit.max(encoded.len());
            assert!(fitted.metrics.unwrap().len() <= longest, "{limit}");
            let is_whole = limit == encoded.len() + room;
            assert_eq!(fitted.omitted.is_empty(), is_whole, "{limit}");
        }
    }

    #[test]
    fn the_values_of_samples_without_room_are_not_read() {
        let (own, given) = (descriptors(&["id"]), descriptors(&["name"]));
        let fits = fits(Some(&labels(&own)), &labels(&given));
        let mut metric = BytesMut::from(&sample("cpu", &[]).encode_to_vec()[..]);
        protobuf::put_bytes(&mut metric, metric::LABEL_VALUES, b"caf\xe9");
        let (mut pod, mut list) = (BytesMut::new(), BytesMut::new());
        protobuf::put_bytes(&mut pod, pod_sandbox_metrics::METRICS, &metric);
        protobuf::put_bytes(&mut list, ITEMS, &pod);
        let list = list.freeze();
        assert!(fitted(&list, &fits, usize::MAX).is_err());
        let omitted = fitted(&list, &fits, list.len()).unwrap().omitted;
        assert_eq!(omitted["cpu"], Misfit::NoRoom(list.len()));
    }

    /// Equal samples are the backend's own fault, and no label of them is lost.
    #[test]
    fn equal_samples_of_a_backend_pass() {
        let twice = |values: &[&str]| [sample("cpu", values), sample("cpu", values)];
        let own = Some(&["name", "id"][..]);
        assert_fitted(own, &twice(&["n", "1"]), &twice(&["1", "n"]), None);
    }
}
