//! The table of families: a row each, the only place that names them. From it come the page, docs/metrics.md, and
//! the tests of both.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use strum::{AsRefStr, VariantArray, VariantNames};

use super::samples::Samples;
use super::seen::{Seen, SeenBackend};
use crate::backend::disks::Disk;
use crate::backend::state::State;
use crate::fanout::status;
use crate::telemetry::counters::{OWN_BOUNDS, Reason, WHOLE_BOUNDS, code_name};

/// A family of metrics.
#[derive(Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// What its values are.
    pub kind: MetricKind,
    /// What tells its samples apart.
    pub labels: &'static [&'static str],
    /// What it is, in words.
    pub help: &'static str,
    /// Reads its samples.
    pub(super) read: fn(&Seen, &mut Samples),
}

/// What a family's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub enum MetricKind {
    /// What only grows, as long as the process lives or the backend is there.
    Counter,
    /// What goes up and down.
    Gauge,
    /// How often something took how long.
    Histogram,
}

const RPC: &[&str] = &["rpc"];
const BACKEND: &[&str] = &["backend"];
const HANDLER: &[&str] = &["handler"];
const DISK: &[&str] = &["backend", "mountpoint"];

/// Every family, in the order of the page.
#[rustfmt::skip] // a name and what it is, each in a line
pub const FAMILIES: &[Family] = &[
    counter("criswitch_rpcs_total", &["rpc", "backend", "code"],
        "Calls of clients that have ended; the backend is empty where it was not one alone.", |seen, out| {
            for (backend, rpc, calls) in seen.calls() {
                for (code, count) in calls.codes() {
                    out.add(&[rpc, backend, &code_name(code)], count as f64);
                }
            }
        }),
    histogram("criswitch_rpc_duration_seconds", &["rpc", "backend"],
        "Time from a call's headers to its last trailer.", |seen, out| {
            for (backend, rpc, calls) in seen.calls() {
                out.add_times(&[rpc, backend], &WHOLE_BOUNDS, &calls.times);
            }
        }),
    counter("criswitch_run_podsandbox_total", &["handler", "code"],
        "Calls of RunPodSandbox that have ended; the handler is empty where the table does not have it.", |seen, out| {
            for (handler, calls) in &seen.runs {
                for (code, count) in calls.codes() {
                    out.add(&[handler, &code_name(code)], count as f64);
                }
            }
        }),
    histogram("criswitch_run_podsandbox_duration_seconds", HANDLER,
        "Time from the headers of a RunPodSandbox to its last trailer; the handler is empty where the table does not have it.", |seen, out| {
            for (handler, calls) in &seen.runs {
                out.add_times(&[handler], &WHOLE_BOUNDS, &calls.times);
            }
        }),
    histogram("criswitch_rpc_own_seconds", RPC,
        "The switch's own share of it: the time that it worked on the call, not that in which the call waited.",
        |seen, out| {
            for (name, rpc) in &seen.rpcs {
                out.add_times(&[name], &OWN_BOUNDS, &rpc.own());
            }
        }),
    gauge("criswitch_rpcs_in_flight", RPC,
        "Calls that have begun and not ended, open streams among them.", |seen, out| {
            for (name, rpc) in &seen.rpcs {
                out.add(&[name], rpc.in_flight.load(Ordering::Relaxed) as f64);
            }
        }),
    counter("criswitch_request_bytes_total", RPC, "Bytes of requests that were read.", |seen, out| {
        for (name, rpc) in &seen.rpcs {
            out.add(&[name], rpc.received.load(Ordering::Relaxed) as f64);
        }
    }),
    counter("criswitch_reply_bytes_total", RPC, "Bytes of replies to clients.", |seen, out| {
        for (name, rpc) in &seen.rpcs {
            out.add(&[name], rpc.sent.load(Ordering::Relaxed) as f64);
        }
    }),
    gauge("criswitch_request_held_bytes", &[], "Bytes of requests that are held now.", |seen, out| {
        out.add(&[], seen.switch.memory.used() as f64);
    }),
    gauge("criswitch_unread_reply_bytes", &[],
        "Bytes of replies that clients have not read yet, and that streams may hold unread.", |seen, out| {
            out.add(&[], seen.switch.unread.used() as f64);
        }),
    counter("criswitch_refusals_total", &["reason"],
        "Connections, requests, calls and replies that criswitch rejected itself, by reason.", |seen, out| {
            for reason in Reason::VARIANTS {
                out.add(&[reason.as_ref()], seen.switch.counts.refused(*reason) as f64);
            }
        }),
    gauge("criswitch_connections", &[], "Clients that are connected.", |seen, out| {
        out.add(&[], seen.switch.counts.connections().1 as f64);
    }),
    counter("criswitch_connections_total", &[], "Clients that were let in.", |seen, out| {
        out.add(&[], seen.switch.counts.connections().0 as f64);
    }),
    gauge("criswitch_backend_up", BACKEND, "Whether the backend is ready.", |seen, out| {
        each(seen, out, |backend| truth(backend.link.state.as_ref() == "ready"));
    }),
    gauge("criswitch_backend_state", &["backend", "state"],
        "1 at the state that the backend is in, 0 at the others.", |seen, out| {
            for backend in &seen.backends {
                for state in State::VARIANTS {
                    out.add(&[&backend.name, state], truth(backend.link.state.as_ref() == *state));
                }
            }
        }),
    gauge("criswitch_backend_state_since_timestamp_seconds", BACKEND,
        "When the backend came into the state that it is in.", |seen, out| {
            each(seen, out, |backend| timestamp(backend.link.since));
        }),
    counter("criswitch_backend_transitions_total", BACKEND, "Changes of the backend's state.", |seen, out| {
        each(seen, out, |backend| backend.link.transitions as f64);
    }),
    gauge("criswitch_backend_retiring", BACKEND,
        "Whether no handler routes to the backend any more: the backend is removed when its last pod ends.",
        |seen, out| each(seen, out, |backend| truth(seen.live.retires(backend.id)))),
    gauge("criswitch_backend_info", &["backend", "socket", "runtime", "version", "cgroup_driver"],
        "1: where the backend serves, and what it last reported of itself; a label is empty where it has not.", |seen, out| {
        for backend in &seen.backends {
            let [runtime, version, driver] = status::identity(&backend.known);
            out.add(&[&backend.name, &backend.socket, &runtime, &version, &driver], 1.0);
        }
    }),
    gauge("criswitch_backend_held_bytes", BACKEND,
        "Bytes of the backend's replies, cached lists and unread events that are held now.", |seen, out| {
            each(seen, out, |backend| backend.held as f64);
        }),
    gauge("criswitch_owned", &["backend", "kind"], "Pods and containers that the backend owns.", |seen, out| {
        for backend in &seen.backends {
            out.add(&[&backend.name, "pod"], backend.pods as f64);
            out.add(&[&backend.name, "container"], backend.containers as f64);
        }
    }),
    gauge("criswitch_pods", HANDLER,
        "Pods by the handler that clients see; empty where that is unknown or not in the table.", |seen, out| {
            for (handler, pods) in &seen.pods {
                out.add(&[handler], *pods as f64);
            }
        }),
    gauge("criswitch_lists_failing", &["backend", "list"],
        "Whether lists of pods, containers or images fail now because of the backend.", |seen, out| {
            for backend in &seen.backends {
                for (list, fails) in backend.failing {
                    out.add(&[&backend.name, list], truth(fails));
                }
            }
        }),
    gauge("criswitch_backend_listed", BACKEND,
        "Whether criswitch knows the pods of the backend: the backend has answered once, or the machine was rebooted since.",
        |seen, out| each(seen, out, |backend| truth(backend.listed))),
    gauge("criswitch_cached_list_age_seconds", BACKEND,
        "The age of the backend's cached lists of pods and containers, whether they are served or not; nothing if there are none.",
        |seen, out| {
            for backend in &seen.backends {
                if let Some(age) = backend.known.cached_list_age() {
                    out.add(&[&backend.name], age.as_secs_f64());
                }
            }
        }),
    gauge("criswitch_stale_lists", BACKEND,
        "Whether the backend's last known lists stand in for it.", |seen, out| {
            each(seen, out, |backend| truth(backend.known.stale_age().is_some()));
        }),
    gauge("criswitch_stale_list_age_seconds", BACKEND,
        "How old the lists are that stand in for the backend, 0 if none do.", |seen, out| {
            each(seen, out, |backend| backend.known.stale_age().unwrap_or_default().as_secs_f64());
        }),
    gauge("criswitch_stats_late_seconds", BACKEND,
        "For how long the backend has not answered calls for stats, 0 if it answers them.", |seen, out| {
            each(seen, out, |backend| backend.known.stats_late_for().unwrap_or_default().as_secs_f64());
        }),
    gauge("criswitch_stale_stats_age_seconds", BACKEND,
        "How old the cached stats are that are served for the backend, 0 if none are.", |seen, out| {
            each(seen, out, |backend| backend.known.stale_stats_age().unwrap_or_default().as_secs_f64());
        }),
    counter("criswitch_stats_from_cache_total", BACKEND,
        "Merged replies to calls for stats that had cached stats of the backend.", |seen, out| {
            each(seen, out, |backend| backend.known.stats_from_cache as f64);
        }),
    counter("criswitch_lists_from_cache_total", BACKEND,
        "Merged lists in which a last known list stood in for the backend.", |seen, out| {
            each(seen, out, |backend| backend.known.lists_from_cache as f64);
        }),
    counter("criswitch_lists_omitted_total", BACKEND,
        "Merged lists and stats that the backend was omitted from.", |seen, out| {
            each(seen, out, |backend| backend.known.lists_omitted as f64);
        }),
    gauge("criswitch_backend_claimed_items", BACKEND,
        "Pods and containers of other backends that the backend lists.", |seen, out| {
            each(seen, out, |backend| backend.known.claims as f64);
        }),
    counter("criswitch_backend_dropped_items_total", BACKEND,
        "List items, stats and events of the backend that criswitch dropped because another backend owns the pod or container.",
        |seen, out| each(seen, out, |backend| backend.known.dropped as f64)),
    gauge("criswitch_image_fs_used_bytes", DISK,
        "Bytes that the backend's images take on a file system, as the backend last reported to the kubelet.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.used_bytes))),
    gauge("criswitch_image_fs_used_inodes", DISK,
        "Inodes that the backend's images take on a file system, likewise.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.used_inodes))),
    gauge("criswitch_image_fs_size_bytes", DISK,
        "The size of the file system that the backend's images are on.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.bytes))),
    gauge("criswitch_image_fs_available_bytes", DISK,
        "What is left of that file system for users other than root.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.available_bytes))),
    gauge("criswitch_image_fs_inodes", DISK,
        "The inodes of that file system; 0 if it has no limit.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.inodes))),
    gauge("criswitch_image_fs_free_inodes", DISK,
        "The inodes that are left of that file system.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.free_inodes))),
    gauge("criswitch_handler_info", &["handler", "backend"], "1: which backend a handler leads to.", |seen, out| {
        for (handler, backend) in seen.handlers() {
            out.add(&[handler, backend], 1.0);
        }
    }),
    counter("criswitch_reloads_total", &["result"],
        "Reloads that came to an end: ok, or rejected because something was wrong.", |seen, out| {
            let reloads = seen.switch.reloads();
            out.add(&["ok"], reloads.count.saturating_sub(reloads.rejected) as f64);
            out.add(&["rejected"], reloads.rejected as f64);
        }),
    gauge("criswitch_config_last_reload_successful", &[], "Whether the last reload was applied; 1 if there was none.", |seen, out| {
        out.add(&[], truth(seen.switch.reloads().recent.back().is_none_or(|last| last.result.is_ok())));
    }),
    gauge("criswitch_config_last_reload_timestamp_seconds", &[],
        "When the last reload ended, whether it was applied or not; nothing if there was none.", |seen, out| {
            one(out, seen.switch.reloads().recent.back().map(|last| timestamp(last.at)));
        }),
    counter("criswitch_log_lines_dropped_total", &[],
        "Log lines that were dropped because standard error was not read, or could not be written to.", |seen, out| {
            out.add(&[], seen.switch.log.dropped() as f64);
        }),
    gauge("criswitch_config_info", &["hash"], "1: the hash of what the configuration's files say.", |seen, out| {
        out.add(&[&seen.live.config.hash], 1.0);
    }),
    gauge("criswitch_build_info", &["version"], "1: what this is.", |_, out| {
        out.add(&[env!("CARGO_PKG_VERSION")], 1.0);
    }),
    counter("process_cpu_seconds_total", &[], "Processor time, the system's for it included.", |seen, out| {
        one(out, seen.process.cpu_seconds);
    }),
    gauge("process_resident_memory_bytes", &[], "Memory that is resident.", |seen, out| {
        one(out, seen.process.resident_bytes);
    }),
    gauge("process_virtual_memory_bytes", &[], "Memory that is mapped.", |seen, out| {
        one(out, seen.process.virtual_bytes);
    }),
    gauge("process_open_fds", &[], "File descriptors that are open.", |seen, out| one(out, seen.process.open_fds)),
    gauge("process_max_fds", &[], "File descriptors that may be open.", |seen, out| one(out, seen.process.max_fds)),
    gauge("process_start_time_seconds", &[], "When the process began.", |seen, out| {
        one(out, seen.process.start_seconds);
    }),
];

type Read = fn(&Seen, &mut Samples);
type LabelNames = &'static [&'static str];

const fn counter(name: &'static str, labels: LabelNames, help: &'static str, read: Read) -> Family {
    family(MetricKind::Counter, name, labels, help, read)
}

const fn gauge(name: &'static str, labels: LabelNames, help: &'static str, read: Read) -> Family {
    family(MetricKind::Gauge, name, labels, help, read)
}

const fn histogram(
    name: &'static str,
    labels: LabelNames,
    help: &'static str,
    read: Read,
) -> Family {
    family(MetricKind::Histogram, name, labels, help, read)
}

const fn family(
    kind: MetricKind,
    name: &'static str,
    labels: LabelNames,
    help: &'static str,
    read: Read,
) -> Family {
    Family {
        name,
        kind,
        labels,
        help,
        read,
    }
}

fn each(seen: &Seen, out: &mut Samples, value: impl Fn(&SeenBackend) -> f64) {
    for backend in &seen.backends {
        out.add(&[&backend.name], value(backend));
    }
}

fn each_disk(seen: &Seen, out: &mut Samples, value: impl Fn(&Disk) -> Option<u64>) {
    for backend in &seen.backends {
        for disk in backend.known.disks.shown() {
            if let Some(value) = value(disk) {
                out.add(&[&backend.name, &disk.mountpoint], value as f64);
            }
        }
    }
}

fn one(out: &mut Samples, value: Option<f64>) {
    if let Some(value) = value {
        out.add(&[], value);
    }
}

fn truth(holds: bool) -> f64 {
    f64::from(u8::from(holds))
}

fn timestamp(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}
