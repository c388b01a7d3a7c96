//! Parses single values: sockets, names, durations, sizes.

use std::fmt::{self, Display};
use std::path::{Path, PathBuf, is_separator};
use std::time::Duration;

use bytesize::ByteSize;
use criswitch_platform::paths;
use criswitch_platform::users::{self, UserId};
use strum::VariantArray;

use super::problem::nearest;
use crate::RuntimeKind;
use crate::address::Address;

const MAX_LABEL: usize = 63;
const MAX_DOMAIN: usize = 253;
/// The error about a number without a unit suggests seconds if that duration is at most one hour.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// The text in a file that means no limit.
pub(super) const UNLIMITED: &str = "unlimited";
/// The sockets to which cAdvisor in the kubelet connects, independent of the kubelet's settings.
const CADVISOR_SOCKETS: [&str; 2] = [
    "/run/containerd/containerd.sock",
    "/var/run/containerd/containerd.sock",
];
/// The kubelet treats a runtime whose socket has this suffix as CRI-O.
const CRIO_SUFFIX: &str = "run/crio/crio.sock";

/// Directories of the system in which criswitch must not write its state directly.
const SHARED: [&str; 10] = [
    "/run", "/var", "/var/lib", "/var/run", "/etc", "/tmp", "/usr", "/home", "/root", "/dev",
];

/// Why a text is not a valid value, and a suggestion.
pub(super) struct InvalidValue {
    pub(super) what: String,
    pub(super) hint: String,
}

/// The suggestion for a name or path with a variable.
pub(super) const WITHOUT_VARIABLES: &str =
    "the path itself, because criswitch replaces no variables";

pub(super) fn address(text: &str) -> Result<Address, InvalidValue> {
    if text.starts_with('$') || ["${", "/$"].iter().any(|sign| text.contains(sign)) {
        let what = format!("the socket path {text:?} has a variable");
        return Err(invalid_value(what, WITHOUT_VARIABLES));
    }
    Address::parse(text).map_err(|error| invalid_value(error.to_string(), error.hint()))
}

pub(super) fn listen(text: &str) -> Result<Address, InvalidValue> {
    let address = address(text)?;
    let path = address.to_string();
    let what = if path.ends_with(CRIO_SUFFIX) {
        let why = "for a socket with this name, the kubelet collects stats in a different way";
        format!("\"listen\" ends in {CRIO_SUFFIX}: {why}")
    } else if CADVISOR_SOCKETS.contains(&path.as_str()) {
        let why = "the kubelet's cAdvisor dials that socket and expects containerd itself";
        format!("\"listen\" is {path}: {why}")
    } else {
        return Ok(address);
    };
    Err(invalid_value(what, &format!("{:?}", paths::LISTEN)))
}

/// Parses the kind of runtime of a handler.
pub(super) fn kind(text: &str) -> Result<RuntimeKind, InvalidValue> {
    text.parse().map_err(|_| {
        let kinds = RuntimeKind::VARIANTS.iter().map(AsRef::as_ref);
        let hint = RuntimeKind::of_name(text)
            .map(|kind| format!("{:?}", kind.as_ref()))
            .or_else(|| nearest(text, kinds))
            .unwrap_or_else(|| "\"other\"".to_owned());
        invalid_value(format!("{text:?} is not a kind of runtime"), &hint)
    })
}

/// Checks the name of a handler or backend. The name must be an RFC 1123 label, because a RuntimeClass requires this.
pub(super) fn label(kind: &str, name: &str) -> Result<(), InvalidValue> {
    if is_label(name) {
        return Ok(());
    }
    let mut hint = "1 to 63 of a-z, 0-9 and \"-\", with no \"-\" at either end".to_owned();
    let meant = name.to_lowercase().replace(['.', '_', ' '], "-");
    if is_label(&meant) {
        hint = format!("{meant:?}: {hint}");
    }
    Err(invalid_value(
        format!("{kind} name {name:?} is not a DNS label (RFC 1123)"),
        &hint,
    ))
}

