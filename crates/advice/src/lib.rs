//! The pods that a kind of runtime cannot run, or runs without some of the settings that they ask for: pure data, and
//! the checks on it. [`verdict`] judges the node by the state that the daemon reports.
//!
//! `table` has the known limits. `families` has every field by which a pod reaches out of itself, for example to the
//! node or to a device, and the kinds of runtime that are known to do what the field asks for. A field that neither a
//! limit nor a family judges is reported as not judged. `test` makes both checks of a limit, the one on a pod's YAML
//! and the CEL expression, from the same data. Below these are the names of the fields (`fields`), the classes of paths
//! of the node (`paths`), patterns and CEL (`patterns`, `cel`), and the pages that document the limits (`sources`).
//! `criswitch explain`, `criswitch check --probe` and `criswitch manifests --policy` read the limits. Does no I/O.

mod cel;
mod families;
mod fields;
mod paths;
mod patterns;
mod schema;
mod sources;
mod table;
mod test;
mod values;
pub mod verdict;

use criswitch_config::RuntimeKind;
use serde_json::{Value, json};
use strum::AsRefStr;

pub use cel::{MAX_CEL_LENGTH, VARIABLES};
pub use families::{FAMILIES, Family};
pub use fields::PodField;
pub use paths::{HostPaths, Mounting};
pub use schema::{UnknownField, is_pod_field, tests, unknown_fields};
pub use sources::Source;
pub use table::LIMITS;
pub use test::{About, Is, Test};

use fields::CONTAINERS;
use paths::items;

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

/// A fact of a node or of a backend that decides whether a limit applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// The backend has the feature with this name in the CRI.
    Feature(&'static str),
    /// Privileged containers of the handler get no devices of the node.
    PrivilegedWithoutHostDevices,
    /// SELinux is enabled on this node and in the backend.
    Selinux,
    /// runsc has this flag, or a flag that allows at least the same.
    RunscFlag(&'static str),
    /// The virtual machines of the handler share a file system with the node.
    SharedFileSystem,
    /// The virtual machines of the handler get block devices of the node.
    BlockDevices,
    /// The handler starts containers in Hyper-V isolation.
    HypervisorIsolation,
    /// The file systems of the pod's volumes support id-mapped mounts.
    MappedIds,
    /// The handler starts NVIDIA's runtime, which starts runc or crun.
    NvidiaRuntime,
    /// The kubelet allows the pod's unsafe sysctls.
    UnsafeSysctls,
    /// The kubelet is older than Kubernetes 1.37.
    OldKubelet,
    /// The pod is judged for the node on which criswitch runs.
    ThisNode,
}

/// runsc may open devices of the node.
const DEVICE_POLICY: Fact = Fact::RunscFlag("character-device-policy=passthrough");

/// The known facts. A fact that is missing is unknown.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The features of the backend; `None` if they are unknown.
    pub features: Option<Vec<&'static str>>,
    /// The unsafe sysctls that the kubelet allows, as names or as beginnings of names with `*`; `None` if they are
    /// unknown.
    pub allowed_sysctls: Option<Vec<String>>,
    /// All other facts.
    pub known: Vec<(Fact, bool)>,
}

/// A known limit of some kinds of runtime.
#[derive(Debug)]
pub struct Limit {
    /// The name of the limit: a DNS label.
    pub id: &'static str,
    /// The kinds of runtime with the limit. Empty if the limit only follows from a missing feature. A limit of all
    /// kinds comes from the kubelet, and applies to handlers of an unknown kind too.
    pub kinds: &'static [RuntimeKind],
    /// The pods that the limit is about.
    pub about: About,
    /// The limit applies only if this fact has this value. If the backend reports its features, a fact about a feature
    /// decides for every kind of runtime, also for one that is not in `kinds`.
    pub only_if: Option<(Fact, bool)>,
    /// Whether the API server rejects these pods already when they are created.
    pub is_of_api_server: bool,
    /// Whether an admission policy may check the limit.
    pub is_in_policies: bool,
    /// The effect of the limit on these pods.
    pub effect: Effect,
    /// The reason in words for the author of the pod: a sentence.
    pub reason: &'static str,
    /// A way out for the author: a sentence.
    pub remedy: &'static str,
    /// Where the limit is documented.
    pub source: Source,
}

