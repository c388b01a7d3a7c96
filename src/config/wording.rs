//! Words that several places say to people. Knows nothing of what they are about.

/// A number and its noun, in the plural if it has to be.
pub fn counted(count: impl ToString, what: &str) -> String {
    match count.to_string().as_str() {
        "1" => format!("1 {what}"),
        count => format!("{count} {what}s"),
    }
}

/// The user `uid`, who is neither root nor configured, serves a backend's socket.
pub fn unexpected_user(uid: u32) -> String {
    format!(
        "user {uid} serves the backend's socket and receives all requests, including credentials of pulls; if that \
         is intended, set user = \"{uid}\" in the backend's row under [backends]"
    )
}

/// What becomes of a backend that no file names any more.
pub fn removal(backend: &str) -> String {
    format!(
        "backend {backend} is removed when its last pod ends; if its runtime is gone for good: criswitch forget {backend}"
    )
}

/// Where a handler leads: the backend, and what that calls it if not the same.
pub fn place(backend: &str, handler: &str, backend_handler: &str) -> String {
    match backend_handler {
        same if same == handler => backend.to_owned(),
        "" => format!("{backend} (its own default)"),
        other => format!("{backend} as {other}"),
    }
}
