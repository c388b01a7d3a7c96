//! `criswitch discover`: asks the CRI sockets of this node what they are, and writes a configuration for them.
//!
//! Changes nothing at a runtime, and never a file that is there.

mod json;
mod notes;
mod places;
mod plan;
mod text;

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use criswitch::config::address::Address;
use criswitch::config::{BackendConfig, Config, DEFAULT_LISTEN, DEFAULT_PATH};

use super::probe::{Probe, probe_all};
use super::{Verdict, print, socket, terminal};
use places::{PlaceState, SocketPlace};
use plan::{Plan, Planned};

/// What is read of a runtime's reply; the kubelet reads no more either.
const MAX_MESSAGE: usize = 16 << 20;
/// Of a configuration: everyone may read it, it has no secrets.
const MODE: u32 = 0o644;

const RULES: &str = "\
Sockets are looked for at these places, after those given:
  /run/containerd/containerd.sock                containerd
  /run/crio/crio.sock                            CRI-O
  /run/cri-dockerd.sock                          cri-dockerd
  /run/k3s/containerd/containerd.sock            k3s, RKE2
  /run/k3s/cri-dockerd/cri-dockerd.sock          k3s with Docker
  /run/k0s/containerd.sock                       k0s
  /var/snap/microk8s/common/run/containerd.sock  MicroK8s

All are asked at once, for 3 seconds at most. Paths that lead to one
socket are one backend; a switch's own socket is none.

Rules:
  Each handler gets one row. Where several backends have it, the first
  one wins: the sockets that you name in their order, then the places
  above. The other rows are commented out, with the reason.

  The first backend also runs pods without a RuntimeClass: with the
  handler that it reports as its default, else with its only handler.
  If neither is known, a row with the backend's name and handler = \"\"
  leaves the choice to the backend.

  A runtime that does not report its handlers gets a row for each in its
  configuration, where it shows that (containerd does), else one row
  with its own name and handler = \"\".

  Problems are listed at the head of the file and on standard error:
  different cgroup drivers, sockets that do not respond, runtimes that
  are not ready.

Examples:
  criswitch discover            look and print
  criswitch discover /run/kata/containerd.sock
                                with another socket
  criswitch discover --write /etc/criswitch/found.toml
                                and look at that first

Exit codes: 0 printed or written, 1 nothing answers or the file is
there, 64 wrong usage.";

/// What the command line says.
#[derive(Args)]
#[command(after_long_help = RULES)]
pub(super) struct Discover {
    /// Sockets to ask beside those at the well-known places.
    #[arg(value_name = "SOCKET", value_parser = socket)]
    sockets: Vec<Address>,
    /// The switch's own socket, if not the default.
    #[arg(long, value_name = "SOCKET", value_parser = socket)]
    listen: Option<Address>,
    /// Write the configuration to a file that is not there yet.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    write: Option<PathBuf>,
    /// Write JSON.
    #[arg(long)]
    json: bool,
    /// Look for the well-known places below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// What was found.
struct Discovered {
    /// The switch's socket, where it is not the default.
    listen: Option<Address>,
    plan: Plan,
    /// Places that cannot be asked or do not answer, and why.
    silent: Vec<(SocketPlace, String)>,
    /// The switch's own socket.
    own: Vec<SocketPlace>,
}

impl Discover {
    pub(super) fn run(&self) -> anyhow::Result<Verdict> {
        let discovered = self.look()?;
        let notes = notes::notes(&discovered);
        if !self.shows_notes() || discovered.plan.backends.is_empty() {
            tell(&notes);
        }
        if discovered.plan.backends.is_empty() {
            bail!("{}", nothing(&discovered));
        }
        let text = text::text(&discovered, &notes);
        let config = checked(&text)?;
        if let Some(file) = &self.write {
            write(file, &text)?;
            print(next(file, &config))?;
        } else if self.json {
            print(json::json(&discovered, &notes, &config, &text)?)?;
        } else {
            print(text)?;
        }
        Ok(Verdict::Fine)
    }

    /// Whether who reads standard error sees the notes in the file anyway.
    fn shows_notes(&self) -> bool {
        self.write.is_none() && !self.json && io::stdout().is_terminal()
    }

