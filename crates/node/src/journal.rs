//! The journal of a machine's changes: the files to change, their previous and their new content, the actions, and
//! whether all changes are made.
//!
//! A record is one line of JSON. It is on the disk before the changes that it announces, so that changes that end at
//! any moment can be undone by a later process, without a network.

mod records;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, bail, ensure};
use criswitch_client::output::name_lines;
use criswitch_platform::{create_new, files, remove};

use super::actions::{Action, Actions, Runner, Work};
use super::changes::{FileChange, Files, PRIVATE, make_directories, missing, sync_directory};
use super::faults::{boundary, moment};
use super::root::{PlannedTexts, Root};
use super::steps::Content;
use records::JournalRecord;
pub(super) use records::{ApplyFailure, Generation, Stage};

/// The directory of the journal and of the saved contents.
pub(super) const DIRECTORY: &str = "/var/lib/criswitch/node";
const JOURNAL: &str = "journal";
/// The bytes that an undo needs beside the previous contents: its records, and the directories of files.
const UNDO_BYTES: u64 = 256 << 10;
pub(super) const FILE: &str = "/var/lib/criswitch/node/journal";

/// A stage that is not in the journal yet.
#[derive(Default)]
pub(super) struct NewStage<'a> {
    pub(super) is_temporary: bool,
    /// The paths, each with its step.
    pub(super) files: Vec<(&'a str, PathBuf, &'a Content)>,
    /// The texts of files from which their new contents were made. The files must not have changed since.
    pub(super) read: Option<&'a PlannedTexts>,
    pub(super) actions: Actions,
}

/// The journal of a machine.
pub(super) struct Journal<'a> {
    files: Files<'a>,
    /// Locked, so that no other process changes the machine. `None` if the journal is only read.
    file: Option<File>,
    /// The generations that are not undone.
    pub(super) generations: Vec<Generation>,
    /// The temporary stages that were made last.
    temporary: Vec<Stage>,
    /// The step that the last generation began most recently.
    step: String,
    /// Whether the changes of the last generation may be incomplete.
    pub(super) is_open: bool,
    /// Why the last `apply` was undone, if it has failed.
    pub(super) failure: Option<ApplyFailure>,
    /// The time at which the last generation was undone, and the actions of that undo that failed.
    pub(super) undone: Option<(String, Vec<String>)>,
}

/// The files and actions that an undo could not undo.
#[derive(Default)]
pub(super) struct Left {
    /// Files that cannot be restored, because another program has changed them. If there are any, the generation is not
    /// undone.
    pub(super) files: Vec<PathBuf>,
    /// Whether a kubelet may still use criswitch, so that criswitch must stay. If so, the generation is not undone.
    is_needed: bool,
    pub(super) problems: Vec<String>,
}

impl Left {
    /// Whether the generation is not undone.
    fn ends_undo(&self) -> bool {
        self.is_needed || !self.files.is_empty()
    }

    /// A line for each file and each problem.
    pub(super) fn lines(&self) -> String {
        let files = self.files.iter().map(|path| {
            format!(
                "{}: somebody else has changed the file; change it back or remove it, then undo again",
                path.display()
            )
        });
        name_lines(files.chain(self.problems.iter().cloned()))
    }
}

