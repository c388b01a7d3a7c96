//! README.md and docs/ are correct, and their links have targets. `UPDATE_EXPECT=1` rewrites the generated tables.
#![allow(
    clippy::unwrap_used,
    reason = "clippy allows it in test functions only"
)]

use std::collections::HashMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "readme/comments.rs"]
mod comments;
#[path = "readme/lanes.rs"]
mod lanes;
#[path = "readme/release.rs"]
mod release;
#[path = "readme/words.rs"]
mod words;

use criswitch::operator::metrics::{FAMILIES, MetricKind};
use criswitch_advice::{Effect, FAMILIES as FIELDS, Family, LIMITS, Limit};
use criswitch_config::RuntimeKind;
use criswitch_cri::rpc::ROWS;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The size limit of README.md, in bytes, so that it stays readable.
const README_BYTES: usize = 10_240;

fn at(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn shipped(path: &str) -> String {
    fs::read_to_string(at(path)).unwrap()
}

/// The chapters in docs/, by path.
fn chapters() -> Vec<String> {
    let files = fs::read_dir(at("docs")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let chapters = names.filter(|name| name.ends_with(".md"));
    chapters.map(|name| format!("docs/{name}")).collect()
}

/// The pages in docs/decisions, by path.
fn decisions() -> Vec<String> {
    let files = fs::read_dir(at("docs/decisions")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.map(|name| format!("docs/decisions/{name}")).collect()
}

fn documents() -> Vec<String> {
    let around = [
        "README.md",
        "CHANGELOG.md",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "GOVERNANCE.md",
        "MAINTAINERS.md",
        "ROADMAP.md",
        "SECURITY.md",
        "deploy/chart/README.md",
    ];
    [around.map(str::to_owned).to_vec(), chapters(), decisions()].concat()
}

/// The table of RPCs. RPCs whose cells differ only in the name share a row.
fn table() -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    for words in ROWS.iter().map(criswitch_cri::rpc::Row::words) {
        let (_, name) = words.rpc.split_once('/').unwrap();
        let (goes_to, key, reply) = (words.goes_to, words.key, words.reply);
        let (unknown_id, optional) = (words.unknown_id, words.optional);
        let cells = format!("{goes_to} | {key} | {unknown_id} | {optional} | {reply}");
        match rows.iter_mut().find(|(_, known)| *known == cells) {
            Some((names, _)) => *names += &format!(", {name}"),
            None => rows.push((name.to_owned(), cells)),
        }
    }
    let rows = rows
        .iter()
        .map(|(names, cells)| format!("| {names} | {cells} |\n"));
    let head =
        "| RPC | Goes to | Key | Unknown id | Optional | Reply |\n|---|---|---|---|---|---|\n";
    rows.fold(head.to_owned(), |table, row| table + &row)
}

fn families() -> String {
    let mut table = String::from("| Metric | Labels | What |\n|---|---|---|\n");
    // The table omits the usual metrics of a process, which the text of the chapter names.
    let own = FAMILIES
        .iter()
        .filter(|family| !family.name.starts_with("process_"));
    for family in own {
        let (name, labels) = (family.name, family.labels.join(", "));
        let kind = match family.kind {
            MetricKind::Histogram => " (histogram)",
            MetricKind::Counter | MetricKind::Gauge => "",
        };
        writeln!(table, "| `{name}`{kind} | {labels} | {} |", family.help).unwrap();
    }
    table
}

/// The names of the limits that checks of tests/system/runtimes confirm with real pods: such a check begins with the
/// name, which has no blank.
fn confirmed() -> Vec<String> {
    let files = ["25-limits", "26-kernel-limits", "96-cluster"];
    let checks = files
        .map(|name| shipped(&format!("tests/system/runtimes/checks/{name}.bats")))
        .concat();
    let names = checks
        .lines()
        .filter_map(|line| line.strip_prefix("@test \""))
        .filter_map(|line| Some(line.split_once(':')?.0.to_owned()));
    names.filter(|name| !name.contains(' ')).collect()
}

fn limits() -> String {
    let (confirmed, mut sources) = (confirmed(), Vec::new());
    let mut table =
        String::from("| Limit | Kinds | Fields | Effect | What happens |\n|---|---|---|---|---|\n");
    for limit in LIMITS {
        let id = limit.id;
        let link = limit
            .source
            .link()
            .map(|url| {
                let known = sources.iter().position(|source| *source == url);
                known.unwrap_or_else(|| {
                    sources.push(url);
                    sources.len() - 1
                })
            })
            .map_or_else(
                || format!("`{id}` ({})", limit.source.title),
                |number| format!("[`{id}`][{number}]"),
            );
        let kinds: Vec<_> = limit.kinds.iter().map(|kind| short_title(*kind)).collect();
        let kinds = match (limit.is_of_kubelet(), kinds.is_empty()) {
            (true, _) | (_, true) => "any".to_owned(),
            _ => kinds.join(", "),
        };
        let fields = short_fields(limit.field_names());
        let confirmed = confirmed.iter().any(|name| name == id);
        let effect = effect(limit, confirmed);
        writeln!(
            table,
            "| {link} | {kinds} | {fields} | {effect} | {} |",
            limit.reason
        )
        .unwrap();
    }
    table.push('\n');
    for (number, url) in sources.iter().enumerate() {
        writeln!(table, "[{number}]: {url}").unwrap();
    }
    table
}

/// The effect of a limit, the fact that it depends on, the action of a policy, and whether a test confirms it.
fn effect(limit: &Limit, confirmed: bool) -> String {
    let mut effect = limit.effect.as_ref().to_owned();
    if let Some((fact, value)) = limit.only_if {
        effect += &format!(" if {}", fact.words(value));
    }
    effect += match limit.policy() {
        Some(Effect::Fails) => ", `Deny`",
        Some(_) => ", `Warn`",
        None => "",
    };
    effect + if confirmed { ", confirmed" } else { "" }
}

/// Parts of a field's path that do not distinguish fields.
const USUAL_PARTS: [&str; 5] = [
    "spec",
    "containers",
    "securityContext",
    "volumes",
    "volumeMounts",
];

/// The last two parts of each field that distinguish it.
fn short_fields<'a>(fields: impl Iterator<Item = &'a str>) -> String {
    let mut short: Vec<String> = Vec::new();
    for field in fields {
        let mut parts: Vec<_> = field
            .split('.')
            .map(|part| part.trim_end_matches("[*]"))
            .filter(|part| !USUAL_PARTS.contains(part))
            .collect();
        let field = format!(
            "`{}`",
            parts.split_off(parts.len().saturating_sub(2)).join(".")
        );
        if field != "``" && !short.contains(&field) {
            short.push(field);
        }
    }
    short.join(" ")
}

/// The families of fields, by the kinds that need no limit for them.
fn families_of_fields() -> String {
    let mut rows: Vec<(String, Vec<&str>)> = Vec::new();
    for family in FIELDS {
        let works_in = works_in(family);
        match rows.iter_mut().find(|(known, _)| *known == works_in) {
            Some((_, titles)) => titles.push(family.title),
            None => rows.push((works_in, vec![family.title])),
        }
    }
    let rows = rows
        .iter()
        .map(|(works_in, titles)| format!("| {} | {works_in} |\n", titles.join("; ")));
    let head = "| A pod may ask for | Works in |\n|---|---|\n";
    rows.fold(head.to_owned(), |table, row| table + &row)
}

/// The kinds that do all or some of what a family asks for.
fn works_in(family: &Family) -> String {
    let kinds = <RuntimeKind as strum::VariantArray>::VARIANTS.iter();
    let kinds = kinds.filter_map(|kind| {
        if family.works_in(*kind)? {
            Some(short_title(*kind).to_owned())
        } else {
            Some(format!("{} (some)", short_title(*kind)))
        }
    });
    kinds.collect::<Vec<_>>().join(", ")
}

/// The first word of a kind's title, such as `Kata`.
fn short_title(kind: RuntimeKind) -> &'static str {
    kind.title().split(' ').next().unwrap_or_default()
}

