//! Connections to the daemon and to runtimes, exit codes, output on a terminal or as JSON, and the programs that the
//! tools run: shared by all tools.

pub mod columns;
pub mod connection;
pub mod exit;
pub mod output;
pub mod program;
pub mod terminal;
