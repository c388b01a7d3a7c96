//! The text of units and of environment files, as systemd reads it.

use criswitch_config::problem::is_slip;

/// The keys of units that criswitch reads.
const KEYS: [&str; 11] = [
    "DefaultEnvironment",
    "Environment",
    "EnvironmentFile",
    "ExecStart",
    "ListenStream",
    "PassEnvironment",
    "RootDirectory",
    "RootImage",
    "Type",
    "UnsetEnvironment",
    "WorkingDirectory",
];

/// A word of a command line, and the file or process that has it.
#[derive(Clone)]
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) from: String,
}

impl Word {
    pub(crate) fn new(text: &str, from: &str) -> Word {
        let (text, from) = (text.to_owned(), from.to_owned());
        Word { text, from }
    }
}

/// A line of a unit or of an environment file, except for valid headers and comments.
pub(super) struct Assignment {
    /// The number of the line, counted from 1. For a line that continues on further lines, the number of the last of
    /// these lines.
    number: usize,
    /// `None` before the first section. An environment file has no sections.
    pub(super) section: Option<String>,
    pub(super) key: String,
    /// `None` for a line without `=`, and for a header that does not end with `]`: `key` is then the whole line.
    pub(super) value: Option<String>,
}

impl Assignment {
    /// Why systemd ignores the line in a unit whose keys are in `section`, and what to try. `None` for a good line, and
    /// for a line that does not matter here.
    pub(super) fn fault(&self, section: &str) -> Option<(String, String)> {
        let (number, key, its) = (self.number, &self.key, self.section.as_deref());
        Some(match self.value {
            None if key.starts_with('[') => (
                format!(
                    "systemd reads nothing from line {number} on: its header does not end with ]"
                ),
                format!("[{section}] alone on the line"),
            ),
            None if its == Some(section) && may_matter(key) => (
                format!("systemd ignores line {number}: it has no ="),
                "KEY=VALUE".to_owned(),
            ),
            Some(_) if its == Some(section) => {
                let what =
                    format!("systemd ignores {key}= in line {number}: it is not a known key");
                let hint = if key.starts_with('-') {
                    "a \\ at the end of the line before".to_owned()
                } else {
                    format!("{}=", KEYS.iter().find(|known| is_slip(key, known))?)
                };
                (what, hint)
            }
            Some(_) if KEYS.contains(&key.as_str()) => {
                let cause = its.map_or("no section".to_owned(), |its| format!("section [{its}]"));
                let what = format!("systemd ignores {key}= in line {number}: it is in {cause}");
                (what, format!("moving it below [{section}]"))
            }
            _ => return None,
        })
    }
}

/// Whether a text that systemd ignores may have been meant as a flag of a program, or as one of the keys.
pub(super) fn may_matter(text: &str) -> bool {
    text.contains("--") || KEYS.iter().any(|key| text.starts_with(key))
}

/// The lines of a unit or of an environment file. A line that ends with `\`, without a blank after it,
/// continues on the next line that is not a comment.
pub(super) fn assignments(text: &str) -> Vec<Assignment> {
    let mut found = Vec::new();
    let (mut whole, mut section) = (String::new(), None);
    for (number, line) in (1..).zip(text.lines().chain([""]).map(str::trim_start)) {
        if line.starts_with(['#', ';']) {
            continue;
        }
        // The second of two `\` is an ordinary character.
        let backslashes = line.len() - line.trim_end_matches('\\').len();
        if let Some(start) = line.strip_suffix('\\').filter(|_| backslashes % 2 == 1) {
            whole += start;
            whole.push(' ');
            continue;
        }
        whole += line.trim_end();
        if let Some(rest) = whole.strip_prefix('[')
            && let Some(header) = rest.strip_suffix(']')
        {
            section = Some(header.to_owned());
        } else if !whole.is_empty() {
            let pair = whole.split_once('=').filter(|_| !whole.starts_with('['));
            found.push(Assignment {
                number,
                section: section.clone(),
                key: pair.map_or(&*whole, |(key, _)| key).trim().to_owned(),
                value: pair.map(|(_, value)| value.trim().to_owned()),
            });
        }
        whole.clear();
    }
    found
}

