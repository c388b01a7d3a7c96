//! The table of metric families, with one row for each family. Names of metrics occur only here. The metrics page,
//! docs/metrics.md and their tests derive from this table.

use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use strum::{VariantArray, VariantNames};

use super::samples::{LabelNames, MetricKind, Samples};
use super::seen::{Seen, SeenBackend};
use crate::backend::disks::Disk;
use crate::backend::state::State;
use crate::dispatch::fanout::status;
use crate::telemetry::counters::{OWN_BOUNDS, Reason, WHOLE_BOUNDS, code_name};
use criswitch_cri::facts::Level;
use criswitch_version::BUILD;

/// A family of metrics.
#[derive(Debug)]
pub struct FamilyRow {
    /// The metric's name.
    pub name: &'static str,
    /// The kind of the metric's values.
    pub kind: MetricKind,
    /// The names of the metric's labels.
    pub labels: LabelNames,
    /// The HELP text.
    pub help: &'static str,
    /// Reads the samples of the family from the state at the moment of the scrape.
    pub(super) read: fn(&Seen, &mut Samples),
}

const RPC: &[&str] = &["rpc"];
const BACKEND: &[&str] = &["backend"];
const HANDLER: &[&str] = &["handler"];
const DISK: &[&str] = &["backend", "mountpoint"];

