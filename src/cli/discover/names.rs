//! Names that a configuration may have.

/// The longest DNS label.
const MAX_LABEL: usize = 63;

/// The label (RFC 1123) nearest to a text, none if nothing is left of it.
pub(super) fn label_of(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    let kept: String = lower
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .take(MAX_LABEL)
        .collect();
    let label = kept.trim_matches('-');
    (!label.is_empty()).then(|| label.to_owned())
}

/// The first wish that is not taken; if all are, the first one, or else `otherwise`, with a number.
pub(super) fn first_free(
    wishes: impl IntoIterator<Item = String>,
    otherwise: &str,
    taken: impl Fn(&str) -> bool,
) -> String {
    let wishes: Vec<String> = wishes.into_iter().collect();
    if let Some(wish) = wishes.iter().find(|wish| !taken(wish)) {
        return wish.clone();
    }
    let stem = wishes.first().map_or(otherwise, String::as_str);
    let numbered = (2..).map(|n| format!("{stem:.58}-{n}"));
    let mut free = numbered.filter(|name| !taken(name));
    free.next().unwrap_or_default()
}