fn is_label(name: &str) -> bool {
    is_domain(name) && name.len() <= MAX_LABEL && !name.contains('.')
}

/// An absolute path of a directory for criswitch alone; `None` if `text` is empty.
pub(super) fn directory(text: &str) -> Result<Option<PathBuf>, InvalidValue> {
    let path = Path::new(text);
    let is_shared = path.parent().is_none() || SHARED.iter().any(|it| path == Path::new(it));
    let what = match text {
        "" => return Ok(None),
        _ if is_shared => "a directory of the system, and criswitch needs one of its own",
        _ if path.is_absolute() => return Ok(Some(path.into())),
        _ => "not an absolute path",
    };
    Err(invalid_value(
        format!("{text:?} is {what}"),
        paths::STATE_EXAMPLES[1],
    ))
}

/// An absolute path of a file that node-feature-discovery reads; `None` if `text` is empty.
pub(super) fn labels_file(text: &str) -> Result<Option<PathBuf>, InvalidValue> {
    let path = Path::new(text);
    let what = match path.file_name().map(|name| name.to_string_lossy()) {
        _ if text.is_empty() => return Ok(None),
        _ if !path.is_absolute() => "not an absolute path",
        Some(name) if !name.starts_with('.') && !text.ends_with(is_separator) => {
            return Ok(Some(path.into()));
        }
        _ => "a directory or a hidden file, which node-feature-discovery does not read",
    };
    Err(invalid_value(
        format!("{text:?} is {what}"),
        paths::LABELS_EXAMPLE,
    ))
}

/// A duration as written in a file.
pub fn duration_text(duration: Duration) -> String {
    match duration {
        Duration::MAX => UNLIMITED.to_owned(),
        duration => humantime::format_duration(duration).to_string(),
    }
}

/// The smallest and the largest value of a duration or size.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Whether zero is allowed.
    pub zero: bool,
    /// The largest value; empty if there is no limit.
    pub most: &'static str,
    /// Whether the text "unlimited" is allowed.
    pub unlimited: bool,
}

impl Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.most.is_empty() {
            return Ok(());
        }
        let zero = if self.zero { "" } else { "more than zero, " };
        let or = if self.unlimited {
            ", or \"unlimited\""
        } else {
            ""
        };
        write!(f, "{zero}at most \"{}\"{or}", self.most)
    }
}

/// Whether the text is a domain by the API server's rule. A part between two dots may be longer than DNS allows.
pub(super) fn is_domain(text: &str) -> bool {
    text.len() <= MAX_DOMAIN
        && text.split('.').all(|part| {
            let has_ends = !part.is_empty() && !part.starts_with('-') && !part.ends_with('-');
            has_ends
                && part
                    .bytes()
                    .all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
        })
}

/// A duration within `limits`; [`Duration::MAX`] for [`UNLIMITED`].
pub(super) fn duration(text: &str, limits: &Limits) -> Result<Duration, InvalidValue> {
    if limits.unlimited && text == UNLIMITED {
        return Ok(Duration::MAX);
    }
    limited_duration(text, limits).map_err(|mut wrong| {
        if limits.unlimited {
            wrong.hint += &format!(" or {UNLIMITED:?}");
        }
        wrong
    })
}

fn limited_duration(text: &str, limits: &Limits) -> Result<Duration, InvalidValue> {
    let lower = text.to_lowercase();
    if lower != text
        && let Ok(meant) = humantime::parse_duration(&lower)
    {
        let most = humantime::parse_duration(limits.most).unwrap_or(meant);
        let meant = if meant > most { limits.most } else { &lower };
        return Err(invalid_value(
            format!("{text:?} is not a duration: write the unit in lower case"),
            &format!("{meant:?}"),
        ));
    }
    let hint = format!("{:?}", suggested_duration(text));
    let duration = humantime::parse_duration(text)
        .map_err(|error| invalid_value(format!("{text:?} is not a duration: {error}"), &hint))?;
    if humantime::parse_duration(limits.most).is_ok_and(|most| duration > most) {
        return Err(too_large(text, "longer than", limits));
    }
    if duration.is_zero() && !limits.zero {
        return Err(invalid_value(
            format!("{text:?} is not longer than zero"),
            "\"2s\"",
        ));
    }
    Ok(duration)
}

