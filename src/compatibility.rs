//! The pods that a kind of runtime cannot run, or runs without what they ask for. Pure data, and the checks on it.
//!
//! `table` has the known limits. `test` makes both checks of a limit, the one on a pod's YAML and the CEL expression,
//! from the same data. `criswitch explain`, `criswitch check --probe` and `criswitch manifests --policy` read the
//! limits. Does no I/O.

mod table;
mod test;

use serde_json::{Value, json};
use strum::{AsRefStr, EnumString, VariantArray, VariantNames};

pub use table::LIMITS;
pub use test::{Is, Test};

/// A kind of runtime: the program that starts the containers of a handler.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    EnumString,
    AsRefStr,
    VariantNames,
    VariantArray,
)]
#[strum(serialize_all = "lowercase")]
pub enum Kind {
    /// runc.
    Runc,
    /// crun.
    Crun,
    /// gVisor (runsc).
    Gvisor,
    /// Kata Containers.
    Kata,
    /// Windows containers (runhcs).
    Runhcs,
}

/// The effect of a limit on a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, AsRefStr)]
#[strum(serialize_all = "lowercase")]
pub enum Effect {
    /// The pod does not start, or cannot do the work that the field is for.
    Fails,
    /// The pod runs, and the field has no effect or less effect.
    Weakens,
    /// The pod runs as it should. Some command for pods does not work.
    Note,
}

/// The place where a limit is documented.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The title of the page or of the issue.
    pub title: &'static str,
    /// The address of the page or of the issue.
    pub url: &'static str,
}

/// A known limit of some kinds of runtime.
#[derive(Debug)]
pub struct Limit {
    /// The name of the limit: a DNS label.
    pub id: &'static str,
    /// The kinds of runtime with the limit. Empty if the limit only follows from a missing feature.
    pub kinds: &'static [Kind],
    /// The CRI's name of the feature without which every kind of runtime has the limit. If a backend reports its
    /// features, the feature decides, and [`Limit::kinds`] does not.
    pub feature: Option<&'static str>,
    /// The pods that the limit is about.
    pub test: Test,
    /// Further conditions. The limit is about pods that meet all of them.
    pub and: &'static [Test],
    /// Exceptions. The limit is not about pods that meet any of them.
    pub unless: &'static [Test],
    /// The effect of the limit on these pods.
    pub effect: Effect,
    /// The reason in words for the author of the pod: a sentence.
    pub reason: &'static str,
    /// A way out for the author: a sentence.
    pub remedy: &'static str,
    /// Where the limit is documented.
    pub source: Source,
}

/// A limit that a pod meets.
#[derive(Debug)]
pub struct Finding {
    /// The limit.
    pub limit: &'static Limit,
    /// The fields of the pod that the limit is about, such as `spec.containers[0].securityContext.privileged`.
    pub fields: Vec<String>,
}

impl Kind {
    /// The name for people.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Runc => "runc",
            Kind::Crun => "crun",
            Kind::Gvisor => "gVisor",
            Kind::Kata => "Kata Containers",
            Kind::Runhcs => "Windows containers",
        }
    }

    /// The kind of a handler that containerd runs with this runtime type and, for runc's shim, with this binary.
    pub fn of_runtime(runtime_type: &str, binary: &str) -> Option<Kind> {
        let shim = runtime_type.strip_prefix("io.containerd.")?;
        match shim.split('.').next()? {
            "runsc" => Some(Kind::Gvisor),
            "runhcs" => Some(Kind::Runhcs),
            kata if kata.starts_with("kata") => Some(Kind::Kata),
            "runc" => {
                let program = binary.rsplit('/').next().unwrap_or_default();
                Kind::of_name(if program.is_empty() { "runc" } else { program })
            }
            _ => None,
        }
    }

    /// The kind of a handler or program whose name has the name of a runtime as a word. `gvisor` and `my-kata-qemu`
    /// have a kind, and `sandboxed` has none.
    pub fn of_name(name: &str) -> Option<Kind> {
        let name = name.to_ascii_lowercase();
        let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
        words.find_map(|word| match word {
            "runc" => Some(Kind::Runc),
            "crun" => Some(Kind::Crun),
            "gvisor" | "runsc" => Some(Kind::Gvisor),
            "runhcs" => Some(Kind::Runhcs),
            kata if kata.starts_with("kata") => Some(Kind::Kata),
            _ => None,
        })
    }
}

