//! Reads a unit as systemd does: its file and drop-ins, their environment variables, and the command of `ExecStart=`.

mod syntax;

use std::fmt::Display;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use criswitch_client::program::within;
use criswitch_platform::paths::in_run;

use super::finding::{Finding, report, unknown};
use super::root::{MAX_LINKS, Root};
use syntax::{assignments, file_value, in_lines, is_variable, may_matter};

pub(super) use syntax::{Word, words};

/// How long systemd may take to show a unit. It waits 25 s for a reply of D-Bus itself.
const SHOW_LIMIT: Duration = Duration::from_secs(30);

/// The directories of units. A file replaces the files of the same name in the directories after its own.
pub(super) const DIRECTORIES: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The name of systemd's own configuration.
const MANAGER: &str = "system.conf";

/// The specifiers that stand for directories and for the character `%`, with their values.
const SPECIFIERS: [(char, &str); 4] = [('t', "/run"), ('S', "/var/lib"), ('E', "/etc"), ('%', "%")];

/// The prefixes of a command in `ExecStart=`.
const PREFIXES: [char; 6] = ['-', '@', ':', '+', '!', '|'];

/// The lines of a unit in the order in which systemd reads them.
pub(super) struct Unit {
    pub(super) name: String,
    /// The key and the value of each line in the section of the unit's kind, and the file that has the line.
    lines: Vec<(String, Word)>,
    /// The files that have lines, in any section.
    files: Vec<PathBuf>,
    /// The findings about lines that systemd ignores.
    ignored: Vec<Finding>,
    /// The files that exist and cannot be read.
    unreadable: Vec<PathBuf>,
    /// Whether the machine has a file of the unit, even a file that masks the unit.
    pub(super) is_there: bool,
    /// Whether the file of the unit is empty, as a link to /dev/null is. systemd does not start such a unit.
    is_masked: bool,
}

impl Unit {
    /// Reads a unit and its drop-ins. A unit without files has no lines.
    pub(super) fn read(root: &Root<'_>, name: &str) -> Unit {
        let asked = root.is_this_machine().then(|| reported_files(name));
        let files = asked.flatten().unwrap_or_else(|| files(root, name));
        Unit::of_files(root, name, files)
    }

    /// The configuration of systemd itself.
    fn manager(root: &Root<'_>) -> Unit {
        Unit::of_files(root, MANAGER, manager_files(root))
    }

    fn of_files(root: &Root<'_>, name: &str, files: Vec<PathBuf>) -> Unit {
        let unit_file = files.first().filter(|file| file.ends_with(name));
        let is_there = unit_file.is_some();
        let is_masked = unit_file.is_some_and(|file| {
            let text = root.text(file);
            text.is_ok_and(|text| text.is_none_or(|text| text.trim().is_empty()))
        });
        let (mut texts, mut unreadable) = (Vec::new(), Vec::new());
        for file in files {
            match root.text(&file) {
                Ok(Some(text)) => texts.push((file.display().to_string(), text)),
                Ok(None) => {}
                Err(_) => unreadable.push(file),
            }
        }
        Unit {
            unreadable,
            is_there,
            is_masked,
            ..Unit::new(name, texts)
        }
    }

    /// The unit with the lines of these files, each with its path and its text.
    pub(super) fn new(name: &str, files: impl IntoIterator<Item = (String, String)>) -> Unit {
        let section = section(name);
        let (mut lines, mut ignored, mut with_lines) = (Vec::new(), Vec::new(), Vec::new());
        for (from, text) in files {
            // systemd ignores a byte order mark in a unit.
            let assignments = assignments(text.trim_start_matches('\u{feff}'));
            with_lines.extend(assignments.first().map(|_| PathBuf::from(&from)));
            for line in assignments {
                if let Some((what, hint)) = line.fault(section) {
                    report(&mut ignored, &from, what, hint);
                }
                match line.value {
                    Some(value) if line.section.as_deref() == Some(section) => {
                        lines.push((line.key, Word::new(&value, &from)));
                    }
                    None if line.key.starts_with('[') => break,
                    _ => {}
                }
            }
        }
        Unit {
            name: name.to_owned(),
            lines,
            files: with_lines,
            ignored,
            unreadable: Vec::new(),
            is_there: false,
            is_masked: false,
        }
    }

