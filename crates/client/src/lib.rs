//! Calls of the daemon, the probe of runtimes, common arguments, exit codes, output on a terminal or as JSON, and the
//! programs that the tools run: shared by all tools.

pub mod arguments;
pub mod columns;
pub mod connection;
pub mod exit;
pub mod output;
pub mod probe;
pub mod program;
pub mod running;
pub mod terminal;
