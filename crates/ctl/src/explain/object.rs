//! An object of a manifest: its pod templates, whether it may have other pods, and the fields of a pod that are at a
//! wrong place.

use criswitch_advice::UnknownField;
use criswitch_config::problem::near;
use serde_json::Value;

/// The workloads of Kubernetes with a pod template, each with its version of the API and the path of the template.
const TEMPLATES: [(&str, &str, &str); 9] = [
    ("Pod", "v1", ""),
    ("Deployment", "apps/v1", "spec.template"),
    ("DaemonSet", "apps/v1", "spec.template"),
    ("StatefulSet", "apps/v1", "spec.template"),
    ("ReplicaSet", "apps/v1", "spec.template"),
    ("ReplicationController", "v1", "spec.template"),
    ("Job", "batch/v1", "spec.template"),
    ("CronJob", "batch/v1", "spec.jobTemplate.spec.template"),
    ("PodTemplate", "v1", "template"),
];

/// The groups of Kubernetes' own API. Objects of other groups have a controller that may create pods.
#[rustfmt::skip]
const KUBERNETES_API_GROUPS: [&str; 21] = [
    "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps", "authentication.k8s.io",
    "authorization.k8s.io", "autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io",
    "events.k8s.io", "extensions", "flowcontrol.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io", "policy",
    "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
];

/// Kinds of other groups whose controllers make no pods; `*` stands for all kinds of a group.
#[rustfmt::skip] // A group is a line.
const WITHOUT_PODS: [(&str, &[&str]); 39] = [
    ("argoproj.io", &["AppProject"]),
    ("autoscaling.k8s.io", &["*"]),
    ("bitnami.com", &["SealedSecret"]),
    ("cert-manager.io", &["Certificate", "CertificateRequest"]),
    ("cilium.io", &["*"]),
    ("cloud.google.com", &["BackendConfig"]),
    ("configuration.konghq.com", &["*"]),
    ("constraints.gatekeeper.sh", &["*"]),
    ("crd.projectcalico.org", &["*"]),
    ("elbv2.k8s.aws", &["*"]),
    ("external-secrets.io", &["*"]),
    ("gateway.networking.k8s.io", &[
        "BackendTLSPolicy", "GRPCRoute", "GatewayClass", "HTTPRoute", "ReferenceGrant", "TCPRoute", "TLSRoute", "UDPRoute",
    ]),
    ("grafana.integreatly.org", &["GrafanaDashboard", "GrafanaDatasource", "GrafanaFolder"]),
    ("groupsnapshot.storage.k8s.io", &["*"]),
    ("image.openshift.io", &["*"]),
    ("k8s.cni.cncf.io", &["NetworkAttachmentDefinition"]),
    ("karpenter.k8s.aws", &["*"]),
    ("karpenter.sh", &["*"]),
    ("keda.sh", &["ClusterTriggerAuthentication", "ScaledObject", "TriggerAuthentication"]),
    ("kueue.x-k8s.io", &["*"]),
    ("linkerd.io", &["ServiceProfile"]),
    ("metallb.io", &[
        "BFDProfile", "BGPAdvertisement", "BGPPeer", "Community", "IPAddressPool", "L2Advertisement",
    ]),
    ("monitoring.coreos.com", &[
        "AlertmanagerConfig", "PodMonitor", "Probe", "PrometheusRule", "ScrapeConfig", "ServiceMonitor",
    ]),
    ("monitoring.googleapis.com", &[
        "ClusterNodeMonitoring", "ClusterPodMonitoring", "ClusterRules", "GlobalRules", "PodMonitoring", "Rules",
    ]),
    ("networking.gke.io", &["FrontendConfig", "ManagedCertificate"]),
    ("networking.istio.io", &["*"]),
    ("nfd.k8s-sigs.io", &["*"]),
    ("policy.linkerd.io", &["*"]),
    ("policy.networking.k8s.io", &["*"]),
    ("projectcalico.org", &["*"]),
    ("route.openshift.io", &["*"]),
    ("secrets-store.csi.x-k8s.io", &["*"]),
    ("security.istio.io", &["*"]),
    ("security.openshift.io", &["*"]),
    ("snapshot.storage.k8s.io", &["*"]),
    ("source.toolkit.fluxcd.io", &["*"]),
    ("telemetry.istio.io", &["*"]),
    ("templates.gatekeeper.sh", &["*"]),
    ("traefik.io", &["*"]),
];

/// Fields in a custom resource that let its pods reach out of themselves, for example to the node.
#[rustfmt::skip]
const REACHING: [&str; 6] = ["hostIPC", "hostNetwork", "hostPID", "hostPath", "privileged", "runtimeClassName"];

/// An object of a file.
pub(super) struct Object<'o> {
    pub(super) file: &'o str,
    pub(super) value: &'o Value,
    pub(super) kind: &'o str,
    pub(super) api_version: &'o str,
}

impl<'o> Object<'o> {
    /// A text of the object's metadata.
    pub(super) fn text(&self, field: &str) -> &'o str {
        self.value
            .get("metadata")
            .and_then(|it| it.get(field))
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    pub(super) fn name(&self) -> String {
        match (self.text("name"), self.text("generateName")) {
            ("", generated) if !generated.is_empty() => format!("{generated}*"),
            (name, _) => name.to_owned(),
        }
    }

