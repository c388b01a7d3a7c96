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

/// The line about the running daemon, with a warning if this program has another version.
pub(super) fn of_daemon(version: &str, pid: u32) -> String {
    let this = BUILD.version;
    let difference = if version == this {
        String::new()
    } else {
        format!(
            "; this program has version {this}: install both from one release, and restart the daemon"
        )
    };
    format!("criswitch {version}, process {pid}{difference}\n")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_of_another_version_is_named() {
        let this = BUILD.version;
        assert_eq!(of_daemon(this, 7), format!("criswitch {this}, process 7\n"));
        assert_eq!(
            of_daemon("0.0.9", 7),
            format!(
                "criswitch 0.0.9, process 7; this program has version {this}: install both from one release, and restart \
                 the daemon\n"
            )
        );
    }
}
