//! The settings of a runtime that concern the other programs of its node: NRI, the streaming server, the subnets of
//! pods, and the files that it imports.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use criswitch_client::probe::Probed;
use criswitch_client::probe::subnets::{Subnet, of_network};
use serde_json::Value;

use super::root::Root;

/// The settings of a runtime that concern other programs of the node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RuntimeSettings {
    /// `None` if NRI is off.
    pub(super) nri: Option<Nri>,
    /// The paths from which the runtime reads further configuration.
    pub(super) imports: Vec<PathBuf>,
    /// `None` if the kernel chooses a free port.
    pub(super) streaming: Option<StreamingServer>,
    /// The subnets in the CNI configuration of CRI-O. containerd reports its own subnets.
    pub(super) subnets: Vec<Subnet>,
}

/// The address of the server for streams of Exec, Attach and PortForward.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StreamingServer {
    pub(super) address: String,
    pub(super) port: String,
}

/// The defaults of the NRI library, which both runtimes have.
const NRI_SOCKET: &str = "/var/run/nri/nri.sock";
const NRI_PLUGINS: &str = "/opt/nri/plugins";

/// The paths that NRI uses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Nri {
    /// `None` if plug-ins cannot connect.
    pub(super) socket: Option<PathBuf>,
    pub(super) plugins: PathBuf,
}

impl RuntimeSettings {
    /// Reads the configuration of the runtime's process. `None` if the runtime is neither containerd nor CRI-O, or its
    /// process is in another PID namespace, which the kernel shows as process 0. `None` on Windows, where containerd
    /// has no NRI.
    ///
    /// # Errors
    /// Why the configuration is not known.
    pub(super) fn of(found: &Probed) -> Result<Option<RuntimeSettings>, String> {
        let Some(pid) = found.pid.filter(|pid| cfg!(unix) && *pid > 0) else {
            return Ok(None);
        };
        let settings = match found.runtime.as_str() {
            "containerd" => of_containerd,
            "cri-o" => of_crio,
            _ => return Ok(None),
        };
        let [line, variables] = ["cmdline", "environ"].map(|name| {
            fs::read(format!("/proc/{pid}/{name}"))
                .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
                .map_err(|error| format!("cannot read the {name} of process {pid}: {error}"))
        });
        let (line, variables) = (line?, variables?);
        let [arguments, variables] =
            [&line, &variables].map(|text| Vec::from_iter(text.split('\0')));
        let folder = fs::read_link(format!("/proc/{pid}/cwd"))
            .map_err(|error| format!("cannot read the directory of process {pid}: {error}"))?;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        // A program of another name, such as `systemd` or a wrapper, has other arguments.
        let path = arguments.first().copied().unwrap_or_default();
        let program = Path::new(path).file_name().and_then(OsStr::to_str);
        if !program.is_some_and(|name| name.starts_with("containerd") || name.starts_with("crio")) {
            return Err(format!("its process {pid} runs {path:?}"));
        }
        let process = RuntimeProcess {
            root: Root::of(&root),
            folder: &folder,
            arguments: &arguments,
            variables: &variables,
        };
        settings(&process, &found.version).map(Some)
    }
}

/// A runtime's process: its files, and how it was started.
struct RuntimeProcess<'a> {
    root: Root<'a>,
    /// The working directory, from which relative paths start.
    folder: &'a Path,
    arguments: &'a [&'a str],
    /// The environment, each variable as `NAME=value`.
    variables: &'a [&'a str],
}

impl RuntimeProcess<'_> {
    /// The value of a flag of CRI-O, else of the environment variable that CRI-O names after the flag. The flags of NRI
    /// have no variables.
    fn flag_or_variable(&self, names: [&str; 2]) -> Option<&str> {
        option(self.arguments, names).or_else(|| {
            let name = names[1].trim_start_matches('-').replace('-', "_");
            let start = format!("CONTAINER_{}=", name.to_uppercase());
            let mut variables = self.variables.iter();
            variables.find_map(|variable| variable.strip_prefix(&*start))
        })
    }

    /// The path and the table of the main configuration file. The file at the default path may be missing.
    fn main(&self, named: Option<&str>, default: &str) -> Result<(PathBuf, toml::Table), String> {
        let file = self.folder.join(named.unwrap_or(default));
        match toml(&self.root, &file)? {
            None if named.is_some() => Err(format!("{} does not exist", file.display())),
            table => Ok((file, table.unwrap_or_default())),
        }
    }
}

