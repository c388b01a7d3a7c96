//! Removes credentials from texts of other programs, such as the error of a runtime: the user, the password and the
//! query of each URL, and the values of headers and keys whose names say that they are secret.
//!
//! Such texts quote URLs and JSON with the escapes of Go, JSON and URLs, so a text is first decoded to `Letter`s. A
//! part is removed even if it only may be a credential.

use std::borrow::Cow;
use std::ops::Range;

/// The replacement for removed parts.
const REMOVED: &str = "[removed]";
/// The value of a name that contains one of these words is secret.
#[rustfmt::skip]
const SECRET: [&str; 13] = [
    "password", "passwd", "passphrase", "secret", "token", "credential", "apikey", "api_key", "api-key", "accesskey",
    "access_key", "privatekey", "private_key",
];
/// The words of [`SECRET`] that seldom precede a colon in ordinary sentences.
const SELDOM: [&str; 3] = ["password", "passwd", "passphrase"];
/// The value of a name that ends with one of these words is secret and may have several words.
const HEADERS: [&str; 4] = ["authorization", "cookie", "-auth", "registry-config"];
/// The word before the token in an `Authorization` header.
const BEARER: &str = "bearer";
/// The text before `port` in Go's error for a URL.
const INVALID: &str = "invalid ";
/// Words that follow `Bearer` in ordinary text, and are not a token.
#[rustfmt::skip]
const PROSE: [&str; 6] = ["token", "tokens", "auth", "authentication", "challenge", "realm"];
/// The algorithms of digests. `@` and a digest follow the name of an image.
const DIGESTS: [&str; 3] = ["sha256:", "sha384:", "sha512:"];
/// The characters that may follow the quote at the end of a string.
const AFTER_STRING: &str = ",:;.)}]>\\&\"'`";

/// The longest URL, in letters, that is searched for credentials. A longer URL is removed whole. Otherwise the time for
/// a word with many URLs would grow with the square of its length.
const LONGEST_URL: usize = 1024;

/// The text without the credentials in it.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    let letters = letters(text);
    let place = |letter: usize| letters.get(letter).map_or(text.len(), |letter| letter.at);
    let (mut clean, mut from) = (String::new(), 0);
    for part in Scan::of(&letters).credentials() {
        clean.push_str(text.get(from..place(part.start)).unwrap_or_default());
        clean.push_str(REMOVED);
        from = place(part.end);
    }
    match from {
        0 => text.into(),
        _ => (clean + text.get(from..).unwrap_or_default()).into(),
    }
}

/// A character of a text.
#[derive(Clone, Copy, Debug)]
struct Letter {
    letter: char,
    /// The byte offset in the text.
    at: usize,
    /// The number of backslashes before a quote.
    backslashes: usize,
    how: How,
}

/// How a character is written in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Plain,
    /// As in JSON and Go: `\/`, `\u0040`, `\x40`.
    Escaped,
    /// As in URLs: `%40`.
    Percent,
}

impl Letter {
    fn is_space(&self) -> bool {
        self.how == How::Plain && self.letter.is_whitespace()
    }

    fn ends_line(&self) -> bool {
        self.how == How::Plain && self.letter == '\n'
    }

    fn is_quote(&self) -> bool {
        self.how != How::Percent && is_quote(self.letter)
    }

    fn is_of_name(&self) -> bool {
        self.how == How::Plain
            && (self.letter.is_ascii_alphanumeric() || "_-.".contains(self.letter))
    }

    /// Whether this quote ends the string that `opening` begins. Escapes in a string double the backslashes.
    fn closes(&self, opening: &Letter) -> bool {
        let level = opening.backslashes;
        self.is_quote()
            && self.letter == opening.letter
            && self.backslashes % (2 * level + 2) == level
    }
}

fn is_quote(letter: char) -> bool {
    matches!(letter, '"' | '\'' | '`')
}

