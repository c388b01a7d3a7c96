//! One round of calls: the times of its calls.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// The result of one round of calls to one subject.
#[derive(Clone, Serialize, Deserialize)]
pub struct Round {
    pub calls: usize,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub seconds: f64,
    /// Why a call failed or its reply was wrong; `None` if all replies were correct.
    pub fault: Option<String>,
}

impl Round {
    /// Summarizes a round. `took` has the time of each call in nanoseconds.
    pub fn new(mut took: Vec<u64>, length: Duration, fault: Option<String>) -> Round {
        took.sort_unstable();
        let percentile = |percent: usize| took.get(took.len() * percent / 100).copied();
        Round {
            calls: took.len(),
            p50_ns: percentile(50).unwrap_or_default(),
            p99_ns: percentile(99).unwrap_or_default(),
            seconds: length.as_secs_f64(),
            fault,
        }
    }
}

pub fn nanoseconds_since(begin: Instant) -> u64 {
    u64::try_from(begin.elapsed().as_nanos()).unwrap()
}
