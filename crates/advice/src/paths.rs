//! Classes of paths on the node: sockets, devices, plain files and more. A class has patterns of paths, because few
//! manifests name the type of a hostPath volume. This module also has the ways in which containers mount a volume.

use serde_json::Value;

use super::cel::{MAX_CEL_LENGTH, texts};
use super::fields::{CONTAINERS, PodField};
use super::patterns::{is_like, path_regex};

/// A class of hostPath volumes: a volume of one of these types, or at a path that matches a pattern and no exception.
#[derive(Debug)]
pub struct HostPaths {
    /// The types that belong to the class wherever they are.
    pub types: &'static [&'static str],
    /// The types that are never in the class, whatever their path is.
    pub never: &'static [&'static str],
    /// Patterns of paths.
    pub like: &'static [&'static str],
    /// Lists of patterns of paths that are not in the class.
    pub except: &'static [&'static [&'static str]],
    /// `Some(false)`: the class has only volumes that a container mounts without being privileged. `Some(true)`: the
    /// class has only volumes that no such container mounts.
    pub privileged: Option<bool>,
}

/// Unix sockets.
pub(super) const SOCKET_PATHS: &[&str] = &[
    "**.sock",
    "**.socket",
    "**-sock",
    "**.sock.ttrpc",
    "**/.s.PGSQL.*",
    "/dev/log",
    "/tmp/.X11-unix/**",
    "/run/dbus/system_bus_socket",
    "/run/rpcbind.sock",
    "/run/systemd/journal/dev-log",
    "/run/systemd/journal/socket",
    "/run/systemd/journal/stdout",
    "/run/systemd/notify",
    "/run/systemd/private",
    "/run/udev/control",
];

/// Paths below /dev that are not devices: memory, messages and huge pages, as file systems.
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

/// The TUN device. Older versions of runc, and crun, allow each container to use it.
const TUN: &[&str] = &["/dev/net/tun"];

/// Devices that the kernel of gVisor emulates.
const EMULATED: &[&str] = &["/dev/fuse", "/dev/net/tun"];

/// Directories that exist for the Unix sockets in them.
const OF_SOCKETS: &[&str] = &[
    "/run/avahi-daemon",
    "/run/cilium",
    "/run/containerd",
    "/run/crio",
    "/run/dbus",
    "/run/docker",
    "/run/istio-cni",
    "/run/k3s/containerd",
    "/run/libvirt",
    "/run/mysqld",
    "/run/nri",
    "/run/openvswitch",
    "/run/pcscd",
    "/run/postgresql",
    "/run/spire/**",
    "/run/systemd/journal",
    "/run/tailscale",
    "/run/ztunnel",
    "/tmp/.X11-unix",
];

/// Paths whose names suggest that there are sockets.
const NAMED_SOCKETS: &[&str] = &["**sock**", "**/ipc", "**/ipc/**", "**/uds", "**/uds/**"];

/// File systems of the kernel.
const OF_KERNEL: &[&str] = &["/dev", "/dev/**", "/proc", "/proc/**", "/sys", "/sys/**"];

/// Ordinary files that pods often mount.
const FILES: &[&str] = &[
    "/etc/group",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/timezone",
    "/run/flannel/subnet.env",
    "/run/systemd/resolve/resolv.conf",
    "/run/utmp",
    "/run/xtables.lock",
];

