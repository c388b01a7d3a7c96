//! Plain columns for a terminal, for `grep` and for `awk`; colours on a terminal only.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};
use tabwriter::TabWriter;

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
/// Control characters, which a backend could put into its words, become spaces.
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
    let cell = |(column, cell): (usize, String)| {
        let cell = plain(&cell);
        match paint(column, &cell).filter(|_| colours).map(Paint::style) {
            Some(style) => format!("{style}{cell}{style:#}"),
            None => cell,
        }
    };
    let mut text = Vec::new();
    let mut out = TabWriter::new(&mut text);
    writeln!(out, "{}", header.join("\t"))?;
    for row in rows {
        let cells: Vec<_> = row.into_iter().enumerate().map(cell).collect();
        writeln!(out, "{}", cells.join("\t"))?;
    }
    out.flush()?;
    drop(out);
    Ok(String::from_utf8(text)?)
}

fn plain(cell: &str) -> String {
    match cell.replace(char::is_control, " ") {
        empty if empty.is_empty() => "-".to_owned(),
        cell => cell,
    }
}
