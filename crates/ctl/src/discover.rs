//! `criswitch discover`: probes the CRI sockets of this node, and writes a configuration for the runtimes found.
//!
//! Discovery changes nothing in a runtime and overwrites no file.

mod json;
mod notes;
mod places;
mod plan;
mod text;

use std::io::{self, ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, bail};
use clap::Args;
use criswitch_client::arguments::socket;
use criswitch_client::exit::Verdict;
use criswitch_client::output::Output;
use criswitch_client::probe::{MAX_MESSAGE, Probe, probe_all};
use criswitch_client::terminal::{self, print};
use criswitch_config::address::Address;
use criswitch_config::{BackendConfig, BackendIds, Config, DEFAULT_PATH};
use criswitch_node::kubelet::kubelet_runtime;
use criswitch_platform::{users, write_new};

use places::{PlaceState, SocketPlace};
use plan::{ConfigPlan, PlannedBackend};

/// The mode of the written file. Every user may read it, because it has no secrets.
const MODE: u32 = 0o644;

const RULES: &str = include_str!("help/discover.txt").trim_ascii_end();

/// The arguments of `criswitch discover`.
#[derive(Args)]
#[command(after_long_help = RULES)]
pub(super) struct DiscoverArguments {
    /// The sockets of the backends, instead of those at the well-known paths.
    #[arg(value_name = "SOCKET", value_parser = socket)]
    sockets: Vec<Address>,
    /// Also use the runtimes at the well-known paths as backends. The sockets that you name come first.
    #[arg(long)]
    all: bool,
    /// The socket of criswitch itself, if it is not the default.
    #[arg(long, value_name = "SOCKET", value_parser = socket)]
    listen: Option<Address>,
    /// Write the configuration to a new file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["output", "json"])]
    write: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
    /// Look for the well-known paths below this directory.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// The sockets and runtimes that were found.
struct Discovered {
    /// The socket of criswitch itself; `None` for the default socket.
    listen: Option<Address>,
    plan: ConfigPlan,
    /// Paths that have no socket or whose socket does not respond, each with the reason.
    silent: Vec<(SocketPlace, String)>,
    /// Sockets that criswitch serves. They are not backends.
    own: Vec<SocketPlace>,
    /// Runtimes that were found at other sockets than the named ones, and do not become backends.
    others: Vec<PlannedBackend>,
}

impl Discovered {
    fn places(&mut self) -> impl Iterator<Item = &mut SocketPlace> {
        self.plan
            .backends
            .iter_mut()
            .chain(&mut self.others)
            .map(|backend| &mut backend.place)
            .chain(self.silent.iter_mut().map(|(place, _)| place))
            .chain(&mut self.own)
    }
}

impl DiscoverArguments {
    pub(super) fn run(&self) -> anyhow::Result<Verdict> {
        let is_narrow = !self.sockets.is_empty() && !self.all;
        let discovered = look(&self.sockets, is_narrow, self.listen.as_ref(), &self.root)?;
        let notes = notes::notes(&discovered);
        if !self.shows_notes() || discovered.plan.backends.is_empty() {
            print_notes(&notes);
        }
        if discovered.plan.backends.is_empty() {
            bail!("{}", nothing(&discovered));
        }
        if let Some((place, cause)) = discovered.silent.iter().find(|(place, _)| place.is_named) {
            bail!(
                "no backend at {}: {cause}; start its runtime, or do not name its socket",
                place.socket
            );
        }
        let text = text::configuration(&discovered, &notes);
        let config = checked(&text)?;
        if let Some(file) = &self.write {
            write(file, &text)?;
            print(next_steps(file, &config))?;
        } else if let Some(encoding) = self.output.encoding() {
            print(encoding.document(json::report(&discovered, &notes, &config, &text))?)?;
        } else {
            print(text)?;
        }
        Ok(Verdict::Fine)
    }