fn too_large(text: &str, is: &str, limits: &Limits) -> InvalidValue {
    let most = limits.most;
    invalid_value(
        format!("{text:?} is {is} the limit of {most}"),
        &format!("{most:?} or less"),
    )
}

/// The suggestion in the error about an invalid duration. A number without a unit becomes seconds if the result is at
/// most `HOUR`.
pub(super) fn suggested_duration(text: &str) -> String {
    let meant = format!("{}s", text.trim());
    let is_meant = humantime::parse_duration(&meant).is_ok_and(|duration| duration <= HOUR);
    if is_meant { meant } else { "10s".to_owned() }
}

/// The suggestion in the error about a size without a unit.
pub(super) fn suggested_size(number: &str) -> String {
    match number.trim().parse() {
        Ok(mebibytes @ 1..=1024_usize) => format!("{mebibytes}MiB"),
        Ok(bytes @ 1_048_576..=1_073_741_824) => size(bytes),
        _ => "16MiB".to_owned(),
    }
}

/// A user, as a name or an id. The largest number is not an id: chown(2) takes it for "no change".
pub(super) fn user(text: &str) -> Result<UserId, InvalidValue> {
    users::allowed(text).ok_or_else(|| {
        invalid_value(
            format!("{text} is not {}", users::A_USER_ID),
            users::USER_ID_HINT,
        )
    })
}

pub(super) fn bytes(text: &str, limits: &Limits) -> Result<usize, InvalidValue> {
    if text.parse::<u64>().is_ok_and(|number| number > 0) {
        return Err(invalid_value(
            format!("the size {text:?} has no unit"),
            &format!("{:?}", suggested_size(text)),
        ));
    }
    let size: ByteSize = text
        .parse()
        .map_err(|_| invalid_value(format!("{text:?} is not a size"), "\"16MiB\""))?;
    if size.as_u64() == 0 && !limits.zero {
        let what = "a limit of zero would reject every message";
        return Err(invalid_value(what.into(), "\"16MiB\""));
    }
    let most = limits.most.parse().unwrap_or(ByteSize(u64::MAX));
    usize::try_from(size.as_u64())
        .ok()
        .filter(|_| size <= most)
        .ok_or_else(|| too_large(text, "above", limits))
}

/// A size as written in a file, exact to the byte.
pub(super) fn size(bytes: usize) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let (unit, shift) = units
        .iter()
        .find(|(_, shift)| bytes.trailing_zeros() >= *shift)
        .unwrap_or(&("B", 0));
    format!("{}{unit}", bytes >> shift)
}

pub(super) fn boolean(text: &str) -> Result<bool, InvalidValue> {
    text.parse()
        .map_err(|_| invalid_value(format!("{text:?} is not a boolean"), "true or false"))
}

pub(super) fn invalid_value(what: String, hint: &str) -> InvalidValue {
    InvalidValue {
        what,
        hint: hint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_shown_exactly_and_can_be_read_back() {
        for (bytes, shown) in [
            (16 << 20, "16MiB"),
            (1 << 30, "1GiB"),
            (1536, "1536B"),
            (3 << 10, "3KiB"),
            (1_000_000, "1000000B"),
        ] {
            assert_eq!(size(bytes), shown);
            let key = super::super::keys::written("", "max_message").unwrap();
            assert_eq!(
                super::bytes(shown, &key.limits).ok(),
                Some(bytes),
                "{shown}"
            );
        }
    }
}
