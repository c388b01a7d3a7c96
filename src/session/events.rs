//! Events of pods and containers: one stream from each backend while anybody listens, shared by all that do.
//!
//! When a backend's stream ends and comes back, an event for each of its pods tells the state as it is then. A client's
//! stream never ends because a backend went away.

mod baseline;
mod ends;
mod follow;
mod synthesized;

pub(crate) use follow::follow;
