//! The text of errors: without numbers that users cannot use, and never long.

use std::borrow::Cow;
use std::io;

use h2::Reason;

use crate::redact::without_credentials;

/// The most bytes of a backend's text that criswitch shows in errors, in the log and in `Status`.
pub const LONGEST_TEXT: usize = 4 << 10;
/// The mark at the end of a text that was cut.
const CUT: &str = "... (cut)";

/// Cuts a text from a backend, which may be as long as a message, to [`LONGEST_TEXT`] bytes. A mark ends a cut text.
pub fn cut<'a>(text: impl Into<Cow<'a, str>>) -> Cow<'a, str> {
    let text = text.into();
    if text.len() <= LONGEST_TEXT {
        return text;
    }
    let end = text.floor_char_boundary(LONGEST_TEXT - CUT.len());
    let begin = text.get(..end).unwrap_or_default();
    format!("{begin}{CUT}").into()
}

/// The text without the numbers of the operating system's errors, such as `(os error 111)`: the words say the same.
pub fn without_numbers(text: &str) -> Cow<'_, str> {
    let (mut clean, mut left) = (String::new(), text);
    while let Some((before, rest)) = left.split_once(" (os error ") {
        let after = rest.trim_start_matches(|digit: char| digit.is_ascii_digit());
        let Some(after) = after.strip_prefix(')') else {
            break;
        };
        clean.push_str(before);
        left = after;
    }
    if left.len() == text.len() {
        text.into()
    } else {
        (clean + left).into()
    }
}

/// An error and its causes, outermost first. The text is cut to [`LONGEST_TEXT`] bytes and has no credentials, because
/// an HTTP/2 error may contain any text of the peer.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes: Vec<_> = std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect();
    reported(&without_numbers(&causes.join(": "))).into_owned()
}

/// Cuts a text like [`cut`] and removes its credentials, for the log and for criswitch's own texts. A very long text is
/// shortened before its credentials are removed. It is shortened at white space, so that no part of a password remains.
pub fn reported(text: &str) -> Cow<'_, str> {
    let most = text.floor_char_boundary(4 * LONGEST_TEXT);
    let begin = text.get(..most).unwrap_or_default();
    let words = begin
        .rfind(char::is_whitespace)
        .filter(|_| most < text.len());
    let begin = begin.get(..words.unwrap_or(most)).unwrap_or_default();
    cut(without_credentials(begin))
}

/// Why a connection does not open.
pub fn cannot_connect(error: &io::Error) -> String {
    format!("cannot connect: {}", error_chain(error))
}

/// The cause that is reported for a call on a connection that is closing.
pub const CLOSING: &str = "the connection is closing (GOAWAY) and takes no further calls";

/// Explains an error of HTTP/2 in plain words. Without this text, clients would see h2's own text, such as `not a
/// result of an error` for a connection that its peer closes.
pub fn of_http2(error: &h2::Error) -> String {
    let reason = error.reason();
    let text = match reason {
        Some(Reason::NO_ERROR) if error.is_go_away() => CLOSING.to_owned(),
        Some(Reason::REFUSED_STREAM) if error.is_reset() => {
            "the call was rejected before it was processed (RST_STREAM, REFUSED_STREAM)".to_owned()
        }
        Some(reason) if error.is_reset() => {
            format!("the call was broken off (RST_STREAM, {reason:?})")
        }
        Some(Reason::NO_ERROR) => "the call was broken off without an error".to_owned(),
        Some(_) if error.is_go_away() => format!("the connection was closed: {error}"),
        _ if error.get_io().is_some_and(is_end) => "the connection ended".to_owned(),
        _ => error_chain(error),
    };
    reported(&text).into_owned()
}

/// Whether an I/O error says only that the peer has closed the connection.
fn is_end(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_removed_and_other_text_is_kept() {
        let text = "a (os error 2): b (os error 111), (os error x)";
        assert_eq!(without_numbers(text), "a: b, (os error x)");
        let refused = std::io::Error::from_raw_os_error(111);
        assert!(!error_chain(&refused).contains("os error"));
        let many = "x (os error 1)".repeat(1 << 17);
        assert_eq!(without_numbers(&many).len(), 1 << 17);
    }

    #[test]
    fn a_text_is_cut_between_two_characters_and_only_once() {
        assert_eq!(cut("short"), "short");
        let longest = "x".repeat(LONGEST_TEXT);
        assert_eq!(cut(&*longest), longest);
        let long = "\u{20ac}".repeat(LONGEST_TEXT);
        let once = cut(&*long);
        assert!(once.len() <= LONGEST_TEXT && once.ends_with(CUT), "{once}");
        assert_eq!(cut(&*once), once);
    }
}
