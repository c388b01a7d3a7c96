//! Removes what may be a secret from the text of a part. No part shows a field that holds secrets, so this is for texts
//! from outside, such as the error of a runtime.

use criswitch_cri::redact::without_credentials;

const REMOVED: &str = "[removed]";
const PEM: (&str, &str) = ("-----BEGIN ", "-----END ");

/// The text without the values of secrets, credentials of URLs, and PEM blocks.
pub(super) fn removed(text: &str) -> String {
    let (mut clean, mut in_block) = (String::new(), false);
    for line in text.lines() {
        let hidden = in_block || line.contains(PEM.0);
        in_block = hidden && !line.contains(PEM.1);
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
