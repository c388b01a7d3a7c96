//! A test on a pod, as data. Makes a check on the pod's YAML and a CEL expression from the same data, so that the two
//! cannot differ.

use std::fmt::Write as _;

use serde_json::Value;

use super::paths::{CONTAINERS, HostPaths, glob, regex, texts};

/// A test on fields of a pod. The test is true if it is true for any of the fields.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The fields, from `spec` or `metadata` on. `name[*]` means every item of a list. `spec.containers[*]` also means
    /// the init containers and the ephemeral containers.
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
    /// The value is a text, and none of these.
    NoneOf(&'static [&'static str]),
    /// The value is like one of these patterns.
    Like(&'static [&'static str]),
    /// The value is a list with this text.
    Includes(&'static str),
    /// The value is the name of a sysctl that begins with one of the first texts, and with none of the others. `/` and
    /// `.` separate parts of a name.
    Sysctl(&'static [&'static str], &'static [&'static str]),
    /// The value is a map with a key like one of the first patterns, whose value is like one of the others.
    Entry(&'static [&'static str], &'static [&'static str]),
    /// The value is a map with a key that is none of these.
    OtherKey(&'static [&'static str]),
    /// The value is a map whose fields meet all of these conditions.
    All(&'static [(&'static str, Is)]),
    /// The value is the hostPath of a volume of this class.
    HostPath(&'static HostPaths),
}

/// A field of a pod for which a test is true.
#[derive(Clone, Debug, PartialEq)]
pub struct PodField<'p> {
    /// The name, with the index of each item of a list.
    pub name: String,
    /// The value.
    pub value: &'p Value,
}

/// The pods that a rule is about: any of the first tests is true, all of `and`, and none of `unless`.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The tests on the fields that the rule is about.
    pub any: &'static [Test],
    /// Further conditions.
    pub and: &'static [Test],
    /// Exceptions.
    pub unless: &'static [Test],
}

/// A test on these fields.
pub(super) const fn on(fields: &'static [&'static str], is: Is) -> Test {
    Test { fields, is }
}

impl About {
    /// The fields that the rule is about; empty if it is not about this pod.
    pub fn fields<'p>(&self, pod: &'p Value) -> Vec<PodField<'p>> {
        let meets = |test: &Test| !test.fields(pod).is_empty();
        match self.and.iter().all(meets) && !self.unless.iter().any(meets) {
            true => self.any.iter().flat_map(|test| test.fields(pod)).collect(),
            false => Vec::new(),
        }
    }

    /// A CEL expression that is true for the same pods. `object` is the pod.
    pub fn cel(&self) -> String {
        let any = any_of(self.any.iter().map(Test::cel).collect());
        let and = self.and.iter().map(Test::cel);
        let unless = self.unless.iter().map(|test| format!("!({})", test.cel()));
        let all: Vec<_> = std::iter::once(any).chain(and).chain(unless).collect();
        all.join(" && ")
    }
}

impl Test {
    /// The fields of this pod for which the test is true.
    pub fn fields<'p>(&self, pod: &'p Value) -> Vec<PodField<'p>> {
        let mut found = Vec::new();
        for path in self.fields.iter().flat_map(|field| paths(field)) {
            self.search(pod, pod, &path, "", &mut found);
        }
        found
    }

    /// Adds the fields below `value` for which the test is true. `at` is the name of `value` itself.
    fn search<'p>(
        &self,
        pod: &'p Value,
        value: &'p Value,
        path: &[PathStep<'_>],
        at: &str,
        found: &mut Vec<PodField<'p>>,
    ) {
        let Some((step, rest)) = path.split_first() else {
            return self.is.find(pod, value, at, found);
        };
        let Some(field) = value.get(step.name) else {
            return;
        };
        let at = below(at, step.name);
        if !step.is_list {
            return self.search(pod, field, rest, &at, found);
        }
        for (index, item) in field.as_array().into_iter().flatten().enumerate() {
            self.search(pod, item, rest, &format!("{at}[{index}]"), found);
        }
    }

    /// The first value on the way to the fields that is no map or no list although Kubernetes needs one there, with what
    /// Kubernetes needs. The test cannot look into such a value.
    pub fn misfit<'p>(&self, pod: &'p Value) -> Option<(PodField<'p>, &'static str)> {
        let mut paths = self.fields.iter().flat_map(|field| paths(field));
        paths.find_map(|path| misfit(pod, &path, ""))
    }

    /// A CEL expression that is true for the same pods. `object` is the pod, as the API server passes it to a
    /// ValidatingAdmissionPolicy.
    pub fn cel(&self) -> String {
        let paths = self.fields.iter().flat_map(|field| paths(field));
        any_of(
            paths
                .map(|path| self.is.cel_below("object", &path, 0))
                .collect(),
        )
    }
}

