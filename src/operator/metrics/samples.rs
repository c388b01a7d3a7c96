//! The samples of a family, in the types of the `prometheus` library, which encodes the page.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use strum::AsRefStr;

use crate::telemetry::counters::Times;

/// The kind of a family's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub enum MetricKind {
    /// A value that only grows while the process runs or the backend exists.
    Counter,
    /// A value that rises and falls.
    Gauge,
    /// A distribution of durations.
    Histogram,
}

/// The names of a family's labels.
pub(super) type LabelNames = &'static [&'static str];

/// The samples of one family.
#[derive(Debug)]
pub(super) struct Samples {
    kind: MetricKind,
    labels: LabelNames,
    metrics: Vec<Metric>,
}

impl Samples {
    pub(super) fn new(kind: MetricKind, labels: LabelNames) -> Samples {
        Samples {
            kind,
            labels,
            metrics: Vec::new(),
        }
    }

    /// Adds a value. The labels are in the family's order.
    pub(super) fn add(&mut self, labels: &[&str], value: f64) {
        let mut metric = self.metric(labels);
        if self.kind == MetricKind::Counter {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.metrics.push(metric);
    }

    /// Adds a histogram of durations. The labels are in the family's order.
    pub(super) fn add_times<const N: usize>(
        &mut self,
        labels: &[&str],
        bounds: &[f64; N],
        times: &Times<N>,
    ) {
        let mut histogram = Histogram::default();
        let mut count = 0;
        let buckets = bounds.iter().zip(times.below).map(|(bound, below)| {
            count += below;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(times.count);
        histogram.set_sample_sum(times.sum);
        let mut metric = self.metric(labels);
        metric.set_histogram(histogram);
        self.metrics.push(metric);
    }

    fn metric(&self, labels: &[&str]) -> Metric {
        let pairs = self.labels.iter().zip(labels).map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        });
        Metric::from_label(pairs.collect())
    }

    /// The family of this name with its samples; `None` without samples, because the `prometheus` library cannot encode
    /// an empty family.
    pub(super) fn into_family(self, name: &str, help: &str) -> Option<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(match self.kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
            MetricKind::Histogram => MetricType::HISTOGRAM,
        });
        let some = !self.metrics.is_empty();
        family.set_metric(self.metrics);
        some.then_some(family)
    }
}
