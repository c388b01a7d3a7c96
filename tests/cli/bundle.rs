//! `criswitch bundle`: what the archive has, and that no secret is in it.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use flate2::read::GzDecoder;
use serde_json::Value as Json;

use crate::logged_daemon::LoggedDaemon;
use crate::secrets::{SECRET, secret, whisper};
use crate::support::{Client, ConfigFiles, IMAGE, Sim, write_program};
use crate::{command, main_file, text};

const PARTS: [&str; 10] = [
    "check.json",
    "config.toml",
    "log.txt",
    "machine.txt",
    "metrics.txt",
    "parts.txt",
    "state.txt",
    "status.json",
    "status.txt",
    "version.json",
];

/// A program that replaces the node's `journalctl`. It prints log lines with secrets, as errors of a runtime may
/// contain.
const JOURNALCTL: &str = "#!/bin/sh\ncat <<'LINES'
criswitch started commit=0123456789ab
pull failed error=\"https://me:hunter2@store.example/v2/?sig=hunter2\"
pull failed error=\"say {\\\"auth_token\\\": \\\"hunter2\\\"}\" password=hunter2
sent Authorization: Bearer hunter2
sent Authorization: Basic a,hunter2
set password=\"a,hunter2\" --token hunter2
-----BEGIN PRIVATE KEY-----
hunter2
-----END PRIVATE KEY-----
LINES
";

/// Runs `criswitch bundle` with a `journalctl` that prints secrets, and with secrets in its environment.
async fn bundle(files: &ConfigFiles, archive: &Path) -> (Option<i32>, String) {
    let programs = files.main().with_file_name("bin");
    std::fs::create_dir_all(&programs).unwrap();
    let journalctl = programs.join("journalctl");
    write_program(&journalctl, JOURNALCTL);
    let mut bundle = command(&["bundle", "--config", text(&files.main()), text(archive)]);
    bundle.env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    bundle.env("REGISTRY_PASSWORD", secret("environment"));
    let run = move || bundle.output().unwrap();
    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let shown = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(shown).unwrap())
}

/// The files of the archive, by their names in its folder.
fn parts(archive: &Path) -> BTreeMap<String, String> {
    let file = std::fs::File::open(archive).unwrap();
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        let name = path.strip_prefix("criswitch-bundle").unwrap();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name.to_str().unwrap().to_owned(), text)
    });
    entries.collect()
}

fn json(text: &str) -> Json {
    serde_json::from_str(text).unwrap()
}

