//! The documents of a YAML or JSON file.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use serde::de::IgnoredAny;
use serde_json::Value;

/// The largest file that is read, in bytes.
const MOST: u64 = 16 << 20;
/// The byte order mark.
const MARK: char = '\u{feff}';
const NOT_JSON: &str = "not valid JSON; look here and before for a missing comma, bracket or quote";
/// The path of standard input.
const STDIN: &str = "-";
/// The advice about a file that is a template.
pub(super) const RENDER: &str = "render it first: helm template ... | criswitch explain -f -";

pub(super) fn name_of(path: &Path) -> String {
    if path == Path::new(STDIN) {
        "standard input".to_owned()
    } else {
        path.display().to_string()
    }
}

/// The text of a file or, for `-`, of standard input.
///
/// # Errors
/// The file cannot be read, is not text, or is too large.
pub(crate) fn text_of_file(path: &Path) -> anyhow::Result<String> {
    let name = name_of(path);
    let mut text = String::new();
    let most = MOST + 1;
    let read = if path == Path::new(STDIN) {
        io::stdin().lock().take(most).read_to_string(&mut text)
    } else {
        fs::File::open(path).and_then(|file| file.take(most).read_to_string(&mut text))
    };
    read.map_err(|error| match error.kind() {
        ErrorKind::InvalidData => io::Error::other(
            "it is not UTF-8 text; if it is UTF-16, as PowerShell's `>` writes it, save it as UTF-8",
        ),
        _ => error,
    })
    .with_context(|| format!("cannot read {name}"))?;
    ensure!(
        text.len() as u64 <= MOST,
        "{name} is larger than 16 MiB; split it"
    );
    Ok(text)
}

/// A part of a file.
#[derive(Clone, Copy, Default)]
struct FilePart<'t> {
    text: &'t str,
    /// The numbers of lines before the part, and of characters before it on its first line.
    before: (u64, u64),
}

/// The documents of a YAML file, or of a file with one JSON object after another, which kubectl reads too. The objects
/// may follow `---`, as in the input of the kubectl plug-in.
pub(super) fn documents(name: &str, text: &str) -> anyhow::Result<Vec<Value>> {
    // A file may begin with a byte order mark. Programs that join files leave the mark after `---`.
    let text = text.trim_start_matches(MARK);
    let text = &text.replace(&format!("---\n{MARK}"), "---\n");
    let whole = FilePart {
        text,
        before: (0, 0),
    };
    let mut parts = Vec::new();
    for section in sections(text) {
        parts.push(json_objects(section).map_err(|(line, column)| {
            let what = if is_template(text) {
                format!("this looks like a template; {RENDER}")
            } else {
                NOT_JSON.to_owned()
            };
            anyhow!("{name}:{line}:{column}: {what}")
        })?);
    }
    let parts = if parts.iter().any(|objects| objects.len() > 1) {
        parts.concat()
    } else {
        vec![whole]
    };
    Ok(parts
        .iter()
        .map(|part| documents_of(name, *part))
        .collect::<anyhow::Result<Vec<_>>>()?
        .concat())
}

/// Splits a text at the lines that have only `---`, or `---` and a comment. Such a line always ends a YAML document.
fn sections(text: &str) -> Vec<FilePart<'_>> {
    let (mut found, mut start, mut first) = (Vec::new(), 0, 0);
    let (mut end, mut number) = (0, 0);
    let mut add = |start: usize, end: usize, first: u64| {
        let text = text.get(start..end).unwrap_or_default();
        found.push(FilePart {
            text,
            before: (first, 0),
        });
    };
    for line in text.split_inclusive('\n') {
        let mut words = line.split_ascii_whitespace();
        let is_mark = line.starts_with("---") && words.next() == Some("---");
        if is_mark && words.next().is_none_or(|word| word.starts_with('#')) {
            add(start, end, first);
            (start, first) = (end + line.len(), number + 1);
        }
        end += line.len();
        number += 1;
    }
    add(start, end, first);
    found
}

