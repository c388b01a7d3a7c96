//! Patterns of texts and paths: `*` matches any characters except `/`, and `**` matches any characters.

/// Whether a text is like one of these patterns.
pub(super) fn is_like(patterns: &[&str], text: &str) -> bool {
    patterns.iter().any(|pattern| glob(pattern, text))
}

/// Whether a text is like a pattern.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    let (rest, most) = match rest.strip_prefix('*') {
        Some(rest) => (rest, text.len()),
        None => (rest, text.find('/').unwrap_or(text.len())),
    };
    (0..=most)
        .filter_map(|start| text.get(start..))
        .any(|tail| glob(rest, tail))
}

/// A regular expression, as a string literal of CEL, that matches the texts that are like one of these patterns.
pub(super) fn regex(patterns: &[&str]) -> String {
    format!("r'^{}$'", alternatives(patterns))
}

/// Like [`regex`], but for paths, which may end with `/`.
pub(super) fn path_regex(patterns: &[&str]) -> String {
    format!("r'^{}/?$'", alternatives(patterns))
}

/// The patterns as one expression, with their common beginning only once.
fn alternatives(patterns: &[&str]) -> String {
    let first = patterns.first().copied().unwrap_or_default();
    let common = first
        .match_indices('/')
        .filter_map(|(end, _)| first.get(..=end))
        .rfind(|text| patterns.iter().all(|pattern| pattern.starts_with(text)))
        .filter(|_| patterns.len() > 1)
        .unwrap_or_default();
    let rest: Vec<_> = patterns
        .iter()
        .filter_map(|pattern| match pattern.strip_suffix("/**") {
            Some(above) if patterns.contains(&above) => None,
            _ => {
                let has_below = patterns
                    .iter()
                    .any(|it| it.strip_suffix("/**") == Some(pattern));
                let below = if has_below { "(/.*)?" } else { "" };
                Some(expression(pattern.strip_prefix(common)?) + below)
            }
        })
        .collect();
    format!("{}({})", expression(common), rest.join("|"))
}

/// The regular expression for a pattern. If the pattern is /run or below it, the expression also matches the old name
/// /var/run.
fn expression(pattern: &str) -> String {
    let is_run = pattern == "/run" || pattern.starts_with("/run/");
    let var = if is_run { "(/var)?" } else { "" };
    // No pattern has a control character, so control characters can replace `/**` and `**` until the next step.
    let pattern = pattern.replace("/**", "\r").replace("**", "\n");
    let parts = pattern.chars().map(|letter| match letter {
        '\r' => "/.+".to_owned(),
        '\n' => ".*".to_owned(),
        '*' => "[^/]*".to_owned(),
        '.' => "[.]".to_owned(),
        letter => letter.to_string(),
    });
    var.to_owned() + &parts.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_globs_and_as_regular_expressions() {
        assert!(glob(
            "**/kubelet/plugins/**",
            "/var/lib/kubelet/plugins/a/b"
        ));
        assert!(glob("/dev/sd*", "/dev/sda1"));
        assert!(!glob("/dev/sd*", "/dev/sda/1"));
        assert_eq!(regex(&["a.b/**", "c*"]), "r'^(a[.]b/.+|c[^/]*)$'");
        assert_eq!(
            path_regex(&["/run/**", "**.sock"]),
            "r'^((/var)?/run/.+|.*[.]sock)/?$'"
        );
        assert_eq!(
            path_regex(&["/dev/shm", "/dev/shm/**", "/dev/null"]),
            "r'^/dev/(shm(/.*)?|null)/?$'"
        );
    }
}
