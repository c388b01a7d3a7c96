//! Shutdown: new calls fail, calls in flight finish, and no call delays the shutdown for longer than
//! `shutdown_timeout`.

use criswitch_cri::codec::cri;
use criswitch_platform::connect::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_stream::StreamExt;
use tonic::Code;

use crate::faults::directly;
use crate::support::{Client, PATIENCE, Rig, Sim, connect, frame_raw};
use crate::wait::until;

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
/// A `shutdown_timeout` that is much longer than a test may take.
const LONG: &str = "10m";
const SHORT: &str = "100ms";

async fn ending(timeout: &str) -> Rig {
    let text = |directory: &str| {
        format!(
            "default_handler = \"runc\"\nshutdown_timeout = \"{timeout}\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             kata = \"{directory}/kata.sock\"\n"
        )
    };
    Rig::with_config([Sim::new("runc"), Sim::new("kata")], text).await
}

/// Stops criswitch, which must end in time.
async fn stop(rig: &mut Rig) {
    let stopped = tokio::time::timeout(PATIENCE, rig.stop_switch()).await;
    stopped.expect("the switch did not end");
}

async fn socket_is_gone(client: &Client) {
    until(async || !client.socket.exists()).await;
}

#[tokio::test]
async fn a_call_in_flight_at_shutdown_finishes() {
    let mut rig = ending(LONG).await;
    let (_, container) = rig.run("kata", "web").await;
    let (client, kata) = (Client::clone(&rig), rig.sim("kata").clone());
    kata.hold("StopContainer");
    let call = client.stop(&container);
    let end = async {
        kata.until_held("StopContainer").await;
        let release = async {
            socket_is_gone(&client).await;
            kata.release("StopContainer");
        };
        tokio::join!(stop(&mut rig), release)
    };
    let (stopped, _) = tokio::join!(call, end);
    stopped.unwrap();
    assert!(kata.cancelled().is_empty());
}

#[tokio::test]
async fn a_call_longer_than_the_shutdown_timeout_is_cancelled_at_the_backend_too() {
    let mut rig = ending(SHORT).await;
    let (_, container) = rig.run("kata", "web").await;
    let (client, kata) = (Client::clone(&rig), rig.sim("kata").clone());
    kata.hold("StopContainer");
    let call = client.stop(&container);
    let end = async {
        kata.until_held("StopContainer").await;
        stop(&mut rig).await;
    };
    let (stopped, ()) = tokio::join!(call, end);
    let end = stopped.unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    for part in [
        "shutting down",
        "StopContainer",
        "`shutdown_timeout` (100ms)",
    ] {
        assert!(end.message().contains(part), "{end}");
    }
    kata.until(|journal| journal.cancelled == ["StopContainer"])
        .await;
}

#[tokio::test]
async fn a_stream_without_end_does_not_delay_the_shutdown() {
    let mut rig = ending(SHORT).await;
    let mut runtime = rig.runtime();
    let mut events = runtime
        .get_container_events(cri::GetEventsRequest {})
        .await
        .unwrap()
        .into_inner();
    let kata = rig.sim("kata").clone();
    until(async || kata.listeners() == 1).await;
    stop(&mut rig).await;
    let end = events.next().await;
    assert!(end.is_none_or(|event| event.is_err()));
    until(async || kata.listeners() == 0).await;
}

#[tokio::test]
async fn a_reply_that_has_begun_ends_with_a_status_at_shutdown() {
    let text = |directory: &str| {
        format!(
            "default_handler = \"kata\"\nshutdown_timeout = \"{SHORT}\"\n[handlers]\nkata = \"{directory}/kata.sock\"\n"
        )
    };
    // criswitch forwards the stream of a single backend as the stream arrives.
    let mut rig = Rig::with_config([Sim::new("kata")], text).await;
    // The pods do not fit into one message of the stream.
    for name in ["one", "two", "three"] {
        let pod = directly(rig.sim("kata")).run_pod("", name).await;
        pod.unwrap();
    }
    rig.sim("kata").stall_streams();
    let request = cri::StreamPodSandboxesRequest::default();
    let mut pods = rig
        .runtime()
        .stream_pod_sandboxes(request)
        .await
        .unwrap()
        .into_inner();
    stop(&mut rig).await;
    let end = async {
        loop {
            if let Err(end) = pods.next().await.expect("no status") {
                return end;
            }
        }
    };
    let end = tokio::time::timeout(PATIENCE, end).await.unwrap();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("shutting down"), "{end}");
}

