//! Recognizes keys and files that belong to other programs, for the hints in problems. Has only data and lookups.

/// Keys of other programs. Each entry has the table in which it applies, the names in lower case without `-` and `_`,
/// and a hint at the key of criswitch for the same purpose.
#[rustfmt::skip]
const KEYS: [(&str, &[&str], &str); 10] = [
    ("", &["import", "imports", "include", "includes"],
        "files in the directory conf.d beside this file, which criswitch reads too"),
    ("", &["runtimeendpoint", "containerruntimeendpoint", "runtimes", "runtime"],
        "a row under [handlers] with the runtime's socket"),
    ("", &["imageendpoint", "imageserviceendpoint"], "removing it: criswitch sends image calls to the backends"),
    ("", &["loglevel", "level", "debug", "verbose"], "level under [log]"),
    ("", &["logformat", "format"], "format under [log]"),
    ("", &["node"], "criswitch node plan --spec FILE: the table is for a specification, not for the daemon"),
    ("", &["metricslisten", "metricsaddress", "metricsport", "metricsbindaddress"], "listen under [metrics]"),
    ("", &["endpoint", "address", "socket", "socketpath"],
        "\"listen\" for criswitch's own socket, or a row under [handlers] for a runtime's"),
    ("", &["defaultruntime", "defaultruntimename", "defaultruntimehandler"], "\"default_handler\""),
    ("metrics", &["address", "endpoint", "port", "bindaddress"], "\"listen\""),
];

/// Names that other programs use for what criswitch calls `socket` in a row.
const SOCKETS: [&str; 4] = ["endpoint", "runtimeendpoint", "address", "path"];

/// Line prefixes that identify the file of another program, and the name of that file.
const FILES: [(&str, &str); 8] = [
    ("[plugins", "containerd's configuration"),
    ("disabled_plugins", "containerd's configuration"),
    ("[crio", "CRI-O's configuration"),
    ("runtime-endpoint:", "crictl's configuration"),
    ("image-endpoint:", "crictl's configuration"),
    ("apiVersion:", "a Kubernetes object in YAML"),
    ("---", "YAML"),
    ("{", "JSON"),
];

/// The hint for a key that belongs to another program.
pub(super) fn key_hint(table: &str, name: &str) -> Option<&'static str> {
    let folded = name.to_lowercase().replace(['-', '_'], "");
    if ["handlers", "backends"].contains(&table) {
        return SOCKETS.contains(&folded.as_str()).then_some("\"socket\"");
    }
    KEYS.iter()
        .find(|(its, names, _)| *its == table && names.contains(&&*folded))
        .map(|(.., hint)| *hint)
}

/// The name of the file if it belongs to another program, with the line that shows this. A file of containerd or CRI-O
/// may be valid TOML, so any of its lines counts. For other files only the first line counts: a later line may be a
/// mistake in criswitch's configuration.
pub(super) fn file(text: &str, is_toml: bool) -> Option<(usize, &'static str)> {
    let mut lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let first = lines.clone().next().map(|(index, _)| index);
    lines.find_map(|(index, line)| {
        let is_first = !is_toml && Some(index) == first;
        let known = FILES
            .iter()
            .filter(|(start, _)| is_first || start.starts_with(['[', 'd']))
            .find(|(start, _)| line.starts_with(start))
            .map(|(_, name)| *name);
        let (key, rest) = line.split_once(':').unwrap_or_default();
        // A file with the header of a table is TOML with a mistake.
        let is_yaml = is_first
            && is_word(key)
            && (rest.is_empty() || rest.starts_with(' '))
            && !text.lines().any(|line| line.starts_with('['));
        Some((index + 1, known.or(is_yaml.then_some("YAML"))?))
    })
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}
