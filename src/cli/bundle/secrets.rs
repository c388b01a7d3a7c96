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
            Some((place, place + word.len(), *word == "bearer"))
        });
        let (_, end, is_bearer) = found.min()?;
        let after = rest.get(end..)?;
        let name = after.find(|c: char| !c.is_ascii_alphanumeric() && !"_-.".contains(c));
        let between = after.get(name?..)?;
        let is_sign = |c: char| c.is_whitespace() || "\"'\\:=".contains(c);
        let signs = between.find(|c| !is_sign(c)).unwrap_or(between.len());
        let sign = between.get(..signs)?;
        let start = at + end + name? + signs;
        if (is_bearer || sign.contains([':', '='])) && start < lower.len() {
            let value = lower.get(start..)?;
            let length = value.find(['"', '\'', ',', '}', ';', '&', '\\']);
            return Some((start, start + length.unwrap_or(value.len())));
        }
        at += end;
    }
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
