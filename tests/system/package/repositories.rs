//! The apt repository and the rpm repository of package/repositories.sh, used from disk on a separate machine.

use std::fs;
use std::process::Stdio;

use crate::debian::Debian;
use crate::machine::{CONFIG, until};
use crate::{ended, inode, load, populate, under_load};

/// The versions in the repositories that tests/system/package/run.sh made, the earlier one first.
const VERSIONS: [&str; 2] = [concat!(env!("CARGO_PKG_VERSION"), "-1"), "99.0.0-1"];
const APT: &str = "Types: deb\nURIs: file:/run/backends/repositories/apt\nSuites: stable\nComponents: main\n\
    Signed-By: /run/backends/repositories/criswitch.asc\n";
const DNF: &str = "[criswitch]\nname=criswitch\nbaseurl=file:///run/backends/repositories/rpm\n\
    gpgkey=file:///run/backends/repositories/criswitch.asc\ngpgcheck=1\nrepo_gpgcheck=1\n";

/// A package manager: the path and the content of its source file, the shell command that updates its index, and the
/// shell command that installs a version.
struct Manager {
    sources: [&'static str; 2],
    update: &'static str,
    install: fn(usize) -> String,
}

const MANAGERS: [Manager; 2] = [
    Manager {
        sources: ["etc/apt/sources.list.d/criswitch.sources", APT],
        // apt needs awk to read a key in ASCII, and awk is a link to a link in /etc/alternatives.
        update: "mkdir -p /var/lib/apt/lists/partial /var/cache/apt/archives/partial /etc/apt/apt.conf.d /var/log/apt /etc/alternatives && \
            ln -s /usr/bin/mawk /etc/alternatives/awk && \
            apt-get -o APT::Sandbox::User=root -o APT::Update::Error-Mode=any --quiet update",
        install: |version| {
            format!(
                "apt-get -o APT::Sandbox::User=root -o DPkg::Options::=--no-triggers -o DPkg::ConfigurePending=false \
                    -o DPkg::Options::=--force-confold \
                    --yes --allow-downgrades install criswitch={} && dpkg --no-triggers --force-confold --configure criswitch",
                VERSIONS[version]
            )
        },
    },
    Manager {
        sources: ["etc/yum.repos.d/criswitch.repo", DNF],
        update: "dnf --assumeyes --releasever=1 makecache",
        install: |version| {
            let verb = ["downgrade", "install"][version];
            format!(
                "rpm -q criswitch || set -- install; \
                    dnf --assumeyes --releasever=1 \"${{1:-{verb}}}\" criswitch-{}",
                VERSIONS[version]
            )
        },
    },
];

impl Manager {
    async fn prepare(&self) -> Debian {
        let debian = Debian::boot().await;
        debian.share("CRISWITCH_REPOSITORIES");
        let [path, text] = self.sources;
        let path = debian.at(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        debian
    }

    /// Runs a shell command in the machine without blocking the simulated runtimes. Returns whether it succeeded, and
    /// its output.
    async fn shell(&self, debian: &Debian, command: &str) -> (bool, String) {
        let script = format!("export PATH=/usr/sbin:/usr/bin LC_ALL=C HOME=/root; {command}");
        let mut shell = debian.command("sh", &["-c", &script]);
        shell.stdin(Stdio::null());
        let run = tokio::task::spawn_blocking(move || shell.output().unwrap());
        let output = run.await.unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.success(), said)
    }

    async fn install(&self, debian: &Debian, version: usize) {
        let (done, said) = self.shell(debian, &(self.install)(version)).await;
        assert!(done, "{said}");
        assert!(debian.runs("criswitch", &["check"]).contains("valid"));
    }
}

#[tokio::test]
#[ignore = "needs root, systemd and the repositories: tests/system/package/run.sh"]
async fn an_upgrade_and_a_downgrade_from_the_repositories_fail_no_call() {
    for manager in &MANAGERS {
        let debian = manager.prepare().await;
        let (done, said) = manager.shell(&debian, manager.update).await;
        assert!(done, "{said}");
        manager.install(&debian, 0).await;
        debian.configure(CONFIG);
        debian.systemctl(&["enable", "--now", "criswitch.socket", "criswitch.service"]);
        until(async || debian.show("criswitch", "StatusText").starts_with("3/3")).await;
        let (pods, containers) = populate(&debian).await;
        let load = load(&debian, &pods, &containers);
        let socket = inode(&debian);
        for version in [1, 0] {
            under_load(&debian).await;
            let before = debian.show("criswitch", "MainPID");
            manager.install(&debian, version).await;
            assert_ne!(debian.show("criswitch", "MainPID"), before);
            assert!(debian.runs_what_is_installed());
            assert_eq!(debian.config(), CONFIG);
        }
        eprintln!("{}: {}", manager.sources[0], ended(load).await);
        assert_eq!(inode(&debian), socket);
    }
}

#[tokio::test]
#[ignore = "needs root, systemd and the repositories: tests/system/package/run.sh"]
async fn a_repository_with_one_changed_bit_is_rejected() {
    for (manager, index) in MANAGERS
        .iter()
        .zip(["apt/dists/stable/InRelease", "rpm/repodata/repomd.xml"])
    {
        let debian = manager.prepare().await;
        let path = debian.shared().join("repositories").join(index);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 3;
        bytes[middle] ^= 1;
        fs::write(&path, bytes).unwrap();
        let (done, said) = manager.shell(&debian, manager.update).await;
        assert!(!done, "{index}: {said}");
    }
}
