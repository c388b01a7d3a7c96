//! Passes the commit and the target to the compiler.

use std::path::Path;
use std::process::Command;

/// The environment variable with the commit, which `criswitch version`, the first log line and a metric show. A source
/// archive has no commit. Set the variable to show a commit in a build from an archive.
const COMMIT: &str = "CRISWITCH_COMMIT";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    pass_commit();
    println!(
        "cargo:rustc-env=CRISWITCH_TARGET={}",
        std::env::var("TARGET")?
    );
    Ok(())
}

/// Passes the commit to a release build. Other builds omit the commit: with it they would recompile after each commit.
fn pass_commit() {
    println!("cargo:rerun-if-env-changed={COMMIT}");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if std::env::var_os(COMMIT).is_none()
        && is_release
        && let Some(commit) = commit()
    {
        println!("cargo:rustc-env={COMMIT}={commit}");
    }
}

/// The commit of the sources; `None` for a source archive. Git is not called for an archive, because the archive may be
/// unpacked within another repository.
fn commit() -> Option<String> {
    if !Path::new("../../.git").exists() {
        return None;
    }
    // Git appends to the file `logs/HEAD` at each commit and checkout, so cargo then runs this script again.
    println!(
        "cargo:rerun-if-changed={}",
        git(&["rev-parse", "--git-path", "logs/HEAD"])?
    );
    git(&["rev-parse", "--short=12", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
