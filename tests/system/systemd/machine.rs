//! A machine with systemd, the shipped units and three simulated runtimes, and nothing else.
//!
//! The tests of the package use this module too. Each test binary uses a part of the module.
#![allow(dead_code)]

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::{Client, Sim};

const BINARY: &str = env!("CARGO_BIN_EXE_criswitch");
const BOOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/systemd/boot.sh");
pub const CONFIG: &str = "default_handler = \"runc\"\n\
    [handlers]\n\
    runc = \"/run/backends/runc.sock\"\n\
    kata = \"/home/backends/kata.sock\"\n\
    gvisor = \"/tmp/backends/gvisor.sock\"\n";
/// The kubelet starts only if criswitch is active.
const KUBELET: &str = "[Service]\n\
    Type=oneshot\n\
    RemainAfterExit=yes\n\
    ExecStart=/usr/bin/systemctl is-active criswitch.service\n\
    [Install]\n\
    WantedBy=multi-user.target\n";
/// Logs of the service go to a file, because the machine has no journal.
const LOG: &str = "[Service]\n\
    StandardOutput=append:/run/backends/log\n\
    StandardError=append:/run/backends/log\n";
/// The limit of each wait. A boot on a busy machine takes much longer than on a quiet one.
const LIMIT: Duration = Duration::from_secs(180);
/// The pause between two checks of a condition. Each check starts a process.
const PAUSE: Duration = Duration::from_millis(20);

pub struct Machine {
    sims: Vec<Sim>,
    boot: RefCell<Child>,
    /// The id of the machine's process 1, as seen from outside of the machine.
    init: String,
    directory: TempDir,
}

impl Machine {
    pub async fn boot() -> Machine {
        Machine::boot_with("").await
    }

    /// Boots with a drop-in for the service.
    pub async fn boot_with(drop_in: &str) -> Machine {
        Machine::start(drop_in, KUBELET, Some(BINARY)).await
    }

    /// Boots a machine without criswitch, for the tests that install the package.
    pub async fn boot_bare() -> Machine {
        let kubelet = KUBELET.replace("systemctl is-active criswitch.service", "true");
        Machine::start("", &kubelet, None).await
    }

    async fn start(drop_in: &str, kubelet: &str, binary: Option<&str>) -> Machine {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("backends")).unwrap();
        write(&at("etc/criswitch.toml"), CONFIG);
        write(&at("units/kubelet.service"), kubelet);
        let drop_ins = at("units/criswitch.service.d");
        write(&drop_ins.join("10-log.conf"), LOG);
        write(&drop_ins.join("20-test.conf"), drop_in);
        let sims: Vec<_> = ["runc", "kata", "gvisor"].map(Sim::new).into();
        for sim in &sims {
            sim.serve_on(&at(&format!("backends/{}.sock", sim.name())));
        }
        let mut boot = Command::new(BOOT);
        boot.arg(directory.path()).args(binary);
        let mut machine = Machine {
            sims,
            boot: RefCell::new(boot.spawn().unwrap()),
            init: String::new(),
            directory,
        };
        machine.wait_until_it_is_up().await;
        machine
    }

    async fn wait_until_it_is_up(&mut self) {
        let pid = self.directory.path().join("pid");
        until(async || pid.exists()).await;
        self.init = fs::read_to_string(&pid).unwrap().trim().to_owned();
        until(async || {
            let state = self.run("systemctl", &["is-system-running"]);
            let state = String::from_utf8(state.stdout).unwrap();
            assert!(state.trim() != "degraded", "{}", self.log());
            state.trim() == "running"
        })
        .await;
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("backends/log")).unwrap_or_default()
    }

    pub fn sim(&self, name: &str) -> &Sim {
        self.sims.iter().find(|sim| sim.name() == name).unwrap()
    }

    pub fn socket(&self) -> PathBuf {
        self.at("run/criswitch/criswitch.sock")
    }

    /// The path of a file of the machine, from outside.
    pub fn at(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(&self.init).join("root").join(path)
    }

    /// The folder that the machine has as /run/backends.
    pub fn shared(&self) -> PathBuf {
        self.directory.path().join("backends")
    }

    pub fn client(&self) -> Client {
        Client::new(&self.socket())
    }

    /// Replaces the configuration and returns the previous one.
    pub fn configure(&self, text: &str) -> String {
        let path = self.at("etc/criswitch/criswitch.toml");
        let before = fs::read_to_string(&path).unwrap();
        fs::write(&path, text).unwrap();
        before
    }

    /// A command that runs a program in the machine.
    pub fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        let target = format!("--target={}", self.init);
        command.args([&target, "--mount", "--pid", "--cgroup", "--net"]);
        command
            .args(["--root", "--wdns=/", program])
            .args(arguments);
        command
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.command(program, arguments).output().unwrap()
    }

    /// Runs a program, which must succeed, and returns its output.
    pub fn runs(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(program, arguments);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap().trim().to_owned();
        let call = format!("{program} {arguments:?}");
        assert!(output.status.success(), "{call}: {said}\n{}", self.log());
        said
    }

    pub fn systemctl(&self, arguments: &[&str]) -> String {
        self.runs("systemctl", arguments)
    }

    /// Runs systemctl, and asserts that it fails.
    pub fn fails(&self, arguments: &[&str]) {
        assert!(!self.run("systemctl", arguments).status.success());
    }

    /// Restarts the service without blocking other tasks, and returns the output of systemctl.
    pub async fn restart(&self) -> String {
        self.ctl("restart").await
    }

    /// Runs systemctl with this verb for the service, without blocking other tasks, and returns the output.
    pub async fn ctl(&self, verb: &str) -> String {
        let mut call = self.command("systemctl", &[verb, "criswitch.service"]);
        call.stdin(Stdio::null());
        let called = tokio::task::spawn_blocking(move || call.output().unwrap());
        let output = called.await.unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    }

    /// The reply that a client in the machine gets at the address of criswitch-metrics.socket.
    pub fn metrics(&self) -> String {
        self.runs("bash", &["-c", &scrape("127.0.0.1")])
    }

    /// Another machine on the same network. Its address is 192.0.2.2. This machine gets the address 192.0.2.1.
    pub fn neighbour(&self) -> Neighbour {
        let sleep = ["--net", "sleep", "infinity"];
        let neighbour = Neighbour(Command::new("unshare").args(sleep).spawn().unwrap());
        let (own, other) = (self.init.clone(), neighbour.0.id().to_string());
        let namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).unwrap();
        while namespace(&other) == namespace("self") {
            std::thread::yield_now();
        }
        let link = [
            "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", &other,
        ];
        in_network(&own, "ip", &link);
        for (pid, device, address) in [
            (&own, "near", "192.0.2.1/24"),
            (&other, "far", "192.0.2.2/24"),
        ] {
            in_network(pid, "ip", &["address", "add", address, "dev", device]);
            in_network(pid, "ip", &["link", "set", device, "up"]);
        }
        neighbour
    }

    pub fn show(&self, unit: &str, property: &str) -> String {
        self.systemctl(&["show", "--value", &format!("--property={property}"), unit])
    }
}

