//! The output on a terminal of 80 columns, and through a pipe.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::reload::Node;
use crate::support::PATIENCE;
use crate::{Outcome, main_file, run, run_beside, text};

const COLUMNS: usize = 80;

/// Runs the command on its own terminal and returns the output. The arguments must not contain spaces.
fn on_a_terminal(arguments: &[&str]) -> Outcome {
    typing("", arguments)
}

/// Runs the command on its own terminal, where a user types `keys`. The returned output includes the echo of these
/// keys.
fn typing(keys: &str, arguments: &[&str]) -> Outcome {
    let binary = env!("CARGO_BIN_EXE_criswitch");
    let typed = format!(
        "stty cols {COLUMNS} && exec {binary} {}",
        arguments.join(" ")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &typed, "/dev/null"]);
    script.env_remove("NO_COLOR");
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    let mut keyboard = script.stdin.take().unwrap();
    keyboard.write_all(keys.as_bytes()).unwrap();
    drop(keyboard);
    let output = script.wait_with_output().unwrap();
    Outcome {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap().replace('\r', ""),
        stderr: String::new(),
    }
}

pub(crate) async fn on_a_terminal_beside(arguments: &[&str]) -> Outcome {
    typing_beside("", arguments).await
}

pub(crate) async fn typing_beside(keys: &'static str, arguments: &[&str]) -> Outcome {
    let arguments: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    let run = move || {
        typing(
            keys,
            &arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        )
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Returns the text without colour codes, and asserts that no line is wider than the terminal.
#[track_caller]
fn fits(shown: &str) -> String {
    let mut parts = shown.split("\u{1b}[");
    let first = parts.next().unwrap_or_default().to_owned();
    let plain = parts.fold(first, |plain, part| plain + part.split_once('m').unwrap().1);
    for line in plain.lines() {
        assert!(line.chars().count() <= COLUMNS, "{line}");
    }
    plain
}

#[test]
fn the_help_of_every_command_fits_with_and_without_a_terminal() {
    let commands = crate::shell::commands();
    for command in commands.iter().map(String::as_str).chain([""]) {
        let arguments: Vec<&str> = command.split_terminator(' ').chain(["--help"]).collect();
        let piped = run(&arguments).stdout;
        assert_eq!(fits(&piped), piped, "no colour for a pipe");
        assert_eq!(fits(&on_a_terminal(&arguments).stdout), piped);
    }
}

#[test]
fn problems_are_wrapped_on_a_terminal_and_one_line_each_through_a_pipe() {
    let files = main_file("listen = '/nowhere/criswitch.sock'\nlog.level = 'loud'");
    let config = files.main();
    for arguments in [
        &["check", "--config", text(&config)][..],
        &["status", "--config", text(&config)],
        &["discover", "--root", "/nowhere", "/nowhere/criswitch.sock"],
    ] {
        let piped = run(arguments);
        let shown = on_a_terminal(arguments);
        assert_eq!(shown.code, piped.code);
        // On a terminal, the problems also quote the line of the file.
        let lines = fits(&shown.stdout);
        let (lines, said): (Vec<_>, Vec<_>) = lines.lines().partition(|it| it.starts_with("    "));
        let said = said.join("\n").replace("\n  ", " ") + "\n";
        assert_eq!(said, piped.stderr);
        let line = ["    log.level = 'loud'", "                ^"];
        let expected = if arguments[0] == "check" {
            &line[..]
        } else {
            &[]
        };
        assert_eq!(lines, expected);
        let widest = piped.stderr.lines().map(str::len).max();
        assert!(widest > Some(COLUMNS), "{}", piped.stderr);
    }
}

#[test]
fn routes_fit_a_terminal_and_have_the_same_content_as_through_a_pipe() {
    let shown = fits(&on_a_terminal(&["routes"]).stdout);
    let joined = shown.replace("\n              ", " ");
    let piped = run(&["routes"]).stdout;
    for line in piped.lines().skip(1) {
        let mut cells = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        let name = cells.next().unwrap();
        let (_, below) = joined.split_once(&format!("{name}\n")).unwrap();
        let below = below.split("\n\n").next().unwrap();
        for cell in cells.filter(|cell| *cell != "-") {
            assert!(below.contains(&format!("  {cell}")), "{name}: {below}");
        }
    }
}

#[tokio::test]
async fn problems_are_shown_in_whole_words_and_colours_on_a_terminal() {
    let node = Node::start("").await;
    node.write("", "kata = \"/nowhere/kata.sock\"");
    assert_eq!(node.reload().await.code, 0);
    let config = node.files.main();
    let arguments = ["status", "--config", text(&config)];
    while node.info().await["backends"][1]["state"] != "down" {}
    let shown = on_a_terminal_beside(&arguments).await;
    assert_eq!(shown.code, 1);
    assert!(
        shown.stdout.contains("\u{1b}[31mdown, new\u{1b}[0m"),
        "{}",
        shown.stdout
    );
    let fault = "\nBackendsReady is false: backend \"kata\" (/nowhere/kata.sock): cannot connect: No such file or directory\n";
    let whole = fits(&shown.stdout).replace("\n  ", " ");
    assert!(whole.contains(fault), "{whole}");
    let probe = ["check", "--probe", "--config", text(&config)];
    let shown = on_a_terminal_beside(&probe).await;
    assert_eq!(shown.code, 1);
    fits(&shown.stdout);
    node.end().await;
}

#[tokio::test]
async fn a_path_or_name_too_long_for_its_row_is_below_the_row() {
    let socket = "/var/snap/microk8s/common/run/containerd.sock";
    let files = main_file(&format!(
        "default_handler = \"microk8s\"\n[handlers]\nmicrok8s = {socket:?}\n"
    ));
    let shown = on_a_terminal(&["check", "--config", text(&files.main())]);
    let row = format!(
        "\nmicrok8s  1         2s            2s             no\n    {socket}\n\nconfiguration is valid\n"
    );
    assert!(fits(&shown.stdout).ends_with(&row), "{}", shown.stdout);

    let node = Node::start("").await;
    let name = "node-problem-detector-5d78c9869d-xqzvw";
    node.client().run_pod("runc", name).await.unwrap();
    node.client().run_pod("runc", "web").await.unwrap();
    let shown = on_a_terminal_beside(&["pods", "--config", text(&node.files.main())]).await;
    let shown = fits(&shown.stdout);
    assert!(
        shown.contains(&format!("\n    default/{name}\n")),
        "{shown}"
    );
    assert!(shown.ends_with("  default/web\n"), "{shown}");
    node.end().await;
}

#[test]
fn the_error_for_a_wrong_command_line_fits_the_terminal() {
    let arguments = ["reload", "--socket", "run/criswitch/criswitch.sock"];
    let (shown, piped) = (on_a_terminal(&arguments), run(&arguments));
    assert_eq!((shown.code, piped.code), (64, 64));
    let widest = piped.stderr.lines().map(str::len).max();
    assert!(widest > Some(COLUMNS), "{}", piped.stderr);
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(&fits(&shown.stdout)), words(&piped.stderr));
}

/// The headers of the tables in a text, as words.
fn headers(text: &str) -> BTreeSet<Vec<&str>> {
    let is_title = |word: &str| {
        word.bytes()
            .all(|byte| byte.is_ascii_uppercase() || byte == b'-')
    };
    let lines = text.lines().map(|line| line.split_whitespace().collect());
    lines
        .filter(|words: &Vec<&str>| {
            words.len() > 2
                && words
                    .iter()
                    .all(|word| is_title(word.trim_end_matches("/NAME")))
        })
        .collect()
}

#[tokio::test]
async fn the_tables_in_the_documents_have_the_columns_of_the_output() {
    let node = Node::start("").await;
    let config = node.files.main();
    let mut shown = String::new();
    node.files.write(
        "pod.yaml",
        "{ kind: Pod, spec: { containers: [{ name: c, image: i }] } }",
    );
    let pod = node.files.path("pod.yaml");
    for arguments in [
        &["check", "--probe", "--node"][..],
        &["status"],
        &["pods"],
        &["explain", "runc"],
        &["explain", "-f", text(&pod)],
        &["try", "--all"],
    ] {
        let arguments = [arguments, &["--config", text(&config)]].concat();
        shown += &run_beside(&arguments).await.stdout;
    }
    let root = pod.parent().unwrap();
    shown += &run_beside(&["node", "plan", "--root", text(root)])
        .await
        .stdout;
    let ours: BTreeSet<_> = headers(&shown).iter().map(|it| it.join(" ")).collect();
    assert_eq!(ours.len(), 13, "{ours:#?}");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapters = fs::read_dir(sources.join("docs"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file());
    let mut documented = BTreeSet::new();
    for document in chapters.chain([sources.join("README.md")]) {
        let text = fs::read_to_string(&document).unwrap();
        // Tables of crictl and kubectl are not checked.
        for header in headers(&text) {
            let header = header.join(" ");
            let known = ours.contains(&header)
                || header.contains("CREATED")
                || header.starts_with("NAME READY");
            assert!(known, "{}: {header}", document.display());
            documented.insert(header);
        }
    }
    assert!(documented.len() > 4, "{documented:?}");
    node.end().await;
}

/// Runs `status --watch` on a terminal of this type and number of rows, and returns its first screen.
async fn first_screen(term: &'static str, rows: usize, config: &Path) -> String {
    let binary = env!("CARGO_BIN_EXE_criswitch");
    let typed = format!(
        "stty cols {COLUMNS} rows {rows} && exec {binary} status --watch --config {}",
        text(config)
    );
    let screen = move || {
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--command", &typed, "/dev/null"]);
        script.env_remove("NO_COLOR").env("TERM", term);
        script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let mut shown = BufReader::new(script.stdout.take().unwrap());
        let mut screen = String::new();
        while !screen.contains(" more lines") {
            assert_ne!(shown.read_line(&mut screen).unwrap(), 0, "{screen}");
        }
        // The command ends when its terminal is closed.
        drop(shown);
        script.kill().unwrap();
        script.wait().unwrap();
        screen.replace('\r', "")
    };
    let screen = tokio::task::spawn_blocking(screen);
    let screen = tokio::time::timeout(PATIENCE, screen).await;
    screen.expect("a screen").unwrap()
}

#[tokio::test]
async fn a_watched_status_fits_the_screen_and_counts_the_lines_that_it_omits() {
    let node = Node::start("").await;
    let config = node.files.main();
    let whole = run_beside(&["status", "--config", text(&config)]).await;
    for rows in [8, 12] {
        let screen = first_screen("xterm", rows, &config).await;
        let screen = screen.strip_prefix("\u{1b}[2J\u{1b}[H").expect(&screen);
        let screen = fits(screen);
        let lines: Vec<&str> = screen.lines().collect();
        // The last row stays empty for the cursor.
        assert_eq!(lines.len(), rows - 1, "{screen}");
        assert!(lines[0].starts_with("serving: "), "{screen}");
        assert!(lines[2].starts_with("BACKEND  STATE"), "{screen}");
        assert!(lines[3].starts_with("runc     ready"), "{screen}");
        let shown = rows - 2;
        let more = whole.stdout.lines().count() - shown;
        assert_eq!(lines[shown], format!("... {more} more lines"), "{screen}");
    }
    node.end().await;
}

#[tokio::test]
async fn a_dumb_terminal_gets_no_escape_sequences() {
    let node = Node::start("").await;
    let screen = first_screen("dumb", 8, &node.files.main()).await;
    assert!(!screen.contains('\u{1b}'), "{screen:?}");
    assert!(screen.starts_with("serving: "), "{screen:?}");
    node.end().await;
}

#[tokio::test]
async fn output_that_cannot_be_written_is_a_failure_of_each_command() {
    let node = crate::trial::node().await;
    let config = node.files.main();
    for arguments in [
        &["status"][..],
        &["status", "--watch"],
        &["status", "-o", "json"],
        &["pods"],
        &["try", "runc"],
        &["explain", "runc"],
        &["labels"],
        &["check"],
        &["manifests"],
        &["reload", "--dry-run", "-o", "json"],
    ] {
        let arguments = [arguments, &["--config", text(&config)]].concat();
        let (code, stderr) = to_a_full_device(&arguments).await;
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
        let cause = "criswitch: the output cannot be written: No space left on device";
        assert!(stderr.contains(cause), "{arguments:?}: {stderr}");
    }
    for arguments in [
        &["routes"][..],
        &["man"],
        &["completions", "bash"],
        &["--help"],
    ] {
        let (code, stderr) = to_a_full_device(arguments).await;
        assert_eq!(code, Some(1), "{arguments:?}: {stderr}");
    }
    crate::trial::assert_nothing_is_left(&node);
    node.end().await;
}

/// The exit code and the errors of a command whose output goes to `/dev/full`.
async fn to_a_full_device(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = crate::command(arguments);
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    command.stdout(full.unwrap());
    let run = move || command.output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

#[tokio::test]
async fn watching_ends_when_its_output_is_closed() {
    let node = Node::start("").await;
    let watch = ["status", "--watch", "--config", text(&node.files.main())].map(str::to_owned);
    let watched = tokio::task::spawn_blocking(move || {
        let mut watch = crate::command(&watch.each_ref().map(String::as_str))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut shown = BufReader::new(watch.stdout.take().unwrap());
        shown.read_line(&mut first).unwrap();
        drop(shown);
        let code = watch.wait().unwrap().code();
        (first, code)
    });
    let (first, code) = tokio::time::timeout(PATIENCE, watched)
        .await
        .unwrap()
        .unwrap();
    assert!(first.starts_with("serving: "), "{first}");
    assert_eq!(code, Some(0));
    node.end().await;
}
