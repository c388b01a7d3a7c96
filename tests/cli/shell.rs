//! `criswitch completions` and `criswitch man`: each names every command.

use std::path::Path;
use std::process::Command;

use crate::{run, text};

/// The commands that `--help` shows, but help itself.
pub(crate) fn commands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let (_, rest) = help.split_once("\nCommands:\n").unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    // What is about one may go on in a line that is further in.
    let lines = lines.filter_map(|line| {
        line.strip_prefix("  ")
            .filter(|name| !name.starts_with(' '))
    });
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let commands: Vec<String> = names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect();
    assert!(commands.len() > 5, "{commands:?}");
    commands
}

fn exists(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

#[test]
fn each_shells_script_completes_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = run(&["completions", shell]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
        for command in commands() {
            assert!(outcome.stdout.contains(&command), "{shell}: {command}");
        }
        assert!(outcome.stdout.contains("config"), "{shell}: options too");
    }
}

/// By bash itself: what it offers behind `criswitch `, and behind `criswitch check --`.
#[test]
fn bash_offers_the_commands_and_their_options() {
    let offered = |words: &str, last: &str| {
        let script = format!(
            r#"eval "$("$0" completions bash)"
            COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            _criswitch criswitch {last} criswitch
            echo "${{COMPREPLY[@]}}""#
        );
        let bash = Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_criswitch")])
            .output()
            .unwrap();
        assert!(
            bash.status.success(),
            "{}",
            String::from_utf8_lossy(&bash.stderr)
        );
        String::from_utf8(bash.stdout).unwrap()
    };
    let first = offered("criswitch ''", "''");
    for command in commands() {
        assert!(
            first.split_whitespace().any(|word| word == command),
            "{command} in {first}"
        );
    }
    let options = offered("criswitch check --", "--");
    for option in ["--config", "--json", "--probe"] {
        assert!(options.contains(option), "{options}");
    }
}

#[test]
fn every_command_has_a_page_that_shows_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    // It is made.
    let pages = folder.path().join("share/man1");
    let outcome = run(&["man", text(&pages)]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    let mut expected: Vec<String> = commands()
        .iter()
        .map(|command| format!("criswitch-{command}.1"))
        .collect();
    expected.push("criswitch.1".to_owned());
    expected.sort();
    let entries = std::fs::read_dir(&pages).unwrap();
    let mut found: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    assert_eq!(found, expected);
    if exists("groff") {
        found.iter().for_each(|page| shows(&pages.join(page)));
    }
    let main = std::fs::read_to_string(pages.join("criswitch.1")).unwrap();
    assert_eq!(run(&["man"]).stdout, main);
}

#[test]
fn a_page_shows_the_lines_of_the_help_as_they_are() {
    if !exists("groff") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    run(&["man", text(folder.path())]);
    let page = folder.path().join("criswitch-discover.1");
    let groff = Command::new("groff")
        .args(["-man", "-Tascii", "-P-c", text(&page)])
        .output();
    let shown = String::from_utf8(groff.unwrap().stdout).unwrap();
    let help = run(&["discover", "--help"]).stdout;
    let (_, rules) = help.split_once("criswitch looks for sockets").unwrap();
    let lines = rules.lines().filter(|line| line.starts_with("  "));
    assert!(lines.clone().count() > 20);
    for line in lines {
        assert!(shown.contains(line), "{line:?} in {shown}");
    }
}

/// With every warning that groff has.
fn shows(page: &Path) {
    let groff = Command::new("groff")
        .args(["-ww", "-man", "-Tutf8", text(page)])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&groff.stderr),
        "",
        "{}",
        page.display()
    );
    let shown = String::from_utf8_lossy(&groff.stdout).into_owned();
    assert!(shown.contains("criswitch"), "{shown}");
}

#[test]
fn pages_that_cannot_be_written_are_a_failure_that_says_where() {
    let outcome = run(&["man", "/dev/null/man1"]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (1, ""));
    assert_eq!(
        outcome.stderr,
        "criswitch: cannot write to /dev/null/man1: Not a directory (os error 20)\n"
    );
}