/// A class with these patterns only.
const fn like(like: &'static [&'static str]) -> HostPaths {
    HostPaths {
        types: &[],
        never: &[],
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
/// Directories of the kubelet with sockets over which node plug-ins and the kubelet communicate.
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
/// Directories that exist for the Unix sockets in them.
pub(super) const SOCKET_DIRECTORIES: HostPaths = HostPaths {
    except: &[SOCKET_PATHS],
    ..like(OF_SOCKETS)
};
/// Directories of the node with sockets or devices below them. Further directories below /run are in no class, because
/// each of them may have files, sockets or both.
pub(super) const MIXED_DIRECTORIES: HostPaths = HostPaths {
    except: &[SOCKET_PATHS],
    ..like(&[
        "/",
        "/run",
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
const DEVICES: HostPaths = HostPaths {
    types: &["CharDevice", "BlockDevice"],
    except: &[SOCKET_PATHS, DEV_DIRECTORIES, STANDARD_DEVICES],
    ..like(&["/dev/**"])
};
/// Devices of the node, except those that the kernel of gVisor emulates.
pub(super) const HARDWARE: HostPaths = HostPaths {
    except: &[SOCKET_PATHS, DEV_DIRECTORIES, STANDARD_DEVICES, EMULATED],
    ..DEVICES
};
/// Devices of the node, mounted by a container that is not privileged.
pub(super) const UNPRIVILEGED_DEVICES: HostPaths = HostPaths {
    except: &[SOCKET_PATHS, DEV_DIRECTORIES, STANDARD_DEVICES, TUN],
    privileged: Some(false),
    ..DEVICES
};
/// Devices that each container has, in a virtual machine too.
pub(super) const CONTAINER_DEVICES: HostPaths = like(STANDARD_DEVICES);
/// Devices that the kernel of a virtual machine may have too.
pub(super) const GUEST_DEVICES: HostPaths = like(&["/dev/kmsg", "/dev/net/tun"]);
/// Every path.
pub(super) const EVERYTHING: HostPaths = like(&["**"]);
/// Every path that runc and crun pass to the container unchanged. A separate limit covers devices, which need a
/// privileged container.
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
/// Directories in which the kernel shows its state and the state of the machine.
pub(super) const KERNEL_DIRECTORIES: HostPaths = HostPaths {
    except: &[BPF.like],
    ..like(&["/proc", "/proc/**", "/sys", "/sys/**"])
};
/// Ordinary files.
pub(super) const PLAIN_FILES: HostPaths = HostPaths {
    types: &["File", "FileOrCreate"],
    except: &[SOCKET_PATHS, OF_KERNEL],
    ..like(FILES)
};
/// Directories that have only ordinary files, and ordinary files in them.
pub(super) const PLAIN_DIRECTORIES: HostPaths = HostPaths {
    never: &["File", "FileOrCreate"],
    except: &[SOCKET_PATHS, FILES, NAMED_SOCKETS],
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
        "/run/log",
        "/run/log/**",
        "/sbin",
        "/usr",
        "/usr/**",
        "/var/lib/docker/containers",
        "/var/log",
        "/var/log/**",
    ])
};
/// Every path outside of the kernel's file systems that is not known to be a file, a socket or a device.
pub(super) const DIRECTORIES: HostPaths = HostPaths {
    never: &[
        "File",
        "FileOrCreate",
        "Socket",
        "CharDevice",
        "BlockDevice",
    ],
    except: &[SOCKET_PATHS, OF_KERNEL, FILES],
    ..like(&["/**"])
};

/// Single files, except well-known ones that pods only read.
pub(super) const OTHER_FILES: HostPaths = HostPaths {
    types: &["File", "FileOrCreate"],
    except: &[SOCKET_PATHS, OF_KERNEL, FILES],
    ..like(&[])
};

/// How containers mount a volume.
#[derive(Clone, Copy, Debug)]
pub enum Mounting {
    /// By sub-path in one mount, and whole in another one.
    WholeAndInPart,
    /// In more than one container, without a mount hint for gVisor that the containers share the volume.
    InSeveralContainersWithoutHint,
    /// By sub-path in more than one container.
    PartsInSeveralContainers,
    /// Not only as a device.
    WithFiles,
}

/// A mount of a volume.
struct VolumeMount<'p> {
    /// The name of the container.
    container: String,
    /// The name of the field that has the sub-path.
    field: String,
    /// The sub-path; `None` if the whole volume is mounted.
    sub_path: Option<&'p Value>,
    is_privileged: bool,
}

impl VolumeMount<'_> {
    fn is_whole(&self) -> bool {
        self.sub_path.is_none()
    }
}

impl Mounting {
    /// Whether containers of the pod mount a volume in this way. `part` is the part of the volume that a test found,
    /// such as its emptyDir.
    pub(super) fn met(self, pod: &Value, part: &Value) -> bool {
        let mounts = mounts(pod, part);
        match self {
            Mounting::WholeAndInPart => {
                mounts.iter().any(VolumeMount::is_whole)
                    && !mounts.iter().all(VolumeMount::is_whole)
            }
            Mounting::InSeveralContainersWithoutHint => {
                are_of_several_containers(mounts.iter()) && !has_hint(pod, part)
            }
            Mounting::PartsInSeveralContainers => {
                are_of_several_containers(mounts.iter().filter(|it| it.sub_path.is_some()))
            }
            Mounting::WithFiles => !mounts.is_empty() || !is_device(pod, part),
        }
    }
}

impl HostPaths {
    /// Adds the parts of a hostPath volume of the pod that are in the class: the volume, unless containers mount only
    /// sub-paths of it, and each sub-path.
    pub(super) fn find<'p>(
        &self,
        pod: &'p Value,
        host_path: &'p Value,
        at: &str,
        found: &mut Vec<PodField<'p>>,
    ) {
        let path = text_of(host_path, "path");
        let (parts, whole): (Vec<_>, Vec<_>) = mounts(pod, host_path)
            .into_iter()
            .partition(|it| it.sub_path.is_some());
        let is_mounted = !whole.is_empty() || parts.is_empty();
        let is_unprivileged = whole.iter().any(|mount| !mount.is_privileged);
        if is_mounted && self.has(path, text_of(host_path, "type"), is_unprivileged) {
            found.push(PodField {
                name: at.to_owned(),
                value: host_path,
            });
        }
        for mount in parts {
            let Some(sub_path) = mount.sub_path else {
                continue;
            };
            let path = format!("{path}/{}", sub_path.as_str().unwrap_or_default());
            if self.has(&path, "", !mount.is_privileged) {
                found.push(PodField {
                    name: mount.field,
                    value: sub_path,
                });
            }
        }
    }

    /// Whether a path of this type is in the class. `is_unprivileged` says whether a container that is not privileged
    /// mounts the path.
    fn has(&self, path: &str, kind: &str, is_unprivileged: bool) -> bool {
        let path = plain(path);
        // The API server rejects a path with `..`. No pattern matches such a path, except `**`, which is for every
        // path.
        let is_known = self.like.contains(&"**") || !path.split('/').any(|part| part == "..");
        (self.types.contains(&kind) || is_like(self.like, &path) && is_known)
            && !self.never.contains(&kind)
            && !self.except.iter().any(|patterns| is_like(patterns, &path))
            && self
                .privileged
                .is_none_or(|needed| needed != is_unprivileged)
    }

    /// A CEL expression for pods with a hostPath volume of the class. The expression expects paths in their usual
    /// spelling, and ignores sub-paths. It has only the first patterns of the class, as many as fit into
    /// [`MAX_CEL_LENGTH`]. If a container of the pod is privileged, it counts as the container that mounts the volume.
    pub(super) fn cel(&self) -> String {
        let of_type = match self.types {
            [] => String::new(),
            types => format!("p.?type.orValue('') in {} || ", texts(types)),
        };
        let folders = self.like.iter().filter_map(|it| it.strip_suffix("**"));
        let excepted: Vec<_> = self
            .except
            .iter()
            .copied()
            .flatten()
            .copied()
            .filter(|path| folders.clone().any(|folder| path.starts_with(folder)))
            .collect();
        let except = match excepted.as_slice() {
            [] => String::new(),
            except => format!(" && !p.path.matches({})", path_regex(except)),
        };
        let never = match self.never {
            [] => String::new(),
            never => format!(" && !(p.?type.orValue('') in {})", texts(never)),
        };
        let privileged = match self.privileged {
            Some(false) => "!variables.privileged && ",
            _ => "",
        };
        (1..=self.like.len())
            .rev()
            .filter_map(|count| {
                let like = path_regex(self.like.get(..count)?);
                Some(format!(
                    "{privileged}variables.hostPaths.exists(p, ({of_type}p.path.matches({like})){except}{never})"
                ))
            })
            .find(|cel| cel.len() <= MAX_CEL_LENGTH)
            .unwrap_or_default()
    }
}

