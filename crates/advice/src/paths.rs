//! The classes of paths of the node, by what is there: few manifests name the type of a hostPath volume.

use serde_json::Value;

/// The lists of containers in a pod. A test on `spec.containers[*]` is on all of them.
pub(super) const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// A class of hostPath volumes: a volume of one of these types, or at a path that matches a pattern and no exception.
#[derive(Debug)]
pub struct HostPaths {
    /// The types that belong to the class wherever they are.
    pub types: &'static [&'static str],
    /// Patterns of paths.
    pub like: &'static [&'static str],
    /// Lists of patterns of paths that are in no case in the class.
    pub except: &'static [&'static [&'static str]],
    /// `Some(false)`: a container that is not privileged mounts the volume. `Some(true)`: no such container does.
    pub privileged: Option<bool>,
}

/// Unix sockets.
pub(super) const SOCKET_PATHS: &[&str] = &[
    "**.sock",
    "**.sock.ttrpc",
    "**.socket",
    "/dev/log",
    "/run/dbus/system_bus_socket",
    "/run/rpcbind.sock",
    "/run/systemd/journal/dev-log",
    "/run/systemd/journal/socket",
    "/run/systemd/journal/stdout",
    "/run/systemd/notify",
    "/run/systemd/private",
    "/run/udev/control",
];

/// Paths below /dev that are no devices: memory, messages and huge pages, as file systems.
const DEV_DIRECTORIES: &[&str] = &[
    "/dev/shm",
    "/dev/shm/**",
    "/dev/mqueue",
    "/dev/mqueue/**",
    "/dev/hugepages*",
    "/dev/hugepages*/**",
];

/// Devices that each container has.
const STANDARD_DEVICES: &[&str] = &[
    "/dev/console",
    "/dev/full",
    "/dev/null",
    "/dev/ptmx",
    "/dev/pts",
    "/dev/pts/**",
    "/dev/random",
    "/dev/tty",
    "/dev/urandom",
    "/dev/zero",
];

/// Older versions of runc, and crun, allow each container to use it.
const TUN: &[&str] = &["/dev/net/tun"];

const BLOCK_DEVICES: &[&str] = &[
    "/dev/disk/**",
    "/dev/dm-*",
    "/dev/loop*",
    "/dev/mapper/**",
    "/dev/md*",
    "/dev/nbd*",
    "/dev/nvme*",
    "/dev/rbd*",
    "/dev/sd*",
    "/dev/sr*",
    "/dev/vd*",
    "/dev/xvd*",
];

/// A class with these patterns only.
const fn like(like: &'static [&'static str]) -> HostPaths {
    HostPaths {
        types: &[],
        like,
        except: &[],
        privileged: None,
    }
}

/// Unix sockets of the node.
pub(super) const SOCKETS: HostPaths = HostPaths {
    types: &["Socket"],
    ..like(SOCKET_PATHS)
};
/// Directories of the kubelet in which node plug-ins and the kubelet meet at sockets.
pub(super) const KUBELET_SOCKETS: HostPaths = HostPaths {
    except: &[SOCKET_PATHS],
    ..like(&[
        "**/kubelet/device-plugins",
        "**/kubelet/device-plugins/**",
        "**/kubelet/plugins",
        "**/kubelet/plugins/**",
        "**/kubelet/plugins_registry",
        "**/kubelet/plugins_registry/**",
        "**/kubelet/pod-resources",
        "**/kubelet/pod-resources/**",
    ])
};
/// Directories of the node with sockets or devices below them.
pub(super) const MIXED_DIRECTORIES: HostPaths = HostPaths {
    except: &[SOCKET_PATHS],
    ..like(&[
        "/",
        "/run",
        "/run/**",
        "/var",
        "/var/lib",
        "**/kubelet",
        "**/kubelet/pods",
        "**/kubelet/pods/**",
    ])
};
/// The directory of all devices.
pub(super) const DEV: HostPaths = like(&["/dev"]);
/// The directory of all devices, mounted by a container that is not privileged.
pub(super) const UNPRIVILEGED_DEV: HostPaths = HostPaths {
    privileged: Some(false),
    ..like(&["/dev"])
};
/// Devices of the node.
pub(super) const DEVICES: HostPaths = HostPaths {
    types: &["CharDevice", "BlockDevice"],
    like: &["/dev/**"],
    except: &[SOCKET_PATHS, DEV_DIRECTORIES, STANDARD_DEVICES],
    privileged: None,
};
/// Devices of the node that a container that is not privileged mounts.
pub(super) const UNPRIVILEGED_DEVICES: HostPaths = HostPaths {
    except: &[SOCKET_PATHS, DEV_DIRECTORIES, STANDARD_DEVICES, TUN],
    privileged: Some(false),
    ..DEVICES
};
/// Devices of the node, except block devices.
pub(super) const CHARACTER_DEVICES: HostPaths = HostPaths {
    types: &["CharDevice"],
    except: &[
        SOCKET_PATHS,
        DEV_DIRECTORIES,
        STANDARD_DEVICES,
        BLOCK_DEVICES,
    ],
    ..DEVICES
};
/// Devices that the kernel of each guest has too.
pub(super) const GUEST_DEVICES: HostPaths = like(STANDARD_DEVICES);
/// Everything that runc and crun pass on unchanged. A device needs a privileged container, which is a limit.
pub(super) const SHARED: HostPaths = HostPaths {
    except: &[TUN],
    ..like(&["/**"])
};
/// /dev/net/tun for privileged containers.
pub(super) const PRIVILEGED_TUN: HostPaths = HostPaths {
    privileged: Some(true),
    ..like(TUN)
};
/// The file system of eBPF objects.
pub(super) const BPF: HostPaths = like(&["/sys/fs/bpf", "/sys/fs/bpf/**"]);
/// Ordinary files, and directories that have only ordinary files.
pub(super) const PLAIN_FILES: HostPaths = HostPaths {
    types: &["File", "FileOrCreate"],
    except: &[SOCKET_PATHS, &["/dev/**", "/proc/**", "/sys/**"]],
    ..like(&[
        "/bin",
        "/boot",
        "/boot/**",
        "/etc",
        "/etc/**",
        "/lib",
        "/lib/**",
        "/lib64",
        "/opt",
        "/opt/**",
        "/sbin",
        "/usr",
        "/usr/**",
        "/var/lib/docker/containers",
        "/var/log",
        "/var/log/**",
    ])
};

