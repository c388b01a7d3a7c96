//! What a user of the switch would notice, against simulated runtimes.
// No crate could reach it, and what panics is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing)]

#[path = "../support/support.rs"]
mod support;

mod adopts;
mod binary;
mod by_id;
mod call_lines;
mod calls;
mod cgroup_drivers;
mod concurrency;
mod deadlines;
mod deaths;
mod disputed_ids;
mod drain;
mod errors;
mod events;
mod faults;
mod filters;
mod hostile_backends;
mod hostile_clients;
mod image_ids;
mod image_merge;
mod image_status;
mod images;
mod lacking;
mod lists;
mod logged;
mod lost_events;
mod node_config;
mod owners;
mod panics;
mod questions;
mod quiet;
mod reloads;
mod reloads_midway;
mod reloads_names;
mod renames;
mod requests;
mod restart;
mod resumed_events;
mod returns;
mod routing;
mod sharing;
mod short_ids;
mod silent_default;
mod silent_images;
mod simulated_runtime;
mod sizes;
mod slow_backends;
mod socket;
mod stale_images;
mod stale_lists;
mod start;
mod states;
mod statistics;
mod status;
mod status_info;
mod streams;
mod unknown_ids;
mod unreachable;
mod unread_events;
mod wait;
mod waits;
