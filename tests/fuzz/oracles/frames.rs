//! gRPC's frames and timeouts, compared with a simple reader that has all bytes at once.

use std::time::Duration;

use arbitrary::Unstructured;
use bytes::{Buf, Bytes, BytesMut};
use criswitch_cri::codec::frames::{self, BadFrame, FRAME_HEADER};
use criswitch_cri::codec::protobuf;

pub fn check(data: &[u8]) {
    let mut u = Unstructured::new(data);
    let _ = checked(&mut u);
}

fn checked(u: &mut Unstructured<'_>) -> arbitrary::Result<()> {
    let limit = u.int_in_range(0..=64)?;
    let pieces: Vec<usize> = (0..4)
        .map(|_| u.int_in_range(1..=16))
        .collect::<Result<_, _>>()?;
    let stream = if u.arbitrary()? {
        well_formed(u)?
    } else {
        u.bytes(u.len())?.to_vec()
    };
    cuts(&stream, limit, &pieces);
    unframes(&stream);
    frames(&stream);
    if let Ok(text) = std::str::from_utf8(&stream) {
        assert_eq!(protobuf::timeout(text), slow_timeout(text), "{text:?}");
    }
    Ok(())
}

/// A stream of frames. A few frames are too long, cut off or compressed.
fn well_formed(u: &mut Unstructured<'_>) -> arbitrary::Result<Vec<u8>> {
    let mut stream = Vec::new();
    while !u.is_empty() {
        let length = u.int_in_range(0..=24usize)?;
        let said = length + usize::from(u.ratio(1, 16)?);
        stream.push(u8::from(u.ratio(1, 16)?));
        stream.extend(u32::try_from(said).unwrap().to_be_bytes());
        stream.extend(std::iter::repeat_n(b'm', length));
    }
    Ok(stream)
}

/// Checks that a stream in pieces of any size gives the same messages and the same end as the complete stream.
fn cuts(stream: &[u8], limit: usize, pieces: &[usize]) {
    let (wanted, end) = slow_cut(stream, limit);
    let mut found = Vec::new();
    let mut fault = None;
    let mut buffer = BytesMut::new();
    let mut rest = stream;
    for size in pieces.iter().cycle() {
        let (piece, after) = rest.split_at((*size).min(rest.len()));
        buffer.extend_from_slice(piece);
        rest = after;
        fault = take_all(&mut buffer, limit, &mut found).err();
        if fault.is_some() || rest.is_empty() {
            break;
        }
    }
    assert_eq!(found, wanted);
    match end {
        Ok(left) => {
            assert_eq!(fault, None);
            assert_eq!(buffer, left);
        }
        Err(wanted) => assert_eq!(fault, Some(wanted)),
    }
}

fn take_all(buffer: &mut BytesMut, limit: usize, found: &mut Vec<Bytes>) -> Result<(), BadFrame> {
    while let Some(message) = frames::cut(buffer, limit)? {
        found.push(message);
    }
    Ok(())
}

/// The messages of a stream, and the remaining bytes or the fault after the last message.
fn slow_cut(mut rest: &[u8], limit: usize) -> (Vec<&[u8]>, Result<&[u8], BadFrame>) {
    let mut messages = Vec::new();
    loop {
        if rest.first().is_some_and(|flag| *flag != 0) {
            return (messages, Err(BadFrame::Compressed));
        }
        let Some(mut length) = rest.get(1..FRAME_HEADER) else {
            return (messages, Ok(rest));
        };
        let length = length.get_u32() as usize;
        if length > limit {
            return (messages, Err(BadFrame::TooLong(limit)));
        }
        let Some(message) = rest.get(FRAME_HEADER..FRAME_HEADER + length) else {
            return (messages, Ok(rest));
        };
        messages.push(message);
        rest = &rest[FRAME_HEADER + length..];
    }
}

/// Checks that a body is accepted as one message exactly if a stream of the same bytes has one message and no remaining
/// bytes.
fn unframes(body: &[u8]) {
    let one = match slow_cut(body, usize::MAX) {
        (messages, Ok([])) if messages.len() == 1 => Some(messages[0]),
        _ => None,
    };
    let message = frames::unframe(&Bytes::copy_from_slice(body));
    assert_eq!(message.as_deref().ok(), one);
    let compressed = body.first().is_some_and(|flag| *flag != 0);
    assert_eq!(message == Err(BadFrame::Compressed), compressed);
}

fn frames(message: &[u8]) {
    let framed = frames::frame(message);
    assert_eq!(frames::unframe(&framed).as_deref(), Ok(message));
    assert_eq!(
        slow_cut(&framed, message.len()),
        (vec![message], Ok(&[][..]))
    );
}

fn slow_timeout(text: &str) -> Option<Duration> {
    let unit = text.chars().next_back()?;
    let digits = text.strip_suffix(unit)?;
    let nanos: u128 = match unit {
        'H' => 3_600_000_000_000,
        'M' => 60_000_000_000,
        'S' => 1_000_000_000,
        'm' => 1_000_000,
        'u' => 1_000,
        'n' => 1,
        _ => return None,
    };
    if !(1..=8).contains(&digits.len()) || !digits.chars().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let amount: u128 = digits.parse().ok()?;
    let nanos = amount * nanos;
    let (seconds, nanos) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
    Some(Duration::new(seconds as u64, nanos as u32))
}
