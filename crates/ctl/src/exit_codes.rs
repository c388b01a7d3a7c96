//! The exit codes of the commands, for the help and the manual pages.

use clap::Command;
use clap::builder::{Resettable, StyledStr};
use criswitch_client::exit::{CONFIGURATION as WRONG, FAILED, NOT_RUNNING, USAGE, WOULD_CHANGE};
use criswitch_client::terminal;
use criswitch_config::exit::{self, ExitCodes};

use crate::WIDTH;

/// The break between two lines of a code's meaning, and the indentation of the second line.
const MEANING_INDENT: &str = "\n      ";
const MEANING_WIDTH: usize = WIDTH + 1 - MEANING_INDENT.len();

const NO_DAEMON: (u8, &str) = (NOT_RUNNING, "criswitch is not running or not reachable");
const NO_FILE: (u8, &str) = (WRONG, "the file after --config cannot be read");
const NO_CONFIGURATION: (u8, &str) = (WRONG, "the configuration is wrong");
const NO_SPECIFICATION: (u8, &str) = (WRONG, "the specification is wrong");

/// The codes of a command without codes of its own.
const COMMON: &ExitCodes = &[(0, "success"), (FAILED, "failure at run time")];

/// The commands by the names of their manual pages, with their codes.
#[rustfmt::skip]
const CODES: [(&str, &ExitCodes); 17] = [
    ("criswitch", &[(0, "success"), (FAILED, "failure at run time"),
        (WOULD_CHANGE, "something would change (reload --dry-run, node plan)"), (USAGE, "wrong usage"),
        (NOT_RUNNING, "criswitch is not running"), (WRONG, "wrong configuration")]),
    ("criswitch-status", &[(0, "serving"), (FAILED, "any other verdict"), NO_DAEMON, NO_FILE]),
    ("criswitch-pods", &[(0, "shown"), (FAILED, "criswitch has no such backend or handler"), NO_DAEMON, NO_FILE]),
    ("criswitch-reload", &[(0, "applied; with --dry-run: nothing would change"),
        (FAILED, "criswitch uses a different file, or did not report the outcome"),
        (WOULD_CHANGE, "with --dry-run: something would change"), NO_DAEMON,
        (WRONG, "rejected: the previous configuration stays in use; with --dry-run: a reload would be rejected")]),
    ("criswitch-forget", &[(0, "forgotten"),
        (FAILED, "not forgotten: the backend is unknown, answers or is connecting, or you did not confirm"),
        NO_DAEMON, NO_FILE]),
    ("criswitch-try", &[(0, "each tried handler starts pods"),
        (FAILED, "a handler is unknown or starts no pods, its pods cannot be measured, or its row cannot be written"),
        NO_DAEMON, NO_FILE]),
    ("criswitch-check", &[(0, "no problem"), (FAILED, "the daemon rejects the configuration, or a backend or the node has a problem (--probe, --node)"),
        NO_CONFIGURATION]),
    ("criswitch-explain", &[(0, "explained; with --file: each pod can run in its handler"),
        (FAILED, "with --file: a pod cannot run, a part of the files is not judged, or a file cannot be read or has no pod; \
                  without --file: criswitch knows no such handler or pod"),
        NO_DAEMON, NO_CONFIGURATION]),
    ("criswitch-manifests", &[(0, "printed"),
        (FAILED, "the file after --existing cannot be read or has no RuntimeClasses"), NO_CONFIGURATION]),
    ("criswitch-labels", &[(0, "printed or written"), (FAILED, "the file cannot be written"), NO_DAEMON, NO_FILE]),
    ("criswitch-discover", &[(0, "printed or written"),
        (FAILED, "no runtime or not every named socket responds, or the file exists or cannot be written")]),
    ("criswitch-node-plan", &[(0, "ready: nothing would change"),
        (FAILED, "rejected: the node has a finding that the specification does not accept"),
        (WOULD_CHANGE, "the plan would change the node"), NO_SPECIFICATION]),
    ("criswitch-node-apply", &[(0, "the machine is as specified"), (FAILED, "rejected, or failed and undone"),
        NO_SPECIFICATION]),
    ("criswitch-node-undo", &[(0, "undone, or nothing to undo"), (FAILED, "a file or an action could not be undone")]),
    ("criswitch-node-uninstall", &[(0, "undone, or nothing to undo"),
        (FAILED, "pods still need criswitch, or a file or an action could not be undone")]),
    ("criswitch-node-status", &[(0, "shown; with --ready: the machine is as specified"),
        (FAILED, "with --ready: the machine is not as specified")]),
    ("criswitch-node-follow", &[(0, "SIGTERM; with --ready: the node is up to date"),
        (FAILED, "an error; with --ready: the node is not up to date")]),
];

/// The codes of the command with this manual page.
pub(super) fn of_page(page: &str) -> &'static ExitCodes {
    CODES
        .iter()
        .find(|(name, _)| *name == page)
        .map_or(COMMON, |(_, codes)| codes)
}

/// Adds the exit codes to the end of the command's help, and to the help of its subcommands.
pub(super) fn add_to_help(command: Command) -> Command {
    let page = command.get_name().to_owned();
    add_to_page(command, &page)
}

fn add_to_page(command: Command, page: &str) -> Command {
    let codes = of_page(page).iter().map(|(code, meaning)| {
        (
            *code,
            terminal::lines(meaning, MEANING_WIDTH).join(MEANING_INDENT),
        )
    });
    let codes = exit::list(&Vec::from_iter(codes));
    let [short, long] = [command.get_after_help(), command.get_after_long_help()]
        .map(|help| help.map(|help| StyledStr::from(format!("{help}\n\n{codes}"))));
    command
        .after_help(short.unwrap_or_else(|| StyledStr::from(&codes)))
        .after_long_help(Resettable::from(long))
        .mut_subcommands(|its| {
            let page = format!("{page}-{}", its.get_name());
            add_to_page(its, &page)
        })
}