#[tokio::test]
async fn a_bundle_has_all_parts_and_no_secret() {
    let files = main_file("");
    let at = |name: &str| files.main().with_file_name(name);
    let configuration = format!(
        "# the registry's password is hunter2\nlisten = {:?}\ndefault_handler = 'runc'\nstart_wait = '0s'\n
        log.level = 'trace'\n[handlers]\nrunc = {:?} # token hunter2\ndead = {:?}",
        at("listen"), at("runc"), at("dead")
    );
    std::fs::write(files.main(), configuration).unwrap();
    let runc = Sim::new("runc");
    runc.serve_on(&at("runc"));
    runc.add_image(IMAGE);
    let daemon = LoggedDaemon::start_as(crate::daemon(text(&files.main())));
    let client = Client::new(&at("listen"));
    for handler in ["runc", "dead", "nosuch"] {
        whisper(&client, handler).await;
    }
    let archive = at("bundle.tar.gz");
    let (code, shown) = bundle(&files, &archive).await;
    assert_eq!(code, Some(0), "{shown}");
    let mode = archive.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let parts = parts(&archive);
    assert!(parts.keys().eq(&PARTS), "{:?}", parts.keys());
    for (part, text) in &parts {
        assert!(!text.contains(SECRET), "{part}: {text}");
    }
    assert!(!shown.contains(SECRET), "{shown}");
    assert_eq!(
        json(&parts["version.json"])["version"],
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(
        json(&parts["status.json"])["health"]["state"],
        "lists failing"
    );
    assert!(
        !json(&parts["check.json"])["problems"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    for (part, word) in [
        ("config.toml", "\ndefault_handler = 'runc'\n"),
        ("machine.txt", "Linux version"),
        ("status.txt", "dead"),
        (
            "metrics.txt",
            "criswitch_verdict{verdict=\"lists failing\"} 1\n",
        ),
        ("state.txt", "backends.register"),
        ("log.txt", "commit=0123456789ab"),
        ("parts.txt", " ok"),
    ] {
        assert!(parts[part].contains(word), "{part}: {}", parts[part]);
    }
    daemon.end();
}

#[tokio::test]
async fn parts_that_fail_are_named_and_the_rest_is_there() {
    let files =
        main_file("default_handler = 'runc'\nregistry_password = 'hunter2'\nother = 'hunter2'\n");
    let archive = files.main().with_file_name("bundle.tar.gz");
    let (code, shown) = bundle(&files, &archive).await;
    assert_eq!(code, Some(0), "{shown}");
    let parts = parts(&archive);
    assert!(parts.keys().eq(&PARTS), "{:?}", parts.keys());
    for (part, text) in &parts {
        assert!(!text.contains(SECRET), "{part}: {text}");
    }
    let config = &parts["config.toml"];
    assert!(config.contains("default_handler =\n? =\n? =\n"), "{config}");
    let outcomes = &parts["parts.txt"];
    for (part, words) in [
        ("version.json", " ok"),
        ("config.toml", " ok"),
        (
            "state.txt",
            "the configuration is not valid: check.json has its problems",
        ),
        ("check.json", "exit status: 78"),
        ("status.json", "exit status: 69"),
        ("log.txt", " ok"),
    ] {
        let line = outcomes.lines().find(|line| line.starts_with(part));
        assert!(
            line.is_some_and(|line| line.contains(words)),
            "{part}: {outcomes}"
        );
        assert!(shown.contains(line.unwrap()), "{shown}");
    }
}

#[tokio::test]
async fn a_file_that_exists_is_not_replaced() {
    let files = main_file("");
    let archive = files.main().with_file_name("bundle.tar.gz");
    std::fs::write(&archive, "kept").unwrap();
    let (code, shown) = bundle(&files, &archive).await;
    assert_eq!(code, Some(1));
    assert!(
        shown.contains("bundle.tar.gz exists; name a file that does not exist"),
        "{shown}"
    );
    assert_eq!(std::fs::read_to_string(archive).unwrap(), "kept");
}

#[tokio::test]
async fn tar_can_read_the_archive() {
    let files = main_file("");
    let archive = files.main().with_file_name("bundle.tar.gz");
    bundle(&files, &archive).await;
    let listed = Command::new("tar")
        .arg("tzf")
        .arg(&archive)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert_eq!(listed.lines().count(), PARTS.len(), "{listed}");
    assert!(
        listed
            .lines()
            .all(|name| name.starts_with("criswitch-bundle/")),
        "{listed}"
    );
}

#[tokio::test]
async fn an_archive_that_cannot_be_written_fails_before_the_parts_are_collected() {
    let files = main_file("");
    let archive = files.main().with_file_name("absent/bundle.tar.gz");
    let (code, shown) = bundle(&files, &archive).await;
    assert_eq!(code, Some(1));
    assert!(shown.contains("cannot write"), "{shown}");
    assert!(!shown.contains("version.json"), "{shown}");
}

#[tokio::test]
async fn a_dash_writes_the_archive_to_standard_output() {
    let files = main_file("");
    let mut bundle = command(&["bundle", "--config", text(&files.main()), "-"]);
    let output = tokio::task::spawn_blocking(move || bundle.output().unwrap())
        .await
        .unwrap();
    let archive = files.main().with_file_name("printed.tar.gz");
    std::fs::write(&archive, output.stdout).unwrap();
    assert!(parts(&archive).keys().eq(&PARTS));
    let notes = String::from_utf8(output.stderr).unwrap();
    assert!(notes.contains("Read it before you publish it."), "{notes}");
}
