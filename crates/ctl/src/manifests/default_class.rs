//! `criswitch manifests --policy=default-class`: a MutatingAdmissionPolicy that gives the pods of a labelled namespace
//! a RuntimeClass. It is the same for every configuration: the API server rejects a pod whose RuntimeClass does not
//! exist.

use serde_json::{Value, json};

use super::metadata::metadata;
use super::policy::API;

/// The label of a namespace. Its value is the name of a RuntimeClass.
const LABEL: &str = "criswitch.io/default-class";
const NAME: &str = "criswitch-default-class";

/// The policy and its binding.
pub(super) fn objects() -> [Value; 2] {
    let expression = format!(
        "Object{{spec: Object.spec{{runtimeClassName: namespaceObject.metadata.labels['{LABEL}']}}}}"
    );
    let policy = json!({
        "apiVersion": API,
        "kind": "MutatingAdmissionPolicy",
        "metadata": metadata(NAME),
        "spec": {
            "failurePolicy": "Fail",
            // A later change of the pod by another policy is no reason to decide again.
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "namespaceSelector": { "matchExpressions": [{ "key": LABEL, "operator": "Exists" }] },
                "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }],
            },
            "matchConditions": [
                {
                    "name": "no-class",
                    "expression": "object.spec.?runtimeClassName.orValue('') == ''",
                },
                // The kubelet runs a static pod as its file says, and only reports it to the API server.
                {
                    "name": "no-static-pod",
                    "expression": "!('kubernetes.io/config.mirror' in object.metadata.?annotations.orValue({}))",
                },
            ],
            "mutations": [{
                "patchType": "ApplyConfiguration",
                "applyConfiguration": { "expression": expression },
            }],
        },
    });
    let binding = json!({
        "apiVersion": API,
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": metadata(NAME),
        "spec": { "policyName": NAME },
    });
    [policy, binding]
}
