//! The fields of a pod, as far as the rules of this crate read them. No rule matches a misspelt field, although its
//! author expects an effect, and kubectl rejects it.

use super::fields::RESOURCES;
use super::test::{Is, Test, on};
use super::{FAMILIES, LIMITS};

/// A field that Kubernetes does not have.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownField {
    /// The name.
    pub name: String,
    /// The field that the author probably means.
    pub near: Option<String>,
}

/// The names of the fields at each of these places, in Kubernetes 1.37.
#[rustfmt::skip] // One place after the other.
const PLACES: &[(&[&str], &[&str])] = &[
    (&["spec"], &[
        "activeDeadlineSeconds", "affinity", "automountServiceAccountToken", "containers", "dnsConfig", "dnsPolicy",
        "enableServiceLinks", "ephemeralContainers", "hostAliases", "hostIPC", "hostNetwork", "hostPID", "hostUsers",
        "hostname", "hostnameOverride", "imagePullSecrets", "initContainers", "nodeName", "nodeSelector", "os", "overhead",
        "preemptionPolicy", "priority", "priorityClassName", "readinessGates", "resourceClaims", "resources",
        "restartPolicy", "runtimeClassName", "schedulerName", "schedulingGates", "schedulingGroup", "securityContext",
        "serviceAccount", "serviceAccountName", "setHostnameAsFQDN", "shareProcessNamespace", "subdomain",
        "terminationGracePeriodSeconds", "tolerations", "topologySpreadConstraints", "volumes", "workloadRef",
    ]),
    (&["spec.containers[*]"], &[
        "args", "command", "env", "envFrom", "image", "imagePullPolicy", "lifecycle", "livenessProbe", "name", "ports",
        "readinessProbe", "resizePolicy", "resources", "restartPolicy", "restartPolicyRules", "securityContext",
        "startupProbe", "stdin", "stdinOnce", "targetContainerName", "terminationMessagePath", "terminationMessagePolicy",
        "tty", "volumeDevices", "volumeMounts", "workingDir",
    ]),
    (&["spec.containers[*].lifecycle"], &["postStart", "preStop", "stopSignal"]),
    (&["spec.securityContext"], &[
        "appArmorProfile", "fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser",
        "seLinuxChangePolicy", "seLinuxOptions", "seccompProfile", "supplementalGroups", "supplementalGroupsPolicy",
        "sysctls", "windowsOptions",
    ]),
    (&["spec.containers[*].securityContext"], &[
        "allowPrivilegeEscalation", "appArmorProfile", "capabilities", "privileged", "procMount", "readOnlyRootFilesystem",
        "runAsGroup", "runAsNonRoot", "runAsUser", "seLinuxOptions", "seccompProfile", "windowsOptions",
    ]),
    (&["spec.containers[*].securityContext.capabilities"], &["add", "drop"]),
    (&["spec.securityContext.seccompProfile", "spec.containers[*].securityContext.seccompProfile",
        "spec.securityContext.appArmorProfile", "spec.containers[*].securityContext.appArmorProfile"], &["localhostProfile", "type"]),
    (&["spec.securityContext.windowsOptions", "spec.containers[*].securityContext.windowsOptions"],
        &["gmsaCredentialSpec", "gmsaCredentialSpecName", "hostProcess", "runAsUserName"]),
    (&["spec.securityContext.sysctls[*]"], &["name", "value"]),
    (&["spec.os"], &["name"]),
    (&["spec.resources", "spec.containers[*].resources"], &["claims", "limits", "requests"]),
    // Further resources need no row: see `is_further_resource`.
    (RESOURCES, &["cpu", "ephemeral-storage", "memory"]),
    (&["spec.resourceClaims[*]"], &["name", "resourceClaimName", "resourceClaimTemplateName"]),
    (&["spec.containers[*].volumeDevices[*]"], &["devicePath", "name"]),
    (&["spec.containers[*].volumeMounts[*]"], &[
        "bindMountOptions", "mountPath", "mountPropagation", "name", "readOnly", "recursiveReadOnly", "subPath",
        "subPathExpr",
    ]),
    (&["spec.volumes[*]"], &[
        "awsElasticBlockStore", "azureDisk", "azureFile", "cephfs", "cinder", "configMap", "csi", "downwardAPI",
        "emptyDir", "ephemeral", "fc", "flexVolume", "flocker", "gcePersistentDisk", "gitRepo", "glusterfs", "hostPath",
        "image", "iscsi", "name", "nfs", "persistentVolumeClaim", "photonPersistentDisk", "portworxVolume", "projected",
        "quobyte", "rbd", "scaleIO", "secret", "storageos", "vsphereVolume",
    ]),
    (&["spec.volumes[*].hostPath"], &["path", "type"]),
    (&["spec.volumes[*].emptyDir"], &["medium", "sizeLimit"]),
    (&["spec.volumes[*].csi"], &["driver", "fsType", "nodePublishSecretRef", "readOnly", "volumeAttributes"]),
];

/// Whether `spec` of a pod has a field with this name.
pub fn is_pod_field(name: &str) -> bool {
    PLACES
        .first()
        .is_some_and(|(_, names)| names.contains(&name))
}

/// The fields of the pod that Kubernetes does not have. `near` finds the name nearest to a misspelt one.
pub fn unknown_fields(
    pod: &serde_json::Value,
    near: impl Fn(&str, &[&'static str]) -> Option<&'static str>,
) -> Vec<UnknownField> {
    PLACES
        .iter()
        .flat_map(|(fields, known)| {
            on(fields, Is::OtherKey(known))
                .fields(pod)
                .into_iter()
                .map(move |field| (field.name, *known))
        })
        .filter(|(name, _)| !is_further_resource(name))
        .map(|(name, known)| {
            let end = name.rsplit(['.', '[']).next().unwrap_or_default();
            let near = near(end.trim_matches(['"', ']']), known).map(ToOwned::to_owned);
            UnknownField { name, near }
        })
        .collect()
}

/// Whether the field is a resource that needs no row in [`PLACES`].
fn is_further_resource(name: &str) -> bool {
    [".limits[", ".requests["]
        .iter()
        .find_map(|map| Some(name.split_once(map)?.1))
        .is_some_and(|resource| resource.contains('/') || resource.starts_with("\"hugepages-"))
}

/// Every test of this crate on the fields of a pod.
pub fn tests() -> impl Iterator<Item = Test> {
    let limits = LIMITS
        .iter()
        .map(|limit| limit.about)
        .flat_map(|it| [it.any, it.and, it.unless].concat());
    let families = FAMILIES
        .iter()
        .flat_map(|family| family.any.iter().copied());
    let places = PLACES
        .iter()
        .map(|(fields, known)| on(fields, Is::OtherKey(known)));
    limits.chain(families).chain(places)
}
