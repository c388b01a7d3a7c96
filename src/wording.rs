//! Words that several places say to people. Knows nothing of what they are about.

/// A number and its noun, in the plural if it has to be.
pub fn counted(count: usize, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
