//! `criswitch man`: the manual pages.
//!
//! Commands, options, examples and exit codes come from the definitions of the command line. The keys in
//! criswitch.toml(5) come from the table of keys, descriptions of commands from docs/commands.md. This module adds the
//! remaining text.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use anyhow::Context;
use clap::Command;
use clap::builder::Resettable;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use criswitch_config::Key;
use criswitch_config::exit::ExitCodes;
use criswitch_config::keys::{TABLES, of_table};
use criswitch_config::options::DAEMON_CODES;

use criswitch_client::exit::{USAGE, Verdict};
use criswitch_client::terminal::print;

use super::{daemon, exit_codes};

/// The date on the manual pages, which is the date in the package's changelog.
const DATE: &str = "2026-11-21";
const SOURCE: &str = concat!("criswitch ", env!("CARGO_PKG_VERSION"));
/// The manual section for commands of administrators.
const COMMANDS_SECTION: &str = "8";
const FILE_FORMATS: &str = "5";

/// The sections FILES and ENVIRONMENT of criswitch(8).
const SECTIONS: &str = include_str!("man/criswitch.8");
/// The sections SIGNALS and ENVIRONMENT of criswitchd(8).
const DAEMON_SECTIONS: &str = include_str!("man/criswitchd.8");
const SEE_ALSO: [(&str, &str); 3] = [
    ("criswitch", "(8)"),
    ("criswitchd", "(8)"),
    ("criswitch.toml", "(5)"),
];
/// The example in criswitch.toml(5): a file that the tests load.
const EXAMPLE: &str = include_str!("../../../config/examples/kata-beside-containerd.toml");

const CONFIGURATION: &str = include_str!("man/criswitch.toml.txt");
/// The rest of the section DESCRIPTION, after its first sentence, on the pages of both programs.
const MAIN: &str = include_str!("man/criswitch.txt");
const DAEMON: &str = include_str!("man/criswitchd.txt");
/// The page with a section for each command. The section's first paragraph is the description of the command.
const DOCUMENTED: &str = include_str!("../../../docs/commands.md");
/// A block of the help that begins with [`EXAMPLES`] becomes a section of the manual page.
const EXAMPLES: &str = "Examples:\n";

/// The name of the file of a page, and its text.
type ManPage = (String, String);

/// Prints the manual page criswitch(8), or writes the pages of criswitch, its commands and its configuration. Creates
/// `folder` if it is missing.
pub(super) fn run(command: Command, folder: Option<&Path>) -> anyhow::Result<Verdict> {
    let command = complete(command);
    let Some(folder) = folder else {
        return print(command_page(&command)?.1);
    };
    let mut written = command
        .get_subcommands()
        .filter(|its| !its.is_hide_set())
        .flat_map(|its| [its].into_iter().chain(its.get_subcommands()))
        .chain([&command])
        .map(command_page)
        .chain([daemon_page(), configuration_page()])
        .map(|page| page.and_then(|(file, text)| fs::write(folder.join(file), text)));
    fs::create_dir_all(folder)
        .and_then(|()| written.try_for_each(|written| written))
        .with_context(|| format!("cannot write to {}", folder.display()))?;
    Ok(Verdict::Fine)
}

/// The command with the parts that clap generates, except for the subcommand `help`.
fn complete(command: Command) -> Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command.subcommand_help_heading("COMMANDS")
}

fn command_page(command: &Command) -> io::Result<ManPage> {
    let help = command
        .get_after_long_help()
        .or(command.get_after_help())
        .map(ToString::to_string)
        .unwrap_or_default();
    let mut blocks = help.split("\n\n");
    let mut sections = Roff::new();
    let name = command.get_display_name().unwrap_or(command.get_name());
    exit_status(&mut sections, exit_codes::of_page(name));
    if let Some(lines) = blocks.find_map(|block| block.strip_prefix(EXAMPLES)) {
        show_examples(&mut sections, lines.lines());
    }
    let (before, own) = if name == command.get_name() {
        (SECTIONS, MAIN.to_owned())
    } else {
        ("", documented(name).unwrap_or_default())
    };
    let command = plain(command.clone()).long_about(description(command, &own, &help));
    page_of(command, COMMANDS_SECTION, before, sections)
}

/// The first paragraph of the section of docs/commands.md about the command with this page.
fn documented(page: &str) -> Option<String> {
    let title = page.strip_prefix("criswitch-")?.replace('-', " ");
    let (_, section) = DOCUMENTED.split_once(&format!("# {title}\n\n"))?;
    Some(without_links(&section.split("\n\n").next()?.replace('\n', " ")).replace('`', ""))
}

/// The text without the addresses of its links. It omits a link that is alone in parentheses.
fn without_links(mut markdown: &str) -> String {
    let mut text = String::new();
    while let Some((before, link)) = markdown.split_once("](") {
        let (before, words) = before.rsplit_once('[').unwrap_or((before, ""));
        let (_, after) = link.split_once(')').unwrap_or_default();
        let (before, words, after) = before
            .strip_suffix(" (")
            .zip(after.strip_prefix(')'))
            .map_or((before, words, after), |(before, after)| {
                (before, "", after)
            });
        text.extend([before, words]);
        markdown = after;
    }
    text + markdown
}