/// Checks that `own` is the text between the two comments `mark` in a document. `UPDATE_EXPECT=1` writes `own` there.
#[track_caller]
fn assert_between(document: &str, mark: &str, own: &str) {
    let text = shipped(document);
    let (begin, end) = (format!("<!-- {mark} -->\n"), format!("<!-- /{mark} -->"));
    let (before, rest) = text.split_once(&begin).unwrap();
    let (shown, after) = rest.split_once(&end).unwrap();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(at(document), format!("{before}{begin}{own}{end}{after}")).unwrap();
        return;
    }
    assert_eq!(shown, own);
}

#[test]
fn the_documented_rpcs_and_metrics_are_those_of_the_tables() {
    assert_between("docs/rpcs.md", "routes", &table());
    assert_between("docs/metrics.md", "metrics", &families());
}

#[test]
fn the_documented_limits_are_those_of_the_table_and_each_confirmation_names_a_limit() {
    assert_between("docs/compatibility.md", "families", &families_of_fields());
    assert_between("docs/compatibility.md", "limits", &limits());
    for name in confirmed() {
        assert!(LIMITS.iter().any(|limit| limit.id == name), "{name}");
    }
}

/// The value of the unit's key `name`, in MiB.
fn unit_mib(name: &str) -> usize {
    let unit = include_str!("../systemd/criswitch.service");
    let value = unit
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .unwrap();
    value.strip_suffix('M').unwrap().parse().unwrap()
}

