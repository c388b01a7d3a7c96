//! `criswitch man`: the pages render without a warning and agree with the code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use criswitch_config::{DEFAULT_LISTEN, DEFAULT_PATH, KEYS};

use crate::shell::commands;
use crate::{run, text};

fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The source of a page without escapes and font changes.
fn page(name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    run(&["man", text(folder.path())]);
    let page = fs::read_to_string(folder.path().join(name))
        .unwrap()
        .replace("\\-", "-")
        .replace("\\*(Aq", "'");
    page.replace("\\fB", "").replace("\\fR", "")
}

#[test]
fn every_command_and_the_configuration_have_a_page_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("share/man");
    let outcome = run(&["man", text(&pages)]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let commands = commands();
    let commands = commands.iter().map(|name| format!("criswitch-{name}.8"));
    let others = [
        "criswitch-node-apply.8",
        "criswitch-node-follow.8",
        "criswitch-node-plan.8",
        "criswitch-node-run.8",
        "criswitch-node-status.8",
        "criswitch-node-undo.8",
        "criswitch-node-uninstall.8",
        "criswitch.8",
        "criswitch.toml.5",
        "criswitchd.8",
    ]
    .map(str::to_owned);
    let mut expected: Vec<String> = commands.chain(others).collect();
    expected.sort();
    let entries = fs::read_dir(&pages).unwrap();
    let mut found: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, expected);
    for name in &found {
        assert_no_warning(&pages.join(name));
    }
    let main = fs::read_to_string(pages.join("criswitch.8")).unwrap();
    assert_eq!(run(&["man"]).stdout, main);
}

/// Checks that groff and mandoc print no warning for a page. tests/run.sh installs mandoc.
fn assert_no_warning(page: &Path) {
    for (program, options) in [
        ("groff", &["-ww", "-man", "-Tutf8", "-z"][..]),
        ("mandoc", &["-T", "lint", "-W", "warning"]),
    ] {
        if exists(program) {
            let output = Command::new(program)
                .args(options)
                .arg(page)
                .output()
                .unwrap();
            let warnings = [output.stdout, output.stderr].concat();
            assert_eq!(String::from_utf8_lossy(&warnings), "", "{program}");
        }
    }
}

