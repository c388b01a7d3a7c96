//! Runs other programs, with limits on their output and their time.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use criswitch_cri::error_text::error_chain;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::time::timeout;

/// The largest part of a program's standard error that is kept, in bytes.
const MESSAGE_BYTES: u64 = 16 << 10;
/// The largest output of a program that [`within`] runs, in bytes.
const OUTPUT_BYTES: u64 = 16 << 20;

/// Runs a program and appends its standard output to `text`, at most `limit` bytes. If the exit code is not 0, the
/// error has the last line of standard error. The program is killed if the caller drops the future.
pub async fn output(command: Command, limit: u64, text: &mut Vec<u8>) -> anyhow::Result<()> {
    let (ended, message) = run(command, limit, text).await?;
    let message = String::from_utf8_lossy(&message);
    let last_line = message.trim_end().lines().last().unwrap_or_default();
    ensure!(ended.success(), "{ended} {last_line}");
    Ok(())
}

/// Runs a program and waits at most `limit` until the program ends. A program that takes longer is killed.
pub fn within(limit: Duration, command: std::process::Command) -> anyhow::Result<Output> {
    let name = command.get_program().display().to_string();
    // `block_on` panics on a thread that already runs asynchronous work, as this thread may.
    thread::spawn(move || {
        let mut stdout = Vec::new();
        let (status, stderr) = block_on(async {
            timeout(limit, run(command.into(), OUTPUT_BYTES, &mut stdout))
                .await
                .with_context(|| format!("{name}: no end within {limit:?}"))?
        })?;
        Ok(Output {
            status,
            stdout,
            stderr,
        })
    })
    .join()
    .map_err(|_| anyhow!("the thread of a program has ended early"))?
}

/// Runs a program until it ends, and appends its standard output to `text`, at most `limit` bytes. Returns its exit
/// status and the start of its standard error.
async fn run(
    mut command: Command,
    limit: u64,
    text: &mut Vec<u8>,
) -> anyhow::Result<(ExitStatus, Vec<u8>)> {
    let name = command.as_std().get_program().display().to_string();
    command.stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .map_err(|error| anyhow!("cannot start {name}: {}", error_chain(&error)))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut message = Vec::new();
    let (_, _, ended) = tokio::join!(
        read(stdout, limit, text),
        read(stderr, MESSAGE_BYTES, &mut message),
        child.wait()
    );
    Ok((ended?, message))
}

/// Reads at most `limit` bytes, then closes the pipe, so that a program that writes more ends too.
async fn read(pipe: Option<impl AsyncRead + Unpin>, limit: u64, text: &mut Vec<u8>) {
    if let Some(pipe) = pipe {
        // A read error counts as the end of the text.
        pipe.take(limit).read_to_end(text).await.ok();
    }
}

/// The path of criswitchd, which is installed in the same directory as `program`, the program of the commands.
pub fn daemon_beside(program: &Path) -> PathBuf {
    program.with_file_name(format!("criswitchd{}", std::env::consts::EXE_SUFFIX))
}

/// Runs the work of a command on this thread until the work ends. Does not wait for blocking tasks that still run then,
/// such as work on files.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> std::process::Command {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    #[tokio::test]
    async fn a_program_returns_its_output_and_its_status() {
        let limit = Duration::from_secs(60);
        let ended = within(limit, shell("echo out; echo why >&2; exit 5")).unwrap();
        assert_eq!(ended.status.code(), Some(5));
        assert_eq!(
            (&*ended.stdout, &*ended.stderr),
            (&b"out\n"[..], &b"why\n"[..])
        );
    }

    #[test]
    fn a_program_that_does_not_end_is_ended_after_its_limit() {
        let error =
            within(Duration::from_millis(100), shell("exec tail -f /dev/null")).unwrap_err();
        assert_eq!(error.to_string(), "sh: no end within 100ms");
    }
}