#[test]
fn memory_high_of_the_unit_is_the_sum_of_all_limits_and_memory_max_is_a_quarter_more() {
    let mut keys = criswitch_config::KEYS.iter();
    let key = keys.find(|key| key.name == "max_message").unwrap();
    assert_eq!(key.default, Some("16MiB"));
    let most = criswitch::limits::budget::most(16 << 20, 4) >> 20;
    assert_eq!(unit_mib("MemoryHigh="), most);
    assert_eq!(unit_mib("MemoryMax="), most + most / 4);
    let said = format!("add up to {most} MiB for four backends");
    assert!(shipped("docs/limits.md").contains(&said), "{said}");
}

#[test]
fn every_module_with_a_log_level_is_documented() {
    let chapter = shipped("docs/architecture.md");
    for module in criswitch_config::MODULES {
        assert!(chapter.contains(&format!("`{module}`")), "{module}");
    }
}

#[test]
fn the_keys_that_need_a_restart_are_in_the_table_of_reloads() {
    let chapter = shipped("docs/live-change.md");
    let row = chapter
        .lines()
        .find(|line| line.ends_with("these keys need a restart |"))
        .unwrap();
    for key in criswitch_config::KEYS {
        let needs_restart = key.applies == criswitch_config::Applies::Restart;
        let listed = row.contains(&format!("`{}`", key.name));
        assert_eq!(listed, needs_restart, "{}", key.name);
    }
}

#[test]
fn the_documented_limits_are_those_of_the_constants() {
    use criswitch::gate;
    use criswitch::limits::{self, flood};
    let chapter = shipped("docs/limits.md");
    for (what, limit) in [
        ("Connections of clients at once", limits::MAX_CONNECTIONS),
        ("Of these, reserved for root", limits::RESERVED_CONNECTIONS),
        ("Connections of each other user", limits::USER_CONNECTIONS),
        ("connections of these", limits::LEAVING_CONNECTIONS),
        (
            "Further connections to one backend",
            limits::streams::MAX_FURTHER_CONNECTIONS,
        ),
        ("Cheap frames a second", flood::CHEAP_FRAMES as usize),
        ("Calls in flight in all", limits::MAX_CALLS),
        ("so that", limits::RESERVED_CALLS),
        ("Of all calls, calls of users other", limits::OTHERS_CALLS),
        ("Of these, calls of one user", limits::USER_CALLS),
        ("streams of events of one user", limits::USER_SUBSCRIBERS),
        ("Calls of the [admin service]", limits::MAX_ADMIN_CALLS),
        (
            "Bytes of all requests in flight",
            limits::budget::SMALL >> 10,
        ),
        (
            "The path of a socket",
            criswitch_config::address::MAX_PATH_BYTES,
        ),
        ("Handlers in a `Status`", gate::MOST_HANDLERS),
        ("Metric descriptors of a backend", gate::MOST_DESCRIPTORS),
        ("Label keys of a metric", gate::MOST_LABEL_KEYS),
        ("Labels of one item of a list", gate::MOST_PAIRS),
        ("Containers of the pod of an event", gate::MOST_CONTAINERS),
    ] {
        let is_listed = |row: &str| row.contains(what) && row.contains(&limit.to_string());
        assert!(chapter.lines().any(is_listed), "{what}: {limit}");
    }
}