/// The preface of HTTP/2, and settings that change nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// The types of the frames received, up to the wanted one or the end.
async fn frames(stream: &mut Stream, wanted: u8) -> Vec<u8> {
    let mut types = Vec::new();
    let mut head = [0; 9];
    while !types.contains(&wanted) && stream.read_exact(&mut head).await.is_ok() {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        stream.read_exact(&mut payload).await.unwrap();
        types.push(head[3]);
    }
    types
}

#[tokio::test]
async fn a_client_accepted_just_before_the_shutdown_receives_goaway() {
    let mut rig = ending(LONG).await;
    let mut client = connect(&rig.socket).await.unwrap();
    // criswitch accepts connections in their order. When this call returns, criswitch has accepted the earlier client.
    rig.run_pod("kata", "web").await;
    let socket = rig.socket.clone();
    let shown = async move {
        until(async || !socket.exists()).await;
        client.write_all(GREETING).await.unwrap();
        let shown = frames(&mut client, GOAWAY).await;
        drop(client);
        shown
    };
    let (shown, ()) = tokio::join!(shown, stop(&mut rig));
    assert_eq!(shown.last(), Some(&GOAWAY));
}

#[tokio::test]
async fn a_connection_without_calls_is_closed_at_once_at_shutdown() {
    let mut rig = ending(LONG).await;
    let idle = (*rig).raw().await;
    idle.call(VERSION, &[], frame_raw(b"")).await;
    stop(&mut rig).await;
    assert!(idle.begin(VERSION, &[], frame_raw(b"")).await.is_err());
}

/// h2 ends a connection only after the client has answered a PING.
#[tokio::test]
async fn a_client_that_answers_no_ping_does_not_delay_the_shutdown() {
    let mut rig = ending(LONG).await;
    let mut client = connect(&rig.socket).await.unwrap();
    client.write_all(GREETING).await.unwrap();
    let begun = frames(&mut client, SETTINGS).await;
    assert_eq!(begun.last(), Some(&SETTINGS));
    stop(&mut rig).await;
    let end = frames(&mut client, GOAWAY).await;
    assert_eq!(end.last(), Some(&GOAWAY));
}

#[tokio::test]
async fn new_calls_fail_while_others_finish_at_shutdown() {
    let mut rig = ending(LONG).await;
    let (_, container) = rig.run("kata", "web").await;
    let (client, kata) = (Client::clone(&rig), rig.sim("kata").clone());
    let raw = client.raw().await;
    kata.hold("StopContainer");
    let request = cri::StopContainerRequest {
        container_id: container,
        timeout: 0,
    };
    let path = "/runtime.v1.RuntimeService/StopContainer";
    let call = raw.call(path, &[], crate::support::frame(&request));
    let end = async {
        kata.until_held("StopContainer").await;
        let newcomers = async {
            socket_is_gone(&client).await;
            assert!(connect(&client.socket).await.is_err());
            // The open connection may not have received GOAWAY yet, so repeat the call until it fails.
            until(async || raw.begin(VERSION, &[], frame_raw(b"")).await.is_err()).await;
            kata.release("StopContainer");
        };
        tokio::join!(stop(&mut rig), newcomers)
    };
    let (reply, _) = tokio::join!(call, end);
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
}

#[tokio::test]
async fn a_client_that_sends_nothing_does_not_delay_the_shutdown() {
    let mut rig = ending(LONG).await;
    let client = connect(&rig.socket).await.unwrap();
    rig.runtime()
        .version(cri::VersionRequest::default())
        .await
        .unwrap();
    stop(&mut rig).await;
    drop(client);
}

#[tokio::test]
async fn streams_of_events_end_with_a_status_at_once_at_shutdown() {
    let mut rig = ending(LONG).await;
    let request = cri::GetEventsRequest {};
    let mut events = rig
        .runtime()
        .get_container_events(request)
        .await
        .unwrap()
        .into_inner();
    stop(&mut rig).await;
    let end = events.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("shutting down"), "{end}");
}
