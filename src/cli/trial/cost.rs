//! The cost of the pods of a handler: the median and the spread of each figure, and the overhead that follows.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::measure::Run;
use super::row::{self, Quantities};
use super::steps::milliseconds;

const MIB: u64 = 1 << 20;
/// The columns of the comparison. A cell has the median, the least and the greatest value of all runs.
pub(super) const HEADER: [&str; 9] = [
    "HANDLER",
    "POD",
    "MEMORY (MiB)",
    "OUTSIDE (MiB)",
    "START CPU (ms)",
    "IDLE CPU (m)",
    "START (ms)",
    "STOP (ms)",
    "OVERHEAD",
];

/// The runs of both kinds of pods.
#[derive(Default)]
pub(super) struct Cost {
    pub(super) empty: Vec<Run>,
    pub(super) container: Vec<Run>,
}

/// A figure of each run, in the order of the runs.
#[derive(Debug)]
struct Figure(Vec<f64>);

impl Cost {
    /// The overhead of a pod, by the rules in the help of the command.
    pub(super) fn overhead(&self) -> Quantities {
        let runs = self.container.iter();
        let largest = runs.clone().map(|run| run.usage.total().memory_bytes).max();
        let memory = largest.unwrap_or_default().div_ceil(MIB);
        let idle: Duration = runs.clone().map(|run| run.idle_cpu).sum();
        let windows: Duration = runs.map(|run| run.window).sum();
        let cpu = millicores(idle, windows).round();
        let cpu = (cpu >= 1.0).then(|| ("cpu".to_owned(), format!("{cpu:.0}m")));
        let memory = ("memory".to_owned(), format!("{memory}Mi"));
        cpu.into_iter().chain([memory]).collect()
    }

    /// The rows of the comparison: an empty pod, and a pod with a container.
    pub(super) fn rows(&self, handler: &str) -> [[String; HEADER.len()]; 2] {
        let row = |pod: &str, runs: &[Run], overhead: String| {
            [
                handler.to_owned(),
                pod.to_owned(),
                Figure::of(runs, |run| mebibytes(run.usage.total().memory_bytes)).text(1),
                Figure::of(runs, |run| mebibytes(run.usage.outside().memory_bytes)).text(1),
                Figure::of(runs, |run| milliseconds(run.start_cpu)).text(0),
                Figure::of(runs, Run::idle).text(1),
                Figure::of(runs, |run| milliseconds(run.start)).text(0),
                Figure::of(runs, |run| milliseconds(run.stop)).text(0),
                overhead,
            ]
        };
        let overhead = row::braces(&self.overhead());
        [
            row("empty", &self.empty, String::new()),
            row("1 container", &self.container, overhead),
        ]
    }

    pub(super) fn json(&self) -> Json {
        let overhead = self.overhead();
        json!({
            "runs": self.container.len(),
            "empty": pods(&self.empty),
            "container": pods(&self.container),
            "overhead": overhead,
            "row": row::line(&overhead),
        })
    }
}

/// The figures of all pods of a kind. Whole numbers of bytes are exact.
fn pods(runs: &[Run]) -> Json {
    let bytes = |bytes: fn(&Run) -> u64| Figure::of(runs, |run| bytes(run) as f64).json();
    let time = |time: fn(&Run) -> Duration| Figure::of(runs, |run| milliseconds(time(run))).json();
    let processes = runs.iter().flat_map(|run| &run.usage.processes);
    let processes: BTreeSet<&str> = processes.map(|process| &*process.name).collect();
    json!({
        "memoryBytes": bytes(|run| run.usage.total().memory_bytes),
        "cgroupMemoryBytes": bytes(|run| run.usage.in_cgroups.memory_bytes),
        "outsideMemoryBytes": bytes(|run| run.usage.outside().memory_bytes),
        "outsideProcesses": processes,
        "startCpuMilliseconds": time(|run| run.start_cpu),
        "idleCpuMillicores": Figure::of(runs, Run::idle).json(),
        "startMilliseconds": time(|run| run.start),
        "stopMilliseconds": time(|run| run.stop),
    })
}

impl Run {
    /// The processor time within the window, in thousandths of a processor.
    fn idle(&self) -> f64 {
        millicores(self.idle_cpu, self.window)
    }
}

impl Figure {
    fn of(runs: &[Run], figure: impl Fn(&Run) -> f64) -> Figure {
        Figure(runs.iter().map(figure).collect())
    }

    /// The least value, the median and the greatest value. The median of an even number of values is the mean of the two
    /// in the middle.
    fn spread(&self) -> [f64; 3] {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let last = sorted.len().saturating_sub(1);
        let median = f64::midpoint(at(last / 2), at(sorted.len() / 2));
        [at(0), median, at(last)]
    }

    /// The median, and the least and the greatest value, with this number of decimals.
    fn text(&self, decimals: usize) -> String {
        let [least, median, greatest] = self.spread();
        format!("{median:.decimals$} ({least:.decimals$}-{greatest:.decimals$})")
    }

    fn json(&self) -> Json {
        let [least, median, greatest] = self.spread();
        json!({ "median": median, "min": least, "max": greatest, "values": self.0 })
    }
}

pub(super) fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

fn millicores(cpu: Duration, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => 1000.0 * cpu.as_secs_f64() / time.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use criswitch::platform::{PodUsage, ProcessUsage, Usage};

    use super::*;

    fn run(memory_bytes: u64, shim_bytes: u64, idle_cpu: Duration) -> Run {
        let usage = |memory_bytes| Usage {
            memory_bytes,
            cpu: Duration::ZERO,
        };
        Run {
            usage: PodUsage {
                cgroups: Vec::new(),
                in_cgroups: usage(memory_bytes),
                processes: vec![ProcessUsage {
                    id: 1,
                    name: "shim".to_owned(),
                    usage: usage(shim_bytes),
                }],
            },
            start_cpu: Duration::ZERO,
            idle_cpu,
            window: Duration::from_secs(1),
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
        assert_eq!(Figure(vec![5.0, 1.04, 3.0]).text(1), "3.0 (1.0-5.0)");
        assert_eq!(Figure(vec![5.0, 1.6]).text(0), "3 (2-5)");
        assert_eq!(Figure(vec![4.0, 1.0, 2.0, 9.0]).spread(), [1.0, 3.0, 9.0]);
        assert_eq!(Figure(vec![7.0]).spread(), [7.0; 3]);
        let json = Figure(vec![2.0, 1.0]).json();
        assert_eq!(json["values"], json!([2.0, 1.0]));
        assert_eq!(json["median"], 1.5);
    }
}