/// A limit that concerns a pod.
#[derive(Debug)]
pub struct LimitFinding {
    /// The limit.
    pub limit: &'static Limit,
    /// The fields of the pod that the limit concerns, such as `spec.containers[0].securityContext.privileged`.
    pub fields: Vec<String>,
}

/// Everything that is known about a pod in a handler.
#[derive(Debug, Default)]
pub struct Judgement {
    /// The limits that apply, the worst first.
    pub findings: Vec<LimitFinding>,
    /// The limits that apply or not, depending on an unknown fact.
    pub undecided: Vec<LimitFinding>,
    /// The fields that no rule judges for this kind of runtime, with their values.
    pub not_judged: Vec<String>,
}

impl Fact {
    /// Whether the fact may differ between nodes, between volumes, or between handlers of the same kind.
    fn is_of_one_node(self) -> bool {
        matches!(
            self,
            Fact::Selinux
                | Fact::ThisNode
                | Fact::SharedFileSystem
                | Fact::BlockDevices
                | Fact::HypervisorIsolation
                | Fact::MappedIds
                | Fact::NvidiaRuntime
        )
    }

    /// Whether a field certainly works if the fact does not have the value that the limit needs. Other facts only
    /// remove one obstacle: a file system that is shared does not show that its files work, and a runtime that may open
    /// a device does not show that the device works.
    fn decides_alone(self) -> bool {
        let is_shared = matches!(self, Fact::SharedFileSystem | Fact::MappedIds);
        !is_shared && self != DEVICE_POLICY
    }

    /// The fact with this value, in words.
    pub fn words(self, value: bool) -> String {
        let not = if value { "" } else { "not " };
        match self {
            Fact::Feature(name) if value => format!("the backend has the feature {name}"),
            Fact::Feature(name) => format!("the backend lacks the feature {name}"),
            Fact::PrivilegedWithoutHostDevices => {
                format!("privileged_without_host_devices is {value} for the handler")
            }
            Fact::Selinux => format!("SELinux is {not}enabled on the node and in the backend"),
            Fact::RunscFlag(flag) if value => format!("runsc has the flag {flag}"),
            Fact::RunscFlag(flag) => format!("runsc lacks the flag {flag}"),
            Fact::SharedFileSystem if value => {
                "the handler's virtual machines share a file system with the node".to_owned()
            }
            Fact::SharedFileSystem => {
                "the handler's virtual machines share no file system with the node".to_owned()
            }
            Fact::BlockDevices => {
                format!("the handler's virtual machines get {not}block devices of the node")
                    .replace("not block", "no block")
            }
            Fact::HypervisorIsolation => {
                format!("the handler does {not}use Hyper-V isolation").replace("does use", "uses")
            }
            Fact::MappedIds if value => {
                "the volume's file system has mounts with mapped ids".to_owned()
            }
            Fact::MappedIds => "the volume's file system has no mounts with mapped ids".to_owned(),
            Fact::NvidiaRuntime => format!("the handler does {not}start NVIDIA's runtime")
                .replace("does start", "starts"),
            Fact::UnsafeSysctls => {
                format!("the sysctl is {not}in allowedUnsafeSysctls of the kubelet")
            }
            Fact::OldKubelet => format!("the kubelet is {not}older than Kubernetes 1.37"),
            Fact::ThisNode => "the pod is for this node".to_owned(),
        }
    }
}

impl Facts {
    /// The value of a fact; `None` if it is unknown.
    pub fn get(&self, fact: Fact) -> Option<bool> {
        let mut known = self.known.iter();
        match fact {
            Fact::Feature(name) => self.features.as_ref().map(|all| all.contains(&name)),
            // For each sysctl that the kubelet allows, `judge` makes an exception by `allows`.
            Fact::UnsafeSysctls => self.allowed_sysctls.as_ref().map(|_| false),
            fact => known.find_map(|(known, value)| (*known == fact).then_some(*value)),
        }
    }

    /// Whether the kubelet is known to allow this sysctl.
    fn allows(&self, sysctl: &str) -> bool {
        let name = sysctl.replace('/', ".");
        self.allowed_sysctls.iter().flatten().any(|allowed| {
            let allowed = allowed.replace('/', ".");
            match allowed.strip_suffix('*') {
                Some(beginning) => name.starts_with(beginning),
                None => name == allowed,
            }
        })
    }
}

