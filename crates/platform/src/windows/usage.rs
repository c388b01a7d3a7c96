//! The memory and the processor time that a pod costs this machine. Windows is not measured.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::PodUsage;

/// The processes of this machine, which cannot be measured.
#[derive(Debug)]
pub enum Machine {}

impl Machine {
    /// Finds nothing.
    ///
    /// # Errors
    /// Always.
    pub fn at(_: &Path) -> io::Result<Machine> {
        let what = "criswitch measures pods on Linux only";
        Err(io::Error::new(ErrorKind::Unsupported, what))
    }

    /// Never called, because there is no such machine.
    ///
    /// # Errors
    /// None.
    pub fn usage_of(&self, _: &[&str], _: Option<&str>) -> io::Result<PodUsage> {
        match *self {}
    }
}