fn letters(text: &str) -> Vec<Letter> {
    let (mut letters, mut at) = (Vec::new(), 0);
    while let Some(rest) = text.get(at..)
        && let Some(first) = rest.chars().next()
    {
        let after = rest.trim_start_matches('\\');
        let backslashes = rest.len() - after.len();
        let quote = after.chars().next().filter(|quote| is_quote(*quote));
        if first == '\\' && quote.is_none() && escape(after).is_none() {
            letters.extend((0..backslashes).map(|index| Letter {
                letter: first,
                at: at + index,
                backslashes: backslashes - index,
                how: How::Plain,
            }));
            at += backslashes;
            continue;
        }
        let (letter, how, length) = match (first, quote) {
            (_, Some(quote)) => (quote, How::Plain, backslashes + 1),
            ('\\', None) => match escape(after) {
                Some((letter, length)) => (letter, How::Escaped, backslashes + length),
                None => (first, How::Plain, 1),
            },
            ('%', None) => match percent(rest) {
                Some((letter, length)) => (letter, How::Percent, length),
                None => (first, How::Plain, 1),
            },
            _ => (first, How::Plain, first.len_utf8()),
        };
        letters.push(Letter {
            letter,
            at,
            backslashes,
            how,
        });
        at += length;
    }
    letters
}

/// The character that an escape stands for, and the length of the escape. `text` begins after the backslashes.
fn escape(text: &str) -> Option<(char, usize)> {
    let digits = match text.as_bytes().first()? {
        b'/' => return Some(('/', 1)),
        b'u' => 4,
        b'x' => 2,
        _ => return None,
    };
    let code = u32::from_str_radix(text.get(1..=digits)?, 16).ok()?;
    Some((char::from_u32(code)?, 1 + digits))
}

/// The character and the length of a percent-encoding. Its `%` may be percent-encoded itself, any number of times.
fn percent(text: &str) -> Option<(char, usize)> {
    let mut digits = text.get(1..)?;
    while let Some(more) = digits.strip_prefix("25") {
        digits = more;
    }
    let code = u8::from_str_radix(digits.get(..2)?, 16).ok()?;
    let length = text.len() - digits.len() + 2;
    code.is_ascii().then_some((char::from(code), length))
}

/// Reads letters from the first to the last.
struct Scan<'a> {
    letters: &'a [Letter],
    at: usize,
    /// The opening quote `"`, while the next letter is inside a quoted string.
    string: Option<&'a Letter>,
    /// The index where the name before the next letter begins.
    name: usize,
}

impl<'a> Scan<'a> {
    fn of(letters: &'a [Letter]) -> Scan<'a> {
        Scan {
            letters,
            at: 0,
            string: None,
            name: 0,
        }
    }

    /// The parts to remove, in their order.
    fn credentials(mut self) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        while let Some(letter) = self.letters.get(self.at) {
            let parts = if letter.is_of_name() {
                Vec::new()
            } else {
                self.secret()
                    .map(|secret| vec![secret])
                    .unwrap_or_else(|| self.url())
            };
            for part in &parts {
                self.skip_to(part.start);
                (self.at, self.name) = (part.end, part.end);
            }
            if parts.is_empty() {
                self.skip_to(self.at + 1);
            }
            found.extend(parts);
        }
        found
    }

    /// Advances to the letter `end`, and keeps track of the strings and names on the way.
    fn skip_to(&mut self, end: usize) {
        for letter in self.letters.get(self.at..end).unwrap_or_default() {
            match self.string {
                Some(opening) if letter.closes(opening) || letter.ends_line() => self.string = None,
                None if letter.is_quote() && letter.letter == '"' => self.string = Some(letter),
                _ => {}
            }
            self.at += 1;
            if !letter.is_of_name() {
                self.name = self.at;
            }
        }
    }

    /// The first letter at or after `from` for which `is_end` holds, or the end of the line.
    fn find(&self, from: usize, is_end: impl Fn(usize, &Letter) -> bool) -> usize {
        (from..)
            .zip(self.letters.get(from..).unwrap_or_default())
            .find(|(at, letter)| letter.ends_line() || is_end(*at, letter))
            .map_or(self.letters.len(), |(at, _)| at)
    }

    /// The end of the string that begins with `opening` and the letter `from`.
    fn string_end(&self, opening: &Letter, from: usize) -> usize {
        self.find(from, |at, letter| {
            letter.closes(opening)
                && self
                    .letters
                    .get(at + 1)
                    .is_none_or(|next| next.is_space() || AFTER_STRING.contains(next.letter))
        })
    }

