//! What `cargo bench` says to each benchmark.

/// Which benchmarks are wanted.
#[derive(clap::Args)]
pub struct Wanted {
    /// Given by `cargo bench`; without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
    /// Given by `cargo test --benches`.
    #[arg(long, hide = true)]
    test: bool,
    /// Only benchmarks whose names contain this text.
    filter: Option<String>,
}

impl Wanted {
    /// Whether the benchmark `name` is to run.
    pub fn has(&self, name: &str) -> bool {
        let is_named = |filter: &String| name.contains(filter.as_str());
        self.bench && !self.test && self.filter.as_ref().is_none_or(is_named)
    }
}