#[test]
fn a_page_shows_the_lines_of_the_help_unwrapped() {
    if !exists("groff") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    run(&["man", text(folder.path())]);
    let page = folder.path().join("criswitch-discover.8");
    let groff = Command::new("groff")
        .args(["-man", "-Tascii", "-P-c", text(&page)])
        .output();
    let shown = String::from_utf8(groff.unwrap().stdout).unwrap();
    let help = run(&["discover", "--help"]).stdout;
    let (_, rules) = help.split_once("criswitch asks the sockets").unwrap();
    // The exit codes are a separate section of the page, so this comparison omits them.
    let (rules, _) = rules.split_once("\nExit codes:\n").unwrap();
    let lines = rules.lines().filter(|line| line.starts_with("  "));
    assert!(lines.clone().count() > 20);
    for line in lines {
        assert!(shown.contains(line), "{line:?} in {shown}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_with_its_path() {
    let outcome = run(&["man", "/dev/null/man"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    assert_eq!(
        outcome.stderr,
        "criswitch: cannot write to /dev/null/man: Not a directory\n"
    );
}

#[test]
fn the_page_of_criswitch_has_the_sections_of_an_administrators_command_in_order() {
    let page = page("criswitch.8");
    let heads: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix(".SH "))
        .collect();
    assert_eq!(
        heads,
        [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "COMMANDS",
            "FILES",
            "ENVIRONMENT",
            "\"EXIT STATUS\"",
            "EXAMPLES",
            "\"SEE ALSO\"",
        ]
    );
    for path in [DEFAULT_PATH, DEFAULT_LISTEN] {
        assert!(page.contains(&format!(".I {path}\n")), "{path}");
    }
    for (code, meaning) in [
        (0, "success"),
        (64, "wrong usage"),
        (69, "criswitch is not running"),
    ] {
        assert!(
            page.contains(&format!(".TP\n{code}\n{meaning}\n")),
            "{code}"
        );
    }
}

#[test]
fn the_page_of_a_command_has_each_exit_code_of_its_help_with_its_meaning() {
    for (command, codes) in [
        (
            "forget",
            ".TP\n0\nforgotten\n.TP\n1\nnot forgotten: the backend is unknown, answers or is connecting, or you did not confirm\n.TP\n64\nwrong \
             usage\n.TP\n69\ncriswitch is not running or not reachable\n.TP\n78\nthe file after --config cannot be read\n",
        ),
        (
            "routes",
            ".TP\n0\nsuccess\n.TP\n1\nfailure at run time\n.TP\n64\nwrong usage\n",
        ),
    ] {
        let page = page(&format!("criswitch-{command}.8"));
        let section = format!(".SH \"EXIT STATUS\"\n{codes}.SH ");
        assert!(page.contains(&section), "{page}");
    }
}

#[test]
fn the_description_of_a_command_is_the_first_paragraph_of_its_section_without_links() {
    let labels = "Print the labels that describe this node to the scheduler. criswitch labels asks the daemon what this \
                  node offers, and prints it as labels, in the format of a feature file of node-feature-discovery.\n";
    assert!(page("criswitch-labels.8").contains(labels));
    let undo = " The command needs only the journal in /var/lib/criswitch/node. ";
    assert!(page("criswitch-node-undo.8").contains(undo));
}

#[test]
fn the_page_of_the_configuration_agrees_with_the_table_of_keys() {
    let page = page("criswitch.toml.5");
    for key in KEYS {
        let entry = format!(".TP\n{}\n{}\n", key.own_name(), key.help.replace('`', ""));
        assert!(page.contains(&entry), "{entry}");
    }
    let facts = "Type: size. Default: \"16MiB\". Limits: more than zero, at most \"1GiB\". Applies after: restart.\n";
    assert!(page.contains(facts));
}

/// Finds the names of environment variables in the sources below a folder: string literals such as "NO_COLOR".
fn variables(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let names = paths.flat_map(|path: PathBuf| {
        // Names of capabilities look like names of variables. The variables of k3s and RKE2 are not criswitch's.
        if path.ends_with("rancher.rs") {
            return Vec::new();
        }
        if path.is_dir() {
            return variables(&path);
        }
        let text = fs::read_to_string(path).unwrap();
        let is_name = |char: char| char.is_ascii_uppercase() || char == '_';
        let names = text.split('"').filter(|word| {
            word.contains('_')
                && word.starts_with(|c: char| c.is_ascii_uppercase())
                && word.chars().all(is_name)
        });
        names.map(str::to_owned).collect()
    });
    names.collect()
}

#[test]
fn the_page_of_criswitch_has_every_variable_that_criswitch_reads() {
    let sources = [
        "src",
        "crates/client/src",
        "crates/ctl/src",
        "crates/node/src",
        "crates/platform/src",
    ]
    .map(|it| variables(&Path::new(env!("CARGO_MANIFEST_DIR")).join(it)));
    let variables = sources.concat();
    // The build sets the first, and CRI-O reads the second.
    let others = ["CARGO_", "CONTAINER_"];
    let is_read = |name: &String| !others.iter().any(|other| name.starts_with(other));
    let variables: Vec<_> = variables.into_iter().filter(is_read).collect();
    assert!(variables.len() > 5, "{variables:?}");
    let page = page("criswitch.8");
    let (_, section) = page.split_once(".SH ENVIRONMENT\n").unwrap();
    for name in variables {
        assert!(section.contains(&name), "{name}");
    }
}

#[test]
fn the_pages_have_the_date_of_the_packages_changelog() {
    let changelog = include_str!("../../package/changelog");
    let (_, date) = changelog.split_once(">  ").unwrap();
    let date = date.lines().next().unwrap();
    let date = Command::new("date")
        .args(["--utc", "+%F", "--date", date])
        .output();
    let date = String::from_utf8(date.unwrap().stdout).unwrap();
    for name in ["criswitch.8", "criswitch-check.8", "criswitch.toml.5"] {
        let page = page(name);
        let title = page.lines().find(|line| line.starts_with(".TH ")).unwrap();
        assert!(title.contains(&format!(" {} ", date.trim())), "{title}");
    }
}
