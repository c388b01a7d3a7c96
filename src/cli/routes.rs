//! `criswitch routes`: the table of RPCs in words.

use criswitch::rpc::ROWS;

use super::columns::columns;

/// One line an RPC, in the order of the interface.
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
    columns(&["RPC", "GOES TO", "KEY", "UNKNOWN ID", "REPLY"], rows)
}