impl HostPaths {
    /// Whether the hostPath of a volume of the pod is in the class.
    pub(super) fn met(&self, pod: &Value, host_path: &Value) -> bool {
        let text = |name| host_path.get(name).and_then(Value::as_str);
        let path = plain(text("path").unwrap_or_default());
        let is_like = |patterns: &[&str]| patterns.iter().any(|pattern| glob(pattern, &path));
        let is_of_type = text("type").is_some_and(|it| self.types.contains(&it));
        // The API server rejects a path with `..`, so nothing is known of it.
        let is_known = !path.split('/').any(|part| part == "..");
        let is_in = (is_of_type || is_like(self.like) && is_known)
            && !self.except.iter().any(|patterns| is_like(patterns));
        is_in
            && self
                .privileged
                .is_none_or(|needed| needed != is_mounted_unprivileged(pod, host_path))
    }

    /// A CEL expression that is true for the same volumes. `field` is the hostPath of the volume `x0`.
    pub(super) fn cel(&self, field: &str) -> String {
        let (of_type, path) = (
            format!("{field}.?type.orValue('') in {}", texts(self.types)),
            format!("{field}.?path.orValue('')"),
        );
        let matches = |patterns: &[&str]| format!("{path}.matches({})", path_regex(patterns));
        let known = format!("!{path}.matches(r'(^|/)[.][.](/|$)')");
        let mut parts = vec![format!(
            "({of_type} || ({} && {known}))",
            matches(self.like)
        )];
        parts.extend(
            self.except
                .iter()
                .map(|except| format!("!{}", matches(except))),
        );
        if let Some(needed) = self.privileged {
            let not = if needed { "!" } else { "" };
            let mounts = CONTAINERS.map(|list| {
                format!(
                    "object.spec.?{list}.orValue([]).exists(c, !c.?securityContext.?privileged.orValue(false) && \
                     c.?volumeMounts.orValue([]).exists(m, m.name == x0.name))"
                )
            });
            parts.push(format!("{not}({})", mounts.join(" || ")));
        }
        format!("{field}.hasValue() && {}", parts.join(" && "))
    }
}

/// Whether a container that is not privileged mounts the volume with this hostPath.
fn is_mounted_unprivileged(pod: &Value, host_path: &Value) -> bool {
    let list = |value: &Value, name: &str| value.get(name).and_then(Value::as_array).cloned();
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let volumes = spec.get("volumes").and_then(Value::as_array);
    let mut volumes = volumes.into_iter().flatten();
    let volume = volumes.find(|it| {
        it.get("hostPath")
            .is_some_and(|it| std::ptr::eq(it, host_path))
    });
    let name = volume.and_then(|volume| volume.get("name"));
    let containers = CONTAINERS.iter().filter_map(|lists| list(spec, lists));
    containers.flatten().any(|container| {
        let is_privileged = container.pointer("/securityContext/privileged");
        let mounts = list(&container, "volumeMounts").unwrap_or_default();
        is_privileged != Some(&Value::Bool(true))
            && mounts
                .iter()
                .any(|mount| name.is_some() && mount.get("name") == name)
    })
}

/// A path without empty parts, `.` and the old name of /run.
fn plain(path: &str) -> String {
    let parts = path.split('/').filter(|part| !["", "."].contains(part));
    let parts: Vec<_> = parts.collect();
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts = match parts.as_slice() {
        ["var", "run", ..] => parts.split_at(1).1,
        all => all,
    };
    format!("{root}{}", parts.join("/"))
}

/// Whether a text is like a pattern: `*` stands for any letters but `/`, and `**` for any letters.
pub(super) fn glob(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let Some(text) = text.strip_prefix(head) else {
        return false;
    };
    let (rest, most) = match rest.strip_prefix('*') {
        Some(rest) => (rest, text.len()),
        None => (rest, text.find('/').unwrap_or(text.len())),
    };
    let mut tails = (0..=most).filter_map(|start| text.get(start..));
    tails.any(|tail| glob(rest, tail))
}

