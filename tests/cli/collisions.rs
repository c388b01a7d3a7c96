//! Tests that `criswitch check --node` names the things that two runtimes of this machine share outside of the CRI.
//! Each runtime is a process of its own, because `check --node` compares no runtimes of one process.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use criswitch_cri::codec::cri;
use prost::Message;
use serde_json::{Value, json};

use crate::runtimes::{Node, containerd};
use crate::{run, text};

/// The environment variable of a child with the settings of its [`Runtime`], as JSON.
const RUNTIME: &str = "CRISWITCH_TEST_RUNTIME";
const FIRST: &str = "run/first/containerd.sock";
const SECOND: &str = "run/second/containerd.sock";
/// The pause image of each runtime, which does not pin it.
const PAUSE: &str = "registry.k8s.io/pause:3.6";

/// A containerd whose process runs until this value is dropped.
struct Runtime(Child);

impl Runtime {
    /// Starts a containerd in `folder`, with this configuration file, at a socket. `subnet` is the subnet of its CNI
    /// network.
    fn start(folder: &Path, socket: &Path, config: &Path, subnet: &str) -> Runtime {
        let settings = json!({ "socket": socket, "subnet": subnet });
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .arg0("containerd")
            .args([
                "--ignored",
                "--nocapture",
                "--exact",
                "collisions::serves_a_containerd",
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
async fn serves_a_containerd() {
    let Ok(settings) = std::env::var(RUNTIME) else {
        return;
    };
    let settings: Value = serde_json::from_str(&settings).unwrap();
    let socket = settings["socket"].as_str().unwrap();
    let source = json!({ "plugins": [{ "ipam": { "subnet": settings["subnet"] } }] }).to_string();
    let cni = json!({ "Networks": [{ "Config": { "Name": socket, "Source": source } }] });
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
    sim.serve_on(Path::new(socket));
    println!("serving");
    let input = || std::io::stdin().read_to_end(&mut Vec::new());
    tokio::task::spawn_blocking(input).await.unwrap().unwrap();
}

/// Two containerds with these files and subnets, and what `check --node` reports about both.
fn check(configs: [&str; 2], subnets: [&str; 2]) -> (Vec<String>, String) {
    let node = Node::new();
    let sockets = [FIRST, SECOND].map(|socket| node.path(socket));
    let folder = node.path("");
    // The argument of the second containerd is a relative path.
    let files = [folder.join("first.toml"), "second.toml".into()];
    let _runtimes = [0, 1].map(|at| {
        std::fs::write(folder.join(&files[at]), configs[at]).unwrap();
        Runtime::start(&folder, &sockets[at], &files[at], subnets[at])
    });
    let [first, second] = &sockets;
    let rows = format!("runc = {first:?}\nother = {{ socket = {second:?}, handler = \"runc\" }}");
    let main = node.path("main.toml");
    let config = format!("default_handler = \"runc\"\n[handlers]\n{rows}\n");
    std::fs::write(&main, config).unwrap();
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
fn check_node_notes_what_is_no_problem() {
    let (_, shown) = check([NOTHING; 2], ["10.66.0.0/16", "10.67.0.0/16"]);
    for note in [
        "/run/containerd/s, /run/containerd/runc: several containerds have",
        "backend \"runc\": The store has the pause image \"registry.k8s.io/pause:3.6\" and does not pin it",
        "backend \"other\": The store has the pause image \"registry.k8s.io/pause:3.6\" and does not pin it",
    ] {
        assert!(shown.contains(&format!("note: {note}")), "{shown}");
    }
}
