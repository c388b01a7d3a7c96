//! The version and the addresses are those of Cargo.toml, wherever they are written.

use std::fs;
use std::path::Path;

use toml::{Table, Value};

use crate::{assert_between, at, documents, shipped};

/// A value of `package` in Cargo.toml.
fn package(path: &str) -> String {
    let manifest: Table = shipped("Cargo.toml").parse().unwrap();
    let package = manifest.get("package");
    let value = path
        .split('.')
        .fold(package, |table, key| table.and_then(|it| it.get(key)));
    value.and_then(Value::as_str).unwrap().to_owned()
}

/// The texts that begin with a digit, after each `before`.
fn numbers<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let rest = text.split(before).skip(1);
    let number = rest.map(move |rest| rest.split(|c| !is_number(c)).next().unwrap());
    number
        .map(|number| number.trim_end_matches('.'))
        .filter(|number| number.contains('.'))
}

#[test]
fn the_changelogs_the_chart_and_the_documentation_have_the_version_of_cargo_toml() {
    let version = env!("CARGO_PKG_VERSION");
    let (_, newest) = shipped("CHANGELOG.md")
        .split_once("\n## ")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert!(newest.starts_with(version), "CHANGELOG.md: {version}");
    let chart = shipped("deploy/chart/Chart.yaml");
    for key in ["version", "appVersion"] {
        assert!(chart.contains(&format!("\n{key}: {version}\n")), "{key}");
    }
    let image = format!(" localhost/criswitch:{version}\n");
    assert!(shipped("deploy/kustomize/nodes.yaml").contains(&image));
    let packaged = shipped("package/changelog");
    assert!(packaged.starts_with(&format!("criswitch ({version}-1) ")));
    for document in documents() {
        let text = shipped(&document);
        for before in ["criswitch_", "criswitch-", "criswitch "] {
            for number in numbers(&text, before) {
                assert_eq!(number, version, "{document}: `{before}{number}`");
            }
        }
    }
}

#[test]
fn every_address_is_made_from_cargo_toml() {
    let repository = package("repository");
    let documentation = format!("{repository}/blob/main/docs");
    let manifest = written("Cargo.toml", |line| match line.split_once(" = ")?.0 {
        "homepage" => Some(format!("homepage = \"{repository}\"")),
        "documentation" => Some(format!("documentation = \"{documentation}\"")),
        _ => None,
    });
    assert!(manifest >= 2);
    let chart = written("deploy/chart/Chart.yaml", |line| {
        line.strip_prefix("home: ")
            .map(|_| format!("home: {repository}"))
    });
    assert_eq!(chart, 1);
    for file in [
        "config/alerts.yaml",
        "tests/system/prometheus/alerts_test.yaml",
    ] {
        let links = written(file, |line| {
            let (before, link) = line.split_once("runbook_url: ")?;
            let (_, section) = link.split_once("/runbook.md#")?;
            Some(format!(
                "{before}runbook_url: {documentation}/runbook.md#{section}"
            ))
        });
        assert!(links > 15, "{file}: {links}");
    }
    let contact = package("metadata.criswitch.security_contact");
    assert_between("SECURITY.md", "contact", &format!("**{contact}**\n"));
}

/// Checks that each line for which `own` has a text is this text, and returns the number of these lines.
/// `UPDATE_EXPECT=1` writes the texts to the file.
#[track_caller]
fn written(file: &str, own: impl Fn(&str) -> Option<String>) -> usize {
    let text = shipped(file);
    let mut found = 0;
    let lines = text.lines().map(|line| match own(line) {
        Some(own) => {
            found += 1;
            own + "\n"
        }
        None => format!("{line}\n"),
    });
    let expected: String = lines.collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(at(file), expected).unwrap();
    } else {
        assert_eq!(text, expected);
    }
    found
}

/// The package and the chart have the same files.
#[test]
fn the_chart_has_links_to_the_files_of_the_package() {
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/chart/files");
    for name in [
        "alerts.yaml",
        "grafana-dashboard.json",
        "node-problem-detector",
    ] {
        let link = fs::read_link(files.join(name)).expect(name);
        assert!(files.join(&link).exists(), "{name} -> {}", link.display());
    }
}
