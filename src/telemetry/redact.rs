//! Removes the credentials of URLs from error texts: a registry's error may quote a whole URL.

use std::borrow::Cow;

/// The characters that end a URL within a text, besides white space.
const ENDS: [char; 8] = ['"', '\'', '`', '<', '>', '(', ')', '\\'];
/// The replacement for removed parts.
const REMOVED: &str = "[removed]";

/// `text` without the user, the password and the query of each URL in it.
pub fn without_credentials(text: &str) -> Cow<'_, str> {
    if !text.contains("://") {
        return text.into();
    }
    let mut parts = text.split("://");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_end = |char: char| char.is_whitespace() || ENDS.contains(&char);
        let (url, rest) = part.split_at(part.find(is_end).unwrap_or(part.len()));
        let (place, query) = url.split_at(url.find('?').unwrap_or(url.len()));
        clean.push_str("://");
        clean.push_str(&without_user(place));
        if !query.is_empty() {
            clean.extend(["?", REMOVED]);
        }
        clean.push_str(rest);
    }
    clean.into()
}

/// Removes user and password from the text of a URL after the scheme. A password with a slash makes the URL invalid.
/// Errors quote invalid URLs too, so such a password is removed as well.
fn without_user(place: &str) -> Cow<'_, str> {
    let slash = place.find(['/', '#']).unwrap_or(place.len());
    let authority = place.get(..slash).unwrap_or_default();
    let user = match authority.rfind('@') {
        None if has_port(authority) => None,
        None => place.rfind('@'),
        found => found,
    };
    match user.and_then(|at| place.get(at..)) {
        Some(host) => format!("{REMOVED}{host}").into(),
        None => place.into(),
    }
}

/// Whether the text after the last colon can be a port or the end of an IPv6 address. Also true if there is no colon.
fn has_port(authority: &str) -> bool {
    let port = authority.rsplit_once(':').map_or("", |(_, port)| port);
    port.ends_with(']') || port.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_the_password_and_the_query_of_a_url_are_removed() {
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
                "parse \"http://[removed]@proxy:3128\": invalid port \":hun\" after host",
            ),
            ("https://a:b@c:d@host", "https://[removed]@host"),
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
        ] {
            assert_eq!(without_credentials(text), text);
        }
    }
}
