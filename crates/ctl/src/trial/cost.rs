//! The cost of the pods of a handler: the median and the spread of each figure, and the overhead that follows.

use std::collections::BTreeSet;
use std::time::Duration;

use criswitch_platform::PodUsage;
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::row::{self, Quantities};
use super::steps::milliseconds;

const MIB: u64 = 1 << 20;
/// The columns of the comparison. A cell has the median, the least and the greatest value of all runs.
#[rustfmt::skip]
pub(super) const HEADER: [&str; 9] = [
    "HANDLER", "POD", "MEMORY (MiB)", "OUTSIDE (MiB)", "START CPU (ms)", "IDLE CPU (m)", "START (ms)", "STOP (ms)",
    "OVERHEAD",
];

/// The figures of one pod.
pub(super) struct Run {
    pub(super) idle: Idle,
    /// The memory of the pod's virtual machine that is not used yet, in bytes; `None` without a virtual machine.
    pub(super) free_in_guest_bytes: Option<u64>,
    pub(super) start: Duration,
    pub(super) stop: Duration,
}

/// The usage of an idle pod. For a while after its start a pod uses more processor time than later. So the usage is
/// read in consecutive windows of time until two windows in a row agree.
pub(super) struct Idle {
    /// The usage at the end of the last window.
    pub(super) usage: PodUsage,
    /// The processor time until the pod, or its container, had started.
    pub(super) start_cpu: Duration,
    /// The processor time within the last two windows, and their length.
    pub(super) cpu: Duration,
    pub(super) window: Duration,
    /// The time between the start and these two windows.
    pub(super) settling: Duration,
    /// Whether the two windows agree.
    pub(super) has_settled: bool,
}

/// The runs of both kinds of pods.
#[derive(Default)]
pub(super) struct Cost {
    pub(super) empty: Vec<Run>,
    pub(super) container: Vec<Run>,
}

/// A figure of each run, in the order of the runs. The median of an even number of values is the mean of the two in the
/// middle.
#[derive(Serialize)]
struct Figure {
    values: Vec<f64>,
    min: f64,
    median: f64,
    max: f64,
}

impl Cost {
    /// The overhead of a pod, by the rules in the help of the command.
    pub(super) fn overhead(&self) -> Quantities {
        let runs = self.container.iter();
        let idle = runs.clone().map(|run| run.idle.cpu).sum();
        let windows = runs.clone().map(|run| run.idle.window).sum();
        let mut overhead = Quantities::new();
        let cpu = millicores(idle, windows).round();
        if cpu >= 1.0 {
            overhead.insert("cpu".to_owned(), format!("{cpu:.0}m"));
        }
        let most = runs.map(Run::max_memory_bytes).max().unwrap_or_default();
        overhead.insert("memory".to_owned(), format!("{}Mi", most.div_ceil(MIB)));
        overhead
    }

    /// The rows of the comparison: an empty pod, and a pod with a container.
    pub(super) fn rows(&self, handler: &str) -> [[String; HEADER.len()]; 2] {
        let overhead = row::braces(&self.overhead());
        [
            ("empty", &self.empty, String::new()),
            ("1 container", &self.container, overhead),
        ]
        .map(|(pod, runs, overhead)| {
            [
                handler.to_owned(),
                pod.to_owned(),
                Figure::of(runs, |run| mebibytes(run.memory_bytes())).text(1),
                Figure::of(runs, |run| mebibytes(run.idle.usage.outside().memory_bytes)).text(1),
                Figure::of(runs, |run| milliseconds(run.idle.start_cpu)).text(0),
                Figure::of(runs, Run::idle_millicores).text(1),
                Figure::of(runs, |run| milliseconds(run.start)).text(0),
                Figure::of(runs, |run| milliseconds(run.stop)).text(0),
                overhead,
            ]
        })
    }

    pub(super) fn json(&self) -> Json {
        let overhead = self.overhead();
        json!({
            "runs": self.container.len(),
            "empty": pods(&self.empty),
            "container": pods(&self.container),
            "overhead": overhead,
            "row": row::line(&overhead),
            "notes": self.notes(),
        })
    }

