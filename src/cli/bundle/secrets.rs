//! Removes what may be a secret from the text of a part. No part shows a field that holds secrets, so this is for texts
//! from outside, such as the error of a runtime.

use criswitch::telemetry::redact::without_credentials;

/// A value after one of these words is removed: `password: x`, `API_TOKEN=x`, `"secret":"x"`, `Bearer x`. "auth" begins
/// with a quote, because `unauthorized: x` is the usual error of a registry.
#[rustfmt::skip]
const WORDS: [&str; 9] = [
    "password", "passwd", "secret", "token", "\"auth", "authorization", "bearer", "credential", "key",
];
const REMOVED: &str = "[removed]";
const PEM: (&str, &str) = ("-----BEGIN ", "-----END ");

/// The text without the values of secrets, credentials of URLs, and PEM blocks.
pub(super) fn removed(text: &str) -> String {
    let mut in_block = false;
    let lines = text.lines().map(|line| {
        let begins = line.contains(PEM.0);
        let hidden = in_block || begins;
        in_block = hidden && !line.contains(PEM.1);
        match hidden {
            true => format!("{REMOVED}\n"),
            false => without_values(&without_credentials(line)) + "\n",
        }
    });
    lines.collect()
}

/// A line without the values after each of the words.
fn without_values(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let (mut clean, mut from) = (String::new(), 0);
    while let Some((start, end)) = value(&lower, from) {
        clean.push_str(line.get(from..start).unwrap_or_default());
        clean.push_str(REMOVED);
        from = end;
    }
    clean + line.get(from..).unwrap_or_default()
}

/// The place of the first value after `from`.
fn value(lower: &str, from: usize) -> Option<(usize, usize)> {
    let mut at = from;
    loop {
        let rest = lower.get(at..)?;
        let found = WORDS.iter().filter_map(|word| {
            let place = rest.find(word)?;
            Some((place, place + word.len(), *word))
        });
        let (place, end, word) = found.min()?;
        let after = rest.get(end..)?;
        let name = after.find(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c));
        let between = after.get(name?..)?;
        let is_sign = |c: char| c.is_whitespace() || "\"'\\:=".contains(c);
        let signs = between.find(|c| !is_sign(c)).unwrap_or(between.len());
        let sign = between.get(..signs)?;
        let start = at + end + name? + signs;
        let mut before = lower.get(..at + place)?.rsplit(char::is_whitespace);
        let is_option = before.next().is_some_and(|it| it.starts_with("--"));
        if (word == "bearer" || is_option || sign.contains([':', '='])) && start < lower.len() {
            let name = rest.get(place..)?.trim_start_matches('"');
            let has_words = name.starts_with("authorization");
            return Some((start, start + length(lower, start, has_words)));
        }
        at += end;
    }
}

/// The length of the value at `start`: to the end of its string, or to the next white space. A list goes to the end of
/// the line. The value of `Authorization` has several words, so it goes to the end of the string or line that it is in.
fn length(line: &str, start: usize, has_words: bool) -> usize {
    let (before, value) = line.split_at(start);
    let quote = before.rfind(['"', '\'']);
    let is_opened = quote.is_some_and(|at| at + 1 == start);
    let is_inside = before.matches('"').count() % 2 == 1;
    let end = match quote {
        Some(at) if is_opened || has_words && is_inside => closing(before, at, value),
        _ if has_words || value.starts_with('[') => None,
        _ => value.find(|c: char| c.is_whitespace() || "\"'".contains(c)),
    };
    end.unwrap_or(value.len())
}

/// The place in `value` of the quote that closes the one at `at` in `before`: the same, after as many backslashes.
fn closing(before: &str, at: usize, value: &str) -> Option<usize> {
    let backslashes = |text: &str| text.len() - text.trim_end_matches('\\').len();
    let level = backslashes(before.get(..at)?);
    let mut quotes = value.match_indices(before.get(at..=at)?);
    let closes = |place: usize| value.get(..place).map(backslashes) == Some(level);
    let (place, _) = quotes.find(|(place, _)| closes(*place))?;
    Some(place - level)
}

#[cfg(test)]
mod tests {
    use super::removed;

    #[test]
    fn values_of_secrets_are_removed() {
        for (text, clean) in [
            ("password: hunter2", "password: [removed]"),
            (
                "AWS_SECRET_ACCESS_KEY=hunter2",
                "AWS_SECRET_ACCESS_KEY=[removed]",
            ),
            (
                r#"{"token":"hunter2","name":"web"}"#,
                r#"{"token":"[removed]","name":"web"}"#,
            ),
            (
                r#"say "{\"auth_token\": \"hunter2\"}" twice"#,
                r#"say "{\"auth_token\": \"[removed]\"}" twice"#,
            ),
            ("Authorization: Basic hunter2", "Authorization: [removed]"),
            ("Authorization: Basic a,hunter2", "Authorization: [removed]"),
            (
                r#"{"sent":"Authorization: Digest a=\"hunter2\", b","name":"web"}"#,
                r#"{"sent":"Authorization: [removed]","name":"web"}"#,
            ),
            (r#"password="hunt,er2" x"#, r#"password="[removed]" x"#),
            (r#"{"password":"hun\"ter2"}"#, r#"{"password":"[removed]"}"#),
            (
                r#"{"tokens":["hun]ter2","hunter2"],"name":"web"}"#,
                r#"{"tokens":[removed]"#,
            ),
            (
                r#"name="web" Authorization: Digest a="hunter2""#,
                r#"name="web" Authorization: [removed]"#,
            ),
            ("--verbose token of web", "--verbose token of web"),
            ("password=hunt,er2;a b", "password=[removed] b"),
            ("run --password hunter2 now", "run --password [removed] now"),
            ("sent Bearer hunter2", "sent Bearer [removed]"),
            (
                "https://me:hunter2@store/x?sig=hunter2",
                "https://[removed]@store/x?[removed]",
            ),
            (
                "a\n-----BEGIN KEY-----\nhunter2\n-----END KEY-----\nb",
                "a\n[removed]\n[removed]\n[removed]\nb",
            ),
        ] {
            assert_eq!(removed(text), format!("{clean}\n"));
        }
    }

    #[test]
    fn a_text_without_secrets_stays() {
        for text in [
            "criswitch 0.1.0 started listen=/run/criswitch.sock",
            "pod \"web\": secret \"web-tls\" not found",
            "{\"backends\": [], \"schema\": 1}",
        ] {
            assert_eq!(removed(text), format!("{text}\n"));
        }
    }
}
