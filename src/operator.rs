//! For the people who run the node: the state of the daemon, reloads, health, metrics, and labels of the node.

pub mod admin;
pub(crate) mod health;
pub mod metrics;
pub mod node_labels;
