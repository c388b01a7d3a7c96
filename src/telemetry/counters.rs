//! Counts ended calls by backend, RPC and code, and counts times, bytes and rejections. The counters never contain the
//! contents of calls, and no label is a name that a client chose.
//!
//! Counting is a few additions, and a lock is held only for these additions. The metrics page reads the counters.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fnv::FnvHashMap;
use parking_lot::Mutex;
use strum::{AsRefStr, VariantArray};
use tonic::Code;

use crate::telemetry::log_limit::RepeatedFailures;
use crate::telemetry::rejections::Rejections;
use crate::telemetry::stops::Stops;

/// The limit on handlers whose `RunPodSandbox` calls are counted separately. Each reload may add new handlers.
const MOST_HANDLERS: usize = 4096;
/// The number of gRPC codes. The codes are 0 to 16.
const CODES: usize = 17;
/// The upper bounds of call durations, in seconds. They range from 1 ms, for a quick reply, to 120 s, for the pull of
/// an image.
pub const WHOLE_BOUNDS: [f64; 14] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0, 120.0,
];
/// The upper bounds of the time spent in criswitch, in seconds. The lowest is for a reply that is passed on unchanged,
/// the highest for a merge of large lists.
pub const OWN_BOUNDS: [f64; 10] = [
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.001, 0.002_5, 0.01, 0.05, 0.25,
];

/// Why criswitch itself rejected a connection, request, call or reply; the label of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Reason {
    /// The user may not connect.
    User,
    /// There are too many connections.
    Connections,
    /// There are too many calls in flight.
    Calls,
    /// The request is not gRPC.
    NotGrpc,
    /// The path of the request is not an RPC of the CRI.
    UnknownRpc,
    /// The request has a handler that is not in the routing table.
    UnknownHandler,
    /// The request is larger than `max_message`.
    Size,
    /// There is no memory for the request, because other requests use it.
    Memory,
    /// The request was not complete in time.
    Unfinished,
    /// There is no memory for a reply or for events, because the client has not read earlier data.
    Unread,
    /// Other connections need memory, and this connection has the most unread replies.
    Slow,
    /// The connection did not send the preface of HTTP/2 in time, or before a new client needed its place.
    Silent,
    /// A client or a backend sent a flood of frames without content over its connection.
    Flood,
}

/// The counters of criswitch as a whole.
#[derive(Debug, Default)]
pub struct Counts {
    /// Ended calls that went to several backends or none.
    pub calls: Ended,
    /// Ended calls of `RunPodSandbox`, by handler. The key is empty if the routing table does not have the handler.
    pub pods: Ended<Arc<str>>,
    /// The last pods that were not created.
    pub rejections: Rejections,
    /// The last containers that clients stopped.
    pub stops: Stops,
    begun: AtomicU64,
    rpcs: Mutex<FnvHashMap<&'static str, Arc<Rpc>>>,
    rejected: [AtomicU64; Reason::VARIANTS.len()],
    accepted: AtomicU64,
    open: AtomicU64,
}

/// The counters of one RPC, for all backends.
#[derive(Debug, Default)]
pub struct Rpc {
    /// Calls that have begun and not ended.
    pub in_flight: AtomicU64,
    /// Bytes of requests that were read.
    pub received: AtomicU64,
    /// Bytes of replies that were sent.
    pub sent: AtomicU64,
    /// Limits the log lines about failures.
    pub(crate) failing: RepeatedFailures,
    own: Mutex<Times<{ OWN_BOUNDS.len() }>>,
}

/// Ended calls, by RPC or by handler.
#[derive(Debug)]
pub struct Ended<K = &'static str>(Mutex<FnvHashMap<K, Calls>>);

impl<K> Default for Ended<K> {
    fn default() -> Self {
        Ended(Mutex::default())
    }
}

/// Ended calls of one RPC or handler.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// The number of calls, by gRPC code.
    codes: [u64; CODES],
    /// The durations of the calls.
    pub times: Times<{ WHOLE_BOUNDS.len() }>,
}

/// A histogram of durations.
#[derive(Clone, Copy, Debug)]
pub struct Times<const BOUNDS: usize> {
    /// The number of durations for each bound. A duration counts at the first bound that is not below it. A duration
    /// above all bounds counts in `count` only.
    pub below: [u64; BOUNDS],
    /// The number of all durations.
    pub count: u64,
    /// The sum of all durations, in seconds.
    pub sum: f64,
}

impl<const BOUNDS: usize> Default for Times<BOUNDS> {
    fn default() -> Self {
        Times {
            below: [0; BOUNDS],
            count: 0,
            sum: 0.0,
        }
    }
}

impl<const BOUNDS: usize> Times<BOUNDS> {
    fn add(&mut self, time: Duration, bounds: &[f64; BOUNDS]) {
        let seconds = time.as_secs_f64();
        let place = bounds.partition_point(|bound| *bound < seconds);
        if let Some(below) = self.below.get_mut(place) {
            *below += 1;
        }
        self.count += 1;
        self.sum += seconds;
    }
}

