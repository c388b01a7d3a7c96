//! The arguments that `cargo bench` passes to each benchmark.

/// Selects the benchmarks that run.
#[derive(clap::Args)]
pub struct Wanted {
    /// `cargo bench` passes this option. Without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
    /// Users pass this option: `cargo bench -- --test`. With it nothing is measured.
    #[arg(long, hide = true)]
    test: bool,
    /// A part of the names of the benchmarks that run.
    filter: Option<String>,
}

impl Wanted {
    /// Whether the benchmark `name` must run.
    pub fn has(&self, name: &str) -> bool {
        let is_named = |filter: &String| name.contains(filter.as_str());
        self.bench && !self.test && self.filter.as_ref().is_none_or(is_named)
    }
}
