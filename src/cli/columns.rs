//! Plain columns for a terminal, for `grep` and for `awk`.

use std::io::Write;

use tabwriter::TabWriter;

/// Rows below their header, each column as wide as its widest cell; an empty cell shows as a dash.
///
/// Control characters, which a backend could put into its words, become spaces.
pub(super) fn columns<const N: usize>(
    header: &[&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> anyhow::Result<String> {
    let mut text = Vec::new();
    let mut out = TabWriter::new(&mut text);
    writeln!(out, "{}", header.join("\t"))?;
    for row in rows {
        writeln!(out, "{}", row.map(|cell| plain(&cell)).join("\t"))?;
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