    fn look(&self) -> anyhow::Result<Discovered> {
        let listen = match &self.listen {
            Some(listen) => listen.clone(),
            None => Address::parse(DEFAULT_LISTEN)?,
        };
        let places = places::look(&self.sockets, &self.root, &listen);
        let (asked, rest): (Vec<SocketPlace>, Vec<SocketPlace>) = places
            .into_iter()
            .partition(|place| matches!(place.state, PlaceState::Socket));
        let backends: Vec<BackendConfig> = asked.iter().enumerate().map(backend).collect();
        let answers = probe_all(&backends, MAX_MESSAGE)?;
        let answers = asked.into_iter().zip(answers);
        Ok(sort(self.listen.clone(), answers, rest))
    }
}

fn backend((id, place): (usize, &SocketPlace)) -> BackendConfig {
    BackendConfig {
        id,
        name: place.name.clone(),
        socket: place.socket.clone(),
        // Nothing is merged here.
        list_timeout: Duration::MAX,
        stats_timeout: Duration::MAX,
        stale_lists: Duration::ZERO,
        auto_register: false,
        required: true,
        user: None,
        origin: None,
    }
}

/// Who is a backend, who is silent, and who is the switch itself.
fn sort(
    listen: Option<Address>,
    answers: impl Iterator<Item = (SocketPlace, Probe)>,
    rest: Vec<SocketPlace>,
) -> Discovered {
    let (mut backends, mut silent, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for (place, answer) in answers {
        match answer {
            Ok(found) if found.is_switch => own.push(place),
            Ok(found) => backends.push(Planned { place, found }),
            Err(cause) => silent.push((place, cause)),
        }
    }
    for place in rest {
        match &place.state {
            PlaceState::Wrong(why) => {
                let why = why.clone();
                silent.push((place, why));
            }
            _ => own.push(place),
        }
    }
    Discovered {
        listen,
        plan: plan::plan(backends),
        silent,
        own,
    }
}

fn tell(notes: &[String]) {
    for note in notes {
        terminal::complain(&format!("criswitch: {note}\n"));
    }
}

fn nothing(discovered: &Discovered) -> String {
    let found = if discovered.silent.is_empty() && discovered.own.is_empty() {
        "no CRI socket is at a well-known place"
    } else {
        "no CRI socket answers as a backend"
    };
    let hint = if rustix::process::geteuid().is_root() {
        "with the container runtime running, or the path of its socket as an argument"
    } else {
        "as root, or the path of the container runtime's socket as an argument"
    };
    format!("{found}; try it {hint} (criswitch discover --help has the places)")
}

/// What is printed must be a configuration that the switch takes.
fn checked(text: &str) -> anyhow::Result<Config> {
    let loaded = Config::of_texts(&[(Path::new("discovered"), text.as_bytes())]);
    loaded.map_err(|problems| {
        anyhow::anyhow!("what would be written is no configuration: {problems}")
    })
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let shown = file.display();
    let created = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(file);
    let mut opened = created.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => anyhow::anyhow!(
            "{shown} is there already and stays as it is; try another name and compare, or move it away"
        ),
        ErrorKind::NotFound => {
            let directory = file.parent().unwrap_or(file).display();
            anyhow::anyhow!("{shown} cannot be written: {directory} is not there; try mkdir -p {directory}")
        }
        _ => anyhow::anyhow!("{shown} cannot be written: {error}"),
    })?;
    let written = opened
        .write_all(text.as_bytes())
        .and_then(|()| opened.sync_all());
    written
        .inspect_err(|_| {
            // A part of it would load as something else.
            fs::remove_file(file).ok();
        })
        .with_context(|| format!("{shown} cannot be written"))
}

fn next(file: &Path, config: &Config) -> String {
    let (shown, listen) = (file.display(), &config.listen);
    let option = if file == Path::new(DEFAULT_PATH) {
        String::new()
    } else {
        format!(" --config {shown}")
    };
    format!(
        "{shown} is written. Read it, then:\n\
         \x20 criswitch check --probe{option}\n\
         \x20 criswitch serve{option}\n\
         \x20 crictl -r unix://{listen} pods\n\
         and when these show what they should, for the kubelet:\n\
         \x20 --container-runtime-endpoint=unix://{listen}\n"
    )
}
