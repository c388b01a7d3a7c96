//! The documents of a YAML or JSON file.

use std::fs;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{Context, anyhow, bail, ensure};
use serde::de::IgnoredAny;
use serde_json::Value;

/// The largest file that is read, in bytes.
const MOST: u64 = 16 << 20;
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
pub(crate) fn text(path: &Path) -> anyhow::Result<String> {
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

/// The documents of a YAML file, or of a file with one JSON object after another, which kubectl reads too.
pub(super) fn documents(name: &str, text: &str) -> anyhow::Result<Vec<Value>> {
    let objects = json_objects(text);
    let parts = if objects.len() > 1 {
        objects
    } else {
        vec![(0, text)]
    };
    let documents = parts
        .iter()
        .map(|(before, part)| documents_of(name, part, *before));
    Ok(documents.collect::<anyhow::Result<Vec<_>>>()?.concat())
}

/// The objects of a text that has only JSON objects, each with the number of lines before it. None if the text has
/// anything else.
fn json_objects(text: &str) -> Vec<(u64, &str)> {
    let mut objects = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let (mut found, mut start, mut before) = (Vec::new(), 0, 0);
    while let Some(object) = objects.next() {
        let end = objects.byte_offset();
        let part = text.get(start..end).unwrap_or_default();
        if object.is_err() || !part.trim_start().starts_with('{') {
            return Vec::new();
        }
        found.push((before, part));
        before += part.matches('\n').count() as u64;
        start = end;
    }
    found
}

/// The documents of a text with this number of lines before it.
fn documents_of(name: &str, text: &str, before: u64) -> anyhow::Result<Vec<Value>> {
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
            _ if text.contains("{{") || text.contains("{%") || text.lines().any(is_of_template) => format!("this looks like a template; {RENDER}"),
            serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("the key {key:?} occurs twice in one map")
            }
            serde_saphyr::Error::Budget { .. } => "the file is nested too deeply or has too many values; split it".to_owned(),
            serde_saphyr::Error::DuplicateMappingKey { .. } => "a key occurs twice in one map".to_owned(),
            _ if text.trim_start().starts_with('{') => "not valid JSON; look here and before for a missing comma, bracket or quote".to_owned(),
            _ if is_indented_with_tab(text, line) => "the line begins with a tab, which YAML does not allow; use spaces".to_owned(),
            _ => "not valid YAML; look here and before for a bracket or quote without its end, or for wrong indentation".to_owned(),
        };
        anyhow!("{name}:{}:{column}: {what}", before + line)
    })?;
    let mut lines = (before + 1..).zip(text.lines());
    let is_comment = |line: &str| !documents.iter().any(|it| has_text(it, line.trim()));
    if let Some((line, _)) = lines.find(|(_, line)| is_of_template(line) && is_comment(line)) {
        bail!("{name}:{line}:1: this looks like a template; {RENDER}");
    }
    Ok(documents)
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
