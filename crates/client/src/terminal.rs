//! Prints output, and wraps it to the width of the terminal. Piped output is not wrapped: each fact is on one line.
//!
//! Output contains names and messages of backends, so commands print only a [`SafeText`], which has no control
//! characters.

use std::fmt::Write as _;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use criswitch_config::wording::counted;
use criswitch_cri::error_text::without_numbers;
use criswitch_platform::process::size_of;
use textwrap::core::display_width;
use textwrap::{Options, WordSplitter};

use crate::exit::Verdict;

/// The width of a terminal that reports no width.
const USUAL: usize = 80;

/// Clears the terminal and moves the cursor to its top.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// Text that cannot control a terminal or deceive its reader. Its only control characters are line ends, tabs and
/// criswitch's colours, and it has no invisible characters and none that change the direction of text.
#[derive(Default)]
pub struct SafeText(String);

impl From<&str> for SafeText {
    /// Replaces control characters and other unseen characters by escapes, in the syntax of JSON. Removes the numbers
    /// of the operating system's errors.
    fn from(text: &str) -> SafeText {
        let text = without_numbers(text);
        let mut shown = String::with_capacity(text.len());
        for character in text.chars() {
            match character {
                '\n' | '\t' => shown.push(character),
                // A write to a string never fails.
                unseen if is_unseen(unseen) => {
                    for unit in unseen.encode_utf16(&mut [0; 2]) {
                        write!(shown, "\\u{unit:04x}").ok();
                    }
                }
                other => shown.push(other),
            }
        }
        SafeText(shown)
    }
}

/// Whether a terminal shows the character as nothing, or changes the order or the lines of the characters around it:
/// control characters, controls of the direction of text, and characters without a width.
fn is_unseen(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

impl From<String> for SafeText {
    fn from(text: String) -> SafeText {
        text.as_str().into()
    }
}

impl SafeText {
    /// Makes a [`SafeText`] without escaping anything. Each part of `text` must be [`plain`], except criswitch's
    /// colours.
    pub fn table(text: String) -> SafeText {
        SafeText(text)
    }

    /// Joins the parts that are not empty, with an empty line between them.
    pub fn parts<const N: usize>(parts: [SafeText; N]) -> SafeText {
        SafeText(paragraphs(parts.map(|part| part.0)))
    }

    /// The text as the only content of the screen. On a terminal, `CLEAR` precedes the text, and the text is cut to the
    /// rows of the screen.
    pub fn alone(self) -> SafeText {
        let clear = if obeys_escapes() { CLEAR } else { "" };
        let text = match size_of(&io::stdout()) {
            Some((columns, rows)) if rows > 0 => cut(&self.0, usual(columns), rows),
            _ => self.0,
        };
        SafeText(format!("{clear}{text}"))
    }

    /// The bytes to write.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// Joins the non-empty texts with a blank line between them.
pub fn paragraphs(texts: impl IntoIterator<Item = String>) -> String {
    let mut texts = Vec::from_iter(texts);
    texts.retain(|text| !text.is_empty());
    texts.join("\n")
}

/// Makes a text fit into a line: spaces replace line ends and tabs, and escapes replace other control characters.
pub fn plain(text: &str) -> String {
    SafeText::from(text.replace(char::is_whitespace, " ")).0
}

/// Whether standard output is a terminal that obeys escape sequences, such as those of colours.
pub fn obeys_escapes() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|name| name != "dumb")
}

/// The first lines of the text, as many as fit on the screen above the row of the cursor. If lines are omitted, the
/// last line says how many.
fn cut(text: &str, columns: usize, rows: usize) -> String {
    let (mut shown, mut used, mut more) = (String::new(), 0, 0);
    for line in text.lines() {
        used += display_width(line).div_ceil(columns).max(1);
        if used + 2 <= rows {
            shown += line;
            shown += "\n";
        } else {
            more += 1;
        }
    }
    // The last row is for the cursor.
    if used < rows {
        return text.to_owned();
    }
    format!("{shown}... {}\n", counted(more, "more line"))
}

