//! What is wrong with a configuration, and where: every problem, never only the first.

use std::fmt::{self, Display};
use std::path::Path;
use std::sync::Arc;

use crate::config::wording::counted;

/// The most problems that are told: who has mended so many looks again, and what is told is kept, shown and logged.
const MOST: usize = 100;
/// The longest part of a problem, in bytes: a name may be as long as its file.
const LONGEST: usize = 1000;
/// The most names that a hint has.
const MOST_NAMES: usize = 20;

/// Where something is written. Places order as the files are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    file: usize,
    /// The file.
    pub path: Arc<Path>,
    /// Counted from one.
    pub line: usize,
    /// In characters, counted from one.
    pub column: usize,
}

/// The line that something is written on, shown as `path:line` to who looks for it later.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The file.
    pub path: Arc<Path>,
    /// Counted from one.
    pub line: usize,
}

/// One problem, as one line: `path:line:column: what; try ...`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Where it is.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// What to write instead, in words that follow "try".
    pub hint: String,
}

/// The problems of a configuration, in the order of their places: every one, or the first of very many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    told: Vec<Problem>,
    /// How many more there are.
    more: usize,
}

impl Place {
    /// The start of the `file`th file that is read.
    pub(super) fn start(file: usize, path: &Path) -> Place {
        Place {
            file,
            path: path.into(),
            line: 1,
            column: 1,
        }
    }

    /// Another place in the same file.
    pub(super) fn at(&self, (line, column): (usize, usize)) -> Place {
        Place {
            line,
            column,
            ..self.clone()
        }
    }

    /// The line of it.
    pub fn origin(&self) -> Origin {
        Origin {
            path: Arc::clone(&self.path),
            line: self.line,
        }
    }

    pub(super) fn same_line(&self, other: &Place) -> bool {
        (self.file, self.line) == (other.file, other.line)
    }
}

impl Problems {
    /// The one problem of a configuration at `main` that nobody could read to its end.
    pub fn of_reading(main: &Path, why: impl Display) -> Problems {
        let mut problems = Problems::default();
        let what = format_args!("reading the configuration broke off: {why}");
        problems.tell(
            &Place::start(0, main),
            what,
            "`criswitch check`, and report this to the developers of criswitch",
        );
        problems
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.told.is_empty()
    }

    /// How many there are, told or not.
    pub fn len(&self) -> usize {
        self.told.len() + self.more
    }

    /// Those that are told, by place.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.told.iter()
    }

    /// Adds one; its words are made only if it is among the first.
    pub(super) fn tell(&mut self, place: &Place, what: impl Display, hint: impl Display) {
        if self.told.len() == MOST {
            self.more += 1;
            if self.told.last().is_some_and(|last| last.place <= *place) {
                return;
            }
            self.told.pop();
        }
        let problem = Problem {
            place: place.clone(),
            what: shortened(what.to_string()),
            hint: shortened(hint.to_string()),
        };
        let at = self.told.partition_point(|earlier| *earlier <= problem);
        self.told.insert(at, problem);
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            path, line, column, ..
        } = self;
        write!(f, "{}:{line}:{column}", path.display())
    }
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; try {}", self.place, self.what, self.hint)
    }
}

impl Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.told.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        match self.more {
            0 => Ok(()),
            more => write!(f, "\nand {}", counted(more, "more problem")),
        }
    }
}

impl std::error::Error for Problems {}

/// The hint at a misspelt name: the nearest known one, else all of them.
pub(super) fn nearest<'k>(
    written: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<String> {
    let known: Vec<&str> = known.into_iter().collect();
    match (near(written, &known), known.as_slice()) {
        (Some(name), _) => Some(format!("{name:?}")),
        (None, []) => None,
        (None, [only]) => Some(format!("{only:?}")),
        (None, all) => Some(format!("one of {}", quoted(all))),
    }
}

/// The known name that a misspelt one is nearest to, if a third of the letters or less is wrong.
pub(super) fn near<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let folded = written.to_lowercase();
    let slips = folded.chars().count().div_ceil(3);
    let distances = known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&folded, name), *name));
    let near = distances.filter(|(distance, _)| *distance <= slips).min();
    near.map(|(_, name)| name)
}

fn quoted(names: &[&str]) -> String {
    let shown = names.iter().take(MOST_NAMES);
    let mut quoted: Vec<String> = shown.map(|name| format!("{name:?}")).collect();
    if names.len() > MOST_NAMES {
        quoted.push("...".to_owned());
    }
    quoted.join(", ")
}

fn shortened(mut text: String) -> String {
    if text.len() > LONGEST {
        text.truncate(text.floor_char_boundary(LONGEST));
        text.push_str("...");
    }
    text
}
