//! Programs that a test writes, and then runs.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Writes a program, or a script, that everybody may execute.
///
/// A separate process writes the file. If this process wrote it, a child process of a concurrent test could inherit the
/// open file for a moment, and the kernel executes no file that a process may write.
pub fn write_program(path: &Path, content: impl AsRef<[u8]>) {
    let mut write = Command::new("sh");
    write
        .args(["-c", "cat >\"$0\" && chmod 755 \"$0\""])
        .arg(path);
    let mut write = write.stdin(Stdio::piped()).spawn().unwrap();
    write
        .stdin
        .take()
        .unwrap()
        .write_all(content.as_ref())
        .unwrap();
    assert!(write.wait().unwrap().success());
}
