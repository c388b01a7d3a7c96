//! `criswitch.admin.v1`, generated from `proto/criswitch/admin/v1/admin.proto`.
//!
//! The commands print these messages as JSON.
#![allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]

include!("../../../../proto/generated/criswitch.admin.v1.rs");

/// One line: `path:line:column: what; try ...`, without the parts that are absent.
impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let (Some(path), Some(line), Some(column)) = (&self.path, self.line, self.column) {
            write!(f, "{path}:{line}:{column}: ")?;
        }
        f.write_str(&self.what)?;
        self.r#try
            .iter()
            .try_for_each(|hint| write!(f, "; try {hint}"))
    }
}

impl std::fmt::Display for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.lines.join("; "))
    }
}
