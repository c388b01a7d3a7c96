//! Plain columns for a terminal, for `grep` and for `awk`; colours on a terminal only.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use tabwriter::TabWriter;
use textwrap::core::display_width;

use super::terminal::{self, Shown};

/// Between two columns.
const GAP: usize = 2;
/// Words in less room than this are harder to read than below their row.
const LEAST_ROOM: usize = 20;
/// How much further in than its row the last cell is below it.
const INDENT: usize = 4;

/// What a cell says of how things are.
#[derive(Clone, Copy)]
pub(super) enum Paint {
    Good,
    Odd,
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

/// Rows below their header, each column as wide as its widest cell; an empty cell shows as a dash.
///
/// On a terminal the words of the last column go on in the next line where they have no room, and are below their row
/// where even one of them has none.
pub(super) fn columns<const N: usize>(
    header: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<String> {
    aligned(header, rows, |_, _| None)
}

/// As [`columns`]; on a terminal the cells have the colour that `paint` gives for a column and a cell.
pub(super) fn painted<const N: usize>(
    header: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    paint: impl Fn(usize, &str) -> Option<Paint>,
) -> anyhow::Result<Shown> {
    aligned(header, rows, paint).map(Shown::table)
}

/// `text` in this colour on a terminal.
pub(super) fn coloured(paint: Paint, text: &str) -> String {
    if !has_colours() {
        return text.to_owned();
    }
    let style = paint.style();
    format!("{style}{text}{style:#}")
}

fn has_colours() -> bool {
    io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

fn aligned<const N: usize>(
    header: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    paint: impl Fn(usize, &str) -> Option<Paint>,
) -> anyhow::Result<String> {
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(shown)).collect();
    let room = ColumnRoom::of(header, &rows);
    let cell = |(column, cell): (usize, String)| match paint(column, &cell) {
        Some(paint) => coloured(paint, &cell),
        None => cell,
    };
    let mut text = Vec::new();
    let mut out = TabWriter::new(&mut text);
    writeln!(out, "{}", header.join("\t"))?;
    let mut below = Vec::new();
    for mut row in rows {
        let rest = room.as_ref().map(|room| room.cut(&mut row));
        let rest = rest.unwrap_or_default();
        let cells: Vec<_> = row.into_iter().enumerate().map(cell).collect();
        writeln!(out, "{}", cells.join("\t"))?;
        below.push(rest.below);
        for line in rest.beside {
            writeln!(out, "{}{line}", "\t".repeat(N.saturating_sub(1)))?;
            below.push(Vec::new());
        }
    }
    out.flush()?;
    drop(out);
    Ok(with_below(&String::from_utf8(text)?, below))
}

/// Lines that are in no column; among the others they would end these.
fn with_below(aligned: &str, below: Vec<Vec<String>>) -> String {
    let mut shown = String::new();
    let below = [Vec::new()].into_iter().chain(below);
    for (line, below) in aligned.lines().zip(below) {
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

/// What a terminal has for the last column.
struct ColumnRoom {
    width: usize,
    last: usize,
}

/// What of a row's last cell has no room in its line: further lines of its column, or of none.
#[derive(Default)]
struct Rest {
    beside: Vec<String>,
    below: Vec<String>,
}

impl ColumnRoom {
    /// None if there is no terminal.
    fn of<const N: usize>(header: &[&str; N], rows: &[[String; N]]) -> Option<ColumnRoom> {
        let widest = |column: usize| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            let title = header.get(column).map(|title| display_width(title));
            cells
                .map(|cell| display_width(cell))
                .chain(title)
                .max()
                .unwrap_or_default()
                + GAP
        };
        let before: usize = (0..N.saturating_sub(1)).map(widest).sum();
        let width = terminal::width()?;
        let last = width.saturating_sub(before);
        Some(ColumnRoom { width, last })
    }

    /// Leaves a row what fits of its last cell.
    fn cut<const N: usize>(&self, row: &mut [String; N]) -> Rest {
        let mut rest = Rest::default();
        let last = row
            .last_mut()
            .filter(|last| display_width(last) > self.last);
        let Some(last) = last else {
            return rest;
        };
        let mut lines = terminal::lines(last, self.last);
        let fits = |line: &String| display_width(line) <= self.last;
        if self.last < LEAST_ROOM || !lines.iter().all(fits) {
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
        cell => terminal::plain(cell),
    }
}
