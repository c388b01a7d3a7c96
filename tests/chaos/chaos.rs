//! The fault simulation plays random schedules of calls, faults, reloads and restarts of criswitch. A seed determines
//! each schedule.
//!
//! Clients ask for complete lists and for lists filtered by id, short id, pod, state and labels. Image calls may name
//! a handler or a pod. A list of all images may have an older list of a store that does not answer. Backends may have
//! `auto_register`, and a restarted runtime may report different handlers. Runtimes may lack RPCs. A hostile runtime
//! lists pods that another backend owns, answers a create with an id of another backend, has pods with creation times
//! in the far future, and has pods with the uid of another backend's pod. criswitch is killed, or ends as on SIGTERM.
//!
//! Two runtimes may list one pod: a runtime lists copies of another runtime's pods, from their creation on or later, or
//! restarts as a second socket of another runtime. Either of them may stop listing the pod, and an operator may have
//! criswitch forget a backend that is down. A runtime may answer lists and stats with errors, or with an item that no
//! client can decode.
//!
//! `cargo run --profile suite --locked --example chaos -- --count 1000000 --threads 2` plays a million schedules.
//!
//! Each instance of criswitch saves its state in a separate directory. The next instance starts with a copy of the
//! files that the last instance left. The file of a backend may be unwritable. Between two instances a file may be
//! damaged, lost or old, a start may be killed, the machine may be rebooted, and the disk may be moved to another
//! machine. The judge remembers what clients saw of every instance.
//!
//! A run of 2,000 schedules, as in the nightly tests, reloads criswitch about 2,800 times. For about 800 of these
//! reloads the files have a mistake, so criswitch must change nothing. The last line of output shows both counts.
// The program may print, because it runs in a terminal. No other crate can reach its `pub` items.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    unreachable_pub,
    clippy::unwrap_used
)]

#[cfg(test)]
mod sabotage_noticed;
mod shorten;
mod simulation;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use simulation::plan::Plan;
use simulation::sabotage::Sabotage;

/// At most this many failures are printed.
const MOST_SHOWN: u64 = 5;
/// The number of schedules between two progress lines.
const PROGRESS: u64 = 10_000;

/// Plays random schedules of calls, faults, reloads and restarts against criswitch.
#[derive(Parser)]
struct Options {
    /// How many schedules to play.
    #[arg(long, default_value_t = 2000)]
    count: u64,
    /// The seed of the first schedule. Each further schedule has the next seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Plays only the schedule of this seed, up to eight times until it fails, and prints its steps. The same schedule
    /// may fail in one run and pass in another, because tokio wakes the waiters of an event in a random order.
    #[arg(long)]
    seed: Option<u64>,
    /// How many schedules are played at once.
    #[arg(long, default_value_t = 1)]
    threads: u64,
    /// Plays against a criswitch that lacks the named protection.
    #[arg(long, value_enum)]
    sabotage: Option<Sabotage>,
    /// Shows the log of criswitch at level INFO.
    #[arg(long)]
    log: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.log {
        let lines = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::INFO)
            .with_ansi(std::io::stderr().is_terminal());
        lines.without_time().with_writer(std::io::stderr).init();
    }
    // Disables the default panic message: a panic in a schedule is reported as a failure, with the schedule's seed.
    std::panic::set_hook(Box::new(|_| {}));
    let failed = match options.seed {
        Some(seed) => u64::from(!shown(seed, options.sabotage)),
        None => play_all(&options),
    };
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Plays all schedules, and returns how many failed.
fn play_all(options: &Options) -> u64 {
    let begun = Instant::now();
    let next = AtomicU64::new(options.from);
    let sums = Sums::default();
    std::thread::scope(|scope| {
        for _ in 0..options.threads {
            scope.spawn(|| play_on(options, &next, &sums));
        }
    });
    let [failed, reloads, rejected] = sums.0.map(AtomicU64::into_inner);
    let speed = options.count as f64 / begun.elapsed().as_secs_f64();
    println!(
        "{} passed, {failed} failed; {reloads} reloads, {rejected} of them rejected; {speed:.0} schedules a second",
        options.count - failed
    );
    failed
}

/// Three counts: failed schedules, reloads in the schedules that passed, and rejections among these reloads.
#[derive(Default)]
struct Sums([AtomicU64; 3]);

fn play_on(options: &Options, next: &AtomicU64, sums: &Sums) {
    let [failed, reloads, rejected] = &sums.0;
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= options.from + options.count {
            return;
        }
        let played = seed - options.from;
        if played > 0 && played.is_multiple_of(PROGRESS) {
            let failed = failed.load(Ordering::Relaxed);
            eprintln!("{played} of {} played, {failed} failed", options.count);
        }
        let (plan, sabotage) = (Plan::of(seed), options.sabotage);
        match simulation::play(&plan, sabotage) {
            Ok(played) => {
                reloads.fetch_add(played.reloads, Ordering::Relaxed);
                rejected.fetch_add(played.rejected, Ordering::Relaxed);
            }
            Err(violation) if failed.fetch_add(1, Ordering::Relaxed) < MOST_SHOWN => {
                report(&plan, sabotage, &violation);
            }
            Err(_) => {}
        }
    }
}

/// Prints and plays the schedule of `seed`. Returns whether the schedule passes.
fn shown(seed: u64, sabotage: Option<Sabotage>) -> bool {
    let plan = Plan::of(seed);
    for step in &plan.steps {
        println!("  {step:?}");
    }
    match shorten::play_again(&plan, sabotage) {
        Ok(()) => println!("seed {seed}: passed"),
        Err(violation) => {
            report(&plan, sabotage, &violation);
            return false;
        }
    }
    true
}

/// Prints a failure and the shortened schedule.
fn report(plan: &Plan, sabotage: Option<Sabotage>, violation: &str) {
    let shortened = shorten::shortened(plan, sabotage);
    let violation_then = shorten::play_again(&shortened, sabotage).err();
    let mut text = format!(
        "seed {}, topology {}: {violation}\nshortened:\n",
        plan.seed, plan.topology
    );
    for step in &shortened.steps {
        text += &format!("  {step:?}\n");
    }
    println!(
        "{text}then: {}",
        violation_then.unwrap_or_else(|| "it passes".to_owned())
    );
}
