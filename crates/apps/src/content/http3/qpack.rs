//! QPACK (RFC 9204) without a dynamic table in either direction, so no field section waits for
//! another stream.
//!
//! Names and values are returned as bytes; [`super::message`] checks whether they are valid HTTP.

use httlib_huffman::DecoderSpeed;

/// An invalid field section: `QPACK_DECOMPRESSION_FAILED`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MalformedFieldSection;

/// A field line: name and value.
pub(crate) type FieldLine = (Vec<u8>, Vec<u8>);

/// Decodes a field section; `None` if names and values have more than `bytes_max` bytes.
///
/// # Errors
/// [`MalformedFieldSection`] if the encoding is invalid or refers to the dynamic table.
pub(crate) fn decode(
    section: &[u8],
    bytes_max: usize,
) -> Result<Option<Vec<FieldLine>>, MalformedFieldSection> {
    let mut rest = section;
    // Section 4.5.1: the Required Insert Count must be 0; Base does not matter then.
    if integer(&mut rest, 8)? != 0 {
        return Err(MalformedFieldSection);
    }
    integer(&mut rest, 7)?;
    let (mut lines, mut bytes) = (Vec::new(), 0);
    while let Some(&first) = rest.first() {
        let line = line(&mut rest, first)?;
        bytes += line.0.len() + line.1.len();
        if bytes > bytes_max {
            return Ok(None);
        }
        lines.push(line);
    }
    Ok(Some(lines))
}

fn line(rest: &mut &[u8], first: u8) -> Result<FieldLine, MalformedFieldSection> {
    // Section 4.5.2: indexed field line.
    if first & 0xc0 == 0xc0 {
        let (name, value) = entry(integer(rest, 6)?)?;
        return Ok((name.as_bytes().to_vec(), value.as_bytes().to_vec()));
    }
    // Section 4.5.4: literal with name reference.
    if first & 0xd0 == 0x50 {
        let (name, _) = entry(integer(rest, 4)?)?;
        return Ok((name.as_bytes().to_vec(), string(rest, 7)?));
    }
    // Section 4.5.6: literal with literal name. All other forms refer to the dynamic table.
    if first & 0xe0 == 0x20 {
        return Ok((string(rest, 3)?, string(rest, 7)?));
    }
    Err(MalformedFieldSection)
}

fn entry(index: u64) -> Result<(&'static str, &'static str), MalformedFieldSection> {
    let index = usize::try_from(index).map_err(|_| MalformedFieldSection)?;
    STATIC.get(index).copied().ok_or(MalformedFieldSection)
}

/// Decodes an integer with a prefix of `bits` bits, at most 8 (RFC 7541 section 5.1).
pub(crate) fn integer(rest: &mut &[u8], bits: u32) -> Result<u64, MalformedFieldSection> {
    let mask = u8::try_from((1_u32 << bits) - 1).unwrap_or(u8::MAX);
    let mut value = u64::from(next(rest)? & mask);
    if value < u64::from(mask) {
        return Ok(value);
    }
    let mut shift = 0;
    loop {
        let byte = next(rest)?;
        let more = u64::from(byte & 0x7f).checked_shl(shift).ok_or(MalformedFieldSection)?;
        value = value.checked_add(more).filter(|_| shift < 56).ok_or(MalformedFieldSection)?;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
        shift += 7;
    }
}

fn next(rest: &mut &[u8]) -> Result<u8, MalformedFieldSection> {
    let (&byte, behind) = rest.split_first().ok_or(MalformedFieldSection)?;
    *rest = behind;
    Ok(byte)
}

/// Decodes a string; the bit above the `bits` bits of its length means Huffman coding (RFC 7541
/// section 5.2).
fn string(rest: &mut &[u8], bits: u32) -> Result<Vec<u8>, MalformedFieldSection> {
    let huffman = rest.first().is_some_and(|byte| byte & (1 << bits) != 0);
    let len = usize::try_from(integer(rest, bits)?).map_err(|_| MalformedFieldSection)?;
    let (bytes, behind) = rest.split_at_checked(len).ok_or(MalformedFieldSection)?;
    *rest = behind;
    if !huffman {
        return Ok(bytes.to_vec());
    }
    // A code has at least five bits, so the text has at most 8/5 of the length: no decompression
    // bomb.
    let mut text = Vec::with_capacity(len * 2);
    let decoded = httlib_huffman::decode(bytes, &mut text, DecoderSpeed::FourBits);
    decoded.map_err(|_| MalformedFieldSection)?;
    // RFC 7541 section 5.2: padding is shorter than a byte, and all ones, which the decoder does
    // not check. The encoding of a text is unique, so encoding the result again must return the
    // input.
    let mut code = Vec::with_capacity(len);
    httlib_huffman::encode(&text, &mut code).map_err(|_| MalformedFieldSection)?;
    if code == bytes { Ok(text) } else { Err(MalformedFieldSection) }
}

