//! Phrases that several modules show to people.

use std::time::{Duration, SystemTime};

use criswitch_platform::users::UserId;

/// The origin that is shown for a handler's row that is in no file.
pub const AUTO_REGISTERED: &str = "auto-registered";

/// A number and its noun, in the plural unless the number is 1.
pub fn counted(count: impl ToString, what: &str) -> String {
    match count.to_string().as_str() {
        "1" => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// Describes an RPC that has been failing at a backend for `seconds`. `times` is the number of answers that could not
/// be used, the last one because of `cause`; 0 if the backend does not answer.
pub fn failing_rpc(rpc: &str, times: u64, seconds: u64, cause: &str) -> String {
    let time = span(Duration::from_secs(seconds));
    match times {
        0 => format!("{rpc} has had no answer for {time}"),
        1 => format!("{rpc} failed once, {time} ago ({cause})"),
        _ => format!("{rpc} has failed {times} times in {time} ({cause})"),
    }
}

/// The fault of a backend that lacks RPCs that every runtime must have.
pub fn lacking(rpcs: &str) -> String {
    format!(
        "it lacks {rpcs}, which every runtime must have, so no pod can start there; see the log of its runtime, and check its \
         image service and snapshotter"
    )
}

/// The warning that an unexpected user, neither root nor configured, serves a backend's socket.
pub fn unexpected_user(user: UserId) -> String {
    format!(
        "user {user} serves the backend's socket and receives all requests, including credentials of pulls; if that \
         is intended, set user = \"{user}\" in the backend's row under [backends]"
    )
}

/// The sentence about the removal of a backend that no file names.
pub fn removal(backend: &str) -> String {
    format!("backend {backend} is removed when its last pod ends")
}

/// The sentence about a backend that no file names and that does not answer, while backend `lister` lists `shared` of
/// its `all` pods and containers.
pub fn moved(backend: &str, lister: &str, shared: usize, all: usize) -> String {
    format!(
        "backend {lister} lists {shared} of the {all} pods and containers of backend {backend}; if its runtime now serves the socket of {lister}, pass them to {lister}: criswitch forget {backend}"
    )
}

/// The target of a handler: the backend, and the backend's name for the handler if it differs.
pub fn place(backend: &str, handler: &str, backend_handler: &str) -> String {
    match backend_handler {
        same if same == handler => backend.to_owned(),
        "" => format!("{backend} (its own default)"),
        other => format!("{backend} as {other}"),
    }
}

/// The time that has passed since `time`, in the form of [`span`].
pub fn ago(time: &str) -> String {
    let Ok(time) = humantime::parse_rfc3339(time) else {
        return String::new();
    };
    span(SystemTime::now().duration_since(time).unwrap_or_default())
}

/// The duration in its two largest units, such as `1h 5m`. Fractions of a second are dropped.
pub fn span(time: Duration) -> String {
    humantime::format_duration(Duration::from_secs(time.as_secs()))
        .to_string()
        .split(' ')
        .take(2)
        .collect::<Vec<_>>()
        .join(" ")
}