/// Splits the text of a file into words, at blanks outside quotes.
pub(crate) fn words(text: &str, from: &str) -> Vec<Word> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (quote, char) {
            (None, char) if char.is_whitespace() => words.extend(word.take()),
            (None, '"' | '\'') => {
                quote = Some(char);
                word.get_or_insert_default();
            }
            (Some(open), char) if open == char => quote = None,
            (_, '\\') => word.get_or_insert_default().extend(chars.next()),
            (_, char) => word.get_or_insert_default().push(char),
        }
    }
    words.extend(word);
    words.iter().map(|word| Word::new(word, from)).collect()
}

/// The text of an environment file with each value on one line: a value in quotes may have line breaks. A line break
/// after `\` is removed, any other line break becomes a blank.
pub(super) fn in_lines(text: &str) -> String {
    let (mut whole, mut quote) = (String::new(), None);
    let (mut before, mut is_escaped, mut is_comment) = ('\n', false, false);
    for char in text.chars() {
        is_comment = quote.is_none()
            && char != '\n'
            && (is_comment || before == '\n' && "#;".contains(char));
        match quote {
            None if before == '=' && !is_comment && "\"'".contains(char) => quote = Some(char),
            Some(open) if open == char && !is_escaped => quote = None,
            _ => {}
        }
        let is_inside = quote.is_some() && char == '\n';
        if is_inside && is_escaped {
            whole.pop();
            is_escaped = false;
            continue;
        }
        is_escaped = char == '\\' && !is_escaped;
        whole.push(if is_inside { ' ' } else { char });
        if char == '\n' || !char.is_whitespace() {
            before = char;
        }
    }
    whole
}

/// The value of a variable in an environment file. Quoted parts, and the text after a closing quote, are joined without
/// the blanks between them. In a value without quotes, `\` escapes the next character.
pub(super) fn file_value(text: &str) -> String {
    let (mut value, mut chars) = (String::new(), text.trim().chars());
    // The quote that is open; `Some(' ')` in a value without quotes.
    let mut open = None;
    while let Some(char) = chars.next() {
        match (open, char) {
            (None, char) if char.is_whitespace() => {}
            (None, '"' | '\'') => open = Some(char),
            (Some('"'), '"') | (Some('\''), '\'') => open = None,
            (Some('"'), '\\') => {
                let next = chars.next();
                let is_escaped = next.is_some_and(|next| "\"\\`$".contains(next));
                value.extend(Some('\\').filter(|_| !is_escaped).into_iter().chain(next));
            }
            (None | Some(' '), '\\') => {
                value.extend(chars.next());
                open = Some(' ');
            }
            (None, char) => {
                value.push(char);
                open = Some(' ');
            }
            (_, char) => value.push(char),
        }
    }
    value
}

/// Whether systemd accepts the name of an environment variable.
pub(super) fn is_variable(name: &str) -> bool {
    !name.starts_with(|char: char| char.is_ascii_digit())
        && !name.is_empty()
        && name
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || char == '_')
}

#[cfg(test)]
mod tests {
    use super::file_value;

    #[test]
    fn the_value_in_an_environment_file_goes_on_after_a_closing_quote() {
        for (text, value) in [
            ("plain text ", "plain text"),
            ("\"quoted\"", "quoted"),
            ("\"a\"b c", "ab c"),
            ("\"a \" 'b'", "a b"),
            ("a\"b\"", "a\"b\""),
            ("'a\\b'", "a\\b"),
            ("\"a\\\"b\\c\"", "a\"b\\c"),
            ("a\\ b", "a b"),
        ] {
            assert_eq!(file_value(text), value, "{text}");
        }
    }
}