    /// Whether the configuration, which contains the notes, is printed on a terminal. Then standard error need not
    /// repeat the notes.
    fn shows_notes(&self) -> bool {
        self.write.is_none() && self.output.encoding().is_none() && io::stdout().is_terminal()
    }
}

/// The configuration for the runtimes that answer at the well-known paths below `root`.
pub(super) fn configuration(root: &Path) -> anyhow::Result<String> {
    let mut discovered = look(&[], false, None, root)?;
    if discovered.plan.backends.is_empty() {
        bail!("{}", nothing(&discovered));
    }
    discovered.places().for_each(|place| place.strip(root));
    Ok(text::configuration(&discovered, &notes::notes(&discovered)))
}

/// Asks all sockets. If `is_narrow`, only those of `sockets` become backends.
fn look(
    sockets: &[Address],
    is_narrow: bool,
    own: Option<&Address>,
    root: &Path,
) -> anyhow::Result<Discovered> {
    let listen = own.cloned().unwrap_or_else(Address::default_listen);
    let (asked, rest): (Vec<_>, Vec<_>) =
        places::look(sockets, kubelet_runtime(root).as_ref(), root, &listen)
            .into_iter()
            .partition(|place| matches!(place.state, PlaceState::Socket));
    let mut ids = BackendIds::default();
    let backends: Vec<_> = asked
        .iter()
        .map(|place| BackendConfig::without_row(ids.issue(), &place.name, &place.socket))
        .collect();
    let answers = asked.into_iter().zip(probe_all(&backends, MAX_MESSAGE)?);
    Ok(sort(own.cloned(), is_narrow, answers, rest))
}

/// Divides the paths into backends, sockets that do not respond, and sockets of criswitch.
fn sort(
    listen: Option<Address>,
    is_narrow: bool,
    answers: impl Iterator<Item = (SocketPlace, Probe)>,
    rest: Vec<SocketPlace>,
) -> Discovered {
    let (mut backends, mut silent, mut own) = (Vec::new(), Vec::new(), Vec::new());
    let mut others = Vec::new();
    for (place, answer) in answers {
        match answer {
            Ok(found) if found.is_switch => own.push(place),
            Ok(found) if is_narrow && !place.is_named => {
                others.push(PlannedBackend { place, found });
            }
            Ok(found) => backends.push(PlannedBackend { place, found }),
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
        others,
    }
}

fn print_notes(notes: &[String]) {
    for note in notes {
        terminal::print_stderr(&format!("criswitch: {note}\n"));
    }
}

fn nothing(discovered: &Discovered) -> String {
    let found = if discovered.silent.is_empty() && discovered.own.is_empty() {
        "found no CRI socket at the well-known paths"
    } else {
        "no backend answers at any CRI socket"
    };
    let hint = if users::is_privileged() {
        "start the container runtime, or name the path of its socket"
    } else {
        "run the command as root, or name the path of the container runtime's socket"
    };
    format!("{found}; {hint} (criswitch discover --help lists the well-known paths)")
}

/// Parses the generated text, which must be a valid configuration.
fn checked(text: &str) -> anyhow::Result<Config> {
    Config::of_texts(&[(Path::new("discovered"), text.as_bytes())])
        .map_err(|problems| anyhow!("the result is not a valid configuration: {problems}"))
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    let shown = file.display();
    write_new(file, MODE, text.as_bytes()).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            anyhow!("{shown} exists and was not changed; try a different name, or move the file")
        }
        ErrorKind::NotFound => {
            let directory = file.parent().unwrap_or(file).display();
            anyhow!("cannot write {shown}: {directory} does not exist; try mkdir -p {directory}")
        }
        _ => anyhow!("cannot write {shown}: {error}"),
    })
}

fn next_steps(file: &Path, config: &Config) -> String {
    let (shown, endpoint) = (file.display(), config.listen.endpoint());
    let option = if file == Path::new(DEFAULT_PATH) {
        String::new()
    } else {
        format!(" --config {shown}")
    };
    format!(
        "criswitch wrote {shown}. Read it, then run:\n\
         \x20 criswitch check --probe{option}\n\
         \x20 criswitchd{option}\n\
         \x20 crictl -r {endpoint} pods\n\
         If these show what you expect, set for the kubelet:\n\
         \x20 --container-runtime-endpoint={endpoint}\n"
    )
}