    /// The end of the word that begins at `from`: white space, or the end of the string around it.
    fn word_end(&self, from: usize, string: Option<&Letter>) -> usize {
        self.find(from, |_, letter| {
            letter.is_space() || string.is_some_and(|opening| letter.closes(opening))
        })
    }

    /// The user with the password, and the query, of the URL whose scheme ends here.
    fn url(&self) -> Vec<Range<usize>> {
        self.parts_of_url()
            .into_iter()
            .flatten()
            .filter(|part| !part.is_empty())
            .collect()
    }

    fn parts_of_url(&self) -> Option<[Range<usize>; 2]> {
        let (colon, begin) = (self.letters.get(self.at)?, self.at + 3);
        let marks = self.letters.get(self.at..begin)?;
        if !marks.iter().map(|mark| mark.letter).eq("://".chars()) {
            return None;
        }
        let before = self.name.checked_sub(1).and_then(|at| self.letters.get(at));
        let end = match before.filter(|before| before.is_quote()) {
            // An error may quote an invalid URL, for example a URL with a space.
            Some(quote) if quote.letter == '"' => self.string_end(quote, begin),
            Some(quote) => {
                let word_end = self.word_end(begin, self.string);
                self.string_end(quote, begin).max(word_end)
            }
            None => self.word_end(begin, self.string),
        };
        if end - begin > LONGEST_URL {
            return Some([begin..end, end..end]);
        }
        let url = self.letters.get(begin..end)?;
        let is_sign = |letter: &Letter, sign: char| {
            letter.letter == sign && (letter.how != How::Percent || colon.how == How::Percent)
        };
        let user = url
            .iter()
            .enumerate()
            .rfind(|(at, letter)| {
                is_sign(letter, '@') && !is_digest(url.get(at + 1..).unwrap_or_default())
            })
            .map_or(0, |(at, _)| at);
        let query = url.iter().position(|letter| is_sign(letter, '?'));
        Some(match query.map(|at| at + 1) {
            None => [begin..begin + user, end..end],
            Some(query) if query > user => [begin..begin + user, begin + query..end],
            // The `?` may be part of the password, or the `@` part of the query.
            Some(_) => [begin..end, end..end],
        })
    }

    /// The value of the secret whose name ends here.
    fn secret(&self) -> Option<Range<usize>> {
        let letters = self.letters.get(self.name..self.at)?;
        let before = self.name.checked_sub(1).and_then(|at| self.letters.get(at));
        // The last part of a path is not a name.
        if letters.is_empty() || before.is_some_and(|before| before.letter == '/') {
            return None;
        }
        let name = lower(letters);
        let closing = self
            .letters
            .get(self.at)
            .filter(|it| it.is_quote() && before.is_some_and(Letter::is_quote));
        let string = self
            .string
            .filter(|opening| !closing.is_some_and(|it| it.closes(opening)));
        let sign_at = self.unspaced(self.at + usize::from(closing.is_some()));
        let sign = self.letters.get(sign_at)?.letter;
        let is_apart = sign_at > self.at;
        let is_in = |words: &[&str]| words.iter().any(|word| name.contains(word));
        let is_header = HEADERS.iter().any(|header| name.ends_with(header));
        let is_secret = is_header || name == "auth" || name.ends_with("_auth") || is_in(&SECRET);
        if name == BEARER && is_apart {
            let end = self.word_end(sign_at, string);
            let word = lower(self.letters.get(sign_at..end)?);
            let word = word.split(|end: char| !end.is_alphabetic()).next();
            return (!PROSE.contains(&word?)).then_some(sign_at..end);
        }
        if name == "port"
            && is_apart
            && is_quote(sign)
            && let Some(begin) = self.name.checked_sub(INVALID.len())
            && lower(self.letters.get(begin..self.name)?) == INVALID
        {
            // Go quotes the part of an invalid URL that it takes for the port.
            return self.value_range(sign_at, string, true);
        }
        if is_secret && name.starts_with("--") && is_apart && !matches!(sign, ':' | '=') {
            return self.value_range(sign_at, string, false);
        }
        if !is_secret || !matches!(sign, ':' | '=') {
            return None;
        }
        let begin = self.unspaced(sign_at + 1);
        let first = self.letters.get(begin)?;
        let value = match closing {
            // The value is an object: each of its keys is examined later, by its own name.
            Some(_) if first.letter == '{' => return None,
            None if is_header => begin..self.line_end(begin, string),
            _ => self.value_range(begin, string, closing.is_some())?,
        };
        let is_sure =
            is_header || closing.is_some() || sign == '=' || begin == sign_at + 1 || is_in(&SELDOM);
        // In ordinary text, more than one word follows a colon.
        let is_last = self.letters.get(value.end).is_none_or(Letter::ends_line);
        (is_sure || is_last).then_some(value)
    }

