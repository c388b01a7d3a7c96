//! The facts about the files themselves: which files were read, their hash, and the line of each row.

use std::path::PathBuf;

use criswitch_config::{Config, DEFAULT_LISTEN};
use expect_test::expect;

use crate::{RUNC, load};
use criswitch_testing::{ConfigFiles, portable};

fn hash(files: &[(&str, &str)]) -> String {
    crate::load_files(files).hash
}

#[test]
fn the_files_that_were_read_are_listed_with_the_main_file_first() {
    let files = ConfigFiles::of(&[
        ("criswitch.toml", RUNC.as_bytes()),
        ("conf.d/b.toml", b"shutdown_timeout = '1s'"),
        ("conf.d/a.toml", b""),
        ("conf.d/c.bak", b""),
    ]);
    let main = files.main();
    let config = Config::load(&main).unwrap();
    let expected: Vec<PathBuf> = ["criswitch.toml", "conf.d/a.toml", "conf.d/b.toml"]
        .iter()
        .map(|name| main.with_file_name(name))
        .collect();
    assert_eq!(config.files, expected);
    assert_eq!(config.path, main);
}

#[test]
fn the_hash_is_of_the_names_and_bytes_and_of_nothing_else() {
    let files = [
        ("criswitch.toml", RUNC),
        ("conf.d/a.toml", "shutdown_timeout = '1s'"),
    ];
    let first = hash(&files);
    assert_eq!(first.len(), 16);
    assert_eq!(hash(&files), first, "another directory");
    for other in [
        &[
            ("criswitch.toml", RUNC),
            ("conf.d/b.toml", "shutdown_timeout = '1s'"),
        ][..],
        &[
            ("criswitch.toml", RUNC),
            ("conf.d/a.toml", "shutdown_timeout = '2s'"),
        ],
        &[
            ("criswitch.toml", RUNC),
            ("conf.d/a.toml", "shutdown_timeout = '1s'\n"),
        ],
        &[("criswitch.toml", RUNC)],
    ] {
        assert_ne!(hash(other), first, "{other:?}");
    }
}

#[test]
fn a_row_knows_its_line() {
    let files = ConfigFiles::of(&[
        ("criswitch.toml", RUNC.as_bytes()),
        (
            "conf.d/a.toml",
            b"# kata\n[handlers]\nkata = 'vm'\nfc = '/run/fc.sock'\n\n[backends]\nvm = '/run/vm.sock'",
        ),
    ]);
    let table = Config::load(&files.main()).unwrap().table;
    let handlers = table
        .handlers
        .iter()
        .map(|row| files.stable(&row.origin.as_ref().unwrap().to_string()));
    assert_eq!(
        handlers.collect::<Vec<_>>(),
        ["conf.d/a.toml:4", "conf.d/a.toml:3", "criswitch.toml:3"]
    );
    let backends: Vec<_> = table
        .backends
        .iter()
        .map(|backend| {
            let origin = backend.origin.as_ref().unwrap().to_string();
            (backend.name.clone(), files.stable(&origin))
        })
        .collect();
    let expected = [
        ("runc", "criswitch.toml:3"),
        ("vm", "conf.d/a.toml:7"),
        ("fc", "conf.d/a.toml:4"),
    ]
    .map(|(name, origin)| (name.to_owned(), origin.to_owned()));
    assert_eq!(backends, expected);
    assert_eq!(table.default.origin, table.handler("runc").unwrap().origin);
}