impl<'a> Journal<'a> {
    /// Reads the journal, and changes nothing.
    pub(super) fn read(root: &'a Root<'a>) -> anyhow::Result<Journal<'a>> {
        let directory = root.real(Path::new(DIRECTORY));
        let text = match fs::read(directory.join(JOURNAL)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            text => text.with_context(|| format!("cannot read {FILE}"))?,
        };
        let text = String::from_utf8_lossy(&text);
        let mut journal = Journal {
            files: Files {
                root,
                directory,
                room: None,
            },
            file: None,
            generations: Vec::new(),
            temporary: Vec::new(),
            step: String::new(),
            is_open: false,
            failure: None,
            undone: None,
        };
        // A line without a line break is incomplete. The changes that it announces have not begun.
        for line in text.split_inclusive('\n').filter(|it| it.ends_with('\n')) {
            journal.add(serde_json::from_str(line).with_context(|| format!("cannot read {FILE}"))?);
        }
        Ok(journal)
    }

    /// Creates the journal if it is missing, and locks it.
    pub(super) fn open(root: &'a Root<'a>) -> anyhow::Result<Journal<'a>> {
        let directory = root.real(Path::new(DIRECTORY));
        let mut options = File::options();
        options.read(true).append(true).create(true);
        let path = directory.join(JOURNAL);
        let mut file = make_directories(&missing(&directory))
            .and_then(|()| files::with_mode(&mut options, PRIVATE).open(&path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        if file.try_lock().is_err() {
            bail!("another criswitch changes this machine now; try again when it has ended");
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        file.seek(SeekFrom::End(0))?;
        sync_directory(&path)?;
        Ok(Journal {
            file: Some(file),
            ..Journal::read(root)?
        })
    }

    fn add(&mut self, record: JournalRecord) {
        match record {
            JournalRecord::Prepare(stages) => self.temporary = stages,
            JournalRecord::Begin(generation) => {
                self.step = generation.first_step();
                self.generations.push(generation);
                self.is_open = true;
                (self.failure, self.undone) = (None, None);
            }
            JournalRecord::Act { stage, step } => {
                if let Some(last) = self.generations.last_mut() {
                    last.begun.push(stage);
                }
                self.step = step;
            }
            JournalRecord::Failed(failure) => self.failure = Some(failure),
            JournalRecord::Complete => self.is_open = false,
            JournalRecord::Undo => self.is_open = true,
            JournalRecord::Undone { at, problems } => {
                self.generations.pop();
                self.is_open = false;
                self.undone = Some((at, problems));
            }
        }
    }

    fn write(&mut self, record: JournalRecord) -> anyhow::Result<()> {
        let line = serde_json::to_string(&record)? + "\n";
        moment();
        let file = self.file.as_ref().context("the journal is only read")?;
        let length = file.metadata()?.len();
        self.files
            .with_reserved_space(line.len(), || {
                (&mut &*file)
                    .write_all(line.as_bytes())
                    .and_then(|()| file.sync_all())
                    // A partial line is removed, because the next line would be appended to it.
                    .or_else(|error| file.set_len(length).and(Err(error)))
            })
            .context("cannot write the journal")?;
        moment();
        self.add(record);
        Ok(())
    }

    /// Makes these changes. If the process ends before all changes are made, the journal stays open.
    pub(super) fn apply(
        &mut self,
        version: &str,
        number: u64,
        new: &[NewStage<'_>],
        runner: &mut Runner<'_>,
    ) -> anyhow::Result<()> {
        boundary("the journal");
        self.remove_temporary(runner)?;
        let begun = self.begin(version, number, new, runner);
        if begun.is_err() && !self.is_open && !self.has_temporary() {
            self.remove_contents();
        }
        for (number, stage) in begun?.iter().enumerate() {
            if !stage.is_temporary {
                self.make(number, stage, runner)?;
            }
        }
        boundary("the end");
        self.write(JournalRecord::Complete)?;
        boundary("the recover unit");
        self.remove_temporary(runner)
    }

    /// Saves the contents of all files, and opens the journal. Returns the stages.
    fn begin(
        &mut self,
        version: &str,
        number: u64,
        new: &[NewStage<'_>],
        runner: &mut Runner<'_>,
    ) -> anyhow::Result<Vec<Stage>> {
        let stages = self.save(new)?;
        self.reserve(&stages)?;
        sync_directory(&self.files.directory.join(JOURNAL))?;
        let generation = Generation {
            at: now(),
            version: version.to_owned(),
            number,
            stages: stages.clone(),
            begun: Vec::new(),
        };
        self.prepare(&generation, runner)?;
        boundary("the changes");
        self.write(JournalRecord::Begin(generation))?;
        Ok(stages)
    }

    /// Saves the contents of all files of the next generation. Returns its stages.
    fn save(&self, new: &[NewStage<'_>]) -> anyhow::Result<Vec<Stage>> {
        let generation = self.generations.len();
        let mut names = (0..).map(|index| format!("{generation}-{index}"));
        let mut stages = Vec::new();
        for stage in new {
            let mut changes = Vec::new();
            for (step, path, new) in &stage.files {
                let change = self
                    .files
                    .planned(step, path, new, &names.next().unwrap_or_default())
                    .with_context(|| format!("cannot save {}", path.display()))?;
                if let Some(read) = stage.read.and_then(|read| read.get(path))
                    && let Some(before) = self.files.text(&change.before)
                {
                    ensure!(before == *read, changed_meanwhile(&change));
                }
                changes.push(change);
            }
            stages.push(Stage {
                is_temporary: stage.is_temporary,
                changes,
                actions: stage.actions.clone(),
            });
        }
        Ok(stages)
    }

    /// Makes the temporary stages of a generation. If that fails while the journal is closed, removes them again. While
    /// the journal is open they stay, because an undo after a power cut needs them.
    fn prepare(&mut self, generation: &Generation, runner: &mut Runner<'_>) -> anyhow::Result<()> {
        self.write(JournalRecord::Prepare(generation.temporary()))?;
        let made = self
            .temporary
            .iter()
            .try_for_each(|stage| self.make_again(stage));
        if made.is_err() && !self.is_open {
            self.remove_temporary(runner)?;
        }
        made
    }

    /// Whether a file of the temporary stages is left, or an empty directory of such a file.
    pub(super) fn has_temporary(&self) -> bool {
        self.temporary
            .iter()
            .flat_map(|stage| &stage.changes)
            .any(|change| self.files.is_left(change))
    }

    /// Removes the remaining files of the temporary stages. The journal must be closed first, because these files undo
    /// the changes of an open journal at the next boot.
    pub(super) fn remove_temporary(&self, runner: &mut Runner<'_>) -> anyhow::Result<()> {
        if !self.has_temporary() {
            return Ok(());
        }
        for stage in self.temporary.iter().rev() {
            if let [first, ..] = &*self.undo_files(stage)? {
                bail!(
                    "{}: somebody else has changed the file; remove it, then try again",
                    first.display()
                );
            }
            for action in &stage.actions.after_undo {
                moment();
                runner.run(action)?;
            }
        }
        Ok(())
    }

    /// The path of the file that reserves disk space for the undo of a generation.
    fn room(&self, generation: usize) -> PathBuf {
        self.files.directory.join(format!("{generation}-room"))
    }

    /// Removes the saved contents and the reserved disk space of the next generation, which has not begun or is undone.
    fn remove_contents(&self) {
        let start = format!("{}-", self.generations.len());
        fs::read_dir(&self.files.directory)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&start))
            // Errors are ignored, because the next generation replaces files that are left.
            .for_each(|entry| _ = remove(&entry.path()).ok());
    }

    /// Reserves disk space for the undo of the next generation, so that a full disk cannot prevent the undo. The undo
    /// writes the previous contents, and the files of the temporary stages.
    fn reserve(&self, stages: &[Stage]) -> anyhow::Result<()> {
        let mut bytes = UNDO_BYTES;
        for stage in stages {
            for change in &stage.changes {
                bytes += self.files.size(if stage.is_temporary {
                    &change.after
                } else {
                    &change.before
                })?;
            }
        }
        let path = self.room(self.generations.len());
        remove(&path)
            .and_then(|()| {
                let mut file = create_new(&path, PRIVATE)?;
                io::copy(&mut io::repeat(0).take(bytes), &mut file)?;
                file.sync_all()
            })
            .context("cannot keep room for an undo")
    }

    /// Lets writes use the disk space that is reserved for the undo of the last generation, because this undo begins
    /// now.
    fn use_reserved_space(&mut self) {
        self.files.room = Some(self.room(self.generations.len().saturating_sub(1)));
    }

    fn make(
        &mut self,
        number: usize,
        stage: &Stage,
        runner: &mut Runner<'_>,
    ) -> anyhow::Result<()> {
        for change in &stage.changes {
            if self.step != change.step {
                boundary(&change.step);
            }
            self.step.clone_from(&change.step);
            ensure!(
                self.files.is_at(&change.before, &change.path)?,
                changed_meanwhile(change)
            );
            self.make_change(change)?;
        }
        for action in &stage.actions.forward {
            boundary(&action.work.words());
            self.write(JournalRecord::Act {
                stage: number,
                step: action.step.clone(),
            })?;
            runner.run(action)?;
        }
        Ok(())
    }

    /// Records why the last generation will be undone.
    pub(super) fn fail(&mut self, why: &str) -> anyhow::Result<ApplyFailure> {
        let failure = ApplyFailure {
            at: now(),
            step: self.step.clone(),
            why: why.to_owned(),
        };
        self.use_reserved_space();
        self.write(JournalRecord::Failed(failure.clone()))?;
        Ok(failure)
    }

    /// Undoes the last generation. Undoes nothing if one of its files cannot be restored, because another program has
    /// changed it.
    pub(super) fn undo(&mut self, runner: &mut Runner<'_>) -> anyhow::Result<Left> {
        runner.is_undo = true;
        let mut left = Left::default();
        let Some(generation) = self.generations.last().cloned() else {
            return Ok(left);
        };
        boundary("the undo");
        for change in generation.changes() {
            if self.files.undo_method(change)?.is_none() {
                left.files.push(change.path.clone());
            }
        }
        if !left.files.is_empty() {
            return Ok(left);
        }
        self.use_reserved_space();
        let prepared = self.prepare(&generation, runner);
        // With an open journal, the undo begins even if its temporary stages could not be made. An undo that a power
        // cut may interrupt is better than no undo.
        if !self.is_open {
            prepared?;
        }
        self.write(JournalRecord::Undo)?;
        self.undo_stages(&generation, runner, &mut left)?;
        if left.ends_undo() {
            return Ok(left);
        }
        boundary("the end of the undo");
        self.write(JournalRecord::Undone {
            at: now(),
            problems: left.problems.clone(),
        })?;
        boundary("the recover unit");
        match self.remove_temporary(runner) {
            Ok(()) => self.remove_contents(),
            Err(error) => left.problems.push(format!("recover: {error:#}")),
        }
        Ok(left)
    }

    /// Undoes the stages of a generation, the last stage first. Stops at a file that another program has changed, or if
    /// the kubelet may still use criswitch.
    fn undo_stages(
        &self,
        generation: &Generation,
        runner: &mut Runner<'_>,
        left: &mut Left,
    ) -> anyhow::Result<()> {
        let stages = generation.stages.iter().enumerate().rev();
        for (number, stage) in stages.filter(|(_, stage)| !stage.is_temporary) {
            // A boot starts all units whose files exist, so the actions of each stage may have begun.
            let has_begun = runner.is_boot || generation.begun.contains(&number);
            if has_begun {
                undo_actions(&stage.actions.before_undo, runner, left);
            }
            if left.is_needed {
                return Ok(());
            }
            boundary("the files of a stage");
            left.files = self.undo_files(stage)?;
            if !left.files.is_empty() {
                // The earlier stages are not undone, because the kubelet may still use criswitch.
                return Ok(());
            }
            if has_begun {
                undo_actions(&stage.actions.after_undo, runner, left);
            }
        }
        Ok(())
    }

    /// Removes the journal, the saved contents, and all other files in their directory. Called after everything is
    /// undone.
    pub(super) fn remove(self, runner: &mut Runner<'_>) -> anyhow::Result<()> {
        self.remove_temporary(runner)?;
        let directory = &self.files.directory;
        fs::remove_dir_all(directory)
            .with_context(|| format!("cannot remove {}", directory.display()))?;
        // The directory of criswitch's state is empty, unless an undo has failed.
        fs::remove_dir(directory.parent().unwrap_or(directory)).ok();
        Ok(())
    }

    /// Makes the missing changes of a stage.
    fn make_again(&self, stage: &Stage) -> anyhow::Result<()> {
        for change in &stage.changes {
            if !self.files.is_at(&change.after, &change.path)? {
                self.make_change(change)?;
            }
        }
        Ok(())
    }

    /// Undoes the files of a stage. Returns the files that cannot be undone, because another program has changed them.
    fn undo_files(&self, stage: &Stage) -> anyhow::Result<Vec<PathBuf>> {
        let mut left = Vec::new();
        for change in stage.changes.iter().rev() {
            if !self
                .files
                .undo_one(change)
                .with_context(|| format!("cannot undo {}", change.path.display()))?
            {
                left.push(change.path.clone());
            }
        }
        Ok(left)
    }

    fn make_change(&self, change: &FileChange) -> anyhow::Result<()> {
        self.files
            .make(change)
            .with_context(|| format!("cannot change {}", change.path.display()))
    }

    /// The number of the last specification; zero without one.
    pub(super) fn number(&self) -> u64 {
        self.generations.last().map_or(0, |last| last.number)
    }

    /// The works of all generations, the last generation first.
    pub(super) fn works(&self) -> impl Iterator<Item = &Work> {
        self.generations
            .iter()
            .rev()
            .flat_map(|generation| &generation.stages)
            .flat_map(|stage| &stage.actions.forward)
            .map(|action| &action.work)
    }

    /// The changes of files by all generations that are not undone, the last generation first; without changes of
    /// temporary stages.
    pub(super) fn changes(&self) -> impl Iterator<Item = &FileChange> {
        self.generations.iter().rev().flat_map(Generation::changes)
    }

    /// The files of all generations that differ from the journal.
    pub(super) fn drifted(&self) -> io::Result<Vec<PathBuf>> {
        let (mut seen, mut drifted) = (BTreeSet::new(), Vec::new());
        for FileChange { path, after, .. } in self.changes() {
            // For each file, only its last change counts.
            if seen.insert(path) && !self.files.is_at(after, path)? {
                drifted.push(path.clone());
            }
        }
        Ok(drifted)
    }
}

/// Runs actions of an undo. Continues after an action that fails, unless the kubelet may still use criswitch.
fn undo_actions(actions: &[Action], runner: &mut Runner<'_>, left: &mut Left) {
    for action in actions {
        moment();
        boundary(&action.work.words());
        if let Err(error) = runner.run(action) {
            left.problems.push(format!("{}: {error:#}", action.step));
            left.is_needed = matches!(action.work, Work::Release { .. });
        }
        if left.is_needed {
            return;
        }
    }
}

/// The error for a file that has changed since it was read.
fn changed_meanwhile(change: &FileChange) -> String {
    let path = change.path.display();
    format!("{path}: somebody else has changed the file meanwhile; try again")
}

fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
