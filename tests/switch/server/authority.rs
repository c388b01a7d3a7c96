//! The authority of a client's request: any text is accepted, in every encoding of HPACK, and the tables of the client
//! and of h2 stay equal. An empty authority is accepted in the forms in which encoders send it.

use std::collections::VecDeque;

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

use crate::http2::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, RST_STREAM, SETTINGS};
use crate::http2::{encoded, next};
use crate::support::{PATIENCE, Rig, Sim, connect};

/// The lengths in bits of Huffman's codes (RFC 7541, B). Codes of one length are in the order of their letters.
const LENGTHS: [u32; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5,
    5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6,
    6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22,
    23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22,
    21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20,
    22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19,
    21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22,
    22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];
/// The default of the maximum size of a dynamic table (RFC 9113, 6.5.2).
const TABLE: usize = 4096;
const CONTENT_TYPE: (&str, &str) = ("content-type", "application/grpc");
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

fn huffman(text: &[u8]) -> Vec<u8> {
    let mut letters: Vec<usize> = (0..256).collect();
    letters.sort_by_key(|letter| LENGTHS[*letter]);
    let (mut codes, mut code, mut last) = ([0_u64; 256], 0_u64, 0);
    for letter in letters {
        code <<= LENGTHS[letter] - last;
        last = LENGTHS[letter];
        codes[letter] = code;
        code += 1;
    }
    let mut bits: Vec<bool> = text
        .iter()
        .flat_map(|byte| {
            let (code, length) = (codes[usize::from(*byte)], LENGTHS[usize::from(*byte)]);
            (0..length).rev().map(move |bit| code >> bit & 1 == 1)
        })
        .collect();
    bits.resize(bits.len().next_multiple_of(8), true);
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit));
    bits.chunks(8).map(byte).collect()
}

/// An integer (RFC 7541, 5.1) behind the bits of `mark`.
fn integer(mark: u8, prefix: u32, value: usize) -> Vec<u8> {
    let most = (1 << prefix) - 1;
    if value < most {
        return vec![mark | u8::try_from(value).unwrap()];
    }
    let (mut bytes, mut rest) = (vec![mark | u8::try_from(most).unwrap()], value - most);
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

fn string(text: &str, coded: bool) -> Vec<u8> {
    if coded {
        let text = huffman(text.as_bytes());
        [integer(0x80, 7, text.len()), text].concat()
    } else {
        [integer(0, 7, text.len()), text.as_bytes().to_vec()].concat()
    }
}

/// The encoder of a client, with the dynamic table that h2 must have too.
struct Encoder {
    table: VecDeque<(String, String)>,
    random: fastrand::Rng,
}

impl Encoder {
    /// A field: indexed if the table has it, else a literal of a random kind.
    fn field(&mut self, name: &str, value: &str) -> Vec<u8> {
        let has = |(n, v): &(String, String)| n == name && v == value;
        if let Some(at) = self.table.iter().position(has) {
            return integer(0x80, 7, 62 + at);
        }
        // The static table has an empty authority.
        if (name, value) == (":authority", "") && self.random.bool() {
            return vec![0x81];
        }
        // The marks for: without indexing, never indexed, and incremental indexing. Encoders do not index a field that
        // a table already has.
        let marks = [(0, 4), (0x10, 4), (0x40, 6), (0x40, 6)];
        let most = if value.is_empty() { 2 } else { 4 };
        let (mark, prefix) = marks[self.random.usize(..most)];
        let index = match name {
            ":authority" if self.random.bool() => 1,
            _ => 0,
        };
        let mut bytes = integer(mark, prefix, index);
        if index == 0 {
            bytes.extend(string(name, self.random.bool()));
        }
        bytes.extend(string(value, self.random.bool()));
        if mark == 0x40 {
            self.table.push_front((name.to_owned(), value.to_owned()));
            let size = |table: &VecDeque<(String, String)>| -> usize {
                table.iter().map(|(n, v)| n.len() + v.len() + 32).sum()
            };
            while size(&self.table) > TABLE {
                self.table.pop_back();
            }
        }
        bytes
    }

    /// The frames of a call of `Version` with this authority.
    fn call(&mut self, stream: u32, authority: &str) -> Vec<u8> {
        let noise = format!("{}", self.random.u8(..20)).repeat(self.random.usize(..200));
        let mut order = [":method", ":scheme", ":path", ":authority"];
        self.random.shuffle(&mut order);
        let mut block = Vec::new();
        for name in order {
            block.push(match name {
                ":method" => vec![0x83],
                ":scheme" => vec![0x86],
                ":path" => self.field(name, "/runtime.v1.RuntimeService/Version"),
                _ => self.field(name, authority),
            });
        }
        block.push(self.field(CONTENT_TYPE.0, CONTENT_TYPE.1));
        block.push(self.field("noise", &noise));
        let (mut payload, mut flags) = (block.concat(), END_HEADERS);
        if self.random.bool() {
            flags |= PRIORITY;
            payload.splice(..0, [0, 0, 0, 0, 16]);
        }
        if self.random.bool() {
            flags |= PADDED;
            let padding = self.random.u8(..);
            payload.insert(0, padding);
            payload.resize(payload.len() + usize::from(padding), 0);
        }
        let head = encoded(HEADERS, flags, stream, &payload);
        [head, encoded(DATA, END_STREAM, stream, &[0; 5])].concat()
    }
}

fn authority(random: &mut fastrand::Rng) -> String {
    let paths = [
        "localhost",
        "localhost:50051",
        "/run/criswitch/criswitch.sock",
        "%2Frun%2Fcriswitch%2Fcriswitch.sock",
        "unix:/run/criswitch/criswitch.sock",
        "unix:///run/criswitch/criswitch.sock",
        "",
    ];
    if random.bool() {
        random.choice(paths).unwrap().to_owned()
    } else {
        let length = random.usize(1..300);
        let any = random.bool();
        let letter = |_| {
            if any {
                char::from(random.u8(b' '..=b'~'))
            } else {
                char::from(random.choice(*b"$@[]~'+|!\"()?").unwrap())
            }
        };
        (0..length).map(letter).collect()
    }
}

/// Sends `bytes` in pieces, so that criswitch reads a part of them first.
async fn in_pieces(peer: &mut (impl AsyncWrite + Unpin), bytes: &[u8], random: &mut fastrand::Rng) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(random.usize(1..=rest.len()));
        peer.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
        rest = more;
    }
}

