//! `criswitch version`: the version of this build.

use std::sync::LazyLock;

use criswitch_version::BUILD;
use serde_json::json;

use criswitch_client::output::Output;
use criswitch_client::terminal::Shown;

/// The text of `criswitch --version`, without the name of the program.
pub(super) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| BUILD.to_string());
    &TEXT
}

pub(super) fn shown(output: &Output) -> anyhow::Result<Shown> {
    match output.encoding() {
        Some(encoding) => encoding.document(json!(BUILD)),
        None => Ok(format!("criswitch {}\n", text()).into()),
    }
}