    /// Facts that the figures do not show: the memory outside of the pod's cgroup, which no limit bounds; the memory
    /// that a virtual machine may still use; file pages that the cgroups of other pods are charged for; and a pod that
    /// was not idle. The notes have the figures of the run with the most memory.
    pub(super) fn notes(&self) -> Vec<String> {
        let Some(run) = self
            .container
            .iter()
            .max_by_key(|run| run.max_memory_bytes())
        else {
            return Vec::new();
        };
        let mut notes = Vec::new();
        let outside = run.idle.usage.outside().memory_bytes;
        if outside > 0 {
            notes.push(format!(
                "Kubernetes adds the overhead to the limits of the pod's cgroup; {} of the {} are outside of it, and no \
                 limit bounds them",
                size(outside),
                size(run.memory_bytes())
            ));
        }
        if let Some(free) = run.free_in_guest_bytes {
            notes.push(format!(
                "the pod uses {} while idle, and its virtual machine may use {} more; the overhead has both. If the \
                 runtime has sandbox_cgroup_only = true, the kernel ends a virtual machine that needs more than the \
                 overhead and the limits of its containers",
                size(run.memory_bytes()),
                size(free)
            ));
        }
        let elsewhere = run.idle.usage.charged_elsewhere_bytes();
        if elsewhere > 0 {
            notes.push(format!(
                "the pod also uses at least {} of file pages that the cgroups of other pods are charged for; the \
                 overhead does not have them",
                size(elsewhere)
            ));
        }
        if self.container.iter().any(|run| !run.idle.has_settled) {
            notes.push(
                "the processor time still changed after a minute, so the pod was perhaps not idle; try a longer --idle"
                    .to_owned(),
            );
        }
        notes
    }
}

/// The figures of all runs with the same kind of pod. `f64` represents these numbers of bytes exactly.
fn pods(runs: &[Run]) -> Json {
    let processes: BTreeSet<&str> = runs
        .iter()
        .flat_map(|run| &run.idle.usage.processes)
        .map(|process| &*process.name)
        .collect();
    json!({
        "memoryBytes": Figure::of(runs, |run| run.memory_bytes() as f64),
        "cgroupMemoryBytes": Figure::of(runs, |run| run.idle.usage.in_cgroups.memory_bytes as f64),
        "outsideMemoryBytes": Figure::of(runs, |run| run.idle.usage.outside().memory_bytes as f64),
        "outsideProcesses": processes,
        "chargedElsewhereBytes": Figure::of(runs, |run| run.idle.usage.charged_elsewhere_bytes() as f64),
        "freeInGuestBytes": runs.iter().filter_map(|run| run.free_in_guest_bytes).max(),
        "startCpuMilliseconds": Figure::of(runs, |run| milliseconds(run.idle.start_cpu)),
        "idleCpuMillicores": Figure::of(runs, Run::idle_millicores),
        "settlingMilliseconds": Figure::of(runs, |run| milliseconds(run.idle.settling)),
        "startMilliseconds": Figure::of(runs, |run| milliseconds(run.start)),
        "stopMilliseconds": Figure::of(runs, |run| milliseconds(run.stop)),
    })
}

impl Run {
    /// The memory of the idle pod.
    fn memory_bytes(&self) -> u64 {
        self.idle.usage.total().memory_bytes
    }

    /// The memory that the idle pod uses, and the memory that its virtual machine may use in addition.
    fn max_memory_bytes(&self) -> u64 {
        self.memory_bytes() + self.free_in_guest_bytes.unwrap_or_default()
    }

    /// The processor time of the idle pod, in thousandths of a processor.
    fn idle_millicores(&self) -> f64 {
        millicores(self.idle.cpu, self.idle.window)
    }
}

