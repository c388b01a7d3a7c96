//! `criswitch completions`: the scripts and the completions.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::check::TABLE;
use crate::{command, main_file, run, text};

/// The commands that `--help` shows, except `help`.
pub(crate) fn commands() -> Vec<String> {
    let help = run(&["--help"]).stdout;
    let (_, rest) = help.split_once("\nCommands:\n").unwrap();
    let lines = rest.lines().take_while(|line| !line.is_empty());
    // A line with more indentation continues the description of the line above.
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

/// The completions of the last word in `words`. Calls criswitch as its completion script for fish does.
fn offered(words: &[&str]) -> Vec<String> {
    let output = command(&[&["--"], words].concat())
        .env("CRISWITCH_COMPLETE", "fish")
        .output()
        .unwrap();
    assert!(output.status.success());
    let lines = String::from_utf8(output.stdout).unwrap();
    let values = lines.lines().filter_map(|line| line.split('\t').next());
    values.map(str::to_owned).collect()
}

#[test]
fn every_shell_gets_a_script_that_asks_criswitch() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let outcome = run(&["completions", shell]);
        assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
        assert!(outcome.stdout.contains("CRISWITCH_COMPLETE"), "{shell}");
        assert!(!outcome.stdout.contains("criswitchd"), "{shell}");
        let daemon = run(&["completions", shell, "--daemon"]);
        assert_eq!((daemon.code, daemon.stderr.as_str()), (0, ""));
        assert!(daemon.stdout.contains("criswitchd"), "{shell}");
    }
}

#[test]
fn completions_offer_commands_options_formats_handlers_and_backends() {
    let first = offered(&["criswitch", ""]);
    for command in commands() {
        assert!(first.contains(&command), "{command} in {first:?}");
    }
    let options = offered(&["criswitch", "check", "--"]);
    for option in ["--config", "--json", "--probe"] {
        assert!(options.iter().any(|it| it == option), "{options:?}");
    }
    assert_eq!(
        offered(&["criswitch", "pods", "-o", ""]),
        ["json", "yaml", "wide", "name"]
    );
    let files = main_file(TABLE);
    let config = files.main();
    let of = |rest: &[&str]| {
        offered(&[&["criswitch", "pods", "--config", text(&config)], rest].concat())
    };
    assert_eq!(of(&["--handler", ""]), ["gvisor", "plain", "runc"]);
    assert_eq!(of(&["--backend", ""]), ["runc", "crio", "old"]);
    assert_eq!(of(&["--backend", "c"]), ["crio"]);
    let tried = offered(&["criswitch", "try", "--config", text(&config), ""]);
    for handler in ["gvisor", "plain", "runc"] {
        assert!(tried.iter().any(|it| it == handler), "{tried:?}");
    }
    let joined = format!("--config={}", text(&config));
    assert_eq!(
        offered(&["criswitch", "pods", &joined, "--backend", "c"]),
        ["crio"]
    );
    // Without a configuration, the completions contain no names and print no error.
    let without = offered(&["criswitch", "forget", "--config", "/nonexistent", ""]);
    assert!(without.iter().all(|it| it.starts_with('-')), "{without:?}");
}

#[test]
fn completions_of_the_daemon_offer_its_options_and_files() {
    let options = offered(&["criswitchd", "--"]);
    assert_eq!(options, ["--config", "--check", "--version", "--help"]);
    let files = main_file(TABLE);
    let config = files.main();
    let (before_last, _) = text(&config).split_at(text(&config).len() - 1);
    let named = offered(&["/usr/bin/criswitchd", "--config", before_last]);
    assert_eq!(named, [text(&config)]);
}

/// bash itself loads the scripts, and asks for the completions of `criswitch pods -o w` and of `criswitchd --ch`.
#[cfg(unix)] // bash is a Unix program.
#[test]
fn bash_completes_a_word_with_the_script() {
    let program = Path::new(env!("CARGO_BIN_EXE_criswitch"));
    let directory = program.parent().unwrap().to_path_buf();
    let path = env::var_os("PATH").unwrap();
    let path = env::join_paths([directory].into_iter().chain(env::split_paths(&path))).unwrap();
    let script = r#"eval "$(criswitch completions bash)"
        COMP_WORDS=(criswitch pods -o w) COMP_CWORD=3
        _clap_complete_criswitch criswitch w -o
        echo "${COMPREPLY[@]}"
        eval "$(criswitch completions bash --daemon)"
        COMP_WORDS=(criswitchd --ch) COMP_CWORD=1
        _clap_complete_criswitchd criswitchd --ch criswitchd
        echo "${COMPREPLY[@]}""#;
    let bash = Command::new("bash")
        .args(["-c", script])
        .env("PATH", path)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&bash.stderr), "");
    assert_eq!(
        String::from_utf8_lossy(&bash.stdout).trim(),
        "wide\n--check"
    );
}

#[test]
fn a_shell_without_a_script_is_an_error() {
    let output = command(&["status"])
        .env("CRISWITCH_COMPLETE", "tcsh")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("unknown shell `tcsh`"), "{error}");
}
