//! The packages: dpkg, apt and dnf install, upgrade, remove and purge them on a separate machine
//! (tests/system/systemd/boot.sh).
// No other crate can reach these items, and a panic is a failed test.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used)]
#![allow(clippy::panic, clippy::indexing_slicing, clippy::print_stderr)]

#[path = "../systemd/machine.rs"]
mod machine;

mod aarch64;
mod debian;
mod repositories;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};

use criswitch_testing::{self as support, IMAGE};
use debian::{Debian, FIRST};
use machine::{CONFIG, until};

const UPGRADES: u32 = 5;
/// The line of a listener at 127.0.0.1:9199 in /proc/net/tcp.
const METRICS: &str = "0100007F:23EF 00000000:0000 0A";

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn an_installation_starts_nothing_and_leaves_the_kubelet_alone() {
    let debian = Debian::boot().await;
    let kubelet = debian.show("kubelet", "InvocationID");
    let units = debian.files("/etc/systemd");
    debian.install(FIRST).await;
    for unit in [
        "criswitch.socket",
        "criswitch-metrics.socket",
        "criswitch.service",
    ] {
        assert_eq!(debian.show(unit, "ActiveState"), "inactive");
        assert_eq!(debian.show(unit, "UnitFileState"), "disabled");
    }
    assert!(!debian.at("run/criswitch").exists());
    assert_eq!(debian.show("kubelet", "InvocationID"), kubelet);
    assert_eq!(debian.files("/etc/systemd"), units);
    assert_eq!(
        debian.files("/etc/criswitch"),
        "/etc/criswitch\n/etc/criswitch/conf.d\n/etc/criswitch/criswitch.toml"
    );
}

