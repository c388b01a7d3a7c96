//! The log lines of a call have the call's id and trace.

use criswitch_cri::codec::cri;

use crate::calls::path;
use crate::faults::{runc_and_kata, until_state};
use crate::logged::Logged;
use crate::support::{IMAGE, container_config, frame, pod_config};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

const SPAN: &str = "00f067aa0ba902b7";

/// The id of the call in a log line.
fn id(line: &str) -> &str {
    let (_, rest) = line.split_once("call{id=").unwrap();
    rest.split(' ').next().unwrap()
}

#[tokio::test]
async fn every_log_line_of_a_call_has_the_calls_own_id() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    rig.run_pod("runc", "one").await;
    rig.run_pod("runc", "two").await;
    rig.sim("kata").stop().await;
    until_state(&rig, "kata", "down").await;
    let mut runtime = rig.runtime();
    let shown = runtime.update_runtime_config(cri::UpdateRuntimeConfigRequest::default());
    shown.await.unwrap();
    let runs = logged.lines(&[
        "RunPodSandbox",
        "code=OK",
        "backend=\"runc\"",
        "handler=\"runc\"",
    ]);
    let [one, two] = runs.as_slice() else {
        panic!("{}", logged.text());
    };
    let shows = logged.lines(&["UpdateRuntimeConfig"]);
    let [kept, end] = shows.as_slice() else {
        panic!("{}", logged.text());
    };
    assert!(
        kept.contains("gets the runtime configuration when it answers again")
            && end.contains("code=OK")
    );
    assert_eq!(id(kept), id(end));
    assert!(
        id(one) != id(two) && id(two) != id(end),
        "{}",
        logged.text()
    );
}

#[tokio::test]
async fn the_lines_of_changes_of_a_pod_or_container_have_the_pods_namespace_and_name() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    rig.sim("kata").add_image(IMAGE);
    let pod = rig.run_pod("kata", "web").await;
    let create = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container_config("app", IMAGE)),
        sandbox_config: Some(pod_config("web")),
    };
    rig.raw(&path("CreateContainer"), &[], frame(&create)).await;
    let containers = rig.containers().await.unwrap();
    let container = frame(&cri::StartContainerRequest {
        container_id: containers[0].id.clone(),
    });
    for rpc in ["StartContainer", "StopContainer", "RemoveContainer"] {
        rig.raw(&path(rpc), &[], container.clone()).await;
    }
    let pod = frame(&cri::StopPodSandboxRequest {
        pod_sandbox_id: pod,
    });
    for rpc in ["StopPodSandbox", "RemovePodSandbox"] {
        rig.raw(&path(rpc), &[], pod.clone()).await;
    }
    for rpc in [
        "RunPodSandbox",
        "CreateContainer",
        "StartContainer",
        "StopContainer",
        "RemoveContainer",
        "StopPodSandbox",
        "RemovePodSandbox",
    ] {
        let pod = "namespace=\"default\" name=\"web\" uid=\"uid-of-web\"";
        let lines = logged.lines(&[rpc, "call succeeded", pod]);
        assert_eq!(lines.len(), 1, "{rpc}: {}", logged.text());
    }
}

#[tokio::test]
async fn a_calls_trace_is_passed_to_its_backends_and_logged() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let parent = format!("00-{TRACE}-{SPAN}-01");
    let headers = [
        ("traceparent", parent.as_str()),
        ("tracestate", "kubelet=1"),
    ];
    let run = frame(&cri::RunPodSandboxRequest {
        config: Some(pod_config("web")),
        runtime_handler: "kata".into(),
    });
    rig.raw(&path("RunPodSandbox"), &headers, run).await;
    rig.raw(
        &path("ListPodSandbox"),
        &headers,
        frame(&cri::ListPodSandboxRequest::default()),
    )
    .await;
    let sent = |sim: &str, rpc: &str| {
        let calls = rig.sim(sim).calls(rpc);
        let with = |name: &str| {
            calls
                .iter()
                .filter_map(|call| call.header(name))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        (with("traceparent"), with("tracestate"))
    };
    let whole = (vec![parent.clone()], vec!["kubelet=1".to_owned()]);
    assert_eq!(sent("kata", "RunPodSandbox"), whole);
    for sim in ["runc", "kata"] {
        assert_eq!(sent(sim, "ListPodSandbox"), whole, "{sim}");
    }
    assert_eq!(
        logged
            .lines(&[
                "RunPodSandbox",
                &format!("trace_id={TRACE:?} span_id={SPAN:?}")
            ])
            .len(),
        1,
        "{}",
        logged.text()
    );
}

#[tokio::test]
async fn an_invalid_traceparent_is_passed_on_but_not_logged() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    let run = cri::RunPodSandboxRequest {
        config: Some(pod_config("web")),
        runtime_handler: "kata".into(),
    };
    let headers = [("traceparent", "00-secret-of-a-client-01")];
    rig.raw(&path("RunPodSandbox"), &headers, frame(&run)).await;
    let calls = rig.sim("kata").calls("RunPodSandbox");
    assert_eq!(
        calls[0].header("traceparent"),
        Some("00-secret-of-a-client-01")
    );
    let lines = logged.lines(&["RunPodSandbox", "code=OK"]);
    assert_eq!(lines.len(), 1);
    assert!(
        !logged.text().contains("trace_id=") && !logged.text().contains("secret-of"),
        "{}",
        logged.text()
    );
}

#[tokio::test]
async fn an_id_with_a_newline_cannot_forge_a_log_line() {
    let logged = Logged::here();
    let rig = runc_and_kata().await;
    rig.stop_pod("x\nERROR forged").await.ok();
    let lines = logged.lines(&["StopPodSandbox", "x\\nERROR forged", "code=OK"]);
    assert_eq!(lines.len(), 1, "{}", logged.text());
}
