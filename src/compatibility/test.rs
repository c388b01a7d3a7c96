//! A test on a pod, as data. Makes a check on the pod's YAML and a CEL expression from the same data, so that the two
//! cannot differ.

use std::fmt::Write as _;

use serde_json::Value;

/// The lists of containers in a pod. A test on `spec.containers[*]` is on all of them.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// A test on fields of a pod. The test is true if it is true for any of the fields.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The fields, from `spec` on. `name[*]` means every item of a list. `spec.containers[*]` also means the init
    /// containers and the ephemeral containers.
    pub fields: &'static [&'static str],
    /// The condition on the value of a field.
    pub is: Is,
}

/// A condition on the value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Is {
    /// The value is true.
    True,
    /// The value is false.
    False,
    /// The field has a value.
    Present,
    /// The value is one of these texts.
    OneOf(&'static [&'static str]),
    /// The value begins with one of these texts.
    Begins(&'static [&'static str]),
    /// The value is the name of a sysctl that begins with none of these texts. `/` and `.` separate parts of a name.
    SysctlOutside(&'static [&'static str]),
    /// The value is a map with a key that begins with this text.
    HasKey(&'static str),
}

impl Test {
    /// The fields of this pod for which the test is true, with the index of each item of a list.
    pub fn fields(&self, pod: &Value) -> Vec<String> {
        let mut found = Vec::new();
        for path in self.fields.iter().flat_map(|field| paths(field)) {
            self.search(pod, &path, "", &mut found);
        }
        found
    }

    /// Adds the fields below `value` for which the test is true. `at` is the name of `value` itself.
    fn search(&self, value: &Value, path: &[Step<'_>], at: &str, found: &mut Vec<String>) {
        let Some((step, rest)) = path.split_first() else {
            if self.is.met(value) {
                found.push(at.to_owned());
            }
            return;
        };
        let Some(field) = value.get(step.name) else {
            return;
        };
        let dot = if at.is_empty() { "" } else { "." };
        let at = format!("{at}{dot}{}", step.name);
        if !step.is_list {
            return self.search(field, rest, &at, found);
        }
        for (index, item) in field.as_array().into_iter().flatten().enumerate() {
            self.search(item, rest, &format!("{at}[{index}]"), found);
        }
    }

    /// A CEL expression that is true for the same pods. `object` is the pod, as the API server passes it to a
    /// ValidatingAdmissionPolicy.
    pub fn cel(&self) -> String {
        let paths = self.fields.iter().flat_map(|field| paths(field));
        let parts: Vec<_> = paths
            .map(|path| self.is.cel_below("object", &path, 0))
            .collect();
        match parts.as_slice() {
            [only] => only.clone(),
            _ => format!("({})", parts.join(" || ")),
        }
    }
}

/// One part of a path: the name of a field, and whether the field is a list.
#[derive(Clone, Copy)]
struct Step<'a> {
    name: &'a str,
    is_list: bool,
}

/// The paths that a field stands for: three for a field of containers, else one.
fn paths<'a>(field: &'a str) -> Vec<Vec<Step<'a>>> {
    let step = |part: &'a str| match part.strip_suffix("[*]") {
        Some(name) => Step {
            name,
            is_list: true,
        },
        None => Step {
            name: part,
            is_list: false,
        },
    };
    let steps: Vec<_> = field.split('.').map(step).collect();
    match steps.as_slice() {
        [spec, first, rest @ ..] if first.is_list && first.name == "containers" => {
            let lists = CONTAINERS.map(|name| Step {
                name,
                is_list: true,
            });
            let path = |list| [&[*spec, list], rest].concat();
            lists.map(path).to_vec()
        }
        _ => vec![steps],
    }
}

impl Is {
    fn met(self, value: &Value) -> bool {
        let text = value.as_str();
        let begins = |all: &[&str], text: &str| all.iter().any(|part| text.starts_with(part));
        match self {
            Is::True => *value == Value::Bool(true),
            Is::False => *value == Value::Bool(false),
            Is::Present => !value.is_null(),
            Is::OneOf(all) => text.is_some_and(|text| all.contains(&text)),
            Is::Begins(all) => text.is_some_and(|text| begins(all, text)),
            Is::SysctlOutside(all) => {
                text.is_some_and(|text| !begins(all, &text.replace('/', ".")))
            }
            Is::HasKey(prefix) => {
                let keys = value.as_object().into_iter().flat_map(|map| map.keys());
                keys.into_iter().any(|key| key.starts_with(prefix))
            }
        }
    }

