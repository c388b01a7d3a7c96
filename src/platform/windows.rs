//! Windows.
//!
//! The standard library and the crates in use have no safe call for some facts, which criswitch does not know on
//! Windows: the user and the privileges of the process at the other end of a pipe, the users that may write a file, the
//! free space of a file system, and most figures of the process.

pub mod address;
pub mod connect;
pub mod files;
pub mod listen;
pub mod passed;
pub mod paths;
pub mod process;
pub mod service;
pub mod trust;
pub mod users;
