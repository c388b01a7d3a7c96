//! Writes an overhead into the row of a handler, in the file where the row is. Comments and layout stay.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use criswitch_config::{Config, Origin, address};
use criswitch_platform::replace::{Access, replace};
use serde_json::{Value as Json, json};
use toml_edit::{DocumentMut, InlineTable, Item, TableLike, Value};

/// The key of the overhead in a row, and the keys in the overhead, in the order in which a new overhead has them.
const OVERHEAD: &str = "overhead";
const RESOURCES: [&str; 2] = ["cpu", "memory"];
const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Quantities by the names of their resources.
pub(super) type Quantities = BTreeMap<String, String>;

/// A row that was written.
pub(super) struct WrittenRow {
    pub(super) origin: Origin,
    /// The overhead that the row had before; empty if it had none.
    pub(super) before: Quantities,
}

impl WrittenRow {
    pub(super) fn text(&self) -> String {
        let before = if self.before.is_empty() {
            "none".to_owned()
        } else {
            braces(&self.before)
        };
        format!("{} (overhead before: {before})", self.origin)
    }

    pub(super) fn json(&self) -> Json {
        json!({
            "path": self.origin.path.display().to_string(),
            "line": self.origin.line,
            "before": self.before,
        })
    }
}

/// The overhead as a line of a row: `overhead = { cpu = "10m", memory = "27Mi" }`.
pub(super) fn line(overhead: &Quantities) -> String {
    format!("{OVERHEAD} = {}", braces(overhead))
}

/// The overhead as a value: `{ cpu = "10m", memory = "27Mi" }`.
pub(super) fn braces(overhead: &Quantities) -> String {
    inline(overhead).to_string()
}

/// The configuration, and the file and line of a handler's row.
///
/// # Errors
/// The configuration is wrong, or no file has a row for the handler.
pub(super) fn find(main: &Path, handler: &str) -> anyhow::Result<(Config, Origin)> {
    let config = Config::load(main)?;
    let row = config.table.handler(handler);
    let origin = row.and_then(|row| row.origin.clone()).with_context(|| {
        let main = main.display();
        format!("no file of the configuration {main} has a row for handler {handler:?}; add one under [handlers] first")
    })?;
    Ok((config, origin))
}

/// Writes the overhead into the row of `handler`, in the configuration whose main file is `main`. The new content must
/// be a valid configuration before it replaces the file.
///
/// # Errors
/// The configuration is wrong, no file has a row for the handler, or the file cannot be written. Then the file is
/// unchanged.
pub(super) fn write(
    main: &Path,
    handler: &str,
    overhead: &Quantities,
) -> anyhow::Result<WrittenRow> {
    let (config, origin) = find(main, handler)?;
    let mut texts: Vec<(&Path, String)> = config
        .files
        .iter()
        .map(|path| {
            let text = fs::read_to_string(path)
                .with_context(|| format!("cannot read {}", path.display()))?;
            Ok((path.as_path(), text))
        })
        .collect::<anyhow::Result<_>>()?;
    let (_, text) = texts
        .iter_mut()
        .find(|(path, _)| **path == *origin.path)
        .with_context(|| format!("{origin} is in no file"))?;
    *text = edited(text, handler, overhead).with_context(|| origin.to_string())?;
    let text = text.clone();
    check(&texts, handler, overhead).with_context(|| {
        format!("{origin}: the row cannot be changed automatically, so the file is unchanged")
    })?;
    store(&origin.path, &text)
        .with_context(|| format!("cannot write {}", origin.path.display()))?;
    let before = config.table.handler(handler);
    Ok(WrittenRow {
        before: before.map_or_else(Quantities::new, |row| row.scheduling.overhead.clone()),
        origin,
    })
}

/// Checks that the texts are a valid configuration in which the handler has this overhead.
fn check(texts: &[(&Path, String)], handler: &str, overhead: &Quantities) -> anyhow::Result<()> {
    let texts: Vec<_> = texts
        .iter()
        .map(|(path, text)| (*path, text.as_bytes()))
        .collect();
    let changed = Config::of_texts(&texts)?;
    let row = changed.table.handler(handler);
    ensure!(
        row.is_some_and(|row| row.scheduling.overhead == *overhead),
        "the changed row would not have this overhead"
    );
    Ok(())
}

/// Replaces a file, or the target of a link.
fn store(path: &Path, text: &str) -> anyhow::Result<()> {
    let path = fs::canonicalize(path)?;
    Ok(replace(&path, text, &Access::Like(&fs::metadata(&path)?))?)
}

