//! Finds what the runtimes of one node share by default, outside of the CRI, and should not share: the socket and the
//! plug-ins of NRI, imported configuration files, the port of the streaming server, and the subnet of their pods.
//! docs/second-daemon.md explains the effect of each.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use criswitch_client::probe::Probed;
use criswitch_client::probe::subnets::Subnet;
use criswitch_config::address::Address;
use criswitch_platform::paths::in_run;
use criswitch_platform::{LostSocket, SocketProcess, sockets};

use super::finding::Finding;
use super::runtime_settings::{RuntimeSettings, StreamingServer};

/// The folders that all programs share: a socket of another program in one of them is not a socket of a backend.
const SHARED_FOLDERS: [&str; 4] = ["/", "/run", "/tmp", "/var/tmp"];

/// The paths that the backends share, and the lost sockets of this machine. `backends` have answered, and `sockets` are
/// those of all backends. If the configuration of a backend cannot be read, an unknown finding names the backend.
pub fn all<'s>(
    backends: &[(&str, &Probed)],
    sockets: impl Iterator<Item = &'s Address>,
) -> Vec<Finding> {
    let mut found = between(backends);
    found.extend(lost_sockets(sockets));
    found
}

/// The paths that these backends share. All of them have answered.
pub(super) fn between(backends: &[(&str, &Probed)]) -> Vec<Finding> {
    // Sockets of one process belong to one runtime. Process 0 stands for all processes of other PID namespaces, and
    // process 1 has bound the sockets of all units.
    let is_one =
        |one: &Probed, other: &Probed| one.pid.is_some_and(|pid| pid > 1) && one.pid == other.pid;
    if let Some(((_, first), rest)) = backends.split_first()
        && rest.iter().all(|(_, other)| is_one(first, other))
    {
        return Vec::new();
    }
    let (mut found, mut known) = (Vec::new(), Vec::new());
    for (name, probed) in backends {
        let settings = RuntimeSettings::of(probed).unwrap_or_else(|cause| {
            let what = format!(
                "whether it shares NRI, imports, a port or a subnet with another runtime: {cause}"
            );
            found.push(Finding::unknown([format!("backend {name:?}")], what, ""));
            None
        });
        let mut subnets = probed.subnets.clone();
        subnets.extend(settings.iter().flat_map(|known| known.subnets.clone()));
        known.push((name, probed, settings, subnets));
    }
    for (at, (one, ours, our_settings, our_subnets)) in known.iter().enumerate() {
        let others = known.iter().skip(at + 1);
        for (other, _, their_settings, their_subnets) in
            others.filter(|other| !is_one(ours, other.1))
        {
            let who = format!("backends {one:?} and {other:?}");
            if let (Some(ours), Some(theirs)) = (our_settings, their_settings) {
                found.extend(of_settings(ours, theirs, &who));
            }
            found.extend(one_subnet(our_subnets, their_subnets, &who));
        }
    }
    found
}

/// The NRI sockets, and these sockets of backends, on which a process listens that connections do not reach, because
/// the socket file was removed or replaced. Also every other socket whose path a second process has bound, if one of
/// the two is a runtime, or if the socket is below the folder of a backend's socket. Connects to the NRI sockets.
fn lost_sockets<'s>(backends: impl Iterator<Item = &'s Address>) -> Vec<Finding> {
    let backends: BTreeSet<_> = backends.map(|socket| in_run(socket.path())).collect();
    let is_wanted = |path: &Path| is_nri(path) || backends.contains(path);
    match sockets::lost_sockets(is_wanted, is_nri, true) {
        Ok(lost) => lost
            .iter()
            .filter(|lost| is_wanted(&lost.path) || is_of_runtime(lost, &backends))
            .map(of_socket)
            .collect(),
        Err(error) => vec![Finding::unknown(["/proc"], error, "")],
    }
}

/// The NRI sockets on which a process listens that connections do not reach, without connecting to them.
///
/// # Errors
/// If the sockets of the machine cannot be listed.
pub fn lost_nri() -> io::Result<Vec<Finding>> {
    Ok(sockets::lost_sockets(is_nri, |_| false, false)?
        .iter()
        .map(of_socket)
        .collect())
}

/// Whether the name of the socket is usual for NRI, such as `nri.sock` or `crio-nri.sock`.
fn is_nri(path: &Path) -> bool {
    path.to_string_lossy().ends_with("nri.sock")
}