impl Limit {
    /// Whether the limit applies to a handler of this kind; `None` if it depends on an unknown fact.
    pub fn applies(&self, kind: Option<RuntimeKind>, facts: &Facts) -> Option<bool> {
        let is_of_kind =
            self.is_of_kubelet() || kind.is_some_and(|kind| self.kinds.contains(&kind));
        match self.only_if {
            Some((fact @ Fact::Feature(_), needed)) => {
                let known = facts.get(fact).map(|value| value == needed);
                known.or(is_of_kind.then_some(true))
            }
            Some((fact, needed)) if is_of_kind => facts.get(fact).map(|value| value == needed),
            _ => Some(is_of_kind),
        }
    }

    /// Whether the kubelet enforces the limit, whatever the runtime is.
    pub fn is_of_kubelet(&self) -> bool {
        self.kinds == table::ANY
    }

    /// The feature without which the limit applies.
    pub fn feature(&self) -> Option<&'static str> {
        match self.only_if {
            Some((Fact::Feature(name), _)) => Some(name),
            _ => None,
        }
    }

    /// The effect of the limit in an admission policy; `None` if no policy has the limit. A policy is for all nodes. So
    /// a policy only warns of a limit that depends on settings of a handler or kubelet, and omits a limit that depends
    /// on the node or on a volume.
    pub fn policy(&self) -> Option<Effect> {
        match (self.effect, self.only_if) {
            _ if self.is_of_api_server || !self.is_in_policies => None,
            (Effect::Note, _) => None,
            (_, Some((fact, _))) if fact.is_of_one_node() => None,
            (_, Some((Fact::Feature(_), _))) if self.kinds.is_empty() => None,
            (effect, None | Some((Fact::Feature(_), _))) => Some(effect),
            _ => Some(Effect::Weakens),
        }
    }

    /// The limit as JSON, with these names of fields.
    pub fn json(&self, fields: impl IntoIterator<Item = impl Into<Value>>) -> Value {
        json!({
            "limit": self.id,
            "effect": self.effect.as_ref(),
            "fields": fields.into_iter().collect::<Value>(),
            "onlyIf": self.only_if.map(|(fact, value)| fact.words(value)),
            "reason": self.reason,
            "remedy": self.remedy,
            "source": { "title": self.source.title, "url": self.source.link() },
        })
    }

    /// The fields that the limit is about, as in the API's documentation.
    pub fn field_names(&self) -> impl Iterator<Item = &'static str> {
        self.about
            .any
            .iter()
            .chain(self.about.and)
            .flat_map(|test| test.fields.iter().copied())
    }
}

/// Adds the metadata of the pod's namespace, so that [`judge`] judges them too.
pub fn with_namespace(pod: &mut Value, metadata: &Value) {
    if let Some(pod) = pod.as_object_mut() {
        pod.insert("namespace".to_owned(), metadata.clone());
    }
}

/// Removes everything but their names from the volumes that no container uses. The kubelet does not set up such
/// volumes, so no container has them.
pub fn ignore_unused_volumes(pod: &mut Value) {
    let Some(spec) = pod.get_mut("spec") else {
        return;
    };
    let used: Vec<_> = CONTAINERS
        .iter()
        .flat_map(|list| items(spec, list))
        .flat_map(|container| ["volumeMounts", "volumeDevices"].map(|list| items(container, list)))
        .flatten()
        .filter_map(|it| it.get("name").cloned())
        .collect();
    for volume in spec
        .get_mut("volumes")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        if volume.get("name").is_some_and(|name| !used.contains(name)) {
            volume.retain(|key, _| key == "name");
        }
    }
}

