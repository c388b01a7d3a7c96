//! What criswitch tells its operators, apart from the page of metrics: log lines, counters, trace ids.

pub mod counters;
pub(crate) mod log_limit;
pub mod log_queue;
pub(crate) mod redact;
pub(crate) mod trace;
