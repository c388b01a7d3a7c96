//! The layouts of the kubelet: where a node keeps the kubelet's runtime endpoint, and how criswitch sets it there.
//!
//! criswitch plans a change only if the kubelet would use criswitch with the planned files.

use std::path::{Path, PathBuf};

use criswitch_platform::paths::in_run;

use super::finding::{Finding, report};
use super::kubelet::{Kubelet, RUNTIME, RUNTIME_KEY};
use super::kubelet_files::{KUBEADM_CONFIG, KUBEADM_FILES, KUBELET_DROP_IN, kubeadm_settings};
use super::root::{PlannedTexts, Root};
use super::settings::{Setting, last, same};
use super::start::Flags;
use super::unit::{DIRECTORIES, Unit};

/// The drop-in of the kubelet's unit. systemd reads it after all others, so its command wins.
const UNIT_DROP_IN: &str = "zz-criswitch-endpoint.conf";

/// The layout of a node's kubelet.
pub(super) struct Layout {
    pub(super) name: &'static str,
    /// The unit that starts the kubelet.
    pub(super) unit: String,
    /// The endpoint that the files have now.
    pub(super) endpoint: String,
    /// The files that set the new endpoint, with their new texts.
    pub(super) changes: PlannedTexts,
    /// The old texts of these files, from which the new texts were made.
    pub(super) read: PlannedTexts,
}

/// Where and how the endpoint is set.
enum EndpointPlace {
    /// criswitch's own drop-in of the kubelet's configuration.
    KubeletDropIn(PathBuf),
    /// criswitch's own drop-in of the unit. It adds a flag to the unit's command, and the last flag wins.
    UnitDropIn,
    /// A flag in a file that does not belong to criswitch.
    Flag(Setting),
    /// A key in a file that does not belong to criswitch.
    Key(PathBuf),
}