/// Judges a pod for a handler of this kind: finds the limits that apply, the limits that depend on an unknown fact, and
/// the fields that no rule judges.
pub fn judge(pod: &Value, kind: Option<RuntimeKind>, facts: &Facts) -> Judgement {
    let mut judgement = Judgement::default();
    let mut judged = Vec::new();
    for limit in LIMITS {
        let applies = limit.applies(kind, facts);
        let is_about_kind = limit.feature().is_some()
            || kind.is_some_and(|it| limit.kinds.contains(&it))
                && limit.only_if.is_none_or(|(fact, _)| fact.decides_alone());
        // If a limit of the kubelet does not apply, the kubelet admits the pod. This does not show what the runtime
        // does with the field.
        if applies == Some(false) && (limit.is_of_kubelet() || !is_about_kind) {
            continue;
        }
        let mut fields = limit.about.fields(pod);
        if let Some((Fact::UnsafeSysctls, _)) = limit.only_if {
            fields.retain(|field| !facts.allows(field.value.as_str().unwrap_or_default()));
        }
        let fields: Vec<_> = fields.into_iter().map(|field| field.name).collect();
        judged.extend(fields.iter().cloned());
        let finding = (!fields.is_empty()).then_some(LimitFinding { limit, fields });
        match applies {
            Some(true) => judgement.findings.extend(finding),
            Some(false) => {}
            None => judgement.undecided.extend(finding),
        }
    }
    judgement.findings.sort_by_key(|found| found.limit.effect);
    for family in FAMILIES {
        judged.extend(family.works(pod, kind));
        let unknown = family
            .any
            .iter()
            .flat_map(|test| test.fields(pod))
            .filter(|field| !is_judged(&field.name, &judged));
        judgement
            .not_judged
            .extend(unknown.map(|field| field.to_string()));
    }
    judgement
}