fn misfit<'p>(
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

/// The name of a field of the map `at`.
fn below(at: &str, name: &str) -> String {
    let dot = if at.is_empty() { "" } else { "." };
    format!("{at}{dot}{name}")
}

fn any_of(parts: Vec<String>) -> String {
    match parts.as_slice() {
        [only] => only.clone(),
        _ => format!("({})", parts.join(" || ")),
    }
}

/// One part of a path: the name of a field, and whether the field is a list.
#[derive(Clone, Copy)]
struct PathStep<'a> {
    name: &'a str,
    is_list: bool,
}

/// The paths that a field stands for: three for a field of containers, else one.
fn paths<'a>(field: &'a str) -> Vec<Vec<PathStep<'a>>> {
    let step = |part: &'a str| match part.strip_suffix("[*]") {
        Some(name) => PathStep {
            name,
            is_list: true,
        },
        None => PathStep {
            name: part,
            is_list: false,
        },
    };
    let steps: Vec<_> = field.split('.').map(step).collect();
    match steps.as_slice() {
        [spec, first, rest @ ..] if first.is_list && first.name == "containers" => {
            let lists = CONTAINERS.map(|name| PathStep {
                name,
                is_list: true,
            });
            let path = |list| [&[*spec, list], rest].concat();
            lists.map(path).to_vec()
        }
        _ => vec![steps],
    }
}

/// The name of an entry of a map.
fn entry(at: &str, key: &str) -> String {
    let is_plain = key.chars().all(|c| c.is_ascii_alphanumeric());
    match is_plain {
        true => format!("{at}.{key}"),
        false => format!("{at}[{key:?}]"),
    }
}

fn is_like(patterns: &[&str], text: &str) -> bool {
    patterns.iter().any(|pattern| glob(pattern, text))
}