/// A process in a network namespace of its own, outside of the machine.
pub struct Neighbour(Child);

impl Neighbour {
    /// The metrics of the machine, as this neighbour reads them.
    pub fn metrics(&self) -> String {
        let pid = self.0.id().to_string();
        in_network(&pid, "bash", &["-c", &scrape("192.0.2.1")])
    }

    /// Whether the machine drops the packets of this neighbour: a connection to the metrics is neither accepted nor
    /// rejected within 2 s.
    pub fn gets_no_connection(&self) -> bool {
        let mut connect = inside(&self.0.id().to_string(), "timeout");
        connect.args(["2", "bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/9199"]);
        connect.status().unwrap().code() == Some(124)
    }

    /// Debian's Prometheus in the same namespace, which scrapes the machine each second.
    pub fn prometheus(&self, directory: &Path) -> Neighbour {
        let pid = self.0.id().to_string();
        in_network(&pid, "ip", &["link", "set", "lo", "up"]);
        let config = directory.join("prometheus.yaml");
        let text = "scrape_configs:\n- job_name: criswitch\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  \
            static_configs:\n  - targets: ['192.0.2.1:9199']\n";
        fs::write(&config, text).unwrap();
        let mut command = inside(&pid, &tool("prometheus"));
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", directory.display()))
            .arg("--web.listen-address=127.0.0.1:9090")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Neighbour(command.spawn().unwrap())
    }

    /// The answer of that Prometheus to a query; empty while it does not answer.
    pub fn answer_of_prometheus(&self, query: &str) -> String {
        let mut command = inside(&self.0.id().to_string(), &tool("promtool"));
        command.args(["query", "instant", "http://127.0.0.1:9090", query]);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }
}

/// The path of a program of Debian's Prometheus, which run.sh unpacks.
fn tool(program: &str) -> String {
    format!("{}/{program}", std::env::var("PROMETHEUS_TOOLS").unwrap())
}

/// A program in the network namespace of a process.
fn inside(pid: &str, program: &str) -> Command {
    let mut command = Command::new("nsenter");
    command.args([&format!("--target={pid}"), "--net", program]);
    command
}

impl Drop for Neighbour {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The command that reads the metrics at an address.
fn scrape(address: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/{address}/9199; printf 'GET /metrics HTTP/1.1\\r\\nhost: node\\r\\n\\r\\n' >&3; cat <&3"
    )
}

/// Runs a program, which must succeed, in the network namespace of a process, and returns its output.
fn in_network(pid: &str, program: &str, arguments: &[&str]) -> String {
    let output = inside(pid, program).args(arguments).output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    said
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut boot = self.boot.borrow_mut();
        let id = boot.id().to_string();
        Command::new("kill").args(["-s", "TERM", &id]).status().ok();
        boot.wait().ok();
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Waits until the condition holds; panics after `LIMIT`.
pub async fn until(condition: impl AsyncFn() -> bool) {
    let asked = async {
        while !condition().await {
            tokio::time::sleep(PAUSE).await;
        }
    };
    let waited = tokio::time::timeout(LIMIT, asked).await;
    waited.expect("waited in vain");
}
