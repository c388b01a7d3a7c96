//! The shipped configuration files load, and describe the program's behaviour.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use criswitch_config::{Config, KEYS, Key};
use expect_test::expect;

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config")
        .join(path)
}

fn main_file() -> String {
    std::fs::read_to_string(shipped("criswitch.toml")).unwrap()
}

fn load(path: &Path) -> Config {
    Config::load(path).unwrap_or_else(|problems| panic!("{problems}"))
}

/// The default handler, each handler with its backend and backend handler, and the backends in the table's order, one
/// line each.
fn shown(path: &Path) -> String {
    let table = load(path).table;
    let mut text = format!("{}\n", path.file_name().unwrap().display());
    writeln!(text, "  default {}", table.default.name).unwrap();
    for row in &table.handlers {
        let backend = &table.backend(row.backend).unwrap().name;
        writeln!(
            text,
            "  {} -> {backend} {:?}",
            row.name, row.backend_handler
        )
        .unwrap();
    }
    for backend in &table.backends {
        writeln!(text, "  {} = {}", backend.name, backend.socket).unwrap();
    }
    text
}

#[cfg(unix)] // The shipped files have Unix paths.
#[test]
fn the_main_file_loads() {
    expect![[r#"
        criswitch.toml
          default runc
          runc -> runc "runc"
          runc = /run/containerd/containerd.sock
    "#]]
    .assert_eq(&shown(&shipped("criswitch.toml")));
}

#[cfg(unix)] // The shipped files have Unix paths.
#[test]
fn the_main_files_commented_rows_are_right_and_show_every_key_of_a_row() {
    let text = main_file();
    let uncommented: Vec<&str> = text.lines().map(uncommented).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("criswitch.toml");
    std::fs::write(&path, uncommented.join("\n")).unwrap();
    expect![[r#"
        criswitch.toml
          default runc
          boxed -> crio "box"
          crun -> crio "crun"
          fc -> kata "fc"
          gvisor -> crio "runsc"
          kata -> kata "kata"
          kata-qemu -> kata "kata-qemu"
          runc -> runc "runc"
          tdx -> kata "tdx"
          wasm -> wasm ""
          runc = /run/containerd/containerd.sock
          kata = /run/kata/containerd.sock
          crio = /run/crio/crio.sock
          wasm = /run/wasm/containerd.sock
          old = /run/old/containerd.sock
          new = /run/new/containerd.sock
          rootless = /run/user/1000/containerd/containerd.sock
    "#]]
    .assert_eq(&shown(&path));
    let is_of_row = |key: &&Key| !["", "log", "metrics"].contains(&key.table);
    for key in KEYS.iter().filter(is_of_row).map(|key| key.name) {
        let shown = uncommented
            .iter()
            .any(|line| line.contains(&format!(" {key} = ")));
        assert!(shown, "{key}");
    }
}

/// Removes the `#` of a commented-out row. The first line of such a row has no space after the `#`, and its second line
/// has two. Prose has one space.
fn uncommented(line: &str) -> &str {
    let row = |rest: &&str| rest.starts_with("  ") || !rest.starts_with([' ', ':']);
    line.strip_prefix('#').filter(row).unwrap_or(line)
}

#[cfg(unix)] // The shipped files have Unix paths.
#[test]
fn each_example_loads_and_begins_with_its_purpose() {
    let entries = std::fs::read_dir(shipped("examples")).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let mut tables = String::new();
    for path in &paths {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.starts_with("# "), "{}", path.display());
        tables += &shown(path);
    }
    expect![[r#"
        cri-dockerd.toml
          default runc
          docker -> docker ""
          runc -> runc "runc"
          runc = /run/containerd/containerd.sock
          docker = /run/cri-dockerd.sock
        crio-and-containerd.toml
          default default
          crun -> crio "crun"
          default -> crio ""
          gvisor -> containerd "runsc"
          crio = /run/crio/crio.sock
          containerd = /run/containerd/containerd.sock
        gvisor-rename.toml
          default runc
          gvisor -> containerd "runsc"
          runc -> containerd "runc"
          sandboxed -> gvisor-only "runsc"
          containerd = /run/containerd/containerd.sock
          gvisor-only = /run/gvisor/containerd.sock
        kata-beside-containerd.toml
          default runc
          kata -> kata "kata"
          kata-fc -> kata "kata-fc"
          runc -> runc "runc"
          runc = /run/containerd/containerd.sock
          kata = /run/kata/containerd.sock
        migrate-containerd.toml
          default runc
          runc -> new "runc"
          new = /run/containerd-2/containerd.sock
          old = /run/containerd/containerd.sock
        two-containerds.toml
          default runc
          crun -> new "crun"
          runc -> stable "runc"
          stable = /run/containerd/containerd.sock
          new = /run/containerd-new/containerd.sock
    "#]]
    .assert_eq(&tables);
}
