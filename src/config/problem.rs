//! What is wrong with a configuration, and where: every problem, never only the first.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Where something is written. Places order as the files are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    file: usize,
    path: Arc<Path>,
    line: usize,
    column: usize,
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

/// Every problem of a configuration, in the order of their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(Vec<Problem>);

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

    /// The place that follows `text`, where `text` begins a file of which `self` is the start.
    pub(super) fn after(&self, text: &str) -> Place {
        let line = text.rsplit('\n').next().unwrap_or_default();
        Place {
            line: 1 + text.matches('\n').count(),
            column: 1 + line.chars().count(),
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

    /// The file that it is in.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn same_line(&self, other: &Place) -> bool {
        (self.file, self.line) == (other.file, other.line)
    }
}

impl Problems {
    /// The one problem of a configuration at `main` that nobody could read to its end.
    pub fn of_reading(main: &Path, why: impl fmt::Display) -> Problems {
        let mut problems = Problems::default();
        let what = format_args!("reading the configuration broke off: {why}");
        problems.tell(
            &Place::start(0, main),
            what,
            "`criswitch check`, and tell criswitch's developers",
        );
        problems
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The problems, by place.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.0.iter()
    }

    pub(super) fn tell(&mut self, place: &Place, what: impl fmt::Display, hint: impl fmt::Display) {
        let problem = Problem {
            place: place.clone(),
            what: what.to_string(),
            hint: hint.to_string(),
        };
        let at = self.0.partition_point(|earlier| *earlier <= problem);
        self.0.insert(at, problem);
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place {
            path, line, column, ..
        } = self;
        write!(f, "{}:{line}:{column}", path.display())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.path.display(), self.line)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; try {}", self.place, self.what, self.hint)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "\n" };
            write!(f, "{separator}{problem}")?;
        }
        Ok(())
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
    let quoted: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
    quoted.join(", ")
}
