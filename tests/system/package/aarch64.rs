//! The programs for aarch64. qemu-user runs them in front of simulated runtimes.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::machine::until;
use crate::support::{Client, Sim};

/// One of the programs that tests/system/package/run.sh built.
fn program(name: &str) -> Command {
    let folder = std::env::var_os("CRISWITCH_AARCH64");
    let folder = folder.expect("CRISWITCH_AARCH64 names the folder of the programs");
    let mut command = Command::new("qemu-aarch64-static");
    command.arg(Path::new(&folder).join(name));
    command
}

/// The output of a command, which must succeed. The simulated runtimes continue to run meanwhile.
async fn output(arguments: &[&str]) -> String {
    let mut command = program("criswitch");
    command.args(arguments).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{arguments:?}: {said}");
    said
}

/// The daemon, which ends with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().unwrap().to_owned()
}

#[tokio::test]
#[ignore = "needs qemu-user and the program for aarch64: tests/system/package/run.sh"]
async fn the_program_for_aarch64_discovers_checks_routes_a_pod_and_merges_a_list() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| path(directory.path(), name);
    let sims = ["runc", "kata"].map(|name| Sim::new(name).handlers([name]));
    for sim in &sims {
        sim.serve_on(Path::new(&at(&format!("{}.sock", sim.name()))));
    }
    let version = output(&["version"]).await;
    assert!(version.contains("aarch64-unknown-linux-musl"), "{version}");

    let sockets = [at("runc.sock"), at("kata.sock")];
    let root = at("");
    let found = output(&["discover", "--root", &root, &sockets[0], &sockets[1]]).await;
    let listen = format!("listen = {:?}\n", at("criswitch.sock"));
    std::fs::write(at("criswitch.toml"), format!("{listen}{found}")).unwrap();
    let config = at("criswitch.toml");
    let checked = output(&["check", "--probe", "--config", &config]).await;
    assert!(checked.contains("configuration is valid"), "{checked}");

    let mut serve = program("criswitchd");
    let _daemon = Daemon(serve.args(["--config", &config]).spawn().unwrap());
    let client = Client::new(Path::new(&at("criswitch.sock")));
    until(async || client.pods().await.is_ok()).await;
    client.run_pod("kata", "safe").await.unwrap();
    assert_eq!(sims.each_ref().map(|sim| sim.pods().len()), [0, 1]);
    client.run_pod("runc", "web").await.unwrap();
    assert_eq!(sims.each_ref().map(|sim| sim.pods().len()), [1, 1]);
    let listed = client.pods().await.unwrap();
    let mut names: Vec<_> = listed
        .iter()
        .map(|pod| &pod.metadata.as_ref().unwrap().name)
        .collect();
    names.sort();
    assert_eq!(names, ["safe", "web"]);
}
