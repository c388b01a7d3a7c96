//! `criswitch completions` and `criswitch man`: what a shell and a reader are told of the command line, made from the
//! same definitions that read it.

use std::fs;
use std::path::Path;

use anyhow::Context;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// A script for a shell to load.
pub(super) fn completions(shell: Shell, mut command: Command) -> anyhow::Result<String> {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    Ok(String::from_utf8(script)?)
}

/// The page of the command itself.
pub(super) fn page(command: Command) -> anyhow::Result<String> {
    // As in the pages on disk: help has no page.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(String::from_utf8(page)?)
}

/// Writes a page for the command and one for each of its own commands; makes `folder` if need be.
pub(super) fn pages(command: Command, folder: &Path) -> anyhow::Result<()> {
    let write = || {
        fs::create_dir_all(folder)?;
        clap_mangen::generate_to(command, folder)
    };
    write().with_context(|| format!("cannot write to {}", folder.display()))
}