    /// The expression for the fields at `path` below `value`. `depth` is the number of lists around `value`.
    fn cel_below(self, value: &str, path: &[Step<'_>], depth: usize) -> String {
        let mut field = value.to_owned();
        for (index, step) in path.iter().enumerate() {
            // Every pod has a `spec`. Other fields may be missing, which `?` allows.
            let optional = if step.name == "spec" { "" } else { "?" };
            // A write to a string never fails.
            write!(field, ".{optional}{}", step.name).ok();
            if step.is_list {
                let item = format!("x{depth}");
                let rest = path.split_at(index + 1).1;
                let inner = self.cel_below(&item, rest, depth + 1);
                return format!("{field}.orValue([]).exists({item}, {inner})");
            }
        }
        match path.is_empty() {
            true => self.cel(&|_| field.clone(), "true"),
            false => self.cel(
                &|default| format!("{field}.orValue({default})"),
                &format!("{field}.hasValue()"),
            ),
        }
    }

    /// The expression for one value. `or` is the value, or the default if the field is missing.
    fn cel(self, or: &dyn Fn(&str) -> String, has: &str) -> String {
        match self {
            Is::True => or("false"),
            Is::False => format!("!{}", or("true")),
            Is::Present => has.to_owned(),
            Is::OneOf(all) => format!("{} in {}", or("''"), texts(all)),
            Is::Begins(all) => {
                format!("{}.exists(p, {}.startsWith(p))", texts(all), or("''"))
            }
            Is::SysctlOutside(all) => format!(
                "!{}.exists(p, {}.replace('/', '.').startsWith(p))",
                texts(all),
                or("''")
            ),
            Is::HasKey(prefix) => {
                format!("{}.exists(k, k.startsWith('{prefix}'))", or("{}"))
            }
        }
    }
}

/// Texts as a list in CEL. No text of the table contains a quote or a backslash.
fn texts(all: &[&str]) -> String {
    let all: Vec<_> = all.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", all.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn test(fields: &'static [&'static str], is: Is) -> Test {
        Test { fields, is }
    }

    #[test]
    fn a_field_of_the_pod_is_checked_in_yaml_and_in_cel() {
        let host = test(&["spec.hostNetwork"], Is::True);
        assert_eq!(
            host.fields(&json!({ "spec": { "hostNetwork": true } })),
            ["spec.hostNetwork"]
        );
        assert!(
            host.fields(&json!({ "spec": { "hostNetwork": false } }))
                .is_empty()
        );
        assert!(host.fields(&json!({})).is_empty());
        assert_eq!(host.cel(), "object.spec.?hostNetwork.orValue(false)");
        let users = test(&["spec.hostUsers"], Is::False);
        assert_eq!(users.cel(), "!object.spec.?hostUsers.orValue(true)");
        assert_eq!(
            users.fields(&json!({ "spec": { "hostUsers": false } })),
            ["spec.hostUsers"]
        );
        assert!(users.fields(&json!({ "spec": {} })).is_empty());
    }

    #[test]
    fn a_field_of_containers_is_checked_in_all_three_lists_of_containers() {
        let privileged = test(&["spec.containers[*].securityContext.privileged"], Is::True);
        let pod = json!({ "spec": {
            "containers": [{}, { "securityContext": { "privileged": true } }],
            "initContainers": [{ "securityContext": { "privileged": true } }],
            "ephemeralContainers": [{ "securityContext": { "privileged": false } }],
        }});
        assert_eq!(
            privileged.fields(&pod),
            [
                "spec.containers[1].securityContext.privileged",
                "spec.initContainers[0].securityContext.privileged"
            ]
        );
        let part = |list: &str| {
            format!(
                "object.spec.?{list}.orValue([]).exists(x0, x0.?securityContext.?privileged.orValue(false))"
            )
        };
        let parts = CONTAINERS.map(part);
        assert_eq!(privileged.cel(), format!("({})", parts.join(" || ")));
    }

    #[test]
    fn lists_within_lists_and_lists_of_texts_are_checked() {
        let fields = &["spec.volumes[*].projected.sources[*].name"];
        let nested = test(fields, Is::OneOf(&["a", "b"]));
        assert_eq!(
            nested.cel(),
            "object.spec.?volumes.orValue([]).exists(x0, x0.?projected.?sources.orValue([]).exists(x1, \
             x1.?name.orValue('') in ['a', 'b']))"
        );
        let added = test(&["spec.securityContext.add[*]"], Is::OneOf(&["Time"]));
        assert_eq!(
            added.cel(),
            "object.spec.?securityContext.?add.orValue([]).exists(x0, x0 in ['Time'])"
        );
        let pod = json!({ "spec": { "securityContext": { "add": ["Admin", "Time"] } } });
        assert_eq!(added.fields(&pod), ["spec.securityContext.add[1]"]);
    }

    #[test]
    fn each_condition_on_a_text_or_a_map_has_both_checks() {
        let begins = test(&["spec.path"], Is::Begins(&["/dev/"]));
        assert_eq!(
            begins.cel(),
            "['/dev/'].exists(p, object.spec.?path.orValue('').startsWith(p))"
        );
        assert_eq!(
            begins.fields(&json!({ "spec": { "path": "/dev/kvm" } })),
            ["spec.path"]
        );
        let outside = test(&["spec.names[*]"], Is::SysctlOutside(&["net."]));
        assert_eq!(
            outside.cel(),
            "object.spec.?names.orValue([]).exists(x0, !['net.'].exists(p, x0.replace('/', '.').startsWith(p)))"
        );
        let pod = json!({ "spec": { "names": ["net/core/somaxconn", "net.x", "vm.swappiness"] } });
        assert_eq!(outside.fields(&pod), ["spec.names[2]"]);
        let key = test(&["spec.limits"], Is::HasKey("hugepages-"));
        assert_eq!(
            key.cel(),
            "object.spec.?limits.orValue({}).exists(k, k.startsWith('hugepages-'))"
        );
        assert_eq!(
            key.fields(&json!({ "spec": { "limits": { "hugepages-2Mi": "4Mi" } } })),
            ["spec.limits"]
        );
        let present = test(&["spec.profile"], Is::Present);
        assert_eq!(present.cel(), "object.spec.?profile.hasValue()");
        assert_eq!(
            present.fields(&json!({ "spec": { "profile": {} } })),
            ["spec.profile"]
        );
        assert!(
            present
                .fields(&json!({ "spec": { "profile": null } }))
                .is_empty()
        );
    }
}
