//! The configuration as text: what is active loads, and comments fit into 80 columns. Pure.

use std::fmt;

use criswitch::config::DEFAULT_LISTEN;
use criswitch::config::address::Address;
use textwrap::{Options, WordSplitter};
use toml::Value;

use super::Discovered;
use super::plan::{Fate, Plan, Planned, PlannedRow};
use crate::cli::check::driver_name;
use crate::cli::terminal;

/// Of a terminal.
const WIDTH: usize = 80;

/// The whole file.
pub(super) fn text(discovered: &Discovered, notes: &[String]) -> String {
    let parts = [
        head(notes),
        listen(discovered.listen.as_ref()),
        default(&discovered.plan),
        handlers(&discovered.plan),
        backends(discovered),
    ];
    parts.join("\n")
}

fn head(notes: &[String]) -> String {
    let mut text = comment(concat!(
        "Made by criswitch discover. `criswitch check --probe` shows what it comes to; criswitch.toml in config of ",
        "the sources, or in /usr/share/doc/criswitch/examples, has every other key."
    ));
    if !notes.is_empty() {
        text += "#\n# To be looked at first:\n";
    }
    for note in notes {
        text += &wrapped(note, "# - ", "#   ");
    }
    text
}

fn listen(listen: Option<&Address>) -> String {
    let about = comment("The socket for the kubelet (--container-runtime-endpoint) and crictl.");
    match listen {
        Some(listen) => format!("{about}listen = {}\n", quoted(listen)),
        None => format!("{about}#listen = {}\n", quoted(DEFAULT_LISTEN)),
    }
}

fn default(plan: &Plan) -> String {
    let first = plan.backends.first();
    let name = first.map(|backend| backend.place.name.as_str());
    let name = name.unwrap_or_default();
    let about = format!("The row for pods without a RuntimeClass: {name}'s own default.");
    format!("{}default = {}\n", comment(&about), quoted(&plan.default))
}

fn handlers(plan: &Plan) -> String {
    let mut text = comment("Which backend runs the pods of which RuntimeClass handler.");
    text += "[handlers]\n";
    let names = plan.rows.iter().map(|row| row.name.len() + sign(row).len());
    let width = names.max().unwrap_or_default();
    for (id, backend) in plan.backends.iter().enumerate() {
        let rows: Vec<&PlannedRow> = plan.rows.iter().filter(|row| row.backend == id).collect();
        text += &about_rows(backend, &rows);
        let lines = |written: bool| -> String {
            let rows = rows
                .iter()
                .filter(|row| is_shown(row) && row.is_written() == written);
            rows.map(|row| line(backend, row, width)).collect()
        };
        text += &lines(true);
        let possible = lines(false);
        if !possible.is_empty() {
            let name = &backend.place.name;
            text += &comment(&format!(
                "Others of {name}, under names that they could have."
            ));
            text += &possible;
        }
    }
    text
}

fn about_rows(backend: &Planned, rows: &[&PlannedRow]) -> String {
    let (name, found) = (&backend.place.name, &backend.found);
    let adopted = rows.iter().filter(|row| row.fate == Fate::Adopted);
    let adopted: Vec<&str> = adopted.map(|row| row.name.as_str()).collect();
    if !adopted.is_empty() {
        return comment(&format!(
            "{name} adopts what has no row here, at the moment {}.",
            adopted.join(", ")
        ));
    }
    if !found.handlers.is_empty() {
        return String::new();
    }
    if found.configured.handlers.is_empty() {
        return comment(&format!(
            "{name} does not tell its handlers: this row is its own default. Add one for each other that it has."
        ));
    }
    comment(&format!(
        "{name} lists no handlers: these are in its configuration."
    ))
}

/// A row, in comment signs if it is only what could be.
fn line(backend: &Planned, row: &PlannedRow, width: usize) -> String {
    let (name, to) = (format!("{}{}", sign(row), row.name), target(backend, row));
    let features = backend.found.features_of(&row.handler).join(", ");
    if features.is_empty() || !row.is_written() {
        format!("{name:width$} = {to}\n")
    } else {
        format!("{name:width$} = {to}  # {features}\n")
    }
}

fn sign(row: &PlannedRow) -> &'static str {
    if row.is_written() { "" } else { "#" }
}

/// What is in comment signs has to fit into one line.
fn is_shown(row: &PlannedRow) -> bool {
    match row.fate {
        Fate::Written => true,
        Fate::Adopted => false,
        Fate::Taken(_) | Fate::NoLabel => {
            !row.name.is_empty() && !row.handler.contains(char::is_control)
        }
    }
}

/// What stands behind a row's name: the backend, and the handler where its name is another there.
fn target(backend: &Planned, row: &PlannedRow) -> String {
    let name = quoted(&backend.place.name);
    if row.name == row.handler {
        name
    } else {
        format!("{{ backend = {name}, handler = {} }}", quoted(&row.handler))
    }
}

fn backends(discovered: &Discovered) -> String {
    let mut text = comment("What answered, and where. The first that was found is the default's.");
    text += "[backends]\n";
    for backend in &discovered.plan.backends {
        let (place, socket) = (&backend.place, quoted(&backend.place.socket));
        text += &comment(&about_backend(backend));
        let value = if backend.adopts {
            format!("{{ socket = {socket}, adopt = true }}")
        } else {
            socket
        };
        text += &format!("{} = {value}\n", place.name);
    }
    let silent = discovered.silent.iter().map(|(place, _)| place);
    for place in silent.filter(|place| place.is_writable()) {
        text += "# Did not answer.\n";
        text += &format!("#{} = {}\n", place.name, quoted(&place.socket));
    }
    text
}

fn about_backend(backend: &Planned) -> String {
    let found = &backend.found;
    let mut parts = vec![format!("{} {}", found.runtime, found.version)];
    let driver = found.cgroup_driver.map(driver_name);
    parts.push(format!(
        "cgroup driver {}",
        driver.as_deref().unwrap_or("not told")
    ));
    parts.extend(found.feature_names().into_iter().map(str::to_owned));
    let also = backend.place.also.iter();
    parts.extend(also.map(|other| format!("also at {other}")));
    parts.join(", ")
}

fn comment(text: &str) -> String {
    wrapped(text, "# ", "# ")
}

/// Words from a backend could hold line breaks: no line of a comment may begin without its sign.
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