    /// The files that define the unit: the unit file and its drop-ins, if they have lines.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        self.files.iter().cloned()
    }

    /// Whether a unit of this machine has files that systemd has not read yet; `None` if no systemd answers.
    pub(super) fn needs_reload(name: &str) -> Option<bool> {
        let [needs] = properties(name, ["NeedDaemonReload"])?;
        Some(needs == "yes")
    }

    /// Whether a unit of this machine neither runs nor is about to; `None` if no systemd answers.
    pub(super) fn is_stopped(name: &str) -> Option<bool> {
        let [state] = properties(name, ["ActiveState"])?;
        Some(["inactive", "failed"].contains(&state.as_str()))
    }

    /// Whether the unit has files, and one of the usual targets starts it.
    pub(super) fn is_enabled(&self, root: &Root<'_>) -> bool {
        !self.files.is_empty()
            && ["multi-user", "sockets"].iter().any(|target| {
                let links = format!("/etc/systemd/system/{target}.target.wants");
                root.names_in(Path::new(&links))
                    .is_ok_and(|names| names.contains(&self.name))
            })
    }

    /// Whether systemd can start the unit.
    pub(super) fn starts(&self) -> bool {
        !self.is_masked && !self.values("ExecStart").is_empty()
    }

    /// The values of a key. In systemd, an empty value clears the values before it.
    pub(super) fn values(&self, key: &str) -> Vec<&Word> {
        let lines = self.lines.iter().filter(|(name, _)| name == key);
        let values: Vec<_> = lines.map(|(_, value)| value).collect();
        values
            .rsplit(|value| value.text.is_empty())
            .next()
            .unwrap_or_default()
            .to_vec()
    }

    /// The words of the last `ExecStart=`, with the values of the environment variables. Reports the environment files
    /// that the unit needs and that cannot be read.
    pub(super) fn command(&self, root: &Root<'_>, findings: &mut Vec<Finding>) -> Vec<Word> {
        findings.extend(self.ignored.iter().cloned());
        let commands = self.values("ExecStart");
        let Some(&line) = commands.last() else {
            return Vec::new();
        };
        let kind = self.values("Type").last().map(|kind| kind.text.as_str());
        if commands.len() > 1 && kind != Some("oneshot") {
            let what = format!(
                "{} has more than one ExecStart=, so systemd does not start it",
                self.name
            );
            report(
                findings,
                &line.from,
                what,
                "an empty ExecStart= before this one",
            );
        }
        for path in &self.unreadable {
            self.report_unreadable(findings, path.display());
        }
        let variables = self.variables(root, findings);
        let text = line.text.trim_start_matches(PREFIXES);
        let words = words(&self.specified(text), &line.from);
        let prefixes = line.text.len() - text.len();
        // With this prefix, systemd replaces no variables.
        if line.text.get(..prefixes).is_some_and(|it| it.contains(':')) {
            return words;
        }
        for name in self.passed(&variables) {
            let (plain, braced) = (format!("${name}"), format!("${{{name}}}"));
            if words
                .iter()
                .any(|word| word.text == plain || word.text.contains(&braced))
            {
                let what = format!(
                    "the value of {name} is unknown: PassEnvironment= takes it from systemd's own environment"
                );
                unknown(findings, &line.from, what);
            }
        }
        words
            .iter()
            .flat_map(|part| expanded(part, &variables))
            .collect()
    }

    /// The environment variables. If several variables have the same name, the last one counts. Variables that systemd
    /// gives to all units come before those of `Environment=`, and variables of files after these. `UnsetEnvironment=`
    /// removes variables at the end.
    pub(super) fn variables(
        &self,
        root: &Root<'_>,
        findings: &mut Vec<Finding>,
    ) -> Vec<(String, Word)> {
        let manager = Unit::manager(root);
        findings.extend(manager.ignored.iter().cloned());
        let mut found = Vec::new();
        for (unit, key) in [(&manager, "DefaultEnvironment"), (self, "Environment")] {
            for Word { text, from } in unit.values(key) {
                for (position, pair) in (1..).zip(words(&self.specified(text), from)) {
                    match pair.text.split_once('=') {
                        Some((name, value)) if is_variable(name) => {
                            found.push((name.to_owned(), Word::new(value, from)));
                        }
                        // The word is not shown, because it may be part of a secret.
                        _ if may_matter(&pair.text) => {
                            let what = format!(
                                "systemd ignores word {position} of {key}=: it is not NAME=VALUE"
                            );
                            report(findings, from, what, "quotes around the whole NAME=VALUE");
                        }
                        _ => {}
                    }
                }
            }
        }
        for Word { text, .. } in self.values("EnvironmentFile") {
            let text = self.specified(text);
            let path = text.trim_start_matches('-');
            let is_made_at_boot = root.is_image() && in_run(Path::new(path)).starts_with("/run");
            match root.text(Path::new(path)) {
                Ok(Some(file)) => found.extend(
                    assignments(&in_lines(&file))
                        .into_iter()
                        .filter_map(|it| Some((it.key, Word::new(&file_value(&it.value?), path)))),
                ),
                Ok(None) if is_made_at_boot => {
                    let what = format!("{} reads this file, which is made at boot", self.name);
                    unknown(findings, path, what);
                }
                Ok(None) if path != text && !path.contains(['%', '*', '?', '[']) => {}
                _ => self.report_unreadable(findings, path),
            }
        }
        for Word { text, from } in self.values("UnsetEnvironment") {
            for unset in words(&self.specified(text), from) {
                found.retain(|(name, Word { text, .. })| {
                    unset.text != *name && unset.text != format!("{name}={text}")
                });
            }
        }
        found
    }

    /// The variables that systemd passes on from its own environment. A variable that the unit sets or removes is not
    /// among them.
    fn passed(&self, variables: &[(String, Word)]) -> Vec<String> {
        let names = |key| {
            let values = self.values(key).into_iter();
            values.flat_map(|value| words(&self.specified(&value.text), &value.from))
        };
        names("PassEnvironment")
            .map(|name| name.text)
            .filter(|name| {
                value_of(name, variables).is_none()
                    && !names("UnsetEnvironment").any(|unset| unset.text == *name)
            })
            .collect()
    }

    /// Replaces the specifiers that do not depend on the machine.
    pub(super) fn specified(&self, text: &str) -> String {
        let (stem, _) = self.name.rsplit_once('.').unwrap_or((&self.name, ""));
        let names = [('n', self.name.as_str()), ('N', stem), ('p', stem)];
        let mut specified = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            let (value, after) = names
                .iter()
                .chain(&SPECIFIERS)
                .find_map(|(letter, value)| Some((*value, after.strip_prefix(*letter)?)))
                .unwrap_or(("%", after));
            specified.extend([before, value]);
            rest = after;
        }
        specified + rest
    }

    /// Reports that a file which the unit needs cannot be read.
    fn report_unreadable(&self, findings: &mut Vec<Finding>, path: impl Display) {
        let what = format!("{} needs this file, which cannot be read", self.name);
        unknown(findings, path, what);
    }
}

