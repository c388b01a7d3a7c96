//! criswitch: one CRI socket in front of several container runtimes.

pub mod address;
pub mod config;
pub mod cri;
