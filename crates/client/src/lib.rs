//! What the tools share: exit codes, output on a terminal or as JSON, and the programs that they run.

pub mod columns;
pub mod exit;
pub mod output;
pub mod program;
pub mod terminal;