/// The file of a unit and its drop-ins, in the order in which systemd reads them.
fn files(root: &Root<'_>, name: &str) -> Vec<PathBuf> {
    let kind = name.rsplit('.').next().unwrap_or_default();
    let unit = DIRECTORIES.into_iter().find(|directory| {
        root.names_in(Path::new(directory))
            .is_ok_and(|names| names.iter().any(|it| it == name))
    });
    let path = unit.map(|directory| Path::new(directory).join(name));
    let aliases = path.iter().flat_map(|path| aliases(root, path));
    let aliases = aliases.filter(|alias| alias != name && alias.ends_with(&format!(".{kind}")));
    let mut owners = Vec::new();
    for name in [name.to_owned()].into_iter().chain(aliases) {
        owners.push(name.clone());
        // `a-b.service` also has the drop-ins of `a-.service`.
        for (end, _) in name.rmatch_indices('-') {
            owners.extend(name.get(..=end).map(|prefix| format!("{prefix}.{kind}")));
        }
    }
    owners.push(kind.to_owned());
    let directories = owners
        .iter()
        .flat_map(|owner| DIRECTORIES.map(|directory| format!("{directory}/{owner}.d")));
    path.into_iter()
        .chain(drop_ins(root, directories))
        .collect()
}

/// The other names of the unit at `path`, which has their drop-ins too. If its file is a link to another unit, it also
/// has the name of the target, and so on. A target outside of the directories of units gives it no name.
fn aliases(root: &Root<'_>, path: &Path) -> Vec<String> {
    let directories = DIRECTORIES.map(|directory| root.real(Path::new(directory)));
    iter::successors(root.target(path), |target| root.target(target))
        .take_while(|target| {
            target
                .parent()
                .is_some_and(|folder| directories.contains(&root.real(folder)))
        })
        .take(MAX_LINKS.into())
        .filter_map(|target| Some(target.file_name()?.to_str()?.to_owned()))
        .collect()
}

