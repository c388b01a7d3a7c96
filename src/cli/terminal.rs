//! The width that people have, and words made to fit it. What is piped stays as it is, a line for a thing.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;
use textwrap::{Options, WordSplitter};

/// Of a terminal that does not say.
const USUAL: usize = 80;

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
    let text = fitting(text, width_of(&stderr));
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