/// Whether a runtime has bound this path, whatever the other program is, or the path is below the folder of one of
/// these sockets of backends.
fn is_of_runtime(lost: &LostSocket, backends: &BTreeSet<PathBuf>) -> bool {
    let folders = backends.iter().filter_map(|socket| socket.parent());
    folders
        .filter(|folder| {
            !SHARED_FOLDERS
                .iter()
                .any(|shared| *folder == Path::new(shared))
        })
        .any(|folder| lost.path.starts_with(folder))
        || lost.processes.iter().any(is_runtime)
}

fn is_runtime(process: &SocketProcess) -> bool {
    ["containerd", "crio"]
        .iter()
        .any(|name| process.program.starts_with(name))
}

fn finding(place: impl ToString, what: impl ToString, hint: &str) -> Finding {
    Finding::new([place], what, format!("{hint} (docs/second-daemon.md)"))
}

fn of_socket(lost: &LostSocket) -> Finding {
    let processes: Vec<_> = lost
        .processes
        .iter()
        .map(|process| format!("{} (pid {})", process.program, process.pid))
        .collect();
    let place = lost.path.display();
    let socket = if is_nri(&lost.path) {
        "NRI socket"
    } else {
        "socket"
    };
    if let [only] = processes.as_slice() {
        let what = format!(
            "no connection to this {socket} reaches {only}, which listens there: the file was removed or replaced"
        );
        return finding(place, what, "restarting this runtime");
    }
    let processes = processes.join(" and ");
    let what = format!(
        "{processes} listen at the path of this {socket}, so only the process that bound the path last gets connections"
    );
    finding(
        place,
        what,
        "another path for one of them, and restarting both",
    )
}

/// Shims and runc use these directories whatever the value of `state` is in containerd's configuration.
pub(super) fn containerd_state(backends: &[(&str, &Probed)]) -> Option<Finding> {
    let containerds = backends
        .iter()
        .filter(|(_, found)| found.runtime == "containerd");
    let what = "several containerds have their shims' sockets and the state of runc here";
    let hint = "keeping these folders when you remove one of the containerds";
    let places = ["/run/containerd/s", "/run/containerd/runc"];
    (containerds.count() > 1).then(|| Finding::new(places, what, hint))
}

/// The paths and the port that two runtimes with these settings share.
fn of_settings(ours: &RuntimeSettings, theirs: &RuntimeSettings, who: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut add = |place: &Path, what: &str, hint: &str| {
        found.push(finding(place.display(), format!("{who} {what}"), hint));
    };
    if let (Some(ours), Some(theirs)) = (&ours.nri, &theirs.nri) {
        if let (Some(socket), Some(other)) = (&ours.socket, &theirs.socket)
            && in_run(socket) == in_run(other)
        {
            add(
                socket,
                "have the same NRI socket, so NRI plug-ins reach only the one that started last",
                "another socket for one of them, or switching NRI off there",
            );
        }
        if ours.plugins == theirs.plugins {
            add(
                &ours.plugins,
                "start the same NRI plug-ins, so a plug-in that assigns CPUs or devices assigns them twice",
                "another folder of plug-ins for one of them, or switching NRI off there",
            );
        }
    }
    for import in ours.imports.iter().filter(|it| theirs.imports.contains(it)) {
        let what = "read this configuration, so a file for one of them changes the other too";
        add(import, what, "another path for one of them");
    }
    if let (Some(ours), Some(theirs)) = (&ours.streaming, &theirs.streaming)
        && ours.port == theirs.port
        && one_address(ours, theirs)
    {
        let what = format!(
            "{who} have this fixed port of the streaming server, so the one that starts last does not start"
        );
        let hint = "stream_server_port = \"0\" for containerd, or stream_port = \"0\" for CRI-O";
        found.push(finding(format!("port {}", ours.port), what, hint));
    }
    found
}

/// Whether two servers listen at one address, or one of them at all addresses of the node.
fn one_address(ours: &StreamingServer, theirs: &StreamingServer) -> bool {
    let is_any = |server: &StreamingServer| matches!(&*server.address, "" | "0.0.0.0" | "::");
    ours.address == theirs.address || is_any(ours) || is_any(theirs)
}

