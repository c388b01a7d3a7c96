//! Linux.

mod access;
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
