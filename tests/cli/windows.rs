//! The commands on Windows: the addresses of pipes, and the parts that Linux does not have.

use crate::reload::Node;
use crate::support::Sim;
use crate::{command, main_file, run_beside, text};

/// The standard output and standard error of a command as criswitch prints them, and its exit code.
fn raw(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = command(arguments).output().unwrap();
    let [stdout, stderr] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.code(), stdout, stderr)
}

#[test]
fn check_shows_each_spelling_of_a_pipe_as_the_kubelet_spells_it() {
    let files = main_file(
        r"default_handler = 'wcow'
        allow_sids = ['S-1-5-32-544']
        [handlers]
        wcow = 'npipe:////./pipe/containerd-containerd'
        hyperv = '\\.\pipe\containerd-next'
        other = 'npipe://./pipe/containerd/Other'",
    );
    let (code, shown, error) = raw(&["check", "--config", text(&files.main())]);
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "listen npipe:////./pipe/criswitch ",
        "allow_sids [\"S-1-5-32-544\"] ",
        " npipe:////./pipe/containerd-containerd",
        " npipe:////./pipe/containerd-next",
        " npipe:////./pipe/containerd/Other",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let (code, shown, _) = raw(&["check", "-o", "json", "--config", text(&files.main())]);
    assert_eq!(code, Some(0));
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["listen"], "npipe:////./pipe/criswitch");
    assert_eq!(shown["files"][0], text(&files.main()));
}

#[test]
fn a_path_of_a_unix_socket_and_a_user_number_are_problems() {
    let files = main_file(
        "default_handler = 'a'\nallow_uids = [7]\n[handlers]\na = 'unix:///var/run/a.sock'\n",
    );
    let (code, _, error) = raw(&["check", "--config", text(&files.main())]);
    assert_eq!(code, Some(78));
    for part in [
        "criswitch.toml:2:1: unknown key \"allow_uids\"; try \"allow_sids\"\n",
        "criswitch.toml:4:5: \"unix:///var/run/a.sock\" is not a named pipe; ",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn a_missing_file_is_reported_with_its_path() {
    let (code, _, error) = raw(&["check", "--config", r"C:\none\criswitch.toml"]);
    assert_eq!(code, Some(78));
    let problem = r"C:\none\criswitch.toml:1:1: cannot be read: ";
    assert!(error.starts_with(problem), "{error}");
}

#[test]
fn a_runtime_class_is_for_nodes_with_windows() {
    let files = main_file("default_handler = 'a'\n[handlers]\na = '/run/a.sock'\n");
    let (code, shown, _) = raw(&["manifests", "--config", text(&files.main())]);
    assert_eq!(code, Some(0));
    let label = "scheduling:\n  nodeSelector:\n    kubernetes.io/os: windows\n";
    assert!(shown.contains(label), "{shown}");
}

#[test]
fn the_help_of_the_daemon_has_the_option_of_the_service() {
    let help = std::process::Command::new(env!("CARGO_BIN_EXE_criswitchd"))
        .arg("--help")
        .output()
        .unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(help.contains("\n  --service "), "{help}");
}

#[test]
fn an_error_without_a_daemon_names_the_service_and_the_pipe() {
    let files = main_file("listen = 'npipe:////./pipe/criswitch-absent'\n");
    let (code, _, error) = raw(&["status", "--config", text(&files.main())]);
    assert_eq!(code, Some(69));
    for part in [
        "npipe:////./pipe/criswitch-absent: cannot connect",
        "sc query criswitch",
        "`allow_sids`",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[tokio::test]
async fn discover_finds_the_pipe_of_containerd_and_check_probes_it() {
    let sim = Sim::new("containerd")
        .version("2.4.2")
        .handlers(["runhcs-wcow-process", "runhcs-wcow-hypervisor"]);
    sim.serve_on(r"\\.\pipe\containerd-containerd".as_ref());
    let found = tokio::task::spawn_blocking(|| raw(&["discover"])).await;
    let (code, shown, error) = found.unwrap();
    assert_eq!((code, error.as_str()), (Some(0), ""));
    for part in [
        "\nrunhcs-wcow-hypervisor = \"containerd\"\n",
        "\n# containerd 2.4.2, ",
        "\ncontainerd = \"npipe:////./pipe/containerd-containerd\"\n",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let files = main_file(&shown);
    let config = files.main();
    let probed = run_beside(&["check", "--probe", "--config", text(&config)]).await;
    assert_eq!(
        (probed.code, probed.stderr.as_str()),
        (0, ""),
        "{}",
        probed.stdout
    );
}

#[tokio::test]
async fn status_shows_pipes_as_the_kubelet_spells_them() {
    let node = Node::start("").await;
    let config = node.files.main();
    let arguments = ["status", "--config", text(&config)].map(str::to_owned);
    let shown =
        tokio::task::spawn_blocking(move || raw(&arguments.each_ref().map(|text| text.as_str())));
    let (code, shown, _) = shown.await.unwrap();
    assert_eq!(code, Some(0), "{shown}");
    assert!(shown.contains(" npipe:////./pipe/.tmp"), "{shown}");
    node.end().await;
}
