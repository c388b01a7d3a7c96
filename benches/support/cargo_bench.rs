//! The arguments that `cargo bench` passes to each benchmark.

/// The selection of benchmarks.
#[derive(clap::Args)]
pub struct Wanted {
    /// `cargo bench` passes this option. Without it (`cargo test --benches`) nothing is measured.
    #[arg(long, hide = true)]
    bench: bool,
    /// `cargo test --benches` passes this option.
    #[arg(long, hide = true)]
    test: bool,
    /// A text that the names of the selected benchmarks contain.
    filter: Option<String>,
}

impl Wanted {
    /// Whether the benchmark `name` is to run.
    pub fn has(&self, name: &str) -> bool {
        let is_named = |filter: &String| name.contains(filter.as_str());
        self.bench && !self.test && self.filter.as_ref().is_none_or(is_named)
    }
}
