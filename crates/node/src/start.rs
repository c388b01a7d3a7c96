//! Finds the command line that starts the node's kubelet: from a process, else from a unit.

use std::path::{Path, PathBuf};

use super::finding::{Finding, report, unknown};
use super::kubelet_files::KUBEADM_FILES;
use super::rancher::{Given, Rancher};
use super::root::Root;
use super::settings::{Setting, last};
use super::unit::{Unit, Word, words};

/// The unit of the kubelet in the packages of Kubernetes.
const KUBEADM_UNIT: &str = "[Service]
    EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
    EnvironmentFile=-/etc/default/kubelet
    EnvironmentFile=-/etc/sysconfig/kubelet
    ExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS";

/// The keys of a unit that give its processes a different root directory.
const ROOTS: [&str; 2] = ["RootDirectory", "RootImage"];
/// The flags of the kubelet with paths of its configuration.
const PATHS: [&str; 2] = ["config", "config-dir"];

/// The flags of the kubelet that take no separate value, as `kubelet --help` of 1.31 and 1.37 lists them.
#[rustfmt::skip]
const SWITCHES: [&str; 35] = [
    "alsologtostderr", "anonymous-auth", "authentication-token-webhook", "cgroups-per-qos", "contention-profiling",
    "cpu-cfs-quota", "enable-controller-attach-detach", "enable-debugging-handlers", "enable-load-reader",
    "enable-server", "storage-driver-secure",
    "exit-on-lock-contention", "experimental-allocatable-ignore-eviction", "fail-swap-on", "help",
    "keep-terminated-pod-volumes", "kernel-memcg-notification", "local-storage-capacity-isolation", "log-cadvisor-usage",
    "log-json-split-stream", "log-text-split-stream", "logtostderr", "make-iptables-util-chains", "one-output",
    "protect-kernel-defaults", "register-node", "register-schedulable", "rotate-certificates",
    "rotate-server-certificates", "runonce", "seccomp-default", "serialize-image-pulls", "skip-headers", "version",
    "windows-service",
];
/// The flags of k3s, RKE2 and k0s that this crate reads and that need a value.
#[rustfmt::skip]
const VALUES: [&str; 10] = [
    "c", "config", "container-runtime-endpoint", "cri-socket", "d", "data-dir", "image-service-endpoint", "kubelet-arg",
    "kubelet-extra-args", "node-ip",
];

/// Programs that run the rest of their command line unchanged.
const WRAPPERS: [&str; 1] = ["kubenswrapper"];
/// The scripts of the kubelet for service managers other than systemd.
const SCRIPTS: [&str; 7] = [
    "/etc/init.d/k0scontroller",
    "/etc/init.d/k0sworker",
    "/etc/init.d/k3s",
    "/etc/init.d/k3s-agent",
    "/etc/init.d/kubelet",
    "/etc/service/kubelet/run",
    "/etc/sv/kubelet/run",
];

/// A program that is, contains or starts the kubelet.
pub(super) struct KubeletProgram {
    pub(super) name: &'static str,
    /// The subcommands that run a kubelet; empty if every command line does.
    roles: &'static [&'static str],
    units: &'static [&'static str],
    pub(super) flags: Flags,
    /// The runtime endpoint that the kubelet uses if nothing sets it.
    pub(super) default: &'static str,
}

/// The meaning of the flags of a program.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Flags {
    /// The flags of the kubelet.
    Kubelet,
    /// This flag, whose value is the path of a file with the kubelet's flags.
    File(&'static str),
    /// The flags of k3s and RKE2. k3s contains the kubelet; RKE2 starts the kubelet as a separate process.
    Rancher,
    /// The flags of k0s, which starts the kubelet as a separate process.
    K0s,
}

const CONTAINERD: &str = "unix:///run/containerd/containerd.sock";
const OF_K3S: &str = "unix:///run/k3s/containerd/containerd.sock";
const OF_K0S: &str = "unix:///run/k0s/containerd.sock";
const NODE: &[&str] = &["server", "agent"];
const SNAPS: &[&str] = &[
    "snap.microk8s.daemon-kubelite.service",
    "snap.kubelet.daemon.service",
];
/// The last words of the command in a snap's unit, and the command that the snap's own script then runs.
const SNAP_COMMANDS: [(&str, &str); 1] = [(
    "run microk8s.daemon-kubelite",
    "kubelite --kubelet-args-file=/var/snap/microk8s/current/args/kubelet",
)];

