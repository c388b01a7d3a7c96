//! Tests that `criswitch check --node` and `node plan` name the things that two runtimes of this machine share outside
//! of the CRI.
//! Each runtime is a process of its own, because `check --node` compares no runtimes of one process.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use criswitch_cri::codec::cri;
use prost::Message;
use serde_json::{Value, json};

use crate::machine::{KUBELET, Machine};
use crate::runtimes::{containerd, crio};
use crate::support::Sim;
use crate::{main_file, run, text};

/// The environment variable of a child with the settings of its [`Runtime`], as JSON.
const RUNTIME: &str = "CRISWITCH_TEST_RUNTIME";
const FIRST: &str = "run/first/containerd.sock";
const SECOND: &str = "run/second/containerd.sock";
/// The pause image of each runtime, which does not pin it.
const PAUSE: &str = "registry.k8s.io/pause:3.6";

/// A containerd or CRI-O whose process runs until this value is dropped.
struct Runtime(Child);

impl Runtime {
    /// Starts a program in `folder`, with this configuration file, at a socket. `subnet` is the subnet of its CNI
    /// network.
    fn start(program: &str, folder: &Path, socket: &str, config: &Path, subnet: &str) -> Runtime {
        let socket = folder.join(socket);
        std::fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let settings = json!({ "program": program, "socket": socket, "subnet": subnet });
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .arg0(program)
            .args([
                "--ignored",
                "--nocapture",
                "--exact",
                "collisions::serves_a_runtime",
            ])
            // For the test harness, these arguments are names of further tests.
            .args(["--", "--config", text(config)])
            .current_dir(folder)
            .env(RUNTIME, settings.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let mut shown = Vec::new();
        let stdout = child.stdout.as_mut().unwrap();
        while !shown.ends_with(b"serving") {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            shown.extend(byte);
        }
        Runtime(child)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().unwrap();
    }
}

/// The program of a [`Runtime`], which serves until its standard input ends.
#[tokio::test]
#[ignore = "other tests start it"]
async fn serves_a_runtime() {
    let Ok(settings) = std::env::var(RUNTIME) else {
        return;
    };
    let settings: Value = serde_json::from_str(&settings).unwrap();
    let socket = settings["socket"].as_str().unwrap();
    let sim = match settings["program"].as_str() {
        // CRI-O does not report its CNI configuration.
        Some("crio") => crio(["runc"]),
        _ => containerd_on(socket, &settings["subnet"]),
    };
    sim.serve_on(Path::new(socket));
    println!("serving");
    let input = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(input).await.unwrap().unwrap();
}

/// A containerd with a CNI network of this name and subnet.
fn containerd_on(network: &str, subnet: &Value) -> Sim {
    let source = json!({ "plugins": [{ "ipam": { "subnet": subnet } }] }).to_string();
    let cni = json!({ "Networks": [{ "Config": { "Name": network, "Source": source } }] });
    let info = [("cniconfig".to_owned(), cni.to_string())].into();
    let status = cri::StatusResponse {
        info,
        ..Default::default()
    };
    let image = cri::Image {
        id: "sha256:0".into(),
        repo_tags: vec![PAUSE.into()],
        ..Default::default()
    };
    let sim = containerd(["runc"]).stores(image);
    let sim = sim.set(|settings| settings.config = Some(json!({ "sandboxImage": PAUSE })));
    sim.append_raw("Status", status.encode_to_vec());
    sim
}

/// Starts a containerd and a second runtime in the folder, with these files and subnets.
fn start(folder: &Path, second: &str, configs: [&str; 2], subnets: [&str; 2]) -> [Runtime; 2] {
    // The argument of the second runtime is a relative path.
    let files = [folder.join("first.toml"), "second.toml".into()];
    let (programs, sockets) = (["containerd", second], [FIRST, SECOND]);
    [0, 1].map(|at| {
        std::fs::write(folder.join(&files[at]), configs[at]).unwrap();
        Runtime::start(programs[at], folder, sockets[at], &files[at], subnets[at])
    })
}

/// A configuration for both runtimes, whose sockets are below this folder.
fn rows(folder: &Path) -> String {
    let [first, second] = [FIRST, SECOND].map(|socket| folder.join(socket));
    let rows = format!("runc = {first:?}\nother = {{ socket = {second:?}, handler = \"runc\" }}");
    format!("default_handler = \"runc\"\n[handlers]\n{rows}\n")
}

/// Two containerds with these files and subnets, and what `check --node` reports about both.
fn check(configs: [&str; 2], subnets: [&str; 2]) -> (Vec<String>, String) {
    let machine = Machine::bare();
    let _runtimes = start(machine.root(), "containerd", configs, subnets);
    check_both(machine.root())
}

/// The paths that `check --node` reports about both runtimes in the folder, and its text.
fn check_both(folder: &Path) -> (Vec<String>, String) {
    let files = main_file(&rows(folder));
    let main = files.main();
    let check = ["check", "--node", "--config", text(&main)];
    let outcome = run(&[&check[..], &["-o", "json"]].concat());
    let shown: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let findings = shown["node"]["findings"].as_array().unwrap();
    let of_both = findings
        .iter()
        .filter(|found| found["what"].as_str().unwrap().starts_with("backends "))
        .map(|found| found["path"].as_str().unwrap().to_owned());
    (of_both.collect(), run(&check).stdout)
}

const NOTHING: &str = "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n";

#[test]
fn check_node_names_what_two_containerds_with_the_same_settings_share() {
    let config = "version = 2\nimports = ['/nonexistent/*.toml']\n\
        [plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = '10010'\n";
    let (found, shown) = check([config; 2], ["10.66.0.0/16"; 2]);
    let shared = [
        "/var/run/nri/nri.sock",
        "/opt/nri/plugins",
        "/nonexistent/*.toml",
        "port 10010",
        "10.66.0.0/16",
    ];
    assert_eq!(found, shared);
    for words in [
        "try stream_server_port = \"0\" for containerd",
        "try one CNI configuration for both, or another subnet",
    ] {
        assert!(shown.contains(words), "{shown}");
    }
}

#[test]
fn node_plan_names_what_two_containerds_share() {
    let machine = Machine::bare()
        .with("/run/systemd/system/x", "")
        .with("/proc/7/cmdline", "/usr/bin/containerd\0")
        .with("/var/lib/kubelet/config.yaml", KUBELET);
    let subnets = ["10.66.0.0/16", "10.67.0.0/16"];
    let _runtimes = start(machine.root(), "containerd", [""; 2], subnets);
    let files = main_file(&rows(Path::new("/")));
    let spec = files.main();
    let [root, spec] = [machine.root(), &spec].map(text);
    let outcome = run(&["node", "plan", "--json", "--root", root, "--spec", spec]);
    let shown: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let findings = shown["findings"].as_array().unwrap().iter();
    let shared = findings
        .filter(|found| {
            found["check"] == "shared" && found["what"].as_str().unwrap().starts_with("backends ")
        })
        .map(|found| {
            (
                found["places"][0].as_str().unwrap(),
                found["state"].as_str().unwrap(),
            )
        });
    assert_eq!(
        Vec::from_iter(shared),
        [
            ("/var/run/nri/nri.sock", "rejected"),
            ("/opt/nri/plugins", "rejected")
        ],
        "{}",
        outcome.stdout
    );
}

#[test]
fn check_node_names_subnets_that_overlap_and_no_others() {
    for (subnet, found) in [
        ("10.66.7.0/24", &["10.66.0.0/16"][..]),
        ("10.67.0.0/16", &[]),
    ] {
        let (shared, shown) = check([NOTHING; 2], ["10.66.0.0/16", subnet]);
        assert_eq!(shared, found, "{shown}");
    }
}

#[test]
fn check_node_names_the_subnet_of_crio() {
    let network = r#"{ "name": "pods", "plugins": [{ "ipam": { "subnet": "10.66.7.0/24" } }] }"#;
    let machine = Machine::bare().with("/cni/10-pods.conflist", network);
    let crio = "[crio.nri]\nenable_nri = false\n[crio.network]\nnetwork_dir = 'cni'\n";
    let subnets = ["10.66.0.0/16", ""];
    let _runtimes = start(machine.root(), "crio", [NOTHING, crio], subnets);
    let (shared, shown) = check_both(machine.root());
    assert_eq!(shared, ["10.66.0.0/16"], "{shown}");
}

#[test]
fn check_node_notes_what_is_not_a_problem() {
    let (_, shown) = check([NOTHING; 2], ["10.66.0.0/16", "10.67.0.0/16"]);
    for note in [
        "/run/containerd/s, /run/containerd/runc: several containerds have",
        "backend \"runc\": The store has the pause image \"registry.k8s.io/pause:3.6\" and does not pin it",
        "backend \"other\": The store has the pause image \"registry.k8s.io/pause:3.6\" and does not pin it",
    ] {
        assert!(shown.contains(&format!("note: {note}")), "{shown}");
    }
}