impl Counts {
    /// Records that a call of this RPC begins. Returns the number of the call among all calls, and the counters of the
    /// RPC.
    pub(crate) fn begin(&self, name: &'static str) -> (u64, Arc<Rpc>) {
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        let mut rpcs = self.rpcs.lock();
        let rpc = Arc::clone(rpcs.entry(name).or_default());
        rpc.in_flight.fetch_add(1, Ordering::Relaxed);
        (before + 1, rpc)
    }

    /// The RPCs that were called, with their counters.
    pub fn rpcs(&self) -> Vec<(&'static str, Arc<Rpc>)> {
        let rpcs = self.rpcs.lock();
        rpcs.iter()
            .map(|(name, rpc)| (*name, Arc::clone(rpc)))
            .collect()
    }

    pub(crate) fn reject(&self, reason: Reason) {
        if let Some(count) = self.rejected.get(reason as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The number of rejections for this reason.
    pub fn rejected(&self, reason: Reason) -> u64 {
        let count = self.rejected.get(reason as usize);
        count.map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Counts a connected client, until the returned guard is dropped.
    pub(crate) fn connected(self: &Arc<Self>) -> Connected {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Connected(Arc::clone(self))
    }

    /// The number of clients ever accepted, and the number of clients connected now.
    pub fn connections(&self) -> (u64, u64) {
        let (accepted, open) = (&self.accepted, &self.open);
        (
            accepted.load(Ordering::Relaxed),
            open.load(Ordering::Relaxed),
        )
    }
}

#[derive(Debug)]
pub(crate) struct Connected(Arc<Counts>);

impl Drop for Connected {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Rpc {
    /// Adds the time that criswitch itself spent on a call.
    pub(crate) fn took(&self, own: Duration) {
        let mut times = self.own.lock();
        times.add(own, &OWN_BOUNDS);
    }

    /// The time that criswitch itself spent on calls.
    pub fn own(&self) -> Times<{ OWN_BOUNDS.len() }> {
        *self.own.lock()
    }
}

impl<K: Clone + Default + Eq + Hash> Ended<K> {
    pub(crate) fn add(&self, key: K, code: Code, time: Duration) {
        let mut calls = self.0.lock();
        let is_one_too_many = calls.len() >= MOST_HANDLERS && !calls.contains_key(&key);
        let key = if is_one_too_many { K::default() } else { key };
        let calls = calls.entry(key).or_default();
        if let Some(count) = calls.codes.get_mut(code as usize) {
            *count += 1;
        }
        calls.times.add(time, &WHOLE_BOUNDS);
    }

    /// All keys with their ended calls.
    pub fn all(&self) -> Vec<(K, Calls)> {
        let calls = self.0.lock();
        calls
            .iter()
            .map(|(key, calls)| (key.clone(), calls.clone()))
            .collect()
    }
}

impl Calls {
    /// The codes that occurred, each with its number of calls.
    pub fn codes(&self) -> impl Iterator<Item = (Code, u64)> {
        let codes = (0..).map(Code::from_i32).zip(self.codes);
        codes.filter(|(_, count)| *count > 0)
    }
}

/// The name of a code in grpc-go, which the kubelet's metrics use.
pub fn code_name(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_at_the_first_bound_that_is_not_below_it() {
        let mut times = Times::default();
        for millis in [1, 2, 20, 5000] {
            times.add(Duration::from_millis(millis), &[0.001, 0.01, 0.1]);
        }
        assert_eq!(times.below, [1, 1, 1]);
        assert_eq!(times.count, 4);
        assert!((times.sum - 5.023).abs() < 1e-9);
    }

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let counts = Counts::default();
        for reason in Reason::VARIANTS.iter().copied() {
            counts.reject(reason);
            assert_eq!(counts.rejected(reason), 1, "{}", reason.as_ref());
        }
    }

    #[test]
    fn codes_are_counted_under_their_own_numbers() {
        let ended = Ended::default();
        ended.add("Version", Code::Ok, Duration::ZERO);
        ended.add("Version", Code::Unauthenticated, Duration::ZERO);
        ended.add("Version", Code::Unauthenticated, Duration::ZERO);
        let all = ended.all();
        let codes: Vec<_> = all[0].1.codes().collect();
        assert_eq!(codes, [(Code::Ok, 1), (Code::Unauthenticated, 2)]);
    }

    #[test]
    fn handlers_beyond_the_limit_are_counted_together() {
        let ended = Ended::<Arc<str>>::default();
        for number in 0..MOST_HANDLERS + 2 {
            ended.add(number.to_string().into(), Code::Ok, Duration::ZERO);
        }
        let all = ended.all();
        let others = all.iter().find(|(handler, _)| handler.is_empty());
        assert_eq!(all.len(), MOST_HANDLERS + 1);
        assert_eq!(others.unwrap().1.times.count, 2);
    }

    #[test]
    fn a_client_counts_as_connected_until_it_disconnects() {
        let counts = Arc::new(Counts::default());
        let one = counts.connected();
        let other = counts.connected();
        drop(one);
        assert_eq!(counts.connections(), (2, 1));
        drop(other);
        assert_eq!(counts.connections(), (2, 0));
    }
}
