//! The parts of the CEL expressions in a ValidatingAdmissionPolicy.

use super::patterns::regex;

/// The largest length of a CEL expression, in characters.
pub const MAX_CEL_LENGTH: usize = 300;

/// The variables of the CEL expressions, each with its own expression. `object` is the pod, as the API server passes it
/// to a ValidatingAdmissionPolicy when a client creates it.
/// A variable uses only those before it.
pub const VARIABLES: [(&str, &str); 4] = [
    (
        "containers",
        "object.spec.containers + object.spec.?initContainers.orValue([])",
    ),
    // As in `ignore_unused_volumes`.
    (
        "volumes",
        "object.spec.?volumes.orValue([]).filter(v, variables.containers.exists(c, \
         c.?volumeMounts.orValue([]).exists(m, m.name == v.name) || \
         c.?volumeDevices.orValue([]).exists(d, d.name == v.name)))",
    ),
    (
        "hostPaths",
        "variables.volumes.filter(v, has(v.hostPath)).map(v, v.hostPath)",
    ),
    (
        "privileged",
        "variables.containers.exists(c, c.?securityContext.?privileged.orValue(false))",
    ),
];

/// The texts as a list in CEL. They need no escapes, because no text of the table contains a quote or a backslash.
pub(super) fn texts(all: &[&str]) -> String {
    let all: Vec<_> = all.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", all.join(", "))
}

/// A CEL expression that is true if `text` is like one of these patterns.
pub(super) fn like(text: &str, patterns: &[&str]) -> String {
    if patterns.iter().any(|pattern| pattern.contains('*')) {
        format!("{text}.matches({})", regex(patterns))
    } else {
        format!("{text} in {}", texts(patterns))
    }
}
