//! The type for addresses of CRI sockets. Parsing never reads the file system, but `Address::identity` does.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use criswitch_platform::{address, paths};

pub use address::Identity;

pub use address::{AddressError, MAX_PATH_BYTES};

/// A socket that criswitch listens on, or that a backend serves.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address(PathBuf);

/// Whether a text is meant as an address, not as the name of a backend or an IP address with a port.
pub fn is_like(text: &str) -> bool {
    text.contains(['/', '\\'])
}

impl Address {
    /// Reads an address. Two spellings of one path are equal.
    ///
    /// # Errors
    /// If `text` is not an address on this operating system.
    pub fn parse(text: &str) -> Result<Address, AddressError> {
        address::parse(text).map(Address)
    }

    /// The socket that criswitch listens on, unless the configuration sets a different one.
    pub fn default_listen() -> Address {
        Address(paths::listen())
    }

    /// The path of the socket.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The address in the form that the kubelet and crictl accept.
    pub fn endpoint(&self) -> String {
        address::endpoint(&self.0)
    }

    /// Identifies the file that the address names now, for comparisons. Reads the file system.
    pub fn identity(&self) -> Identity {
        address::identity(&self.0)
    }
}

/// The identities of several addresses, read at one time.
#[derive(Debug, Default)]
pub struct Identities(HashMap<Address, Identity>);

impl Identities {
    /// Reads the identities from the file system.
    pub fn of(addresses: Vec<Address>) -> Identities {
        let identities = addresses.into_iter().map(|address| {
            let identity = address.identity();
            (address, identity)
        });
        Identities(identities.collect())
    }

    /// Whether two of the addresses name the same socket.
    pub fn are_same_socket(&self, one: &Address, other: &Address) -> bool {
        let identities = self.0.get(one).zip(self.0.get(other));
        one == other || identities.is_some_and(|(one, other)| one.is(other))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        address::show(&self.0, f)
    }
}
