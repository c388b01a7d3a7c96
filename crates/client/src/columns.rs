//! Tables with plain columns, which `grep` and `awk` can read. Only a terminal gets colours.

use std::io::Write;

use anstyle::{AnsiColor, Style};
use tabwriter::TabWriter;
use textwrap::core::display_width;

use criswitch_cri::error_text::cut;

use crate::terminal::{self, SafeText};

/// The spaces between two columns.
const GAP: usize = 2;
/// The smallest width of the last column. If the terminal has less room, the last cell is printed below its row.
const LEAST_ROOM: usize = 20;
/// The indentation of a last cell that is printed below its row.
const INDENT: usize = 4;

/// The colour of a cell.
#[derive(Clone, Copy)]
pub enum Paint {
    /// As it should be: green.
    Good,
    /// Worth a look: yellow.
    Odd,
    /// Wrong: red.
    Bad,
}

impl Paint {
    fn style(self) -> Style {
        let color = match self {
            Paint::Good => AnsiColor::Green,
            Paint::Odd => AnsiColor::Yellow,
            Paint::Bad => AnsiColor::Red,
        };
        color.on_default()
    }
}

/// Formats a table. Each column is as wide as its widest cell, and an empty cell is shown as a dash.
///
/// A row has at least as many cells as the header; further cells are not shown. On a terminal the last column wraps
/// between words. A last cell with a word wider than the column is printed below its row.
pub fn columns<R: Into<Vec<String>>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> anyhow::Result<String> {
    aligned(header, rows, |_, _| None)
}

/// Like [`columns`], but returns an empty text if there are no rows.
pub fn columns_if_any<R: Into<Vec<String>>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
) -> anyhow::Result<String> {
    let mut rows = rows.into_iter().peekable();
    if rows.peek().is_none() {
        return Ok(String::new());
    }
    columns(header, rows)
}

/// Like [`columns`], with colours on a terminal. `paint` gets the index of a column and the text of a cell, and returns
/// the colour of the cell.
pub fn painted<R: Into<Vec<String>>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
    paint: impl Fn(usize, &str) -> Option<Paint>,
) -> anyhow::Result<SafeText> {
    aligned(header, rows, paint).map(SafeText::table)
}

/// `text`, in this colour if standard output is a terminal with colours and `NO_COLOR` is not set.
pub fn coloured(paint: Paint, text: &str) -> String {
    if !has_colours() {
        return text.to_owned();
    }
    let style = paint.style();
    format!("{style}{text}{style:#}")
}

fn has_colours() -> bool {
    terminal::obeys_escapes() && std::env::var_os("NO_COLOR").is_none()
}

fn aligned<R: Into<Vec<String>>>(
    header: &[&str],
    rows: impl IntoIterator<Item = R>,
    paint: impl Fn(usize, &str) -> Option<Paint>,
) -> anyhow::Result<String> {
    let rows: Vec<Vec<String>> = rows
        .into_iter()
        .map(|row| row.into().into_iter().take(header.len()).map(shown))
        .map(Iterator::collect)
        .collect();
    let room = ColumnRoom::of(header, &rows);
    let mut text = Vec::new();
    let mut out = TabWriter::new(&mut text);
    writeln!(out, "{}", header.join("\t"))?;
    let mut below = Vec::new();
    for mut row in rows {
        let rest = room
            .as_ref()
            .map(|room| room.cut(&mut row))
            .unwrap_or_default();
        let cells: Vec<_> = row
            .into_iter()
            .enumerate()
            .map(|(column, cell)| match paint(column, &cell) {
                Some(paint) => coloured(paint, &cell),
                None => cell,
            })
            .collect();
        writeln!(out, "{}", cells.join("\t"))?;
        below.push(rest.below);
        for line in rest.beside {
            writeln!(out, "{}{line}", "\t".repeat(header.len().saturating_sub(1)))?;
            below.push(Vec::new());
        }
    }
    out.flush()?;
    drop(out);
    Ok(with_below(&String::from_utf8(text)?, below))
}

/// Inserts the lines that belong below each row. This happens after the alignment, because a line without tabs would
/// end the aligned columns.
fn with_below(aligned: &str, below: Vec<Vec<String>>) -> String {
    let mut shown = String::new();
    for (line, below) in aligned.lines().zip([Vec::new()].into_iter().chain(below)) {
        shown += if below.is_empty() {
            line
        } else {
            line.trim_end()
        };
        shown += "\n";
        for line in below {
            shown += &format!("{:INDENT$}{line}\n", "");
        }
    }
    shown
}

/// The width of the terminal, and the width that is left for the last column.
struct ColumnRoom {
    width: usize,
    last: usize,
}

/// The words of a last cell that do not fit into its row: further lines of the column, or lines below the row.
#[derive(Default)]
struct Rest {
    beside: Vec<String>,
    below: Vec<String>,
}

impl ColumnRoom {
    /// Measures the columns before the last one; `None` if standard output is not a terminal.
    fn of(header: &[&str], rows: &[Vec<String>]) -> Option<ColumnRoom> {
        let width = terminal::width()?;
        let (_, before) = header.split_last()?;
        let last = before
            .iter()
            .enumerate()
            .fold(width, |room, (column, title)| {
                let widest = rows
                    .iter()
                    .filter_map(|row| row.get(column))
                    .map(|cell| display_width(cell))
                    .fold(display_width(title), usize::max);
                room.saturating_sub(widest + GAP)
            });
        Some(ColumnRoom { width, last })
    }

    /// Shortens the last cell of a row to the words that fit, and returns the rest.
    fn cut(&self, row: &mut [String]) -> Rest {
        let mut rest = Rest::default();
        let Some(last) = row
            .last_mut()
            .filter(|last| display_width(last) > self.last)
        else {
            return rest;
        };
        let mut lines = terminal::lines(last, self.last);
        if self.last < LEAST_ROOM || lines.iter().any(|line| display_width(line) > self.last) {
            rest.below = terminal::lines(last, self.width.saturating_sub(INDENT));
            last.clear();
        } else {
            rest.beside = lines.split_off(lines.len().min(1));
            *last = lines.concat();
        }
        rest
    }
}

fn shown(cell: String) -> String {
    match cell.as_str() {
        "" => "-".to_owned(),
        cell => cut(terminal::plain(cell)).into_owned(),
    }
}
