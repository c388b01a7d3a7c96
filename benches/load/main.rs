//! The switch under load while one of its backends hangs: `cargo bench --bench load -- --seconds 60 --runs 3`.
//!
//! 200 clients, four backends with 500 containers each, the real binary in a process of its own. Runs in which nothing
//! goes wrong alternate with runs in which the fourth backend hangs, wholly or only its lists: nobody else may notice.
//! A busy machine shows as time that the switch waited for its processor; then only the median of several runs says
//! something about latency. Calls that fail and memory that grows are faults on any machine.
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
mod machine;
mod report;
mod run;
#[path = "../../tests/support/support.rs"]
mod support;

use std::time::Duration;

use cargo_bench::Wanted;
use clap::Parser;

use machine::Machine;
use run::{Run, Trouble};

/// What a backend that hangs costs the calls to the others, and the switch's memory.
#[derive(Parser)]
struct Arguments {
    /// How long each run is measured, after it has warmed up.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How many times each kind of run is done, in turn.
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

/// One thread, so that clients and backends keep to the processor that they were given.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(future)
}
