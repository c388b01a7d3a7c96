//! Parses quantities, label keys and label values by the rules of the Kubernetes API server.

use super::value::{InvalidValue, invalid_value, is_domain};

/// The longest name in a label key, and the longest label value.
const MAX_NAME: usize = 63;
/// The suffixes of a quantity, besides an exponent.
const SUFFIXES: [&str; 16] = [
    "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei",
];
/// The suffixes of quantities that are fractions of a unit.
const FRACTIONS: [char; 3] = ['n', 'u', 'm'];

/// An amount of processor time, such as "250m" or "1.5".
pub(super) fn cpu(text: &str) -> Result<String, InvalidValue> {
    quantity(text, "\"250m\"")
}

/// An amount of memory, such as "120Mi". The API server warns about fractions of a byte, so they are rejected here.
pub(super) fn memory(text: &str) -> Result<String, InvalidValue> {
    const EXAMPLE: &str = "\"120Mi\"";
    let text = quantity(text, EXAMPLE)?;
    if text.ends_with(FRACTIONS) {
        return Err(invalid_value(
            format!("{text:?} is a fraction of a byte"),
            EXAMPLE,
        ));
    }
    Ok(text)
}

fn quantity(text: &str, example: &str) -> Result<String, InvalidValue> {
    if text.starts_with('-') {
        return Err(invalid_value(format!("{text:?} is negative"), example));
    }
    let number = text.strip_prefix('+').unwrap_or(text);
    let end = number.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = number.split_at(end.unwrap_or(number.len()));
    let digits = number.bytes().any(|byte| byte.is_ascii_digit());
    if digits && number.matches('.').count() < 2 && is_suffix(suffix) {
        return Ok(text.to_owned());
    }
    Err(invalid_value(
        format!("{text:?} is not a Kubernetes quantity"),
        example,
    ))
}

fn is_suffix(text: &str) -> bool {
    let exponent = text.strip_prefix(['e', 'E']);
    SUFFIXES.contains(&text) || exponent.is_some_and(|it| it.parse::<i32>().is_ok())
}

/// The key of a label or a taint: a name, optionally after a DNS name and a slash.
pub(super) fn label_key(text: &str) -> Result<String, InvalidValue> {
    if is_label_key(text) {
        return Ok(text.to_owned());
    }
    let what = format!("{text:?} is not a label key");
    let rule =
        "up to 63 letters, digits, \"-\", \"_\" and \".\", as in \"kata\" or \"example.com/kata\"";
    Err(invalid_value(what, rule))
}

/// The value of a label or a taint, which may be empty.
pub(super) fn label_value(text: &str) -> Result<String, InvalidValue> {
    if text.is_empty() || is_name(text) {
        return Ok(text.to_owned());
    }
    let what = format!("{text:?} is not a label value");
    let rule =
        "up to 63 letters, digits, \"-\", \"_\" and \".\", with a letter or digit at either end";
    Err(invalid_value(what, rule))
}

/// The name of a RuntimeClass.
pub(super) fn class(text: &str) -> Result<String, InvalidValue> {
    if is_domain(text) {
        return Ok(text.to_owned());
    }
    let what = format!("{text:?} is not the name of a RuntimeClass");
    let rule = "a DNS name: lower-case letters, digits, \"-\" and \".\", as in \"gvisor\"";
    Err(invalid_value(what, rule))
}

/// Whether the text is the key of a label or of a taint.
pub fn is_label_key(text: &str) -> bool {
    match text.rsplit_once('/') {
        Some((domain, name)) => is_domain(domain) && is_name(name),
        None => is_name(text),
    }
}

/// Whether the text is a label value that is not empty, or the name in a label key.
pub fn is_name(text: &str) -> bool {
    let is_end = |char: char| char.is_ascii_alphanumeric();
    text.len() <= MAX_NAME
        && text.starts_with(is_end)
        && text.ends_with(is_end)
        && text
            .chars()
            .all(|char| is_end(char) || "-_.".contains(char))
}
