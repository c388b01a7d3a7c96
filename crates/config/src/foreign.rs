//! Recognizes keys and files that belong to other programs, for the hints in problems. Data only, and the lookups.

/// The names of keys of other programs in lower case without `-` and `_`, and the key of criswitch for the same
/// purpose. The first field is the table in which the row applies.
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

/// The names of the key `socket` of a row in files of other programs.
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

/// The hint for a key that another program has in a file of this kind.
pub(super) fn key_hint(table: &str, name: &str) -> Option<&'static str> {
    let folded = name.to_lowercase().replace(['-', '_'], "");
    if ["handlers", "backends"].contains(&table) {
        return SOCKETS.contains(&folded.as_str()).then_some("\"socket\"");
    }
    KEYS.iter()
        .find(|(its, names, _)| *its == table && names.contains(&&*folded))
        .map(|(.., hint)| *hint)
}

/// The line and the name of a file that is not criswitch's. A file of containerd or CRI-O may be TOML, and any of its
/// lines shows it. Of another file, the first line shows it: a later line may be a slip in criswitch's configuration.
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
        let is_yaml = is_first && is_word(key) && (rest.is_empty() || rest.starts_with(' '));
        Some((index + 1, known.or(is_yaml.then_some("YAML"))?))
    })
}

fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}
