//! Log lines, counters and trace ids for operators; the metrics page is in `metrics`.

pub mod counters;
pub(crate) mod log_limit;
pub mod log_queue;
pub mod rejections;
pub mod stops;
pub(crate) mod trace;