impl Is {
    /// Adds the field, or the entries of the map, for which the condition is true.
    fn find<'p>(self, pod: &'p Value, value: &'p Value, at: &str, found: &mut Vec<PodField<'p>>) {
        let entries = value.as_object().into_iter().flatten();
        match self {
            Is::Entry(keys, values) => {
                let is_met = |(key, value): &(&String, &Value)| {
                    let text = value.as_str().unwrap_or_default();
                    is_like(keys, key) && (values.is_empty() || is_like(values, text))
                };
                found.extend(entries.filter(is_met).map(|(key, value)| PodField {
                    name: entry(at, key),
                    value,
                }));
            }
            Is::OtherKey(keys) => {
                let others = entries.filter(|(key, _)| !keys.contains(&key.as_str()));
                found.extend(others.map(|(key, value)| PodField {
                    name: entry(at, key),
                    value,
                }));
            }
            Is::HostPath(paths) if !paths.met(pod, value) => {}
            _ if !self.met(value) => {}
            _ => found.push(PodField {
                name: at.to_owned(),
                value,
            }),
        }
    }

    fn met(self, value: &Value) -> bool {
        let text = value.as_str();
        let is = |test: &dyn Fn(&str) -> bool| text.is_some_and(test);
        let begins = |all: &[&str], text: &str| all.iter().any(|part| text.starts_with(part));
        match self {
            Is::True => *value == Value::Bool(true),
            Is::False => *value == Value::Bool(false),
            Is::Present | Is::HostPath(_) => !value.is_null(),
            Is::OneOf(all) => is(&|text| all.contains(&text)),
            Is::NoneOf(all) => is(&|text| !all.contains(&text)),
            Is::Like(all) => is(&|text| is_like(all, text)),
            Is::Includes(text) => {
                let mut items = value.as_array().into_iter().flatten();
                items.any(|item| item == text)
            }
            Is::Sysctl(all, except) => is(&|text| {
                let name = text.replace('/', ".");
                (all.is_empty() || begins(all, &name)) && !begins(except, &name)
            }),
            Is::All(parts) => parts
                .iter()
                .all(|(name, is)| value.get(name).is_some_and(|value| is.met(value))),
            Is::Entry(..) | Is::OtherKey(_) => value.is_object(),
        }
    }

    /// The expression for the fields at `path` below `value`. `depth` is the number of lists around `value`.
    fn cel_below(self, value: &str, path: &[PathStep<'_>], depth: usize) -> String {
        let mut field = value.to_owned();
        for (index, step) in path.iter().enumerate() {
            // Every pod has a `spec` and `metadata`. Other fields may be missing, which `?` allows.
            let is_there = field == "object" && ["spec", "metadata"].contains(&step.name);
            let optional = if is_there { "" } else { "?" };
            // A write to a string never fails.
            write!(field, ".{optional}{}", step.name).ok();
            if step.is_list {
                let item = format!("x{depth}");
                let rest = path.split_at(index + 1).1;
                let inner = self.cel_below(&item, rest, depth + 1);
                return format!("{field}.orValue([]).exists({item}, {inner})");
            }
        }
        let below = |name, is: Is| {
            let step = PathStep {
                name,
                is_list: false,
            };
            is.cel_below(value, &[path, &[step]].concat(), depth)
        };
        match self {
            Is::All(parts) => {
                let parts: Vec<_> = parts.iter().map(|(name, is)| below(*name, *is)).collect();
                format!("({})", parts.join(" && "))
            }
            Is::HostPath(paths) => paths.cel(&field),
            _ if path.is_empty() => self.cel(&|_| field.clone(), "true"),
            _ => self.cel(
                &|default| format!("{field}.orValue({default})"),
                &format!("{field}.hasValue()"),
            ),
        }
    }

    /// The expression for one value. `or` is the value, or the default if the field is missing.
    fn cel(self, or: &dyn Fn(&str) -> String, has: &str) -> String {
        let begins = |all, name: &str| format!("{}.exists(p, {name}.startsWith(p))", texts(all));
        match self {
            Is::True => or("false"),
            Is::False => format!("!{}", or("true")),
            Is::Present | Is::All(_) | Is::HostPath(_) => has.to_owned(),
            Is::OneOf(all) => format!("{} in {}", or("''"), texts(all)),
            Is::NoneOf(all) => format!("!({} in {})", or("''"), texts(all)),
            Is::Like(all) => format!("{}.matches({})", or("''"), regex(all)),
            Is::Includes(text) => format!("'{text}' in {}", or("[]")),
            Is::Sysctl(all, except) => {
                let name = format!("{}.replace('/', '.')", or("''"));
                let parts = [(all, ""), (except, "!")].into_iter();
                let parts = parts.filter(|(all, _)| !all.is_empty());
                let parts: Vec<_> = parts
                    .map(|(all, not)| format!("{not}{}", begins(all, &name)))
                    .collect();
                parts.join(" && ")
            }
            Is::Entry(keys, values) => {
                let map = or("{}");
                let value = match values {
                    [] => String::new(),
                    values => format!(" && {map}[k].matches({})", regex(values)),
                };
                format!("{map}.exists(k, k.matches({}){value})", regex(keys))
            }
            Is::OtherKey(keys) => format!("{}.exists(k, !(k in {}))", or("{}"), texts(keys)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(test: Test, pod: &Value) -> Vec<String> {
        let fields = test.fields(pod).into_iter();
        fields.map(|field| field.name).collect()
    }

    #[test]
    fn a_field_of_the_pod_is_checked_in_yaml_and_in_cel() {
        let host = on(&["spec.hostNetwork"], Is::True);
        assert_eq!(
            found(host, &json!({ "spec": { "hostNetwork": true } })),
            ["spec.hostNetwork"]
        );
        assert!(found(host, &json!({ "spec": { "hostNetwork": false } })).is_empty());
        assert!(found(host, &json!({})).is_empty());
        assert_eq!(host.cel(), "object.spec.?hostNetwork.orValue(false)");
        let users = on(&["spec.hostUsers"], Is::False);
        assert_eq!(users.cel(), "!object.spec.?hostUsers.orValue(true)");
        assert_eq!(
            found(users, &json!({ "spec": { "hostUsers": false } })),
            ["spec.hostUsers"]
        );
        assert!(found(users, &json!({ "spec": {} })).is_empty());
    }

    #[test]
    fn a_field_of_containers_is_checked_in_all_three_lists_of_containers() {
        let privileged = on(&["spec.containers[*].securityContext.privileged"], Is::True);
        let pod = json!({ "spec": {
            "containers": [{}, { "securityContext": { "privileged": true } }],
            "initContainers": [{ "securityContext": { "privileged": true } }],
            "ephemeralContainers": [{ "securityContext": { "privileged": false } }],
        }});
        assert_eq!(
            found(privileged, &pod),
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
        let nested = on(fields, Is::OneOf(&["a", "b"]));
        assert_eq!(
            nested.cel(),
            "object.spec.?volumes.orValue([]).exists(x0, x0.?projected.?sources.orValue([]).exists(x1, \
             x1.?name.orValue('') in ['a', 'b']))"
        );
        let added = on(&["spec.securityContext.add[*]"], Is::OneOf(&["Time"]));
        assert_eq!(
            added.cel(),
            "object.spec.?securityContext.?add.orValue([]).exists(x0, x0 in ['Time'])"
        );
        let pod = json!({ "spec": { "securityContext": { "add": ["Admin", "Time"] } } });
        assert_eq!(found(added, &pod), ["spec.securityContext.add[1]"]);
    }

    #[test]
    fn each_condition_on_a_text_or_a_map_has_both_checks() {
        let outside = on(&["spec.names[*]"], Is::Sysctl(&[], &["net."]));
        assert_eq!(
            outside.cel(),
            "object.spec.?names.orValue([]).exists(x0, !['net.'].exists(p, x0.replace('/', '.').startsWith(p)))"
        );
        let pod = json!({ "spec": { "names": ["net/core/somaxconn", "net.x", "vm.swappiness"] } });
        assert_eq!(found(outside, &pod), ["spec.names[2]"]);
        let entry = on(&["spec.limits"], Is::Entry(&["**/**"], &["a*"]));
        assert_eq!(
            entry.cel(),
            "object.spec.?limits.orValue({}).exists(k, k.matches(r'^(.*/[.]*[^/.].*)$') && \
             object.spec.?limits.orValue({})[k].matches(r'^(a[^/]*)$'))"
        );
        let pod = json!({ "spec": { "limits": { "cpu": "a", "x.com/y": "ab", "x.com/z": "b" } } });
        assert_eq!(found(entry, &pod), ["spec.limits[\"x.com/y\"]"]);
        let other = on(&["spec.volumes[*]"], Is::OtherKey(&["name"]));
        assert_eq!(
            other.cel(),
            "object.spec.?volumes.orValue([]).exists(x0, x0.exists(k, !(k in ['name'])))"
        );
        let pod = json!({ "spec": { "volumes": [{ "name": "a", "csi": {} }] } });
        assert_eq!(found(other, &pod), ["spec.volumes[0].csi"]);
        let present = on(&["spec.profile"], Is::Present);
        assert_eq!(present.cel(), "object.spec.?profile.hasValue()");
        let pod = json!({ "spec": { "profile": {} } });
        assert_eq!(found(present, &pod), ["spec.profile"]);
        let pod = json!({ "spec": { "profile": null } });
        assert_eq!(found(present, &pod), Vec::<String>::new());
    }

    #[test]
    fn all_conditions_on_a_map_are_conditions_on_the_same_map() {
        let fields = &["spec.volumes[*].emptyDir"];
        let parts = &[
            ("medium", Is::OneOf(&["Memory"])),
            ("sizeLimit", Is::Present),
        ];
        let sized = on(fields, Is::All(parts));
        assert_eq!(
            sized.cel(),
            "object.spec.?volumes.orValue([]).exists(x0, (x0.?emptyDir.?medium.orValue('') in ['Memory'] && \
             x0.?emptyDir.?sizeLimit.hasValue()))"
        );
        let volume = |dir: Value| json!({ "emptyDir": dir });
        let volumes = [
            volume(json!({ "medium": "Memory" })),
            volume(json!({ "sizeLimit": "1Gi" })),
            volume(json!({ "medium": "Memory", "sizeLimit": "1Gi" })),
        ];
        let pod = json!({ "spec": { "volumes": volumes } });
        assert_eq!(found(sized, &pod), ["spec.volumes[2].emptyDir"]);
    }
}
