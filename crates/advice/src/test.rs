//! A test on a pod, as data. Makes a check on the pod's YAML and CEL expressions from the same data. The expressions
//! are short, so that a reviewer can read them: they may be true for fewer pods than the check.

use std::fmt::Write as _;

use serde_json::Value;

use super::cel::{MAX_CEL_LENGTH, like, texts};
use super::fields::{
    CONTAINER, EXPRESSIONS, PathStep, PodField, VOLUME, below, container_of, entry, misfit, paths,
    steps,
};
use super::paths::{HostPaths, Mounting, plain};
use super::patterns::is_like;

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
    /// The value is like one of the first patterns, and none of the other texts.
    LikeExcept(&'static [&'static str], &'static [&'static str]),
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
    /// The value is a quantity of more than one, such as `1500m`.
    MoreThanOne,
    /// The value is the hostPath of a volume, and the volume or a sub-path of it that a container mounts is in this
    /// class.
    HostPath(&'static HostPaths),
    /// The value is a part of a volume, such as its emptyDir, and containers mount the volume in this way.
    Mounted(Mounting),
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
    /// Whether one container must meet all conditions on containers.
    pub in_one_container: bool,
}

/// A test on these fields.
pub(super) const fn on(fields: &'static [&'static str], is: Is) -> Test {
    Test { fields, is }
}

impl About {
    /// The fields that the rule is about; empty if it is not about this pod.
    pub fn fields<'p>(&self, pod: &'p Value) -> Vec<PodField<'p>> {
        let and: Vec<_> = self.and.iter().map(|test| test.fields(pod)).collect();
        let unless: Vec<_> = self.unless.iter().map(|test| test.fields(pod)).collect();
        self.any
            .iter()
            .flat_map(|test| test.fields(pod))
            .filter(|field| {
                and.iter().all(|others| self.goes_with_any(field, others))
                    && !unless
                        .iter()
                        .any(|others| self.goes_with_any(field, others))
            })
            .collect()
    }

    /// Whether one of `others` counts for this field. If one container must meet all conditions, a field of a container
    /// counts only for fields of the same container.
    fn goes_with_any(&self, field: &PodField<'_>, others: &[PodField<'_>]) -> bool {
        let container = container_of(&field.name);
        others.iter().any(|PodField { name, .. }| {
            !self.in_one_container || !name.contains('[') || container_of(name) == container
        })
    }

    /// CEL expressions that are true for pods of the rule. An expression has more than [`MAX_CEL_LENGTH`] characters
    /// only if a single field needs more.
    pub fn cels(&self) -> Vec<String> {
        let cels = if self.in_one_container {
            Test::cels_of_container
        } else {
            Test::cels
        };
        let and = self.and.iter().map(|test| match cels(test).as_slice() {
            [only] => only.clone(),
            all => format!("({})", all.join(" || ")),
        });
        let unless = self.unless.iter().flat_map(cels);
        let further: Vec<_> = and.chain(unless.map(|it| format!("!({it})"))).collect();
        let mut all: Vec<String> = Vec::new();
        for one in self.any.iter().flat_map(cels) {
            let mut parts = vec![one];
            parts.extend(further.iter().cloned());
            let mut one = parts.join(" && ");
            if self.in_one_container {
                one = format!("variables.containers.exists(c, {one})");
            }
            match all.last_mut() {
                Some(last) if last.len() + one.len() + " || ".len() <= MAX_CEL_LENGTH => {
                    *last += &format!(" || {one}");
                }
                _ => all.push(one),
            }
        }
        all
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

    /// The first value of a wrong type on the way to the fields, and the type that Kubernetes needs there: a map or a
    /// list. The test cannot look into such a value.
    pub fn misfit<'p>(&self, pod: &'p Value) -> Option<(PodField<'p>, &'static str)> {
        self.fields
            .iter()
            .flat_map(|field| paths(field))
            .find_map(|path| misfit(pod, &path, ""))
    }

    /// A CEL expression for each field, except for node affinities, which a policy leaves to the scheduler.
    fn cels(&self) -> Vec<String> {
        if let Is::HostPath(paths) = self.is {
            return vec![paths.cel()];
        }
        self.fields
            .iter()
            .filter(|field| !EXPRESSIONS.contains(field))
            .map(|field| {
                if let Some(field) = field.strip_prefix(CONTAINER) {
                    let inner = self.is.cel_below("c", &steps(field), 0);
                    format!("variables.containers.exists(c, {inner})")
                } else if let Some(field) = field.strip_prefix(VOLUME) {
                    let inner = self.is.cel_below("v", &steps(field), 0);
                    format!("variables.volumes.exists(v, {inner})")
                } else {
                    self.is.cel_below("object", &steps(field), 0)
                }
            })
            .collect()
    }

    /// A CEL expression for each field. In the expression for a field of a container, `c` is the container.
    fn cels_of_container(&self) -> Vec<String> {
        self.fields
            .iter()
            .map(|field| match field.strip_prefix(CONTAINER) {
                Some(field) => self.is.cel_below("c", &steps(field), 0),
                None => self.is.cel_below("object", &steps(field), 0),
            })
            .collect()
    }
}

