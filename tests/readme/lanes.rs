//! The lanes of `tests/run.sh`, as CONTRIBUTING.md states them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use super::{at, shipped};

/// Runs `tests/run.sh` with only the programs in the folder.
fn run(programs: &Path, arguments: &[&str]) -> Output {
    let mut script = Command::new("/bin/bash");
    script.arg(at("tests/run.sh")).args(arguments);
    script.env("PATH", programs).env("TMPDIR", programs);
    script.output().unwrap()
}

/// A folder with the programs that the script calls before the first step.
fn few_programs() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["awk", "cat", "dirname", "id", "sed"] {
        let found = ["/usr/bin", "/bin"].map(|from| Path::new(from).join(name));
        let found = found.iter().find(|path| path.exists());
        symlink(found.unwrap(), folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn each_lane_of_the_tests_keeps_its_time_limit() {
    let programs = few_programs();
    let listed = run(programs.path(), &["--list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let rows: Vec<Vec<&str>> = listed
        .lines()
        .skip(1)
        .map(|row| row.split_whitespace().collect())
        .collect();
    for row in &rows {
        let lanes = row[1].split(',');
        let unknown = lanes.filter(|lane| !["quick", "all", "nightly", "hosted"].contains(lane));
        assert_eq!(unknown.count(), 0, "lanes of {}: {}", row[0], row[1]);
    }
    // The nightly lane must end within the six hours that a job of CI may take.
    for (lane, limit) in [
        ("quick", 5.0),
        ("all", 65.0),
        ("nightly", 330.0),
        ("hosted", 60.0),
    ] {
        let in_lane = rows
            .iter()
            .filter(|row| row[1].split(',').any(|name| name == lane));
        let minutes: f64 = in_lane.map(|row| row[3].parse::<f64>().unwrap()).sum();
        assert!(
            minutes > 0.0 && minutes <= limit,
            "the lane {lane} takes {minutes} minutes"
        );
    }
    assert!(shipped("CONTRIBUTING.md").contains("65 minutes, 45 with a warm cache"));
}

/// The commands that README.md shows are the ones that the tests run.
#[test]
fn the_two_commands_of_the_readme_are_a_step_and_a_lane() {
    let demo = "cargo run -p criswitch-demo";
    let step = "cargo run --quiet --locked -p criswitch-demo -- --once";
    let readme = shipped("README.md");
    assert!(readme.contains(&format!("    {demo} ")) && readme.contains("    tests/run.sh "));
    let script = shipped("tests/run.sh");
    assert!(
        script
            .lines()
            .any(|row| row.starts_with("demo ") && row.ends_with(step))
    );
    let workflow = shipped(".github/workflows/quick.yml");
    assert!(
        workflow
            .lines()
            .any(|line| line == "      - run: tests/run.sh")
    );
}

#[test]
fn everything_that_a_lane_lacks_is_in_one_message_and_no_step_starts() {
    let programs = few_programs();
    let before = programs.path().read_dir().unwrap().count();
    for arguments in [&["all"][..], &["nightly"], &["demo", "node"]] {
        let output = run(programs.path(), arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "");
        assert!(
            said.contains("no step has started. Missing:\n  - cargo"),
            "{said}"
        );
        assert!(
            said.contains("  - Go, from https://go.dev/dl, for the steps: "),
            "{said}"
        );
    }
    let unknown = run(programs.path(), &["formatting", "nosuch"]);
    let said = String::from_utf8(unknown.stderr).unwrap();
    assert_eq!(unknown.status.code(), Some(2));
    assert_eq!(
        said,
        "no step is called nosuch; tests/run.sh --list shows the steps\n"
    );
    // Nothing is left in the folder for temporary files.
    assert_eq!(programs.path().read_dir().unwrap().count(), before);
}
