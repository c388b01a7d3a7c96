//! Makes the text of the configuration, with comments that fit into 80 columns. Does no I/O.

use std::fmt;

use criswitch_client::terminal;
use criswitch_config::DEFAULT_LISTEN;
use criswitch_config::address::Address;
use textwrap::{Options, WordSplitter};
use toml::Value;

use super::Discovered;
use super::plan::{ConfigPlan, PlannedBackend, PlannedRow};

/// The remark on a handler whose kind of runtime is unknown.
const ASK_FOR_KIND: &str = "unknown kind of runtime: set kind";
/// The width of comments in columns.
const WIDTH: usize = 80;

pub(super) fn configuration(discovered: &Discovered, notes: &[String]) -> String {
    [
        head(notes),
        listen(discovered.listen.as_ref()),
        default(&discovered.plan),
        handlers(&discovered.plan),
        backends(discovered),
    ]
    .join("\n")
}

fn head(notes: &[String]) -> String {
    let mut text = comment(concat!(
        "Written by criswitch discover. `criswitch check --probe` checks it and asks the backends. ",
        "All keys: criswitch.toml(5)."
    ));
    if !notes.is_empty() {
        text += "#\n# Read this first:\n";
    }
    text.extend(notes.iter().map(|note| wrapped(note, "# - ", "#   ")));
    text
}

fn listen(listen: Option<&Address>) -> String {
    let about = comment("The socket for the kubelet (--container-runtime-endpoint) and crictl.");
    match listen {
        Some(listen) => format!("{about}listen = {}\n", quoted(listen)),
        None => format!("{about}#listen = {}\n", quoted(DEFAULT_LISTEN)),
    }
}

fn default(plan: &ConfigPlan) -> String {
    let name = plan
        .backends
        .first()
        .map_or("", |backend| backend.place.name.as_str());
    let about = format!("The row for pods without a RuntimeClass: {name}'s own default.");
    let (about, default) = (comment(&about), quoted(&plan.default));
    format!("{about}default_handler = {default}\n")
}

fn handlers(plan: &ConfigPlan) -> String {
    let mut text = comment("The backend for the pods of each RuntimeClass handler.");
    text += "[handlers]\n";
    let width = plan.rows.iter().map(|row| key(row).len()).max();
    for (id, backend) in plan.backends.iter().enumerate() {
        text += &about_rows(backend);
        text.extend(
            plan.rows
                .iter()
                .filter(|row| row.backend == id)
                .map(|row| line(backend, row, width.unwrap_or_default())),
        );
    }
    text
}

fn about_rows(backend: &PlannedBackend) -> String {
    let (name, found) = (&backend.place.name, &backend.found);
    if !found.handlers.is_empty() {
        return String::new();
    }
    let next = match found.configured.runtimes.len() {
        0 => "The next row is its own default. Add a row for each other handler.",
        _ => "The next rows are from its configuration.",
    };
    comment(&format!("{name} does not report its handlers. {next}"))
}

/// The most columns to which the names of rows are padded.
const WIDEST: usize = 64;

/// The line of a row, with the features of its handler and a request for its kind if that is unknown. If the row has a
/// conflict, the line is commented out and has the reason for the conflict instead.
fn line(backend: &PlannedBackend, row: &PlannedRow, width: usize) -> String {
    let (key, to) = (key(row), target(backend, row));
    let width = width.min(WIDEST);
    let remark = row.conflict.clone().unwrap_or_else(|| {
        let mut remarks = backend.found.features_of(&row.handler);
        remarks.extend(row.kind(backend).is_none().then_some(ASK_FOR_KIND));
        remarks.join(", ")
    });
    if remark.is_empty() {
        format!("{key:width$} = {to}\n")
    } else {
        format!("{key:width$} = {to}  # {remark}\n")
    }
}

fn key(row: &PlannedRow) -> String {
    let sign = if row.conflict.is_some() { "#" } else { "" };
    format!("{sign}{}", row.shown_name())
}

/// The value of a row: the backend's name. For the backend's own default, a table with the backend's name and an empty
/// handler.
fn target(backend: &PlannedBackend, row: &PlannedRow) -> String {
    let name = quoted(&backend.place.name);
    if row.name == row.handler {
        name
    } else {
        format!("{{ backend = {name}, handler = {} }}", quoted(&row.handler))
    }
}

fn backends(discovered: &Discovered) -> String {
    let mut text = comment(
        "The runtimes that responded. The first one also runs pods without a RuntimeClass.",
    );
    text += "[backends]\n";
    let rows = discovered.plan.backends.iter().map(|backend| {
        let (about, place) = (comment(&about_backend(backend)), &backend.place);
        format!("{about}{} = {}\n", place.name, quoted(&place.socket))
    });
    let silent = discovered.silent.iter().map(|(place, _)| place);
    let silent = silent.filter(|place| place.is_writable()).map(|place| {
        format!(
            "# Does not respond.\n#{} = {}\n",
            place.name,
            quoted(&place.socket)
        )
    });
    text.extend(rows.chain(silent));
    text
}

fn about_backend(backend: &PlannedBackend) -> String {
    let found = &backend.found;
    let mut parts = vec![
        format!("{} {}", found.runtime, found.version),
        format!("cgroup driver {}", found.cgroup_driver.unwrap_or("unknown")),
    ];
    parts.extend(found.feature_names().into_iter().map(str::to_owned));
    parts.extend(backend.place.also.iter().map(|it| format!("also at {it}")));
    parts.join(", ")
}

fn comment(text: &str) -> String {
    wrapped(text, "# ", "# ")
}

/// Wraps a comment so that every line begins with `#`, even if a backend's text has line breaks.
fn wrapped(text: &str, first: &str, further: &str) -> String {
    let options = Options::new(WIDTH)
        .initial_indent(first)
        .subsequent_indent(further)
        .break_words(false)
        .word_splitter(WordSplitter::NoHyphenation);
    textwrap::fill(&terminal::plain(text), options) + "\n"
}

fn quoted(text: &(impl fmt::Display + ?Sized)) -> String {
    Value::from(text.to_string()).to_string()
}
