//! Help, wrong usage and `criswitch routes`.

use expect_test::expect;

use crate::{main_file, run};

#[test]
fn the_help_of_each_command_exits_with_0() {
    let help = run(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    assert!(
        help.stdout.contains("\nExit codes:\n  0 "),
        "{}",
        help.stdout
    );
    for command in crate::shell::commands() {
        let help = run(&[&command, "--help"]);
        assert_eq!(help.code, 0, "{command}");
        let (_, codes) = help.stdout.split_once("\nExit codes:\n  0 ").unwrap();
        assert!(!codes.contains('_'), "{codes}");
        for further in codes.lines().skip(1) {
            assert!(further.starts_with("  "), "{further}");
        }
    }
}

/// `tests/run.sh` sets `CRISWITCH_COMMIT` for the build.
#[test]
fn version_shows_the_version_the_commit_the_cri_and_the_target() {
    let commit = option_env!("CRISWITCH_COMMIT");
    let target = criswitch_version::BUILD.target;
    let text = format!(
        "criswitch {} (commit {}, CRI v1 of Kubernetes 1.37, {target})\n",
        env!("CARGO_PKG_VERSION"),
        commit.unwrap_or("unknown")
    );
    assert_eq!(run(&["--version"]).stdout, text);
    assert_eq!(run(&["version"]).stdout, text);
    let shown = run(&["version", "-o", "json"]);
    assert_eq!(shown.code, 0);
    let shown: serde_json::Value = serde_json::from_str(&shown.stdout).unwrap();
    let mut expected = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "criVersion": "v1", "kubernetesVersion": "1.37",
        "target": target, "problems": [], "schema": 1,
    });
    if let Some(commit) = commit {
        expected["commit"] = commit.into();
    }
    assert_eq!(shown, expected);
    let interface = include_str!("../../proto/runtime/v1/api.proto");
    assert!(interface.starts_with(
        "// runtime.v1, the Container Runtime Interface (CRI), as of Kubernetes 1.37.\n"
    ));
}

#[test]
fn a_wrong_command_line_exits_with_64_and_the_reason() {
    for (arguments, why) in [
        (&["srve"][..], "unrecognized subcommand 'srve'"),
        (&[], "Usage: criswitch <COMMAND>"),
        (&["check", "--jsn"], "unexpected argument '--jsn'"),
        (
            &["check", "--config"],
            "a value is required for '--config <FILE>'",
        ),
        (&["pods", "--probe"], "unexpected argument '--probe'"),
        (&["routes", "x"], "unexpected argument 'x'"),
        (&["completions", "tcl"], "invalid value 'tcl' for '<SHELL>'"),
    ] {
        let outcome = run(arguments);
        assert_eq!(outcome.code, 64, "{arguments:?}");
        assert!(
            outcome.stderr.contains(why),
            "{arguments:?}: {}",
            outcome.stderr
        );
        assert_eq!(outcome.stdout, "", "{arguments:?}");
    }
}

