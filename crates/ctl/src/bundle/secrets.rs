//! Removes possible secrets from the text of a part. No part shows a field that holds secrets, so only texts from
//! outside, such as the error of a runtime, may contain any.

use criswitch_cri::redact::without_credentials;

const REMOVED: &str = "[removed]";
const PEM: (&str, &str) = ("-----BEGIN ", "-----END ");

/// The text without the values of secrets, credentials of URLs, and PEM blocks.
pub(super) fn removed(text: &str) -> String {
    let (mut clean, mut in_block) = (String::new(), false);
    for line in text.lines() {
        let (begin, end) = (line.rfind(PEM.0), line.rfind(PEM.1));
        let hidden = in_block || begin.is_some();
        // One line may end a block and begin the next one.
        in_block = if end.is_some() { begin > end } else { hidden };
        if hidden {
            clean += REMOVED;
        } else {
            clean += &without_credentials(line);
        }
        clean += "\n";
    }
    clean
}

#[cfg(test)]
mod tests {
    use super::removed;

    #[test]
    fn values_of_secrets_are_removed() {
        for (text, clean) in [
            ("sent password=hunter2 to", "sent password=[removed] to"),
            ("https://me:hunter2@store/x", "https://[removed]@store/x"),
            (
                "-----BEGIN A-----\nx\n-----END A----------BEGIN B-----\nhunter2\n-----END B-----\nb",
                "[removed]\n[removed]\n[removed]\n[removed]\n[removed]\nb",
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
