//! `criswitch node run`: runs a command of criswitch on the node of a pod of the chart. The pod has no socket and no
//! file of criswitch, so systemd runs the command on the node.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use criswitch_client::arguments::directory;
use criswitch_client::exit::Verdict;
use criswitch_client::program::block_on;
use criswitch_platform::{create_new, remove};

use super::changes::PRIVATE;
use super::follow::PROGRAM;
use super::journal::DIRECTORY;
use super::root::Root;
use super::systemd::TransientUnit;

/// The limit on standard input. A file for `explain` is smaller.
const MAX_INPUT: u64 = 8 << 20;

const INPUT: &str = "/var/lib/criswitch/node/run.in";
const OUTPUT: &str = "/var/lib/criswitch/node/run.log";
const ERRORS: &str = "/var/lib/criswitch/node/run.err";

/// Runs one command at a time.
const RUN: TransientUnit = TransientUnit {
    name: "criswitch-run.service",
    input: Some(INPUT),
    output: OUTPUT,
    errors: Some(ERRORS),
    after: &[],
};

/// The arguments of `criswitch node run`.
#[derive(Args)]
pub struct RunArguments {
    /// Pass standard input to the command.
    #[arg(long)]
    stdin: bool,
    /// The directory with /run/systemd and /var/lib/criswitch/node of the node.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    /// The command of criswitch and its arguments, such as status -o json.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    #[arg(value_name = "COMMAND")]
    words: Vec<String>,
}

impl RunArguments {
    pub fn run(&self) -> anyhow::Result<Verdict> {
        let root = Root::of(&self.root);
        ensure!(
            root.at(Path::new(PROGRAM)).exists(),
            "the node has no {PROGRAM}; run the command in a pod of the chart whose mode is plan or install, 11 seconds after \
             its start"
        );
        // Two commands would use the same files.
        let lock = File::open(root.at(Path::new(DIRECTORY)))
            .with_context(|| format!("cannot read {DIRECTORY}"))?;
        let is_free = lock.try_lock().is_ok() && !block_on(RUN.is_active(&root))?;
        ensure!(is_free, "another command runs on the node; try again");
        let ran = self.run_unit(&root);
        for file in [INPUT, OUTPUT] {
            remove(&root.at(Path::new(file)))?;
        }
        ran
    }

    fn run_unit(&self, root: &Root<'_>) -> anyhow::Result<Verdict> {
        let input = root.at(Path::new(INPUT));
        let mut file = remove(&input)
            .and_then(|()| create_new(&input, PRIVATE))
            .with_context(|| format!("cannot write {INPUT}"))?;
        if self.stdin {
            let size = io::copy(&mut io::stdin().lock().take(MAX_INPUT), &mut file)?;
            ensure!(
                size < MAX_INPUT,
                "standard input is larger than {MAX_INPUT} bytes"
            );
        }
        let ended = block_on(RUN.run(root, Path::new(PROGRAM), &self.words, false))?;
        // The output is copied as bytes, because an archive is not text.
        io::copy(
            &mut File::open(root.at(Path::new(OUTPUT)))?,
            &mut io::stdout().lock(),
        )?;
        Ok(ended.verdict)
    }
}
