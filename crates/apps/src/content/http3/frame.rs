//! Frames and settings of HTTP/3 (RFC 9114 section 7), and its error codes (section 8.1).

use wire::quic::{read_varint, write_varint};

/// DATA.
pub(crate) const DATA: u64 = 0x00;
/// HEADERS.
pub(crate) const HEADERS: u64 = 0x01;
/// CANCEL_PUSH.
pub(crate) const CANCEL_PUSH: u64 = 0x03;
/// SETTINGS.
pub(crate) const SETTINGS: u64 = 0x04;
/// PUSH_PROMISE.
pub(crate) const PUSH_PROMISE: u64 = 0x05;
/// GOAWAY.
pub(crate) const GOAWAY: u64 = 0x07;
/// MAX_PUSH_ID.
pub(crate) const MAX_PUSH_ID: u64 = 0x0d;

/// PRIORITY_UPDATE for a request stream, and for a push (RFC 9218 section 7.2).
pub(crate) const PRIORITY_UPDATE: u64 = 0xf_0700;
pub(crate) const PRIORITY_UPDATE_PUSH: u64 = 0xf_0701;

/// Returns whether a frame type is one of HTTP/2 that is reserved in HTTP/3 (section 7.2.8).
pub(crate) const fn is_http2_frame(kind: u64) -> bool {
    matches!(kind, 0x02 | 0x06 | 0x08 | 0x09)
}

/// Error code with which a connection or a stream is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Http3ErrorCode {
    NoError = 0x0100,
    InternalError = 0x0102,
    StreamCreationError = 0x0103,
    ClosedCriticalStream = 0x0104,
    FrameUnexpected = 0x0105,
    FrameError = 0x0106,
    ExcessiveLoad = 0x0107,
    IdError = 0x0108,
    SettingsError = 0x0109,
    MissingSettings = 0x010a,
    RequestRejected = 0x010b,
    RequestCancelled = 0x010c,
    RequestIncomplete = 0x010d,
    MessageError = 0x010e,
    QpackDecompressionFailed = 0x0200,
    QpackEncoderStreamError = 0x0201,
    QpackDecoderStreamError = 0x0202,
}

/// Removes and returns a variable-length integer (RFC 9000 section 16); `None` if it is incomplete.
pub(crate) fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let (value, behind) = read_varint(rest)?;
    *rest = behind;
    Some(value)
}

/// Appends a variable-length integer below 2^62.
pub(crate) fn put_varint(out: &mut Vec<u8>, value: u64) {
    let mut bytes = [0; 8];
    let len = write_varint(value, &mut bytes).expect("identifiers and lengths are below 2^62");
    out.extend_from_slice(&bytes[..len]);
}

/// Appends a frame with its payload.
pub(crate) fn put_frame(out: &mut Vec<u8>, kind: u64, payload: &[u8]) {
    put_varint(out, kind);
    put_varint(out, payload.len() as u64);
    out.extend_from_slice(payload);
}

/// Returns the server's settings: the maximum size of field sections, and no dynamic table (the
/// default).
pub(crate) fn settings(field_section_max: u64) -> Vec<u8> {
    let mut payload = Vec::new();
    // SETTINGS_MAX_FIELD_SECTION_SIZE.
    put_varint(&mut payload, 0x06);
    put_varint(&mut payload, field_section_max);
    payload
}

/// Checks the peer's settings (section 7.2.4.1). They have no effect: there is no dynamic table,
/// and responses have few fields.
pub(crate) fn check_settings(payload: &[u8]) -> Result<(), Http3ErrorCode> {
    let (mut rest, mut seen) = (payload, Vec::new());
    while !rest.is_empty() {
        let id = take_varint(&mut rest).ok_or(Http3ErrorCode::FrameError)?;
        take_varint(&mut rest).ok_or(Http3ErrorCode::FrameError)?;
        // Reserved settings of HTTP/2, and duplicates.
        if matches!(id, 0x00 | 0x02..=0x05) || seen.contains(&id) {
            return Err(Http3ErrorCode::SettingsError);
        }
        seen.push(id);
    }
    Ok(())
}

/// Result of reading a frame.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FrameRead<'a> {
    /// More bytes are needed.
    Incomplete,
    /// The frame, of this type, is longer than `len_max`.
    TooLong(u64),
    /// A frame: type and payload.
    Frame(u64, &'a [u8]),
}

/// Removes and returns the next frame of `rest`, whose payload has at most `len_max` bytes.
pub(crate) fn take_frame<'a>(rest: &mut &'a [u8], len_max: usize) -> FrameRead<'a> {
    let mut ahead = *rest;
    let (Some(kind), Some(len)) = (take_varint(&mut ahead), take_varint(&mut ahead)) else {
        return FrameRead::Incomplete;
    };
    let Some(len) = usize::try_from(len).ok().filter(|len| *len <= len_max) else {
        return FrameRead::TooLong(kind);
    };
    let Some((payload, behind)) = ahead.split_at_checked(len) else { return FrameRead::Incomplete };
    *rest = behind;
    FrameRead::Frame(kind, payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn frames() {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, HEADERS, b"abc");
        let mut rest = &bytes[..];
        assert_eq!(take_frame(&mut rest, 3), FrameRead::Frame(HEADERS, b"abc"));
        assert_eq!(take_frame(&mut rest, 3), FrameRead::Incomplete);
        assert_eq!(take_frame(&mut &bytes[..4], 3), FrameRead::Incomplete);
        assert_eq!(take_frame(&mut &bytes[..], 2), FrameRead::TooLong(HEADERS));
    }

    #[test]
    fn peers_settings() {
        assert_eq!(check_settings(&settings(16_384)), Ok(()));
        assert_eq!(
            check_settings(&[0x06, 1, 0x06, 1]),
            Err(Http3ErrorCode::SettingsError),
            "twice"
        );
        assert_eq!(check_settings(&[0x02, 0]), Err(Http3ErrorCode::SettingsError), "of HTTP/2");
        assert_eq!(check_settings(&[0x06]), Err(Http3ErrorCode::FrameError));
    }

    proptest! {
        #[test]
        fn integers(value in 0_u64..1 << 62, cut in 0_usize..8) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(take_varint(&mut &out[..]), Some(value));
            let short = &out[..cut.min(out.len() - 1)];
            prop_assert_eq!(take_varint(&mut &short[..]), None);
        }
    }
}
