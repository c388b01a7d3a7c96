//! The samples of a family, in the types of the `prometheus` library, which encodes the page.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use super::families::{FamilyRow, MetricKind};
use crate::telemetry::counters::Times;

/// The samples of one family.
#[derive(Debug)]
pub(super) struct Samples {
    family: &'static FamilyRow,
    metrics: Vec<Metric>,
}

impl Samples {
    pub(super) fn of(family: &'static FamilyRow) -> Samples {
        let metrics = Vec::new();
        Samples { family, metrics }
    }

    /// Adds a value. The labels are in the family's order.
    pub(super) fn add(&mut self, labels: &[&str], value: f64) {
        let mut metric = self.metric(labels);
        if self.family.kind == MetricKind::Counter {
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
        let pairs = self.family.labels.iter().zip(labels);
        let pairs = pairs.map(|(name, value)| {
            let mut pair = LabelPair::default();
            pair.set_name((*name).to_owned());
            pair.set_value((*value).to_owned());
            pair
        });
        Metric::from_label(pairs.collect())
    }

    /// The family with its samples; `None` without samples, because the `prometheus` library cannot encode an empty
    /// family.
    pub(super) fn into_family(self) -> Option<MetricFamily> {
        let mut family = MetricFamily::default();
        family.set_name(self.family.name.to_owned());
        family.set_help(self.family.help.to_owned());
        family.set_field_type(match self.family.kind {
            MetricKind::Counter => MetricType::COUNTER,
            MetricKind::Gauge => MetricType::GAUGE,
            MetricKind::Histogram => MetricType::HISTOGRAM,
        });
        let some = !self.metrics.is_empty();
        family.set_metric(self.metrics);
        some.then_some(family)
    }
}
