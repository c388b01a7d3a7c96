//! `criswitch version`: the version of this build.

use std::sync::LazyLock;

use criswitch_version::{BUILD, Build};
use serde::Serialize;
use serde_json::{Value, json};

use criswitch_client::output::{self, Output};
use criswitch_client::terminal::{self, SafeText};

use super::daemon;

/// This program.
#[derive(Serialize)]
struct ThisProgram {
    #[serde(flatten)]
    build: Build,
    problems: Vec<Value>,
}

/// The text of `criswitch --version`, without the name of the program.
pub(super) fn text() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| BUILD.to_string());
    &TEXT
}

pub(super) fn shown(output: &Output) -> anyhow::Result<SafeText> {
    let difference = daemon::difference();
    match output.encoding() {
        Some(encoding) => encoding.document(json!(ThisProgram {
            build: BUILD,
            problems: difference.iter().map(|it| output::problem(it)).collect(),
        })),
        None => {
            terminal::print_stderr(&output::name_lines(difference));
            Ok(format!("criswitch {}\n", text()).into())
        }
    }
}
