//! Replaces the authority in the headers of a request (RFC 7541). On a local socket the authority has no meaning:
//! clients send `localhost`, the path of the socket, or an address such as `unix:/run/criswitch.sock`. But h2 accepts
//! only a host name.

use std::ops::Range;

/// The number of bytes at the beginning of a HEADERS frame in which the authority is searched. Clients send it among
/// the first headers.
pub const SEARCHED: usize = 4 << 10;

/// Flags of a HEADERS frame.
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The bytes of a stream's priority.
const PRIORITY_BYTES: usize = 5;

/// The index of `:authority`, with an empty value, in the static table.
const AUTHORITY: usize = 1;
/// The encoded field `host` with an empty value, which has the index 38 in the static table.
const EMPTY_HOST: u8 = 0x80 | 38;
/// The name as a plain string, and Huffman-coded.
const NAME: &[u8] = b":authority";
const CODED_NAME: &[u8] = &[0xb8, 0x3b, 0x53, 0x39, 0xec, 0x32, 0x7d, 0x7f];

/// The letter that replaces each letter of an authority.
const LETTER: u8 = b'a';
/// The Huffman codes of the letters `a`, `b`, `j`, `X` and `~`, which a host name may have, and the length of each code
/// in bits.
const CODES: [(u32, u32); 5] = [(0x3, 5), (0x23, 6), (0x74, 7), (0xfc, 8), (0x1ffd, 13)];

/// How many Huffman codes have 0, 1, 2, ... bits.
const CODES_OF_LENGTH: [u32; 31] = [
    0, 0, 0, 0, 0, 10, 26, 32, 6, 0, 5, 3, 2, 6, 2, 3, 0, 0, 0, 3, 8, 13, 26, 29, 12, 4, 15, 19,
    29, 0, 4,
];
/// By length in bits: the first number that is not a code of this length, but the beginning of a longer code.
const LIMITS: [u32; 31] = limits();

#[allow(clippy::indexing_slicing, reason = "evaluated by the compiler")]
const fn limits() -> [u32; 31] {
    let mut limits = [0; 31];
    let mut length = 1;
    while length < limits.len() {
        limits[length] = limits[length - 1] * 2 + CODES_OF_LENGTH[length];
        length += 1;
    }
    limits
}

/// Replaces the authority in the payload of a HEADERS frame by the name of a host. `payload` is the whole payload, or
/// its first `SEARCHED` bytes. An authority that ends after these bytes is not replaced.
///
/// The new value has the same length, both encoded and decoded. So the dynamic tables of the client and of h2, which
/// have a limit on their decoded size, stay equal. A host name is never empty, so an empty authority that enters no
/// dynamic table is replaced by an empty field `host`.
pub fn replace_authority(payload: &mut [u8], flags: u8) {
    let Some(authority) = authority(payload, flags) else {
        return;
    };
    if authority.value.is_empty() && !authority.is_kept {
        replace_empty(payload, flags, authority.field);
    } else if let Some(value) = payload.get_mut(authority.value) {
        if authority.is_huffman {
            replace_huffman(value).unwrap_or_default();
        } else {
            value.fill(LETTER);
        }
    }
}

/// Replaces the empty authority at `field` by empty fields `host` after the last field that ends in `payload`, because
/// pseudo-header fields such as `:path` must come before all other fields.
fn replace_empty(payload: &mut [u8], flags: u8, field: Range<usize>) {
    let padding = match payload.first() {
        Some(padding) if flags & PADDED != 0 => usize::from(*padding),
        _ => 0,
    };
    let unpadded = payload.len().saturating_sub(padding);
    let mut fields = PayloadFields {
        payload: payload.get(..unpadded).unwrap_or_default(),
        at: field.end,
    };
    let mut end = field.end;
    while fields.field().is_some() {
        end = fields.at;
    }
    if let Some(moved) = payload.get_mut(field.start..end) {
        moved.rotate_left(field.len());
    }
    if let Some(last) = payload.get_mut(end - field.len()..end) {
        last.fill(EMPTY_HOST);
    }
}

/// The authority in the payload of a HEADERS frame.
fn authority(payload: &[u8], flags: u8) -> Option<HeaderField> {
    let mut fields = PayloadFields { payload, at: 0 };
    if flags & PADDED != 0 {
        // This byte is the length of the padding. The padding itself is at the end.
        fields.byte()?;
    }
    if flags & PRIORITY != 0 {
        fields.at += PRIORITY_BYTES;
    }
    loop {
        let field = fields.field()?;
        if field.is_authority {
            return Some(field);
        }
    }
}

