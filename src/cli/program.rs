//! Runs other programs, with limits on their output.

use std::process::Stdio;

use anyhow::{anyhow, ensure};
use criswitch::errors::error_chain;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;

/// The largest message of a program that fails, in bytes.
const MESSAGE_BYTES: u64 = 16 << 10;

/// Appends the output of a program, at most `limit` bytes. An exit code other than 0 is an error with the last line of
/// the program's message. The program ends with the call.
pub(super) async fn output(
    mut command: Command,
    limit: u64,
    text: &mut Vec<u8>,
) -> anyhow::Result<()> {
    let name = command.as_std().get_program().display().to_string();
    command.stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn();
    let mut child =
        child.map_err(|error| anyhow!("cannot start {name}: {}", error_chain(&error)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut message = Vec::new();
    let (_, _, ended) = tokio::join!(
        read(stdout, limit, text),
        read(stderr, MESSAGE_BYTES, &mut message),
        child.wait()
    );
    let ended = ended?;
    let message = String::from_utf8_lossy(&message);
    let message = message.trim_end().lines().last().unwrap_or_default();
    ensure!(ended.success(), "{ended} {message}");
    Ok(())
}

/// Reads at most `limit` bytes. After that it closes the pipe, so that the writer ends, too.
async fn read(pipe: Option<impl AsyncRead + Unpin>, limit: u64, text: &mut Vec<u8>) {
    if let Some(pipe) = pipe {
        // An error ends the text.
        pipe.take(limit).read_to_end(text).await.ok();
    }
}
