//! Many calls that were given up before the switch could read them cost no other call on their connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::support::{PATIENCE, Rig, Sim, frame_raw};

/// An HTTP/2 client's first words: the preface, and settings that change nothing.
const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// The error code `CANCEL`.
const CANCEL: [u8; 4] = [0, 0, 0, 8];
/// More than a probe of each container of a full node.
const GIVEN_UP: u32 = 500;

fn http2(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// An empty request to an RPC, as HPACK has it without a table: `:method`, `:scheme`, `:path`, `:authority`, `te` and
/// `content-type`.
fn call(stream: u32, path: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let headers = [
        vec![0x83, 0x86],
        [vec![0x04], text(path)].concat(),
        [vec![0x01], text("localhost")].concat(),
        [vec![0x00], text("te"), text("trailers")].concat(),
        [vec![0x0f, 0x10], text("application/grpc")].concat(),
    ];
    let headers = http2(HEADERS, END_HEADERS, stream, &headers.concat());
    let body = http2(DATA, END_STREAM, stream, &frame_raw(b""));
    [headers, body].concat()
}

/// The type and the stream of the next frame; `None` at the end.
async fn next(client: &mut UnixStream) -> Option<(u8, u32)> {
    let mut head = [0; 9];
    client.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    client.read_exact(&mut payload).await.ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some((head[3], stream))
}

#[tokio::test]
async fn a_call_goes_on_while_very_many_others_of_its_connection_are_given_up() {
    let rig = Rig::start([Sim::new("runc"), Sim::new("kata")]).await;
    let kata = rig.sim("kata");
    kata.hold("ListPodSandboxMetrics");
    let mut client = UnixStream::connect(&rig.socket).await.unwrap();
    client.write_all(GREETING).await.unwrap();
    let path = |rpc| format!("/runtime.v1.RuntimeService/{rpc}");
    let first = call(1, &path("ListPodSandboxMetrics"));
    client.write_all(&first).await.unwrap();
    kata.until(|journal| journal.held == ["ListPodSandboxMetrics"])
        .await;
    let given_up = (1..=GIVEN_UP).map(|number| {
        let stream = 2 * number + 1;
        let call = call(stream, &path("ListContainers"));
        [call, http2(RST_STREAM, 0, stream, &CANCEL)].concat()
    });
    let burst: Vec<u8> = given_up.flatten().collect();
    client.write_all(&burst).await.unwrap();
    kata.release("ListPodSandboxMetrics");
    let answered = async {
        loop {
            match next(&mut client).await.expect("the connection has ended") {
                (GOAWAY, _) => panic!("the client is told to go"),
                (HEADERS, 1) => return,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, answered).await.unwrap();
    rig.pods().await.unwrap();
}