#[rustfmt::skip]
const PROGRAMS: [KubeletProgram; 6] = [
    KubeletProgram { name: "kubelet", roles: &[], units: &["kubelet.service"], flags: Flags::Kubelet, default: CONTAINERD },
    KubeletProgram { name: "hyperkube", roles: &["kubelet"], units: &[], flags: Flags::Kubelet, default: CONTAINERD },
    KubeletProgram { name: "kubelite", roles: &[], units: SNAPS, flags: Flags::File("kubelet-args-file"), default: CONTAINERD },
    KubeletProgram { name: "k3s", roles: NODE, units: &["k3s.service", "k3s-agent.service"], flags: Flags::Rancher, default: OF_K3S },
    KubeletProgram { name: "rke2", roles: NODE, units: &["rke2-server.service", "rke2-agent.service"], flags: Flags::Rancher, default: OF_K3S },
    KubeletProgram { name: "k0s", roles: &["worker", "controller"], units: &["k0sworker.service", "k0scontroller.service"], flags: Flags::K0s, default: OF_K0S },
];

/// A command line that starts a kubelet.
pub(super) struct Start {
    pub(super) program: &'static KubeletProgram,
    pub(super) pid: Option<u32>,
    /// The process or the unit; empty if the machine has neither.
    pub(super) from: String,
    pub(super) words: Vec<Word>,
    /// The directory in which the command runs. Relative paths of flags begin there.
    folder: PathBuf,
    /// k3s or RKE2, if it starts the kubelet.
    pub(super) rancher: Option<Given>,
}

impl Start {
    /// Finds the command line. Reports where it has looked if it finds no command line that it understands.
    pub(super) fn find(root: &Root<'_>, findings: &mut Vec<Finding>) -> Option<Start> {
        if let Some(start) = Start::of_processes(root, findings) {
            return Some(start);
        }
        let before = findings.len();
        let units: Vec<_> = PROGRAMS.iter().flat_map(|its| its.units).copied().collect();
        let start = Start::of_units(&units, root, findings);
        if start.is_none()
            && let Some(script) = SCRIPTS.iter().find(|script| root.has(script))
        {
            let problem = "this script starts the kubelet, and its flags cannot be read";
            unknown(findings, script, problem);
        }
        if start.is_some() || findings.len() > before {
            return start;
        }
        let start = Start::of_files(root);
        if start.as_ref().is_none_or(|start| start.rancher.is_none()) {
            let (units, files) = (units.join(", "), KUBEADM_FILES.join(" and "));
            let shown = match start {
                Some(_) => "; shown is what holds if the unit of kubeadm's packages starts it",
                None => "",
            };
            unknown(
                findings,
                "kubelet",
                format!(
                    "looked at the processes, {units}, /etc/rancher, {files}: none says how the kubelet starts{shown}"
                ),
            );
        }
        start
    }

    /// The running kubelet. This is the first process, because further processes may run in containers. If the first
    /// process is RKE2 or k0s, which start the kubelet as a separate process, it is that separate process.
    fn of_processes(root: &Root<'_>, findings: &mut Vec<Finding>) -> Option<Start> {
        let mut processes = root.processes().into_iter().filter_map(|(pid, line)| {
            let from = format!("process {pid}");
            let words = line
                .trim_end_matches('\0')
                .split('\0')
                .map(|text| Word::new(text, &from))
                .collect();
            let folder = std::fs::read_link(root.at(Path::new(&format!("/proc/{pid}/cwd"))));
            let start = Start::new(words, &from, Some(pid))?;
            Some(Start {
                folder: folder.unwrap_or(start.folder),
                ..start
            })
        });
        let first = processes.next()?.with_own_variables(root, findings);
        if ["rke2", "k0s"].contains(&first.program.name)
            && let Some(own) = processes.find(|other| other.program.flags == Flags::Kubelet)
        {
            return Some(Start {
                rancher: first.rancher,
                ..own
            });
        }
        // A running k3s overwrites its command line.
        let unit = match first.program.name {
            "k3s" => Start::of_units(first.program.units, root, findings),
            _ => None,
        };
        Some(Start {
            rancher: unit.map_or(first.rancher, |unit| unit.rancher),
            ..first
        })
    }

