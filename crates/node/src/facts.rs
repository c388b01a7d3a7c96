//! The state of a machine, as far as a plan needs it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use criswitch_client::probe::{Probe, probe_all};
use criswitch_config::address::Address;
use criswitch_config::specification::Specification;
use criswitch_config::{BackendConfig, Config, DEFAULT_PATH, Problems, disk};

use super::finding::Finding;
use super::journal::Journal;
use super::kubelet::Kubelet;
use super::layout::Layout;
use super::root::{self, Root};
use super::settings::{last, same};

/// The directory of criswitch's drop-ins, and the default directory of the kubelet.
const DROP_INS: &str = "/etc/criswitch/conf.d";
const KUBELET: &str = "/var/lib/kubelet";

/// Makes the text of a configuration for the runtimes that answer at the well-known paths below a directory, as
/// `criswitch discover` does.
pub type Discover = fn(&Path) -> anyhow::Result<String>;

/// The state of a machine, as far as the steps and the checks need it.
pub(super) struct MachineFacts<'a> {
    pub(super) root: Root<'a>,
    pub(super) specification: &'a Specification,
    pub(super) wanted: Result<Wanted, Vec<Finding>>,
    /// The file of the labels, according to the configuration that the node has now.
    pub(super) labels_file: Option<PathBuf>,
    /// The kubelet as it runs now.
    pub(super) kubelet: Kubelet,
    pub(super) kubelet_findings: Vec<Finding>,
    /// The kubelet as it would be after its next start.
    pub(super) next_kubelet: Kubelet,
    /// The endpoint of criswitch, in the form that the kubelet accepts.
    pub(super) endpoint: String,
    pub(super) layout: Result<Layout, Vec<Finding>>,
    /// The answers of the backends; `None` if the machine does not run.
    pub(super) probes: Option<Vec<Probe>>,
    /// The programs to install: the names and the bytes of this program and of the daemon.
    pub(super) programs: [(&'static str, Vec<u8>); 2],
    /// The files that an earlier `apply` has made, and that have not changed since.
    pub(super) own: Vec<PathBuf>,
    /// Whether an earlier `apply` has set the kubelet's endpoint.
    pub(super) has_set_endpoint: bool,
    /// The number of the specification that was applied last.
    pub(super) number: u64,
    /// The uids of the pods that the kubelet has, or why they are unknown.
    pub(super) pods: Result<BTreeSet<String>, Finding>,
}

/// The configuration that the node will have.
pub(super) struct Wanted {
    pub(super) config: Config,
    /// The text of its file; `None` if the file stays as it is.
    pub(super) text: Option<String>,
}

impl<'a> MachineFacts<'a> {
    pub(super) fn look(
        specification: &'a Specification,
        directory: &'a Path,
        programs: [(&'static str, Vec<u8>); 2],
        discover: Discover,
    ) -> anyhow::Result<MachineFacts<'a>> {
        let root = Root::of(directory);
        let wanted = Wanted::find(specification, &root, || discover(directory));
        let config = present(&root);
        let mut kubelet_findings = Vec::new();
        let kubelet = Kubelet::read(&root, &mut kubelet_findings);
        let (nothing, mut next_findings) = (root::PlannedTexts::new(), Vec::new());
        let next_kubelet = Kubelet::read(&root.with(&nothing), &mut next_findings);
        let endpoint = endpoint(wanted.as_ref().ok());
        let probes = match &wanted {
            Ok(wanted) if root.runs() => Some(probe(&wanted.config, &root)?),
            _ => None,
        };
        let journal = Journal::read(&root)?;
        Ok(MachineFacts {
            layout: Layout::find(&root, &next_kubelet, next_findings, &endpoint),
            next_kubelet,
            endpoint,
            pods: pods(&kubelet, &root),
            programs,
            own: unchanged_files(&journal)?,
            has_set_endpoint: journal.changes().any(|it| it.step == "endpoint"),
            number: journal.number(),
            root,
            specification,
            wanted,
            labels_file: config.ok().and_then(|config| config.labels_file),
            kubelet,
            kubelet_findings,
            probes,
        })
    }

    /// Whether the kubelet's files have the endpoint of criswitch.
    pub(super) fn uses_criswitch(&self) -> bool {
        let endpoint = self.next_kubelet.endpoint();
        endpoint.is_some_and(|endpoint| same(endpoint, &self.endpoint))
    }
}

fn endpoint(wanted: Option<&Wanted>) -> String {
    match wanted {
        Some(wanted) => wanted.config.listen.endpoint(),
        None => Address::default_listen().endpoint(),
    }
}

/// The files that an earlier `apply` has made, and that have not changed since.
fn unchanged_files(journal: &Journal<'_>) -> anyhow::Result<Vec<PathBuf>> {
    let drifted = journal.drifted()?;
    Ok(journal
        .changes()
        .map(|change| change.path.clone())
        .filter(|path| !drifted.contains(path))
        .collect())
}

/// Asks the backends at their sockets below `root`.
fn probe(config: &Config, root: &Root<'_>) -> anyhow::Result<Vec<Probe>> {
    let mut backends = config.table.backends.clone();
    for BackendConfig { socket, .. } in &mut backends {
        if let Some(Ok(below)) = root.at(socket.path()).to_str().map(Address::parse) {
            *socket = below;
        }
    }
    probe_all(&backends, config.max_message)
}

/// The uids of the pods for which the kubelet has a directory.
fn pods(kubelet: &Kubelet, root: &Root<'_>) -> Result<BTreeSet<String>, Finding> {
    let set = last(&kubelet.settings, &["root-dir"]);
    let folder = Path::new(set.map_or(KUBELET, |set| &set.value)).join("pods");
    let uids = root.names_in(&folder).map_err(|error| {
        Finding::unknown(
            [folder.display()],
            format!("the kubelet's pods cannot be read: {error}"),
            "running the command as root",
        )
    })?;
    if kubelet.pid.is_some() && !root.at(&folder).exists() {
        let what = "a kubelet runs, and this directory of its pods does not exist";
        return Err(Finding::unknown([folder.display()], what, ""));
    }
    Ok(BTreeSet::from_iter(uids))
}

impl Wanted {
    /// The configuration in the specification, else the configuration of the node, else a configuration for the
    /// runtimes that answer.
    fn find(
        specification: &Specification,
        root: &Root<'_>,
        discovered: impl FnOnce() -> anyhow::Result<String>,
    ) -> Result<Wanted, Vec<Finding>> {
        if specification.configuration.is_none() && root.has(DEFAULT_PATH) {
            return Ok(Wanted {
                config: present(root)?,
                text: None,
            });
        }
        let text = Wanted::text(specification, root, discovered).map_err(|found| vec![found])?;
        Ok(Wanted {
            config: with_drop_ins(text.as_bytes(), root)?,
            text: Some(text),
        })
    }

    fn text(
        specification: &Specification,
        root: &Root<'_>,
        discovered: impl FnOnce() -> anyhow::Result<String>,
    ) -> Result<String, Finding> {
        let undiscovered = match &specification.configuration {
            Some(text) => return Ok(format!("{}\n", text.trim())),
            None if root.runs() => match discovered() {
                Ok(text) => return Ok(text),
                Err(error) => error.to_string(),
            },
            None => "the machine does not run, so no configuration can be discovered".to_owned(),
        };
        let hint = "[handlers] in the specification";
        Err(Finding::new([DEFAULT_PATH], undiscovered, hint))
    }
}

/// The configuration that the machine has now. Links in a mounted image lead to files of the image.
fn present(root: &Root<'_>) -> Result<Config, Vec<Finding>> {
    let bytes = disk::bytes(&root.real(Path::new(DEFAULT_PATH)))
        .map_err(|error| vec![unreadable(DEFAULT_PATH, &error)])?;
    with_drop_ins(&bytes, root)
}

/// The configuration with this text in its main file, and with the drop-ins of the machine.
fn with_drop_ins(text: &[u8], root: &Root<'_>) -> Result<Config, Vec<Finding>> {
    let drop_ins = drop_ins(root).map_err(|error| vec![unreadable(DROP_INS, &error)])?;
    let drop_ins = drop_ins
        .iter()
        .map(|(path, bytes)| (path.as_path(), bytes.as_slice()));
    let texts: Vec<_> = std::iter::once((Path::new(DEFAULT_PATH), text))
        .chain(drop_ins)
        .collect();
    Config::of_texts(&texts).map_err(findings_of)
}

fn unreadable(path: &str, error: &io::Error) -> Finding {
    Finding::new([path], format!("cannot be read: {error}"), "")
}

/// The paths and the bytes of the configuration's drop-ins.
fn drop_ins(root: &Root<'_>) -> io::Result<Vec<(PathBuf, Vec<u8>)>> {
    let folder = Path::new(DROP_INS);
    disk::drop_ins(&root.real(folder))?
        .into_iter()
        .map(|path| {
            let path = folder.join(path.file_name().unwrap_or_default());
            let bytes = disk::bytes(&root.real(&path))?;
            Ok((path, bytes))
        })
        .collect()
}

fn findings_of(problems: Problems) -> Vec<Finding> {
    problems
        .iter()
        .map(|problem| Finding::new([&problem.place], &problem.what, &problem.hint))
        .collect()
}