/// The text of a file with this overhead in the row of the handler.
fn edited(text: &str, handler: &str, overhead: &Quantities) -> anyhow::Result<String> {
    let mut document: DocumentMut = text.parse()?;
    let row = document
        .get_mut("handlers")
        .and_then(Item::as_table_like_mut)
        .and_then(|handlers| handlers.get_mut(handler))
        .with_context(|| format!("the file has no row for handler {handler:?}"))?;
    if let Item::Value(value @ Value::String(_)) = row {
        *value = in_braces(value);
    }
    if row.get(OVERHEAD).is_some() {
        change(&mut row[OVERHEAD], |old, line| update(old, line, overhead))
    } else {
        change(row, |row, line| {
            add(row, line, OVERHEAD, inline(overhead).into());
        })
    }
    Ok(with_line_ends_of(text, &document.to_string()))
}

/// The changed text with the byte order mark and the line ends of the old one, which the parser drops.
fn with_line_ends_of(old: &str, changed: &str) -> String {
    let end = if old.contains("\r\n") { "\r\n" } else { "\n" };
    let mark = Some(BYTE_ORDER_MARK).filter(|mark| old.starts_with(*mark));
    format!("{}{}", mark.unwrap_or_default(), changed.replace('\n', end))
}

/// The row as an inline table, for a row that is a string.
fn in_braces(short: &Value) -> Value {
    let key = match short.as_str() {
        Some(text) if address::is_like(text) => "socket",
        _ => "backend",
    };
    let mut row = InlineTable::new();
    // The string keeps its kind of quotes.
    row.insert(key, short.clone().decorated(" ", " "));
    let mut row = Value::from(row);
    *row.decor_mut() = short.decor().clone();
    row
}

/// Changes a table. In an inline table, the space or line end before the closing brace stays there. `change` also gets
/// the text that must stand before a key on a line of its own: a line end in an inline table, else nothing.
fn change(table: &mut Item, change: impl FnOnce(&mut dyn TableLike, &str)) {
    match table {
        Item::Value(Value::InlineTable(table)) => {
            let end = last_value(table).map(|last| {
                let end = last.decor().suffix().cloned();
                last.decor_mut().set_suffix("");
                end.unwrap_or_default()
            });
            change(table, "\n");
            if let (Some(end), Some(last)) = (end, last_value(table)) {
                last.decor_mut().set_suffix(end);
            }
        }
        table => {
            if let Some(table) = table.as_table_like_mut() {
                change(table, "");
            }
        }
    }
}

/// The value before the closing brace; `None` if the braces are empty.
fn last_value(table: &mut InlineTable) -> Option<&mut Value> {
    let (_, value) = table.iter_mut().last()?;
    if !value.as_inline_table().is_some_and(InlineTable::is_dotted) {
        return Some(value);
    }
    last_value(value.as_inline_table_mut()?)
}

/// Changes the values of an overhead in place, so that comments between them stay.
fn update(old: &mut dyn TableLike, line: &str, overhead: &Quantities) {
    for resource in RESOURCES {
        let Some(quantity) = overhead.get(resource) else {
            old.remove(resource);
            continue;
        };
        let mut new = Value::from(quantity.as_str());
        match old.get_mut(resource).and_then(Item::as_value_mut) {
            Some(value) => {
                *new.decor_mut() = value.decor().clone();
                *value = new;
            }
            None => add(old, line, resource, new),
        }
    }
}

/// Adds a key after the last key of a table, with the same indentation.
fn add(table: &mut dyn TableLike, line: &str, key: &str, value: Value) {
    let last = table
        .iter()
        .filter(|(_, item)| item.is_value())
        .last()
        .map(|(key, _)| key.to_owned());
    let decor = last.and_then(|last| Some(table.key(&last)?.leaf_decor().clone()));
    table.insert(key, Item::Value(value));
    let prefix = decor.as_ref().and_then(|decor| decor.prefix()?.as_str());
    if let (Some(mut key), Some(prefix)) = (table.key_mut(key), prefix) {
        // The lines above may be comments, which belong to the last key.
        let indented = prefix
            .rsplit_once('\n')
            .map(|(_, indentation)| format!("{line}{indentation}"))
            .unwrap_or_else(|| prefix.to_owned());
        key.leaf_decor_mut().set_prefix(indented);
    }
}

