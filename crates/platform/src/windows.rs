//! Windows.
//!
//! Some facts are unknown on Windows, because neither the standard library nor the crates in use have a safe call for
//! them: the user of a client, and the users that may write a file.

pub mod address;
pub mod connect;
pub mod files;
pub mod kernel;
pub mod listen;
pub mod passed;
pub mod paths;
pub mod process;
pub mod service;
pub mod sockets;
pub mod trust;
pub mod usage;
pub mod users;