impl Figure {
    fn of(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Figure {
        Figure::new(runs.iter().map(figure).collect())
    }

    fn new(values: Vec<f64>) -> Figure {
        let mut sorted = values.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let last = sorted.len().saturating_sub(1);
        Figure {
            min: at(0),
            median: f64::midpoint(at(last / 2), at(sorted.len() / 2)),
            max: at(last),
            values,
        }
    }

    /// The median, and the least and the greatest value, with this number of decimals.
    fn text(&self, decimals: usize) -> String {
        let (min, median, max) = (self.min, self.median, self.max);
        format!("{median:.decimals$} ({min:.decimals$}-{max:.decimals$})")
    }
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn size(bytes: u64) -> String {
    format!("{:.1} MiB", mebibytes(bytes))
}

fn millicores(cpu: Duration, time: Duration) -> f64 {
    if time.is_zero() {
        0.0
    } else {
        1000.0 * cpu.as_secs_f64() / time.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use criswitch_platform::{PodUsage, ProcessUsage, Usage};

    use super::*;

    fn run(memory_bytes: u64, shim_bytes: u64, cpu: Duration) -> Run {
        let usage = |memory_bytes| Usage {
            memory_bytes,
            cpu: Duration::ZERO,
        };
        let usage = PodUsage {
            in_cgroups: usage(memory_bytes),
            processes: vec![ProcessUsage {
                id: 1,
                name: "shim".to_owned(),
                usage: usage(shim_bytes),
            }],
            ..PodUsage::default()
        };
        Run {
            idle: Idle {
                usage,
                start_cpu: Duration::ZERO,
                cpu,
                window: Duration::from_secs(1),
                settling: Duration::ZERO,
                has_settled: true,
            },
            free_in_guest_bytes: None,
            start: Duration::ZERO,
            stop: Duration::ZERO,
        }
    }

    fn overhead(container: Vec<Run>) -> String {
        let cost = Cost {
            // An empty pod does not count.
            empty: vec![run(99 * MIB, 0, Duration::from_secs(1))],
            container,
        };
        row::line(&cost.overhead())
    }

    #[test]
    fn the_overhead_has_the_largest_memory_rounded_up() {
        let none = Duration::ZERO;
        let runs = vec![run(MIB, 2 * MIB, none), run(2 * MIB, 2 * MIB + 1, none)];
        assert_eq!(overhead(runs), "overhead = { memory = \"5Mi\" }");
        let exact = vec![run(2 * MIB, 2 * MIB, none)];
        assert_eq!(overhead(exact), "overhead = { memory = \"4Mi\" }");
    }

    #[test]
    fn the_overhead_of_a_virtual_machine_has_the_memory_that_its_guest_may_use() {
        let mut guest = run(300 * MIB, MIB, Duration::ZERO);
        guest.free_in_guest_bytes = Some(1700 * MIB);
        let cost = Cost {
            empty: Vec::new(),
            container: vec![guest],
        };
        let line = "overhead = { memory = \"2001Mi\" }";
        assert_eq!(row::line(&cost.overhead()), line);
        let notes = cost.notes();
        assert!(notes[0].contains("1.0 MiB of the 301.0 MiB are outside of it"));
        assert!(notes[1].contains(
            "uses 301.0 MiB while idle, and its virtual machine may use 1700.0 MiB more"
        ));
        assert_eq!(notes.len(), 2);
    }

    #[test]
    fn notes_name_pages_of_other_pods_and_a_pod_that_was_not_idle() {
        let mut odd = run(MIB, 0, Duration::ZERO);
        odd.idle.usage.pss_in_cgroups_bytes = 64 * MIB;
        odd.idle.has_settled = false;
        let cost = Cost {
            empty: Vec::new(),
            container: vec![odd, run(MIB - 1, 0, Duration::ZERO)],
        };
        let notes = cost.notes();
        assert!(
            notes[0].contains("at least 63.0 MiB of file pages"),
            "{notes:?}"
        );
        assert!(notes[1].contains("a longer --idle"), "{notes:?}");
        assert_eq!(notes.len(), 2);
        let quiet = Cost {
            empty: Vec::new(),
            container: vec![run(MIB, 0, Duration::ZERO)],
        };
        assert!(quiet.notes().is_empty());
    }

    #[test]
    fn the_overhead_has_the_mean_processor_time_unless_it_is_below_half_a_millicore() {
        let idle = |micros: [u64; 2]| {
            let runs = micros.map(|micros| run(MIB, 0, Duration::from_micros(micros)));
            overhead(runs.into())
        };
        let none = "overhead = { memory = \"1Mi\" }";
        assert_eq!(idle([980, 0]), none);
        let one = "overhead = { cpu = \"1m\", memory = \"1Mi\" }";
        assert_eq!(idle([1000, 0]), one);
        let many = "overhead = { cpu = \"13m\", memory = \"1Mi\" }";
        assert_eq!(idle([5_000, 20_000]), many);
    }

    #[test]
    fn a_figure_shows_its_median_and_its_spread() {
        let figure = |values: &[f64]| Figure::new(values.to_vec());
        assert_eq!(figure(&[5.0, 1.04, 3.0]).text(1), "3.0 (1.0-5.0)");
        assert_eq!(figure(&[5.0, 1.6]).text(0), "3 (2-5)");
        assert_eq!(figure(&[4.0, 1.0, 2.0, 9.0]).text(0), "3 (1-9)");
        assert_eq!(figure(&[7.0]).text(0), "7 (7-7)");
        let expected = json!({ "median": 1.5, "min": 1.0, "max": 2.0, "values": [2.0, 1.0] });
        assert_eq!(json!(figure(&[2.0, 1.0])), expected);
    }
}
