//! Configuration: the values that are read, the text of each problem, and the shipped files.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]
#![cfg_attr(
    windows,
    allow(dead_code, unused_imports, reason = "some tests are for Unix only")
)]

#[path = "config/errors_many.rs"]
mod errors_many;
#[path = "config/errors_of_foreign_files.rs"]
mod errors_of_foreign_files;
#[path = "config/errors_of_scheduling.rs"]
mod errors_of_scheduling;
#[path = "config/errors_of_syntax.rs"]
mod errors_of_syntax;
#[path = "config/errors_of_tables.rs"]
mod errors_of_tables;
#[path = "config/errors_of_values.rs"]
mod errors_of_values;
#[path = "config/generated.rs"]
mod generated;
#[path = "config/odd_files.rs"]
mod odd_files;
#[path = "config/read.rs"]
mod read;
#[path = "config/read_files.rs"]
mod read_files;
#[path = "config/read_scheduling.rs"]
mod read_scheduling;
#[path = "config/read_telemetry.rs"]
mod read_telemetry;
#[path = "config/shipped.rs"]
mod shipped;

use std::sync::Arc;

use criswitch_config::Config;

use criswitch::backend::connect::Dialer;
use criswitch::switch::Switch;
use criswitch_testing::ConfigFiles;
use expect_test::Expect;

/// The smallest valid configuration.
const RUNC: &str =
    "default_handler = 'runc'\n[handlers]\nrunc = '/run/containerd/containerd.sock'\n";

fn load(main: &str) -> Config {
    load_files(&[("criswitch.toml", main)])
}

fn load_files(files: &[(&str, &str)]) -> Config {
    let files: Vec<_> = files
        .iter()
        .map(|(path, text)| (*path, text.as_bytes()))
        .collect();
    let files = ConfigFiles::of(&files);
    Config::load(&files.main())
        .unwrap_or_else(|problems| panic!("{}", files.stable(&problems.to_string())))
}

#[track_caller]
fn fails_with(main: &str, expected: Expect) {
    files_fail_with(&[("criswitch.toml", main.as_bytes())], expected);
}

#[track_caller]
fn files_fail_with(files: &[(&str, &[u8])], expected: Expect) {
    let files = ConfigFiles::of(files);
    let problems = Config::load(&files.main()).expect_err("a problem is told");
    let text = files.stable(&problems.to_string());
    assert_eq!(
        text.lines().count(),
        problems.len(),
        "one line each: {text}"
    );
    assert!(
        text.lines().all(|line| line.contains("; try ")),
        "each with a hint: {text}"
    );
    expected.assert_eq(&text);
    changes_nothing(&files);
}

/// Asserts that a running criswitch keeps its configuration when it rereads these files.
#[track_caller]
fn changes_nothing(files: &ConfigFiles) {
    let switch = Switch::new(load(RUNC), &Dialer::Socket);
    let before = switch.live();
    let outcome = criswitch::switch::reload::reload(&switch, Config::load(&files.main()));
    assert!(outcome.result.is_err_and(|problems| !problems.is_empty()));
    assert!(Arc::ptr_eq(&before, &switch.live()));
    assert_eq!(switch.reloads().rejected, 1);
}