impl Limit {
    /// Whether the limit applies to a handler of this kind. `features` are the features that the backend reports, by
    /// the CRI's names; `None` if they are unknown.
    pub fn applies(&self, kind: Option<Kind>, features: Option<&[&str]>) -> bool {
        match (self.feature, features) {
            (Some(feature), Some(reported)) => !reported.contains(&feature),
            _ => kind.is_some_and(|kind| self.kinds.contains(&kind)),
        }
    }

    /// The fields of this pod that the limit is about; empty if the limit is not about this pod.
    pub fn fields(&self, pod: &Value) -> Vec<String> {
        let meets = |test: &Test| !test.fields(pod).is_empty();
        match self.and.iter().all(meets) && !self.unless.iter().any(meets) {
            true => self.test.fields(pod),
            false => Vec::new(),
        }
    }

    /// A CEL expression that is true for the pods that the limit is about. `object` is the pod.
    pub fn cel(&self) -> String {
        let tests = std::iter::once(&self.test).chain(self.and).map(Test::cel);
        let unless = self.unless.iter().map(|test| format!("!({})", test.cel()));
        let tests: Vec<_> = tests.chain(unless).collect();
        tests.join(" && ")
    }

    /// The limit as JSON, with these names of fields.
    pub fn json(&self, fields: impl IntoIterator<Item = impl Into<Value>>) -> Value {
        json!({
            "limit": self.id,
            "effect": self.effect.as_ref(),
            "fields": fields.into_iter().collect::<Value>(),
            "reason": self.reason,
            "remedy": self.remedy,
            "source": { "title": self.source.title, "url": self.source.url },
        })
    }

    /// The fields that the limit is about, as in the API's documentation.
    pub fn field_names(&self) -> impl Iterator<Item = &'static str> {
        let tests = std::iter::once(&self.test).chain(self.and);
        tests.flat_map(|test| test.fields.iter().copied())
    }
}

