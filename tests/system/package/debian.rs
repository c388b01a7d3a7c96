//! A machine that packages can be installed on, and packages that differ from the built one.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::machine::{Machine, until};

/// The version of the package as it is built.
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

    /// Where a version of the package lies, as this machine sees it.
    fn package(&self, version: &str) -> PathBuf {
        self.shared().join(format!("{version}.deb"))
    }

    /// Makes a package of another version, whose binary and shipped configuration are other ones.
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
        // What stands behind an executable's end is not read.
        append(&tree.join("usr/bin/criswitch"), version);
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

    /// Installs a version, over another one if that is there; what dpkg and its scripts say. A configuration that was
    /// changed on both sides is a question, which is answered beforehand as unattended upgrades do.
    pub async fn install(&self, version: &str) -> String {
        let package = format!("/run/backends/{version}.deb");
        self.dpkg(&["--force-confdef", "--force-confold", "--install", &package])
            .await
    }

    /// Installs it, writes a configuration, and starts it as the README says.
    pub async fn install_and_serve(&self, config: &str) {
        self.install(FIRST).await;
        self.configure(config);
        self.systemctl(&["enable", "--now", "criswitch.socket", "criswitch.service"]);
        until(async || self.show("criswitch", "StatusText").starts_with("3/3")).await;
    }

    /// Without the triggers of the machine's other packages. The runtimes go on meanwhile.
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

    /// Everything below a folder.
    pub fn files(&self, folder: &str) -> String {
        let list = format!("find {folder} | LC_ALL=C sort");
        self.runs("sh", &["-c", &list])
    }

    /// What still bears its name, on all that dpkg could write to. The administrator's own drop-ins are no part of it.
    pub fn left_behind(&self) -> String {
        let find = "find /etc /run /usr /var -name '*criswitch*' -not -path '/etc/systemd/system/criswitch.service.d*'";
        self.runs("sh", &["-c", find])
    }

    /// Whether the daemon is of the file that is installed now.
    pub fn runs_what_is_installed(&self) -> bool {
        let id = self.show("criswitch", "MainPID");
        let running = fs::read(self.at(&format!("proc/{id}/exe"))).unwrap();
        running == fs::read(self.at("usr/bin/criswitch")).unwrap()
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
