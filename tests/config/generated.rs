//! The shipped file and docs/configuration.md describe each key as the table of keys does. `UPDATE_EXPECT=1` rewrites
//! both.

use std::fmt::Write;
use std::path::Path;

use criswitch_config::keys::{TABLES, of_table};
use criswitch_config::{Applies, Key};

const WIDTH: usize = 120;
/// In the shipped file, the example rows of handlers and backends begin at this line. They are not generated.
const ROWS: &str = "# A row for each RuntimeClass handler";

#[track_caller]
fn assert_file(path: &str, make: impl Fn(&str) -> String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = std::fs::read_to_string(&path).unwrap();
    let made = make(&text);
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, made).unwrap();
    } else {
        assert_eq!(text, made);
    }
}

/// The text as lines of a comment.
fn commented(text: &str) -> String {
    let options = textwrap::Options::new(WIDTH)
        .initial_indent("# ")
        .subsequent_indent("# ")
        .word_splitter(textwrap::WordSplitter::NoHyphenation);
    textwrap::fill(text, options) + "\n"
}

/// The sentence about a change that needs more than a reload.
fn applies(key: &Key) -> &'static str {
    match key.applies {
        Applies::Restart => " A change needs a restart.",
        Applies::NextStart => " A change applies at the next start.",
        Applies::Reload | Applies::Manifests | Applies::Commands => "",
    }
}

/// The comment and the line of a key in the shipped file.
fn block(key: &Key) -> String {
    let mut about = key.help.to_owned();
    let limits = key.limits.to_string();
    let mut letters = limits.chars();
    if let Some(first) = letters.next() {
        write!(about, " {}{}.", first.to_uppercase(), letters.as_str()).unwrap();
    }
    about += applies(key);
    let value = key.quoted(key.default.unwrap_or("runc"));
    format!("{}{} = {value}\n", commented(&about), key.own_name())
}

fn blocks(table: &str, between: &str) -> String {
    of_table(table).map(block).collect::<Vec<_>>().join(between)
}

#[cfg(unix)] // The shipped files have the keys for Unix.
#[test]
fn the_shipped_file_has_every_key_as_the_table_has_it() {
    assert_file("config/criswitch.toml", |text| {
        let (about, _) = text.split_once("\n\n").unwrap();
        let (_, rows) = text.split_once(ROWS).unwrap();
        let (rows, _) = rows.split_once("\n[log]\n").unwrap();
        let head = blocks("", "\n");
        let [log, metrics] = ["log", "metrics"].map(|table| blocks(table, ""));
        format!("{about}\n\n{head}\n{ROWS}{rows}\n[log]\n{log}\n[metrics]\n{metrics}")
    });
}

#[cfg(unix)] // The shipped files have the keys for Unix.
#[test]
fn the_documentation_names_the_keys_that_need_a_restart() {
    let keys = criswitch_config::KEYS.iter();
    let keys = keys.filter(|key| key.applies == Applies::Restart);
    let names: Vec<String> = keys.map(|key| format!("`{}`", key.name)).collect();
    let chapter = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/live-change.md");
    let chapter = std::fs::read_to_string(chapter).unwrap();
    assert!(
        chapter.contains(&format!("| {} |", names.join(", "))),
        "{names:?}"
    );
}

fn row(key: &Key) -> String {
    let default = key
        .default
        .map(|default| format!("`{}`", key.quoted(default)));
    let limits = key.limits.to_string();
    let comma = if limits.is_empty() { "" } else { ", " };
    let (name, kind) = (key.own_name(), key.kind);
    let default = default.unwrap_or_default();
    let applies = applies(key);
    format!(
        "| `{name}` | {kind}{comma}{limits} | {default} | {}{applies} |\n",
        key.help
    )
}

#[cfg(unix)] // The shipped files have the keys for Unix.
#[test]
fn the_documentation_has_every_key_as_the_table_has_it() {
    let mut keys = 0;
    let sections = TABLES.map(|(table, title)| {
        let rows: Vec<String> = of_table(table).map(row).collect();
        keys += rows.len();
        let head = "| Key | Type | Default | Meaning |\n|---|---|---|---|\n";
        format!("## {title}\n\n{head}{}", rows.concat())
    });
    assert_eq!(keys, criswitch_config::KEYS.len());
    let made = sections.join("\n");
    assert_file("docs/configuration.md", |text| {
        let (before, _) = text.split_once("<!-- keys -->\n").unwrap();
        format!("{before}<!-- keys -->\n\n{made}")
    });
}

/// The names of the keys in a table of the schema.
fn names(table: &serde_json::Value) -> Vec<&str> {
    let keys = table["properties"].as_object().unwrap();
    keys.keys().map(String::as_str).collect()
}

#[test]
fn the_schema_has_every_key_in_its_table_and_no_other() {
    let schema = criswitch_config::keys::schema();
    let row = |table: &str| schema["properties"][table]["additionalProperties"]["anyOf"][1].clone();
    let handler = row("handlers");
    for (table, found) in [
        ("log", schema["properties"]["log"].clone()),
        ("metrics", schema["properties"]["metrics"].clone()),
        ("backends", row("backends")),
        ("handlers", handler.clone()),
        ("overhead", handler["properties"]["overhead"].clone()),
        (
            "tolerations",
            handler["properties"]["tolerations"]["items"].clone(),
        ),
    ] {
        let mut keys: Vec<_> = of_table(table).map(Key::own_name).collect();
        keys.sort_unstable();
        assert_eq!(names(&found), keys, "{table}");
        assert_eq!(found["additionalProperties"], false, "{table}");
    }
    let mut top: Vec<_> = of_table("").map(Key::own_name).collect();
    top.extend(["handlers", "backends", "log", "metrics"]);
    top.sort_unstable();
    assert_eq!(names(&schema), top);
    assert_eq!(schema["properties"]["watch"]["default"], false);
    assert_eq!(schema["properties"]["list_timeout"]["default"], "2s");
}
