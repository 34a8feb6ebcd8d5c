//! What a client's bytes on its streams mean: request streams up to their head, the control stream,
//! QPACK's two (RFC 9114, section 6). Called by [`super::Http3`] with what was read. Nothing is
//! sent from here: what is wrong is a [`Fault`] of the stream or of the connection.

use quic::{ReadEnd, StreamId};

use super::frame::{self, Code, Step};
use super::{Connection, Fault, Kind, message, qpack};

/// Bytes of a control frame. Settings are some ten bytes each.
const CONTROL_BYTES_MAX: usize = 1024;
/// Unidirectional streams that a client may have open that mean nothing to us.
const UNKNOWN_STREAMS_MAX: usize = 8;

impl Connection {
    /// Bytes on a stream in one direction.
    pub(super) fn handle_incoming(&mut self, stream: StreamId, bytes: &[u8]) -> Result<(), Fault> {
        let others = self.incoming.values().filter_map(|other| other.kind).collect::<Vec<_>>();
        let unknown = self.incoming.len() - others.len();
        let Some(incoming) = self.incoming.get_mut(&stream) else { return Ok(()) };
        incoming.bytes.extend_from_slice(bytes);
        let mut rest = &incoming.bytes[..];
        let kind = match incoming.kind {
            Some(kind) => kind,
            None => {
                let Some(value) = frame::varint(&mut rest) else { return Ok(()) };
                let kind = match value {
                    0x00 => Kind::Control,
                    0x02 => Kind::Encoder,
                    0x03 => Kind::Decoder,
                    // Clients push nothing.
                    0x01 => return Err(Fault::Connection(Code::StreamCreationError)),
                    _ if unknown > UNKNOWN_STREAMS_MAX => {
                        return Err(Fault::Connection(Code::ExcessiveLoad));
                    }
                    _ => return Err(Fault::Stream(Code::StreamCreationError)),
                };
                if others.contains(&kind) {
                    return Err(Fault::Connection(Code::StreamCreationError));
                }
                incoming.kind = Some(kind);
                kind
            }
        };
        match kind {
            Kind::Control => {
                let left = control(&mut self.settings, &mut incoming.skip, rest);
                let left = left.map_err(Fault::Connection)?;
                incoming.bytes.drain(..incoming.bytes.len() - left);
            }
            Kind::Encoder => {
                // Set Dynamic Table Capacity 0 is all that may come: RFC 9204, section 4.3.
                if rest.iter().any(|byte| *byte != 0x20) {
                    return Err(Fault::Connection(Code::QpackEncoderStreamError));
                }
                incoming.bytes.clear();
            }
            Kind::Decoder => {
                let left = decoder(rest).map_err(Fault::Connection)?;
                incoming.bytes.drain(..incoming.bytes.len() - left);
            }
        }
        Ok(())
    }

    /// Bytes on a request's stream.
    pub(super) fn handle_request(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
        head_bytes_max: usize,
    ) -> Result<(), Fault> {
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        if request.head.is_some() {
            return Ok(()); // Content, or trailers.
        }
        request.bytes.extend_from_slice(bytes);
        let mut rest = &request.bytes[..];
        loop {
            let skipped = usize::try_from(request.skip).unwrap_or(usize::MAX).min(rest.len());
            rest = &rest[skipped..];
            request.skip -= skipped as u64;
            match frame::next(&mut rest, head_bytes_max) {
                Step::More => break,
                // The head is answered with 431: it is empty, as none can be.
                Step::TooLong(frame::HEADERS) => {
                    request.head = Some(Vec::new());
                    return Ok(());
                }
                Step::Frame(frame::HEADERS, section) => {
                    let lines = qpack::decode(section, head_bytes_max)
                        .map_err(|_| Fault::Connection(Code::QpackDecompressionFailed))?;
                    let head = lines.map(|lines| message::request_head(&lines)).transpose();
                    let head = head.map_err(|_| Fault::Stream(Code::MessageError))?;
                    request.head = Some(head.unwrap_or_default());
                    return Ok(());
                }
                Step::Frame(kind, _) | Step::TooLong(kind) if !is_passed_over(kind) => {
                    return Err(Fault::Connection(Code::FrameUnexpected));
                }
                Step::Frame(..) => {}
                Step::TooLong(_) => request.skip = pass_over(&mut rest),
            }
        }
        let left = rest.len();
        request.bytes.drain(..request.bytes.len() - left);
        Ok(())
    }

