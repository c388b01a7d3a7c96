//! criswitch under load while one of its backends hangs: `cargo bench --bench load -- --seconds 60 --runs 3`.
//!
//! There are 200 clients, four backends with 500 containers each, and criswitch's real binary in a separate process. A
//! round has a run without a fault and one for each fault of the fourth backend: it hangs, only its lists hang, or it
//! lists 100,000 pods that change. No call to another backend may be affected. On a busy machine criswitch waits for
//! its processor, so only the median of several runs is a valid latency. Failed calls and growing memory are faults on
//! any machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    missing_docs,
    unreachable_pub,
    reason = "a benchmark may stop"
)]

mod backend;
#[path = "../support/cargo_bench.rs"]
mod cargo_bench;
mod clients;
#[path = "../support/items.rs"]
mod items;
mod machine;
mod report;
mod run;
#[path = "../support/unit.rs"]
mod unit;

use std::time::Duration;

use cargo_bench::Wanted;
use clap::Parser;
use criswitch_testing as support;

use machine::Machine;
use run::{Run, Trouble};

/// Measures the cost of a hanging backend for calls to the others, and criswitch's memory.
#[derive(Parser)]
struct Arguments {
    /// How long each run is measured, in seconds, after it has warmed up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often each kind is run.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    #[command(flatten)]
    wanted: Wanted,
}

fn main() {
    let arguments = Arguments::parse();
    if !arguments.wanted.has("load") {
        return;
    }
    let machine = Machine::prepare();
    let length = Duration::from_secs(arguments.seconds);
    let mut runs = Vec::new();
    report::head(&machine, length);
    for _ in 0..arguments.runs {
        for trouble in Trouble::ALL {
            let run = block_on(Run::measure(&machine, trouble, length));
            report::progress(&run);
            runs.push(run);
        }
    }
    report::print(&runs);
}

/// Runs a future on one thread, so that clients and backends stay on their processor.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}