/// Reads the settings of a containerd. The defaults are as in `containerd config default`: NRI is on since 2.0.
fn of_containerd(process: &RuntimeProcess<'_>, version: &str) -> Result<RuntimeSettings, String> {
    const NRI: &str = "io.containerd.nri.v1.nri";
    let named = option(process.arguments, ["-c", "--config"]);
    let (file, main) = process.main(named, "/etc/containerd/config.toml")?;
    // A relative import is relative to the folder of the file.
    let folder = file.parent().unwrap_or(Path::new("/"));
    let mut tables = vec![main];
    let imports: Vec<_> = tables
        .iter()
        .flat_map(|main| strings(main, "imports"))
        .map(|import| folder.join(import))
        .collect();
    for import in &imports {
        tables.extend(tomls(&process.root, import)?);
    }
    if tables
        .iter()
        .skip(1)
        .any(|table| strings(table, "imports").next().is_some())
    {
        return Err("a file that containerd imports has imports of its own".to_owned());
    }
    let is_disabled = tables
        .iter()
        .any(|table| strings(table, "disabled_plugins").any(|plugin| plugin == NRI));
    let nri = Nested {
        tables: &tables,
        path: &["plugins", NRI],
    };
    let is_off = nri
        .bool("disable")
        .unwrap_or(minor_version(version) < (2, 0));
    let layout = tables.first().and_then(|table| table.get("version"));
    let cri = Nested {
        tables: &tables,
        path: match layout.map_or(Some(1), toml::Value::as_integer) {
            Some(1) => &["plugins", "cri"],
            Some(2..=4) => &["plugins", "io.containerd.grpc.v1.cri"],
            _ => return Err("the version of containerd's configuration is not known".to_owned()),
        },
    };
    // For an empty address, containerd listens at the address of the node's default route only.
    let address = match cri.text("stream_server_address", "127.0.0.1") {
        "" => "the node's address",
        address => address,
    };
    Ok(RuntimeSettings {
        nri: (!is_off && !is_disabled).then(|| Nri {
            socket: (nri.bool("disable_connections") != Some(true))
                .then(|| nri.text("socket_path", NRI_SOCKET).into()),
            plugins: nri.text("plugin_path", NRI_PLUGINS).into(),
        }),
        imports,
        streaming: streaming(address, cri.text("stream_server_port", "0")),
        subnets: Vec::new(),
    })
}

/// The texts in an array of a table.
fn strings<'a>(table: &'a toml::Table, key: &str) -> impl Iterator<Item = &'a str> {
    table
        .get(key)
        .and_then(toml::Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(toml::Value::as_str)
}

/// Reads the settings of a CRI-O. The defaults are as in crio.conf(5): NRI is on since 1.30. Flags take precedence over
/// variables, and variables over files.
fn of_crio(process: &RuntimeProcess<'_>, version: &str) -> Result<RuntimeSettings, String> {
    let named = process.flag_or_variable(["-c", "--config"]);
    let (_, main) = process.main(named, "/etc/crio/crio.conf")?;
    let folder = process.flag_or_variable(["-d", "--config-dir"]);
    let folder = folder.unwrap_or("/etc/crio/crio.conf.d");
    let drop_ins = process.folder.join(folder).join("*");
    let mut tables = vec![main];
    tables.extend(tomls(&process.root, &drop_ins)?);
    let nri = Nested {
        tables: &tables,
        path: &["crio", "nri"],
    };
    let flag = |name| option(process.arguments, [name, name]);
    let is_set = |name, key| {
        if process.arguments.contains(&name) {
            return Some(true);
        }
        flag(name)
            .and_then(|value| value.parse().ok())
            .or_else(|| nri.bool(key))
    };
    let path = |name, key, default| flag(name).unwrap_or_else(|| nri.text(key, default)).into();
    let is_on = is_set("--enable-nri", "enable_nri").unwrap_or(minor_version(version) >= (1, 30));
    let is_closed = is_set("--nri-disable-connections", "nri_disable_connections") == Some(true);
    let paths = Nri {
        socket: (!is_closed).then(|| path("--nri-listen", "nri_listen", NRI_SOCKET)),
        plugins: path("--nri-plugin-dir", "nri_plugin_dir", NRI_PLUGINS),
    };
    let api = Nested {
        tables: &tables,
        path: &["crio", "api"],
    };
    let cni = Nested {
        tables: &tables,
        path: &["crio", "network"],
    };
    let text = |name, table: &Nested<'_>, key, default| {
        let value = process.flag_or_variable([name, name]);
        value.unwrap_or_else(|| table.text(key, default)).to_owned()
    };
    let networks = text("--cni-config-dir", &cni, "network_dir", "/etc/cni/net.d");
    let network = text("--cni-default-network", &cni, "cni_default_network", "");
    Ok(RuntimeSettings {
        nri: is_on.then_some(paths),
        imports: vec![drop_ins],
        streaming: streaming(
            &text("--stream-address", &api, "stream_address", "127.0.0.1"),
            &text("--stream-port", &api, "stream_port", "0"),
        ),
        subnets: subnets_in(&process.root, &process.folder.join(networks), &network),
    })
}

