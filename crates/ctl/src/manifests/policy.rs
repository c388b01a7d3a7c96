//! `criswitch manifests --policy`: ValidatingAdmissionPolicies from the table of known limits. Calls no backend.

use std::iter;

use criswitch_advice::{Effect, LIMITS, Limit};
use criswitch_config::{Handler, RuntimeKind, Table};
use serde_json::{Value, json};

/// The version of the objects.
const API: &str = "admissionregistration.k8s.io/v1";

/// A policy of a RuntimeClass.
struct Policy {
    /// The effect of the limits that the policy checks.
    effect: Effect,
    /// The end of the policy's name.
    suffix: &'static str,
    /// The actions of the API server for a pod that does not pass.
    actions: &'static [&'static str],
}

/// A pod that cannot run is rejected. A pod that runs with less than it asks for is admitted with a warning, which
/// kubectl prints.
const POLICIES: [Policy; 2] = [
    Policy {
        effect: Effect::Fails,
        suffix: "",
        actions: &["Deny"],
    },
    Policy {
        effect: Effect::Weakens,
        suffix: "-warnings",
        actions: &["Warn", "Audit"],
    },
];

/// The policies of all handlers, each followed by its binding.
pub(super) fn objects(table: &Table) -> Vec<Value> {
    let rows = table.handlers.iter();
    let rows = rows.filter_map(|row| Some((row, kind(row)?)));
    let of_row = |(row, kind): (&Handler, RuntimeKind)| {
        let name = row.class().to_owned();
        let all = POLICIES.iter();
        all.flat_map(move |policy| policy.objects(&name, kind))
            .collect::<Vec<_>>()
    };
    rows.flat_map(of_row).collect()
}

/// One line for each handler without a policy.
pub(super) fn omitted(table: &Table) -> String {
    let rows = table.handlers.iter().filter(|row| kind(row).is_none());
    rows.map(|row| {
        let name = &row.name;
        format!(
            "criswitch: handler {name:?} has no policy, because its kind of runtime is unknown; set `kind` in its row under \
             [handlers], such as kind = \"gvisor\"\n"
        )
    })
    .collect()
}

/// The kind that the row names, else the kind in the names of the handler.
pub(crate) fn kind(row: &Handler) -> Option<RuntimeKind> {
    let names = [row.backend_handler.as_str(), row.name.as_str()];
    row.kind
        .or_else(|| names.into_iter().find_map(RuntimeKind::of_name))
}

impl Policy {
    /// The policy and its binding; nothing if no limit of this kind has the policy's effect.
    fn objects(&self, class: &str, kind: RuntimeKind) -> Vec<Value> {
        let limits = LIMITS.iter();
        let limits =
            limits.filter(|it| it.kinds.contains(&kind) && it.policy() == Some(self.effect));
        let validations: Vec<_> = limits.map(|it| validation(it, class, kind)).collect();
        if validations.is_empty() {
            return Vec::new();
        }
        let name = format!("criswitch-{class}{}", self.suffix);
        let policy = json!({
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": super::metadata(&name),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": { "resourceRules": [{
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "operations": ["CREATE"],
                    "resources": ["pods"],
                }] },
                // A pod without a class runs in the default handler of its node, which the API server does not know.
                "matchConditions": [{
                    "name": "class",
                    "expression": format!("object.spec.?runtimeClassName.orValue('') == '{class}'"),
                }],
                "validations": validations,
            },
        });
        let binding = json!({
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": super::metadata(&name),
            "spec": { "policyName": name, "validationActions": self.actions },
        });
        iter::once(policy).chain([binding]).collect()
    }
}

fn validation(limit: &Limit, class: &str, kind: RuntimeKind) -> Value {
    let mut fields: Vec<_> = limit.field_names().collect();
    fields.dedup();
    let (fields, kind) = (fields.join(", "), kind.title());
    let (reason, remedy, url) = (limit.reason, limit.remedy, limit.source.url);
    json!({
        "expression": format!("!({})", limit.about.cel()),
        "message": format!("{fields}: RuntimeClass {class} runs pods in {kind}. {reason} {remedy} See {url}"),
    })
}