    /// The command line of the first of these units that has one. Enabled units come before others.
    fn of_units(units: &[&str], root: &Root<'_>, findings: &mut Vec<Finding>) -> Option<Start> {
        let unit = units
            .iter()
            .map(|name| Unit::read(root, name))
            .filter(|unit| unit.is_there || unit.starts())
            .min_by_key(|unit| (!unit.starts(), !unit.is_enabled(root)))?;
        if !unit.starts() {
            let problem = "this unit is masked or has no ExecStart=, so systemd does not start it";
            unknown(findings, &unit.name, problem);
            return None;
        }
        let mut command = unit.command(root, findings);
        let texts: Vec<_> = command.iter().map(|word| word.text.clone()).collect();
        let text = texts.join(" ");
        if let Some((_, snap)) = SNAP_COMMANDS.iter().find(|(end, _)| text.ends_with(end)) {
            command = words(snap, &unit.name);
        }
        let Some(start) = Start::new(command, &unit.name, None) else {
            let program = texts.first().map_or("", String::as_str);
            unknown(
                findings,
                &unit.name,
                format!("looked at ExecStart= of this unit, which runs {program:?}"),
            );
            return None;
        };
        if ROOTS
            .iter()
            .flat_map(|key| unit.values(key))
            .any(|root| root.text != "/")
        {
            let problem = "this unit gives the kubelet a different root directory, so its files are not known";
            unknown(findings, &unit.name, problem);
        }
        let start = Start {
            folder: working_directory(&unit),
            ..start
        };
        Some(start.with(&unit.variables(root, &mut Vec::new())))
    }

    /// Adds the environment variables of the process.
    fn with_own_variables(self, root: &Root<'_>, findings: &mut Vec<Finding>) -> Start {
        let (Some(pid), Some(_)) = (self.pid, &self.rancher) else {
            return self;
        };
        let path = format!("/proc/{pid}/environ");
        let text = root.text(Path::new(&path)).unwrap_or_else(|_| {
            let problem = "the environment of the process cannot be read";
            unknown(findings, &path, problem);
            None
        });
        let variables: Vec<_> = text
            .unwrap_or_default()
            .split('\0')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.to_owned(), Word::new(value, &self.from)))
            .collect();
        self.with(&variables)
    }

    /// Adds these environment variables.
    fn with(self, variables: &[(String, Word)]) -> Start {
        Start {
            rancher: self.rancher.map(|given| given.with(variables)),
            ..self
        }
    }

    /// The kubelet of a machine that has files of kubeadm, k3s or RKE2 but no unit. For kubeadm, assumes the unit of
    /// kubeadm's packages.
    fn of_files(root: &Root<'_>) -> Option<Start> {
        if KUBEADM_FILES.iter().any(|file| root.has(file)) {
            return Start::new(
                Unit::new("", [(String::new(), KUBEADM_UNIT.to_owned())])
                    .command(root, &mut Vec::new()),
                "",
                None,
            );
        }
        let rancher = PROGRAMS
            .iter()
            .find(|program| Rancher::is_installed(program.name, root))?;
        Start::new(words(&format!("{} agent", rancher.name), ""), "", None)
    }

    /// `None` if these words do not run a kubelet. k3s sets its command line to one word, such as `/bin/k3s server`.
    fn new(words: Vec<Word>, from: &str, pid: Option<u32>) -> Option<Start> {
        let mut parts = words
            .iter()
            .flat_map(|word| word.text.split(' '))
            .skip_while(|part| WRAPPERS.iter().any(|name| part.ends_with(name)));
        let name = Path::new(parts.next()?).file_name()?;
        let role = parts.next().unwrap_or_default();
        let program = PROGRAMS
            .iter()
            .find(|its| name == its.name && (its.roles.is_empty() || its.roles.contains(&role)))?;
        let given = flags(&words, program.flags);
        if is_set(&given, "disable-agent")
            || role == "controller" && !is_set(&given, "enable-worker") && !is_set(&given, "single")
        {
            return None;
        }
        Some(Start {
            program,
            pid,
            from: from.to_owned(),
            folder: PathBuf::from("/"),
            rancher: (program.flags == Flags::Rancher).then(|| Given {
                program: program.name,
                variables: Vec::new(),
                flags: given,
            }),
            words,
        })
    }

    /// The root directory of the process. A kubelet may run in a container of the operating system, with files of its
    /// own.
    pub(super) fn container(&self, root: &Root<'_>) -> Option<PathBuf> {
        let container = root.at(Path::new(&format!("/proc/{}/root", self.pid?)));
        container.is_dir().then_some(container)
    }

    /// The row of the kubelet in the text output.
    pub(super) fn shown(&self) -> Setting {
        let value = match (self.pid, &self.rancher, self.from.as_str()) {
            (Some(_), Some(Given { program, .. }), _) => format!("running, by {program}"),
            (Some(_), None, _) => "running".to_owned(),
            (None, Some(Given { program, .. }), "") => {
                format!("not running; {program} without a unit")
            }
            (None, None, "") => "not running; no unit".to_owned(),
            _ => "not running".to_owned(),
        };
        Setting::new("kubelet", "", &value, &self.from)
    }

    /// The flags of the kubelet.
    pub(super) fn flags(&self, root: &Root<'_>, findings: &mut Vec<Finding>) -> Vec<Setting> {
        let kind = self.program.flags;
        if kind == Flags::Kubelet
            && let Some(word) = self.words.iter().find(|word| is_shorthand(&word.text))
        {
            let (name, _) = word.text.split_once('=').unwrap_or((&word.text, ""));
            let what =
                format!("the kubelet does not start with the flag {name}, which has only one dash");
            report(findings, &word.from, what, format!("-{name}"));
        }
        let mut given = flags(&self.words, kind);
        match self.program.flags {
            Flags::Kubelet | Flags::Rancher => {}
            Flags::K0s => {
                // The flags of k0s itself are not for the kubelet.
                let own = std::mem::take(&mut given);
                if let Some(socket) = last(&own, &["cri-socket"])
                    && let Some((kind, path)) = socket.value.split_once(':')
                {
                    let before = format!("--cri-socket={kind}:");
                    let name = "container-runtime-endpoint";
                    given.push(Setting::new(name, &before, path, &socket.from));
                }
                if let Some(more) = last(&own, &["kubelet-extra-args"]) {
                    given.extend(flags(&words(&more.value, &more.from), Flags::Kubelet));
                }
            }
            Flags::File(flag) => {
                let file = last(&given, &[flag]).map_or("", |file| &file.value);
                let Ok(Some(text)) = root.text(Path::new(file)) else {
                    let problem = "the kubelet's flags are in this file, which cannot be read";
                    unknown(findings, file, problem);
                    return given;
                };
                let text = text
                    .lines()
                    .filter(|line| !line.trim_start().starts_with('#'))
                    .collect::<Vec<_>>()
                    .join("\n");
                given = flags(&words(&in_snap(&text, file), file), kind);
            }
        }
        for path in given
            .iter_mut()
            .filter(|it| PATHS.contains(&it.name.as_str()))
        {
            if !path.value.is_empty() {
                path.value = self.folder.join(&path.value).display().to_string();
            }
        }
        given
    }
}

