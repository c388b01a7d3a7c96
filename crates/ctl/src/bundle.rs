//! `criswitch bundle`: one archive with the facts that a report of a problem needs, without secrets.
//!
//! Each part has a time limit. A part that fails does not end the command: `parts.txt` in the archive names the
//! failure.

mod secrets;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use anyhow::{Context, ensure};
use clap::Args;
use criswitch_client::arguments::Daemon;
use criswitch_client::exit::Verdict;
use criswitch_client::program::{block_on, output};
use criswitch_client::terminal::{self, print};
use criswitch_config::{Config, KEYS, disk};
use criswitch_cri::error_text::error_chain;
use criswitch_platform::{service, write_new};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::process::Command;
use toml_parser::Source;
use toml_parser::lexer::TokenKind;

/// The time that a part may take. `check --probe` waits for each backend.
const PART_LIMIT: Duration = Duration::from_secs(30);
/// The largest part in bytes. The rest of a longer part is omitted.
const PART_BYTES: u64 = 8 << 20;
/// The mode of the archive: only its owner may read it.
const MODE: u32 = 0o600;
const FOLDER: &str = "criswitch-bundle";
const INVALID: &str = "the configuration is not valid: check.json has its problems";
#[rustfmt::skip]
const LOG: [&str; 4] = ["--unit=criswitch", "--lines=2000", "--no-pager", "--output=short-iso"];

#[derive(Args)]
pub(super) struct BundleArguments {
    #[command(flatten)]
    daemon: Daemon,
    /// The archive to write, such as bundle.tar.gz, or - for standard output. criswitch does not replace an existing
    /// file.
    #[arg(value_name = "FILE")]
    archive: PathBuf,
}

/// One file of the archive.
struct BundleFile {
    name: &'static str,
    text: String,
    /// The error of the part, or the exit code of its command; `None` if all went well.
    problem: Option<String>,
    took: Duration,
}

impl BundleArguments {
    pub(super) fn run(self) -> anyhow::Result<Verdict> {
        let shown = self.archive.display();
        let is_file = self.archive != Path::new("-");
        if is_file {
            self.try_to_write()?;
        }
        let packed =
            packed(&block_on(self.collect())?).with_context(|| format!("cannot pack {shown}"))?;
        let written = if is_file {
            write_new(&self.archive, MODE, &packed)
        } else {
            let mut stdout = std::io::stdout();
            stdout.write_all(&packed).and_then(|()| stdout.flush())
        };
        written.with_context(|| format!("cannot write {shown}"))?;
        let what = "has names of pods, images, backends and this node, but no credentials, environments or annotations. Read \
                    it before you publish it.\n";
        if is_file {
            return print(format!("{shown} {what}"));
        }
        terminal::print_stderr(&format!("the archive {what}"));
        Ok(Verdict::Fine)
    }

    /// Creates the archive and removes it again, so that an error is reported before the parts are collected, which
    /// takes time.
    fn try_to_write(&self) -> anyhow::Result<()> {
        let shown = self.archive.display();
        ensure!(
            !self.archive.exists(),
            "{shown} exists; name a file that does not exist"
        );
        write_new(&self.archive, MODE, &[])
            .and_then(|()| fs::remove_file(&self.archive))
            .with_context(|| format!("cannot write {shown}"))
    }

    async fn collect(&self) -> anyhow::Result<Vec<BundleFile>> {
        let program = std::env::current_exe().context("cannot find the program of criswitch")?;
        let path = &self.daemon.file.path;
        let mut check = command(&program, "check --probe --node -o json");
        check.arg("--config").arg(path);
        let mut log = Command::new("journalctl");
        log.args(LOG);
        Ok(vec![
            printed("version.json", command(&program, "version -o json")).await,
            read("config.toml", path, configuration).await,
            printed("check.json", check).await,
            printed("status.json", self.status(&program, "status -o json")).await,
            printed("status.txt", self.status(&program, "status")).await,
            part("metrics.txt", async |text| {
                *text = self.daemon.connect().await?.metrics().await?.into_bytes();
                Ok(())
            })
            .await,
            read("state.txt", path, state_files).await,
            read("machine.txt", path, machine).await,
            printed("log.txt", log).await,
        ])
    }

