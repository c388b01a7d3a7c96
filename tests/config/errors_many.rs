//! Configurations with very many problems or rows are read in time, and the report is short.

use std::fmt::Write;

use criswitch_config::Problems;

use crate::odd_files::load_in_time;
use crate::{RUNC, load_files};
use criswitch_testing::ConfigFiles;

fn problems(drop_in: &str) -> Problems {
    let files = ConfigFiles::of(&[
        ("criswitch.toml", RUNC.as_bytes()),
        ("conf.d/a.toml", drop_in.as_bytes()),
    ]);
    load_in_time(&files.main()).unwrap_err()
}

fn rows(count: usize, row: impl Fn(usize) -> String) -> String {
    (0..count).fold(String::new(), |mut rows, number| {
        writeln!(rows, "{}", row(number)).unwrap();
        rows
    })
}

#[test]
fn of_very_many_problems_the_first_are_reported_and_the_rest_counted() {
    let problems = problems(&rows(30_000, |number| format!("key-{number} = 1")));
    let shown = problems.to_string();
    let lines: Vec<_> = shown.lines().collect();
    assert_eq!(lines.len(), 101);
    assert!(lines[0].contains("a.toml:1:1: unknown key \"key-0\"; try "));
    assert!(lines[99].contains("a.toml:100:1: unknown key \"key-99\"; try "));
    assert_eq!(lines[100], "and 29900 more problems");
    assert_eq!((problems.iter().count(), problems.len()), (100, 30_000));
}

#[test]
fn one_problem_beyond_the_limit_is_counted_in_the_singular() {
    let shown = problems(&rows(101, |number| format!("key-{number} = 1"))).to_string();
    assert!(shown.ends_with("\nand 1 more problem"), "{shown}");
    let shown = problems(&rows(100, |number| format!("key-{number} = 1"))).to_string();
    assert!(shown.lines().last().unwrap().contains("key-99"), "{shown}");
}

#[test]
fn problems_are_ordered_by_place_and_not_by_time() {
    // criswitch finds a wrong value only after it has found all unknown keys.
    let keys = rows(200, |number| format!("key-{number} = 1"));
    let shown = problems(&format!("shutdown_timeout = 'soon'\n{keys}")).to_string();
    let first = shown.lines().next().unwrap();
    assert!(first.contains("a.toml:1:20: \"soon\" is not"), "{first}");
    assert!(shown.ends_with("\nand 101 more problems"), "{shown}");
}

#[cfg(unix)] // Windows has no numeric user ids.
#[test]
fn a_line_as_long_as_a_file_is_read_in_time() {
    let uids = vec!["-1"; 300_000].join(",");
    let shown = problems(&format!("allow_uids = [{uids}]")).to_string();
    let first = shown.lines().next().unwrap();
    assert!(
        first.contains("a.toml:1:15: -1 is not a user id"),
        "{first}"
    );
    let last = shown.lines().nth(99).unwrap();
    assert!(last.contains("a.toml:1:312: -1 is not"), "{last}");
}

#[test]
fn words_as_long_as_a_file_are_cut() {
    let shown = problems(&format!("{} = 1", "x".repeat(1 << 19))).to_string();
    assert!(shown.len() < 2000, "{}", shown.len());
    assert!(shown.contains("xxx...; try one of"), "{shown}");
}

#[test]
fn a_hint_has_some_of_very_many_names() {
    let handlers = rows(1000, |number| {
        format!("name-{number} = '/run/{number}.sock'")
    });
    let main = format!("default_handler = 'z'\n[handlers]\n{handlers}");
    let files = criswitch_testing::ConfigFiles::of(&[("criswitch.toml", main.as_bytes())]);
    let shown = criswitch_config::Config::load(&files.main())
        .unwrap_err()
        .to_string();
    assert_eq!(shown.matches("name-").count(), 20);
    assert!(shown.ends_with("\"name-19\", ..."), "{shown}");
}

#[test]
fn too_many_rows_are_reported_at_the_first_row_above_the_limit() {
    let row = |number| format!("kata-{number} = '/run/{number}.sock'");
    let handlers = |count| format!("[handlers]\n{}", rows(count, row));
    let config = load_files(&[("criswitch.toml", RUNC), ("conf.d/a.toml", &handlers(2047))]);
    assert_eq!(config.table.handlers.len(), 2048);
    let shown = problems(&handlers(20_000)).to_string();
    let expected = "a.toml:2049:1: the tables have more than 2048 rows; try fewer rows";
    assert!(shown.ends_with(expected), "{shown}");
    assert_eq!(shown.lines().count(), 1);
}
