//! The lanes of `tests/run.sh`, as CONTRIBUTING.md states them.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use criswitch_testing::write_program;
use serde_json::Value as Json;

use super::{at, shipped};

/// `tests/run.sh` with only the programs in the folder.
fn script(programs: &Path, arguments: &[&str]) -> Command {
    let mut script = Command::new("/bin/bash");
    script.arg(at("tests/run.sh")).args(arguments);
    script.env("PATH", programs).env("TMPDIR", programs);
    script
}

fn run(programs: &Path, arguments: &[&str]) -> Output {
    script(programs, arguments).output().unwrap()
}

/// A folder with the programs that the script calls before the first step.
fn few_programs() -> tempfile::TempDir {
    with_programs(&["awk", "cat", "dirname", "id", "sed"])
}

fn with_programs(names: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in names {
        let found = ["/usr/bin", "/bin"].map(|from| Path::new(from).join(name));
        let found = found.iter().find(|path| path.exists());
        symlink(found.unwrap(), folder.path().join(name)).unwrap();
    }
    folder
}

/// A step of `tests/run.sh --list`.
struct Step {
    name: String,
    lanes: Vec<String>,
    minutes: f64,
}

fn steps() -> Vec<Step> {
    let listed = run(few_programs().path(), &["--list"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let rows = listed.lines().skip(1).map(|row| {
        let mut columns = row.split_whitespace();
        Step {
            name: columns.next().unwrap().to_owned(),
            lanes: columns
                .next()
                .unwrap()
                .split(',')
                .map(str::to_owned)
                .collect(),
            minutes: columns.nth(1).unwrap().parse().unwrap(),
        }
    });
    rows.collect()
}

/// The steps of a lane.
fn lane<'a>(steps: &'a [Step], lane: &str) -> Vec<&'a Step> {
    steps
        .iter()
        .filter(|step| step.lanes.iter().any(|name| name == lane))
        .collect()
}

#[test]
fn each_lane_of_the_tests_keeps_its_time_limit() {
    let steps = steps();
    for Step { name, lanes, .. } in &steps {
        let mut lanes = lanes.iter().map(String::as_str);
        let unknown = lanes.find(|lane| !["quick", "all", "nightly", "hosted"].contains(lane));
        assert_eq!(unknown, None, "a lane of {name}");
    }
    for (name, limit) in [
        ("quick", 5.0),
        ("all", 65.0),
        ("nightly", 345.0),
        ("hosted", 60.0),
    ] {
        let minutes: f64 = lane(&steps, name).iter().map(|step| step.minutes).sum();
        assert!(
            minutes > 0.0 && minutes <= limit,
            "the lane {name} takes {minutes} minutes"
        );
    }
    assert!(shipped("CONTRIBUTING.md").contains("65 minutes, 45 with a warm cache"));
}

/// A nightly run takes hours, and may take them in CI too.
#[test]
fn ci_limits_the_time_of_the_lane_that_it_waits_for_only() {
    let programs = few_programs();
    for (lane, limit) in [(None, "83m"), (Some("nightly"), "")] {
        let script = "exec() { echo \"$CRISWITCH_TIME_LIMIT\"; }; . \"$0\"";
        let mut ci = Command::new("/bin/bash");
        ci.args(["-c", script]).arg(at(".ci/run")).args(lane);
        ci.env("PATH", programs.path())
            .env_remove("CRISWITCH_TIME_LIMIT");
        let shown = String::from_utf8(ci.output().unwrap().stdout).unwrap();
        assert_eq!(shown.trim(), limit);
    }
}

/// A job of CI may take six hours, with the builds of the image and of the partners.
#[test]
fn the_jobs_of_each_night_run_each_nightly_step_once_within_four_hours() {
    let workflow: Json = serde_saphyr::from_str(&shipped(".github/workflows/nightly.yml")).unwrap();
    let jobs = &workflow["jobs"]["nightly"]["strategy"]["matrix"]["steps"];
    let jobs = jobs.as_array().unwrap().iter();
    let jobs: Vec<Vec<&str>> = jobs
        .map(|names| names.as_str().unwrap().split(' ').collect())
        .collect();
    let steps = steps();
    let nightly = lane(&steps, "nightly");
    let mut run: Vec<&str> = jobs.concat();
    let mut expected: Vec<&str> = nightly.iter().map(|step| step.name.as_str()).collect();
    run.sort_unstable();
    expected.sort_unstable();
    assert_eq!(run, expected);
    for job in jobs {
        let its = nightly
            .iter()
            .filter(|step| job.contains(&step.name.as_str()));
        let minutes: f64 = its.map(|step| step.minutes).sum();
        assert!(
            minutes <= 240.0,
            "the job of {job:?} takes {minutes} minutes"
        );
    }
}

/// The step `demo` runs the first command that README.md shows, and a workflow runs the second.
#[test]
fn the_two_commands_of_the_readme_are_a_step_and_a_lane() {
    let readme = shipped("README.md");
    assert!(
        readme.contains("    cargo run -p criswitch-demo ") && readme.contains("    tests/run.sh ")
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

/// A step that a signal or the time limit ends would wait for ever.
#[test]
fn a_run_that_fails_or_that_does_not_end_leaves_no_temporary_files() {
    let late = "the run has not ended after 1s";
    for (end, limit, code, shown) in [
        ("exit 1", "infinity", 1, "begun"),
        ("sleep infinity", "infinity", 143, "begun"),
        ("sleep infinity", "1s", 1, late),
    ] {
        let programs = with_programs(&[
            "awk", "cat", "chmod", "dirname", "env", "id", "kill", "mkdir", "mktemp", "rm", "sed",
            "sleep", "tee",
        ]);
        let cargo = programs.path().join("cargo");
        let content = format!("#!/bin/bash\n: >\"$TMPDIR/left\"\necho begun\n{end}\n");
        write_program(&cargo, content);
        let cache = tempfile::tempdir().unwrap();
        let before = programs.path().read_dir().unwrap().count();
        let mut script = script(programs.path(), &["formatting"]);
        script.env("CRISWITCH_CACHE", cache.path());
        script.env("CRISWITCH_TIME_LIMIT", limit);
        let mut ran = script.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(ran.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == shown));
        if code == 143 {
            let pid = ran.id().to_string();
            assert!(
                Command::new("kill")
                    .args(["-TERM", &pid])
                    .status()
                    .unwrap()
                    .success()
            );
        }
        lines.for_each(drop);
        assert_eq!(ran.wait().unwrap().code(), Some(code));
        assert_eq!(programs.path().read_dir().unwrap().count(), before);
    }
}