    /// A command of `program` that calls the daemon.
    fn status(&self, program: &Path, arguments: &str) -> Command {
        let mut command = command(program, arguments);
        command.arg("--config").arg(&self.daemon.file.path);
        if let Some(socket) = &self.daemon.socket {
            command.arg("--socket").arg(socket.to_string());
        }
        command
    }
}

fn command(program: &Path, arguments: &str) -> Command {
    let mut command = Command::new(program);
    command.args(arguments.split(' '));
    command
}

/// A part with the output of a program.
async fn printed(name: &'static str, command: Command) -> BundleFile {
    part(name, async |text| output(command, PART_BYTES, text).await).await
}

/// A part with facts about the files of the configuration.
async fn read(
    name: &'static str,
    path: &Path,
    work: fn(&Path) -> anyhow::Result<Vec<u8>>,
) -> BundleFile {
    part(name, async |text| {
        *text = run_on_file_thread(path, work).await?;
        Ok(())
    })
    .await
}

/// Fills a part within its time, and shows the outcome. A part that takes longer keeps the text that it has.
async fn part(
    name: &'static str,
    fill: impl AsyncFnOnce(&mut Vec<u8>) -> anyhow::Result<()>,
) -> BundleFile {
    let (started, mut text) = (Instant::now(), Vec::new());
    let problem = match tokio::time::timeout(PART_LIMIT, fill(&mut text)).await {
        Ok(filled) => filled.err().map(|error| format!("{error:#}")),
        Err(_) => Some(format!("stopped after {} s", PART_LIMIT.as_secs())),
    };
    let part = BundleFile {
        name,
        text: secrets::removed(&String::from_utf8_lossy(&text)),
        problem: problem.map(|problem| secrets::removed(&problem)),
        took: started.elapsed(),
    };
    terminal::print_stderr(&part.outcome());
    part
}

impl BundleFile {
    /// The line about this part, for `parts.txt` and for the progress on standard error.
    fn outcome(&self) -> String {
        let problem = self.problem.as_deref().unwrap_or("ok").trim_end();
        let seconds = self.took.as_secs_f64();
        format!("{:<12} {seconds:>5.1} s  {problem}\n", self.name)
    }
}

/// The files of the configuration without the texts of comments. Lines keep their numbers. If the configuration is not
/// valid, a key that criswitch does not know may hold a secret, so the part has only the outline of the files.
fn configuration(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    if let Ok(config) = load(path) {
        for file in config.files {
            let lines = without_comments(&fs::read_to_string(&file)?);
            writeln!(text, ">>> {}\n{lines}", file.display())?;
        }
        return Ok(text);
    }
    writeln!(text, "{INVALID}; this is its outline, without values")?;
    let drop_ins = disk::drop_ins(&path.with_file_name("conf.d")).unwrap_or_default();
    for file in [path.to_owned()].into_iter().chain(drop_ins) {
        let lines = match disk::bytes(&file) {
            Ok(bytes) => outline(&String::from_utf8_lossy(&bytes)),
            Err(error) => error_chain(&error),
        };
        writeln!(text, ">>> {}\n{lines}", file.display())?;
    }
    Ok(text)
}

/// The headers and keys of a file that need not be TOML, each on its line. `?` replaces each name that criswitch does
/// not know, because it may be a secret.
fn outline(text: &str) -> String {
    let names = KEYS
        .iter()
        .flat_map(|key| key.name.split('.').chain([key.table]));
    let known: BTreeSet<_> = names.collect();
    let shown = |name: &str| known.get(name.trim()).copied().unwrap_or("?");
    let line = |line: &str| {
        let line = line.trim();
        let (name, [before, after]) = match (line.strip_prefix('['), line.split_once('=')) {
            _ if line.starts_with('#') => return "\n".to_owned(),
            (Some(name), _) => (name.trim_end_matches(']'), ["[", "]"]),
            (None, Some((key, _))) => (key, ["", " ="]),
            (None, None) => return "\n".to_owned(),
        };
        let names: Vec<_> = name.split('.').map(shown).collect();
        format!("{before}{}{after}\n", names.join("."))
    };
    text.lines().map(line).collect()
}

/// TOML without the texts of its comments.
fn without_comments(toml: &str) -> String {
    Source::new(toml)
        .lex()
        .map(|token| match (token.kind(), token.span()) {
            (TokenKind::Comment, _) => "#",
            (_, span) => toml.get(span.start()..span.end()).unwrap_or_default(),
        })
        .collect()
}

