//! `criswitch manifests --policy`: ValidatingAdmissionPolicies from the table of known limits. Calls no backend.

use std::collections::BTreeSet;

use anyhow::ensure;
use criswitch_advice::{Effect, LIMITS, Limit, VARIABLES};
use criswitch_config::{Handler, RuntimeKind, Table};
use serde_json::{Value, json};

use super::metadata;

/// The largest length of a name, in characters.
const MOST_OF_NAME: usize = 253;
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

/// The policies of all handlers, each followed by its binding. Policies for gVisor and Kata Containers come first,
/// because they reject the most pods.
///
/// # Errors
/// A policy would have no valid name, or the name of a different policy.
pub(super) fn objects(table: &Table) -> anyhow::Result<Vec<Value>> {
    let mut rows: Vec<_> = table
        .handlers
        .iter()
        .filter_map(|row| Some((row, kind(row)?)))
        .collect();
    rows.sort_by_key(|(_, kind)| ![RuntimeKind::Gvisor, RuntimeKind::Kata].contains(kind));
    let objects: Vec<_> = rows
        .into_iter()
        .flat_map(|(row, kind)| {
            POLICIES
                .iter()
                .flat_map(move |policy| policy.objects(row.class(), kind))
        })
        .collect();
    let mut names = BTreeSet::new();
    for policy in objects.iter().step_by(2) {
        let name = policy.pointer("/metadata/name").and_then(Value::as_str);
        let name = name.unwrap_or_default();
        ensure!(
            name.len() <= MOST_OF_NAME,
            "the name of policy {name} has more than {MOST_OF_NAME} characters; set a shorter class in the row of the handler"
        );
        ensure!(
            names.insert(name),
            "two policies would have the name {name}; set a different class in the row of one of the handlers"
        );
    }
    Ok(objects)
}

/// One line for each handler without a policy.
pub(super) fn omitted(table: &Table) -> String {
    table.handlers.iter().filter(|row| kind(row).is_none()).map(|row| {
        let name = &row.name;
        format!(
            "criswitch: handler {name:?} has no policy, because its kind of runtime is unknown; set `kind` in its row under \
             [handlers], such as kind = \"gvisor\", or kind = \"other\"\n"
        )
    })
    .collect()
}

/// The kind that the row names, else the kind in the names of the handler.
pub(crate) fn kind(row: &Handler) -> Option<RuntimeKind> {
    row.kind
        .or_else(|| RuntimeKind::of_name(&row.backend_handler))
        .or_else(|| RuntimeKind::of_name(&row.name))
}

impl Policy {
    /// The policy and its binding; nothing if no limit of this kind has the policy's effect.
    fn objects(&self, class: &str, kind: RuntimeKind) -> Vec<Value> {
        let validations: Vec<_> = LIMITS
            .iter()
            .filter(|it| {
                it.kinds.contains(&kind) && it.policy() == Some(self.effect) && is_met(it, kind)
            })
            .flat_map(|it| validations(it, class, kind))
            .collect();
        if validations.is_empty() {
            return Vec::new();
        }
        let name = format!("criswitch-{class}{}", self.suffix);
        let variables = variables(
            validations
                .iter()
                .filter_map(|it| it["expression"].as_str())
                .collect(),
        );
        let policy = json!({
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": metadata(&name),
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
                "variables": variables,
                "validations": validations,
            },
        });
        let binding = json!({
            "apiVersion": API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata(&name),
            "spec": { "policyName": name, "validationActions": self.actions },
        });
        vec![policy, binding]
    }
}

/// The variables that these expressions need.
fn variables(mut expressions: Vec<&str>) -> Vec<Value> {
    let mut needed = Vec::new();
    // An expression may use only variables that `VARIABLES` lists earlier, so the loop starts at the last variable.
    for (name, expression) in VARIABLES.into_iter().rev() {
        let reference = format!("variables.{name}");
        if expressions.iter().any(|it| it.contains(&reference)) {
            expressions.push(expression);
            needed.insert(0, json!({ "name": name, "expression": expression }));
        }
    }
    needed
}

/// Whether a policy for this kind should check the limit. Policies for runc and crun omit limits that other kinds
/// share, such as the limit on annotations for a different runtime.
fn is_met(limit: &Limit, kind: RuntimeKind) -> bool {
    let plain = [RuntimeKind::Runc, RuntimeKind::Crun];
    !plain.contains(&kind)
        || limit.is_of_kubelet()
        || limit.kinds.iter().all(|it| plain.contains(it))
}

fn validations(limit: &Limit, class: &str, kind: RuntimeKind) -> Vec<Value> {
    let mut fields: Vec<_> = limit.field_names().collect();
    fields.dedup();
    let (fields, kind) = (fields.join(", "), kind.title());
    let (reason, remedy, source) = (limit.reason, limit.remedy, limit.source.shown());
    let message = format!(
        "{fields}: RuntimeClass {class} runs pods in {kind}. {reason} {remedy} Source: {source}"
    );
    limit
        .about
        .cels()
        .into_iter()
        .map(|cel| json!({ "expression": format!("!({cel})"), "message": message }))
        .collect()
}