#[test]
fn routes_shows_every_rpc_once_with_its_route() {
    let outcome = run(&["routes"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    assert_eq!(
        outcome.stdout.lines().count(),
        1 + criswitch_cri::rpc::ROWS.len()
    );
    expect![[r#"
        RPC                                       GOES TO                                                               KEY                                                      UNKNOWN ID     OPTIONAL  REPLY
        RuntimeService/Version                    the default backend                                                   -                                                        -              -         unchanged
        RuntimeService/RunPodSandbox              the handler's backend                                                 runtime_handler                                          -              -         unchanged
        RuntimeService/StopPodSandbox             the pod's owner                                                       pod_sandbox_id                                           OK             -         unchanged
        RuntimeService/RemovePodSandbox           the pod's owner                                                       pod_sandbox_id                                           OK             -         unchanged
        RuntimeService/PodSandboxStatus           the pod's owner                                                       pod_sandbox_id                                           NotFound       -         unchanged; handlers have the names of the rows
        RuntimeService/ListPodSandbox             all, or the owner of the filter's id                                  filter.id, filter.label_selector                         an empty list  -         concatenated; with cached lists; handlers have the names of the rows
        RuntimeService/StreamPodSandboxes         all, or the owner of the filter's id                                  filter.id, filter.label_selector                         an empty list  yes       concatenated; ListPodSandbox of a backend that lacks the RPC; with cached lists; handlers have the names of the rows
        RuntimeService/CreateContainer            the pod's owner                                                       pod_sandbox_id                                           NotFound       -         unchanged
        RuntimeService/StartContainer             the container's owner                                                 container_id                                             NotFound       -         unchanged
        RuntimeService/StopContainer              the container's owner                                                 container_id                                             OK             -         unchanged
        RuntimeService/RemoveContainer            the container's owner                                                 container_id                                             OK             -         unchanged
        RuntimeService/ListContainers             all, or the owner of the filter's id                                  filter.id, filter.pod_sandbox_id, filter.label_selector  an empty list  -         concatenated; with cached lists; handlers have the names of the rows
        RuntimeService/StreamContainers           all, or the owner of the filter's id                                  filter.id, filter.pod_sandbox_id, filter.label_selector  an empty list  yes       concatenated; ListContainers of a backend that lacks the RPC; with cached lists; handlers have the names of the rows
        RuntimeService/ContainerStatus            the container's owner                                                 container_id                                             NotFound       -         unchanged; handlers have the names of the rows
        RuntimeService/UpdateContainerResources   the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/ReopenContainerLog         the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/ExecSync                   the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/Exec                       the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it; a URL that begins with // gets the scheme http
        RuntimeService/Attach                     the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it; a URL that begins with // gets the scheme http
        RuntimeService/PortForward                the pod's owner                                                       pod_sandbox_id                                           NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it; a URL that begins with // gets the scheme http
        RuntimeService/ContainerStats             the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/ListContainerStats         all, or the owner of the filter's id                                  filter.id, filter.pod_sandbox_id, filter.label_selector  an empty list  -         concatenated; with cached stats
        RuntimeService/StreamContainerStats       all, or the owner of the filter's id                                  filter.id, filter.pod_sandbox_id, filter.label_selector  an empty list  yes       concatenated; ListContainerStats of a backend that lacks the RPC; with cached stats
        RuntimeService/PodSandboxStats            the pod's owner                                                       pod_sandbox_id                                           NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/ListPodSandboxStats        all, or the owner of the filter's id                                  filter.id, filter.label_selector                         an empty list  yes       concatenated; Unimplemented if a backend with pods lacks it; with cached stats
        RuntimeService/StreamPodSandboxStats      all, or the owner of the filter's id                                  filter.id, filter.label_selector                         an empty list  yes       concatenated; ListPodSandboxStats of a backend that lacks the RPC; with cached stats
        RuntimeService/UpdateRuntimeConfig        all                                                                   -                                                        -              yes       OK if every reachable backend accepts it
        RuntimeService/Status                     all                                                                   -                                                        -              -         the default backend's, with the handlers of the routing table
        RuntimeService/CheckpointContainer        the container's owner                                                 container_id                                             NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/GetContainerEvents         all                                                                   -                                                        -              yes       interleaved; Unimplemented if a backend lacks it; handlers have the names of the rows
        RuntimeService/ListMetricDescriptors      all                                                                   -                                                        -              yes       one entry per metric, with the label keys of all backends; backends that lack it are omitted; with cached stats
        RuntimeService/ListPodSandboxMetrics      all                                                                   -                                                        -              yes       concatenated; backends that lack it are omitted; with cached stats; label values are in the order of ListMetricDescriptors
        RuntimeService/StreamPodSandboxMetrics    all                                                                   -                                                        -              yes       concatenated; ListPodSandboxMetrics of a backend that lacks the RPC; with cached stats; label values are in the order of ListMetricDescriptors
        RuntimeService/RuntimeConfig              all                                                                   -                                                        -              yes       the default backend's; if it lacks the RPC, the cgroup driver of its configuration, else the first reply of another backend
        RuntimeService/UpdatePodSandboxResources  the pod's owner                                                       pod_sandbox_id                                           NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/CheckpointPod              the pod's owner                                                       pod_sandbox_id                                           NotFound       yes       unchanged; with an empty id Unimplemented if a backend that gets pods lacks it
        RuntimeService/RestorePod                 the handler's backend                                                 runtime_handler                                          -              yes       unchanged
        ImageService/ListImages                   the handler's backend, else all                                       filter.image.runtime_handler                             -              -         one entry per image id; with cached lists; handlers have the names of the rows
        ImageService/StreamImages                 the handler's backend, else all                                       filter.image.runtime_handler                             -              yes       one entry per image id; ListImages of a backend that lacks the RPC; with cached lists; handlers have the names of the rows
        ImageService/ImageStatus                  the backend of the handler or pod, else all                           image.runtime_handler, image.annotations                 -              -         unchanged; an error if several backends have different images; handlers have the names of the rows
        ImageService/PullImage                    the backend of the handler or pod, else all that a handler routes to  image.runtime_handler, sandbox_config.metadata.uid       -              -         unchanged; the default backend's if several backends are called
        ImageService/RemoveImage                  the handler's backend, else all that have the image                   image.runtime_handler                                    -              -         OK if every backend returns OK or does not have the image afterwards
        ImageService/ImageFsInfo                  all                                                                   -                                                        -              -         concatenated; duplicate entries are omitted; backends other than the default are omitted if their answers cannot be used
        ImageService/PullSecurityProfile          the backend of the handler or pod, else all that a handler routes to  image.runtime_handler, sandbox_config.metadata.uid       -              yes       unchanged; the default backend's if several backends are called
        ImageService/ListSecurityProfiles         all                                                                   -                                                        -              yes       one entry per digest, with the references of all backends; backends that lack it are omitted; an error if any other answer cannot be used
        ImageService/RemoveSecurityProfile        all that list the digest                                              -                                                        -              yes       OK if every backend that lists the profile returns OK; backends that lack it are omitted
    "#]]
    .assert_eq(&outcome.stdout);
}

#[cfg(unix)] // Windows reports a different error.
#[test]
fn a_reader_that_closes_the_pipe_is_not_a_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = crate::command(&["routes"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

#[test]
fn environment_variables_are_the_defaults_of_config_and_socket() {
    let files = main_file("listen = '/nowhere/file.sock'");
    let config = files.main();
    for (socket, arguments, expected) in [
        (None, &["status"][..], "/nowhere/file.sock"),
        (
            Some("/nowhere/variable.sock"),
            &["status"],
            "/nowhere/variable.sock",
        ),
        (
            Some("/nowhere/variable.sock"),
            &["status", "--socket", "/nowhere/option.sock"],
            "/nowhere/option.sock",
        ),
    ] {
        let mut command = crate::command(arguments);
        command.env("CRISWITCH_CONFIG", &config);
        if let Some(socket) = socket {
            command.env("CRISWITCH_SOCKET", socket);
        }
        let output = command.output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.contains(expected), "{stderr}");
    }
    let help = run(&["status", "--help"]).stdout;
    assert!(help.contains("[env: CRISWITCH_CONFIG]"), "{help}");
    assert!(help.contains("[env: CRISWITCH_SOCKET]"), "{help}");
}

#[test]
fn the_short_version_and_a_file_without_an_option_work_as_elsewhere() {
    let version = run(&["--version"]);
    assert_eq!(run(&["-v"]).stdout, version.stdout);
    assert_eq!(run(&["-V"]).stdout, version.stdout);
    let files = crate::main_file("default_handler = 'a'\n[handlers]\na = '/run/a.sock'\n");
    let main = files.main();
    let named = run(&["check", crate::text(&main)]);
    assert_eq!(named.code, 0, "{}", named.stderr);
    assert_eq!(
        named.stdout,
        run(&["check", "--config", crate::text(&main)]).stdout
    );
}
