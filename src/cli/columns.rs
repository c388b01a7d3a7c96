//! Plain columns for a terminal, for `grep` and for `awk`; colours on a terminal only.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use tabwriter::TabWriter;
use textwrap::core::display_width;

use super::terminal;

/// Between two columns.
const GAP: usize = 2;
/// Words in less room than this are harder to read than lines that are too long.
const LEAST_ROOM: usize = 20;

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
/// Control characters, which a backend could put into its words, become spaces. On a terminal the words of the last
/// column go on in the next line where they have no room.
pub(super) fn columns<const N: usize>(
    header: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<String> {
    painted(header, rows, |_, _| None)
}

/// As [`columns`]; on a terminal the cells have the colour that `paint` gives for a column and a cell.
pub(super) fn painted<const N: usize>(
    header: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
    paint: impl Fn(usize, &str) -> Option<Paint>,
) -> anyhow::Result<String> {
    let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let rows: Vec<[String; N]> = rows.into_iter().map(|row| row.map(plain)).collect();
    let room = room(header, &rows);
    let cell = |(column, cell): (usize, String)| match paint(column, &cell)
        .filter(|_| colours)
        .map(Paint::style)
    {
        Some(style) => format!("{style}{cell}{style:#}"),
        None => cell,
    };
    let mut text = Vec::new();
    let mut out = TabWriter::new(&mut text);
    writeln!(out, "{}", header.join("\t"))?;
    for mut row in rows {
        let further = room.map_or_else(Vec::new, |room| cut(&mut row, room));
        let cells: Vec<_> = row.into_iter().enumerate().map(cell).collect();
        writeln!(out, "{}", cells.join("\t"))?;
        for line in further {
            writeln!(out, "{}{line}", "\t".repeat(N.saturating_sub(1)))?;
        }
    }
    out.flush()?;
    drop(out);
    Ok(String::from_utf8(text)?)
}

/// What a terminal has for the last column, if that is worth a line break.
fn room<const N: usize>(header: &[&str; N], rows: &[[String; N]]) -> Option<usize> {
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
    let room = terminal::width()?.saturating_sub(before);
    (room >= LEAST_ROOM).then_some(room)
}

/// Leaves a row what fits, and returns the further lines of its last cell.
fn cut<const N: usize>(row: &mut [String; N], room: usize) -> Vec<String> {
    let Some(last) = row.last_mut() else {
        return Vec::new();
    };
    let mut lines = terminal::lines(last, room);
    let further = lines.split_off(lines.len().min(1));
    if let Some(first) = lines.pop() {
        *last = first;
    }
    further
}

fn plain(cell: String) -> String {
    match cell.replace(char::is_control, " ") {
        empty if empty.is_empty() => "-".to_owned(),
        cell => cell,
    }
}
