//! The settings of runtimes in files, flags and variables.

use super::*;

fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = Root::of(root.path()).at(Path::new(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    root
}

/// Reads the settings of the program in the first argument, which runs in `/srv`. An argument with `CONTAINER_` at
/// its start is a variable.
fn settings(
    root: &tempfile::TempDir,
    arguments: &[&str],
    version: &str,
) -> Result<RuntimeSettings, String> {
    let (variables, arguments): (Vec<&str>, Vec<_>) = arguments
        .iter()
        .partition(|argument| argument.starts_with("CONTAINER_"));
    let process = RuntimeProcess {
        root: Root::of(root.path()),
        folder: Path::new("/srv"),
        arguments: &arguments,
        variables: &variables,
    };
    match arguments[0] {
        "crio" => of_crio(&process, version),
        _ => of_containerd(&process, version),
    }
}

fn default_nri() -> Option<Nri> {
    Some(Nri {
        socket: Some("/var/run/nri/nri.sock".into()),
        plugins: "/opt/nri/plugins".into(),
    })
}

#[test]
fn containerd_has_nri_since_2_0_unless_a_file_or_an_import_switches_it_off() {
    let config = "imports = [\"/etc/containerd/conf.d/*.toml\"]\n";
    let off = "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n";
    let other = "[plugins.'io.containerd.nri.v1.nri']\nsocket_path = '/run/other.sock'\nplugin_path = '/opt/other'\n";
    let main = "/etc/containerd/config.toml";
    let drop_in = "/etc/containerd/conf.d/nri.toml";
    let read =
        |files: &[(&str, &str)], version| settings(&root(files), &["containerd"], version).unwrap();
    assert_eq!(read(&[], "v2.4.2").nri, default_nri());
    assert_eq!(read(&[], "1.7.28").nri, None);
    assert_eq!(read(&[(main, config), (drop_in, off)], "2.0.1").nri, None);
    assert_eq!(
        read(
            &[(main, "disabled_plugins = ['io.containerd.nri.v1.nri']")],
            "2.0.1"
        )
        .nri,
        None
    );
    let both = read(&[(main, config), (drop_in, other)], "2.0.1");
    assert_eq!(
        both.nri.unwrap().socket.unwrap(),
        Path::new("/run/other.sock")
    );
    let closed = "[plugins.'io.containerd.nri.v1.nri']\ndisable_connections = true\n";
    assert_eq!(read(&[(main, closed)], "2.4.2").nri.unwrap().socket, None);
    assert_eq!(both.imports, [Path::new("/etc/containerd/conf.d/*.toml")]);
}

#[test]
fn a_runtime_reads_the_files_that_its_arguments_name() {
    let files = [
        (
            "/etc/second.toml",
            "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
        ),
        (
            "/etc/crio/crio.conf.d/10-nri.conf",
            "[crio.nri]\nnri_listen = '/run/crio-nri.sock'\n",
        ),
        (
            "/srv/closed/nri.conf",
            "[crio.nri]\nnri_disable_connections = true\n",
        ),
        ("/srv/off.conf", "[crio.nri]\nenable_nri = false\n"),
        ("/srv/on.conf", ""),
    ];
    let root = root(&files);
    for arguments in [
        &["containerd", "--config", "/etc/second.toml"][..],
        &["containerd", "--config=/etc/second.toml"],
    ] {
        assert_eq!(settings(&root, arguments, "2.4.2").unwrap().nri, None);
    }
    let crio = |version| settings(&root, &["crio"], version).unwrap();
    assert_eq!(crio("1.29.4").nri, None);
    let socket = |nri: Option<Nri>| nri.unwrap().socket;
    assert_eq!(
        socket(crio("1.34.0").nri),
        Some("/run/crio-nri.sock".into())
    );
    let flags = |flags: &[&str]| {
        let arguments = [&["crio"], flags].concat();
        settings(&root, &arguments, "1.34.0").unwrap().nri
    };
    assert_eq!(flags(&["--enable-nri=false"]), None);
    let other = flags(&["--nri-listen", "/run/x.sock", "--nri-plugin-dir=/opt/x"]).unwrap();
    assert_eq!(other.plugins, Path::new("/opt/x"));
    assert_eq!(socket(Some(other)), Some("/run/x.sock".into()));
    assert_eq!(socket(flags(&["--nri-disable-connections"])), None);
    assert_eq!(
        socket(flags(&["CONTAINER_CONFIG_DIR=/srv/closed"])),
        None,
        "of the drop-in"
    );
    let open = &["-d", "/srv/closed", "--nri-disable-connections=false"];
    assert_eq!(socket(flags(open)), socket(default_nri()));
    assert_eq!(flags(&["CONTAINER_CONFIG=/srv/off.conf"]), None);
    let both = &["CONTAINER_CONFIG=/srv/off.conf", "--config=/srv/on.conf"];
    assert!(flags(both).is_some());
}

#[test]
fn relative_paths_start_at_the_directory_of_the_process_and_a_named_file_must_exist() {
    let root = root(&[
        ("/srv/two.toml", "imports = ['conf.d/*.toml']"),
        (
            "/srv/conf.d/nri.toml",
            "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
        ),
        ("/srv/two.conf", "[crio.nri]\nnri_listen = '/run/two.sock'"),
        (
            "/srv/drop-ins/nri.conf",
            "[crio.nri]\nnri_plugin_dir = '/opt/two'",
        ),
    ]);
    let containerd = settings(&root, &["containerd", "--config", "two.toml"], "2.4.2").unwrap();
    assert_eq!(containerd.nri, None);
    assert_eq!(containerd.imports, [Path::new("/srv/conf.d/*.toml")]);
    let crio = ["crio", "-c", "two.conf", "-d", "drop-ins"];
    let crio = settings(&root, &crio, "1.34.0").unwrap();
    assert_eq!(crio.imports, [Path::new("/srv/drop-ins/*")]);
    let nri = Nri {
        socket: Some("/run/two.sock".into()),
        plugins: "/opt/two".into(),
    };
    assert_eq!(crio.nri, Some(nri));
    for program in ["containerd", "crio"] {
        let missing = settings(&root, &[program, "--config=three"], "2.4.2").unwrap_err();
        assert_eq!(missing, "/srv/three does not exist");
    }
}

#[test]
fn crio_has_the_subnets_of_its_default_network() {
    let network = |name: &str, subnet: &str| {
        format!(r#"{{"name":"{name}","type":"bridge","ipam":{{"subnet":"{subnet}"}}}}"#)
    };
    let first = network("first", "10.66.0.0/16");
    let second = network("second", "10.67.0.0/16");
    let list = format!(r#"{{"name":"first","plugins":[{first}]}}"#);
    let none = second.replace("type", "kind");
    let root = root(&[
        ("/etc/cni/net.d/05-broken.conf", "{"),
        ("/etc/cni/net.d/07-other.txt", &second),
        ("/etc/cni/net.d/08-none.conf", &none),
        ("/etc/cni/net.d/10-first.conflist", &list),
        ("/srv/cni/20-first.conf", &first),
        ("/srv/cni/30-second.json", &second),
        (
            "/etc/crio/two.conf",
            "[crio.network]\nnetwork_dir = 'cni'\ncni_default_network = 'second'",
        ),
    ]);
    for (flags, subnet) in [
        (&[][..], Some("10.66.0.0/16")),
        (&["-c", "/etc/crio/two.conf"], Some("10.67.0.0/16")),
        (&["--cni-config-dir=/srv/cni"], Some("10.66.0.0/16")),
        (
            &[
                "CONTAINER_CNI_CONFIG_DIR=/srv/cni",
                "CONTAINER_CNI_DEFAULT_NETWORK=second",
            ],
            Some("10.67.0.0/16"),
        ),
        (
            &["--cni-config-dir=/srv/cni", "--cni-default-network=second"],
            Some("10.67.0.0/16"),
        ),
        (&["--cni-default-network=second"], None),
        (&["--cni-config-dir=/nonexistent"], None),
    ] {
        let read = settings(&root, &[&["crio"], flags].concat(), "1.34.0").unwrap();
        let subnets = read.subnets.iter().map(|found| &*found.subnet);
        assert_eq!(Vec::from_iter(subnets), Vec::from_iter(subnet), "{flags:?}");
    }
}

#[test]
fn only_a_fixed_port_of_the_streaming_server_is_a_setting() {
    let read = |path: &str, text: &str| {
        let arguments = if path.contains("crio") {
            &["crio", "--stream-port=10010"][..]
        } else {
            &["containerd"]
        };
        let read = settings(&root(&[(path, text)]), arguments, "2.4.2");
        read.unwrap().streaming
    };
    let fixed = |address: &str| {
        Some(StreamingServer {
            address: address.to_owned(),
            port: "10010".to_owned(),
        })
    };
    let [containerd, crio] = ["/etc/containerd/config.toml", "/etc/crio/crio.conf"];
    let cri = "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nstream_server_port = ";
    assert_eq!(read(containerd, ""), None);
    let old = "[plugins.cri]\nstream_server_address = ''\nstream_server_port = '10010'";
    assert_eq!(read(containerd, old), fixed("the node's address"));
    assert_eq!(read(containerd, &format!("{cri}'0'")), None);
    assert_eq!(
        read(containerd, &format!("{cri}'10010'")),
        fixed("127.0.0.1")
    );
    assert_eq!(
        read(crio, "[crio.api]\nstream_address = ''\nstream_port = '1'"),
        fixed("")
    );
}

#[test]
fn a_configuration_that_cannot_be_read_is_not_known() {
    let unknown = |text| {
        let root = root(&[("/etc/containerd/config.toml", text)]);
        settings(&root, &["containerd"], "2.4.2").unwrap_err()
    };
    let invalid = unknown("imports = [");
    assert!(
        invalid.starts_with("/etc/containerd/config.toml is not TOML"),
        "{invalid}"
    );
    assert_eq!(
        unknown("version = 5"),
        "the version of containerd's configuration is not known"
    );
}
