//! The switch's end: no new calls, those in flight finish, and none holds it up for longer than `drain`.

use tokio_stream::StreamExt;
use tonic::Code;

use crate::support::{Client, Journal, PATIENCE, Rig, Sim, frame_raw};
use crate::wait::until;
use criswitch::cri;

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
/// Much longer than a test may take: nothing may wait for its end.
const LONG: &str = "10m";
const SHORT: &str = "100ms";

async fn draining(drain: &str) -> Rig {
    let text = |directory: &str| {
        format!(
            "default = \"runc\"\ndrain = \"{drain}\"\n[handlers]\nrunc = \"{directory}/runc.sock\"\n\
             kata = \"{directory}/kata.sock\"\n"
        )
    };
    Rig::with_config([Sim::new("runc"), Sim::new("kata")], text).await
}

fn stop_is_held(journal: &Journal) -> bool {
    journal.held == ["StopContainer"]
}

/// The end of the switch, which must come.
async fn stop(rig: &mut Rig) {
    let stopped = tokio::time::timeout(PATIENCE, rig.stop_switch()).await;
    stopped.expect("the switch did not end");
}

async fn socket_is_gone(client: &Client) {
    until(async || !client.socket.exists()).await;
}

#[tokio::test]
async fn a_call_in_flight_finishes() {
    let mut rig = draining(LONG).await;
    let (_, container) = rig.run("kata", "web").await;
    let (client, kata) = (Client::clone(&rig), rig.sim("kata").clone());
    kata.hold("StopContainer");
    let call = client.stop(&container);
    let end = async {
        kata.until(stop_is_held).await;
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
async fn a_call_that_takes_longer_than_the_drain_is_cut_at_the_backend_too() {
    let mut rig = draining(SHORT).await;
    let (_, container) = rig.run("kata", "web").await;
    let (client, kata) = (Client::clone(&rig), rig.sim("kata").clone());
    kata.hold("StopContainer");
    let call = client.stop(&container);
    let end = async {
        kata.until(stop_is_held).await;
        stop(&mut rig).await;
    };
    let (stopped, ()) = tokio::join!(call, end);
    stopped.unwrap_err();
    kata.until(|journal| journal.cancelled == ["StopContainer"])
        .await;
}

#[tokio::test]
async fn a_stream_without_end_does_not_hold_it_up() {
    let mut rig = draining(SHORT).await;
    let mut runtime = rig.runtime();
    let events = runtime.get_container_events(cri::GetEventsRequest {}).await;
    let mut events = events.unwrap().into_inner();
    let kata = rig.sim("kata").clone();
    until(async || kata.listeners() == 1).await;
    stop(&mut rig).await;
    let end = events.next().await;
    assert!(end.is_none_or(|event| event.is_err()));
    until(async || kata.listeners() == 0).await;
}

#[tokio::test]
async fn a_connection_without_calls_is_closed_at_once() {
    let mut rig = draining(LONG).await;
    let idle = (*rig).raw().await;
    idle.call(VERSION, &[], frame_raw(b"")).await;
    stop(&mut rig).await;
    assert!(idle.begin(VERSION, &[], frame_raw(b"")).await.is_err());
}

#[tokio::test]
async fn new_calls_are_refused_while_others_finish() {
    let mut rig = draining(LONG).await;
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
        kata.until(stop_is_held).await;
        let newcomers = async {
            socket_is_gone(&client).await;
            assert!(
                tokio::net::UnixStream::connect(&client.socket)
                    .await
                    .is_err()
            );
            // GOAWAY may still be on its way to the connection that is open.
            until(async || raw.begin(VERSION, &[], frame_raw(b"")).await.is_err()).await;
            kata.release("StopContainer");
        };
        tokio::join!(stop(&mut rig), newcomers)
    };
    let (reply, _) = tokio::join!(call, end);
    assert_eq!(reply.code(), Code::Ok, "{}", reply.text());
}

#[tokio::test]
async fn a_client_that_says_nothing_does_not_hold_up_the_end() {
    let mut rig = draining(LONG).await;
    let client = tokio::net::UnixStream::connect(&rig.socket).await.unwrap();
    rig.runtime()
        .version(cri::VersionRequest::default())
        .await
        .unwrap();
    stop(&mut rig).await;
    drop(client);
}

#[tokio::test]
async fn events_end_with_a_status_at_once() {
    let mut rig = draining(LONG).await;
    let request = cri::GetEventsRequest {};
    let events = rig.runtime().get_container_events(request).await.unwrap();
    let mut events = events.into_inner();
    stop(&mut rig).await;
    let end = events.next().await.unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(end.message().contains("shutting down"), "{end}");
}