    /// The first letter at or after `from` that is not white space.
    fn unspaced(&self, from: usize) -> usize {
        self.find(from, |_, letter| !letter.is_space())
    }

    /// The value that begins at `begin`, within `string`. `is_quoted` says whether the name of the value is quoted.
    fn value_range(
        &self,
        begin: usize,
        string: Option<&Letter>,
        is_quoted: bool,
    ) -> Option<Range<usize>> {
        let first = self.letters.get(begin)?;
        let value = match string {
            _ if first.letter == '[' => begin..self.line_end(begin, string),
            Some(opening) if first.closes(opening) => return None,
            _ if first.is_quote() => {
                let end = self.string_end(first, begin + 1);
                match self.word_end(begin, string) {
                    // The first letter of a password may be a quote.
                    word_end if word_end > end + 1 && !is_quoted => begin + 1..word_end,
                    _ => begin + 1..end,
                }
            }
            _ => begin..self.word_end(begin, string),
        };
        (!value.is_empty()).then_some(value)
    }

    /// The end of `string` or of the line, whichever comes first.
    fn line_end(&self, from: usize, string: Option<&Letter>) -> usize {
        self.find(from, |_, letter| {
            string.is_some_and(|opening| letter.closes(opening))
        })
    }
}

fn lower(letters: &[Letter]) -> String {
    letters
        .iter()
        .map(|letter| letter.letter.to_ascii_lowercase())
        .collect()
}

