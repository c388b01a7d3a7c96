//! The lines of the journal.

use serde::{Deserialize, Serialize};

use crate::actions::Actions;
use crate::changes::FileChange;

/// A line of the journal.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum JournalRecord {
    /// These temporary stages are made after this record, before the journal opens.
    Prepare(Vec<Stage>),
    /// These changes begin after this record.
    Begin(Generation),
    /// The action of this name begins, in the stage of this number.
    Act { stage: usize, step: String },
    /// A step has failed, so the last generation will be undone.
    Failed(ApplyFailure),
    /// All changes of the last generation are made.
    Complete,
    /// The undo of the last generation begins.
    Undo,
    /// The last generation is undone. These actions of the undo have failed.
    Undone { at: String, problems: Vec<String> },
}

/// The changes of one `apply`.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Generation {
    pub(crate) at: String,
    pub(crate) version: String,
    /// The number of the specification.
    pub(crate) number: u64,
    pub(crate) stages: Vec<Stage>,
    /// The stages whose actions have begun.
    #[serde(skip)]
    pub(super) begun: Vec<usize>,
}

/// Files that change together, and the actions that apply them.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stage {
    /// The files exist while the journal is open, and are removed once it is closed.
    pub(super) is_temporary: bool,
    pub(crate) changes: Vec<FileChange>,
    pub(crate) actions: Actions,
}

/// Why the changes of an `apply` are undone.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct ApplyFailure {
    pub(crate) at: String,
    pub(crate) step: String,
    pub(crate) why: String,
}

impl Generation {
    pub(super) fn temporary(&self) -> Vec<Stage> {
        self.stages
            .iter()
            .filter(|stage| stage.is_temporary)
            .cloned()
            .collect()
    }

    /// The changes of files, without temporary ones.
    pub(super) fn changes(&self) -> impl Iterator<Item = &FileChange> {
        self.stages
            .iter()
            .filter(|stage| !stage.is_temporary)
            .flat_map(|stage| &stage.changes)
    }

    pub(super) fn first_step(&self) -> String {
        self.stages
            .iter()
            .flat_map(|stage| &stage.changes)
            .next()
            .map_or_else(String::new, |it| it.step.clone())
    }
}
