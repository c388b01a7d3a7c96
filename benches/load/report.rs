//! Prints the figures, the ratios and the verdicts.

use std::io::Write;
use std::time::Duration;

use tabwriter::TabWriter;

use crate::machine::Machine;
use crate::run::{Run, Trouble};

/// The limit on the resident memory at the end of a run.
const MOST_RESIDENT_KIB: u64 = 16 << 10;
/// The resident memory may grow by this percentage: the allocator alone causes that much variation.
const NO_GROWTH_PERCENT: u64 = 5;
/// The largest accepted ratio of the 99th percentile with a hanging backend to that without one.
const NO_COST: f64 = 1.05;

pub fn head(machine: &Machine, length: Duration) {
    let place = if machine.pinned {
        "criswitch on processor 1, backends and clients on processor 0"
    } else {
        "not pinned: no taskset, or one processor only"
    };
    println!(
        "200 clients, 4 backends, 1000 pods, 2000 containers, {} s a run; {place}; load average {}",
        length.as_secs(),
        machine.load(),
    );
}

pub fn progress(run: &Run) {
    println!("  {}: done", run.trouble.name());
}

pub fn print(runs: &[Run]) {
    println!("\n{}", aligned(&table(runs)));
    for run in runs {
        for tally in [&run.seen.busy, &run.seen.lists] {
            if let Some(failure) = &tally.failure {
                println!("failed ({}): {failure}", run.trouble.name());
            }
        }
    }
    println!("{}", aligned(&ratios(runs)));
    verdicts(runs);
}

fn table(runs: &[Run]) -> String {
    let head = "fourth backend\tcalls\tfailed\tp50 µs\tp99 µs\tCPU µs/call\twaited for CPU\tlists\tfailed\tslowest ms\
        \tfourth ok\tfailed\tRSS KiB half\tend\tmost\tload\n";
    let rows: String = runs.iter().map(row).collect();
    format!("{head}{rows}")
}

fn row(run: &Run) -> String {
    let (busy, lists, fourth) = (&run.seen.busy, &run.seen.lists, &run.seen.fourth);
    let cells = [
        run.trouble.name().to_owned(),
        busy.calls().to_string(),
        busy.failed.to_string(),
        busy.percentile_us(50).to_string(),
        busy.percentile_us(99).to_string(),
        format!("{:.1}", cpu_us(run)),
        format!("{:.1} s", run.took.waited.as_secs_f64()),
        lists.calls().to_string(),
        lists.failed.to_string(),
        (lists.percentile_us(100) / 1000).to_string(),
        (fourth.calls() - fourth.failed).to_string(),
        fourth.failed.to_string(),
        half(run).to_string(),
        end(run).to_string(),
        most(run).to_string(),
        run.load.clone(),
    ];
    cells.join("\t") + "\n"
}

/// Shows the figures of each run with a hanging fourth backend, relative to the run without a fault in the same round.
fn ratios(runs: &[Run]) -> String {
    let mut text = "relative to the run without a fault\tp50\tp99\tCPU/call\n".to_owned();
    for (run, base) in pairs(runs) {
        let ratio = |of: fn(&Run) -> f64| of(run) / of(base);
        text += &format!(
            "{}\t{:.3}\t{:.3}\t{:.3}\n",
            run.trouble.name(),
            ratio(|run| run.seen.busy.percentile_us(50).into()),
            ratio(p99),
            ratio(cpu_us),
        );
    }
    text
}

fn pairs(runs: &[Run]) -> impl Iterator<Item = (&Run, &Run)> {
    let rounds = runs.chunks(Trouble::ALL.len());
    rounds.flat_map(|round| {
        let (base, others) = round.split_first().unwrap();
        others.iter().map(move |run| (run, base))
    })
}

fn verdicts(runs: &[Run]) {
    let failed: usize = runs
        .iter()
        .map(|run| run.seen.busy.failed + run.seen.lists.failed)
        .sum();
    println!("failed calls to the other three backends, and failed lists: {failed}");
    for trouble in &Trouble::ALL[1..] {
        let (p99, cpu) = (median(runs, *trouble, p99), median(runs, *trouble, cpu_us));
        let verdict = if p99 <= NO_COST { "within" } else { "beyond" };
        println!(
            "fourth backend {}: median ratio for the other backends: p99 {p99:.3} ({verdict} 5 %), CPU/call {cpu:.3}",
            trouble.name()
        );
    }
    let usual = runs.iter().filter(|run| run.trouble != Trouble::ListsMany);
    let most = usual.map(end).max().unwrap_or_default();
    let verdict = if most < MOST_RESIDENT_KIB {
        "under"
    } else {
        "NOT under"
    };
    println!("resident memory in the end at most {most} KiB: {verdict} 16 MiB");
    let grew = runs.iter().filter(|run| grew(run)).count();
    println!(
        "runs whose resident memory grew in the second half: {grew} of {}",
        runs.len()
    );
}

/// Returns the median of the ratios of all rounds. The ratio of a round is the figure of its run with the fault
/// `trouble`, divided by the figure of its run without a fault.
fn median(runs: &[Run], trouble: Trouble, of: fn(&Run) -> f64) -> f64 {
    let of_trouble = pairs(runs).filter(|(run, _)| run.trouble == trouble);
    let mut ratios: Vec<f64> = of_trouble.map(|(run, base)| of(run) / of(base)).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.get(ratios.len() / 2).copied().unwrap_or_default()
}

fn p99(run: &Run) -> f64 {
    run.seen.busy.percentile_us(99).into()
}

/// Returns criswitch's processor time for each call of the busy clients. Other load on the machine hardly affects this
/// figure.
fn cpu_us(run: &Run) -> f64 {
    run.took.ran.as_secs_f64() * 1e6 / run.seen.busy.calls() as f64
}

fn half(run: &Run) -> u64 {
    run.resident_kib(40, 60)
}

fn end(run: &Run) -> u64 {
    run.resident_kib(80, 100)
}

fn most(run: &Run) -> u64 {
    run.resident_kib.iter().copied().max().unwrap_or_default()
}

fn grew(run: &Run) -> bool {
    end(run) * 100 > half(run) * (100 + NO_GROWTH_PERCENT)
}

fn aligned(text: &str) -> String {
    let mut writer = TabWriter::new(Vec::new()).padding(2);
    writer.write_all(text.as_bytes()).unwrap();
    String::from_utf8(writer.into_inner().unwrap()).unwrap()
}