/// Two CNI networks with different names on one subnet: each gives out the addresses of the other.
fn one_subnet(ours: &[Subnet], theirs: &[Subnet], who: &str) -> Vec<Finding> {
    ours.iter()
        .flat_map(|one| theirs.iter().map(move |other| (one, other)))
        .filter(|(one, other)| one.network != other.network && one.overlaps(other))
        .map(|(one, other)| {
            let what = format!(
                "{who} have the CNI networks {:?} and {:?} on this subnet and {}, so two pods may get one address",
                one.network, other.network, other.subnet
            );
            finding(&one.subnet, what, "one CNI configuration for both, or another subnet")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::runtime_settings::Nri;
    use super::*;

    #[test]
    fn two_runtimes_with_the_same_settings_share_socket_plug_ins_imports_and_port() {
        let settings = |address: &str| RuntimeSettings {
            nri: Some(Nri {
                socket: Some("/var/run/nri/nri.sock".into()),
                plugins: "/opt/nri/plugins".into(),
            }),
            imports: vec!["/etc/containerd/conf.d/*.toml".into()],
            streaming: Some(StreamingServer {
                address: address.to_owned(),
                port: "10010".to_owned(),
            }),
            subnets: Vec::new(),
        };
        let places = |other: &RuntimeSettings| -> Vec<String> {
            let found = of_settings(&settings("127.0.0.1"), other, "a and b");
            found.iter().map(Finding::place).collect()
        };
        let all = [
            "/var/run/nri/nri.sock",
            "/opt/nri/plugins",
            "/etc/containerd/conf.d/*.toml",
            "port 10010",
        ];
        for address in ["127.0.0.1", "0.0.0.0", ""] {
            assert_eq!(places(&settings(address)), all);
        }
        assert_eq!(places(&settings("10.0.0.1")), all[..3]);
        assert_eq!(places(&RuntimeSettings::default()), [""; 0]);
    }

    #[test]
    fn an_nri_socket_has_a_name_that_ends_so() {
        let names = ["/run/nri/nri.sock", "/run/crio-nri.sock", "/run/crio.sock"];
        assert_eq!(
            names.map(|name| is_nri(Path::new(name))),
            [true, true, false]
        );
    }

    #[test]
    fn a_path_that_any_two_programs_have_bound_is_reported_below_the_folder_of_a_backends_socket() {
        let backends = ["/run/kata/kata.sock", "/run/cri-dockerd.sock"].map(PathBuf::from);
        let is_reported = |path: &str, program: &str| {
            let process = SocketProcess {
                pid: 9,
                program: program.to_owned(),
            };
            let lost = LostSocket {
                path: path.into(),
                processes: vec![process.clone(), process],
            };
            is_of_runtime(&lost, &backends.clone().into())
        };
        assert!(is_reported("/run/kata/debug.sock", "thief"));
        assert!(is_reported("/run/kata/s/shim.sock", "thief"));
        assert!(is_reported("/run/other/any.sock", "containerd"));
        assert!(!is_reported("/run/other/any.sock", "thief"));
        assert!(!is_reported("/run/any.sock", "thief"));
    }

    #[test]
    fn networks_with_different_names_on_one_subnet_collide() {
        let cni = |name: &str, subnet: &str| {
            let source = format!(
                r#"{{"name":"{name}","plugins":[{{"type":"bridge","ipam":{{"type":"host-local","ranges":[[{{"subnet":"{subnet}"}}]]}}}}]}}"#
            );
            let config = serde_json::json!({"Name": name, "Source": source});
            criswitch_client::probe::subnets::of_cni(
                &serde_json::json!({"Networks": [{"Config": config}]}),
            )
        };
        let (ours, theirs) = (cni("one", "10.66.0.0/16"), cni("two", "10.66.0.0/16"));
        assert_eq!(one_subnet(&ours, &theirs, "a and b").len(), 1);
        for part in ["10.66.7.0/24", "10.0.0.0/8"] {
            assert_eq!(one_subnet(&ours, &cni("two", part), "a and b").len(), 1);
        }
        assert_eq!(
            one_subnet(&ours, &ours, "a and b").len(),
            0,
            "they share the leases"
        );
        assert_eq!(
            one_subnet(&ours, &cni("two", "10.67.0.0/16"), "a and b").len(),
            0
        );
    }
}