    /// The claims that a StatefulSet makes for each of its pods, which mount them as volumes.
    pub(super) fn claims(&self) -> &'o [Value] {
        match self.value.pointer("/spec/volumeClaimTemplates") {
            Some(Value::Array(claims)) if self.kind == "StatefulSet" => claims,
            _ => &[],
        }
    }

    /// Whether the object is of Kubernetes' own API.
    pub(super) fn is_built_in(&self) -> bool {
        match self.api_version.split_once('/') {
            Some((group, _)) => KUBERNETES_API_GROUPS.contains(&group),
            None => true,
        }
    }

    /// Whether the object is of another group, and its controller makes no pods.
    fn is_without_pods(&self) -> bool {
        let group = self.api_version.split_once('/').map(|(group, _)| group);
        WITHOUT_PODS.iter().any(|(name, kinds)| {
            Some(*name) == group && (kinds.contains(&"*") || kinds.contains(&self.kind))
        })
    }

    /// The row of the object in [`TEMPLATES`].
    fn workload(&self) -> Option<(&'static str, &'static str, &'static str)> {
        TEMPLATES
            .into_iter()
            .find(|(kind, ..)| *kind == self.kind && self.is_built_in())
    }

    /// The version of the API that the object must have, if it has a different one. Items of a list have no version.
    pub(super) fn needed_version(&self) -> Option<&'static str> {
        let (_, needed, _) = self.workload()?;
        (![needed, ""].contains(&self.api_version)).then_some(needed)
    }

    /// The paths of the pod templates.
    pub(super) fn templates(&self) -> Vec<String> {
        match self.workload() {
            Some((.., path)) => vec![path.to_owned()],
            None if self.is_built_in() => Vec::new(),
            // A custom resource with `spec.containers` is not a pod: its controller makes pods that have more than
            // these containers.
            None => self.shapes().filter(|path| !path.is_empty()).collect(),
        }
    }

    /// The paths of everything in the shape of a pod template.
    fn shapes(&self) -> impl Iterator<Item = String> {
        let mut found = Vec::new();
        shapes(self.value, "", &mut found);
        found.into_iter()
    }

    /// Why the object may have pods that are in none of these templates; `None` if it certainly has no other pods.
    pub(super) fn doubt(&self, templates: &[String]) -> Option<String> {
        if self.kind == "Kustomization" {
            return Some(
                "it has no pods; try kubectl kustomize DIR | criswitch explain -f -".to_owned(),
            );
        }
        if self.is_built_in() {
            // A ControllerRevision has a former pod template of a DaemonSet or StatefulSet.
            let is_workload = self.kind != "ControllerRevision" && self.shapes().next().is_some();
            let near = TEMPLATES
                .into_iter()
                .find(|(kind, ..)| near(self.kind, &[&kind.to_lowercase()]).is_some())
                .map_or(String::new(), |(near, ..)| {
                    format!("; did you mean {near}?")
                });
            return (templates.is_empty() && is_workload)
                .then(|| format!("Kubernetes has no such kind with pods{near}"));
        }
        if templates.is_empty() {
            return (!self.is_without_pods()).then(|| {
                "it has no pod template that criswitch knows, but its controller may create pods"
                    .to_owned()
            });
        }
        reaching(self.value).map(|field| {
            format!("it has {field} outside of a whole pod template, and its controller may create such pods")
        })
    }
}

/// The first field of [`REACHING`] in the value, outside of pod templates.
fn reaching(value: &Value) -> Option<&'static str> {
    if has_containers(value) {
        return None;
    }
    REACHING
        .into_iter()
        .find(|field| value.get(field).is_some())
        .or_else(|| match value {
            Value::Object(map) => map.values().find_map(reaching),
            Value::Array(items) => items.iter().find_map(reaching),
            _ => None,
        })
}

/// Whether the value has the shape of a pod template.
fn has_containers(value: &Value) -> bool {
    value
        .pointer("/spec/containers")
        .is_some_and(Value::is_array)
}

/// The path with a dot, for the names of the fields below it.
pub(super) fn prefix(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!("{path}."),
    }
}

/// Adds the paths below `value` of everything in the shape of a pod template: a `spec` with a list of containers.
fn shapes(value: &Value, at: &str, found: &mut Vec<String>) {
    if has_containers(value) {
        found.push(at.to_owned());
    }
    match value {
        Value::Object(map) => map
            .iter()
            .for_each(|(name, value)| shapes(value, &(prefix(at) + name), found)),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .for_each(|(index, value)| shapes(value, &format!("{at}[{index}]"), found)),
        _ => {}
    }
}

/// The value at a path such as `spec.items[0]`.
pub(super) fn at<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    let pointer = path.replace(['.', '['], "/").replace(']', "");
    match pointer.as_str() {
        "" => Some(value),
        pointer => value.pointer(&format!("/{pointer}")),
    }
}

/// The fields of a pod's `spec` that are at another place of the object, with the right place. `path` is that of the
/// pod.
pub(super) fn misplaced(object: &Value, path: &str) -> Vec<UnknownField> {
    let mut places = vec![String::new(), "metadata".to_owned()];
    for (end, _) in path.match_indices('.').chain([(path.len(), "")]) {
        if let Some(place) = path.get(..end).filter(|place| !place.is_empty()) {
            places.extend([place.to_owned(), format!("{place}.metadata")]);
        }
    }
    let mut fields = Vec::new();
    for place in &places {
        for (key, _) in at(object, place)
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            // A Job has a field of this name too.
            if criswitch_advice::is_pod_field(key) && key != "activeDeadlineSeconds" {
                fields.push(UnknownField {
                    name: prefix(place) + key,
                    near: Some(format!("{}spec.{key}", prefix(path))),
                });
            }
        }
    }
    fields
}
