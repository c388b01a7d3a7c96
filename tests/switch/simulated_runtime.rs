//! The faults of the simulated runtime itself, called directly.

mod direct;
mod faults;