/// Whether the digest of an image begins here.
fn is_digest(letters: &[Letter]) -> bool {
    DIGESTS.contains(&&*lower(letters.get(..7).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work that grows with the square of the length would take hours.
    #[test]
    fn a_long_text_takes_no_longer_than_its_length() {
        let most = 1 << 20;
        for part in ["://", "a://\"", "\\", "token: ", "token=[", "%25"] {
            let text = part.repeat(most / part.len());
            assert!(without_credentials(&text).len() <= 2 * most, "{part}");
        }
        let long = format!("get http://{} failed", "a".repeat(LONGEST_URL + 1));
        assert_eq!(without_credentials(&long), "get http://[removed] failed");
    }

    #[test]
    fn credentials_of_urls_and_values_of_secrets_are_removed() {
        for (text, clean) in [
            (
                "Head \"https://me:hunter2@registry.example/v2/web\": EOF",
                "Head \"https://[removed]@registry.example/v2/web\": EOF",
            ),
            (
                "get https://store.example/blob?sig=hunter2&x=1: 403; http://token@proxy:3128 failed",
                "get https://store.example/blob?[removed] 403; http://[removed]@proxy:3128 failed",
            ),
            (
                "parse \"http://me:hun/ter2@proxy:3128\": invalid port \":hun\" after host",
                "parse \"http://[removed]@proxy:3128\": invalid port \"[removed]\" after host",
            ),
            ("https://a:b@c:d@host", "https://[removed]@host"),
            ("(https://me:hun'(ter2)@host)", "(https://[removed]@host)"),
            (
                r"https:\/\/me:hunter2\u0040host\/x",
                r"https:\/\/[removed]\u0040host\/x",
            ),
            (
                "proxy=https%3A%2F%2Fme%3Ahunter2%40host%2Fx",
                "proxy=https%3A%2F%2F[removed]%40host%2Fx",
            ),
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
                r#"{"auths":{"host":{"auth":"hunter2"}}}"#,
                r#"{"auths":{"host":{"auth":"[removed]"}}}"#,
            ),
            (
                r#"say "{\"auth_token\": \"hunter2\"}" twice"#,
                r#"say "{\"auth_token\": \"[removed]\"}" twice"#,
            ),
            ("Authorization: Basic a,hunter2", "Authorization: [removed]"),
            ("X-Registry-Auth: hunter2", "X-Registry-Auth: [removed]"),
            (
                r#"{"sent":"Authorization: Digest a=\"hunter2\", b","name":"web"}"#,
                r#"{"sent":"Authorization: [removed]","name":"web"}"#,
            ),
            (
                "map[Authorization:[Basic hunter2]]",
                "map[Authorization:[removed]",
            ),
            (
                "&{Username:me Password:hun,ter2 Auth: IdentityToken:hunter2 A:b}",
                "&{Username:me Password:[removed] Auth: IdentityToken:[removed] A:b}",
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
            ("password=hunt,er2;a b", "password=[removed] b"),
            ("run --password hunter2 now", "run --password [removed] now"),
            ("sent Bearer hunter2", "sent Bearer [removed]"),
        ] {
            assert_eq!(without_credentials(text), clean);
        }
    }

    #[test]
    fn a_text_without_credentials_stays() {
        for text in [
            "no such image",
            "unix:///run/containerd/containerd.sock: connection refused",
            "https://registry.example:5000/v2/web@sha256:0123: not found",
            "https://[::1]:5000/v2/web@sha256:0123",
            "a:// https://",
            "--verbose token of web",
            "pod \"web\": secret \"web-tls\" not found",
            "failed to fetch anonymous token: unexpected status from https://auth.example/token: 401",
            "WWW-Authenticate: Bearer realm=\"https://auth.example/token\",service=\"x\"",
            "listen tcp: address 1: port \"a\" is unknown",
            "{\"backends\": [], \"schema\": 1}",
        ] {
            assert_eq!(without_credentials(text), text);
        }
    }

    /// A mark in each random password. The texts around the password do not contain it.
    const MARK: &str = "Zq";

    /// A random password with all printable characters.
    fn password(random: &mut fastrand::Rng) -> String {
        let part = |random: &mut fastrand::Rng| -> String {
            let letters = 0..random.usize(..4);
            letters
                .map(|_| char::from(random.u8(b'!'..=b'~')))
                .collect()
        };
        let marked = |random: &mut fastrand::Rng| part(random) + MARK;
        let parts: String = (0..random.usize(1..5)).map(|_| marked(random)).collect();
        parts + &part(random)
    }

    /// A text as Go's `encoding/json` and PHP's `json_encode` quote it.
    fn json(text: &str) -> String {
        let quoted = serde_json::to_string(text).unwrap();
        quoted
            .replace('/', r"\/")
            .replace('@', r"\u0040")
            .replace('&', r"\u0026")
    }

    fn percent(text: &str) -> String {
        percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
    }

    #[test]
    fn no_random_password_remains_in_any_text_and_escape() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..3000 {
            let secret = password(&mut random);
            let spaced = secret.replacen(MARK, " x Zq", 1);
            let url = |secret: &str| format!("https://me:{secret}@registry.example/v2/");
            let quoted = format!("Head {:?}: EOF", url(&spaced));
            let object = format!("{{\"identitytoken\":{}}}", json(&spaced));
            for text in [
                format!("get {}: denied", url(&secret)),
                format!("get ({}): denied", url(&secret)),
                format!("get '{}': denied", url(&secret)),
                format!("get `{}`: denied", url(&secret)),
                format!("error: {quoted}"),
                format!("error: {quoted:?}"),
                format!("error: {:?}", format!("get {} failed", url(&secret))),
                format!("{{\"url\":{},\"x\":\"y\"}}", json(&url(&spaced))),
                format!(
                    "{{\"x\":{}}}",
                    json(&format!("get {}", json(&url(&spaced))))
                ),
                format!("proxy={} x", percent(&url(&spaced))),
                format!("proxy={} x", percent(&percent(&url(&spaced)))),
                format!("get https://host/x?sig={secret}&y=1 failed"),
                format!("Get {:?}: EOF", format!("https://host/x?sig={spaced}")),
                format!("sent {object}"),
                format!("sent {object:?}"),
                format!("{{\"Authorization\":[\"Basic \",{}]}}", json(&spaced)),
                format!("a\nX-Registry-Auth: {spaced} {secret}\nb"),
                format!("&{{Username:me Password:{secret} Auth: Server:x}}"),
                format!("run --password {secret} x"),
                format!("x password={secret} y"),
            ] {
                let clean = without_credentials(&text);
                assert!(!clean.contains(MARK), "{text}\n{clean}");
            }
        }
    }
}