/// The versions of the kernel and of the operating system.
fn machine(_: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    for file in ["/proc/version", "/etc/os-release"] {
        let shown = fs::read_to_string(file).unwrap_or_else(|error| format!("{error}\n"));
        writeln!(text, ">>> {file}\n{shown}")?;
    }
    Ok(text)
}

/// Does work on files on a thread of its own, so that a file system that hangs delays only this part.
async fn run_on_file_thread<T: Send + 'static>(
    path: &Path,
    work: fn(&Path) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let path = path.to_owned();
    tokio::task::spawn_blocking(move || work(&path)).await?
}

fn load(path: &Path) -> anyhow::Result<Config> {
    Config::load(path).ok().context(INVALID)
}

/// The names, sizes and ages of the state files, not their contents.
fn state_files(config: &Path) -> anyhow::Result<Vec<u8>> {
    let mut text = Vec::new();
    let folders: BTreeSet<_> = load(config)?
        .state_directories(service::directories())
        .into_iter()
        .flat_map(|place| [place.runtime, place.state])
        .collect();
    for folder in folders {
        writeln!(text, "{}", folder.display())?;
        let files = match fs::read_dir(folder) {
            Ok(files) => files,
            Err(error) => {
                writeln!(text, "  {}", error_chain(&error))?;
                continue;
            }
        };
        for file in files {
            let file = file?;
            // The daemon may have replaced the file since it was listed.
            let Ok(about) = file.metadata() else {
                continue;
            };
            let age = about.modified()?.elapsed().unwrap_or_default().as_secs();
            writeln!(
                text,
                "  {}  {} bytes, written {age} s ago",
                file.file_name().display(),
                about.len()
            )?;
        }
    }
    Ok(text)
}

/// The archive: a compressed tar file with one folder.
fn packed(parts: &[BundleFile]) -> std::io::Result<Vec<u8>> {
    let now = UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let outcomes: String = parts.iter().map(BundleFile::outcome).collect();
    let files = parts.iter().map(|part| (part.name, part.text.as_str()));
    for (name, text) in [("parts.txt", outcomes.as_str())].into_iter().chain(files) {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(MODE);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::{outline, part, run_on_file_thread, without_comments};

    #[test]
    fn the_outline_of_a_file_has_known_names_only() {
        let text = "# a = 'hunter2'\nlisten = 'hunter2'\n[log]\nlevel='hunter2\nhunter2 = 1\n[handlers.hunter2] # x\n\
                    AbCd==\nhunter2\nlog.level : hunter2\n[hunter2.x]\n\"hunter2\" = \"\"\"a\nb\"\"\"";
        assert_eq!(
            outline(text),
            "\nlisten =\n[log]\nlevel =\n? =\n[handlers.?]\n? =\n\n\n[?.?]\n? =\n\n"
        );
    }

    #[test]
    fn comments_lose_their_texts_and_lines_stay() {
        let toml = "# a\nb = \"#c \\\" #d\" # e\nf = '#g' # h\ni = \"\"\"\n# j \" # k\"\"\" # l\n";
        let kept = "#\nb = \"#c \\\" #d\" #\nf = '#g' #\ni = \"\"\"\n# j \" # k\"\"\" #\n";
        assert_eq!(without_comments(toml), kept);
        let quotes_before_the_end = "a = \"\"\"b\"\"\"\" # c\n";
        assert_eq!(
            without_comments(quotes_before_the_end),
            "a = \"\"\"b\"\"\"\" #\n"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_ends_after_its_time_limit_and_keeps_its_text() {
        let late = part("log.txt", async |text| {
            text.extend(b"first line");
            pending().await
        });
        let part = late.await;
        assert_eq!(part.text, "first line\n");
        assert_eq!(part.problem.as_deref(), Some("stopped after 30 s\n"));
    }

    /// A pipe without a writer hangs like a file system that does not answer.
    #[cfg(unix)]
    #[tokio::test]
    async fn a_file_that_hangs_does_not_hold_up_the_time_limit() {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("criswitch.toml");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        let read = run_on_file_thread(&pipe, |path| Ok(std::fs::read_to_string(path)?));
        let mut read = std::pin::pin!(read);
        assert!(futures_util::poll!(&mut read).is_pending());
        // The end of the file lets the thread of the read end.
        std::fs::write(&pipe, "default_handler").unwrap();
        assert_eq!(read.await.unwrap(), "default_handler");
    }
}