fn are_of_several_containers<'m>(mut mounts: impl Iterator<Item = &'m VolumeMount<'m>>) -> bool {
    mounts
        .next()
        .is_some_and(|first| mounts.any(|it| it.container != first.container))
}

/// The items of the list `name`; none if the list does not exist.
pub(super) fn items<'p>(value: &'p Value, name: &str) -> impl Iterator<Item = &'p Value> {
    value
        .get(name)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// The text `name`; empty if the text does not exist.
fn text_of<'p>(value: &'p Value, name: &str) -> &'p str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The name of the volume that has this part, such as its hostPath.
fn name_of<'p>(spec: &'p Value, part: &Value) -> Option<&'p Value> {
    items(spec, "volumes")
        .find(|volume| {
            volume
                .as_object()
                .into_iter()
                .flatten()
                .any(|(_, it)| std::ptr::eq(it, part))
        })?
        .get("name")
}

/// Whether an annotation tells gVisor that the containers of the pod share the volume with this part.
fn has_hint(pod: &Value, part: &Value) -> bool {
    let name = pod
        .get("spec")
        .and_then(|spec| name_of(spec, part)?.as_str());
    let annotations = pod.pointer("/metadata/annotations");
    let hint = format!("dev.gvisor.spec.mount.{}.share", name.unwrap_or_default());
    let value = annotations.and_then(|all| all.get(hint)?.as_str());
    matches!(value, Some("pod" | "shared"))
}

