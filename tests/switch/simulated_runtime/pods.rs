//! Pods and containers from creation to removal.

use criswitch::codec::cri::{self, ContainerEventType as Event, ContainerState, PodSandboxState};
use tokio_stream::StreamExt;
use tonic::Code;

use super::direct::{Direct, direct};
use crate::support::{PATIENCE, Sim, container_config, pod_config};

#[tokio::test]
async fn a_pod_and_a_container_go_through_their_states() {
    let direct = direct();
    let mut runtime = direct.runtime();
    let (pod, container) = direct.run("web").await;
    assert_eq!(direct.sim.pods()[0].state(), PodSandboxState::SandboxReady);
    assert_eq!(
        direct.sim.containers()[0].state(),
        ContainerState::ContainerRunning
    );

    direct.stop_pod(&pod).await.unwrap();
    assert_eq!(
        direct.sim.pods()[0].state(),
        PodSandboxState::SandboxNotready
    );
    assert_eq!(
        direct.sim.containers()[0].state(),
        ContainerState::ContainerExited
    );
    let status = runtime.container_status(cri::ContainerStatusRequest {
        container_id: container,
        verbose: true,
    });
    let status = status.await.unwrap().into_inner();
    assert!(status.info["info"].contains(&pod));
    assert_eq!(status.status.unwrap().exit_code, 143);

    direct.remove_pod(&pod).await.unwrap();
    assert!(direct.sim.pods().is_empty());
    assert!(direct.sim.containers().is_empty());
}

#[tokio::test]
async fn ids_are_64_hex_digits_and_repeat_with_the_seed() {
    let (one, two) = (direct(), direct());
    let other = Direct::new(Sim::new("kata"));
    let id = one.run_pod("a").await.unwrap();
    assert_eq!(id.len(), 64);
    assert!(id.chars().all(|c| c.is_ascii_hexdigit()));
    assert_eq!(two.run_pod("a").await.unwrap(), id);
    assert_ne!(other.run_pod("a").await.unwrap(), id);
    assert_ne!(one.run_pod("b").await.unwrap(), id);
}

#[tokio::test]
async fn a_unique_prefix_stands_for_an_id_and_an_ambiguous_one_is_rejected() {
    let direct = Direct::new(Sim::new("runc").next_ids(["ab1", "ab2"]));
    let mut runtime = direct.runtime();
    let pod = direct.run_pod("a").await.unwrap();
    direct.run_pod("b").await.unwrap();
    let mut status = async |key: &str| {
        let pod_sandbox_id = key.to_owned();
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose: false,
        };
        runtime.pod_sandbox_status(request).await
    };
    assert_eq!(
        status("ab1").await.unwrap().into_inner().status.unwrap().id,
        pod
    );
    let ambiguous = status("ab").await.unwrap_err();
    assert_eq!(ambiguous.code(), Code::Unknown);
    assert!(
        ambiguous
            .message()
            .ends_with("Multiple IDs found with provided prefix: ab")
    );
    assert_eq!(status("cd").await.unwrap_err().code(), Code::NotFound);
    assert_eq!(status("").await.unwrap_err().code(), Code::Unknown);
}

#[tokio::test]
async fn stop_and_remove_of_an_unknown_id_succeed_and_other_calls_are_not_found() {
    let direct = direct();
    let mut runtime = direct.runtime();
    let id = || "0123456789".to_owned();
    let pod_sandbox_id = id();
    runtime
        .stop_pod_sandbox(cri::StopPodSandboxRequest { pod_sandbox_id })
        .await
        .unwrap();
    let pod_sandbox_id = id();
    runtime
        .remove_pod_sandbox(cri::RemovePodSandboxRequest { pod_sandbox_id })
        .await
        .unwrap();
    let container_id = id();
    runtime
        .remove_container(cri::RemoveContainerRequest { container_id })
        .await
        .unwrap();
    direct.stop(&id()).await.unwrap();
    assert_eq!(
        direct.start(&id()).await.unwrap_err().code(),
        Code::NotFound
    );
    assert_eq!(
        direct.create(&id(), "a").await.unwrap_err().code(),
        Code::NotFound
    );
}

#[tokio::test]
async fn a_name_is_reserved_until_its_holder_is_removed() {
    let direct = direct();
    let (pod, container) = direct.run("web").await;
    let refused = direct.run_pod("web").await.unwrap_err();
    assert!(
        refused
            .message()
            .ends_with(&format!("is reserved for \"{pod}\""))
    );
    let refused = direct.create(&pod, "web").await.unwrap_err();
    assert!(
        refused
            .message()
            .ends_with(&format!("is reserved for \"{container}\""))
    );

    direct.remove(&container).await.unwrap();
    direct.create(&pod, "web").await.unwrap();
    direct.remove_pod(&pod).await.unwrap();
    direct.run_pod("web").await.unwrap();
}

#[tokio::test]
async fn an_unknown_handler_is_rejected_and_the_empty_one_is_the_first() {
    let direct = Direct::new(Sim::new("containerd").handlers(["runc", "crun"]));
    let mut runtime = direct.runtime();
    let mut run = async |name: &str, handler: &str| {
        let request = cri::RunPodSandboxRequest {
            config: Some(pod_config(name)),
            runtime_handler: handler.to_owned(),
        };
        runtime.run_pod_sandbox(request).await
    };
    run("a", "").await.unwrap();
    run("b", "crun").await.unwrap();
    let refused = run("c", "kata").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unknown);
    assert!(
        refused
            .message()
            .ends_with("no runtime for \"kata\" is configured")
    );
    let handlers: Vec<_> = direct
        .sim
        .pods()
        .into_iter()
        .map(|p| p.runtime_handler)
        .collect();
    assert_eq!(handlers, ["runc", "crun"]);
}