/// The name of a layout, and a function that returns the place of the endpoint if the kubelet has this layout.
type LayoutRow = (&'static str, fn(&Kubelet) -> Option<EndpointPlace>);

/// The layouts, in order of precedence: the first row whose function returns a place decides.
const LAYOUTS: [LayoutRow; 9] = [
    ("k3s", |kubelet| rancher(kubelet, "k3s")),
    ("RKE2", |kubelet| rancher(kubelet, "rke2")),
    ("kubeadm with the flag", |kubelet| {
        flag(kubelet, |file| file == Path::new(KUBEADM_FILES[1])).map(EndpointPlace::Flag)
    }),
    ("flag in the unit", |kubelet| {
        flag(kubelet, is_of_unit).map(|_| EndpointPlace::UnitDropIn)
    }),
    ("flag in an environment file", |kubelet| {
        flag(kubelet, |file| !is_of_unit(file)).map(EndpointPlace::Flag)
    }),
    ("--config-dir", |kubelet| {
        let folder = file_of(kubelet, "config-dir")?;
        Some(EndpointPlace::KubeletDropIn(folder.join(KUBELET_DROP_IN)))
    }),
    ("kubeadm with the configuration", |kubelet| {
        let file = file_of(kubelet, "config");
        file.filter(|file| file == Path::new(KUBEADM_FILES[0]))
            .map(EndpointPlace::Key)
    }),
    ("configuration file", |kubelet| {
        file_of(kubelet, "config").map(EndpointPlace::Key)
    }),
    ("flags in the unit", |kubelet| {
        is_plain(kubelet).then_some(EndpointPlace::UnitDropIn)
    }),
];

fn rancher(kubelet: &Kubelet, program: &str) -> Option<EndpointPlace> {
    let rancher = kubelet.rancher.as_ref()?;
    (rancher.program == program).then(|| EndpointPlace::KubeletDropIn(rancher.own_drop_in()))
}

/// Whether the unit starts the kubelet itself, with the kubelet's flags.
fn is_plain(kubelet: &Kubelet) -> bool {
    matches!(&kubelet.start, Some(start) if start.program.flags == Flags::Kubelet)
}

/// The flag with the endpoint, if the flag is in a file that `is_there` accepts.
fn flag(kubelet: &Kubelet, is_there: fn(&Path) -> bool) -> Option<Setting> {
    let runtime = kubelet.set(RUNTIME).filter(|_| is_plain(kubelet))?;
    let is_flag = runtime.name == RUNTIME[0] && is_there(Path::new(&runtime.from));
    is_flag.then(|| runtime.clone())
}

/// Whether the file belongs to a unit, or to systemd itself.
fn is_of_unit(file: &Path) -> bool {
    DIRECTORIES
        .iter()
        .filter_map(|units| Path::new(units).parent())
        .any(|directory| file.starts_with(directory))
}

/// The file or directory that a flag of the kubelet names.
fn file_of(kubelet: &Kubelet, name: &str) -> Option<PathBuf> {
    let file = last(&kubelet.settings, &[name]).filter(|_| is_plain(kubelet))?;
    Some(PathBuf::from(&file.value))
}

impl Layout {
    /// Finds the layout of the kubelet that would start now. `findings` are those about this kubelet.
    ///
    /// # Errors
    /// Why the layout is unknown, or why criswitch cannot set the endpoint.
    pub(super) fn find(
        root: &Root<'_>,
        kubelet: &Kubelet,
        mut findings: Vec<Finding>,
        switch: &str,
    ) -> Result<Layout, Vec<Finding>> {
        let Some(start) = kubelet.start.as_ref().filter(|_| findings.is_empty()) else {
            return Err(findings);
        };
        let Some((name, place)) = LAYOUTS
            .iter()
            .find_map(|(name, place)| Some((*name, place(kubelet)?)))
            .filter(|_| !start.from.is_empty())
        else {
            let (place, what) = match start.from.as_str() {
                "" => ("kubelet", "no unit starts the kubelet".to_owned()),
                unit => (
                    unit,
                    format!("unknown layout: {} starts the kubelet", start.program.name),
                ),
            };
            report(
                &mut findings,
                place,
                what,
                "docs/node.md, which has the layouts",
            );
            return Err(findings);
        };
        let mut layout = Layout {
            name,
            unit: start.from.clone(),
            endpoint: kubelet.endpoint().unwrap_or_default().to_owned(),
            changes: PlannedTexts::new(),
            read: PlannedTexts::new(),
        };
        if !same(&layout.endpoint, switch) {
            layout.change(&place, root, switch, &mut findings);
        }
        layout.change_kubeadm(root, switch, &mut findings);
        layout.prove(root, switch, &mut findings);
        if findings.is_empty() {
            Ok(layout)
        } else {
            Err(findings)
        }
    }

    fn change(
        &mut self,
        place: &EndpointPlace,
        root: &Root<'_>,
        switch: &str,
        findings: &mut Vec<Finding>,
    ) {
        let (path, changed) = match place {
            EndpointPlace::KubeletDropIn(path) => (path.clone(), Some(drop_in(switch))),
            EndpointPlace::Key(path) => (path.clone(), with_key(&self.text(path, root), switch)),
            EndpointPlace::Flag(flag) => (
                PathBuf::from(&flag.from),
                with_flag(&self.text(Path::new(&flag.from), root), flag, switch),
            ),
            EndpointPlace::UnitDropIn => {
                let unit = Unit::read(&root.with(&PlannedTexts::new()), &self.unit);
                let path = format!("/etc/systemd/system/{}.d/{UNIT_DROP_IN}", self.unit);
                let changed = unit
                    .values("ExecStart")
                    .last()
                    .map(|command| unit_drop_in(&command.text, switch));
                (path.into(), changed)
            }
        };
        match changed {
            Some(_) if in_run(&path).starts_with("/run") => report(
                findings,
                path.display(),
                "the file is made again at each boot, so the endpoint in it would not last",
                "setting the endpoint where the file is made from",
            ),
            Some(changed) => _ = self.changes.insert(path, changed),
            None => report(
                findings,
                path.display(),
                "criswitch cannot change the endpoint in a file of this form",
                "setting it yourself (docs/provisioning.md)",
            ),
        }
    }

    /// The text of a file that the layout changes.
    fn text(&mut self, path: &Path, root: &Root<'_>) -> String {
        let text = root.text(path).ok().flatten().unwrap_or_default();
        self.read.insert(path.to_owned(), text.clone());
        text
    }

    /// Changes the endpoint that kubeadm sets at its next upgrade, if kubeadm stores an endpoint.
    fn change_kubeadm(&mut self, root: &Root<'_>, switch: &str, findings: &mut Vec<Finding>) {
        let path = PathBuf::from(KUBEADM_CONFIG);
        let kept = kubeadm_settings(root, findings);
        if last(&kept, &RUNTIME).is_some_and(|kept| !same(&kept.value, switch)) {
            self.change(&EndpointPlace::Key(path), root, switch, findings);
        }
    }

    /// Reads the kubelet as if the changes were made, and reports a finding unless it would use criswitch.
    fn prove(&self, root: &Root<'_>, switch: &str, findings: &mut Vec<Finding>) {
        if !findings.is_empty() {
            return;
        }
        let after = Kubelet::read(&root.with(&self.changes), findings);
        let from = after.set(RUNTIME).map_or("kubelet", |set| &set.from);
        let endpoint = after.endpoint().unwrap_or("unknown");
        if !same(endpoint, switch) {
            let files: Vec<_> = self
                .changes
                .keys()
                .map(|path| path.display().to_string())
                .collect();
            report(
                findings,
                from,
                format!(
                    "unknown layout: after a change of {} the kubelet's endpoint would be {endpoint}",
                    files.join(" and ")
                ),
                "removing the endpoint there",
            );
        }
    }
}

fn drop_in(switch: &str) -> String {
    format!(
        "# Written by criswitch node.\napiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
         {RUNTIME_KEY}{switch}\n"
    )
}

fn unit_drop_in(command: &str, switch: &str) -> String {
    format!(
        "# Written by criswitch node: the command of the unit with one more flag.\n[Service]\nExecStart=\n\
         ExecStart={command} --{}={switch}\n",
        RUNTIME[0]
    )
}

/// The YAML text with the endpoint; `None` if the text is not UTF-8, or begins with `{`, so that a key may not have its
/// own line.
fn with_key(text: &str, switch: &str) -> Option<String> {
    if text.trim_start().starts_with('{') || text.contains('\u{fffd}') {
        return None;
    }
    let line = format!("{RUNTIME_KEY}{switch}\n");
    let (mut changed, mut has_key) = (String::new(), false);
    for old in text.split_inclusive('\n') {
        let is_key = old.starts_with(RUNTIME_KEY.trim_end());
        changed += if is_key { &line } else { old };
        has_key |= is_key;
    }
    if !has_key {
        if !text.is_empty() && !text.ends_with('\n') {
            changed.push('\n');
        }
        changed += &line;
    }
    Some(changed)
}

/// Whether the last line of the text is a comment so far.
fn ends_in_comment(text: &str) -> bool {
    let line = text.rsplit('\n').next().unwrap_or_default();
    line.trim_start().starts_with(['#', ';'])
}

/// The text with the flag's new value; `None` if the text does not have the flag exactly once outside of comments, or
/// is not UTF-8.
fn with_flag(text: &str, flag: &Setting, switch: &str) -> Option<String> {
    let name = flag.before.trim_end_matches('=');
    let old = [' ', '='].map(|between| format!("{name}{between}{}", flag.value));
    let found: Vec<_> = old
        .iter()
        .flat_map(|old| text.match_indices(old))
        .filter_map(|(start, old)| Some((text.get(..start)?, text.get(start + old.len()..)?)))
        // Text that only begins or ends like the flag is a different flag or value.
        .filter(|(before, after)| {
            !before.ends_with(|char: char| char.is_alphanumeric() || char == '-')
                && !after.starts_with(|char: char| {
                    !char.is_whitespace() && !['"', '\'', '\\'].contains(&char)
                })
                && !ends_in_comment(before)
        })
        .collect();
    match (found.as_slice(), text.contains('\u{fffd}')) {
        ([(before, after)], false) => Some(format!("{before}{}{after}", flag.instead(switch))),
        _ => None,
    }
}
