//! Windows.
//!
//! The standard library and the crates in use have no safe call for some facts, which criswitch does not know on
//! Windows: the user of a client, and the users that may write a file.

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