/// Whether a rule judged the field, or a part of it.
fn is_judged(field: &str, judged: &[String]) -> bool {
    judged.iter().any(|judged| {
        let rest = judged.strip_prefix(field);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn limit(id: &str) -> &'static Limit {
        LIMITS.iter().find(|limit| limit.id == id).unwrap()
    }

    #[test]
    fn a_sysctl_is_allowed_in_both_spellings() {
        for allowed in [
            "net/core/somaxconn",
            "net.core.somaxconn",
            "net/core/*",
            "net.core.*",
        ] {
            let facts = Facts {
                allowed_sysctls: Some(vec![allowed.to_owned()]),
                ..Facts::default()
            };
            for sysctl in ["net.core.somaxconn", "net/core/somaxconn"] {
                assert!(facts.allows(sysctl), "{allowed} {sysctl}");
            }
            assert!(!facts.allows("net.ipv4.tcp_mem"), "{allowed}");
        }
    }

    #[test]
    fn each_limit_has_a_field_a_reason_a_remedy_and_a_source() {
        let mut ids = HashSet::new();
        for limit in LIMITS {
            let id = limit.id;
            assert!(ids.insert(id), "{id} occurs twice");
            let is_of_pod =
                |field: &str| field.starts_with("spec.") || field.starts_with("metadata.");
            assert!(limit.field_names().all(is_of_pod), "{id}");
            assert!(limit.field_names().next().is_some(), "{id}");
            for sentence in [limit.reason, limit.remedy] {
                assert!(
                    sentence.ends_with('.') && !sentence.contains('\n'),
                    "{id}: {sentence}"
                );
            }
            let is_seen = limit
                .source
                .title
                .starts_with("seen in criswitch's tests with ");
            assert_ne!(limit.source.url.starts_with("https://"), is_seen, "{id}");
            assert!(!limit.source.title.is_empty(), "{id}");
            assert!(!limit.kinds.is_empty() || limit.feature().is_some(), "{id}");
        }
    }

    #[test]
    fn each_expression_of_a_policy_is_short() {
        for limit in LIMITS.iter().filter(|limit| limit.policy().is_some()) {
            for cel in limit.about.cels() {
                assert!(
                    !cel.is_empty() && cel.len() <= MAX_CEL_LENGTH,
                    "{}: {} {cel}",
                    limit.id,
                    cel.len()
                );
            }
        }
    }

    #[test]
    fn a_limit_of_a_feature_applies_to_any_kind_whose_backend_lacks_the_feature() {
        let limit = limit("recursive-read-only");
        let with = |features: &[&'static str]| Facts {
            features: Some(features.to_vec()),
            ..Facts::default()
        };
        assert_eq!(
            limit.applies(Some(RuntimeKind::Runc), &with(&[])),
            Some(true)
        );
        assert_eq!(limit.applies(None, &with(&[])), Some(true));
        let has = with(&["recursive_read_only_mounts"]);
        assert_eq!(limit.applies(Some(RuntimeKind::Gvisor), &has), Some(false));
        let unknown = Facts::default();
        assert_eq!(
            limit.applies(Some(RuntimeKind::Gvisor), &unknown),
            Some(true)
        );
        assert_eq!(limit.applies(Some(RuntimeKind::Runc), &unknown), None);
        assert_eq!(limit.applies(None, &unknown), None);
    }

    #[test]
    fn a_limit_that_depends_on_a_fact_applies_if_the_fact_is_known_to_be_so() {
        let limit = limit("gvisor-host-sockets");
        let flag = |value| Facts {
            known: vec![(Fact::RunscFlag("host-uds=open"), value)],
            ..Facts::default()
        };
        let gvisor = Some(RuntimeKind::Gvisor);
        assert_eq!(limit.applies(gvisor, &flag(false)), Some(true));
        assert_eq!(limit.applies(gvisor, &flag(true)), Some(false));
        assert_eq!(limit.applies(gvisor, &Facts::default()), None);
        assert_eq!(
            limit.applies(Some(RuntimeKind::Runc), &Facts::default()),
            Some(false)
        );
        let pod =
            json!({ "spec": { "volumes": [{ "hostPath": { "path": "/run/docker.sock" } }] } });
        let judgement = judge(&pod, gvisor, &flag(true));
        assert!(judgement.findings.is_empty() && judgement.not_judged.is_empty());
        let judgement = judge(&pod, gvisor, &Facts::default());
        assert_eq!(judgement.undecided.len(), 1);
    }

    #[test]
    fn a_mount_hint_for_gvisor_counts_only_for_its_own_volume() {
        let limit = limit("gvisor-shared-volumes");
        let mount = json!({ "volumeMounts": [{ "name": "v", "mountPath": "/v" }] });
        for (hint, share, is_met) in [
            ("v", "pod", false),
            ("v", "container", true),
            ("w", "pod", true),
        ] {
            let annotation = format!("dev.gvisor.spec.mount.{hint}.share");
            let pod = json!({
                "metadata": { "annotations": { annotation: share } },
                "spec": { "containers": [mount, mount], "volumes": [{ "name": "v", "emptyDir": {} }] },
            });
            assert_eq!(!limit.about.fields(&pod).is_empty(), is_met, "{hint}");
        }
    }

    #[test]
    fn a_limit_is_not_about_pods_that_meet_an_exception() {
        let about = limit("windows-host-network").about;
        let pod = |context: Value| {
            json!({ "spec": {
                "hostNetwork": true,
                "containers": [{ "name": "web", "securityContext": context }],
            }})
        };
        assert_eq!(about.fields(&pod(json!({}))).len(), 1);
        let host_process = json!({ "windowsOptions": { "hostProcess": true } });
        assert!(about.fields(&pod(host_process)).is_empty());
        let cels = about.cels();
        assert_eq!(
            cels,
            ["object.spec.?hostNetwork.orValue(false) && \
              !(object.spec.?securityContext.?windowsOptions.?hostProcess.orValue(false)) && \
              !(variables.containers.exists(c, c.?securityContext.?windowsOptions.?hostProcess.orValue(false)))"]
        );
    }

    #[test]
    fn the_worst_finding_comes_first_and_a_field_without_a_rule_is_not_judged() {
        let pod = json!({ "spec": {
            "hostPID": true,
            "containers": [{
                "name": "web",
                "ports": [{ "containerPort": 80 }],
                "volumeDevices": [{ "devicePath": "/dev/x" }],
            }],
            "volumes": [{ "name": "data", "hostPath": { "path": "/var/lib/x" } }],
        }});
        let judgement = judge(&pod, Some(RuntimeKind::Gvisor), &Facts::default());
        let effects: Vec<_> = judgement
            .findings
            .iter()
            .map(|found| found.limit.effect)
            .collect();
        assert_eq!(effects, [Effect::Fails, Effect::Weakens, Effect::Note]);
        assert_eq!(
            judgement.not_judged,
            ["spec.volumes[0].hostPath /var/lib/x"]
        );
        assert!(
            judge(&pod, Some(RuntimeKind::Runc), &Facts::default())
                .not_judged
                .is_empty()
        );
    }
}
