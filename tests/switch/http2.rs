//! HTTP/2 frames as in RFC 9113, for tests that no client library can write.

use tokio::io::{AsyncRead, AsyncReadExt};

/// The connection preface of a client.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Types of frames.
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
/// Flags of frames.
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
/// Error codes of a stream.
pub const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
pub const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// A header, literal and without indexing (RFC 7541, 6.2.2).
pub fn header(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).unwrap());
        bytes.extend_from_slice(text.as_bytes());
    }
    bytes
}

/// The HEADERS frame that begins a call.
pub fn begin(stream: u32, rpc: &str) -> Vec<u8> {
    let head = [
        vec![0x83, 0x86],
        header(":path", &format!("/runtime.v1.RuntimeService/{rpc}")),
        header(":authority", "localhost"),
        header("content-type", "application/grpc"),
    ];
    encoded(HEADERS, END_HEADERS, stream, &head.concat())
}

/// The frames of a call with an empty request.
pub fn call_of(stream: u32, rpc: &str) -> Vec<u8> {
    let request = encoded(DATA, END_STREAM, stream, &[0; 5]);
    [begin(stream, rpc), request].concat()
}

pub fn encoded(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, payload].concat()
}

/// The type, stream and payload of the next frame. `None` at the end.
pub async fn next(peer: &mut (impl AsyncRead + Unpin)) -> Option<(u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    peer.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    peer.read_exact(&mut payload).await.ok()?;
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    Some((head[3], stream, payload))
}
