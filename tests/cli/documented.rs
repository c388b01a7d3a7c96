//! The commands in the documentation exist.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::run;

/// In the documents, one of these words after "criswitch" means that the line quotes a message, not a command.
const MESSAGES: [&str; 5] = ["cannot", "does", "has", "is", "wrote"];

/// The lines of code in a document.
fn code(text: &str) -> Vec<String> {
    let (mut code, mut in_block) = (Vec::new(), false);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::CodeBlock(_)) => in_block = true,
            Event::End(TagEnd::CodeBlock) => in_block = false,
            Event::Code(text) => code.push(text.into_string()),
            Event::Text(text) if in_block => code.extend(text.lines().map(str::to_owned)),
            _ => {}
        }
    }
    code
}

/// The commands that have subcommands.
const GROUPS: [&str; 1] = ["node"];

/// The command and the options in a line: `pods` and `--backend` in `criswitch pods --backend old # ...`.
fn used(line: &str) -> Option<(String, Vec<String>)> {
    let line = line.trim().trim_start_matches("$ ");
    let words = line.strip_prefix("criswitch ")?.split_whitespace();
    let mut own = words
        .take_while(|word| !word.starts_with(['#', '|', '>', '&']))
        .map(str::to_owned);
    let command = own.next()?;
    let is_word = command.bytes().all(|byte| byte.is_ascii_lowercase());
    let command = if GROUPS.contains(&&*command) {
        format!("{command} {}", own.next()?)
    } else {
        command
    };
    (is_word && !MESSAGES.contains(&&*command))
        .then(|| (command, own.filter(|word| word.starts_with("--")).collect()))
}

#[test]
fn the_documents_use_commands_and_options_that_exist() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let chapters = fs::read_dir(sources.join("docs"))
        .unwrap()
        .map(|file| file.unwrap().path())
        .filter(|path| path.is_file());
    let documents = chapters.chain([sources.join("README.md"), sources.join("CONTRIBUTING.md")]);
    let lines = documents.flat_map(|path| code(&fs::read_to_string(path).unwrap()));
    let used: BTreeSet<_> = lines.filter_map(|line| used(&line)).collect();
    assert!(used.len() > 15, "{used:?}");
    for (command, options) in used {
        let words: Vec<_> = command.split(' ').chain(["--help"]).collect();
        let help = run(&words);
        assert_eq!(help.code, 0, "criswitch {command}");
        for option in options {
            let option = option.split('=').next().unwrap();
            assert!(help.stdout.contains(option), "criswitch {command} {option}");
        }
    }
}
