//! Identifiers and the names of files use plain words, like the sentences about them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::at;
use crate::words::found;

/// Words that no name may contain, with their plain replacements.
const UNPLAIN: [(&str, &str); 20] = [
    ("tell", "report, send, show"),
    ("tells", "reports, sends, shows"),
    ("told", "reported, sent, shown"),
    ("untold", "unreported, unsent"),
    ("anew", "again"),
    ("hear", "receive"),
    ("heard", "received, answered"),
    ("hears", "receives"),
    ("nobodys", "unowned"),
    ("unheard", "unanswered, unknown"),
    ("refusal", "rejection"),
    ("speaker", "default_backend"),
    ("speakers", "default_backends"),
    ("speaks", "is_default, counts"),
    ("refuse", "reject"),
    ("greet", "make_ready"),
    ("greeted", "made_ready"),
    ("repay", "send again"),
    ("door", "socket"),
    ("bites", "is noticed"),
];

/// The Rust files below a folder. Folders called `target` are skipped.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap();
    let paths = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("target"))
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        });
    let is_rust = |path: &PathBuf| path.extension().is_some_and(|it| it == "rs");
    paths.filter(is_rust).collect()
}

/// A source without its comments and string literals.
fn code(source: &str) -> String {
    let lines = source
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    let code = lines.collect::<Vec<_>>().join("\n");
    // A raw string ends at the first quote that is followed by `#`.
    let raw = code.split("r#\"").enumerate();
    let code: String = raw
        .map(|(place, part)| match (place, part.split_once("\"#")) {
            (0, _) | (_, None) => part,
            (_, Some((_, rest))) => rest,
        })
        .collect();
    let code = ["\\\\", "\\\"", "'\"'"]
        .iter()
        .fold(code, |code, quote| code.replace(quote, ""))
        .split('"')
        .step_by(2)
        .collect::<Vec<_>>()
        .join(" ");
    let lines = code.lines();
    let without_comments = lines.map(|line| line.split(" // ").next().unwrap_or_default());
    without_comments.collect::<Vec<_>>().join("\n")
}

/// The words of all names in a text, in lower case: of `tell_made`, `TellMade` and `TELL_MADE` `tell` and `made`.
fn words(text: &str) -> String {
    let mut words = String::new();
    let mut is_after_small = false;
    for char in text.chars() {
        if char.is_uppercase() && is_after_small {
            words.push(' ');
        }
        is_after_small = char.is_lowercase();
        words.extend(char.to_lowercase());
    }
    words
}

#[test]
fn names_use_plain_words() {
    let files: Vec<_> = ["src", "crates", "tests", "benches"]
        .iter()
        .flat_map(|folder| sources(&at(folder)))
        .collect();
    assert!(files.len() > 100);
    let found: Vec<_> = files
        .iter()
        .flat_map(|path| {
            let name = path.display().to_string();
            let text = words(&code(&fs::read_to_string(path).unwrap()));
            let stem = path.file_stem().unwrap().to_string_lossy();
            found(&UNPLAIN, &name, &format!("{text} {stem}"))
        })
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn words_are_found_in_names_only() {
    let source = "// told\nfn tell_made(\"told \\\" heard\") {} // told\nlet a = r#\"told \"b\" told\"#;\nUntoldDoor";
    let of = |text: &str| found(&UNPLAIN, "a", &words(&code(text)));
    assert_eq!(of(source).len(), 3, "{:?}", of(source));
    assert_eq!(of("fn teller(toldest: HeardCount) {}").len(), 1);
}
