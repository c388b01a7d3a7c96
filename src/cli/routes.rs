//! `criswitch routes`: the table of RPCs in words.

use std::iter;

use criswitch::rpc::ROWS;

use super::columns::columns;
use super::terminal;

const HEADER: [&str; 5] = ["RPC", "GOES TO", "KEY", "UNKNOWN ID", "REPLY"];
/// Of what stands below an RPC's name on a terminal.
const INDENT: &str = "  ";

/// In the order of the interface: one line an RPC, or on a terminal, which no such line fits, a few.
pub(super) fn text() -> anyhow::Result<String> {
    let rows = ROWS.iter().map(|row| {
        let words = row.words();
        [
            words.rpc,
            words.goes_to.to_owned(),
            words.key,
            words.unknown_id.to_owned(),
            words.reply,
        ]
    });
    match terminal::width() {
        None => columns(&HEADER, rows),
        Some(width) => {
            let parts: Vec<String> = rows.map(|row| below_each_other(&row, width)).collect();
            Ok(parts.join("\n"))
        }
    }
}

/// The RPC, and below it what there is to say.
fn below_each_other(row: &[String; 5], width: usize) -> String {
    let label = HEADER.map(str::len).into_iter().max().unwrap_or_default() + INDENT.len();
    let room = width.saturating_sub(INDENT.len() + label);
    let mut cells = HEADER.iter().zip(row);
    let name = cells.next().map(|(_, name)| format!("{name}\n"));
    let said = cells.filter(|(_, cell)| !cell.is_empty());
    let lines = said.flat_map(|(what, cell)| {
        let what = iter::once(what.to_lowercase()).chain(iter::repeat(String::new()));
        let lines = what.zip(terminal::lines(cell, room));
        lines.map(|(what, line)| format!("{INDENT}{what:label$}{line}\n"))
    });
    name.into_iter().chain(lines).collect()
}