#[test]
fn the_socket_is_found_in_files_with_other_problems() {
    let listen_of = |files: &[(&str, &[u8])]| {
        let files = ConfigFiles::of(files);
        Config::listen_of(&files.main()).map_or_else(
            |problems| files.stable(&problems.to_string()),
            |listen| portable(&listen.to_string()),
        )
    };
    for text in [
        "listen = '/run/x.sock'",
        "listen = '/run/x.sock'\ndefault_handler = 'nosuch'\nshutdown_timeout = 7",
        "listen = 'unix:///run/x.sock'\ndefault_handler = \n[handlers",
    ] {
        assert_eq!(
            listen_of(&[("criswitch.toml", text.as_bytes())]),
            "/run/x.sock",
            "{text}"
        );
    }
    let drop_in: &[(&str, &[u8])] = &[
        ("criswitch.toml", b"\xff"),
        ("conf.d/a.toml", b"listen = '/run/x.sock'"),
    ];
    assert_eq!(listen_of(drop_in), "/run/x.sock");
    for text in [
        "",
        "listen = 1",
        "listen = 'x'",
        "[log]\nlisten = '/run/x.sock'",
    ] {
        assert_eq!(
            listen_of(&[("criswitch.toml", text.as_bytes())]),
            portable(DEFAULT_LISTEN),
            "{text}"
        );
    }
    expect!["criswitch.toml:1:1: cannot be read: No such file or directory (os error 2); try criswitch discover --write criswitch.toml, or a different path after --config"]
        .assert_eq(&listen_of(&[]));
    assert_eq!(load(RUNC).listen.to_string(), DEFAULT_LISTEN);
}

#[cfg(unix)] // A pipe has no links.
#[test]
fn a_socket_and_a_link_to_its_file_are_one_backend_also_before_the_socket_is_there() {
    let files = ConfigFiles::of(&[("criswitch.toml", b"")]);
    let main = files.main();
    let (real, link) = (
        main.with_file_name("a.sock"),
        main.with_file_name("link.sock"),
    );
    std::os::unix::fs::symlink("a.sock", &link).unwrap();
    let rows = format!("default_handler = 'a'\n[handlers]\na = {real:?}\nb = {link:?}\n");
    std::fs::write(&main, &rows).unwrap();
    assert_eq!(Config::load(&main).unwrap().table.backends.len(), 1);
    // A hard link shows one file at two paths, as a bind mount does.
    std::fs::remove_file(&link).unwrap();
    assert_eq!(Config::load(&main).unwrap().table.backends.len(), 2);
    let _socket = std::os::unix::net::UnixListener::bind(&real).unwrap();
    std::fs::hard_link(&real, &link).unwrap();
    assert_eq!(Config::load(&main).unwrap().table.backends.len(), 1);
}

/// The target may appear later, for example when it is mounted, and then adds drop-ins.
#[cfg(unix)] // Links on Windows need a privilege.
#[test]
fn a_link_to_a_missing_folder_of_drop_ins_is_a_problem() {
    let files = ConfigFiles::of(&[("criswitch.toml", RUNC.as_bytes())]);
    let main = files.main();
    assert!(Config::load(&main).is_ok());
    std::os::unix::fs::symlink("nowhere", main.with_file_name("conf.d")).unwrap();
    let problems = Config::load(&main).unwrap_err().to_string();
    assert!(problems.contains("conf.d"), "{problems}");
}

#[cfg(unix)] // A pipe has no links.
#[test]
fn one_socket_by_two_paths_is_one_backend() {
    let files = ConfigFiles::of(&[("criswitch.toml", b"")]);
    let main = files.main();
    let real = main.with_file_name("run");
    let link = main.with_file_name("var-run");
    // The directory of the socket does not exist yet.
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink("run", &link).unwrap();
    let (real, link) = (real.join("a/a.sock"), link.join("a/a.sock"));
    let rows = format!("default_handler = 'a'\n[handlers]\na = {real:?}\nb = {link:?}\n");
    std::fs::write(&main, &rows).unwrap();
    let table = Config::load(&main).unwrap().table;
    assert_eq!(table.backends.len(), 1);
    assert_eq!(table.handlers[1].backend, table.handlers[0].backend);

    let names = format!("{rows}[backends]\nc = {link:?}\nd = {real:?}\n");
    std::fs::write(&main, names).unwrap();
    let config = Config::load(&main).unwrap();
    let backends: Vec<_> = config.table.backends.iter().map(|it| &*it.name).collect();
    assert_eq!(backends, ["c"]);
    let [note] = config.notes.as_slice() else {
        panic!("{:?}", config.notes);
    };
    assert!(
        note.ends_with("one backend, \"c\", for both names, with the settings of \"c\""),
        "{note}"
    );

    std::fs::write(
        &main,
        format!("listen = {real:?}\ndefault_handler = 'a'\n[handlers]\na = {link:?}\n"),
    )
    .unwrap();
    let problems = Config::load(&main).unwrap_err().to_string();
    assert!(problems.contains("is criswitch's own socket"), "{problems}");
}
