//! The fields of a pod: their names, and the way to them through maps and lists.

use serde_json::Value;

/// The lists of containers in a pod. A field on `spec.containers[*]` is on all of them.
pub(super) const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// The beginning of a field of containers.
pub(super) const CONTAINER: &str = "spec.containers[*].";

pub(super) const ADDED: &[&str] = &["spec.containers[*].securityContext.capabilities.add[*]"];
pub(super) const ANNOTATIONS: &[&str] = &["metadata.annotations"];
pub(super) const BLOCK: &[&str] = &["spec.containers[*].volumeDevices[*].devicePath"];
pub(super) const CSI: &[&str] = &["spec.volumes[*].csi.driver"];
pub(super) const ENV: &[&str] = &["spec.containers[*].env[*]"];
pub(super) const ESCALATION: &[&str] =
    &["spec.containers[*].securityContext.allowPrivilegeEscalation"];
pub(super) const EXPRESSIONS: &[&str] = &[
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[*].matchExpressions[*]",
];
/// The text before the name of a volume's field.
pub(super) const VOLUME: &str = "spec.volumes[*].";
pub(super) const HOST_PATH: &[&str] = &["spec.volumes[*].hostPath"];
pub(super) const HOST_PROCESS: &[&str] = &[
    "spec.securityContext.windowsOptions.hostProcess",
    "spec.containers[*].securityContext.windowsOptions.hostProcess",
];
/// Labels and annotations. Admission webhooks read both.
pub(super) const MARKS: &[&str] = &["metadata.labels", "metadata.annotations"];
/// Labels and annotations of the pod's namespace, which [`crate::with_namespace`] adds.
pub(super) const NAMESPACE_MARKS: &[&str] = &["namespace.labels", "namespace.annotations"];
pub(super) const MOUNT_PATH: &[&str] = &["spec.containers[*].volumeMounts[*].mountPath"];
/// Volumes whose files may be on no disk of the node. NFS is not among them, because rules treat it separately.
pub(super) const NETWORK_VOLUMES: &[&str] = &[
    "spec.volumes[*].azureFile",
    "spec.volumes[*].cephfs",
    "spec.volumes[*].csi",
    "spec.volumes[*].ephemeral",
    "spec.volumes[*].glusterfs",
    "spec.volumes[*].persistentVolumeClaim",
];
pub(super) const NFS: &[&str] = &["spec.volumes[*].nfs"];
pub(super) const PORTS: &[&str] = &["spec.containers[*].ports[*].containerPort"];
pub(super) const PRIVILEGED: &[&str] = &["spec.containers[*].securityContext.privileged"];
pub(super) const PROTOCOLS: &[&str] = &["spec.containers[*].ports[*].protocol"];
pub(super) const PROPAGATION: &[&str] = &["spec.containers[*].volumeMounts[*].mountPropagation"];
pub(super) const RESOURCES: &[&str] = &[
    "spec.containers[*].resources.limits",
    "spec.containers[*].resources.requests",
    "spec.resources.limits",
    "spec.resources.requests",
];
pub(super) const SECCOMP: &[&str] = &[
    "spec.securityContext.seccompProfile.type",
    "spec.containers[*].securityContext.seccompProfile.type",
];
pub(super) const SELECTOR: &[&str] = &["spec.nodeSelector"];
pub(super) const SELINUX: &[&str] = &[
    "spec.securityContext.seLinuxOptions",
    "spec.containers[*].securityContext.seLinuxOptions",
];
pub(super) const SYSCTLS: &[&str] = &["spec.securityContext.sysctls[*].name"];

/// A field of a pod for which a test is true.
#[derive(Clone, Debug, PartialEq)]
pub struct PodField<'p> {
    /// The name, with the index of each item of a list.
    pub name: String,
    /// The value.
    pub value: &'p Value,
}

impl std::fmt::Display for PodField<'_> {
    /// Prints the name of the field and, if the value has a text that identifies it, this text.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = ["path", "driver", "key", "name"];
        let text = self.value.as_str();
        let mut texts = text.into_iter().chain(
            parts
                .iter()
                .filter_map(|part| self.value.get(part)?.as_str()),
        );
        match texts.next() {
            Some(text) => write!(f, "{} {text}", self.name),
            None => f.write_str(&self.name),
        }
    }
}

/// One part of a path: the name of a field, and whether the field is a list.
#[derive(Clone, Copy)]
pub(super) struct PathStep<'a> {
    pub name: &'a str,
    pub is_list: bool,
}

/// The steps of a field's path.
pub(super) fn steps(field: &str) -> Vec<PathStep<'_>> {
    field
        .split('.')
        .map(|part| PathStep {
            name: part.trim_end_matches("[*]"),
            is_list: part.ends_with("[*]"),
        })
        .collect()
}

/// The paths that a field stands for: three for a field of containers, else one.
pub(super) fn paths(field: &str) -> Vec<Vec<PathStep<'_>>> {
    let steps = steps(field);
    match steps.as_slice() {
        [spec, first, rest @ ..] if first.is_list && first.name == "containers" => CONTAINERS
            .map(|name| PathStep {
                name,
                is_list: true,
            })
            .map(|list| [&[*spec, list], rest].concat())
            .to_vec(),
        _ => vec![steps],
    }
}

/// The full name of the field `name` in the map whose full name is `at`.
pub(super) fn below(at: &str, name: &str) -> String {
    let dot = if at.is_empty() { "" } else { "." };
    format!("{at}{dot}{name}")
}

/// The full name of the entry `key` in the map whose full name is `at`. A key with special characters is quoted.
pub(super) fn entry(at: &str, key: &str) -> String {
    let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric());
    if is_plain {
        format!("{at}.{key}")
    } else {
        format!("{at}[{key:?}]")
    }
}

/// The part of a field's name that names the container, such as `spec.containers[0]`.
pub(super) fn container_of(name: &str) -> &str {
    name.split_inclusive(']').next().unwrap_or(name)
}

/// The first value of a wrong type on the way to a field, and the type that Kubernetes needs there: a map or a list.
pub(super) fn misfit<'p>(
    value: &'p Value,
    path: &[PathStep<'_>],
    at: &str,
) -> Option<(PodField<'p>, &'static str)> {
    let (step, rest) = path.split_first()?;
    let is_not = |name, value, needed| Some((PodField { name, value }, needed));
    if !value.is_object() && !value.is_null() {
        return is_not(at.to_owned(), value, "a map");
    }
    let (field, at) = (value.get(step.name)?, below(at, step.name));
    let mut items = match (step.is_list, field) {
        (false, _) => return misfit(field, rest, &at),
        (true, Value::Null) => return None,
        (true, Value::Array(items)) => items.iter().enumerate(),
        (true, _) => return is_not(at, field, "a list"),
    };
    items.find_map(|(index, item)| misfit(item, rest, &format!("{at}[{index}]")))
}
