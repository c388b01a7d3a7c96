//! The command line itself.

use expect_test::expect;

use crate::run;

#[test]
fn help_and_version_are_answers() {
    let version = run(&["--version"]);
    assert_eq!(version.code, 0);
    assert_eq!(
        version.stdout,
        format!("criswitch {}\n", env!("CARGO_PKG_VERSION"))
    );
    let help = run(&["--help"]);
    assert_eq!((help.code, help.stderr.as_str()), (0, ""));
    expect![[r#"
        One CRI socket in front of several container runtimes: each pod runs where its
        RuntimeClass says

        Usage: criswitch <COMMAND>

        Commands:
          serve        Serve the CRI on the configuration's socket until SIGTERM or
                       SIGINT
          status       Show how the daemon is: its backends, its table, its last reload
          pods         Show which pod is where
          reload       Make the daemon read its configuration again, and show what came
                       of it
          forget       Forget a backend whose runtime is gone for good, and the pods
                       that it had
          check        Tell every problem of the configuration, or show the table as it
                       will run
          manifests    Print the RuntimeClass of each handler of the table, for kubectl
                       apply -f -
          discover     Print a configuration for the runtimes that are on this node
          routes       Show what becomes of each RPC of the CRI
          completions  Print the script that completes the command line in a shell
          man          Print this command's manual page, or write the pages of all
                       commands to a directory
          help         Print this message or the help of the given subcommand(s)

        Options:
          -h, --help     Print help
          -V, --version  Print version

        Examples:
          criswitch discover        a configuration for this node's runtimes
          criswitch check           every mistake, or the table as it will run
          criswitch check --probe   the same, and what each backend says
          criswitch check --node    the same, and what kubelet and crictl lack
          criswitch check --json    the same for programs
          criswitch serve           serve until SIGTERM, then finish calls
          criswitch reload          take up a changed configuration
          criswitch status --watch  how it is, again and again
          criswitch pods --backend old
          criswitch manifests | kubectl apply -f -
          criswitch man | man -l -
          crictl -r unix:///run/criswitch/criswitch.sock pods

        Exit codes: 0 fine, 1 failed at run time, 64 wrong usage,
        78 wrong configuration.
    "#]]
    .assert_eq(&help.stdout);
    for command in crate::shell::commands() {
        assert_eq!(run(&[&command, "--help"]).code, 0, "{command}");
    }
    for command in ["status", "pods", "reload", "check", "manifests"] {
        let help = run(&[command, "--help"]).stdout;
        assert!(help.contains("\nExit codes: 0 "), "{help}");
    }
}

#[test]
fn a_wrong_command_line_ends_with_64_and_says_why() {
    for (arguments, why) in [
        (&["srve"][..], "unrecognized subcommand 'srve'"),
        (&[], "Usage: criswitch <COMMAND>"),
        (&["check", "--jsn"], "unexpected argument '--jsn'"),
        (
            &["check", "--config"],
            "a value is required for '--config <FILE>'",
        ),
        (&["serve", "--probe"], "unexpected argument '--probe'"),
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
fn routes_shows_every_rpc_once_and_what_becomes_of_it() {
    let outcome = run(&["routes"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    assert_eq!(
        outcome.stdout.lines().count(),
        1 + criswitch::rpc::ROWS.len()
    );
    expect![[r#"
        RPC                                       GOES TO                                                     KEY            UNKNOWN ID     REPLY
        RuntimeService/Version                    the default backend                                         -              -              as it is
        RuntimeService/RunPodSandbox              the handler's backend                                       2              -              as it is
        RuntimeService/StopPodSandbox             the pod's owner                                             1              OK             as it is
        RuntimeService/RemovePodSandbox           the pod's owner                                             1              OK             as it is
        RuntimeService/PodSandboxStatus           the pod's owner                                             1              NotFound       as it is; handlers by the table's names
        RuntimeService/ListPodSandbox             all, or the filter's owner                                  1.1, 1.3       an empty list  concatenated; the last known list of a silent backend; handlers by the table's names
        RuntimeService/StreamPodSandboxes         all, or the filter's owner                                  1.1, 1.3       an empty list  interleaved; ListPodSandbox where a backend lacks it; the last known list of a silent backend; handlers by the table's names
        RuntimeService/CreateContainer            the pod's owner                                             1              NotFound       as it is
        RuntimeService/StartContainer             the container's owner                                       1              NotFound       as it is
        RuntimeService/StopContainer              the container's owner                                       1              OK             as it is
        RuntimeService/RemoveContainer            the container's owner                                       1              OK             as it is
        RuntimeService/ListContainers             all, or the filter's owner                                  1.1, 1.3, 1.4  an empty list  concatenated; the last known list of a silent backend
        RuntimeService/StreamContainers           all, or the filter's owner                                  1.1, 1.3, 1.4  an empty list  interleaved; ListContainers where a backend lacks it; the last known list of a silent backend
        RuntimeService/ContainerStatus            the container's owner                                       1              NotFound       as it is
        RuntimeService/UpdateContainerResources   the container's owner                                       1              NotFound       as it is
        RuntimeService/ReopenContainerLog         the container's owner                                       1              NotFound       as it is
        RuntimeService/ExecSync                   the container's owner                                       1              NotFound       as it is
        RuntimeService/Exec                       the container's owner                                       1              NotFound       as it is
        RuntimeService/Attach                     the container's owner                                       1              NotFound       as it is
        RuntimeService/PortForward                the pod's owner                                             1              NotFound       as it is
        RuntimeService/ContainerStats             the container's owner                                       1              NotFound       as it is
        RuntimeService/ListContainerStats         all, or the filter's owner                                  1.1, 1.2, 1.3  an empty list  concatenated; the cached stats of a silent backend, or without it
        RuntimeService/StreamContainerStats       all, or the filter's owner                                  1.1, 1.2, 1.3  an empty list  interleaved; ListContainerStats where a backend lacks it; the cached stats of a silent backend, or without it
        RuntimeService/PodSandboxStats            the pod's owner                                             1              NotFound       as it is
        RuntimeService/ListPodSandboxStats        all, or the filter's owner                                  1.1, 1.2       an empty list  concatenated; Unimplemented if a backend with pods lacks it; the cached stats of a silent backend, or without it
        RuntimeService/StreamPodSandboxStats      all, or the filter's owner                                  1.1, 1.2       an empty list  interleaved; ListPodSandboxStats where a backend lacks it; the cached stats of a silent backend, or without it
        RuntimeService/UpdateRuntimeConfig        all                                                         -              -              OK when every reachable backend has taken it
        RuntimeService/Status                     all                                                         -              -              the default backend's, with the table's handlers
        RuntimeService/CheckpointContainer        the container's owner                                       1              NotFound       as it is
        RuntimeService/GetContainerEvents         all                                                         -              -              interleaved, if every backend has it; handlers by the table's names
        RuntimeService/ListMetricDescriptors      all                                                         -              -              concatenated, the first of each name; without a backend that lacks it; the cached stats of a silent backend, or without it
        RuntimeService/ListPodSandboxMetrics      all                                                         -              -              concatenated; without a backend that lacks it; the cached stats of a silent backend, or without it; label values by the keys of ListMetricDescriptors
        RuntimeService/StreamPodSandboxMetrics    all                                                         -              -              interleaved; ListPodSandboxMetrics where a backend lacks it; the cached stats of a silent backend, or without it; label values by the keys of ListMetricDescriptors
        RuntimeService/RuntimeConfig              all                                                         -              -              the default backend's
        RuntimeService/UpdatePodSandboxResources  the pod's owner                                             1              NotFound       as it is
        RuntimeService/CheckpointPod              the pod's owner                                             1              NotFound       as it is
        RuntimeService/RestorePod                 the handler's backend                                       3              -              as it is
        ImageService/ListImages                   the handler's backend, or all                               1.1.19         -              one entry an image id; the last known list of a silent backend
        ImageService/StreamImages                 the handler's backend, or all                               1.1.19         -              interleaved; ListImages where a backend lacks it; the last known list of a silent backend
        ImageService/ImageStatus                  the handler's backend, the pod's, or all                    1.19, 1.2      -              as it is; of several, if they have the same image
        ImageService/PullImage                    the handler's backend, the pod's, or all                    1.19, 3.1.2    -              as it is; of several, the default backend's
        ImageService/RemoveImage                  the handler's backend or all; of these, those that have it  1.19           -              OK if all say OK
        ImageService/ImageFsInfo                  all                                                         -              -              concatenated, the first of each name; without a backend that lacks it; without a silent backend, unless it is the default
    "#]]
    .assert_eq(&outcome.stdout);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = crate::command(&["routes"]).stdout(writer).status().unwrap();
    assert_eq!(status.code(), Some(0));
}
