//! `criswitch node plan`: the steps that would change a node, and the findings for which criswitch does not change it.
//! Changes nothing.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use criswitch_client::columns::columns;
use criswitch_client::exit::Verdict;
use criswitch_client::output::Output;
use criswitch_client::terminal::{self, print};
use criswitch_config::address::Address;
use criswitch_config::specification::Specification;
use criswitch_config::wording::counted;
use criswitch_config::{Config, DEFAULT_PATH, Problems};
use criswitch_platform::kernel;
use serde_json::{Value, json};

use super::checks::{self, Check};
use super::journal::Journal;
use super::kubelet::Kubelet;
use super::layout::Layout;
use super::root::{self, Root};
use super::steps::{self, PlannedStep};
use super::{Finding, advice, last};
use crate::arguments::directory;
use crate::daemon;
use crate::discover;
use crate::probe::{Probe, probe_all};

const CODES: &str = "\
Exit codes: 0 ready: nothing would change, 1 refused: the node has a
finding that the specification does not accept, 2 the plan would change
the node, 78 the specification is wrong.";

/// The directory of the configuration's drop-ins, of the kubelet's pods, and of the logs of pods.
const DROP_INS: &str = "/etc/criswitch/conf.d";
const KUBELET: &str = "/var/lib/kubelet";
const LOGS: &str = "/var/log/pods";

/// The specification of a node.
#[derive(Args)]
pub(super) struct SpecificationArguments {
    /// The specification of the node: a configuration with the table [node]; without it, the runtimes are discovered.
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// The directory with the programs to install, if it is not the directory of this program.
    #[arg(long, value_name = "DIR", hide = true)]
    programs: Option<PathBuf>,
}

/// The arguments of `criswitch node plan`.
#[derive(Args)]
#[command(after_help = CODES)]
pub(crate) struct PlanArguments {
    #[command(flatten)]
    source: SpecificationArguments,
    /// Plan for the machine whose root is this directory, for example a mounted image.
    #[arg(long, value_name = "DIR", default_value = "/", value_parser = directory)]
    root: PathBuf,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// The state of a machine, as far as the steps and the checks need it.
pub(super) struct MachineFacts<'a> {
    pub(super) root: Root<'a>,
    pub(super) specification: &'a Specification,
    pub(super) wanted: Result<Wanted, Vec<Finding>>,
    /// The file of the labels in the configuration that the node has.
    pub(super) labels_file: Option<PathBuf>,
    /// The kubelet as it runs.
    pub(super) kubelet: Kubelet,
    pub(super) kubelet_findings: Vec<Finding>,
    /// The kubelet as its next start would make it.
    pub(super) next_kubelet: Kubelet,
    /// The endpoint of criswitch, as the kubelet takes it.
    pub(super) endpoint: String,
    pub(super) layout: Result<Layout, Vec<Finding>>,
    /// The answers of the backends; `None` if the machine does not run.
    pub(super) probes: Option<Vec<Probe>>,
    /// The programs to install: the names and the bytes of this program and of the daemon.
    pub(super) programs: [(&'static str, Vec<u8>); 2],
    /// The files that are as an earlier `apply` has made them.
    pub(super) own: Vec<PathBuf>,
    /// The number of the specification that was applied last.
    pub(super) number: u64,
    /// The pods that the kubelet has, or why they are unknown.
    pub(super) pods: Result<Vec<KubeletPod>, Finding>,
}

/// The configuration that the node will have.
pub(super) struct Wanted {
    pub(super) config: Config,
    /// The text of its file; `None` if the file stays as it is.
    pub(super) text: Option<String>,
}

/// A pod of the kubelet.
pub(super) struct KubeletPod {
    /// Its namespace and name, or its uid if these are unknown.
    pub(super) name: String,
    pub(super) uid: String,
}

/// The meaning of a finding for the plan.
#[derive(Clone, Copy, PartialEq, Eq, strum::AsRefStr)]
#[strum(serialize_all = "lowercase")]
enum FindingMeaning {
    Refused,
    /// The check could not look, so the finding counts like one that is not accepted.
    Unknown,
    Accepted,
}

/// The steps and the findings.
pub(super) struct NodePlan<'f> {
    facts: &'f MachineFacts<'f>,
    pub(super) steps: Vec<PlannedStep>,
    findings: Vec<(FindingMeaning, &'static Check, Finding)>,
}

impl PlanArguments {
    pub(crate) fn run(&self) -> anyhow::Result<Verdict> {
        if !kernel::IS_LINUX {
            bail!("criswitch node is for nodes of Linux");
        }
        let specification = self.source.specification()?;
        let facts = self.source.facts(&specification, &self.root)?;
        let plan = NodePlan::of(&facts);
        print(match self.output.encoding() {
            Some(encoding) => encoding.document(plan.json())?,
            None => plan.text()?.into(),
        })?;
        Ok(plan.verdict())
    }
}

impl SpecificationArguments {
    pub(super) fn specification(&self) -> anyhow::Result<Specification> {
        Ok(match &self.spec {
            Some(path) => Specification::load(path, &checks::acceptable())?,
            None => Specification::default(),
        })
    }

    pub(super) fn facts<'a>(
        &self,
        specification: &'a Specification,
        directory: &'a Path,
    ) -> anyhow::Result<MachineFacts<'a>> {
        let own = std::env::current_exe()?;
        let given = self.programs.as_ref();
        let program = given.map_or(own, |folder| folder.join("criswitch"));
        let read = |path: &Path| {
            let bytes = std::fs::read(path);
            bytes.with_context(|| format!("{} cannot be read", path.display()))
        };
        let programs = [
            ("criswitch", read(&program)?),
            ("criswitchd", read(&daemon::beside(&program))?),
        ];
        MachineFacts::look(specification, directory, programs)
    }
}

