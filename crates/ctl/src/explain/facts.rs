//! The facts about this node and its backends that decide whether a limit applies.

use std::fs;
use std::path::Path;

use criswitch_advice::{Fact, Facts};
use criswitch_config::Handler;

use super::NodeFacts;
use crate::probe::Runtime;

/// The flags of runsc that a limit depends on.
const RUNSC_FLAGS: [&str; 3] = ["host-uds", "net-raw", "oci-seccomp"];
/// This file exists if the kernel has SELinux enabled.
const SELINUX: &str = "sys/fs/selinux/enforce";

impl NodeFacts {
    /// The known facts for a handler. `features` are those of the handler and the node.
    pub(super) fn facts(&self, row: &Handler, features: Option<Vec<&'static str>>) -> Facts {
        let mut known = vec![(Fact::ThisNode, true)];
        let mut learn = |fact, value: Option<bool>| known.extend(value.map(|value| (fact, value)));
        learn(Fact::Selinux, self.selinux(row));
        if let Some(runtime) = self.runtime(row) {
            let without = runtime.privileged_without_host_devices;
            learn(Fact::PrivilegedWithoutHostDevices, without);
            for flag in RUNSC_FLAGS {
                learn(Fact::RunscFlag(flag), self.runsc_flag(runtime, flag));
            }
        }
        Facts {
            features,
            allowed_sysctls: self.allowed_sysctls.clone(),
            known,
        }
    }

    /// Whether the backend gives containers SELinux labels.
    fn selinux(&self, row: &Handler) -> Option<bool> {
        if !self.root.join(SELINUX).exists() {
            return Some(false);
        }
        self.probe(row)?.as_ref().ok()?.configured.selinux
    }

    /// Whether runsc has a flag, by the file that its shim reads. Without a file, runsc has no flags.
    fn runsc_flag(&self, runtime: &Runtime, flag: &str) -> Option<bool> {
        let Some(path) = &runtime.config_path else {
            return Some(false);
        };
        let path = Path::new(path);
        let path = self.root.join(path.strip_prefix("/").unwrap_or(path));
        let config: toml::Table = fs::read_to_string(path).ok()?.parse().ok()?;
        let value = config.get("runsc_config").and_then(|flags| flags.get(flag));
        let value = value.map(ToString::to_string).unwrap_or_default();
        Some(!["", "false", "none"].contains(&value.trim_matches('"')))
    }
}