/// The objects of a part that has only JSON objects, after comments. Any other part is one object.
///
/// # Errors
/// The line and the column of an error in an object after the first one.
fn json_objects(part: FilePart<'_>) -> Result<Vec<FilePart<'_>>, (u64, u64)> {
    let (lines, length) = part
        .text
        .split_inclusive('\n')
        .take_while(|line| line.trim().is_empty() || line.starts_with('#'))
        .fold((0, 0), |(lines, length), line| {
            (lines + 1, length + line.len())
        });
    let text = part.text.get(length..).unwrap_or_default();
    let mut objects = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut found, mut start) = (Vec::new(), 0);
    let mut before = (part.before.0 + lines, 0);
    let first = before.0;
    while let Some(object) = objects.next() {
        let end = objects.byte_offset();
        let rest = text.get(start..).unwrap_or_default();
        if !rest.trim_start().starts_with('{') {
            return Ok(vec![part]);
        }
        match object {
            Err(_) if found.is_empty() => return Ok(vec![part]),
            Err(error) => {
                let line = text
                    .lines()
                    .nth(error.line().saturating_sub(1))
                    .unwrap_or_default();
                let column = match line.get(..error.column()) {
                    Some(before) => before.chars().count(),
                    None => error.column(),
                };
                return Err((first + error.line() as u64, column as u64));
            }
            Ok(_) => {}
        }
        let text = text.get(start..end).unwrap_or_default();
        found.push(FilePart { text, before });
        let last = text.rsplit('\n').next().unwrap_or_default().chars().count() as u64;
        before = match text.matches('\n').count() as u64 {
            0 => (before.0, before.1 + last),
            lines => (before.0 + lines, last),
        };
        start = end;
    }
    Ok(if found.is_empty() { vec![part] } else { found })
}

fn documents_of(name: &str, part: FilePart<'_>) -> anyhow::Result<Vec<Value>> {
    let FilePart { text, before } = part;
    // The limits are high enough for a file of the largest size.
    let budget = serde_saphyr::budget! {
        max_depth: 128, max_documents: 1 << 20, max_events: 1 << 24, max_nodes: 1 << 24,
    };
    let options = serde_saphyr::options! { budget: budget };
    let documents = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let (line, column) = error
            .location()
            .map_or((1, 1), |at| (at.line(), at.column()));
        let what = match error.without_snippet() {
            _ if is_template(text) => format!("this looks like a template; {RENDER}"),
            serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key:?} occurs twice in one map")
            }
            serde_saphyr::Error::Budget { .. } => "the file is nested too deeply or has too many values; split it".to_owned(),
            serde_saphyr::Error::DuplicateMappingKey { .. } => "a key occurs twice in one map".to_owned(),
            _ if text.trim_start().starts_with('{') => NOT_JSON.to_owned(),
            _ if is_indented_with_tab(text, line) => "the line begins with a tab, which YAML does not allow; use spaces".to_owned(),
            _ => "not valid YAML; look here and before for a bracket or quote without its end, or for wrong indentation".to_owned(),
        };
        let column = if line == 1 { before.1 + column } else { column };
        anyhow!("{name}:{}:{column}: {what}", before.0 + line)
    })?;
    let mut lines = (before.0 + 1..).zip(text.lines());
    // YAML reads the line as a comment if no document has its text.
    if let Some((line, _)) = lines.find(|(_, line)| {
        is_of_template(line) && !documents.iter().any(|it| has_text(it, line.trim()))
    }) {
        bail!("{name}:{line}:1: this looks like a template; {RENDER}");
    }
    Ok(documents)
}

/// Whether the text has a template's instruction or placeholder.
fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.lines().any(is_of_template)
}

/// Whether the line, counted from 1, has a tab before its text.
fn is_indented_with_tab(text: &str, line: u64) -> bool {
    let line = (1..).zip(text.lines()).find(|(number, _)| *number == line);
    line.is_some_and(|(_, line)| {
        let blank = line.len() - line.trim_start().len();
        line.get(..blank).is_some_and(|it| it.contains('\t'))
    })
}

/// Whether the line has a template's instruction or placeholder that YAML reads as a comment, as in ytt (`#@`) and in
/// pipelines (`#{NAME}#`). YAML then reads a field without a value.
fn is_of_template(line: &str) -> bool {
    let text = line.trim_start_matches([' ', '-']);
    let value = text
        .split_once(':')
        .filter(|(key, _)| !key.contains([' ', '"', '\'', '#']));
    let value = value.map_or("", |(_, value)| value.trim_start());
    text.starts_with("#@") || value.starts_with("#@") || value.starts_with("#{")
}

/// Whether a string in the value contains `text`.
fn has_text(value: &Value, text: &str) -> bool {
    match value {
        Value::String(string) => string.contains(text),
        Value::Array(items) => items.iter().any(|it| has_text(it, text)),
        Value::Object(map) => map.values().any(|it| has_text(it, text)),
        _ => false,
    }
}