/// Joins `lines`, each with a line end. A line end within an item, such as the message of a backend, becomes a space.
pub fn text_of<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> String {
    lines
        .into_iter()
        .map(|line| plain(line.as_ref()) + "\n")
        .collect()
}

/// The width of standard output in columns; `None` if standard output is not a terminal.
pub fn width() -> Option<usize> {
    size_of(&io::stdout()).map(|(columns, _)| usual(columns))
}

fn usual(columns: usize) -> usize {
    if columns == 0 { USUAL } else { columns }
}

/// `text` in lines of whole words. A word wider than `width` gets its own line.
pub fn lines(text: &str, width: usize) -> Vec<String> {
    textwrap::wrap(text, options(width))
        .into_iter()
        .map(String::from)
        .collect()
}

/// Text for standard output: a line wider than the terminal continues on indented lines.
pub fn wrapped(text: &str) -> String {
    fitting(text, width())
}

/// Wraps the first line as [`wrapped`] does and adds a line end. Further lines stay whole, because users copy them.
pub fn wrapped_first(text: &str) -> String {
    match text.split_once('\n') {
        Some((first, below)) => format!("{}{below}\n", wrapped_first(first)),
        None => wrapped(&format!("{text}\n")),
    }
}

/// Writes lines to standard error, wrapped to the width of its terminal.
pub fn print_stderr(text: &str) {
    let stderr = io::stderr();
    let width = size_of(&stderr).map(|(columns, _)| usual(columns));
    let text = SafeText::from(fitting(text, width));
    // A failed write to standard error cannot be reported anywhere.
    stderr.lock().write_all(text.as_bytes()).ok();
}

/// Whether programs read standard output, so that progress goes to standard error.
static IS_FOR_PROGRAMS: AtomicBool = AtomicBool::new(false);

/// Keeps progress out of standard output from now on.
pub fn keep_output_for_programs() {
    IS_FOR_PROGRAMS.store(true, Ordering::Relaxed);
}

/// Shows progress on standard output, or on standard error if standard output is for programs. Ignores errors, so that
/// output to a full disk does not end the work.
pub fn progress(text: &str) {
    if IS_FOR_PROGRAMS.load(Ordering::Relaxed) {
        print_stderr(text);
    } else {
        print(text).ok();
    }
}

fn fitting(text: &str, width: Option<usize>) -> String {
    let Some(width) = width else {
        return text.to_owned();
    };
    text.lines()
        .map(|line| {
            let indent = " ".repeat(line.len() - line.trim_start().len() + 2);
            textwrap::fill(line, options(width).subsequent_indent(&indent)) + "\n"
        })
        .collect()
}

fn options<'a>(width: usize) -> Options<'a> {
    Options::new(width)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation)
}

/// Writes to standard output. A reader that closes the pipe early, such as `head`, is not a failure.
pub fn print(text: impl Into<SafeText>) -> anyhow::Result<Verdict> {
    is_read(&text.into()).map(|_| Verdict::Fine)
}

/// Writes to standard output. Returns false if the reader has closed the pipe.
pub fn is_read(text: &SafeText) -> anyhow::Result<bool> {
    let mut stdout = io::stdout().lock();
    // Flush, because a prompt does not end with a newline: the user must see the prompt before typing an answer.
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error).context("the output cannot be written"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_changes_lines_directions_or_letters_unseen() {
        let forged =
            "a\u{1b}[2K\u{7f}\u{202e}\u{2066}\u{200b}\u{feff}\u{e0041}\u{2028}\u{85}b\n\t\u{e9}";
        let shown = SafeText::from(forged).0;
        let expected =
            "a\\u001b[2K\\u007f\\u202e\\u2066\\u200b\\ufeff\\udb40\\udc41\\u2028\\u0085b\n\t\u{e9}";
        assert_eq!(shown, expected);
        let json = serde_json::json!(forged).to_string();
        let parsed: String = serde_json::from_str(&SafeText::from(json).0).unwrap();
        assert_eq!(parsed, forged, "JSON has the same text");
        assert_eq!(text_of(["a\nb\r\u{2028}", "c"]), "a b  \nc\n");
    }
}
