//! A call's end decides the level of its log line. The line of a failed change names its pod.

use criswitch_cri::codec::cri;
use tonic::{Code, Status};

use crate::calls::path;
use crate::faults::runc_and_kata;
use crate::logged::Logged;
use crate::support::{Rig, frame, pod_config};
use crate::wait::until;

/// The level and the names in every log line about a failed change of the pod "web".
const WEB: [&str; 4] = [
    "WARN",
    "namespace=\"default\"",
    "name=\"web\"",
    "uid=\"uid-of-web\"",
];

/// The only log line with these words.
#[track_caller]
fn line(logged: &Logged, words: &[&str]) -> String {
    let lines = logged.lines(words);
    assert_eq!(lines.len(), 1, "{words:?} in {}", logged.text());
    lines[0].clone()
}

/// The only WARN line with the names of the pod "web" and these words.
#[track_caller]
fn line_of_web(logged: &Logged, words: &[&str]) -> String {
    line(logged, &[&WEB, words].concat())
}

fn run_web() -> bytes::Bytes {
    frame(&cri::RunPodSandboxRequest {
        config: Some(pod_config("web")),
        runtime_handler: "kata".to_owned(),
    })
}

/// Sends RunPodSandbox and cancels the call once the backend has it.
async fn give_up(rig: &Rig, headers: &[(&str, &str)]) {
    rig.sim("kata").hold("RunPodSandbox");
    let client = (**rig).raw().await;
    let path = path("RunPodSandbox");
    let held = rig.sim("kata").until_held("RunPodSandbox");
    tokio::select! {
        _ = client.begin(&path, headers, run_web()) => panic!("no reply is sent"),
        () = held => {}
    }
}

#[tokio::test]
async fn a_failed_run_is_logged_with_pod_handler_backend_and_cause_but_without_credentials() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let cause = "pull \"https://me:hun('ter2)hunter2@registry.example/pause\": EOF, then \
        https:\\/\\/me:hunter2\\u0040host with Authorization: Bearer hunter2\nagain";
    rig.sim("kata")
        .fail("RunPodSandbox", Status::unknown(cause));
    rig.try_run("kata", "web").await.unwrap_err();
    let line = line_of_web(&logged, &["RunPodSandbox", "handler=\"kata\""]);
    let words = [
        "backend=\"kata\"",
        "code=Unknown",
        "https://[removed]@registry.example/pause",
    ];
    for words in words {
        assert!(line.contains(words), "{words} in {line}");
    }
    assert!(!logged.text().contains("hunter2"), "{}", logged.text());
}

#[tokio::test]
async fn a_rejected_handler_is_logged_by_name() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    rig.try_run("nosuch\nhandler", "web").await.unwrap_err();
    let handler = "handler=\"nosuch\\nhandler\"";
    line_of_web(
        &logged,
        &[handler, "code=InvalidArgument", "no runtime for"],
    );
}

#[tokio::test]
async fn a_failed_change_of_a_pod_or_container_is_logged_with_the_pods_name() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let (pod, container) = rig.run("kata", "web").await;
    rig.pods().await.unwrap();
    rig.containers().await.unwrap();
    let kata = rig.sim("kata");
    kata.fail("StartContainer", Status::internal("no shim"));
    kata.fail("StopPodSandbox", Status::internal("no network"));
    rig.start(&container).await.unwrap_err();
    rig.stop_pod(&pod).await.unwrap_err();
    let words = ["handler=\"kata\"", "backend=\"kata\"", "code=Internal"];
    let of = |more: [&'static str; 2]| line_of_web(&logged, &[&words[..], &more].concat());
    assert!(of(["StartContainer", "no shim"]).contains(&container));
    assert!(of(["StopPodSandbox", "no network"]).contains(&pod));
}

#[tokio::test]
async fn a_failed_creation_is_logged_with_the_pods_name_while_the_backend_is_down() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.pods().await.unwrap();
    rig.sim("kata").stop().await;
    let created = (*rig).create(&pod, "web").await;
    assert_eq!(created.unwrap_err().code(), Code::Unavailable);
    line_of_web(&logged, &["CreateContainer", "code=Unavailable", &pod]);
}

#[tokio::test]
async fn a_removal_that_finds_nothing_is_not_a_warning() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let pod = rig.run_pod("kata", "web").await;
    rig.sim("kata")
        .fail("RemovePodSandbox", Status::not_found("no such pod"));
    rig.remove_pod(&pod).await.unwrap_err();
    line(
        &logged,
        &["INFO", "RemovePodSandbox", "code=NotFound", "no such pod"],
    );
}

#[tokio::test]
async fn a_call_cancelled_by_its_client_is_not_a_warning() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    give_up(&rig, &[]).await;
    let words = ["INFO", "code=Canceled", "the client cancelled the call"];
    until(async || !logged.lines(&words).is_empty()).await;
    assert!(logged.lines(&["WARN"]).is_empty(), "{}", logged.text());
}

#[tokio::test]
async fn a_call_cancelled_by_its_client_at_the_deadline_is_a_warning() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    give_up(&rig, &[("grpc-timeout", "100m")]).await;
    until(async || !logged.lines(&[&WEB[..], &["deadline"]].concat()).is_empty()).await;
}

#[tokio::test]
async fn failing_lists_are_one_warning_with_the_cause_and_their_recovery_is_logged() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    rig.pods().await.unwrap();
    for (name, words) in [("runc", "no shim"), ("kata", "no kernel")] {
        rig.sim(name)
            .fail("ListPodSandbox", Status::internal(words));
    }
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let headers = [("traceparent", &*format!("00-{trace}-00f067aa0ba902b7-01"))];
    let lists = frame(&cri::ListPodSandboxRequest::default());
    let failed = rig.raw(&path("ListPodSandbox"), &headers, lists).await;
    assert_eq!(failed.code(), Code::Internal);
    for _ in 0..2 {
        rig.pods().await.unwrap_err();
    }
    let words = [
        "WARN",
        "call{id=",
        "rpc=\"ListPodSandbox\"",
        trace,
        "code=Internal",
        "no shim",
        "runc",
        "failed=1",
    ];
    line(&logged, &words);
    // One WARN line is about the call, and one about each of the two backends.
    assert_eq!(logged.lines(&["WARN"]).len(), 3, "{}", logged.text());
    rig.sims.iter().for_each(|sim| sim.heal("ListPodSandbox"));
    for _ in 0..2 {
        rig.pods().await.unwrap();
    }
    line(
        &logged,
        &[
            "INFO",
            "rpc=\"ListPodSandbox\"",
            "calls succeed again",
            "failed=2",
        ],
    );
}

#[tokio::test]
async fn a_list_that_a_runtime_lacks_is_not_a_warning() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    for sim in ["runc", "kata"] {
        rig.sim(sim)
            .fail("ListPodSandboxMetrics", Status::unimplemented("no"));
    }
    let lists = frame(&cri::ListPodSandboxMetricsRequest::default());
    let reply = rig.raw(&path("ListPodSandboxMetrics"), &[], lists).await;
    assert_eq!(reply.code(), Code::Unimplemented);
    assert!(logged.lines(&["WARN"]).is_empty(), "{}", logged.text());
}
