//! The keys for logs, metrics, `watch` and `auto_register`.

use std::path::Path;

use criswitch_config::{LogFormat, MODULES};

use crate::{RUNC, load};
use criswitch_testing::portable;

#[test]
fn modules_may_have_levels_of_their_own() {
    for (written, shown) in [
        ("warn", "warn"),
        ("session=debug", "info,session=debug"),
        (
            " warn , session = debug,criswitch::backend=trace,config::check=off",
            "warn,backend=trace,config::check=off,session=debug",
        ),
        ("platform=off,error", "error,platform=off"),
    ] {
        let levels = load(&format!("log.level = '{written}'\n{RUNC}")).log.levels;
        assert_eq!(levels.to_string(), shown);
    }
}

/// Each module can have a separate log level, and so can each crate that logs. Add a new module to `MODULES`.
#[test]
fn every_module_is_known_to_the_log() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let others = ["config", "platform"];
    let entries = std::fs::read_dir(source).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let names = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let mut names: Vec<String> = names
        .filter(|name| name != "main" && name != "lib")
        .chain(others.map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(MODULES, *names);
}

#[test]
fn the_log_has_a_format() {
    for (written, format) in [
        ("auto", LogFormat::Auto),
        ("text", LogFormat::Text),
        ("json", LogFormat::Json),
        ("journald", LogFormat::Journald),
    ] {
        let config = load(&format!("log.format = '{written}'\n{RUNC}"));
        assert_eq!(config.log.format, format);
    }
}

#[test]
fn metrics_are_served_on_a_socket_or_an_address_or_nowhere() {
    for listen in [
        "127.0.0.1:9100",
        "127.8.9.10:1",
        "[::1]:9100",
        "0.0.0.0:9199",
        "[::]:9199",
        "/run/metrics.sock",
    ] {
        let config = load(&format!("metrics.listen = '{listen}'\n{RUNC}"));
        assert_eq!(portable(&config.metrics.unwrap().to_string()), listen);
    }
    assert_eq!(load(&format!("metrics.listen = ''\n{RUNC}")).metrics, None);
}

#[test]
fn files_are_watched_and_handlers_registered_automatically_where_a_key_says_so() {
    let config = load(&format!(
        "watch = true\n{RUNC}[backends]
        a = {{ socket = '/run/a.sock', auto_register = true }}
        b = {{ socket = '/run/b.sock', auto_register = false }}"
    ));
    assert!(config.watch);
    let backends = config.table.backends.iter();
    let registering: Vec<_> = backends.filter(|backend| backend.auto_register).collect();
    assert_eq!(registering.len(), 1);
    assert_eq!(registering[0].name, "a");
}