/// The directory in which systemd starts the command of the unit.
fn working_directory(unit: &Unit) -> PathBuf {
    let folder = unit
        .values("WorkingDirectory")
        .last()
        .map_or("/", |folder| folder.text.as_str());
    match folder.strip_prefix('-').unwrap_or(folder) {
        "~" => PathBuf::from("/root"),
        folder => Path::new("/").join(unit.specified(folder)),
    }
}

/// Replaces the variables of a snap in the text of a file in `/var/snap/NAME/REVISION/args`.
fn in_snap(text: &str, file: &str) -> String {
    let (data, _) = file.split_once("/args").unwrap_or((file, ""));
    let (all, _) = data.rsplit_once('/').unwrap_or((data, ""));
    text.replace("${SNAP_DATA}", data)
        .replace("${SNAP_COMMON}", &format!("{all}/common"))
        .replace("${SNAP}", data.trim_start_matches("/var"))
}

/// Whether the command line has this flag with a value other than `false`.
fn is_set(flags: &[Setting], name: &str) -> bool {
    flags
        .iter()
        .any(|flag| flag.name == name && flag.value != "false")
}

/// The flags of a command line, `--name=value` or `--name value`. k3s and RKE2 also accept flags with one dash. For the
/// kubelet, a flag of one letter follows a single dash. A flag that needs a value takes the next word, even if it
/// looks like a flag, for example because a variable before it is empty.
fn flags(words: &[Word], kind: Flags) -> Vec<Setting> {
    let mut found = Vec::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let flag = match word.text.strip_prefix("--") {
            Some("") => break,
            None if kind == Flags::Rancher || word.text == "-v" => word.text.strip_prefix('-'),
            flag => flag,
        };
        let Some(flag) = flag else { continue };
        let next = rest.as_slice().first().map_or("", |next| &next.text);
        let (name, value) = flag.split_once('=').unwrap_or((flag, next));
        let before = format!("--{name}=");
        let name = name.replace('_', "-");
        if !flag.contains('=') && takes_next(&name, next, kind) {
            rest.next();
        }
        found.push(Setting::new(&name, &before, value, &word.from));
    }
    found
}

/// Whether the word begins with a single dash and a letter that is not a flag of the kubelet.
fn is_shorthand(word: &str) -> bool {
    let letter = word.strip_prefix('-').and_then(|rest| rest.chars().next());
    letter.is_some_and(|letter| letter.is_ascii_alphabetic() && !"hv".contains(letter))
}

/// Whether the flag takes the next word as its value. The flags of k3s, RKE2 and k0s are not all known, so an unknown
/// flag of these programs takes no word that looks like a flag.
fn takes_next(name: &str, next: &str, kind: Flags) -> bool {
    match kind {
        Flags::Kubelet | Flags::File(_) => !SWITCHES.contains(&name),
        Flags::Rancher | Flags::K0s => VALUES.contains(&name) || !next.starts_with('-'),
    }
}