/// The version that follows the text `before` in a file, such as `go.mod` or `Cargo.toml`.
fn pinned(file: &str, before: &str) -> String {
    let text = shipped(file);
    let (_, version) = text.split_once(before).unwrap();
    let is_version = |char: char| char.is_ascii_digit() || char == '.';
    version
        .chars()
        .take_while(|char| is_version(*char))
        .collect()
}

#[test]
fn the_support_matrix_has_the_versions_that_the_tests_pin() {
    let matrix = shipped("docs/support.md");
    let partners = "tests/system/runtimes/partners";
    for (name, file, module) in [
        (
            "kubelet",
            format!("{partners}/kubernetes/go.mod"),
            "k8s.io/kubernetes v",
        ),
        (
            "crictl",
            format!("{partners}/kubernetes/go.mod"),
            "sigs.k8s.io/cri-tools v",
        ),
        (
            "node-feature-discovery",
            format!("{partners}/kubernetes/go.mod"),
            "sigs.k8s.io/node-feature-discovery v",
        ),
        (
            "kubeadm",
            format!("{partners}/kubernetes-older/go.mod"),
            "k8s.io/kubernetes v",
        ),
        (
            "containerd",
            format!("{partners}/containerd/go.mod"),
            "containerd/v2 v",
        ),
        (
            "containerd",
            format!("{partners}/containerd-2.3/go.mod"),
            "containerd/v2 v",
        ),
        (
            "containerd",
            format!("{partners}/containerd-1.7/go.mod"),
            "containerd/containerd v",
        ),
        (
            "`cri-client`",
            "tests/system/restart/client/go.mod".to_owned(),
            "k8s.io/cri-client v",
        ),
    ] {
        let version = pinned(&file, module);
        let is_listed = |row: &str| row.contains(name) && row.contains(&version);
        assert!(matrix.lines().any(is_listed), "{name} {version}");
    }
    let rust = pinned("Cargo.toml", "rust-version = \"");
    assert!(
        shipped("README.md").contains(&format!("Rust {rust}")),
        "{rust}"
    );
}

#[test]
fn the_readme_is_short_enough_to_be_read() {
    let size = shipped("README.md").len();
    assert!(size <= README_BYTES, "{size} bytes");
}

/// The anchor that GitHub and mdbook give a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// The links of a document, and its anchors.
fn links_and_anchors(text: &str) -> (Vec<String>, Vec<String>) {
    let (mut links, mut anchors) = (Vec::new(), Vec::new());
    let mut heading = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                links.push(dest_url.into_string());
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => anchors.extend(heading.take().map(|it| anchor(&it))),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            _ => {}
        }
    }
    (links, anchors)
}

/// The reason why a link of a document has no target; `None` if it has one.
fn broken(document: &str, link: &str, anchors: &HashMap<PathBuf, Vec<String>>) -> Option<String> {
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => at(document),
        path => at(document).parent()?.join(path),
    };
    let Ok(target) = target.canonicalize() else {
        return Some(format!("{document}: no file {path}"));
    };
    let has_anchor = anchor.is_empty() || anchors.get(&target)?.iter().any(|it| it == anchor);
    (!has_anchor).then(|| format!("{document}: no section {link}"))
}

