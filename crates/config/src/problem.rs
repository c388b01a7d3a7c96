//! The problems of a configuration, each with its file, line and column. All problems are reported, not only the first.

use std::fmt::{self, Display};
use std::path::Path;
use std::sync::Arc;

use criswitch_cri::codec::admin;

use crate::wording::counted;

/// The limit on reported problems. Each reported problem uses memory and a log line, and people fix only a few problems
/// at a time.
const MOST: usize = 100;
/// The limit on each text of a problem, in bytes. A name in the text can be as long as its file.
const LONGEST: usize = 1000;
/// The limit on the names in a hint.
const MOST_NAMES: usize = 20;

/// A position in a file. Places sort in the order in which the files are read.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    file: usize,
    /// The file.
    pub path: Arc<Path>,
    /// The line, counted from one.
    pub line: usize,
    /// The column in characters, counted from one.
    pub column: usize,
    /// Whether the place is the whole file: it is shown as the start of the file.
    pub is_file: bool,
}

/// The file and line of a row, shown as `path:line`. It has no column, because it may be shown long after the file was
/// read.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The file.
    pub path: Arc<Path>,
    /// The line, counted from one.
    pub line: usize,
}

/// One problem, shown as one line: `path:line:column: what; try ...`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// The position of the problem.
    pub place: Place,
    /// The description of the problem.
    pub what: String,
    /// A suggestion that follows the word "try".
    pub hint: String,
}

/// The problems of a configuration, sorted by place. At most `MOST` problems are stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    kept: Vec<Problem>,
    /// The number of further problems, which are counted but not stored.
    more: usize,
}

impl Place {
    /// The start of a file. `file` is the file's index in the order in which the files are read.
    pub(super) fn start(file: usize, path: &Path) -> Place {
        Place {
            file,
            path: path.into(),
            line: 1,
            column: 1,
            is_file: true,
        }
    }

    pub(super) fn at(&self, (line, column): (usize, usize)) -> Place {
        Place {
            line,
            column,
            is_file: false,
            ..self.clone()
        }
    }

    /// The file and line of this place, without the column.
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
    /// One problem at the start of `main`: reading the configuration ended unexpectedly, with the cause `why`.
    pub fn of_reading(main: &Path, why: impl Display) -> Problems {
        let mut problems = Problems::default();
        let what = format_args!("cannot read the whole configuration: {why}");
        problems.report(
            &Place::start(0, main),
            what,
            "`criswitch check`, and report this to the developers of criswitch",
        );
        problems
    }

    /// Whether there are no problems.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The number of problems, including those that are only counted.
    pub fn len(&self) -> usize {
        self.kept.len() + self.more
    }

    /// The reported problems, sorted by place.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.kept.iter()
    }

    /// Adds a problem. Formats its text only if the problem is among the first `MOST`.
    pub(super) fn report(&mut self, place: &Place, what: impl Display, hint: impl Display) {
        if self.kept.len() == MOST {
            self.more += 1;
            if self.kept.last().is_some_and(|last| last.place <= *place) {
                return;
            }
            self.kept.pop();
        }
        let problem = Problem {
            place: place.clone(),
            what: shortened(what.to_string()),
            hint: shortened(hint.to_string()),
        };
        let at = self.kept.partition_point(|earlier| *earlier <= problem);
        self.kept.insert(at, problem);
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
        for (index, problem) in self.kept.iter().enumerate() {
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

impl Problem {
    /// The problem as a message of the admin service.
    pub fn message(&self) -> admin::Problem {
        admin::Problem {
            path: Some(self.place.path.display().to_string()),
            line: Some(self.place.line as u64),
            column: Some(self.place.column as u64),
            what: self.what.clone(),
            r#try: Some(self.hint.clone()),
        }
    }
}

impl Problems {
    /// The problems as messages of the admin service. The last one counts those that are not stored.
    pub fn messages(&self) -> Vec<admin::Problem> {
        let more = (self.more > 0).then(|| admin::Problem {
            what: format!("and {}", counted(self.more, "more problem")),
            ..admin::Problem::default()
        });
        self.kept.iter().map(Problem::message).chain(more).collect()
    }
}

/// The problems as text, one on each line.
pub fn lines(problems: &[admin::Problem]) -> String {
    problems
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The hint for a misspelt name: the nearest known name, else all known names.
pub(super) fn nearest<'k>(
    written: &str,
    known: impl IntoIterator<Item = &'k str>,
) -> Option<String> {
    let known: Vec<&str> = known.into_iter().collect();
    match (near(written, &known), known.as_slice()) {
        (Some(name), _) => Some(format!("{name:?}")),
        // A very different name is not a hint, even if it is the only known name: the written name may belong to a
        // different runtime.
        (None, [] | [_]) => None,
        (None, all) => Some(format!("one of {}", quoted(all))),
    }
}

/// The known name nearest to a misspelt name, if at most a third of the letters (rounded up) differ.
pub fn near<'k>(written: &str, known: &[&'k str]) -> Option<&'k str> {
    let folded = written.to_lowercase();
    let slips = folded.chars().count().div_ceil(3);
    known
        .iter()
        .map(|name| (strsim::damerau_levenshtein(&folded, name), *name))
        .filter(|(distance, _)| *distance <= slips)
        .min()
        .map(|(_, name)| name)
}

/// Whether a name is a known name with one slip: a wrong, missing or additional letter, two swapped letters, or wrong
/// capitals.
pub fn is_slip(written: &str, known: &str) -> bool {
    let [folded, of] = [written, known].map(str::to_lowercase);
    written != known && strsim::damerau_levenshtein(&folded, &of) <= 1
}

fn quoted(names: &[&str]) -> String {
    let mut quoted: Vec<String> = names
        .iter()
        .take(MOST_NAMES)
        .map(|name| format!("{name:?}"))
        .collect();
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