/// Begins a section that refers to no dynamic entry.
pub(crate) fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a field line: an entry of the static table if there is one, else a literal, with a name
/// reference if possible. Upper case in `name` becomes lower case (RFC 9114 section 4.2). Huffman
/// coding is not used: it would save some twenty bytes of a response.
pub(crate) fn encode(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    let mut named = None;
    let mut next = usize::from(BY_NAME.first[bucket(name)]);
    while let Some((n, v)) = STATIC.get(next) {
        if n.as_bytes().eq_ignore_ascii_case(name) {
            if v.as_bytes() == value {
                return put_integer(out, 0xc0, 6, next);
            }
            named.get_or_insert(next);
        }
        next = usize::from(BY_NAME.next[next]);
    }
    match named {
        Some(index) => put_integer(out, 0x50, 4, index),
        None => {
            put_integer(out, 0x20, 3, name.len());
            out.extend(name.iter().map(u8::to_ascii_lowercase));
        }
    }
    put_integer(out, 0, 7, value.len());
    out.extend_from_slice(value);
}

/// Returns the list of [`BY_NAME`] for a name, from its length and first byte.
const fn bucket(name: &[u8]) -> usize {
    match name {
        [first, ..] => (name.len() * 7 + (*first | 0x20) as usize) % BUCKETS,
        [] => 0,
    }
}

/// Number of lists over which the names of the static table are distributed.
const BUCKETS: usize = 64;
/// The end of a list.
const NONE: u8 = u8::MAX;

/// Index of the static table by name: the first entry of each list, and the successor of each
/// entry.
struct StaticNameIndex {
    first: [u8; BUCKETS],
    next: [u8; STATIC.len()],
}

static BY_NAME: StaticNameIndex = by_name();

#[expect(clippy::cast_possible_truncation, reason = "there are 99 entries")]
const fn by_name() -> StaticNameIndex {
    let mut lists = StaticNameIndex { first: [NONE; BUCKETS], next: [NONE; STATIC.len()] };
    // In reverse, so that each list is in ascending order.
    let mut index = STATIC.len();
    while index > 0 {
        index -= 1;
        let bucket = bucket(STATIC[index].0.as_bytes());
        lists.next[index] = lists.first[bucket];
        lists.first[bucket] = index as u8;
    }
    lists
}

