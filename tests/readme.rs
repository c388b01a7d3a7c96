//! The README says what is true.
#![allow(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions only"
)]

use std::fmt::Write;
use std::path::Path;

use criswitch::metrics::{FAMILIES, MetricKind};
use criswitch::rpc::ROWS;

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    std::fs::read_to_string(path).unwrap()
}

fn table() -> String {
    let mut table =
        String::from("| RPC | Goes to | Key | Unknown id | The reply |\n|---|---|---|---|---|\n");
    for words in ROWS.iter().map(criswitch::rpc::Row::words) {
        let (_, name) = words.rpc.split_once('/').unwrap();
        let (goes_to, key, reply) = (words.goes_to, words.key, words.reply);
        writeln!(
            table,
            "| {name} | {goes_to} | {key} | {} | {reply} |",
            words.unknown_id
        )
        .unwrap();
    }
    table
}

/// The same of metrics.
fn families() -> String {
    let mut table = String::from("| Metric | Labels | What |\n|---|---|---|\n");
    for family in FAMILIES {
        let (name, labels) = (family.name, family.labels.join(", "));
        let kind = match family.kind {
            MetricKind::Histogram => " (histogram)",
            MetricKind::Counter | MetricKind::Gauge => "",
        };
        writeln!(table, "| `{name}`{kind} | {labels} | {} |", family.help).unwrap();
    }
    table
}

/// What stands between two marks is `own`; with `UPDATE_EXPECT=1` the README is rewritten instead.
#[track_caller]
fn assert_between(mark: &str, own: &str) {
    let readme = readme();
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let (before, rest) = readme.split_once(&begin).unwrap();
    let (shown, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
        std::fs::write(path, format!("{before}{begin}{own}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, own);
}

#[test]
fn the_tables_of_rpcs_and_metrics_in_the_readme_are_the_switchs_own() {
    assert_between("routes", &table());
    assert_between("metrics", &families());
}

/// The unit's `name` in MiB.
fn unit_mib(name: &str) -> usize {
    let unit = include_str!("../systemd/criswitch.service");
    let value = unit
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    value.strip_suffix('M').unwrap().parse().unwrap()
}

#[test]
fn the_units_limits_of_memory_are_what_all_limits_add_up_to_and_a_quarter_more() {
    let mut keys = criswitch::config::KEYS.iter();
    let key = keys.find(|key| key.name == "max_message").unwrap();
    assert_eq!(key.default, Some("16MiB"));
    let most = criswitch::limits::budget::most(16 << 20, 4) >> 20;
    assert_eq!(unit_mib("MemoryHigh="), most);
    assert_eq!(unit_mib("MemoryMax="), most + most / 4);
    let said = format!("add up to {most} MiB for four backends");
    assert!(readme().contains(&said), "{said}");
}

#[test]
fn every_file_that_the_readme_links_to_exists() {
    let readme = readme();
    let links = readme
        .split("](")
        .skip(1)
        .map(|rest| rest.split(')').next().unwrap());
    let mut count = 0;
    for link in links {
        assert!(
            Path::new(env!("CARGO_MANIFEST_DIR")).join(link).exists(),
            "{link}"
        );
        count += 1;
    }
    assert!(count > 10);
}

#[test]
fn the_readmes_configuration_loads() {
    let readme = readme();
    let (_, rest) = readme.split_once("## Configuration\n\n").unwrap();
    let lines = rest
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    let text: String = lines
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("criswitch.toml");
    std::fs::write(&path, text).unwrap();
    let config = criswitch::config::Config::load(&path).unwrap();
    assert_eq!(config.table.handlers.len(), 3);
    assert_eq!(
        config.table.handler("gvisor").unwrap().backend_handler,
        "runsc"
    );
}
