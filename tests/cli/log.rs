//! The formats of log lines.

use std::io::{BufRead, BufReader, PipeReader};
use std::process::Child;

use criswitch_cri::codec::cri::{ContainerStatusRequest, RunPodSandboxRequest};

use crate::processes;
use crate::reload::Node;
use crate::support::{frame, native, pod_config};
use crate::{main_file, text};

/// The value of `JOURNAL_STREAM`, which systemd sets.
#[derive(Clone, Copy)]
enum Systemd {
    Silent,
    /// The output is the journal.
    Journal,
    /// The output was the journal, and has been redirected since.
    Redirected,
}

/// The first log line of a daemon with these settings.
fn first_line(settings: &str, systemd: Systemd) -> String {
    let files = main_file("");
    let path = files.main();
    let at = |name| path.with_file_name(name);
    let (listen, runc) = (at("listen"), at("runc"));
    let table = format!("default_handler = 'runc'\n[handlers]\nrunc = {runc:?}");
    let config = format!("listen = {listen:?}\n{settings}\n{table}");
    std::fs::write(&path, native(&config)).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut serve = crate::daemon(text(&path));
    processes::with_own_state(&serve);
    serve.env_remove("JOURNAL_STREAM");
    match systemd {
        Systemd::Silent => {}
        Systemd::Journal => processes::with_journal(&mut serve, &writer, 0),
        Systemd::Redirected => processes::with_journal(&mut serve, &writer, 1),
    }
    let child = serve.stderr(writer).spawn().unwrap();
    read_line(reader, child)
}

/// Reads the first line, then ends the daemon. A daemon that logs nothing fails the test.
fn read_line(reader: PipeReader, mut child: Child) -> String {
    let (sender, line) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        BufReader::new(reader).read_line(&mut line).unwrap();
        sender.send(line).unwrap_or_default();
    });
    let line = line.recv_timeout(crate::support::PATIENCE);
    child.kill().unwrap();
    child.wait().unwrap();
    line.unwrap()
}

#[test]
fn lines_of_text_have_a_time_and_a_level_and_no_colour_in_a_pipe() {
    for (settings, systemd) in [
        ("", Systemd::Silent),
        ("", Systemd::Redirected),
        ("log.format = 'text'", Systemd::Journal),
    ] {
        let line = first_line(settings, systemd);
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.contains('T') && time.ends_with('Z'), "{line:?}");
        let rest = rest.trim_start();
        assert!(
            rest.starts_with("INFO criswitchd::serve: criswitch 0.1.0 started listen="),
            "{line:?}"
        );
        assert!(!line.contains('\u{1b}'), "{line:?}");
    }
}

#[cfg(unix)] // The journal exists on Linux only.
#[test]
fn lines_for_the_journal_begin_with_their_priority_and_have_no_time() {
    for (settings, systemd) in [
        ("log.format = 'journald'", Systemd::Silent),
        ("", Systemd::Journal),
    ] {
        let line = first_line(settings, systemd);
        assert!(
            line.starts_with("<6>criswitchd::serve: criswitch 0.1.0 started listen="),
            "{line:?}"
        );
    }
}

#[test]
fn a_line_of_json_is_an_object_with_its_fields() {
    let line = first_line("log.format = 'json'", Systemd::Journal);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["level"], "INFO");
    assert_eq!(line["message"], "criswitch 0.1.0 started");
    assert_eq!(line["target"], "criswitchd::serve");
    assert!(
        line["listen"].as_str().unwrap().ends_with("/listen"),
        "{line}"
    );
    assert!(line["timestamp"].is_string(), "{line}");
}

#[test]
fn the_start_line_has_the_counts_and_the_configuration_hash() {
    let line = first_line("log.format = 'json'", Systemd::Silent);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["socket_activated"], false);
    assert_eq!(
        (&line["handlers"], &line["backends"]),
        (&1.into(), &1.into())
    );
    let hash = line["config"].as_str().unwrap();
    assert_eq!(hash.len(), 16, "{line}");
}

/// `tests/run.sh` sets `CRISWITCH_COMMIT` for the build. Without this variable the log line has no field `commit`.
#[test]
fn the_start_line_has_the_commit_of_the_build() {
    let line = first_line("log.format = 'json'", Systemd::Silent);
    let line: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["commit"].as_str(), option_env!("CRISWITCH_COMMIT"));
}

#[tokio::test]
async fn a_line_of_json_about_a_call_has_its_message_its_trace_and_its_fields_side_by_side() {
    let node = Node::start("log.format = 'json'").await;
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let run = frame(&RunPodSandboxRequest {
        config: Some(pod_config("web")),
        runtime_handler: "nosuch".to_owned(),
    });
    let raw = node.client().raw().await;
    let path = "/runtime.v1.RuntimeService/RunPodSandbox";
    raw.call(path, &[("traceparent", parent)], run).await;
    let log = node.whole_log().await;
    let lines: Vec<serde_json::Value> = log
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert!(
        lines.iter().all(|line| line["message"].is_string()),
        "{log:#?}"
    );
    let failed = lines
        .iter()
        .find(|line| line["message"] == "call failed")
        .unwrap_or_else(|| panic!("{log:#?}"));
    for (field, value) in [
        ("level", "WARN"),
        ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"),
        ("span_id", "00f067aa0ba902b7"),
        ("rpc", "RunPodSandbox"),
        ("handler", "nosuch"),
        ("namespace", "default"),
        ("name", "web"),
        ("code", "InvalidArgument"),
    ] {
        assert_eq!(failed[field], value, "{failed}");
    }
}

#[test]
fn log_levels_can_silence_one_module_or_all_others() {
    let line = first_line("log.level = 'info,serve=off'", Systemd::Silent);
    assert!(
        !line.contains("started") && line.contains("criswitch::"),
        "{line:?}"
    );
    let line = first_line("log.level = 'off,backend=warn'", Systemd::Silent);
    assert!(line.contains(" WARN criswitch::backend"), "{line:?}");
}

#[tokio::test]
async fn a_reload_changes_the_log_level_of_a_module_and_the_next_reload_undoes_that() {
    let node = Node::start("").await;
    for level in ["info", "info,call=debug", "info,backend=debug"] {
        node.write(&format!("log.level = {level:?}"), "");
        assert_eq!(node.reload().await.code, 0);
        let of_nothing = ContainerStatusRequest::default();
        let mut client = node.client().runtime();
        client.container_status(of_nothing).await.unwrap_err();
    }
    let log = node.whole_log().await;
    let debug: Vec<_> = log.iter().filter(|line| line.contains("DEBUG")).collect();
    assert_eq!(debug.len(), 1, "{log:#?}");
    assert!(debug[0].contains("criswitch::call::log"), "{debug:?}");
    assert!(debug[0].contains("ContainerStatus"), "{debug:?}");
}

#[tokio::test]
async fn the_last_line_of_the_log_is_that_of_the_stop() {
    let log = Node::start("").await.whole_log().await;
    assert!(log.last().unwrap().ends_with("stopped"), "{log:#?}");
}
