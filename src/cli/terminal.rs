//! The width that people have, and words made to fit it. What is piped stays as it is, a line for a thing.
//!
//! Names and messages of backends are among what is printed: only a [`Shown`] is, which has no control characters.

use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;
use textwrap::{Options, WordSplitter};

/// Of a terminal that does not say.
const USUAL: usize = 80;

/// Clears a terminal and begins at its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Text that a terminal shows and does not obey: without control characters but line ends, tabs and colours of ours.
#[derive(Default)]
pub(super) struct Shown(String);

impl From<&str> for Shown {
    /// Control characters become escapes that JSON and TOML have too.
    fn from(text: &str) -> Shown {
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\n' | '\t' => shown.push(character),
                // To a text in memory this never fails.
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
    /// A table whose cells were made [`plain`], and then had colours.
    pub(super) fn table(text: String) -> Shown {
        Shown(text)
    }

    /// Those that have any text, an empty line between two.
    pub(super) fn parts<const N: usize>(parts: [Shown; N]) -> Shown {
        let parts = parts.into_iter().map(|part| part.0);
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        Shown(parts.join("\n"))
    }

    /// The same, on a terminal in the place of what it shows.
    pub(super) fn alone(self) -> Shown {
        let clear = width().map_or("", |_| CLEAR);
        Shown(format!("{clear}{}", self.0))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// A text that is a part of a line: its line ends and tabs are spaces, other control characters are escapes.
pub(super) fn plain(text: &str) -> String {
    Shown::from(text.replace(char::is_whitespace, " ")).0
}

/// How many columns standard output has; none if it is no terminal.
pub(super) fn width() -> Option<usize> {
    width_of(&io::stdout())
}

fn width_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    if !stream.is_terminal() {
        return None;
    }
    let columns = tcgetwinsize(stream).map_or(0, |size| usize::from(size.ws_col));
    Some(if columns == 0 { USUAL } else { columns })
}

/// `text` in lines of whole words; a word that is wider has a line of its own.
pub(super) fn lines(text: &str, width: usize) -> Vec<String> {
    let lines = textwrap::wrap(text, options(width));
    lines.into_iter().map(String::from).collect()
}

/// For standard output: lines that are wider than the terminal go on further in.
pub(super) fn wrapped(text: &str) -> String {
    fitting(text, width())
}

/// As [`wrapped`], of one line without its end; what is below it is to be copied, and stays whole.
pub(super) fn wrapped_first(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, below)) => format!("{}{below}\n", wrapped_first(first)),
        None => wrapped(&format!("{text}\n")),
    }
}

/// Writes lines to standard error, in the same way.
pub(super) fn complain(text: &str) {
    let stderr = io::stderr();
    let text = Shown::from(fitting(text, width_of(&stderr)));
    // Nobody is left who could be told.
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