/// Waits for the end of the call: trailers with the status OK.
async fn succeeds(peer: &mut (impl AsyncRead + Unpin), stream: u32) -> bool {
    let ended = async {
        let mut has_data = false;
        loop {
            match next(peer).await.expect("the connection has ended") {
                (GOAWAY, ..) => return false,
                (RST_STREAM, at, _) if at == stream => return false,
                (DATA, at, _) if at == stream => has_data = true,
                (HEADERS, at, _) if at == stream && has_data => return true,
                _ => {}
            }
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.unwrap()
}

#[tokio::test]
async fn a_request_may_have_any_authority() {
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.pods().await.unwrap();
    for seed in 0..20 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut encoder = Encoder {
            table: VecDeque::new(),
            random: random.fork(),
        };
        let mut peer = connect(&rig.socket).await.unwrap();
        peer.write_all(PREFACE).await.unwrap();
        peer.write_all(&encoded(SETTINGS, 0, 0, &[])).await.unwrap();
        let mut last = authority(&mut random);
        for call in 0..50 {
            if random.bool() {
                last = authority(&mut random);
            }
            let stream = 2 * call + 1;
            let frames = encoder.call(stream, &last);
            in_pieces(&mut peer, &frames, &mut random).await;
            assert!(succeeds(&mut peer, stream).await, "{seed} {call}: {last:?}");
        }
    }
}

/// Real client libraries choose the authority and its encoding themselves, so this test covers what raw frames may
/// miss.
#[tokio::test]
#[ignore = "tests/system/clients/run.sh installs the clients"]
async fn clients_in_python_and_javascript_make_calls_and_read_streams() {
    let rig = Rig::start([Sim::new("runc")]).await;
    rig.run_pod("runc", "web").await;
    let installed = std::env::var("CRISWITCH_CLIENTS").unwrap();
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/system/clients");
    let clients = [
        (format!("{installed}/bin/python"), "client.py"),
        ("node".to_owned(), "client.js"),
    ];
    for (program, script) in clients {
        for form in ["unix:", "unix://"] {
            let mut client = std::process::Command::new(&program);
            client
                .arg(format!("{scripts}/{script}"))
                .arg(format!("{form}{}", rig.socket.display()))
                .env("NODE_PATH", format!("{installed}/node_modules"));
            // Each call of the client has a time limit, so the client ends.
            let ended = tokio::task::spawn_blocking(move || client.output());
            let output = ended.await.unwrap().unwrap();
            let (shown, errors) = (output.stdout, String::from_utf8_lossy(&output.stderr));
            let shown = String::from_utf8(shown).unwrap();
            let calls: Vec<_> = shown
                .lines()
                .filter_map(|line| line.split_once(' '))
                .collect();
            let names: Vec<_> = calls.iter().map(|(name, _)| *name).collect();
            let twice = [
                "Version",
                "StreamPodSandboxes",
                "Version",
                "StreamPodSandboxes",
            ];
            assert_eq!(names, twice, "{script} {form} {errors}");
            assert!(calls.iter().all(|(_, length)| *length != "0"), "{shown}");
        }
    }
}