    /// Nothing more comes on a stream.
    pub(super) fn handle_end(&mut self, stream: StreamId, end: ReadEnd) -> Result<(), Fault> {
        if let Some(incoming) = self.incoming.remove(&stream) {
            return match incoming.kind {
                Some(_) => Err(Fault::Connection(Code::ClosedCriticalStream)),
                None => Ok(()),
            };
        }
        let Some(request) = self.requests.get(&stream) else { return Ok(()) };
        match end {
            ReadEnd::Finished if request.head.is_none() => {
                Err(Fault::Stream(Code::RequestIncomplete))
            }
            ReadEnd::Reset(_) if request.head.is_none() => {
                self.requests.remove(&stream);
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Frames that are known and not allowed on a request's stream before its head, or ever, are
/// errors; what is unknown means nothing (section 9).
const fn is_passed_over(kind: u64) -> bool {
    !matches!(
        kind,
        frame::DATA
            | frame::CANCEL_PUSH
            | frame::SETTINGS
            | frame::PUSH_PROMISE
            | frame::GOAWAY
            | frame::MAX_PUSH_ID
    ) && !frame::is_of_http2(kind)
}

/// Takes an unknown frame's head off the front; gives how long it is.
fn pass_over(rest: &mut &[u8]) -> u64 {
    frame::varint(rest).and_then(|_| frame::varint(rest)).unwrap_or(0)
}

/// The client's control stream: section 6.2.1. Gives how many bytes are left.
fn control(settings: &mut bool, skip: &mut u64, mut rest: &[u8]) -> Result<usize, Code> {
    loop {
        let skipped = usize::try_from(*skip).unwrap_or(usize::MAX).min(rest.len());
        rest = &rest[skipped..];
        *skip -= skipped as u64;
        let step = frame::next(&mut rest, CONTROL_BYTES_MAX);
        let (kind, payload) = match step {
            Step::More => return Ok(rest.len()),
            Step::Frame(kind, payload) => (kind, Some(payload)),
            Step::TooLong(kind) => (kind, None),
        };
        match (kind, payload) {
            (frame::SETTINGS, Some(payload)) if !*settings => {
                frame::check_settings(payload)?;
                *settings = true;
            }
            _ if !*settings => return Err(Code::MissingSettings),
            (frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH, Some(mut payload)) => {
                let id = frame::varint(&mut payload).filter(|_| payload.is_empty());
                id.ok_or(Code::FrameError)?;
                if kind == frame::CANCEL_PUSH {
                    return Err(Code::IdError); // Nothing was ever promised.
                }
            }
            (frame::SETTINGS | frame::DATA | frame::HEADERS | frame::PUSH_PROMISE, _) => {
                return Err(Code::FrameUnexpected);
            }
            _ if frame::is_of_http2(kind) => return Err(Code::FrameUnexpected),
            (frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH, None) => {
                return Err(Code::FrameError);
            }
            (_, Some(_)) => {}
            (_, None) => *skip = pass_over(&mut rest),
        }
    }
}

/// The client's QPACK decoder stream: only cancellations make sense where nothing was inserted (RFC
/// 9204, section 4.4). Gives how many bytes are left.
fn decoder(mut rest: &[u8]) -> Result<usize, Code> {
    while let Some(first) = rest.first() {
        if first & 0xc0 != 0x40 {
            return Err(Code::QpackDecoderStreamError);
        }
        let mut ahead = rest;
        if qpack::integer(&mut ahead, 6).is_err() {
            // Cut off, or longer than any stream's number.
            return if rest.len() < 16 {
                Ok(rest.len())
            } else {
                Err(Code::QpackDecoderStreamError)
            };
        }
        rest = ahead;
    }
    Ok(0)
}