/// Whether the value is a quantity of more than one. Reads only the suffix `m`: the API allows no smaller part of a
/// processor.
fn is_more_than_one(value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    let number = match text.strip_suffix('m') {
        Some(milli) => milli.parse::<f64>().map(|it| it / 1000.0),
        None => text.parse::<f64>(),
    };
    number.ok().or(value.as_f64()).is_some_and(|it| it > 1.0)
}

impl Is {
    /// Adds the field, or the entries of the map, for which the condition is true.
    fn find<'p>(self, pod: &'p Value, value: &'p Value, at: &str, found: &mut Vec<PodField<'p>>) {
        let entries = value.as_object().into_iter().flatten();
        // A mount is judged by its path, and not by the spelling of the path.
        let path = value.as_str().filter(|_| at.ends_with(".mountPath"));
        let path = path.map(|path| Value::String(plain(path)));
        match self {
            Is::Entry(keys, values) => {
                found.extend(
                    entries
                        .filter(|(key, value)| {
                            let text = value.as_str().unwrap_or_default();
                            is_like(keys, key) && (values.is_empty() || is_like(values, text))
                        })
                        .map(|(key, value)| PodField {
                            name: entry(at, key),
                            value,
                        }),
                );
            }
            Is::OtherKey(keys) => {
                found.extend(
                    entries
                        .filter(|(key, _)| !keys.contains(&key.as_str()))
                        .map(|(key, value)| PodField {
                            name: entry(at, key),
                            value,
                        }),
                );
            }
            Is::HostPath(paths) => paths.find(pod, value, at, found),
            Is::Mounted(mounting) if !mounting.met(pod, value) => {}
            _ if !self.met(path.as_ref().unwrap_or(value)) => {}
            _ => found.push(PodField {
                name: at.to_owned(),
                value,
            }),
        }
    }

    fn met(self, value: &Value) -> bool {
        let text = value.as_str();
        match self {
            Is::True => *value == Value::Bool(true),
            Is::False => *value == Value::Bool(false),
            Is::Present | Is::HostPath(_) | Is::Mounted(_) => !value.is_null(),
            Is::MoreThanOne => is_more_than_one(value),
            Is::OneOf(all) => text.is_some_and(|text| all.contains(&text)),
            Is::NoneOf(all) => text.is_some_and(|text| !all.contains(&text)),
            Is::Like(all) => text.is_some_and(|text| is_like(all, text)),
            Is::LikeExcept(all, except) => {
                text.is_some_and(|text| is_like(all, text) && !except.contains(&text))
            }
            Is::Includes(text) => value
                .as_array()
                .into_iter()
                .flatten()
                .any(|item| item == text),
            Is::Sysctl(all, except) => text.is_some_and(|text| {
                let name = text.replace('/', ".");
                (all.is_empty() || all.iter().any(|part| name.starts_with(part)))
                    && !except.iter().any(|part| name.starts_with(part))
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
        match self {
            Is::All(parts) => {
                let parts: Vec<_> = parts
                    .iter()
                    .map(|&(name, is)| {
                        let step = PathStep {
                            name,
                            is_list: false,
                        };
                        is.cel_below(value, &[path, &[step]].concat(), depth)
                    })
                    .collect();
                format!("({})", parts.join(" && "))
            }
            _ if path.is_empty() => self.cel(&|_| field.clone(), "true"),
            _ => self.cel(
                &|default| format!("{field}.orValue({default})"),
                &format!("{field}.hasValue()"),
            ),
        }
    }

    /// The expression for one value. `or` makes the expression of the value, with a default if the field may be
    /// missing. `has` is the expression for a field that exists.
    fn cel(self, or: &dyn Fn(&str) -> String, has: &str) -> String {
        let begins = |all, name: &str| format!("{}.exists(p, {name}.startsWith(p))", texts(all));
        match self {
            Is::True => or("false"),
            Is::False => format!("!{}", or("true")),
            Is::Present | Is::All(_) | Is::HostPath(_) | Is::Mounted(_) => has.to_owned(),
            Is::MoreThanOne => {
                let quantity = or("'0'");
                format!("quantity(string({quantity})).isGreaterThan(quantity('1'))")
            }
            Is::OneOf(all) => format!("{} in {}", or("''"), texts(all)),
            Is::NoneOf(all) => format!("!({} in {})", or("''"), texts(all)),
            Is::Like(all) => like(&or("''"), all),
            Is::LikeExcept(all, except) => {
                let value = or("''");
                format!("{} && !({value} in {})", like(&value, all), texts(except))
            }
            Is::Includes(text) => format!("'{text}' in {}", or("[]")),
            Is::Sysctl(all, except) => {
                let name = format!("{}.replace('/', '.')", or("''"));
                let parts: Vec<_> = [(all, ""), (except, "!")]
                    .into_iter()
                    .filter(|(all, _)| !all.is_empty())
                    .map(|(all, not)| format!("{not}{}", begins(all, &name)))
                    .collect();
                parts.join(" && ")
            }
            Is::Entry(keys, values) => {
                let map = or("{}");
                let value = match values {
                    [] => String::new(),
                    values => format!(" && {}", like(&format!("{map}[k]"), values)),
                };
                format!("{map}.exists(k, {}{value})", like("k", keys))
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
        assert_eq!(host.cels(), ["object.spec.?hostNetwork.orValue(false)"]);
        let users = on(&["spec.hostUsers"], Is::False);
        assert_eq!(users.cels(), ["!object.spec.?hostUsers.orValue(true)"]);
        assert_eq!(
            found(users, &json!({ "spec": { "hostUsers": false } })),
            ["spec.hostUsers"]
        );
        assert!(found(users, &json!({ "spec": {} })).is_empty());
    }

    #[test]
    fn a_mount_is_judged_by_its_path_and_not_by_its_spelling() {
        let proc = on(
            &["spec.containers[*].volumeMounts[*].mountPath"],
            Is::Like(&["/proc/**"]),
        );
        for (path, is_met) in [
            ("//proc/./x", true),
            ("/proc/x/", true),
            ("/./process", false),
        ] {
            let mount = json!({ "volumeMounts": [{ "mountPath": path }] });
            let pod = json!({ "spec": { "containers": [mount] } });
            assert_eq!(!found(proc, &pod).is_empty(), is_met, "{path}");
        }
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
        assert_eq!(
            privileged.cels(),
            ["variables.containers.exists(c, c.?securityContext.?privileged.orValue(false))"]
        );
    }

    #[test]
    fn lists_within_lists_and_lists_of_texts_are_checked() {
        let fields = &["spec.volumes[*].projected.sources[*].name"];
        let nested = on(fields, Is::OneOf(&["a", "b"]));
        assert_eq!(
            nested.cels(),
            [
                "variables.volumes.exists(v, v.?projected.?sources.orValue([]).exists(x0, \
             x0.?name.orValue('') in ['a', 'b']))"
            ]
        );
        let added = on(&["spec.securityContext.add[*]"], Is::OneOf(&["Time"]));
        assert_eq!(
            added.cels(),
            ["object.spec.?securityContext.?add.orValue([]).exists(x0, x0 in ['Time'])"]
        );
        let pod = json!({ "spec": { "securityContext": { "add": ["Admin", "Time"] } } });
        assert_eq!(found(added, &pod), ["spec.securityContext.add[1]"]);
    }

    #[test]
    fn each_condition_on_a_text_or_a_map_has_both_checks() {
        let outside = on(&["spec.names[*]"], Is::Sysctl(&[], &["net."]));
        assert_eq!(
            outside.cels(),
            [
                "object.spec.?names.orValue([]).exists(x0, !['net.'].exists(p, x0.replace('/', '.').startsWith(p)))"
            ]
        );
        let pod = json!({ "spec": { "names": ["net/core/somaxconn", "net.x", "vm.swappiness"] } });
        assert_eq!(found(outside, &pod), ["spec.names[2]"]);
        let entry = on(&["spec.limits"], Is::Entry(&["**/**"], &["a*"]));
        assert_eq!(
            entry.cels(),
            [
                "object.spec.?limits.orValue({}).exists(k, k.matches(r'^(.*/.+)$') && \
             object.spec.?limits.orValue({})[k].matches(r'^(a[^/]*)$'))"
            ]
        );
        let pod = json!({ "spec": { "limits": { "cpu": "a", "x.com/y": "ab", "x.com/z": "b" } } });
        assert_eq!(found(entry, &pod), ["spec.limits[\"x.com/y\"]"]);
        let other = on(&["spec.volumes[*]"], Is::OtherKey(&["name"]));
        assert_eq!(
            other.cels(),
            ["object.spec.?volumes.orValue([]).exists(x0, x0.exists(k, !(k in ['name'])))"]
        );
        let pod = json!({ "spec": { "volumes": [{ "name": "a", "csi": {} }] } });
        assert_eq!(found(other, &pod), ["spec.volumes[0].csi"]);
        let present = on(&["spec.profile"], Is::Present);
        assert_eq!(present.cels(), ["object.spec.?profile.hasValue()"]);
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
            sized.cels(),
            [
                "variables.volumes.exists(v, (v.?emptyDir.?medium.orValue('') in ['Memory'] && \
             v.?emptyDir.?sizeLimit.hasValue()))"
            ]
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

    #[test]
    fn conditions_on_one_container_are_not_met_by_two() {
        const LIMITED: Test = on(&["spec.containers[*].resources.limits.memory"], Is::Present);
        const REQUESTED: Test = on(
            &["spec.containers[*].resources.requests.memory"],
            Is::Present,
        );
        let about = About {
            any: &[REQUESTED],
            and: &[],
            unless: &[LIMITED],
            in_one_container: true,
        };
        let requests = json!({ "resources": { "requests": { "memory": "8Gi" } } });
        let limited = json!({ "resources": { "requests": { "memory": "1Gi" }, "limits": { "memory": "1Gi" } } });
        let pod =
            json!({ "spec": { "containers": [limited, requests], "initContainers": [limited] } });
        let found = about.fields(&pod);
        let names: Vec<_> = found.iter().map(|it| it.name.as_str()).collect();
        assert_eq!(names, ["spec.containers[1].resources.requests.memory"]);
        assert_eq!(
            about.cels(),
            [
                "variables.containers.exists(c, c.?resources.?requests.?memory.hasValue() && \
              !(c.?resources.?limits.?memory.hasValue()))"
            ]
        );
    }

    #[test]
    fn an_exception_is_negated_as_a_whole() {
        const ANY: Test = on(&["spec.a"], Is::Present);
        const UNLESS: Test = on(&["spec.b"], Is::OneOf(&["x"]));
        let about = About {
            any: &[ANY],
            and: &[],
            unless: &[UNLESS],
            in_one_container: false,
        };
        assert_eq!(
            about.cels(),
            ["object.spec.?a.hasValue() && !(object.spec.?b.orValue('') in ['x'])"]
        );
    }

    #[test]
    fn a_quantity_is_more_than_one_in_each_spelling() {
        for (value, expected) in [
            (json!("4"), true),
            (json!(2), true),
            (json!("1500m"), true),
            (json!("1000m"), false),
            (json!(1), false),
            (json!("0.5"), false),
        ] {
            assert_eq!(is_more_than_one(&value), expected, "{value}");
        }
    }

    #[test]
    fn long_conditions_are_several_expressions() {
        const FIELDS: &[&str] = &[
            "spec.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "spec.bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb",
            "spec.cccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccccc",
        ];
        const PRESENT: Test = on(FIELDS, Is::Present);
        let about = About {
            any: &[PRESENT],
            and: &[],
            unless: &[],
            in_one_container: false,
        };
        let cels = about.cels();
        assert_eq!(cels.len(), 2);
        assert!(cels.iter().all(|cel| cel.len() <= MAX_CEL_LENGTH));
    }
}