/// A field of a payload.
struct HeaderField {
    field: Range<usize>,
    /// The value of a literal; else empty.
    value: Range<usize>,
    /// Whether the value is Huffman-coded.
    is_huffman: bool,
    /// Whether the field enters the dynamic table.
    is_kept: bool,
    is_authority: bool,
}

/// Reads the fields of a payload. Returns `None` at the end of the payload, even within a field.
struct PayloadFields<'p> {
    payload: &'p [u8],
    at: usize,
}

impl PayloadFields<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.payload.get(self.at)?;
        self.at += 1;
        Some(*byte)
    }

    fn field(&mut self) -> Option<HeaderField> {
        let begin = self.at;
        let first = self.byte()?;
        let is_kept = (0x40..0x80).contains(&first);
        let name = match first {
            // An indexed field, or an update of the table size: neither has a literal value.
            0x20..0x40 | 0x80.. => {
                let bits = if first < 0x80 { 5 } else { 7 };
                let number = self.integer(first, bits)?;
                return Some(HeaderField {
                    field: begin..self.at,
                    value: self.at..self.at,
                    is_huffman: false,
                    is_kept,
                    is_authority: first >= 0x80 && number == AUTHORITY,
                });
            }
            _ if is_kept => self.integer(first, 6)?,
            _ => self.integer(first, 4)?,
        };
        let is_authority = match name {
            0 => match self.string()? {
                (true, name) => self.payload.get(name)? == CODED_NAME,
                (false, name) => self.payload.get(name)? == NAME,
            },
            name => name == AUTHORITY,
        };
        let (is_huffman, value) = self.string()?;
        Some(HeaderField {
            field: begin..self.at,
            value,
            is_huffman,
            is_kept,
            is_authority,
        })
    }

    /// An integer that begins in the lowest `bits` of `first` (RFC 7541, 5.1). `None` if it is larger than any payload.
    fn integer(&mut self, first: u8, bits: u32) -> Option<usize> {
        let most = (1 << bits) - 1;
        let mut value = usize::from(first & most);
        if value < usize::from(most) {
            return Some(value);
        }
        for shift in [0, 7, 14] {
            let byte = self.byte()?;
            value += usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    /// Whether the next string (RFC 7541, 5.2) is Huffman-coded, and its position.
    fn string(&mut self) -> Option<(bool, Range<usize>)> {
        let first = self.byte()?;
        let length = self.integer(first, 7)?;
        let begin = self.at;
        self.at += length;
        (self.at <= self.payload.len()).then_some((first >= 0x80, begin..self.at))
    }
}

/// Replaces a Huffman-coded value by the same number of letters in the same number of bytes. Returns `None` and changes
/// nothing if the value is malformed, or if its letters have more than 13 bits on average, as in no usual address.
fn replace_huffman(value: &mut [u8]) -> Option<()> {
    let bytes = u32::try_from(value.len()).ok()?;
    let (letters, bits) = letters(value)?;
    let shortest = (bits / letters).min(8);
    // `few` letters get the code `long`; all other letters get the code `short`.
    let (short, long, few) = if bits > 8 * letters {
        (CODES[3], CODES[4], (8 * bytes - 8 * letters) / 5)
    } else {
        let code = |length: u32| CODES.get(length.checked_sub(5)? as usize).copied();
        let few = bits - shortest * letters;
        (code(shortest)?, code((shortest + 1).min(8))?, few)
    };
    let others = letters.checked_sub(few)?;
    let codes = (0..few).map(|_| long).chain((0..others).map(|_| short));
    let (mut pending, mut length, mut at) = (0_u32, 0, 0);
    // The end is padded with ones.
    for (code, bits) in codes.chain([(0xff, 7)]) {
        pending = pending << bits | code;
        length += bits;
        while length >= 8
            && let Some(byte) = value.get_mut(at)
        {
            length -= 8;
            *byte = (pending >> length) as u8;
            at += 1;
        }
    }
    Some(())
}

/// How many letters a Huffman-coded value has, and how many bits they take. `None` if it is empty or malformed.
fn letters(value: &[u8]) -> Option<(u32, u32)> {
    let (mut letters, mut all) = (0, 0);
    let (mut code, mut length) = (0_u32, 0);
    for byte in value {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            if code < *LIMITS.get(length)? {
                letters += 1;
                all += length;
                (code, length) = (0, 0);
            }
        }
    }
    let is_padded = length < 8 && code == (1 << length) - 1;
    (is_padded && letters > 0).then_some((letters, u32::try_from(all).ok()?))
}
