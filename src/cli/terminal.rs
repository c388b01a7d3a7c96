//! The width of the terminal, and text wrapped to fit it. Piped output is not wrapped: each fact stays on one line.
//!
//! Output contains names and messages of backends, so commands print only a [`Shown`], which has no control characters.

use std::fmt::Write as _;
use std::io::{self, Write};

use criswitch::platform::process::width_of;
use textwrap::{Options, WordSplitter};

/// The width of a terminal that reports no width.
const USUAL: usize = 80;

/// Clears the terminal and moves the cursor to its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Text that cannot control a terminal. Its only control characters are line ends, tabs and criswitch's colours.
#[derive(Default)]
pub(super) struct Shown(String);

impl From<&str> for Shown {
    /// Replaces control characters by escapes, in the syntax of JSON and TOML.
    fn from(text: &str) -> Shown {
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\n' | '\t' => shown.push(character),
                // A write to a string never fails.
                control if control.is_control() => {
                    write!(shown, "\\u{:04x}", u32::from(control)).ok();
                }
                other => shown.push(other),
            }
        }
        Shown(shown)
    }
}

impl From<String> for Shown {
    fn from(text: String) -> Shown {
        text.as_str().into()
    }
}

impl Shown {
    /// Makes a [`Shown`] without escaping anything. Each part of `text` must be [`plain`], except criswitch's colours.
    pub(super) fn table(text: String) -> Shown {
        Shown(text)
    }

    /// The parts that are not empty, with an empty line between two parts.
    pub(super) fn parts<const N: usize>(parts: [Shown; N]) -> Shown {
        let parts = parts.into_iter().map(|part| part.0);
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        Shown(parts.join("\n"))
    }

    /// The text for an empty screen: on a terminal, [`CLEAR`] precedes the text.
    pub(super) fn alone(self) -> Shown {
        let clear = width().map_or("", |_| CLEAR);
        Shown(format!("{clear}{}", self.0))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Makes a text fit into a line: spaces replace line ends and tabs, and escapes replace other control characters.
pub(super) fn plain(text: &str) -> String {
    Shown::from(text.replace(char::is_whitespace, " ")).0
}

/// The width of standard output in columns; `None` if standard output is not a terminal.
pub(super) fn width() -> Option<usize> {
    width_of(&io::stdout()).map(usual)
}

fn usual(columns: usize) -> usize {
    if columns == 0 { USUAL } else { columns }
}

/// `text` in lines of whole words. A word wider than `width` gets its own line.
pub(super) fn lines(text: &str, width: usize) -> Vec<String> {
    let lines = textwrap::wrap(text, options(width));
    lines.into_iter().map(String::from).collect()
}

/// Text for standard output: a line wider than the terminal continues on indented lines.
pub(super) fn wrapped(text: &str) -> String {
    fitting(text, width())
}

/// Wraps the first line as [`wrapped`] does and adds a line end. Further lines stay whole, because users copy them.
pub(super) fn wrapped_first(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, below)) => format!("{}{below}\n", wrapped_first(first)),
        None => wrapped(&format!("{text}\n")),
    }
}

/// Writes lines to standard error, wrapped to the width of its terminal.
pub(super) fn complain(text: &str) {
    let stderr = io::stderr();
    let text = Shown::from(fitting(text, width_of(&stderr).map(usual)));
    // A failed write to standard error cannot be reported anywhere.
    stderr.lock().write_all(text.as_bytes()).ok();
}

fn fitting(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    let fit = |line: &str| {
        let indent = line.len() - line.trim_start().len() + 2;
        let indent = " ".repeat(indent);
        textwrap::fill(line, options(width).subsequent_indent(&indent)) + "\n"
    };
    text.lines().map(fit).collect()
}

fn options<'a>(width: usize) -> Options<'a> {
    Options::new(width)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
}