/// The subnets of the CNI network with this name in CRI-O's folder of networks; of the first network if the name is
/// empty. As CRI-O does, it skips a file that has no network or cannot be read.
fn subnets_in(root: &Root<'_>, folder: &Path, wanted: &str) -> Vec<Subnet> {
    let files = root.files_in(folder, &["conf", "conflist", "json"]);
    let mut networks = files.into_iter().filter_map(|file| {
        let text = root.text(&file).ok()??;
        let network: Value = serde_json::from_str(&text).ok()?;
        let plugins = network.get("plugins").and_then(Value::as_array);
        let is_network =
            network.get("type").is_some() || plugins.is_some_and(|list| !list.is_empty());
        let name = network.get("name")?.as_str()?.to_owned();
        (is_network && (wanted.is_empty() || wanted == name)).then_some((name, network))
    });
    networks
        .next()
        .map_or_else(Vec::new, |(name, network)| of_network(&name, &network))
}

/// A table below these keys, in several files. The last file that has a key counts.
struct Nested<'a> {
    tables: &'a [toml::Table],
    path: &'a [&'a str],
}

impl Nested<'_> {
    fn value(&self, key: &str) -> Option<&toml::Value> {
        self.tables.iter().rev().find_map(|table| {
            self.path
                .iter()
                .try_fold(table, |table, key| table.get(*key)?.as_table())?
                .get(key)
        })
    }

    fn bool(&self, key: &str) -> Option<bool> {
        self.value(key)?.as_bool()
    }

    fn text<'t>(&'t self, key: &str, default: &'t str) -> &'t str {
        self.value(key)
            .and_then(toml::Value::as_str)
            .unwrap_or(default)
    }
}

/// The streaming server with this address and port; `None` if the port is chosen at each start.
fn streaming(address: &str, port: &str) -> Option<StreamingServer> {
    (!matches!(port, "" | "0")).then(|| StreamingServer {
        address: address.to_owned(),
        port: port.to_owned(),
    })
}

/// The value of an option on a command line.
fn option<'a>(arguments: &[&'a str], names: [&str; 2]) -> Option<&'a str> {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        match word.split_once('=') {
            Some((name, value)) if names.contains(&name) => return Some(value),
            _ if names.contains(word) => return words.next().copied(),
            _ => {}
        }
    }
    None
}

/// The table in a file of the runtime; `None` if the file does not exist.
fn toml(root: &Root<'_>, file: &Path) -> Result<Option<toml::Table>, String> {
    let text = read(root, file)?.map(|text| text.parse());
    text.transpose().map_err(|fault: toml::de::Error| {
        format!("{} is not TOML: {}", file.display(), fault.message())
    })
}

/// The text of a file of the runtime; `None` if the file does not exist.
fn read(root: &Root<'_>, file: &Path) -> Result<Option<String>, String> {
    root.text(file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))
}

/// The tables in the files of a path whose last part may have one `*`, in the order of their names.
fn tomls(root: &Root<'_>, pattern: &Path) -> Result<Vec<toml::Table>, String> {
    let text = pattern.to_string_lossy();
    let (folder, name) = text.rsplit_once('/').unwrap_or(("", &text));
    if folder.contains('*') || name.matches('*').count() > 1 || text.contains(['?', '[']) {
        return Err(format!("cannot read the files of the pattern {text}"));
    }
    if let Some(name) = pattern.file_name().and_then(OsStr::to_str)
        && let Some((start, end)) = name.split_once('*')
        && let Some(folder) = pattern.parent()
    {
        root.names_in(folder)
            .map_err(|error| format!("cannot read {}: {error}", folder.display()))?
            .iter()
            .filter(|name| {
                name.strip_prefix(start)
                    .is_some_and(|rest| rest.ends_with(end))
            })
            .filter_map(|name| toml(root, &folder.join(name)).transpose())
            .collect()
    } else {
        Ok(Vec::from_iter(toml(root, pattern)?))
    }
}

/// The first two numbers of a version; 0 for a part that is not a number.
fn minor_version(version: &str) -> (u32, u32) {
    let mut numbers = version
        .trim_start_matches('v')
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or_default());
    (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests;
