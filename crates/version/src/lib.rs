//! The version of this build, for the commands, the log and the metrics.

use std::fmt;

use serde::Serialize;

/// The facts that identify a build.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Build {
    /// The version in Cargo.toml.
    pub version: &'static str,
    /// The commit of the sources; `None` if it was unknown at build time.
    pub commit: Option<&'static str>,
    /// The version of the CRI.
    pub cri_version: &'static str,
    /// The Kubernetes version whose CRI this is.
    pub kubernetes_version: &'static str,
    /// The platform, as rustc names it.
    pub target: &'static str,
}

/// This build.
pub const BUILD: Build = Build {
    version: env!("CARGO_PKG_VERSION"),
    commit: option_env!("CRISWITCH_COMMIT"),
    cri_version: "v1",
    kubernetes_version: "1.37",
    target: env!("CRISWITCH_TARGET"),
};

impl Build {
    /// The commit, or a word that says that it is unknown.
    #[must_use]
    pub fn revision(&self) -> &'static str {
        self.commit.unwrap_or("unknown")
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Build {
            version,
            cri_version,
            kubernetes_version,
            target,
            ..
        } = self;
        let commit = self.revision();
        write!(
            f,
            "{version} (commit {commit}, CRI {cri_version} of Kubernetes {kubernetes_version}, {target})"
        )
    }
}