/// The limits that a pod meets on a handler of this kind, the worst first. See [`Limit::applies`] for `features`.
pub fn findings(pod: &Value, kind: Option<Kind>, features: Option<&[&str]>) -> Vec<Finding> {
    let limits = LIMITS.iter().filter(|limit| limit.applies(kind, features));
    let found = limits.map(|limit| Finding {
        limit,
        fields: limit.fields(pod),
    });
    let mut found: Vec<_> = found.filter(|found| !found.fields.is_empty()).collect();
    found.sort_by_key(|found| found.limit.effect);
    found
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_limit_has_a_field_a_reason_a_remedy_and_a_source() {
        let mut ids = HashSet::new();
        for limit in LIMITS {
            let id = limit.id;
            assert!(ids.insert(id), "{id} occurs twice");
            assert!(
                limit.field_names().all(|field| field.starts_with("spec.")),
                "{id}"
            );
            assert!(limit.field_names().next().is_some(), "{id}");
            for sentence in [limit.reason, limit.remedy] {
                assert!(
                    sentence.ends_with('.') && !sentence.contains('\n'),
                    "{id}: {sentence}"
                );
            }
            assert!(limit.source.url.starts_with("https://"), "{id}");
            assert!(!limit.source.title.is_empty(), "{id}");
            assert!(!limit.kinds.is_empty() || limit.feature.is_some(), "{id}");
        }
    }

    #[test]
    fn a_limit_of_a_feature_applies_to_any_kind_whose_backend_lacks_the_feature() {
        let limit = LIMITS
            .iter()
            .find(|limit| limit.id == "recursive-read-only")
            .unwrap();
        assert!(limit.applies(Some(Kind::Runc), Some(&[])));
        assert!(limit.applies(None, Some(&[])));
        assert!(!limit.applies(Some(Kind::Gvisor), Some(&["recursive_read_only_mounts"])));
        assert!(limit.applies(Some(Kind::Gvisor), None));
        assert!(!limit.applies(Some(Kind::Runc), None));
        assert!(!limit.applies(None, None));
    }

    #[test]
    fn a_limit_is_not_about_pods_that_meet_an_exception() {
        let limits = LIMITS.iter();
        let mut limits = limits.filter(|limit| limit.id == "windows-host-network");
        let limit = limits.next().unwrap();
        let pod = |context: Value| {
            json!({ "spec": {
                "hostNetwork": true,
                "containers": [{ "name": "web", "securityContext": context }],
            }})
        };
        assert_eq!(limit.fields(&pod(json!({}))), ["spec.hostNetwork"]);
        let host_process = json!({ "windowsOptions": { "hostProcess": true } });
        assert!(limit.fields(&pod(host_process)).is_empty());
        let cel = limit.cel();
        let (test, exception) = cel.split_once(" && ").unwrap();
        assert_eq!(test, "object.spec.?hostNetwork.orValue(false)");
        let pod = "!((object.spec.?securityContext.?windowsOptions.?hostProcess.orValue(false) || ";
        assert!(exception.starts_with(pod), "{exception}");
        assert!(exception.ends_with("))"), "{exception}");
    }

    #[test]
    fn the_kind_follows_from_the_runtime_type_and_the_binary() {
        let kind = |runtime_type, binary| Kind::of_runtime(runtime_type, binary);
        assert_eq!(kind("io.containerd.runsc.v1", ""), Some(Kind::Gvisor));
        assert_eq!(kind("io.containerd.kata.v2", ""), Some(Kind::Kata));
        assert_eq!(kind("io.containerd.kata-qemu.v2", ""), Some(Kind::Kata));
        assert_eq!(kind("io.containerd.runhcs.v1", ""), Some(Kind::Runhcs));
        assert_eq!(kind("io.containerd.runc.v2", ""), Some(Kind::Runc));
        assert_eq!(
            kind("io.containerd.runc.v2", "/usr/bin/crun"),
            Some(Kind::Crun)
        );
        assert_eq!(
            kind("io.containerd.runc.v2", "/opt/runsc"),
            Some(Kind::Gvisor)
        );
        assert_eq!(kind("io.containerd.runc.v2", "/usr/bin/youki"), None);
        assert_eq!(kind("io.containerd.wasmtime.v1", ""), None);
        assert_eq!(kind("", ""), None);
    }

    #[test]
    fn the_kind_follows_from_a_word_of_a_name() {
        assert_eq!(Kind::of_name("gvisor"), Some(Kind::Gvisor));
        assert_eq!(Kind::of_name("kata-qemu"), Some(Kind::Kata));
        assert_eq!(Kind::of_name("runhcs-wcow-process"), Some(Kind::Runhcs));
        assert_eq!(Kind::of_name("my-gvisor"), Some(Kind::Gvisor));
        assert_eq!(Kind::of_name("sandboxed"), None);
        assert_eq!(Kind::of_name("runcible"), None);
        assert_eq!(Kind::of_name(""), None);
    }

    #[test]
    fn the_worst_finding_comes_first() {
        let pod = json!({ "spec": {
            "hostPID": true,
            "containers": [{ "name": "web", "ports": [{ "containerPort": 80 }] }],
            "volumes": [{ "name": "docker", "hostPath": { "path": "/run/docker.sock", "type": "Socket" } }],
        }});
        let found = findings(&pod, Some(Kind::Gvisor), None);
        let effects: Vec<_> = found.iter().map(|found| found.limit.effect).collect();
        assert!(effects.is_sorted(), "{effects:?}");
        assert_eq!(effects.first(), Some(&Effect::Fails));
        assert_eq!(effects.last(), Some(&Effect::Note));
        assert!(findings(&pod, Some(Kind::Runc), None).is_empty());
    }
}
