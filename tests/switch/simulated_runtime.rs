//! The simulated runtime itself, called directly: the other tests rely on it.

mod direct;
mod faults;
mod images;
mod lists;
mod pods;