/// Whether a container has the volume with this part as a device.
fn is_device(pod: &Value, part: &Value) -> bool {
    pod.get("spec").is_some_and(|spec| {
        let name = name_of(spec, part);
        CONTAINERS
            .iter()
            .flat_map(|list| items(spec, list))
            .flat_map(|container| items(container, "volumeDevices"))
            .any(|device| name.is_some() && device.get("name") == name)
    })
}

/// The mounts of the volume of the pod that has this part, such as its hostPath.
fn mounts<'p>(pod: &'p Value, part: &Value) -> Vec<VolumeMount<'p>> {
    let Some(spec) = pod.get("spec") else {
        return Vec::new();
    };
    let Some(name) = name_of(spec, part) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for lists in CONTAINERS {
        for (index, container) in items(spec, lists).enumerate() {
            let at = format!("spec.{lists}[{index}]");
            let is_privileged = container.pointer("/securityContext/privileged");
            let mounts = items(container, "volumeMounts")
                .enumerate()
                .filter(|(_, mount)| mount.get("name") == Some(name));
            found.extend(mounts.map(|(index, mount)| {
                let sub_path = ["subPath", "subPathExpr"].into_iter().find_map(|field| {
                    let value = mount.get(field)?;
                    (!value.is_null() && value.as_str() != Some("")).then_some((field, value))
                });
                let (field, sub_path) = sub_path.unzip();
                VolumeMount {
                    container: at.clone(),
                    field: format!("{at}.volumeMounts[{index}].{}", field.unwrap_or_default()),
                    sub_path,
                    is_privileged: is_privileged == Some(&Value::Bool(true)),
                }
            }));
        }
    }
    found
}

/// The path without empty parts and `.`, and with /run in place of /var/run.
pub(super) fn plain(path: &str) -> String {
    let parts: Vec<_> = path
        .split('/')
        .filter(|part| !["", "."].contains(part))
        .collect();
    let root = if path.starts_with('/') { "/" } else { "" };
    let parts = match parts.as_slice() {
        ["var", "run", ..] => parts.split_at(1).1,
        all => all,
    };
    format!("{root}{}", parts.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Whether a volume at this path, mounted by a container with this privilege, is in the class.
    fn is_in(class: &HostPaths, path: &str, privileged: bool) -> bool {
        !parts(class, path, &json!({}), privileged).is_empty()
    }

    /// The parts of a volume that are in the class.
    fn parts(class: &HostPaths, path: &str, mount: &Value, privileged: bool) -> Vec<String> {
        let mut mount = mount.clone();
        let fields = mount.as_object_mut().unwrap();
        fields.insert("name".to_owned(), json!("v"));
        let pod = json!({ "spec": {
            "containers": [{
                "securityContext": { "privileged": privileged },
                "volumeMounts": [mount],
            }],
            "volumes": [{ "name": "v", "hostPath": { "path": path } }],
        }});
        let mut found = Vec::new();
        let host_path = pod.pointer("/spec/volumes/0/hostPath").unwrap();
        class.find(&pod, host_path, "volume", &mut found);
        found.into_iter().map(|field| field.name).collect()
    }

    #[test]
    fn a_mounted_sub_path_is_judged_instead_of_the_volume() {
        let mount = json!({ "subPath": "docker.sock" });
        let field = "spec.containers[0].volumeMounts[0].subPath";
        assert_eq!(parts(&SOCKETS, "/run", &mount, false), [field]);
        assert!(parts(&MIXED_DIRECTORIES, "/run", &mount, false).is_empty());
        let mount = json!({ "subPathExpr": "$(NAME)" });
        assert_eq!(
            parts(&PLAIN_DIRECTORIES, "/var/log", &mount, false),
            ["spec.containers[0].volumeMounts[0].subPathExpr"]
        );
    }

    #[test]
    fn a_single_file_that_a_pod_may_write_is_not_a_directory() {
        for (path, kind, is_file) in [
            ("/data/app.db", "FileOrCreate", true),
            ("/etc/hosts", "File", false),
            ("/data", "Directory", false),
        ] {
            assert_eq!(OTHER_FILES.has(path, kind, true), is_file, "{path}");
        }
        assert!(!DIRECTORIES.has("/data/app.db", "FileOrCreate", true));
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
        assert!(is_in(&PLAIN_DIRECTORIES, "/opt/x/data", false));
        for path in ["/opt/x/sockets", "/opt/uds", "/etc/x/ipc/a"] {
            assert!(!is_in(&PLAIN_DIRECTORIES, path, false), "{path}");
        }
        for path in ["/", "/run", "/var/run/", "/var/lib/kubelet/pods"] {
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
}
