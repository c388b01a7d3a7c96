//! `criswitch.admin.v1`, generated from `proto/criswitch/admin/v1/admin.proto`.
//!
//! The commands print these messages as JSON.

use std::fmt::{self, Display};

pub use generated::*;

mod generated {
    #![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

    include!("../../../../proto/generated/criswitch.admin.v1.rs");
}

/// One line: `path:line:column: what; try ...`, without the parts that are absent.
impl Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(path), Some(line), Some(column)) = (&self.path, self.line, self.column) {
            write!(f, "{path}:{line}:{column}: ")?;
        }
        f.write_str(&self.what)?;
        self.r#try
            .iter()
            .try_for_each(|hint| write!(f, "; try {hint}"))
    }
}

impl Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines.join("; "))
    }
}