/// The files of systemd's own configuration, in the order in which systemd reads them.
fn manager_files(root: &Root<'_>) -> Vec<PathBuf> {
    let main = DIRECTORIES.map(|directory| format!("{directory}.conf"));
    let main = main.into_iter().find(|file| root.has(file));
    let directories = DIRECTORIES.map(|directory| format!("{directory}.conf.d"));
    main.map(PathBuf::from)
        .into_iter()
        .chain(drop_ins(root, directories))
        .collect()
}

/// The drop-ins in these directories, in the order of their names. Of drop-ins with the same name, the first counts.
fn drop_ins(root: &Root<'_>, directories: impl IntoIterator<Item = String>) -> Vec<PathBuf> {
    let mut drop_ins: Vec<_> = directories
        .into_iter()
        .flat_map(|directory| root.files_in(Path::new(&directory), &["conf"]))
        .filter(|path| !is_hidden(path))
        .collect();
    drop_ins.sort_by_key(|path| path.file_name().map(ToOwned::to_owned));
    drop_ins.dedup_by(|later, first| later.file_name() == first.file_name());
    drop_ins
}

/// Whether systemd ignores a drop-in because of its name.
fn is_hidden(path: &Path) -> bool {
    path.file_name()
        .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// The files of a unit of this machine, as systemd reports them; `None` if no systemd answers.
fn reported_files(name: &str) -> Option<Vec<PathBuf>> {
    let [unit, drop_ins] = properties(name, ["FragmentPath", "DropInPaths"])?;
    Some(
        unit.split_whitespace()
            .chain(drop_ins.split_whitespace())
            .map(PathBuf::from)
            .collect(),
    )
}

/// The values of these properties of a unit of this machine; `None` if no systemd answers.
pub(super) fn properties<const N: usize>(unit: &str, names: [&str; N]) -> Option<[String; N]> {
    let asked = names.map(|name| format!("--property={name}"));
    let mut systemctl = Command::new("systemctl");
    systemctl.arg("show").args(asked).arg(unit);
    let output = within(SHOW_LIMIT, systemctl)
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut pairs = text.lines().filter_map(|line| line.split_once('='));
    let values = names.map(|name| pairs.clone().find(|(key, _)| *key == name));
    pairs.next()?;
    Some(values.map(|pair| pair.map_or_else(String::new, |(_, value)| value.to_owned())))
}

/// The section in which systemd reads the keys of a unit of this kind.
fn section(name: &str) -> &'static str {
    match name {
        MANAGER => "Manager",
        name if name.ends_with(".socket") => "Socket",
        _ => "Service",
    }
}

/// The words to which systemd expands a word: `$NAME` becomes the words of the variable, `${NAME}` its value.
fn expanded(word: &Word, variables: &[(String, Word)]) -> Vec<Word> {
    if let Some(name) = word.text.strip_prefix('$')
        && !name.starts_with(['{', '$'])
    {
        return match value_of(name, variables) {
            Some(value) => words(&value.text, &value.from),
            None => Vec::new(),
        };
    }
    let (mut text, mut rest) = (String::new(), word.text.as_str());
    while let Some((before, after)) = rest.split_once("${")
        && let Some((name, after)) = after.split_once('}')
    {
        text += before;
        text += value_of(name, variables).map_or("", |value| &value.text);
        rest = after;
    }
    text += rest;
    vec![Word::new(&text.replace("$$", "$"), &word.from)]
}

/// The value of a variable. If several variables have this name, the last one counts.
fn value_of<'a>(name: &str, variables: &'a [(String, Word)]) -> Option<&'a Word> {
    variables
        .iter()
        .rfind(|(variable, _)| variable == name)
        .map(|(_, value)| value)
}