fn description(command: &Command, own: &str, help: &str) -> String {
    let first = format!(
        "{}. {own}",
        command
            .get_about()
            .map(ToString::to_string)
            .unwrap_or_default()
    );
    help.split_terminator("\n\n")
        .filter(|block| !block.starts_with(EXAMPLES))
        .fold(first.trim_end().to_owned(), |text, block| {
            text + "\n\n" + block
        })
}

/// The command without the parts that clap_mangen would show in the sections EXTRA and VERSION.
fn plain(mut command: Command) -> Command {
    let usage = command.render_usage().to_string();
    command
        .override_usage(usage.trim_start_matches("Usage: ").to_owned())
        .version(Resettable::Reset)
        .after_help(Resettable::Reset)
        .after_long_help(Resettable::Reset)
        .mut_args(|arg| match arg.get_long_help().or(arg.get_help()) {
            Some(help) => arg.clone().long_help(format!("{help}.")),
            None => arg,
        })
}

/// The page criswitchd(8).
fn daemon_page() -> io::Result<ManPage> {
    let command = daemon::command();
    let description = description(&command, DAEMON, "");
    let mut sections = Roff::new();
    exit_status(&mut sections, &DAEMON_CODES);
    page_of(
        command.long_about(description),
        COMMANDS_SECTION,
        DAEMON_SECTIONS,
        sections,
    )
}

fn configuration_page() -> io::Result<ManPage> {
    let command = Command::new("criswitch.toml")
        .about("The configuration of criswitch")
        .long_about(CONFIGURATION)
        .override_usage("/etc/criswitch/criswitch.toml\n/etc/criswitch/conf.d/*.toml")
        .disable_help_flag(true);
    let mut sections = Roff::new();
    sections.control("SH", ["KEYS"]);
    for (table, title) in TABLES {
        let title = title.replace('`', "");
        sections.control("SS", [title.as_str()]);
        of_table(table).for_each(|key| add_key(&mut sections, key));
    }
    show_examples(
        &mut sections,
        EXAMPLE.lines().filter(|line| !line.starts_with('#')),
    );
    page_of(command, FILE_FORMATS, "", sections)
}

/// Adds a key with the same facts as its row in docs/configuration.md.
fn add_key(roff: &mut Roff, key: &Key) {
    let mut facts = format!("Type: {}.", key.kind);
    if let Some(default) = key.default {
        facts += &format!(" Default: `{}`.", key.quoted(default));
    }
    if !key.limits.most.is_empty() {
        facts += &format!(" Limits: {}.", key.limits);
    }
    facts += &format!(" Applies after: {}.", key.applies);
    roff.control("TP", []).text([bold(key.own_name())]);
    roff.text(marked(key.help))
        .control("br", [])
        .text(marked(&facts));
}

/// The text with the words between backticks in bold.
fn marked(text: &str) -> Vec<Inline> {
    text.split('`')
        .enumerate()
        .map(|(index, part)| match index % 2 {
            0 => roman(part),
            _ => bold(part),
        })
        .collect()
}

/// Adds the section EXIT STATUS with these codes and the code for wrong usage.
fn exit_status(roff: &mut Roff, codes: &ExitCodes) {
    let codes = BTreeMap::from_iter([(USAGE, "wrong usage")].iter().chain(codes).copied());
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in codes {
        roff.control("TP", []).text([bold(code.to_string())]);
        roff.text([roman(meaning)]);
    }
}

fn show_examples<'a>(roff: &mut Roff, lines: impl Iterator<Item = &'a str>) {
    roff.control("SH", ["EXAMPLES"]).control("EX", []);
    lines.for_each(|line| _ = roff.text([roman(line)]));
    roff.control("EE", []);
}

/// A page with the sections of clap_mangen, then `before`, `sections` and SEE ALSO.
fn page_of(
    command: Command,
    section: &str,
    before: &str,
    mut sections: Roff,
) -> io::Result<ManPage> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let others = SEE_ALSO
        .iter()
        .filter(|(other, _)| *other != name)
        .flat_map(|(other, section)| [roman(", "), bold(*other), roman(*section)]);
    sections.control("SH", ["SEE ALSO"]);
    sections.text(others.skip(1).collect::<Vec<_>>());
    let title = name.to_uppercase();
    let man = Man::new(command)
        .title(title)
        .section(section)
        .date(DATE)
        .source(SOURCE)
        .manual("criswitch manual");
    let mut text = Vec::new();
    man.render(&mut text)?;
    text.extend(before.bytes());
    sections.to_writer(&mut text)?;
    // clap_mangen adds a line break before and after an empty line. mandoc warns about these line breaks.
    let text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".sp\n");
    Ok((man.get_filename(), text))
}
