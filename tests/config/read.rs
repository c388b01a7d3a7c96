//! The values of a configuration that was read.

use std::time::Duration;

use criswitch_config::{LogFormat, Table};
use expect_test::expect;
use tracing::level_filters::LevelFilter;

use crate::{RUNC, load, load_files};
use criswitch_testing::portable;

/// A table as text: a line `handler -> backend:backend handler` for each row, the default row marked, then the backends
/// in the table's order.
fn shown(table: &Table) -> String {
    let mut text = String::new();
    for row in &table.handlers {
        let backend = &table.backend(row.backend).unwrap().name;
        let mark = if *row == table.default {
            " (default)"
        } else {
            ""
        };
        text += &format!("{} -> {backend}:{}{mark}\n", row.name, row.backend_handler);
    }
    for backend in &table.backends {
        text += &format!("{} = {}\n", backend.name, backend.socket);
    }
    portable(&text)
}

#[test]
fn an_omitted_key_has_its_default() {
    let config = load(RUNC);
    let listen = portable(&config.listen.to_string());
    assert_eq!(listen, "/run/criswitch/criswitch.sock");
    assert_eq!(config.shutdown_timeout, Duration::from_secs(10));
    assert_eq!(config.max_message, 16 * 1024 * 1024);
    assert_eq!(config.start_wait, Duration::from_secs(30));
    assert_eq!(config.list_timeout, Duration::from_secs(2));
    assert_eq!(config.stats_timeout, Duration::from_secs(2));
    assert_eq!(config.stale_lists, Duration::MAX);
    assert_eq!(config.log.levels.to_string(), "info");
    assert_eq!(config.log.format, LogFormat::Auto);
    assert_eq!(config.metrics, None);
    assert!(!config.watch);
    assert!(!config.table.backends[0].auto_register);
    assert!(config.table.default.scheduling.is_empty());
    expect![[r#"
        runc -> runc:runc (default)
        runc = /run/containerd/containerd.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn a_written_key_overrides_its_default() {
    let head = "listen = 'unix:///run/x.sock'\nshutdown_timeout = '1m 30s'\nmax_message = '1GiB'\nlog.level = 'off'";
    let config = load(&format!("{head}\n{RUNC}"));
    assert_eq!(portable(&config.listen.to_string()), "/run/x.sock");
    assert_eq!(config.shutdown_timeout, Duration::from_secs(90));
    assert_eq!(config.max_message, 1024 * 1024 * 1024);
    assert_eq!(config.log.levels.all, LevelFilter::OFF);
}

#[test]
fn waits_may_be_zero() {
    let waits = "start_wait = '0s'\nstale_lists = '0s'\nlist_timeout = '1ms'";
    let config = load(&format!("{waits}\n{RUNC}"));
    assert_eq!(config.start_wait, Duration::ZERO);
    assert_eq!(config.stale_lists, Duration::ZERO);
    assert_eq!(config.list_timeout, Duration::from_millis(1));
}

#[cfg(unix)] // Windows has no numeric user ids.
#[test]
fn allow_uids_has_root_by_default_and_may_be_empty() {
    assert_eq!(load(RUNC).allow_uids, [0]);
    let config = load(&format!("allow_uids = [1000, 0]\n{RUNC}"));
    assert_eq!(config.allow_uids, [1000, 0]);
    assert!(
        load(&format!("allow_uids = []\n{RUNC}"))
            .allow_uids
            .is_empty()
    );
}

#[cfg(unix)] // `user` is an error on Windows.
#[test]
fn a_backends_user_is_a_name_or_a_number() {
    let config = load(
        "default_handler = 'a'
        handlers.a = 'a'
        [backends]
        a = { socket = '/run/a.sock', user = 'root' }
        b = { socket = '/run/b.sock', user = '1000' }
        c = '/run/c.sock'",
    );
    let backends = config.table.backends.iter();
    let users: Vec<_> = backends.map(|backend| backend.user).collect();
    assert_eq!(users, [Some(0), Some(1000), None]);
}

#[test]
fn a_backend_has_the_timeouts_of_its_row_or_the_global_ones() {
    let config = load(
        "default_handler = 'a'
        list_timeout = '3s'
        stats_timeout = '4s'
        [handlers]
        a = 'slow'
        b = '/run/slow.sock'
        c = 'unix:///run/./slow.sock'
        d = '/run/d.sock'
        [backends]
        slow = { socket = '/run/slow.sock', list_timeout = '1m' }
        idle = '/run/idle.sock'
        busy = { socket = '/run/busy.sock', stats_timeout = '10s' }",
    );
    let backends = config.table.backends.iter();
    let timeouts: Vec<_> = backends
        .map(|backend| {
            let timeouts = [backend.list_timeout, backend.stats_timeout];
            (
                backend.name.as_str(),
                timeouts.map(|timeout| timeout.as_secs()),
            )
        })
        .collect();
    let wanted = [
        ("slow", [60, 4]),
        ("d", [3, 4]),
        ("idle", [3, 4]),
        ("busy", [3, 10]),
    ];
    assert_eq!(timeouts, wanted);
}

#[test]
fn a_handler_has_the_same_name_at_its_backend_unless_its_row_sets_a_different_one() {
    let config = load(
        "default_handler = 'plain'
        [handlers]
        plain = 'crio'
        gvisor = { backend = 'crio', handler = 'runsc' }
        kata = { socket = '/run/kata.sock', handler = 'Kata_QEMU' }
        own = { backend = 'crio', handler = '' }
        [backends]
        crio = { socket = '/run/crio.sock' }",
    );
    expect![[r#"
        gvisor -> crio:runsc
        kata -> kata:Kata_QEMU
        own -> crio:
        plain -> crio:plain (default)
        crio = /run/crio.sock
        kata = /run/kata.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn a_row_is_found_by_its_name_and_the_default_row_by_an_empty_name() {
    let table =
        load("default_handler = 'b'\n[handlers]\nc = '/run/c'\na = '/run/a'\nb = '/run/b'").table;
    for name in ["a", "b", "c"] {
        assert_eq!(table.handler(name).unwrap().name, name);
    }
    assert_eq!(table.handler("").unwrap().name, "b");
    assert_eq!(table.default.name, "b");
    assert_eq!(table.handler("d"), None);
}

#[test]
fn a_backends_handler_name_is_translated_to_the_tables_name() {
    let table = load(
        "default_handler = 'gvisor'
        [handlers]
        sandboxed = { backend = 'b', handler = 'runsc' }
        gvisor = { backend = 'b', handler = 'runsc' }
        kata = { backend = 'b', handler = 'crun' }
        crun = 'b'
        other = { socket = '/run/other.sock', handler = 'alone' }
        [backends]
        b = '/run/b.sock'",
    )
    .table;
    let [own, other] = ["gvisor", "other"].map(|row| table.handler(row).unwrap().backend);
    assert_eq!(table.name_for(own, "runsc"), Some("runsc"));
    assert_eq!(table.name_for(own, "crun"), Some("crun"), "its own name");
    assert_eq!(table.name_for(own, "alone"), None, "another backend's");
    assert_eq!(table.name_for(other, "alone"), Some("other"));
}

#[test]
fn the_same_socket_written_twice_is_one_backend() {
    let config = load(
        "default_handler = 'runc'
        [handlers]
        runc = '/run/containerd/containerd.sock'
        crun = 'unix:///run//containerd/./containerd.sock'",
    );
    expect![[r#"
        crun -> runc:crun
        runc -> runc:runc (default)
        runc = /run/containerd/containerd.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn a_backend_has_its_name_in_the_table_of_backends_else_that_of_the_first_handler_with_its_socket()
{
    let config = load(
        "default_handler = 'z'
        [handlers]
        z = '/run/one.sock'
        a = '/run/one.sock'
        k = '/run/two.sock'
        [backends]
        two = '/run/two.sock'",
    );
    expect![[r#"
        a -> z:a
        k -> two:k
        z -> z:z (default)
        z = /run/one.sock
        two = /run/two.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn a_handler_may_use_a_backend_that_is_named_after_another_handler() {
    let config = load("default_handler = 'fc'\n[handlers]\nfc = 'kata'\nkata = '/run/kata.sock'");
    expect![[r#"
        fc -> kata:fc (default)
        kata -> kata:kata
        kata = /run/kata.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn the_default_backend_is_first_and_the_others_keep_the_order_of_the_files() {
    let main = "default_handler = 'm'
        [backends]
        idle = '/run/idle.sock'
        used = '/run/used.sock'
        [handlers]
        z = '/run/z.sock'
        m = '/run/m.sock'
        a = 'used'";
    let drop_in = "[backends]\nlast = '/run/last.sock'\n[handlers]\nb = '/run/b.sock'";
    let config = load_files(&[("criswitch.toml", main), ("conf.d/b.toml", drop_in)]);
    expect![[r#"
        a -> used:a
        b -> b:b
        m -> m:m (default)
        z -> z:z
        m = /run/m.sock
        z = /run/z.sock
        used = /run/used.sock
        b = /run/b.sock
        idle = /run/idle.sock
        last = /run/last.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn a_drop_in_adds_rows_and_keys() {
    let config = load_files(&[
        (
            "criswitch.toml",
            "[handlers]\nrunc = '/run/containerd/containerd.sock'",
        ),
        (
            "conf.d/head.toml",
            "default_handler = 'kata'\nshutdown_timeout = '0s'\nlog.level = 'trace'",
        ),
        (
            "conf.d/rows.toml",
            "[handlers]\nkata = 'vm'\n[backends]\nvm = '/run/vm.sock'",
        ),
    ]);
    assert_eq!(config.shutdown_timeout, Duration::ZERO);
    assert_eq!(config.log.levels.all, LevelFilter::TRACE);
    expect![[r#"
        kata -> vm:kata (default)
        runc -> runc:runc
        vm = /run/vm.sock
        runc = /run/containerd/containerd.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn only_drop_ins_are_read_and_in_the_order_of_their_names() {
    let config = load_files(&[
        ("criswitch.toml", RUNC),
        ("conf.d/b.toml", "[handlers]\nb = '/run/b.sock'"),
        ("conf.d/a.toml", "[handlers]\nz = '/run/z.sock'"),
        ("conf.d/.a.toml", "an editor's"),
        ("conf.d/a.toml.bak", "a backup"),
    ]);
    expect![[r#"
        b -> b:b
        runc -> runc:runc (default)
        z -> z:z
        runc = /run/containerd/containerd.sock
        z = /run/z.sock
        b = /run/b.sock
    "#]]
    .assert_eq(&shown(&config.table));
}

#[test]
fn a_byte_order_mark_is_not_a_problem() {
    load(&format!("\u{feff}{RUNC}"));
}

#[test]
fn a_name_may_have_63_letters() {
    let name = "x".repeat(63);
    let table = load(&format!(
        "default_handler = '{name}'\n[handlers]\n{name} = '/run/x.sock'"
    ))
    .table;
    assert_eq!(table.handlers[0].name, name);
}

#[test]
fn a_handler_and_a_backend_may_have_the_name_of_a_top_level_key() {
    let table = load(
        "default_handler = 'default'
        [handlers]
        default = { backend = 'watch', handler = 'x' }
        listen = '/run/l.sock'
        [backends]
        watch = '/run/w.sock'",
    )
    .table;
    let names = table.handlers.iter().map(|row| row.name.as_str());
    assert_eq!(names.collect::<Vec<_>>(), ["default", "listen"]);
    assert_eq!(table.backends[0].name, "watch");
}