#[tokio::test]
#[ignore = "needs root, systemd and the bundle: tests/system/package/run.sh"]
async fn the_script_of_the_bundle_installs_the_package() {
    let debian = Debian::boot().await;
    debian.share("CRISWITCH_BUNDLE");
    // dpkg must not run triggers, because only other packages have them.
    let options = debian.at("etc/dpkg/dpkg.cfg.d");
    fs::create_dir_all(&options).unwrap();
    fs::write(options.join("triggers"), "no-triggers\n").unwrap();
    let load = "PATH=/usr/sbin:/usr/bin:/sbin:/bin /run/backends/bundle/load.sh package";
    debian.runs("sh", &["-c", load]);
    let version = debian.runs("criswitch", &["version"]);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn the_shipped_configuration_is_valid_and_serves() {
    let debian = Debian::boot().await;
    debian.install(FIRST).await;
    let table = debian.runs("criswitch", &["check"]);
    assert!(table.contains("/run/containerd/containerd.sock"), "{table}");
    debian.systemctl(&["enable", "--now", "criswitch.socket", "criswitch.service"]);
    // The machine has no containerd, so no backend is ready.
    until(async || debian.show("criswitch", "StatusText").starts_with("0/1 ")).await;
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn the_package_has_manual_pages_completions_licences_and_an_example_for_the_kubelet() {
    let debian = Debian::boot().await;
    debian.install(FIRST).await;
    for (file, words) in [
        ("man/man8/criswitch.8.gz", "criswitchd"),
        ("man/man8/criswitchd.8.gz", "SIGHUP"),
        ("man/man8/criswitch-check.8.gz", "probe"),
        ("man/man5/criswitch.toml.5.gz", "shutdown_timeout"),
        (
            "bash-completion/completions/criswitch",
            "CRISWITCH_COMPLETE",
        ),
        ("zsh/vendor-completions/_criswitch", "CRISWITCH_COMPLETE"),
        ("bash-completion/completions/criswitchd", "criswitchd"),
        ("zsh/vendor-completions/_criswitchd", "criswitchd"),
        ("fish/vendor_completions.d/criswitchd.fish", "criswitchd"),
        (
            "fish/vendor_completions.d/criswitch.fish",
            "CRISWITCH_COMPLETE",
        ),
        ("criswitch/criswitch.schema.json", "default_handler"),
        ("doc/criswitch/copyright", "Apache-2.0"),
        ("doc/criswitch/third-party.txt", "tokio 1."),
        ("doc/criswitch/changelog.Debian.gz", "criswitch (0."),
        ("doc/criswitch/docs/provisioning.md", "kubeadm"),
        (
            "doc/criswitch/examples/kubelet.service.d/10-criswitch.conf",
            "criswitch.service",
        ),
    ] {
        let text = debian.runs("zcat", &["--force", &format!("/usr/share/{file}")]);
        assert!(text.contains(words), "{file}");
    }
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn upgrades_under_load_fail_no_call_and_keep_the_configuration() {
    let debian = Debian::boot().await;
    debian.install_and_serve(CONFIG).await;
    let (pods, containers) = populate(&debian).await;
    let newer = |n| debian.another(&format!("{FIRST}+{n}"));
    let versions: Vec<_> = (1..=UPGRADES).map(newer).collect();
    let load = load(&debian, &pods, &containers);
    let socket = inode(&debian);
    for version in &versions {
        under_load(&debian).await;
        let before = debian.show("criswitch", "MainPID");
        debian.install(version).await;
        assert_ne!(debian.show("criswitch", "MainPID"), before);
        assert!(debian.runs_what_is_installed());
        assert_eq!(debian.config(), CONFIG);
        debian.client().pods().await.unwrap();
    }
    eprintln!("{UPGRADES} upgrades: {}", ended(load).await);
    assert_eq!(inode(&debian), socket);
    assert_eq!(debian.show("criswitch", "NRestarts"), "0");
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn an_upgrade_while_a_backend_is_down_loses_no_pod() {
    let debian = Debian::boot().await;
    debian.install_and_serve(CONFIG).await;
    let (pods, _) = populate(&debian).await;
    debian.sim("kata").stop().await;
    debian.install(&debian.another("9")).await;
    assert!(debian.runs_what_is_installed());

    let client = debian.client();
    let listed = client.pods().await.unwrap();
    let is_listed = |id: &String| listed.iter().any(|pod| pod.id == *id);
    assert!(pods.iter().all(is_listed), "{listed:?}");
    let boxed = pods.last().unwrap();
    let unavailable = client.stop_pod(boxed).await.unwrap_err();
    assert_eq!(unavailable.code(), tonic::Code::Unavailable);
    assert!(unavailable.message().contains("kata"), "{unavailable}");
    let new = client.run_pod("runc", "new").await.unwrap();
    client.stop_pod(&new).await.unwrap();
    client.remove_pod(&new).await.unwrap();

    debian.sim("kata").start();
    until(async || client.stop_pod(boxed).await.is_ok()).await;
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn an_upgrade_does_not_start_a_stopped_daemon() {
    let debian = Debian::boot().await;
    debian.install(FIRST).await;
    debian.install(&debian.another("9")).await;
    assert_eq!(debian.show("criswitch.socket", "ActiveState"), "inactive");
    assert_eq!(debian.show("criswitch.service", "ActiveState"), "inactive");
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn an_upgrade_that_would_not_start_leaves_the_earlier_version_running() {
    let debian = Debian::boot().await;
    debian.install_and_serve(CONFIG).await;
    let before = debian.show("criswitch", "MainPID");
    debian.configure("default_handler = 'nothing'\n");
    let said = debian.install(&debian.another("9")).await;
    assert!(said.contains("the earlier version keeps running"), "{said}");
    assert_eq!(debian.show("criswitch", "MainPID"), before);
    debian.client().pods().await.unwrap();
    debian.configure(CONFIG);
    debian.restart().await;
    assert!(debian.runs_what_is_installed());
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn an_upgrade_with_a_changed_listen_leaves_the_earlier_version_running() {
    let debian = Debian::boot().await;
    debian.install_and_serve(CONFIG).await;
    let before = debian.show("criswitch", "MainPID");
    debian.configure(&format!("listen = '/run/criswitch/new.sock'\n{CONFIG}"));
    debian.runs("sh", &["-c", "rm /run/criswitch/state/*.backend"]);
    let said = debian.install(&debian.another("9")).await;
    assert!(said.contains("the earlier version keeps running"), "{said}");
    let announced = "criswitch: a restart would make lists fail as long as backend ";
    assert!(said.contains(announced), "{said}");
    assert_eq!(debian.show("criswitch", "MainPID"), before);
    debian.client().pods().await.unwrap();
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn a_node_that_criswitch_node_has_set_up_gets_no_package() {
    let debian = Debian::boot().await;
    fs::create_dir_all(debian.at("opt/criswitch/current")).unwrap();
    let package = format!("/run/backends/{FIRST}.deb");
    let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
    let dpkg = [path, "dpkg", "--no-triggers", "--install", &package];
    let refused = debian.command("env", &dpkg).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("/opt/criswitch/current/criswitch node uninstall"),
        "{said}"
    );
    assert!(!debian.at("usr/bin/criswitchd").exists());
}

#[tokio::test]
#[ignore = "needs root, systemd and the package: tests/system/package/run.sh"]
async fn a_removal_stops_the_daemon_and_keeps_the_configuration_and_a_purge_leaves_nothing() {
    let debian = Debian::boot().await;
    debian.install_and_serve(CONFIG).await;
    let drop_in = debian.at("etc/criswitch/conf.d/90-kata.toml");
    fs::write(&drop_in, "[handlers]\ncrun = '/run/backends/runc.sock'\n").unwrap();
    let client = debian.client();
    client.run_pod("kata", "web").await.unwrap();
    debian.systemctl(&["enable", "--quiet", "criswitch-metrics.socket"]);
    assert_eq!(debian.restart().await, "");
    assert!(debian.metrics().contains("criswitch_build_info"));

    debian.dpkg(&["--remove", "criswitch"]).await;
    assert!(!debian.socket().exists());
    let listening = debian.runs("cat", &["/proc/net/tcp"]);
    assert!(!listening.contains(METRICS), "{listening}");
    assert!(!debian.at("usr/bin/criswitchd").exists());
    assert_eq!(debian.config(), CONFIG);
    assert!(drop_in.exists());
    assert_eq!(debian.sim("kata").pods().len(), 1);

    debian.install(FIRST).await;
    debian.systemctl(&["start", "criswitch.service"]);
    assert_eq!(debian.client().pods().await.unwrap().len(), 1);

    debian.dpkg(&["--purge", "criswitch"]).await;
    assert_eq!(debian.left_behind(), "");
    assert_eq!(debian.sim("kata").pods().len(), 1);
}

async fn populate(debian: &Debian) -> (Vec<String>, Vec<String>) {
    debian.sim("runc").add_image(IMAGE);
    let client = debian.client();
    let pod = client.run_pod("runc", "web").await.unwrap();
    let container = client.create(&pod, "main").await.unwrap();
    client.start(&container).await.unwrap();
    let kata = client.run_pod("kata", "safe").await.unwrap();
    (vec![pod, kata], vec![container])
}

/// Starts a client that makes calls with the client library of the kubelet and crictl. The client ends when its input
/// is closed.
fn load(debian: &Debian, pods: &[String], containers: &[String]) -> Child {
    let program = std::env::var("RESTARTS_CLIENT").expect("RESTARTS_CLIENT names the client");
    let mut client = Command::new(program);
    client.arg(debian.socket());
    client.args([pods.join(","), containers.join(",")]);
    client.stdin(Stdio::piped()).stdout(Stdio::piped());
    // The library logs an error for each stream that ends, so the test captures the standard error.
    client.stderr(Stdio::piped());
    client.spawn().unwrap()
}

/// Waits until the runtime has received new calls of the client that [`load`] starts.
async fn under_load(debian: &Debian) {
    let runc = debian.sim("runc");
    runc.forget_calls();
    runc.until(|journal| journal.calls_of("ExecSync").count() > 2)
        .await;
}

/// Ends the load and returns its output; panics if a call failed.
async fn ended(mut load: Child) -> String {
    drop(load.stdin.take());
    let waited = tokio::task::spawn_blocking(|| load.wait_with_output().unwrap());
    let output = waited.await.unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{complaints}");
    said.trim().to_owned()
}

fn inode(debian: &Debian) -> u64 {
    fs::metadata(debian.socket()).unwrap().ino()
}
