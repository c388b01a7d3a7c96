//! The specification of a node for `criswitch node`: the configuration of the node, and a table `[node]` with keys of
//! the command itself. Its problems have the same form as those of a configuration.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use strum::VariantArray;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::files::{self, ConfigFile};
use super::keys::Limits;
use super::problem::{Place, Problems, nearest};
use super::value::{self, InvalidValue, invalid_value};
use super::{Config, disk};

const TABLE: &str = "node";
const KUBELET_TIMEOUT: Duration = Duration::from_secs(20);
const SETTLE_TIME: Duration = Duration::from_secs(5);
const LIMITS: Limits = Limits {
    zero: false,
    most: "5m",
    unlimited: false,
};

/// The wanted state of a node, for `criswitch node`.
#[derive(Debug)]
pub struct Specification {
    /// The version of criswitch; `None` for the version of the program that runs the command.
    pub version: Option<String>,
    /// The id of the only machine that the specification is for.
    pub machine_id: Option<String>,
    /// The names of the findings that do not count.
    pub accept: Vec<String>,
    /// How long criswitch may take after its start until it serves, and the kubelet after its restart.
    pub kubelet_timeout: Duration,
    /// How long the kubelet must serve until its restart counts as a success.
    pub settle_time: Duration,
    /// Whether and how the handlers are tried before the kubelet uses criswitch.
    pub tries: Tries,
    /// The number of the specification. A specification is not applied after a specification with a higher number.
    pub generation: Option<u64>,
    /// The text of the node's configuration file. `None` keeps the node's file; if there is no file, a configuration is
    /// discovered.
    pub configuration: Option<String>,
}

/// How each handler is tried.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    VariantArray,
    strum::AsRefStr,
    Serialize,
    Deserialize,
)]
#[strum(serialize_all = "kebab-case")]
pub enum Tries {
    /// With a pod in the pod network.
    #[default]
    PodNetwork,
    /// With a pod in the network of the host.
    HostNetwork,
    /// No try.
    Off,
}

/// A key of the table `[node]`.
struct NodeKey {
    name: &'static str,
    /// Whether the value is an array of strings, not a string.
    is_array: bool,
    example: &'static str,
    /// Sets the value. The last argument has the names of all findings.
    set: fn(&mut Specification, &str, &[&str]) -> Result<(), InvalidValue>,
}

#[rustfmt::skip]
const KEYS: [NodeKey; 7] = [
    NodeKey { name: "version", is_array: false, example: "\"0.1.0\"",
        set: |its, text, _| { its.version = Some(text.to_owned()); Ok(()) } },
    NodeKey { name: "machine_id", is_array: false, example: MACHINE_ID,
        set: |its, text, _| { its.machine_id = Some(machine_id(text)?); Ok(()) } },
    NodeKey { name: "accept", is_array: true, example: "[\"kubelet-version\"]",
        set: |its, text, findings| { its.accept.push(accepted(text, findings)?); Ok(()) } },
    NodeKey { name: "kubelet_timeout", is_array: false, example: "\"20s\"",
        set: |its, text, _| { its.kubelet_timeout = value::duration(text, &LIMITS)?; Ok(()) } },
    NodeKey { name: "settle_time", is_array: false, example: "\"5s\"",
        set: |its, text, _| { its.settle_time = value::duration(text, &LIMITS)?; Ok(()) } },
    NodeKey { name: "try", is_array: false, example: TRIES,
        set: |its, text, _| { its.tries = tries(text)?; Ok(()) } },
    NodeKey { name: "generation", is_array: false, example: "7",
        set: |its, text, _| { its.generation = Some(generation(text)?); Ok(()) } },
];
const TRIES: &str = "\"pod-network\", \"host-network\" or \"off\"";
/// The hint for a key `mode`. There is no such key, because the commands already say whether to install.
const NO_MODE: &str =
    "removing it: criswitch node plan changes nothing, criswitch node apply installs";
const MACHINE_ID: &str = "the 32 hex digits of /etc/machine-id";

impl Default for Specification {
    fn default() -> Specification {
        Specification {
            version: None,
            machine_id: None,
            accept: Vec::new(),
            kubelet_timeout: KUBELET_TIMEOUT,
            settle_time: SETTLE_TIME,
            tries: Tries::default(),
            generation: None,
            configuration: None,
        }
    }
}

