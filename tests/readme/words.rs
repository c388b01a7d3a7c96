//! The documentation, the shipped files and the output of criswitch use plain words.

use std::fs;
use std::path::{Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::{at, documents, shipped};

/// Words that a reader has to decode, and their plain replacements.
const UNPLAIN: [(&str, &str); 34] = [
    ("tell", "report, show"),
    ("tells", "reports, shows"),
    ("told", "reported, shown"),
    ("anew", "again"),
    ("mend", "fix"),
    ("whoever", "clients that"),
    ("nobody", "no client, no backend"),
    ("statistics", "stats"),
    ("refusal", "rejection"),
    ("by hand", "manually"),
    ("by itself", "automatically"),
    ("stand in", "serve from cache"),
    ("stands in", "is served from cache"),
    ("stood in", "served from cache"),
    ("takes up", "applies"),
    ("the switch", "criswitch"),
    ("left out", "omitted"),
    ("turned away", "rejected"),
    ("otherwise than", "differently from"),
    ("goes without", "is omitted"),
    ("go without", "are omitted"),
    ("comment signs", "commented out"),
    ("ends with 78", "exits with status 78"),
    ("everybody", "every client, every user"),
    ("what becomes of", "how it is routed, what happens to"),
    ("all the same", "anyway, in any case"),
    ("telling", "reporting, showing"),
    ("mends", "fixes"),
    ("mended", "fixed"),
    ("stand ins", "cached lists"),
    ("standing in for", "served from cache"),
    ("take up", "apply"),
    ("took up", "applied"),
    ("taken up", "applied"),
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
fn the_shipped_files_use_plain_words() {
    let files = shipped_files().into_iter();
    let found: Vec<_> = files
        .flat_map(|(name, text)| unplain(&name, &text.to_lowercase()))
        .collect();
    assert!(found.is_empty(), "{found:#?}");
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

/// Finds the words of `unplain` in a lower-case text. Each result begins with the name of the text.
pub(crate) fn found(unplain: &[(&str, &str)], name: &str, text: &str) -> Vec<String> {
    let words: Vec<_> = text.split(|char: char| !char.is_alphanumeric()).collect();
    let text = format!(" {} ", words.join(" "));
    let unplain = unplain
        .iter()
        .filter(|(word, _)| text.contains(&format!(" {word} ")));
    unplain
        .map(|(word, plain)| format!("{name}: {word}; try {plain}"))
        .collect()
}

/// The string literals of a source file outside of its unit tests. Comment lines are skipped.
fn literals(source: &str) -> Vec<String> {
    let source = source.split("#[cfg(test)]").next().unwrap_or_default();
    let lines = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    let code = ["\\\\", "\\\"", "'\"'"]
        .iter()
        .fold(code, |code, quote| code.replace(quote, ""));
    let parts = code.split('"').skip(1).step_by(2);
    parts
        .map(|literal| literal.replace("\\\n", " ").to_lowercase())
        .collect()
}

/// The source files below a folder that are not tests.
fn source_files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("tests.rs"));
    paths
        .flat_map(|path| {
            if path.is_dir() {
                source_files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

#[test]
fn criswitch_prints_plain_words() {
    let mut found = Vec::new();
    let crates =
        ["advice", "client", "config", "cri", "platform"].map(|name| format!("crates/{name}/src"));
    let sources = crates.iter().map(String::as_str).chain(["src"]);
    for path in sources.flat_map(|folder| source_files(&at(folder))) {
        let source = fs::read_to_string(&path).unwrap();
        for literal in literals(&source) {
            found.extend(unplain(&path.display().to_string(), &literal));
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn the_manual_pages_use_plain_words() {
    let directory = tempfile::tempdir().unwrap();
    let mut man = std::process::Command::new(env!("CARGO_BIN_EXE_criswitch"));
    assert!(
        man.arg("man")
            .arg(directory.path())
            .status()
            .unwrap()
            .success()
    );
    let pages: Vec<_> = fs::read_dir(directory.path())
        .unwrap()
        .map(|page| page.unwrap().path())
        .collect();
    assert!(pages.len() > 5, "{pages:?}");
    let found: Vec<_> = pages
        .iter()
        .flat_map(|page| {
            let text = fs::read_to_string(page).unwrap().to_lowercase();
            unplain(&page.display().to_string(), &text)
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn literals_are_found_beside_comments_and_quotes() {
    let source = "// a \"comment\"\nlet a = '\"';\nlet b = \"One \\\"two\\\\\";\nlet c = \"three \\\n four\";\n#[cfg(test)]\n\"five\"";
    assert_eq!(literals(source), ["one two", "three   four"]);
}