#[tokio::test]
async fn a_container_needs_its_image_and_a_ready_pod() {
    let direct = direct();
    let mut runtime = direct.runtime();
    let pod = direct.run_pod("web").await.unwrap();
    let refused = runtime.create_container(cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(container_config("c", "nginx")),
        sandbox_config: None,
    });
    assert_eq!(refused.await.unwrap_err().code(), Code::NotFound);

    let container = direct.create(&pod, "c").await.unwrap();
    direct.stop_pod(&pod).await.unwrap();
    let refused = direct.start(&container).await.unwrap_err();
    assert!(refused.message().ends_with("is not running"));
}

#[tokio::test]
async fn exec_returns_the_command_and_streaming_calls_return_a_url() {
    let direct = direct();
    let mut runtime = direct.runtime();
    let (pod, container) = direct.run("web").await;
    let exec = runtime.exec_sync(cri::ExecSyncRequest {
        container_id: container[..6].to_owned(),
        cmd: vec!["uname".to_owned(), "-a".to_owned()],
        timeout: 1,
    });
    assert_eq!(exec.await.unwrap().into_inner().stdout, b"uname -a\n");

    let request = cri::AttachRequest {
        container_id: container.clone(),
        ..Default::default()
    };
    let one = runtime
        .attach(request.clone())
        .await
        .unwrap()
        .into_inner()
        .url;
    let two = runtime.attach(request).await.unwrap().into_inner().url;
    assert!(
        one.starts_with("http://127.0.0.1:10010/runc/attach/"),
        "{one}"
    );
    assert_ne!(one, two, "a token serves once");
    let request = cri::PortForwardRequest {
        pod_sandbox_id: pod,
        port: vec![80],
    };
    let url = runtime
        .port_forward(request)
        .await
        .unwrap()
        .into_inner()
        .url;
    assert!(
        url.starts_with("http://127.0.0.1:10010/runc/portforward/"),
        "{url}"
    );

    direct.stop(&container).await.unwrap();
    let request = cri::ExecRequest {
        container_id: container,
        ..Default::default()
    };
    let refused = runtime.exec(request).await.unwrap_err();
    assert_eq!(refused.message(), "container is in CONTAINER_EXITED state");
}

#[tokio::test]
async fn events_report_each_change_in_order() {
    let direct = direct();
    let mut runtime = direct.runtime();
    let mut events = runtime
        .get_container_events(cri::GetEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    assert_eq!(direct.sim.listeners(), 1);
    let (pod, container) = direct.run("web").await;
    direct.sim.exit(&container, 3);
    direct.remove_pod(&pod).await.unwrap();

    let expected = [
        (&pod, Event::ContainerCreatedEvent),
        (&pod, Event::ContainerStartedEvent),
        (&container, Event::ContainerCreatedEvent),
        (&container, Event::ContainerStartedEvent),
        (&container, Event::ContainerStoppedEvent),
        (&pod, Event::ContainerStoppedEvent),
        (&container, Event::ContainerDeletedEvent),
        (&pod, Event::ContainerDeletedEvent),
    ];
    for (id, what) in expected {
        let event = tokio::time::timeout(PATIENCE, events.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        assert_eq!(
            (&event.container_id, event.container_event_type()),
            (id, what)
        );
        let gone = (id, what) == (&pod, Event::ContainerDeletedEvent);
        assert_eq!(event.pod_sandbox_status.is_none(), gone);
        if what == Event::ContainerStoppedEvent {
            assert_eq!(event.containers_statuses[0].exit_code, 3);
        }
    }
}

#[tokio::test]
async fn a_checkpoint_restores_a_pod_with_its_containers() {
    let direct = direct();
    let mut runtime = direct.runtime();
    let (pod, container) = direct.run("web").await;
    let request = cri::CheckpointContainerRequest {
        container_id: container,
        ..Default::default()
    };
    runtime.checkpoint_container(request).await.unwrap();
    let request = cri::CheckpointPodRequest {
        pod_sandbox_id: pod,
        output_path: "/tmp/web.tar".to_owned(),
        ..Default::default()
    };
    runtime.checkpoint_pod(request).await.unwrap();
    direct.sim.forget();

    let mut restore = async |path: &str| {
        let request = cri::RestorePodRequest {
            checkpoint_path: path.to_owned(),
            ..Default::default()
        };
        runtime.restore_pod(request).await
    };
    assert_eq!(
        restore("/tmp/other.tar").await.unwrap_err().code(),
        Code::NotFound
    );
    let restored = restore("/tmp/web.tar").await.unwrap().into_inner();
    assert_eq!(direct.sim.pods()[0].id, restored.pod_sandbox_id);
    assert_eq!(restored.restored_containers[0].name, "web");
    let containers = direct.sim.containers();
    assert_eq!(
        containers[0].id,
        restored.restored_containers[0].container_id
    );
    assert_eq!(containers[0].state(), ContainerState::ContainerRunning);
}
