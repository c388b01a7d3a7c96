//! `criswitch routes`: prints the RPC table in words.

use criswitch_client::columns::columns;
use criswitch_client::output::{self, ListOutput};
use criswitch_client::terminal::{self, SafeText};
use criswitch_cri::rpc::{ROWS, Row};
use serde_json::json;

const HEADER: [&str; 6] = ["RPC", "GOES TO", "KEY", "UNKNOWN ID", "OPTIONAL", "REPLY"];
/// The indentation of the lines below an RPC's name on a terminal.
const INDENT: &str = "  ";

/// The routes of all RPCs, in the order of the CRI.
pub(super) fn shown(output: &ListOutput) -> anyhow::Result<SafeText> {
    if let Some(encoding) = output.encoding() {
        let routes: Vec<_> = ROWS.iter().map(Row::words).collect();
        return encoding.document(json!({ "routes": routes }));
    }
    let rows = ROWS.iter().map(|row| {
        let words = row.words();
        [
            words.rpc,
            words.goes_to.to_owned(),
            words.key,
            words.unknown_id.to_owned(),
            words.optional.to_owned(),
            words.reply,
        ]
    });
    if output.is_names() {
        return Ok(output::name_lines(rows.map(|[rpc, ..]| rpc)).into());
    }
    // The table is wider than a usual terminal, so a terminal shows a block of lines for each RPC.
    match terminal::width() {
        Some(width) if !output.is_wide() => {
            let parts: Vec<String> = rows.map(|row| below_each_other(&row, width)).collect();
            Ok(parts.join("\n").into())
        }
        _ => Ok(columns(&HEADER, rows)?.into()),
    }
}

/// The block of lines for an RPC: its name, then one or more indented lines for each other cell that is not empty.
fn below_each_other(row: &[String; 6], width: usize) -> String {
    let label = HEADER.map(str::len).into_iter().max().unwrap_or_default() + INDENT.len();
    let room = width.saturating_sub(INDENT.len() + label);
    let [name, ..] = row;
    let mut text = format!("{name}\n");
    for (title, cell) in HEADER
        .iter()
        .zip(row)
        .skip(1)
        .filter(|(_, cell)| !cell.is_empty())
    {
        let mut what = title.to_lowercase();
        for line in &terminal::lines(cell, room) {
            text += &format!("{INDENT}{what:label$}{line}\n");
            what.clear();
        }
    }
    text
}