fn inline(overhead: &Quantities) -> InlineTable {
    RESOURCES
        .into_iter()
        .filter_map(|resource| Some((resource, overhead.get(resource)?.as_str())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overhead(quantities: &[(&str, &str)]) -> Quantities {
        let quantities = quantities.iter();
        quantities
            .map(|(resource, quantity)| ((*resource).to_owned(), (*quantity).to_owned()))
            .collect()
    }

    /// Asserts that an overhead of 10m and 27Mi in the row of kata changes `text` to `expected`.
    #[track_caller]
    fn assert_edited(text: &str, expected: &str) {
        let quantities = overhead(&[("cpu", "10m"), ("memory", "27Mi")]);
        assert_eq!(edited(text, "kata", &quantities).unwrap(), expected);
    }

    #[test]
    fn a_short_row_gets_braces_and_keeps_its_comment() {
        let file = |row: &str| {
            format!(
                "# head\n\nlisten = \"/run/s\"   # odd   spaces\n[handlers]\n# above\nrunc = \"new\"\n  {row} # beside\n# \
                 below\n\n[backends]\nnew='/run/new'\n"
            )
        };
        assert_edited(
            &file("kata   = \"new\""),
            &file(
                "kata   = { backend = \"new\", overhead = { cpu = \"10m\", memory = \"27Mi\" } }",
            ),
        );
        assert_edited(
            &file("kata='/run/kata.sock'"),
            &file(
                "kata={ socket = '/run/kata.sock', overhead = { cpu = \"10m\", memory = \"27Mi\" } }",
            ),
        );
    }

    #[test]
    fn a_row_in_braces_keeps_its_layout() {
        let new = "overhead = { cpu = \"10m\", memory = \"27Mi\" }";
        for (row, expected) in [
            ("{ backend = \"new\" }", format!("{{ backend = \"new\", {new} }}")),
            ("{backend=\"new\"}", format!("{{backend=\"new\",{new}}}")),
            (
                "{ backend = \"new\", overhead = { memory = \"1Mi\" }, kind = \"kata\" }",
                "{ backend = \"new\", overhead = { memory = \"27Mi\", cpu = \"10m\" }, kind = \"kata\" }".to_owned(),
            ),
            (
                "{ backend = \"new\", overhead.memory = \"1Mi\" }",
                "{ backend = \"new\", overhead.memory = \"27Mi\", overhead.cpu = \"10m\" }".to_owned(),
            ),
            (
                "{ backend = \"new\", node_selector.disk = \"ssd\" }",
                format!("{{ backend = \"new\", node_selector.disk = \"ssd\", {new} }}"),
            ),
            // TOML 1.1 allows inline tables of several lines.
            (
                "{\n  # its socket\n  backend = \"new\", # here\n  kind = \"kata\"\n}",
                format!("{{\n  # its socket\n  backend = \"new\", # here\n  kind = \"kata\",\n  {new}\n}}"),
            ),
            (
                "{\n  backend = \"new\",\n}",
                format!("{{\n  backend = \"new\",\n  {new},\n}}"),
            ),
        ] {
            let file = |row: &str| format!("[handlers]\nkata = {row} # c\nrunc = \"new\"\n");
            assert_edited(&file(row), &file(&expected));
        }
    }

    #[test]
    fn a_row_that_is_a_table_gets_a_line_or_keeps_its_lines() {
        let new = "overhead = { cpu = \"10m\", memory = \"27Mi\" }\n";
        let table = "[handlers.kata] # c\n# where\nbackend = \"new\" # d\n";
        let rest =
            "\n[handlers.kata.node_selector]\ndisk = \"ssd\"\n\n[backends]\nnew = \"/run/new\"\n";
        assert_edited(&format!("{table}{rest}"), &format!("{table}{new}{rest}"));
        let overhead = |cpu: &str, memory: &str| {
            format!(
                "{table}[handlers.kata.overhead]\n# measured in May\ncpu = {cpu} # or so\nmemory = {memory}\n{rest}"
            )
        };
        assert_edited(
            &overhead("\"1\"", "'1Gi'"),
            &overhead("\"10m\"", "\"27Mi\""),
        );
        let indented = "[handlers.kata]\n  # where\n  backend = \"new\"\n";
        assert_edited(indented, &format!("{indented}  {new}"));
        let dotted = "[handlers]\nkata.backend = \"new\"\n";
        assert_edited(
            &format!("{dotted}runc = \"new\"\n"),
            &format!("{dotted}kata.{new}runc = \"new\"\n"),
        );
        assert_edited(
            "handlers = { kata = \"new\" }\n",
            &format!(
                "handlers = {{ kata = {{ backend = \"new\", {} }} }}\n",
                new.trim()
            ),
        );
    }

    #[test]
    fn processor_time_that_is_not_measured_is_removed() {
        let quantities = overhead(&[("memory", "27Mi")]);
        let file = |overhead: &str| {
            format!("[handlers]\nkata = {{ backend = \"a\", overhead = {overhead} }}\n")
        };
        let text = edited(
            &file("{ memory = \"1Mi\", cpu = \"1\" }"),
            "kata",
            &quantities,
        );
        assert_eq!(text.unwrap(), file("{ memory = \"27Mi\" }"));
    }

    #[test]
    fn line_ends_and_a_byte_order_mark_stay() {
        let new = "overhead = { cpu = \"10m\", memory = \"27Mi\" }";
        let file = |row: &str| {
            format!("\u{feff}# head\r\n[handlers]\r\nkata = {row} # c\r\nrunc = \"new\"\r\n")
        };
        assert_edited(
            &file("\"new\""),
            &file(&format!("{{ backend = \"new\", {new} }}")),
        );
        let table =
            |new: &str| format!("[handlers.kata]\r\nbackend = \"new\"\r\n{new}\r\n[backends]\r\n");
        assert_edited(&table(""), &table(&format!("{new}\r\n")));
    }
}
