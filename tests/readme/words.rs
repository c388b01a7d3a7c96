//! The documentation uses plain words, and is merged.

use std::fs;
use std::path::PathBuf;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::{at, documents, shipped};

/// Words that a reader has to decode, and their plain replacements.
const UNPLAIN: [(&str, &str); 5] = [
    ("also if", "even if"),
    ("is no", "is not a"),
    ("told", "reported, shown"),
    ("the switch", "criswitch"),
    ("by itself", "automatically"),
];

/// Phrases that are plain although they contain such a word.
const PLAIN: [&str; 6] = [
    "there is no ",
    "is no larger",
    "is no longer",
    "refuse connections",
    "refuses connections",
    "connection refused",
];

/// The sentences of a document, without code and in lower case.
fn prose(text: &str) -> String {
    let (mut prose, mut in_code) = (String::new(), false);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_code = true,
            Event::End(TagEnd::CodeBlock) => in_code = false,
            Event::Text(text) if !in_code => prose += &text.to_lowercase(),
            Event::Text(_) => {}
            _ => prose.push(' '),
        }
    }
    prose
}

#[test]
fn the_documentation_uses_plain_words() {
    let mut found = Vec::new();
    for document in documents() {
        found.extend(unplain(&document, &prose(&shipped(&document))));
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// The files of the package outside of docs/, with their names.
fn shipped_files() -> Vec<(String, String)> {
    let folders = [
        "config",
        "config/examples",
        "config/scrape",
        "config/node-problem-detector",
        "systemd",
        "package/scripts",
    ];
    let entries = folders
        .into_iter()
        .flat_map(|folder| fs::read_dir(at(folder)).unwrap());
    let paths = entries.map(|entry| entry.unwrap().path());
    let files = paths.filter(|path| path.is_file());
    let read = |path: PathBuf| {
        (
            path.display().to_string(),
            fs::read_to_string(path).unwrap(),
        )
    };
    files.map(read).collect()
}

#[test]
fn no_document_or_shipped_file_has_a_merge_conflict() {
    let documents = documents()
        .into_iter()
        .map(|name| (name.clone(), shipped(&name)));
    for (name, text) in documents.chain(shipped_files()) {
        for mark in ["<<<<<<<", ">>>>>>>"] {
            assert!(!text.contains(mark), "{name}: {mark}");
        }
    }
}

/// Finds the words of [`UNPLAIN`] in a lower-case text. Each result begins with the name of the text.
pub(crate) fn unplain(name: &str, text: &str) -> Vec<String> {
    found(&UNPLAIN, name, text)
}

/// Finds the words of `unplain` in a lower-case text, except in the phrases of [`PLAIN`]. Each result begins with the
/// name of the text.
pub(crate) fn found(unplain: &[(&str, &str)], name: &str, text: &str) -> Vec<String> {
    let text = PLAIN
        .iter()
        .fold(text.to_owned(), |text, plain| text.replace(plain, ""));
    let words: Vec<_> = text.split(|char: char| !char.is_alphanumeric()).collect();
    let text = format!(" {} ", words.join(" "));
    let unplain = unplain
        .iter()
        .filter(|(word, _)| text.contains(&format!(" {word} ")));
    unplain
        .map(|(word, plain)| format!("{name}: {word}; try {plain}"))
        .collect()
}
