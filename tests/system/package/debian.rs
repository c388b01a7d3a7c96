//! A machine on which packages are installed, and packages that differ from the built package.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::machine::{Machine, until};

/// The version of the built package.
pub const FIRST: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

pub struct Debian(Machine);

impl Deref for Debian {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.0
    }
}

impl Debian {
    pub async fn boot() -> Debian {
        let debian = Debian(Machine::boot_bare().await);
        fs::copy(built(), debian.package(FIRST)).unwrap();
        debian
    }

    /// The path of a version of the package, outside of the machine.
    fn package(&self, version: &str) -> PathBuf {
        self.shared().join(format!("{version}.deb"))
    }

    /// Copies the folder that an environment variable names to /run/backends of the machine.
    pub fn share(&self, variable: &str) {
        let folder =
            std::env::var_os(variable).expect("tests/system/package/run.sh sets the variable");
        run(Command::new("cp").arg("-r").arg(folder).arg(self.shared()));
    }

    /// Makes a package of another version with a changed binary and a changed shipped configuration.
    pub fn another(&self, version: &str) -> String {
        let tree = self.shared().join("tree");
        run(Command::new("dpkg-deb")
            .arg("--raw-extract")
            .args([&built(), &tree]));
        let control = tree.join("DEBIAN/control");
        let text = fs::read_to_string(&control).unwrap();
        let changed = text.replace(&format!("Version: {FIRST}"), &format!("Version: {version}"));
        assert_ne!(changed, text);
        fs::write(&control, changed).unwrap();
        // The kernel ignores bytes after the end of an executable.
        append(&tree.join("usr/bin/criswitchd"), version);
        append(
            &tree.join("etc/criswitch/criswitch.toml"),
            &format!("# {version}\n"),
        );
        run(Command::new("dpkg-deb")
            .args(["-Znone", "--build"])
            .arg(&tree)
            .arg(self.package(version)));
        fs::remove_dir_all(&tree).unwrap();
        version.to_owned()
    }

    /// Installs a version, possibly as an upgrade, and returns the output of dpkg and its scripts. A configuration file
    /// that changed both locally and in the package keeps the local version, as in unattended upgrades.
    pub async fn install(&self, version: &str) -> String {
        let package = format!("/run/backends/{version}.deb");
        self.dpkg(&["--force-confdef", "--force-confold", "--install", &package])
            .await
    }

    /// Installs the package, writes a configuration, and starts criswitch as the documentation describes.
    pub async fn install_and_serve(&self, config: &str) {
        self.install(FIRST).await;
        self.configure(config);
        self.systemctl(&["enable", "--now", "criswitch.socket", "criswitch.service"]);
        until(async || self.show("criswitch", "StatusText").starts_with("3/3")).await;
    }

    /// Runs dpkg without the triggers of other packages. The simulated runtimes continue to run meanwhile.
    pub async fn dpkg(&self, arguments: &[&str]) -> String {
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
        let call = [&[path, "LC_ALL=C", "dpkg", "--no-triggers"], arguments].concat();
        let mut dpkg = self.command("env", &call);
        dpkg.stdin(Stdio::null());
        let run = tokio::task::spawn_blocking(move || dpkg.output().unwrap());
        let output = run.await.unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        let log = self.log();
        assert!(output.status.success(), "{arguments:?}: {said}\n{log}");
        said
    }

    pub fn config(&self) -> String {
        fs::read_to_string(self.at("etc/criswitch/criswitch.toml")).unwrap()
    }

    /// Every path below a folder.
    pub fn files(&self, folder: &str) -> String {
        let list = format!("find {folder} | LC_ALL=C sort");
        self.runs("sh", &["-c", &list])
    }

    /// Lists files named criswitch in every folder that dpkg can write to, except the administrator's drop-ins.
    pub fn left_behind(&self) -> String {
        let find = "find /etc /run /usr /var -name '*criswitch*' -not -path '/etc/systemd/system/criswitch.service.d*'";
        self.runs("sh", &["-c", find])
    }

    /// Whether the daemon runs the installed binary.
    pub fn runs_what_is_installed(&self) -> bool {
        let id = self.show("criswitch", "MainPID");
        let running = fs::read(self.at(&format!("proc/{id}/exe"))).unwrap();
        running == fs::read(self.at("usr/bin/criswitchd")).unwrap()
    }
}

/// The package that tests/system/package/run.sh built.
fn built() -> PathBuf {
    let path = std::env::var_os("CRISWITCH_PACKAGE");
    PathBuf::from(path.expect("CRISWITCH_PACKAGE names the package"))
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

fn run(command: &mut Command) {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
}