/// Every family, in the order of the page.
#[rustfmt::skip] // The name and the help text of a family are on separate lines.
pub const FAMILIES: &[FamilyRow] = &[
    counter("criswitch_rpcs_total", &["rpc", "backend", "code"],
        "Calls of clients that have ended, by RPC, backend and gRPC code; without a backend if criswitch called several or none.", |seen, out| {
            for (backend, rpc, calls) in seen.calls() {
                for (code, count) in calls.codes() {
                    out.add(&[rpc, backend, &code_name(code)], count as f64);
                }
            }
        }),
    histogram("criswitch_rpc_duration_seconds", &["rpc", "backend"],
        "Duration of calls, as clients see it.", |seen, out| {
            for (backend, rpc, calls) in seen.calls() {
                out.add_times(&[rpc, backend], &WHOLE_BOUNDS, &calls.times);
            }
        }),
    histogram("criswitch_backend_part_duration_seconds", &["rpc", "backend"],
        "Duration of the backend's part of calls that go to several backends, until its answer or until criswitch no longer waits for it.", |seen, out| {
            for backend in &seen.backends {
                for (rpc, parts) in &backend.parts {
                    out.add_times(&[rpc, &backend.name], &WHOLE_BOUNDS, &parts.times);
                }
            }
        }),
    counter("criswitch_run_podsandbox_total", &["handler", "code"],
        "Calls of RunPodSandbox that have ended, by handler and gRPC code; the handler is empty if the routing table does not have it.", |seen, out| {
            for (handler, calls) in &seen.runs {
                for (code, count) in calls.codes() {
                    out.add(&[handler, &code_name(code)], count as f64);
                }
            }
        }),
    histogram("criswitch_run_podsandbox_duration_seconds", HANDLER,
        "Duration of RunPodSandbox calls, as clients see it; the handler is empty if the routing table does not have it.", |seen, out| {
            for (handler, calls) in &seen.runs {
                out.add_times(&[handler], &WHOLE_BOUNDS, &calls.times);
            }
        }),
    histogram("criswitch_rpc_own_seconds", RPC,
        "Time that criswitch itself spends on a call (proxy overhead), without the time in which the call waits.",
        |seen, out| {
            for (name, rpc) in &seen.rpcs {
                out.add_times(&[name], &OWN_BOUNDS, &rpc.own());
            }
        }),
    gauge("criswitch_rpcs_in_flight", RPC,
        "Calls in flight, including open streams.", |seen, out| {
            for (name, rpc) in &seen.rpcs {
                out.add(&[name], rpc.in_flight.load(Ordering::Relaxed) as f64);
            }
        }),
    counter("criswitch_request_bytes_total", RPC, "Bytes of requests that criswitch has read.", |seen, out| {
        for (name, rpc) in &seen.rpcs {
            out.add(&[name], rpc.received.load(Ordering::Relaxed) as f64);
        }
    }),
    counter("criswitch_reply_bytes_total", RPC, "Bytes of replies that criswitch has sent to clients.", |seen, out| {
        for (name, rpc) in &seen.rpcs {
            out.add(&[name], rpc.sent.load(Ordering::Relaxed) as f64);
        }
    }),
    gauge("criswitch_request_held_bytes", &[], "Bytes of requests that criswitch holds in memory.", |seen, out| {
        out.add(&[], seen.switch.requests.used() as f64);
    }),
    gauge("criswitch_unread_reply_bytes", &[],
        "Bytes of replies that clients have not read yet, including the room that is reserved for open streams.", |seen, out| {
            out.add(&[], seen.switch.unread.used() as f64);
        }),
    counter("criswitch_rejections_total", &["reason"],
        "Connections, requests, calls and replies that criswitch itself rejected, by reason.", |seen, out| {
            for reason in Reason::VARIANTS {
                out.add(&[reason.as_ref()], seen.switch.counts.rejected(*reason) as f64);
            }
        }),
    gauge("criswitch_open_connections", &[], "Open connections of clients.", |seen, out| {
        out.add(&[], seen.switch.counts.connections().1 as f64);
    }),
    counter("criswitch_connections_total", &[], "Connections of clients that criswitch has accepted.", |seen, out| {
        out.add(&[], seen.switch.counts.connections().0 as f64);
    }),
    gauge("criswitch_verdict", &["verdict"],
        "1 for the verdict of `criswitch status` on the node, 0 for every other verdict.", |seen, out| {
            for level in Level::VARIANTS {
                out.add(&[level.as_ref()], truth(seen.level == *level));
            }
        }),
    gauge("criswitch_backend_up", BACKEND, "1 if the backend is ready, else 0.", |seen, out| {
        each(seen, out, |backend| truth(backend.link.state.as_ref() == "ready"));
    }),
    gauge("criswitch_backend_state", &["backend", "state"],
        "1 for the current state of the backend, 0 for every other state.", |seen, out| {
            for backend in &seen.backends {
                for state in State::VARIANTS {
                    out.add(&[&backend.name, state], truth(backend.link.state.as_ref() == *state));
                }
            }
        }),
    gauge("criswitch_backend_state_since_timestamp_seconds", BACKEND,
        "When the backend entered its current state, as a Unix timestamp.", |seen, out| {
            each(seen, out, |backend| timestamp(backend.link.since));
        }),
    counter("criswitch_backend_transitions_total", BACKEND, "Changes of the backend's state.", |seen, out| {
        each(seen, out, |backend| backend.link.transitions as f64);
    }),
    gauge("criswitch_backend_retiring", BACKEND,
        "1 if no handler routes to the backend and the backend has no `auto_register`, so that it gets no new pods, else 0.",
        |seen, out| each(seen, out, |backend| truth(seen.live.retires(backend.id)))),
    gauge("criswitch_backend_info", &["backend", "socket", "runtime", "version", "cgroup_driver"],
        "A constant 1, labeled by the socket of the backend and by what the backend last reported; a label is empty if the backend has not reported it.", |seen, out| {
        for backend in &seen.backends {
            let [runtime, version, driver] = status::identity(&backend.known);
            out.add(&[&backend.name, &backend.socket, &runtime, &version, &driver], 1.0);
        }
    }),
    gauge("criswitch_backend_held_bytes", BACKEND,
        "Bytes of the backend's replies, cached lists and unread events that criswitch holds in memory.", |seen, out| {
            each(seen, out, |backend| backend.held as f64);
        }),
    gauge("criswitch_owned", &["backend", "kind"], "Pods and containers of the backend, by kind.", |seen, out| {
        for backend in &seen.backends {
            out.add(&[&backend.name, "pod"], backend.pods as f64);
            out.add(&[&backend.name, "container"], backend.containers as f64);
        }
    }),
    gauge("criswitch_pods", HANDLER,
        "Pods by runtime handler; the handler is empty if it is unknown or not in the routing table.", |seen, out| {
            for (handler, pods) in &seen.pods {
                out.add(&[handler], *pods as f64);
            }
        }),
    gauge("criswitch_lists_failing", &["backend", "list"],
        "1 if lists of pods, containers or images currently fail because of the backend, else 0.", |seen, out| {
            for backend in &seen.backends {
                for (list, fails) in backend.failing {
                    out.add(&[&backend.name, list], truth(fails));
                }
            }
        }),
    gauge("criswitch_backend_listed", BACKEND,
        "0 only until the first list of the backend on this node (alert CriswitchBackendNeverReached), else 1.",
        |seen, out| each(seen, out, |backend| truth(backend.listed))),
    gauge("criswitch_cached_list_age_seconds", BACKEND,
        "Age of the backend's cached lists of pods and containers, whether they are served or not; no sample if there are none.",
        |seen, out| {
            for backend in &seen.backends {
                if let Some(age) = backend.known.cached_list_age() {
                    out.add(&[&backend.name], age.as_secs_f64());
                }
            }
        }),
    gauge("criswitch_stale_lists", BACKEND,
        "1 if criswitch serves a cached list of pods, containers or images of the backend because it has no usable answer, else 0.", |seen, out| {
            each(seen, out, |backend| truth(backend.known.stale_age().or(backend.known.stale_image_age()).is_some()));
        }),
    gauge("criswitch_stale_list_age_seconds", BACKEND,
        "Age of the cached lists of pods and containers that criswitch serves for the backend; 0 if it serves none.", |seen, out| {
            each(seen, out, |backend| backend.known.stale_age().unwrap_or_default().as_secs_f64());
        }),
    gauge("criswitch_stale_image_list_age_seconds", BACKEND,
        "Age of the cached list of images that criswitch serves for the backend; 0 if it serves none.", |seen, out| {
            each(seen, out, |backend| backend.known.stale_image_age().unwrap_or_default().as_secs_f64());
        }),
    gauge("criswitch_stats_late_seconds", BACKEND,
        "Time since the backend stopped answering calls for stats with stats that can be used; 0 if it answers them.", |seen, out| {
            each(seen, out, |backend| backend.known.stats_late_for().unwrap_or_default().as_secs_f64());
        }),
    gauge("criswitch_stale_stats_age_seconds", BACKEND,
        "Age of the cached stats that criswitch serves for the backend; 0 if it serves none.", |seen, out| {
            each(seen, out, |backend| backend.known.stale_stats_age().unwrap_or_default().as_secs_f64());
        }),
    counter("criswitch_stats_from_cache_total", BACKEND,
        "Merged replies to calls for stats that contained cached stats of the backend.", |seen, out| {
            each(seen, out, |backend| backend.known.stats_from_cache as f64);
        }),
    counter("criswitch_lists_from_cache_total", BACKEND,
        "Merged lists that contained a cached list of the backend.", |seen, out| {
            each(seen, out, |backend| backend.known.lists_from_cache as f64);
        }),
    counter("criswitch_replies_omitted_total", BACKEND,
        "Merged replies to calls for stats, metrics, metric descriptors or ImageFsInfo that omitted the backend because it had no usable answer.", |seen, out| {
            each(seen, out, |backend| backend.known.replies_omitted as f64);
        }),
    gauge("criswitch_backend_failing_rpcs", &["backend", "rpc"],
        "A constant 1 for each RPC, such as ListContainers, whose last answer from the backend was an error or could not be read, or that the backend is late with; also for each RPC that every runtime must have and that the backend lacks.", |seen, out| {
            for backend in &seen.backends {
                for failure in backend.known.failing_rpcs() {
                    out.add(&[&backend.name, failure.row.name], 1.0);
                }
            }
        }),
    gauge("criswitch_backend_claimed_items", BACKEND,
        "Pods and containers that the backend lists although another backend owns them, ready pods that it lists with the uid of a pod that criswitch created at another backend, and containers with the uid label of another backend's pod.", |seen, out| {
            each(seen, out, |backend| backend.known.foreign_items() as f64);
        }),
    counter("criswitch_backend_dropped_items_total", BACKEND,
        "List items, stats and events of the backend that criswitch dropped because another backend owns the pod or container, and events that clients cannot decode.",
        |seen, out| each(seen, out, |backend| backend.known.dropped as f64)),
    gauge("criswitch_image_fs_used_bytes", DISK,
        "Bytes that the backend's images use on a file system, as the backend last reported to the kubelet.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.used_bytes))),
    gauge("criswitch_image_fs_used_inodes", DISK,
        "Inodes that the backend's images use on a file system, as the backend last reported to the kubelet.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.used_inodes))),
    gauge("criswitch_image_fs_size_bytes", DISK,
        "Size of the file system with the backend's images.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.bytes))),
    gauge("criswitch_image_fs_available_bytes", DISK,
        "Bytes of the file system with the backend's images that are available to users other than root.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.available_bytes))),
    gauge("criswitch_image_fs_inodes", DISK,
        "Inodes of the file system with the backend's images; 0 if it has no limit.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.inodes))),
    gauge("criswitch_image_fs_free_inodes", DISK,
        "Free inodes of the file system with the backend's images.",
        |seen, out| each_disk(seen, out, |disk| Some(disk.room?.free_inodes))),
    gauge("criswitch_handler_info", &["handler", "backend"], "A constant 1, labeled by a handler and the backend that it routes to.", |seen, out| {
        for (handler, backend) in seen.handlers() {
            out.add(&[handler, backend], 1.0);
        }
    }),
    counter("criswitch_reloads_total", &["result"],
        "Reloads that have ended, by result: ok, or rejected because the configuration was wrong or needs a restart.", |seen, out| {
            let reloads = seen.switch.reloads();
            out.add(&["ok"], reloads.count.saturating_sub(reloads.rejected) as f64);
            out.add(&["rejected"], reloads.rejected as f64);
        }),
    gauge("criswitch_config_last_reload_successful", &[], "1 if the last reload was applied or there was none, 0 if it was rejected.", |seen, out| {
        out.add(&[], truth(seen.switch.reloads().recent.back().is_none_or(|last| last.result.is_ok())));
    }),
    gauge("criswitch_config_last_reload_timestamp_seconds", &[],
        "When the last reload ended, applied or rejected, as a Unix timestamp; no sample if there was none.", |seen, out| {
            one(out, seen.switch.reloads().recent.back().map(|last| timestamp(last.at)));
        }),
    gauge("criswitch_restart_safe", &[],
        "1 if criswitch would start with the configuration files on disk, 0 if they have a problem.", |seen, out| {
            out.add(&[], truth(seen.switch.reloads().restart_problems().is_empty()));
        }),
    counter("criswitch_log_lines_dropped_total", &[],
        "Log lines that criswitch dropped because standard error was not read or not writable.", |seen, out| {
            out.add(&[], seen.switch.log.dropped() as f64);
        }),
    gauge("criswitch_config_info", &["hash"], "A constant 1, labeled by the hash of the configuration in use.", |seen, out| {
        out.add(&[&seen.live.config.hash], 1.0);
    }),
    gauge("criswitch_build_info", &["version", "revision"],
        "A constant 1, labeled by the version of criswitch and the commit of its sources.", |_, out| {
        out.add(&[BUILD.version, BUILD.revision()], 1.0);
    }),
    counter("process_cpu_seconds_total", &[], "Total user and system CPU time.", |seen, out| {
        one(out, seen.process.cpu_seconds);
    }),
    gauge("process_resident_memory_bytes", &[], "Resident memory size.", |seen, out| {
        one(out, seen.process.resident_bytes);
    }),
    gauge("process_virtual_memory_bytes", &[], "Virtual memory size.", |seen, out| {
        one(out, seen.process.virtual_bytes);
    }),
    gauge("process_open_fds", &[], "Number of open file descriptors.", |seen, out| one(out, seen.process.open_fds)),
    gauge("process_max_fds", &[], "Maximum number of open file descriptors.", |seen, out| one(out, seen.process.max_fds)),
    gauge("process_start_time_seconds", &[], "Start time of the process, as a Unix timestamp.", |seen, out| {
        one(out, seen.process.start_seconds);
    }),
];

type Read = fn(&Seen, &mut Samples);

const fn counter(
    name: &'static str,
    labels: LabelNames,
    help: &'static str,
    read: Read,
) -> FamilyRow {
    family(MetricKind::Counter, name, labels, help, read)
}

const fn gauge(
    name: &'static str,
    labels: LabelNames,
    help: &'static str,
    read: Read,
) -> FamilyRow {
    family(MetricKind::Gauge, name, labels, help, read)
}

const fn histogram(
    name: &'static str,
    labels: LabelNames,
    help: &'static str,
    read: Read,
) -> FamilyRow {
    family(MetricKind::Histogram, name, labels, help, read)
}

const fn family(
    kind: MetricKind,
    name: &'static str,
    labels: LabelNames,
    help: &'static str,
    read: Read,
) -> FamilyRow {
    FamilyRow {
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