#[test]
fn every_link_in_the_documentation_has_a_target() {
    let documents = documents();
    let read: Vec<_> = documents
        .iter()
        .map(|document| (document, links_and_anchors(&shipped(document))))
        .collect();
    let anchors = read
        .iter()
        .map(|(document, (_, anchors))| (at(document).canonicalize().unwrap(), anchors.clone()))
        .collect();
    let links = read
        .iter()
        .flat_map(|(document, (links, _))| links.iter().map(move |link| (document, link)));
    let own: Vec<_> = links.filter(|(_, link)| !link.contains("://")).collect();
    assert!(own.len() > 50, "{}", own.len());
    let broken: Vec<_> = own
        .iter()
        .filter_map(|(document, link)| broken(document, link, &anchors))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn the_index_and_the_books_contents_have_every_chapter() {
    for contents in ["docs/README.md", "docs/SUMMARY.md"] {
        let (links, _) = links_and_anchors(&shipped(contents));
        for chapter in chapters() {
            let name = chapter.trim_start_matches("docs/");
            let listed = links.iter().any(|link| link == name);
            assert!(
                listed || ["README.md", "SUMMARY.md"].contains(&name),
                "{contents}: {name}"
            );
        }
    }
}

#[test]
fn each_decision_is_in_the_contents_and_fits_on_a_page() {
    for contents in ["docs/decisions.md", "docs/SUMMARY.md"] {
        let text = shipped(contents);
        for decision in decisions() {
            let (_, name) = decision.rsplit_once('/').unwrap();
            assert!(
                decision == contents || text.contains(name),
                "{decision} is missing in {contents}"
            );
        }
    }
    for decision in decisions() {
        assert!(shipped(&decision).lines().count() <= 60, "{decision}");
    }
}

/// The names of the files in docs/pictures that have this extension, without the extension.
fn pictures(extension: &str) -> Vec<String> {
    let files = fs::read_dir(at("docs/pictures")).unwrap();
    let names = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_suffix(extension)?.to_owned()));
    names.collect()
}

#[test]
fn a_chapter_shows_each_picture_and_each_graph_is_drawn() {
    let chapters: String = chapters().iter().map(|path| shipped(path)).collect();
    let drawn = pictures(".svg");
    assert!(!drawn.is_empty());
    for name in &drawn {
        // The alternative text must be a sentence, so a period comes before the bracket.
        let shown = format!(".](pictures/{name}.svg)");
        assert!(chapters.contains(&shown), "{name}");
    }
    for name in pictures(".dot") {
        assert!(drawn.contains(&name), "{name}");
    }
}

/// All sources as one text, with the string literals as they are printed.
fn sources(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let texts = paths.map(|path| {
        if path.is_dir() {
            sources(&path)
        } else {
            fs::read_to_string(&path).unwrap()
        }
    });
    let text = texts.collect::<String>().replace("\\\"", "\"");
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

/// A heading of docs/troubleshooting.md in backticks quotes a text that criswitch prints. "..." in the heading stands
/// for a variable part.
#[test]
fn the_texts_that_troubleshooting_explains_are_printed() {
    let sources = sources(&at("src")) + &sources(&at("crates"));
    let chapter = shipped("docs/troubleshooting.md");
    let headings = chapter
        .lines()
        .filter_map(|line| line.strip_prefix("### `"));
    let own = headings.filter_map(|heading| heading.strip_suffix('`'));
    let parts: Vec<_> = own.flat_map(|text| text.split("...")).collect();
    assert!(parts.len() > 10, "{parts:?}");
    for part in parts {
        assert!(
            sources.contains(part.trim()),
            "{part:?} is in no source file"
        );
    }
}

/// The block of indented lines after the text `words` in a document, without the indent.
fn block_after(document: &str, words: &str) -> String {
    let text = shipped(document);
    let (_, rest) = text.split_once(words).unwrap();
    let lines = rest
        .trim_start_matches('\n')
        .lines()
        .take_while(|line| line.is_empty() || line.starts_with("    "));
    lines
        .map(|line| format!("{}\n", line.trim_start()))
        .collect()
}

#[test]
fn the_documented_configurations_load() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("criswitch.toml");
    for (document, words, handlers) in [
        ("README.md", "## Configuration\n", 3),
        ("docs/getting-started.md", "the example needs:\n", 2),
    ] {
        fs::write(&path, block_after(document, words)).unwrap();
        let config = criswitch_config::Config::load(&path).unwrap();
        assert_eq!(config.table.handlers.len(), handlers, "{document}");
    }
}