#[expect(clippy::cast_possible_truncation, reason = "seven bits, or fewer than `bits` hold")]
fn put_integer(out: &mut Vec<u8>, pattern: u8, bits: u32, value: usize) {
    let mask = (1_usize << bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    let mut rest = value - mask;
    while rest >= 0x80 {
        out.push(0x80 | (rest & 0x7f) as u8);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// The static table (RFC 9204 appendix A).
const STATIC: [(&str, &str); 99] = [
    (":authority", ""),
    (":path", "/"),
    ("age", "0"),
    ("content-disposition", ""),
    ("content-length", "0"),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("referer", ""),
    ("set-cookie", ""),
    (":method", "CONNECT"),
    (":method", "DELETE"),
    (":method", "GET"),
    (":method", "HEAD"),
    (":method", "OPTIONS"),
    (":method", "POST"),
    (":method", "PUT"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "103"),
    (":status", "200"),
    (":status", "304"),
    (":status", "404"),
    (":status", "503"),
    ("accept", "*/*"),
    ("accept", "application/dns-message"),
    ("accept-encoding", "gzip, deflate, br"),
    ("accept-ranges", "bytes"),
    ("access-control-allow-headers", "cache-control"),
    ("access-control-allow-headers", "content-type"),
    ("access-control-allow-origin", "*"),
    ("cache-control", "max-age=0"),
    ("cache-control", "max-age=2592000"),
    ("cache-control", "max-age=604800"),
    ("cache-control", "no-cache"),
    ("cache-control", "no-store"),
    ("cache-control", "public, max-age=31536000"),
    ("content-encoding", "br"),
    ("content-encoding", "gzip"),
    ("content-type", "application/dns-message"),
    ("content-type", "application/javascript"),
    ("content-type", "application/json"),
    ("content-type", "application/x-www-form-urlencoded"),
    ("content-type", "image/gif"),
    ("content-type", "image/jpeg"),
    ("content-type", "image/png"),
    ("content-type", "text/css"),
    ("content-type", "text/html; charset=utf-8"),
    ("content-type", "text/plain"),
    ("content-type", "text/plain;charset=utf-8"),
    ("range", "bytes=0-"),
    ("strict-transport-security", "max-age=31536000"),
    ("strict-transport-security", "max-age=31536000; includesubdomains"),
    ("strict-transport-security", "max-age=31536000; includesubdomains; preload"),
    ("vary", "accept-encoding"),
    ("vary", "origin"),
    ("x-content-type-options", "nosniff"),
    ("x-xss-protection", "1; mode=block"),
    (":status", "100"),
    (":status", "204"),
    (":status", "206"),
    (":status", "302"),
    (":status", "400"),
    (":status", "403"),
    (":status", "421"),
    (":status", "425"),
    (":status", "500"),
    ("accept-language", ""),
    ("access-control-allow-credentials", "FALSE"),
    ("access-control-allow-credentials", "TRUE"),
    ("access-control-allow-headers", "*"),
    ("access-control-allow-methods", "get"),
    ("access-control-allow-methods", "get, post, options"),
    ("access-control-allow-methods", "options"),
    ("access-control-expose-headers", "content-length"),
    ("access-control-request-headers", "content-type"),
    ("access-control-request-method", "get"),
    ("access-control-request-method", "post"),
    ("alt-svc", "clear"),
    ("authorization", ""),
    ("content-security-policy", "script-src 'none'; object-src 'none'; base-uri 'none'"),
    ("early-data", "1"),
    ("expect-ct", ""),
    ("forwarded", ""),
    ("if-range", ""),
    ("origin", ""),
    ("purpose", "prefetch"),
    ("server", ""),
    ("timing-allow-origin", "*"),
    ("upgrade-insecure-requests", "1"),
    ("user-agent", ""),
    ("x-forwarded-for", ""),
    ("x-frame-options", "deny"),
    ("x-frame-options", "sameorigin"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn static_entries_are_found() {
        for (index, (name, value)) in STATIC.iter().enumerate() {
            let (mut out, mut expected) = (Vec::new(), Vec::new());
            encode(&mut out, name.to_ascii_uppercase().as_bytes(), value.as_bytes());
            put_integer(&mut expected, 0xc0, 6, index);
            assert_eq!(out, expected, "{name}: {value}");
        }
        let mut out = Vec::new();
        encode(&mut out, b"Server", b"outboard");
        assert_eq!(out[..2], [0x5f, 92 - 15], "a name of the table");
    }

    #[test]
    fn sections() {
        // RFC 9204 appendix B.1: a literal with name reference.
        let section = [&[0, 0, 0x51, 0x0b][..], b"/index.html"].concat();
        let path = (b":path".to_vec(), b"/index.html".to_vec());
        assert_eq!(decode(&section, 100), Ok(Some(vec![path.clone()])));
        assert_eq!(decode(&section, 15), Ok(None), "too long");
        // RFC 7541 appendix C.4.1: the Huffman code of www.example.com.
        let code = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        let section = [&[0, 0, 0x50, 0x8c][..], &code].concat();
        let authority = (b":authority".to_vec(), b"www.example.com".to_vec());
        assert_eq!(decode(&section, 100), Ok(Some(vec![authority])));
        for refused in [&[1, 0][..], &[0, 0, 0x80], &[0, 0, 0x10], &[0, 0, 0xff, 99], &[0, 0, 0x51]]
        {
            assert_eq!(decode(refused, 100), Err(MalformedFieldSection), "{refused:?}");
        }
    }

    #[test]
    fn padding_of_huffman_codes() {
        // RFC 7541 section 5.2. The code of `a` is 00011.
        let field = |code: &[u8]| {
            let len = 0x80 | u8::try_from(code.len()).expect("it is short");
            decode(&[&[0, 0, 0x51, len], code].concat(), 100)
        };
        let is = |text: &str| Ok(Some(vec![(b":path".to_vec(), text.as_bytes().to_vec())]));
        assert_eq!(field(&[0b0001_1111]), is("a"));
        assert_eq!(field(&[0b0001_1110]), Err(MalformedFieldSection), "not all ones");
        assert_eq!(field(&[0b0001_1000]), Err(MalformedFieldSection), "zeros");
        assert_eq!(field(&[0b0001_1111, 0xff]), Err(MalformedFieldSection), "a byte too many");
        assert_eq!(
            field(&[0xff, 0xff, 0xff, 0xff]),
            Err(MalformedFieldSection),
            "the end of strings"
        );
        assert_eq!(field(&[]), is(""));
        assert_eq!(field(&[0x18, 0xc6, 0x31, 0x8c, 0x63]), is("aaaaaaaa"), "no padding");
        assert_eq!(field(&[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]), is("no-cache"));
        assert_eq!(field(&[0xff]), Err(MalformedFieldSection), "padding alone");
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(fields in proptest::collection::vec(
            ("(:status|etag|server|x-[a-z]{0,40})", "[ -~]{0,300}"), 0..8)
        ) {
            let mut out = Vec::new();
            begin(&mut out);
            for (name, value) in &fields {
                encode(&mut out, name.as_bytes(), value.as_bytes());
            }
            let lines: Vec<FieldLine> =
                fields.into_iter().map(|(n, v)| (n.into_bytes(), v.into_bytes())).collect();
            prop_assert_eq!(decode(&out, usize::MAX), Ok(Some(lines)));
        }

        #[test]
        fn total(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = decode(&bytes, 1000);
        }
    }
}