impl Specification {
    /// Reads and checks a specification. `findings` has the names that `accept` may have.
    ///
    /// # Errors
    /// Every problem of the file, sorted by line and column.
    pub fn load(path: &Path, findings: &[&str]) -> Result<Specification, Problems> {
        let mut problems = Problems::default();
        let start = Place::start(0, path);
        let bytes = disk::bytes(path).unwrap_or_else(|error| {
            problems.report(
                &start,
                format_args!("cannot be read: {error}"),
                "a readable file after --spec",
            );
            Vec::new()
        });
        let file = files::decode_file(start.clone(), bytes, &mut problems)
            .filter(|_| problems.is_empty())
            .ok_or_else(|| problems.clone())?;
        let (table, errors) = DeTable::parse_recoverable(&file.text);
        let table = table.get_ref();
        let mut specification = Specification::default();
        let lines = if errors.is_empty() {
            specification.read(&file, table, findings, &mut problems)
        } else {
            Vec::new()
        };
        // A file with syntax errors is read as a configuration, which reports them.
        if !errors.is_empty() || table.keys().any(|key| key.get_ref() != TABLE) {
            let rest = without(&file.text, &lines);
            let file = files::decode_file(start, rest.clone().into_bytes(), &mut problems);
            Config::of_files(path, &Vec::from_iter(file), problems)?;
            specification.configuration = Some(rest);
            return Ok(specification);
        }
        if problems.is_empty() {
            Ok(specification)
        } else {
            Err(problems)
        }
    }

    /// Reads the table `[node]`, and returns the ranges of the text that contain it.
    fn read(
        &mut self,
        file: &ConfigFile,
        table: &DeTable<'_>,
        findings: &[&str],
        problems: &mut Problems,
    ) -> Vec<Range<usize>> {
        let Some((name, value)) = table.iter().find(|(key, _)| key.get_ref() == TABLE) else {
            return Vec::new();
        };
        let mut own = vec![name.span(), value.span()];
        let DeValue::Table(entries) = value.get_ref() else {
            problems.report(
                &file.place(name.span().start),
                format_args!("{TABLE:?} is not a table"),
                "[node]",
            );
            return own;
        };
        for (key, value) in entries {
            own.extend([key.span(), value.span()]);
            let Some(known) = KEYS.iter().find(|known| known.name == key.get_ref()) else {
                let what = format_args!("unknown key {:?}", key.get_ref());
                let hint = match key.get_ref().as_ref() {
                    "mode" => NO_MODE.to_owned(),
                    key => nearest(key, KEYS.map(|known| known.name)).unwrap_or_default(),
                };
                problems.report(&file.place(key.span().start), what, hint);
                continue;
            };
            for (at, InvalidValue { what, hint }) in self.set(known, value, findings) {
                problems.report(&file.place(at), what, hint);
            }
        }
        own
    }

    /// Sets the value of a key. Returns what is wrong, with its offset in the text.
    fn set(
        &mut self,
        key: &NodeKey,
        value: &Spanned<DeValue<'_>>,
        findings: &[&str],
    ) -> Vec<(usize, InvalidValue)> {
        let values = match value.get_ref() {
            DeValue::Array(values) if key.is_array => values,
            _ if key.is_array => {
                let what = format!("{:?} is not an array of strings", key.name);
                return vec![(value.span().start, invalid_value(what, key.example))];
            }
            _ => std::slice::from_ref(value),
        };
        values
            .iter()
            .filter_map(|value| {
                let text = match value.get_ref() {
                    DeValue::String(text) => Ok(text.as_ref()),
                    DeValue::Integer(number)
                        if key.name == "generation" && number.radix() == 10 =>
                    {
                        Ok(number.as_str())
                    }
                    _ => Err(invalid_value(
                        format!("{:?} is not a string", key.name),
                        key.example,
                    )),
                };
                let set = text.and_then(|text| (key.set)(self, text, findings));
                Some((value.span().start, set.err()?))
            })
            .collect()
    }
}

/// The text with an empty line in place of each line that overlaps a range in `own`. All other lines keep their line
/// numbers.
fn without(text: &str, own: &[Range<usize>]) -> String {
    let mut next = 0;
    text.split_inclusive('\n')
        .map(|line| {
            let start = next;
            next += line.len();
            let is_own = own.iter().any(|part| part.start < next && start < part.end);
            if is_own { "\n" } else { line }
        })
        .collect()
}

fn tries(text: &str) -> Result<Tries, InvalidValue> {
    Tries::VARIANTS
        .iter()
        .find(|tries| tries.as_ref() == text)
        .copied()
        .ok_or_else(|| invalid_value(format!("{text:?} is not a kind of try"), TRIES))
}

fn machine_id(text: &str) -> Result<String, InvalidValue> {
    if text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(text.to_owned());
    }
    Err(invalid_value(
        format!("{text:?} is not the id of a machine"),
        MACHINE_ID,
    ))
}

fn accepted(text: &str, findings: &[&str]) -> Result<String, InvalidValue> {
    if findings.contains(&text) {
        return Ok(text.to_owned());
    }
    let hint = nearest(text, findings.iter().copied()).unwrap_or_default();
    Err(invalid_value(
        format!("{text:?} is not an acceptable finding"),
        &hint,
    ))
}

fn generation(text: &str) -> Result<u64, InvalidValue> {
    text.parse().map_err(|_| {
        invalid_value(
            format!("{text:?} is not the number of a specification"),
            "7",
        )
    })
}
