//! The memory and the processor time of a pod on machines with cgroup v1, with cgroup v2, and with both: directories
//! that look like `/proc` and `/sys/fs/cgroup`.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use criswitch_platform::usage::Machine;
use criswitch_platform::{PodUsage, Usage};
use tempfile::TempDir;

/// The ids of a pod and of its container.
const POD: &str = "5a03c2a51ba1e";
const CONTAINER: &str = "9f1d47c0aa310";
const IDS: [&str; 2] = [POD, CONTAINER];
pub(crate) const MIB: u64 = 1 << 20;

const MOUNTS_V1: &str = "\
34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
";
const MOUNT_V2: &str = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
pub(crate) const ONLY_V2: &str =
    "30 23 0:26 / /sys/fs/cgroup rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

/// A machine's root directory.
pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn with(mounts: &str) -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        tree.write("proc/self/mountinfo", mounts);
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Adds a cgroup of version 1 to both controllers.
    fn add_v1(&self, cgroup: &str, memory: u64, inactive: u64, cpu: Duration) {
        let path =
            |controller: &str, file: &str| format!("sys/fs/cgroup/{controller}{cgroup}/{file}");
        self.write(
            &path("memory", "memory.usage_in_bytes"),
            &format!("{memory}\n"),
        );
        let stat =
            format!("cache 1\ninactive_file 1\ntotal_cache 1\ntotal_inactive_file {inactive}\n");
        self.write(&path("memory", "memory.stat"), &stat);
        let nanoseconds = format!("{}\n", cpu.as_nanos());
        self.write(&path("cpu,cpuacct", "cpuacct.usage"), &nanoseconds);
    }

    pub(crate) fn add_v2(&self, cgroup: &str, memory: u64, inactive: u64, cpu: Duration) {
        let path = |file: &str| format!("sys/fs/cgroup{cgroup}/{file}");
        self.write(&path("memory.current"), &format!("{memory}\n"));
        let stat = format!("anon 7\nactive_file 9\ninactive_file {inactive}\nfile 20\n");
        self.write(&path("memory.stat"), &stat);
        let stat = format!(
            "usage_usec {}\nuser_usec 1\nsystem_usec 2\n",
            cpu.as_micros()
        );
        self.write(&path("cpu.stat"), &stat);
    }

    /// Adds a process that has used 30 ms of processor time. Its ended children have used 20 ms.
    pub(crate) fn add_process(
        &self,
        id: i32,
        parent: i32,
        command: &[&str],
        cgroups: &str,
        pss_kib: u64,
    ) {
        let path = |file: &str| format!("proc/{id}/{file}");
        let zeros = "0 ".repeat(33);
        let stat =
            format!("{id} (a) b) S {parent} 1 1 0 -1 0 0 0 0 0 1 2 1 1 20 0 1 0 9 {zeros}0\n");
        self.write(&path("stat"), &stat);
        self.write(&path("cmdline"), &(command.join("\0") + "\0"));
        self.write(&path("cgroup"), cgroups);
        let maps = format!(
            "559d0000-7fff0000 ---p 00000000 00:00 0                    [rollup]\nRss:  {} kB\nPss:  {pss_kib} kB\n",
            9 * pss_kib
        );
        self.write(&path("smaps_rollup"), &maps);
    }

    fn usage(&self) -> io::Result<PodUsage> {
        self.usage_below(None)
    }

    fn usage_below(&self, parent: Option<&str>) -> io::Result<PodUsage> {
        Machine::at(self.root())?.usage_of(&IDS, parent)
    }
}

