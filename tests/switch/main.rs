//! The behaviour of criswitch as clients see it, with simulated runtimes. Each folder tests the module that has the
//! same name in the code map of `src/lib.rs`. `images` has no such module: it tests the image calls, from their targets
//! to their merged replies. The folders share the files next to this file.
// No other crate uses these items, and a panic is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing)]

mod admin;
mod calls;
mod faults;
mod health;
mod http2;
mod kubelet;
mod logged;
mod questions;
mod wait;

mod backend {
    #[cfg(unix)] // A pipe has no queue of connections.
    mod full_backlog;
    mod goaway;
    mod hostile_backends;
    mod no_pings;
    pub mod raw;
    mod rejected_streams;
    mod resets;
    mod streams;
}

mod call {
    mod call_ends;
    mod call_lines;
    mod client_faults;
}

mod dispatch {
    mod by_id;
    mod deadlines;
    mod errors;
    #[cfg(unix)] // The tests read the processor time of their thread.
    mod growth;
    mod requests;
    mod routing;
    mod start;
    mod unreachable;
    mod waits;
}

mod fanout {
    mod cgroup_drivers;
    mod failed_parts;
    mod filters;
    mod growing_parts;
    mod lacking;
    mod late_facts;
    mod lists;
    mod metric_labels;
    mod metrics_of_real_runtimes;
    mod node_config;
    pub mod silent_default;
    mod slow_backends;
    mod stale_lists;
    #[cfg(unix)] // On Windows each millisecond of the paused clock takes as long as on a real one.
    mod stale_stats;
    mod stalled_streams;
    mod stats;
    pub mod status;
    mod status_info;
    mod streams;
}

mod forward {
    mod deaths;
    #[cfg(unix)] // On Windows each millisecond of the paused clock takes as long as on a real one.
    mod fault_matrix;
    #[cfg(unix)] // On Windows each millisecond of the paused clock takes as long as on a real one.
    mod hung_owners;
    mod kept_statuses;
    mod long_texts;
    mod renames;
    mod streaming_urls;
}

mod images {
    mod image_ids;
    mod image_merge;
    mod image_removal;
    mod image_routing;
    mod image_status;
    mod long_pulls;
    mod security_profiles;
    mod silent_images;
    mod stale_images;
    mod unknown_pods;
    mod whose_pull;
}

mod ownership {
    mod changed_owners;
    mod claims;
    mod hung_lists;
    mod many_ids;
    mod owners;
    mod shared_ids;
    mod sharing;
    mod short_ids;
    mod unknown_ids;
}

mod server {
    mod authority;
    #[cfg(unix)] // Windows has no signals.
    pub mod binary;
    mod concurrency;
    mod floods;
    mod given_up;
    pub mod hostile_clients;
    mod shutdown;
    mod sizes;
    mod slow_clients;
    #[cfg(unix)] // A pipe has no file and no mode.
    mod socket;
}

mod session {
    mod crash_loop;
    pub mod events;
    mod few_streams;
    mod lost_events;
    mod lost_probes;
    mod panics;
    mod resumed_events;
    mod returns;
    mod states;
    mod unread_events;
}

mod switch {
    pub mod forget;
    mod handlers;
    #[cfg(unix)] // Windows has no signals.
    mod restart;
    mod saved_node;
    pub mod saved_state;
    mod untrusted_state;
    #[cfg(unix)] // The saved state has socket paths.
    mod upgrade;
    mod written_state;
}

mod topology {
    mod auto_register;
    pub mod reloads;
    mod reloads_midway;
    mod reloads_names;
}

use criswitch_rig as support;
