//! The simulated runtime itself, asked directly: what the other tests build on must be right.

mod direct;
mod faults;
mod images;
mod lists;
mod pods;