fn milliseconds(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[test]
fn cgroups_of_version_1_are_added_without_their_inactive_pages() {
    let tree = Tree::with(MOUNTS_V1);
    let parent = "/kubepods/pod1";
    tree.add_v1(parent, 900 * MIB, 0, milliseconds(900));
    tree.add_v1(&format!("{parent}/{POD}"), 3 * MIB, MIB, milliseconds(30));
    tree.add_v1(&format!("{parent}/{POD}/init"), MIB, 0, milliseconds(10));
    tree.add_v1(
        &format!("{parent}/cri-{CONTAINER}.scope"),
        5 * MIB,
        2 * MIB,
        milliseconds(7),
    );
    tree.add_v1(
        &format!("{parent}/0123456789abc"),
        800 * MIB,
        0,
        milliseconds(800),
    );
    let usage = tree.usage().unwrap();
    let expected = Usage {
        memory_bytes: 5 * MIB,
        cpu: milliseconds(37),
    };
    assert_eq!(usage.in_cgroups, expected);
    assert_eq!(usage.total(), expected);
    let names: Vec<_> = usage
        .cgroups
        .iter()
        .map(|path| path.file_name().unwrap())
        .map(|name| name.to_str().unwrap())
        .collect();
    assert_eq!(names, [POD, &format!("cri-{CONTAINER}.scope")]);
}

#[test]
fn cgroups_of_version_2_are_added_without_their_inactive_pages() {
    let tree = Tree::with(ONLY_V2);
    let slice = "/kubepods.slice/kubepods-pod1.slice";
    tree.add_v2(slice, 900 * MIB, 0, milliseconds(900));
    tree.add_v2(
        &format!("{slice}/crio-{POD}.scope"),
        4 * MIB,
        MIB,
        milliseconds(30),
    );
    tree.add_v2(
        &format!("{slice}/crio-{CONTAINER}.scope"),
        2 * MIB,
        0,
        milliseconds(5),
    );
    let usage = tree.usage().unwrap();
    let expected = Usage {
        memory_bytes: 5 * MIB,
        cpu: milliseconds(35),
    };
    assert_eq!((usage.in_cgroups, usage.cgroups.len()), (expected, 2));
}

#[test]
fn a_machine_with_both_versions_has_its_controllers_in_version_1() {
    for mounts in [
        format!("{MOUNTS_V1}{MOUNT_V2}"),
        format!("{MOUNT_V2}{MOUNTS_V1}"),
    ] {
        let tree = Tree::with(&mounts);
        tree.add_v1(&format!("/{POD}"), 3 * MIB, MIB, milliseconds(30));
        // A runtime that uses cgroup v2 creates empty cgroups in this hierarchy.
        fs::create_dir_all(tree.root().join(format!("sys/fs/cgroup/unified/{POD}"))).unwrap();
        // In the hierarchy of version 2, the process is in the pod's cgroup, but this hierarchy has no memory and cpu
        // controllers.
        let cgroups = format!("4:memory:/\n2:cpu,cpuacct:/\n0::/{POD}\n");
        tree.add_process(10, 1, &["shim", "-id", POD], &cgroups, 1024);
        let usage = tree.usage().unwrap();
        assert_eq!(usage.in_cgroups.memory_bytes, 2 * MIB, "{mounts}");
        assert_eq!(usage.outside().memory_bytes, MIB, "{mounts}");
    }
}

#[test]
fn processes_outside_of_the_cgroups_count_with_their_descendants() {
    let tree = Tree::with(ONLY_V2);
    let outside = "0::/system.slice/containerd.service\n";
    let inside = format!("0::/kubepods/{POD}\n");
    tree.add_v2(&format!("/kubepods/{POD}"), MIB, 0, Duration::ZERO);
    tree.add_process(1, 0, &["init"], "0::/\n", 500);
    // Neither the daemon that started the shim nor the shim of another pod counts.
    tree.add_process(5, 1, &["/usr/bin/containerd"], outside, 600);
    tree.add_process(
        6,
        1,
        &["/usr/bin/containerd-shim-runc-v2", "-id", "0123456789abc"],
        outside,
        700,
    );
    // Children may have lower ids than their parents.
    tree.add_process(7, 90, &["runsc-gofer"], outside, 32);
    tree.add_process(
        90,
        1,
        &[
            "/usr/bin/containerd-shim-runc-v2",
            "-namespace",
            "k8s.io",
            "-id",
            POD,
        ],
        outside,
        2048,
    );
    tree.add_process(91, 90, &["/pause", "--id", POD], &inside, 800);
    tree.add_process(
        92,
        1,
        &["/usr/bin/qemu", "-name", &format!("sandbox-{POD},debug=on")],
        outside,
        4096,
    );
    let mut usage = tree.usage().unwrap();
    usage.processes.sort_by_key(|process| process.id);
    let seen: Vec<_> = usage
        .processes
        .iter()
        .map(|process| (process.id, &*process.name, process.usage.memory_bytes >> 10))
        .collect();
    let expected = [
        (7, "runsc-gofer", 32),
        (90, "containerd-shim-runc-v2", 2048),
        (92, "qemu", 4096),
    ];
    assert_eq!(seen, expected);
    // Each process has 3 ticks of its own and 2 of its ended children; a tick is 10 ms.
    assert_eq!(usage.outside().cpu, milliseconds(3 * 50));
    assert_eq!(usage.total().memory_bytes, MIB + ((32 + 2048 + 4096) << 10));
}

/// Kata with its default `sandbox_cgroup_only = false`: the virtual machine is in a cgroup of its own, outside of the
/// pod's cgroup parent.
#[test]
fn a_cgroup_of_the_pod_outside_of_its_parent_is_not_bounded_by_the_pod() {
    let machines = [
        ("/", format!("/{POD}"), MOUNTS_V1),
        (
            "/system.slice",
            format!("/system.slice/cri-containerd-{POD}.scope"),
            MOUNTS_V1,
        ),
        ("/", format!("/{POD}"), ONLY_V2),
        (
            "/system.slice",
            format!("/system.slice/cri-containerd-{POD}.scope"),
            ONLY_V2,
        ),
    ];
    for (parent, own, mounts) in machines {
        let tree = Tree::with(mounts);
        let overhead = format!("/kata_overhead/{POD}");
        let memory_controller = if mounts == ONLY_V2 {
            "0::"
        } else {
            "4:memory:"
        };
        for (cgroup, mebibytes, cpu) in [(&own, 1, 3), (&overhead, 350, 70)] {
            let cpu = milliseconds(cpu);
            if mounts == ONLY_V2 {
                tree.add_v2(cgroup, mebibytes * MIB, 0, cpu)
            } else {
                tree.add_v1(cgroup, mebibytes * MIB, 0, cpu)
            }
        }
        let cgroup = format!("{memory_controller}{overhead}\n");
        tree.add_process(9, 1, &["qemu", POD], &cgroup, 414 << 10);
        let usage = tree.usage_below(Some(parent)).unwrap();
        assert_eq!(usage.in_cgroups.memory_bytes, MIB, "{parent} {mounts}");
        let outside = Usage {
            memory_bytes: 350 * MIB,
            cpu: milliseconds(70),
        };
        assert_eq!((usage.outside(), usage.processes.len()), (outside, 0));
        assert_eq!(usage.total().cpu, milliseconds(73));
        assert_eq!(usage.charged_elsewhere_bytes(), 63 * MIB);
        assert_eq!(tree.usage().unwrap().outside(), Usage::default());
    }
}

#[test]
fn a_process_without_arguments_has_the_kernels_name() {
    let tree = Tree::with(ONLY_V2);
    tree.add_process(10, 1, &["shim", "-id", POD], "0::/\n", 1);
    tree.add_process(11, 10, &[], "0::/\n", 1);
    let mut names: Vec<_> = tree
        .usage()
        .unwrap()
        .processes
        .into_iter()
        .map(|process| process.name)
        .collect();
    names.sort();
    assert_eq!(names, ["a) b", "shim"]);
}

#[test]
fn a_pod_that_is_not_on_this_machine_is_an_error() {
    for mounts in [MOUNTS_V1, ONLY_V2] {
        let tree = Tree::with(mounts);
        tree.add_v1("/other", MIB, 0, Duration::ZERO);
        tree.add_process(1, 0, &["init"], "0::/\n4:memory:/\n", 500);
        let error = tree.usage().unwrap_err();
        assert_eq!(
            error.to_string(),
            "this machine has no cgroup and no process of the pod; run criswitch in the namespaces of the node"
        );
    }
}

#[test]
fn a_machine_without_the_controllers_is_an_error() {
    let only_memory = MOUNTS_V1.lines().nth(1).unwrap().to_owned() + "\n";
    for mounts in ["23 1 0:9 / / rw - ext4 /dev/vda rw\n", &only_memory] {
        let error = Machine::at(Tree::with(mounts).root()).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("/proc/self/mountinfo has no mount"),
            "{error}"
        );
    }
}

#[test]
fn a_cgroup_without_its_files_is_an_error_with_the_path() {
    let tree = Tree::with(ONLY_V2);
    tree.write(&format!("sys/fs/cgroup/{POD}/cgroup.procs"), "");
    let error = tree.usage().unwrap_err().to_string();
    assert!(
        error.contains(&format!("/sys/fs/cgroup/{POD}/memory.current: ")),
        "{error}"
    );
    tree.add_v2(&format!("/{POD}"), MIB, 0, Duration::ZERO);
    tree.write(&format!("sys/fs/cgroup/{POD}/memory.stat"), "anon 7\n");
    let error = tree.usage().unwrap_err().to_string();
    assert!(error.contains("/memory.stat: \"\": "), "{error}");
}
