//! Where a CRI socket is: one type, one parser.
//!
//! Windows' `npipe://` addresses are to become a variant here.

use std::fmt;
use std::path::PathBuf;

/// A socket that the switch listens on, or that a backend serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An absolute path of a Unix socket, at most 107 bytes (`sun_path` less its ending zero).
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}
