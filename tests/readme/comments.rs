//! Comments and the names of tests use plain words.

use std::fs;
use std::path::{Path, PathBuf};

use crate::at;
use crate::words::{found, unplain};

/// Words that are allowed in texts for users, but not in comments and names of tests, with their plain replacements.
const FOR_ENGINEERS: [(&str, &str); 3] = [
    ("refuse", "reject"),
    ("refused", "rejected"),
    ("refuses", "rejects"),
];

/// Folders and files with comments.
const WITH_COMMENTS: [&str; 13] = [
    "src",
    "crates",
    "tests",
    "benches",
    "config",
    "deploy",
    "package",
    "docs/pictures",
    "build.rs",
    "Cargo.toml",
    "book.toml",
    "clippy.toml",
    "deny.toml",
];

/// The files at or below `path` with one of these extensions. Directories called `target` are skipped.
fn files(path: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    if path.is_file() {
        let extension = path.extension().and_then(|extension| extension.to_str());
        let fits = extension.is_some_and(|extension| extensions.contains(&extension));
        return Vec::from_iter(fits.then(|| path.to_owned()));
    }
    let entries = fs::read_dir(path).unwrap();
    let paths = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("target"));
    paths.flat_map(|path| files(&path, extensions)).collect()
}

/// The comments of a text, each with the number of its first line. A comment ends at a line without `mark`.
fn comments(text: &str, mark: &str) -> Vec<(usize, String)> {
    let mut comments: Vec<(usize, String)> = Vec::new();
    let mut continues = false;
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix(mark) else {
            continues = false;
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        match comments.last_mut().filter(|_| continues) {
            Some((_, text)) => *text += comment,
            None => comments.push((number, comment.to_owned())),
        }
        continues = true;
    }
    comments
}

/// A comment with `_` in place of each piece of code.
fn without_code(comment: &str) -> String {
    comment.split('`').step_by(2).collect::<Vec<_>>().join("_")
}

/// The names of the test functions of a source file as words, each with the number of its line.
fn tests(source: &str) -> Vec<(usize, String)> {
    let (mut tests, mut is_test) = (Vec::new(), false);
    for (number, line) in (1..).zip(source.lines()) {
        let line = line.trim_start();
        is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let signature = line.strip_prefix("async ").unwrap_or(line);
        if let Some(rest) = signature.strip_prefix("fn ") {
            let name = rest.split('(').next().unwrap_or_default();
            tests.extend(is_test.then(|| (number, name.replace('_', " "))));
            is_test = false;
        }
    }
    tests
}

/// The problems of a comment or a test's name. Each problem begins with `place`, the file and line of the text.
fn problems(place: &str, text: &str) -> Vec<String> {
    let text = without_code(text).to_lowercase();
    let mut problems = unplain(place, &text);
    problems.extend(found(&FOR_ENGINEERS, place, &text));
    let sentences = text
        .split_inclusive(['.', '?', '!'])
        .filter(|sentence| !sentence.ends_with('?'));
    let mut first_words = sentences.filter_map(|sentence| sentence.split_whitespace().next());
    if first_words.any(|word| ["who", "what"].contains(&word)) {
        let hint = "a sentence starts with who or what; name the subject";
        problems.push(format!("{place}: {hint}"));
    }
    problems
}

/// The problems of all texts that `texts` finds in the files, each text with its line.
fn all_problems(extensions: &[&str], texts: impl Fn(&str) -> Vec<(usize, String)>) -> Vec<String> {
    let paths: Vec<_> = WITH_COMMENTS
        .iter()
        .map(|path| at(path))
        .flat_map(|path| files(&path, extensions))
        .collect();
    assert!(paths.len() > 5, "{paths:?}");
    let found = paths.iter().flat_map(|path| {
        let texts = texts(&fs::read_to_string(path).unwrap());
        let place = path.display();
        let found = texts
            .into_iter()
            .flat_map(move |(line, text)| problems(&format!("{place}:{line}"), &text));
        found.collect::<Vec<_>>()
    });
    found.collect()
}

#[test]
fn comments_use_plain_words() {
    let mut found = all_problems(&["rs", "go"], |text| comments(text, "//"));
    found.extend(all_problems(
        &["sh", "bats", "py", "toml", "yaml", "yml"],
        |text| comments(text, "#"),
    ));
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn names_of_tests_use_plain_words() {
    let found = all_problems(&["rs"], tests);
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn a_comment_is_found_without_its_code() {
    let text = "// One `told`\n// two.\nlet a = 1;\n    /// Who asks.\n";
    let found = comments(text, "//");
    assert_eq!(
        found,
        [(1, " One `told` two.".into()), (4, " Who asks.".into())]
    );
    assert_eq!(problems("a", &found[0].1), [""; 0]);
}

#[test]
fn words_are_found_in_comments_and_names() {
    for text in [
        "The operator is told.",
        "First. Who asks, waits.",
        "The row is refused.",
        "A note is no problem.",
        "It waits, also if it is late.",
    ] {
        assert_eq!(problems("a", text).len(), 1, "{text}");
    }
    for text in [
        "What does a client see?",
        "A backend refuses connections.",
        "There is no pod. The list is no longer used.",
        "ECONNREFUSED",
    ] {
        assert_eq!(problems("a", text), [""; 0], "{text}");
    }
    let source = "#[test]\nfn a_row_is_told() {}\nfn told() {}\n#[tokio::test]\nasync fn b() {}";
    assert_eq!(
        tests(source),
        [(2, "a row is told".into()), (5, "b".into())]
    );
}

/// rustfmt wraps code, but no comments.
#[test]
fn comments_of_rust_fit_in_120_columns() {
    let paths: Vec<_> = WITH_COMMENTS
        .iter()
        .map(|path| at(path))
        .flat_map(|path| files(&path, &["rs"]))
        .collect();
    let mut wide = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            if line.trim_start().starts_with("//") && line.chars().count() > 120 {
                wide.push(format!("{}:{number}", path.display()));
            }
        }
    }
    assert!(wide.is_empty(), "{wide:#?}");
}