/// A regular expression, as a text in CEL, for the texts that are like one of these patterns.
pub(super) fn regex(patterns: &[&str]) -> String {
    let texts: Vec<_> = patterns.iter().map(|it| expression(it, "/")).collect();
    format!("r'^({})$'", texts.join("|"))
}

/// The same for paths, which may have empty parts, `.` and the old name of /run.
fn path_regex(patterns: &[&str]) -> String {
    let slash = "/([.]?/+)*";
    let path = |pattern: &&str| {
        let is_run = *pattern == "/run" || pattern.starts_with("/run/");
        let var = is_run.then(|| format!("({slash}var)?"));
        var.unwrap_or_default() + &expression(pattern, slash)
    };
    let paths: Vec<_> = patterns.iter().map(path).collect();
    format!("r'^({})(/[.]?)*$'", paths.join("|"))
}

/// The regular expression for a pattern, with this expression for `/`.
fn expression(pattern: &str, slash: &str) -> String {
    // No pattern has a control character, so that these can stand for parts of it.
    let pattern = pattern.replace("/**", "\r").replace("**", "\n");
    let parts = pattern.chars().map(|letter| match letter {
        '\r' => format!("{slash}[.]*[^/.].*"),
        '\n' => ".*".to_owned(),
        '*' => "[^/]*".to_owned(),
        '.' => "[.]".to_owned(),
        '/' => slash.to_owned(),
        letter => letter.to_string(),
    });
    parts.collect()
}

/// Texts as a list in CEL. No text of the table contains a quote or a backslash.
pub(super) fn texts(all: &[&str]) -> String {
    let all: Vec<_> = all.iter().map(|text| format!("'{text}'")).collect();
    format!("[{}]", all.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether a volume at this path, mounted by a container with this privilege, is in the class.
    fn is_in(class: &HostPaths, path: &str, privileged: bool) -> bool {
        let pod = json!({ "spec": {
            "containers": [{
                "securityContext": { "privileged": privileged },
                "volumeMounts": [{ "name": "v", "mountPath": "/v" }],
            }],
            "volumes": [{ "name": "v", "hostPath": { "path": path } }],
        }});
        class.met(&pod, pod.pointer("/spec/volumes/0/hostPath").unwrap())
    }

    #[test]
    fn a_path_is_judged_by_what_is_there_and_not_by_its_spelling() {
        for path in [
            "/run/docker.sock",
            "/var/run/docker.sock",
            "//run/./docker.sock/",
            "/dev/log",
        ] {
            assert!(is_in(&SOCKETS, path, false), "{path}");
            assert!(!is_in(&DEVICES, path, false), "{path}");
            assert!(!is_in(&MIXED_DIRECTORIES, path, false), "{path}");
        }
        for path in ["/run/../docker.sock", "/var/run", "/etc"] {
            assert!(!is_in(&SOCKETS, path, false), "{path}");
        }
        for path in ["/dev/", "/dev", "/./dev"] {
            assert!(is_in(&DEV, path, false), "{path}");
            assert!(!is_in(&DEVICES, path, false), "{path}");
        }
        for path in ["/dev/shm", "/dev/shm/a", "/dev/null", "/devices"] {
            assert!(!is_in(&DEVICES, path, false), "{path}");
        }
        for path in [
            "/",
            "/run",
            "/var/run/",
            "/run/k3s",
            "/var/lib/kubelet/pods",
        ] {
            assert!(is_in(&MIXED_DIRECTORIES, path, false), "{path}");
        }
    }

    #[test]
    fn a_device_is_out_of_reach_only_for_containers_without_privilege() {
        assert!(is_in(&UNPRIVILEGED_DEVICES, "/dev/fuse", false));
        assert!(!is_in(&UNPRIVILEGED_DEVICES, "/dev/fuse", true));
        assert!(!is_in(&UNPRIVILEGED_DEVICES, "/dev/net/tun", false));
        assert!(is_in(&PRIVILEGED_TUN, "/dev/net/tun", true));
        assert!(!is_in(&PRIVILEGED_TUN, "/dev/net/tun", false));
    }

    #[test]
    fn patterns_match_as_globs_and_as_regular_expressions() {
        assert!(glob(
            "**/kubelet/plugins/**",
            "/var/lib/kubelet/plugins/a/b"
        ));
        assert!(glob("/dev/sd*", "/dev/sda1"));
        assert!(!glob("/dev/sd*", "/dev/sda/1"));
        assert_eq!(regex(&["a.b/**", "c*"]), "r'^(a[.]b/[.]*[^/.].*|c[^/]*)$'");
        let slash = "/([.]?/+)*";
        let expected =
            format!("r'^(({slash}var)?{slash}run{slash}[.]*[^/.].*|.*[.]sock)(/[.]?)*$'");
        assert_eq!(path_regex(&["/run/**", "**.sock"]), expected);
    }
}