impl<'a> MachineFacts<'a> {
    fn look(
        specification: &'a Specification,
        directory: &'a Path,
        programs: [(&'static str, Vec<u8>); 2],
    ) -> anyhow::Result<MachineFacts<'a>> {
        let root = Root::of(directory);
        let wanted = Wanted::find(specification, &root, directory);
        let config = Config::load(&root.at(Path::new(DEFAULT_PATH)));
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
            own: own(&journal)?,
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
}

fn endpoint(wanted: Option<&Wanted>) -> String {
    let listen = wanted.map(|wanted| wanted.config.listen.endpoint());
    listen.unwrap_or_else(|| Address::default_listen().endpoint())
}

/// The files that are as an earlier `apply` has made them.
fn own(journal: &Journal<'_>) -> anyhow::Result<Vec<PathBuf>> {
    let drifted = journal.drifted()?;
    let own = journal.changes().map(|change| change.path.clone());
    Ok(own.filter(|path| !drifted.contains(path)).collect())
}

/// Asks the backends at their sockets below `root`.
fn probe(config: &Config, root: &Root<'_>) -> anyhow::Result<Vec<Probe>> {
    let backends = config.table.backends.iter().map(|backend| {
        let path = root.at(backend.socket.path());
        let below = path.to_str().and_then(|path| Address::parse(path).ok());
        let mut backend = backend.clone();
        backend.socket = below.unwrap_or(backend.socket);
        backend
    });
    probe_all(&backends.collect::<Vec<_>>(), config.max_message)
}

/// The pods with a directory of the kubelet.
fn pods(kubelet: &Kubelet, root: &Root<'_>) -> Result<Vec<KubeletPod>, Finding> {
    let set = last(&kubelet.settings, &["root-dir"]);
    let folder = Path::new(set.map_or(KUBELET, |set| &set.value)).join("pods");
    let uids = root.names_in(&folder).map_err(|error| {
        let what = format!("the kubelet's pods cannot be read: {error}");
        Finding::unknown([folder.display()], &what, "running the command as root")
    })?;
    if kubelet.pid.is_some() && !root.at(&folder).exists() {
        let what = "a kubelet runs, and this directory of its pods does not exist";
        return Err(Finding::unknown([folder.display()], what, ""));
    }
    let logs = root.names_in(Path::new(LOGS)).unwrap_or_default();
    let pods = uids.into_iter().map(|uid| {
        let name = logs.iter().find_map(|log| {
            let (namespace, name) = log
                .strip_suffix(&*uid)?
                .strip_suffix('_')?
                .split_once('_')?;
            Some(format!("{namespace}/{name}"))
        });
        KubeletPod {
            name: name.unwrap_or_else(|| uid.clone()),
            uid,
        }
    });
    Ok(pods.collect())
}

impl Wanted {
    /// The configuration of the specification, else the one of the node, else one for the runtimes that answer.
    fn find(
        specification: &Specification,
        root: &Root<'_>,
        directory: &Path,
    ) -> Result<Wanted, Vec<Finding>> {
        let problems = |problems: Problems| -> Vec<Finding> {
            let problems = problems.iter();
            problems
                .map(|its| Finding::new([&its.place], &its.what, &its.hint))
                .collect()
        };
        let path = Path::new(DEFAULT_PATH);
        if specification.configuration.is_none() && root.at(path).exists() {
            let config = Config::load(&root.at(path)).map_err(problems)?;
            return Ok(Wanted { config, text: None });
        }
        let text = Wanted::text(specification, root, directory).map_err(|found| vec![found])?;
        let drop_ins = root.files_in(Path::new(DROP_INS), &["toml"]).into_iter();
        let drop_ins = drop_ins.filter_map(|path| Some((root.text(&path).ok()??, path)));
        let drop_ins: Vec<_> = drop_ins.collect();
        let own = [(path, text.as_bytes())].into_iter();
        let texts = own.chain(
            drop_ins
                .iter()
                .map(|(text, path)| (&**path, text.as_bytes())),
        );
        let config = Config::of_texts(&texts.collect::<Vec<_>>()).map_err(problems)?;
        let text = Some(text);
        Ok(Wanted { config, text })
    }

    fn text(
        specification: &Specification,
        root: &Root<'_>,
        directory: &Path,
    ) -> Result<String, Finding> {
        let none =
            |what: &str| Finding::new([DEFAULT_PATH], what, "[handlers] in the specification");
        match &specification.configuration {
            Some(text) => Ok(format!("{}\n", text.trim())),
            None if root.runs() => {
                let found = discover::configuration(directory);
                found.map_err(|error| none(&error.to_string()))
            }
            None => Err(none(
                "the machine does not run, so no configuration can be discovered",
            )),
        }
    }
}

impl<'f> NodePlan<'f> {
    pub(super) fn of(facts: &'f MachineFacts<'f>) -> NodePlan<'f> {
        let steps = steps::plan(facts);
        let accept = &facts.specification.accept;
        let findings = checks::look(facts, &steps).into_iter();
        let findings = findings.map(|(check, found)| {
            let is_accepted = accept.iter().any(|name| name == check.name);
            let state = match (is_accepted, found.is_unknown) {
                (true, _) => FindingMeaning::Accepted,
                (false, true) => FindingMeaning::Unknown,
                (false, false) => FindingMeaning::Refused,
            };
            (state, check, found)
        });
        NodePlan {
            facts,
            findings: findings.collect(),
            steps,
        }
    }

    pub(super) fn verdict(&self) -> Verdict {
        match (self.open(), self.steps.len()) {
            (0, 0) => Verdict::Fine,
            (0, _) => Verdict::WouldChange,
            _ => Verdict::NotFine,
        }
    }

    /// The number of findings that are not accepted.
    fn open(&self) -> usize {
        self.findings
            .iter()
            .filter(|(state, ..)| *state != FindingMeaning::Accepted)
            .count()
    }

    /// Whether all findings that are not accepted are young pods.
    pub(super) fn must_wait(&self) -> bool {
        let young = self.findings.iter().filter(|(state, check, _)| {
            *state == FindingMeaning::Refused && check.name == "young-pod"
        });
        self.open() > 0 && self.open() == young.count()
    }

    /// The layout of the kubelet, and the table of the steps.
    fn steps_text(&self) -> anyhow::Result<String> {
        let rows = self.steps.iter().flat_map(|PlannedStep { step, changes }| {
            let step = (*step).to_owned();
            let changes = changes.iter();
            changes.map(move |change| [step.clone(), change.place.clone(), change.what.clone()])
        });
        let table = columns(&["STEP", "PLACE", "CHANGE"], rows)?;
        let table = if self.steps.is_empty() {
            String::new()
        } else {
            table
        };
        Ok(match &self.facts.layout {
            Ok(Layout { name, unit, .. }) if table.is_empty() => {
                format!("kubelet: {unit}, {name}\n")
            }
            Ok(Layout { name, unit, .. }) => format!("kubelet: {unit}, {name}\n\n{table}"),
            Err(_) => table,
        })
    }

    pub(super) fn text(&self) -> anyhow::Result<String> {
        let findings = self.findings.iter().map(|(state, check, found)| {
            let (state, name) = (state.as_ref(), check.name);
            format!("{state} {name}: {}\n", found.line(&found.what))
        });
        let findings = terminal::wrapped(&findings.collect::<String>());
        let end = match (self.open(), self.steps.len()) {
            (0, 0) => "ready: nothing would change\n".to_owned(),
            (0, steps) => format!("would change: {}\n", counted(steps, "step")),
            (open, _) => format!("refused: {}\n", counted(open, "finding")),
        };
        let parts = [self.steps_text()?, findings, end];
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        Ok(parts.collect::<Vec<_>>().join("\n"))
    }

    fn json(&self) -> Value {
        let findings = self.findings.iter().map(|(state, check, found)| {
            json!({
                "check": check.name,
                "state": state.as_ref(),
                "mayAccept": check.may_accept,
                "places": found.places,
                "what": found.what,
                "try": advice(&found.hint),
            })
        });
        let open = self
            .findings
            .iter()
            .filter(|(state, ..)| *state != FindingMeaning::Accepted);
        let problems = open.map(|(_, _, found)| {
            json!({ "path": found.places.first(), "what": found.what, "try": advice(&found.hint) })
        });
        let state = match self.verdict() {
            Verdict::Fine => "ready",
            Verdict::WouldChange => "wouldChange",
            _ => "refused",
        };
        let layout = self.facts.layout.as_ref().ok();
        json!({
            "problems": problems.collect::<Vec<_>>(),
            "state": state,
            "mode": self.facts.specification.mode.as_ref(),
            "version": env!("CARGO_PKG_VERSION"),
            "layout": layout.map(|layout| json!({ "name": layout.name, "unit": layout.unit })),
            "steps": self.steps,
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}
