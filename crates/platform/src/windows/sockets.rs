//! The named pipes at which processes of this machine listen.

use std::io;
use std::path::Path;

use crate::LostSocket;

/// Finds none, because Windows lets no second process take the name of a pipe.
///
/// # Errors
/// Never.
pub fn lost_sockets(
    _: impl Fn(&Path) -> bool,
    _: impl Fn(&Path) -> bool,
    _: bool,
) -> io::Result<Vec<LostSocket>> {
    Ok(Vec::new())
}
