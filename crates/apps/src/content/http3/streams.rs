//! Interprets the bytes on a client's streams: request streams, the control stream, and the two
//! QPACK streams (RFC 9114 section 6). Called by [`super::Http3`] with the bytes that were read.
//! Sends nothing: a violation is a [`Http3Fault`] of the stream or of the connection.

use quic::{Priority, StreamId, StreamReadError, VarInt};

use super::frame::{self, FrameRead, Http3ErrorCode};
use super::message::{self, TranslatedHead};
use super::qpack::{self, FieldLine};
use super::{Http3Connection, Http3Fault, UniStreamType, priority};
use crate::pattern_inspection::{ConnectionRules, PatternInspection, RequestInspection};

/// Maximum length of a control frame. A setting has some ten bytes.
const CONTROL_BYTES_MAX: usize = 1024;
/// Bytes of a request's content that are read, to compare its length with the declared one.
const CONTENT_BYTES_MAX: u64 = 64 * 1024;
/// Maximum number of a client's unidirectional streams whose type is unknown or has not arrived.
const UNKNOWN_STREAMS_MAX: usize = 8;

impl Http3Connection {
    /// Handles bytes on a unidirectional stream.
    pub(super) fn handle_incoming(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
    ) -> Result<(), Http3Fault> {
        let others = self.incoming.values().filter_map(|other| other.kind).collect::<Vec<_>>();
        let unknown = self.incoming.len() - others.len();
        let Some(incoming) = self.incoming.get_mut(&stream) else { return Ok(()) };
        incoming.bytes.extend_from_slice(bytes);
        let mut rest = &incoming.bytes[..];
        let kind = match incoming.kind {
            Some(kind) => kind,
            None => {
                let Some(value) = frame::take_varint(&mut rest) else { return Ok(()) };
                let kind = match value {
                    0x00 => UniStreamType::Control,
                    0x02 => UniStreamType::Encoder,
                    0x03 => UniStreamType::Decoder,
                    // Clients must not push.
                    0x01 => {
                        return Err(Http3Fault::Connection(Http3ErrorCode::StreamCreationError));
                    }
                    _ if unknown > UNKNOWN_STREAMS_MAX => {
                        return Err(Http3Fault::Connection(Http3ErrorCode::ExcessiveLoad));
                    }
                    _ => return Err(Http3Fault::Stream(Http3ErrorCode::StreamCreationError)),
                };
                if others.contains(&kind) {
                    return Err(Http3Fault::Connection(Http3ErrorCode::StreamCreationError));
                }
                incoming.kind = Some(kind);
                kind
            }
        };
        match kind {
            UniStreamType::Control => {
                let mut frames = Vec::new();
                let left = read_control(&mut self.settings, &mut incoming.skip, rest, &mut frames);
                let left = left.map_err(Http3Fault::Connection)?;
                incoming.bytes.drain(..incoming.bytes.len() - left);
                for frame in frames {
                    self.handle_control(frame).map_err(Http3Fault::Connection)?;
                }
            }
            UniStreamType::Encoder => {
                // RFC 9204 section 4.3: only Set Dynamic Table Capacity with 0 is allowed.
                if rest.iter().any(|byte| *byte != 0x20) {
                    return Err(Http3Fault::Connection(Http3ErrorCode::QpackEncoderStreamError));
                }
                incoming.bytes.clear();
            }
            UniStreamType::Decoder => {
                let left = read_decoder(rest).map_err(Http3Fault::Connection)?;
                incoming.bytes.drain(..incoming.bytes.len() - left);
            }
        }
        Ok(())
    }

    /// Handles bytes on a request stream.
    pub(super) fn handle_request(
        &mut self,
        stream: StreamId,
        bytes: &[u8],
        head_bytes_max: usize,
        inspection: &mut PatternInspection,
    ) -> Result<(), Http3Fault> {
        let mut inspector = RequestInspector { inspection, rules: &self.rules };
        if let Some(message) = self.answered.get_mut(&stream) {
            return message.handle(bytes, head_bytes_max, &mut inspector).map(drop);
        }
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        if let Some(head) = request.message.handle(bytes, head_bytes_max, &mut inspector)? {
            request.head = Some(head.bytes);
            // A PRIORITY_UPDATE frame overrides the Priority field (RFC 9218 section 7).
            request.priority = self.priorities.remove(&stream).or(head.priority);
        }
        Ok(())
    }

    /// Handles the end of a stream.
    pub(super) fn handle_end(
        &mut self,
        stream: StreamId,
        end: StreamReadError,
    ) -> Result<(), Http3Fault> {
        if let Some(incoming) = self.incoming.remove(&stream) {
            return match incoming.kind {
                Some(_) => Err(Http3Fault::Connection(Http3ErrorCode::ClosedCriticalStream)),
                None => Ok(()),
            };
        }
        if let Some(message) = self.answered.remove(&stream) {
            return if end == StreamReadError::Finished { message.finish() } else { Ok(()) };
        }
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        match end {
            StreamReadError::Finished => {
                request.ended = true;
                request.message.finish()
            }
            // The request is complete and gets a response; its length can no longer be compared.
            StreamReadError::Reset(_) if request.is_ready() => {
                request.ended = true;
                Ok(())
            }
            // The content will not arrive, so there is no response.
            _ => {
                self.requests.remove(&stream);
                Ok(())
            }
        }
    }

    /// Handles a frame of the client's control stream other than SETTINGS.
    fn handle_control(&mut self, frame: ControlFrame) -> Result<(), Http3ErrorCode> {
        match frame {
            // Section 5.2: the identifier must not increase.
            ControlFrame::GoAway(id) if self.goaway_received.is_some_and(|last| id > last) => {
                Err(Http3ErrorCode::IdError)
            }
            ControlFrame::GoAway(id) => {
                self.goaway_received = Some(id);
                Ok(())
            }
            // Section 7.2.7: the identifier must not decrease.
            ControlFrame::MaxPushId(id) if self.max_push_id.is_some_and(|last| id < last) => {
                Err(Http3ErrorCode::IdError)
            }
            ControlFrame::MaxPushId(id) => {
                self.max_push_id = Some(id);
                Ok(())
            }
            ControlFrame::Priority(stream, priority) => self.handle_priority(stream, priority),
        }
    }

    /// Handles a PRIORITY_UPDATE (RFC 9218 section 7.2).
    fn handle_priority(
        &mut self,
        stream: u64,
        priority: Option<Priority>,
    ) -> Result<(), Http3ErrorCode> {
        let limit = self.next_stream.saturating_add(4 * u64::from(self.streams_max));
        let id = VarInt::from_u64(stream).ok().filter(|_| stream & 3 == 0 && stream < limit);
        let id = StreamId::from(id.ok_or(Http3ErrorCode::IdError)?);
        let Some(priority) = priority else { return Ok(()) };
        match self.requests.get_mut(&id) {
            // Before the request's head has arrived the priority is kept apart, so that the head
            // cannot override it.
            Some(request) if request.head.is_some() => request.priority = Some(priority),
            None if stream < self.next_stream => self.reprioritized.push((id, priority)),
            // Streams that are not open yet: priorities are kept for as many as the client may
            // open.
            _ => {
                if self.priorities.len() > 2 * self.streams_max as usize {
                    let (next, requests) = (self.next_stream, &self.requests);
                    let is_to_come = |id: &StreamId| u64::from(*id) >= next;
                    self.priorities.retain(|id, _| is_to_come(id) || requests.contains_key(id));
                }
                self.priorities.insert(id, priority);
            }
        }
        Ok(())
    }
}

/// A frame of the control stream that has an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ControlFrame {
    GoAway(u64),
    MaxPushId(u64),
    /// Identifier of the request stream, and its priority if the value is valid.
    Priority(u64, Option<Priority>),
}

/// Parts of a request, in order (section 4.1): the part that is expected next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum RequestPart {
    #[default]
    Head,
    Content,
    /// The trailers have arrived: no known frame may follow.
    Trailers,
}

/// Remaining bytes that are read and not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SkippedBytes {
    /// Content.
    Content(u64),
    /// Payload of an unknown frame, or of fields that are too long.
    Ignored(u64),
}

impl SkippedBytes {
    const NONE: Self = Self::Ignored(0);

    /// Returns their number.
    const fn len(self) -> u64 {
        match self {
            Self::Content(len) | Self::Ignored(len) => len,
        }
    }

    /// Returns the bytes that remain after `len` of them.
    const fn after(self, len: u64) -> Self {
        match self {
            Self::Content(left) => Self::Content(left.saturating_sub(len)),
            Self::Ignored(left) => Self::Ignored(left.saturating_sub(len)),
        }
    }
}

impl Default for SkippedBytes {
    fn default() -> Self {
        Self::NONE
    }
}

/// Inspection of requests under the rules of their connection.
struct RequestInspector<'a> {
    inspection: &'a mut PatternInspection,
    rules: &'a ConnectionRules,
}

/// Reader of the frames of a request.
#[derive(Debug, Default)]
pub(super) struct RequestStreamReader {
    section: RequestPart,
    /// Bytes of an incomplete frame.
    bytes: Vec<u8>,
    skip: SkippedBytes,
    /// Length of the content that the head declares.
    declared: Option<u64>,
    /// Bytes of content in the frames so far.
    content: u64,
    /// The content of a PUT is kept in `data` rather than discarded.
    pub(super) stores: bool,
    /// The request is such a PUT.
    keeps: bool,
    /// Content that was read and not stored.
    data: Vec<u8>,
    /// Inspection of fields and content.
    inspected: RequestInspection,
}

impl RequestStreamReader {
    /// Returns whether content was declared that has not all arrived. Content that is too long is
    /// not waited for, nor is content that is stored.
    pub(super) fn lacks_content(&self) -> bool {
        if self.keeps {
            return false;
        }
        let waited_for = self.declared.filter(|bytes| *bytes <= CONTENT_BYTES_MAX);
        waited_for.is_some_and(|bytes| self.content < bytes || self.skip.len() > 0)
    }

    /// Returns whether the content is longer than is read.
    pub(super) fn is_too_long(&self) -> bool {
        !self.keeps && self.content.max(self.declared.unwrap_or(0)) > CONTENT_BYTES_MAX
    }

    /// Returns whether the content is to be stored, and not all of it was read.
    pub(super) fn lacks_stored_content(&self) -> bool {
        self.keeps && (self.skip.len() > 0 || self.declared != Some(self.content))
    }

    /// Returns whether the content is to be stored.
    pub(super) const fn keeps_content(&self) -> bool {
        self.keeps
    }

    /// Returns the length of the content that the head declares.
    pub(super) const fn declared(&self) -> Option<u64> {
        self.declared
    }

    /// Returns content to be stored, for removal.
    pub(super) const fn data(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    /// Reads bytes; returns the head if it is completed by them.
    fn handle(
        &mut self,
        bytes: &[u8],
        head_bytes_max: usize,
        inspector: &mut RequestInspector<'_>,
    ) -> Result<Option<TranslatedHead>, Http3Fault> {
        self.bytes.extend_from_slice(bytes);
        let all = core::mem::take(&mut self.bytes);
        let (mut rest, mut head) = (&all[..], None);
        loop {
            let skipped = usize::try_from(self.skip.len()).unwrap_or(usize::MAX).min(rest.len());
            let (passed, behind) = rest.split_at(skipped);
            if matches!(self.skip, SkippedBytes::Content(_)) {
                self.inspect(inspector, &[passed])?;
                if self.keeps {
                    self.data.extend_from_slice(passed);
                }
            }
            (rest, self.skip) = (behind, self.skip.after(skipped as u64));
            let mut ahead = rest;
            if frame::take_varint(&mut ahead) == Some(frame::DATA) {
                let Some(len) = frame::take_varint(&mut ahead) else { break };
                self.handle_data(len)?;
                rest = ahead;
                continue;
            }
            match frame::take_frame(&mut rest, head_bytes_max) {
                FrameRead::Incomplete => break,
                FrameRead::Frame(frame::HEADERS, section) => {
                    head = self.handle_fields(section, head_bytes_max, inspector)?.or(head);
                }
                // The empty head stands for one that is too long, which gets 431; a valid head is
                // never empty.
                FrameRead::TooLong(frame::HEADERS) if self.section == RequestPart::Head => {
                    self.section = RequestPart::Content;
                    self.skip = SkippedBytes::Ignored(skip_frame_head(&mut rest));
                    head = Some(TranslatedHead {
                        bytes: Vec::new(),
                        content_length: None,
                        priority: None,
                    });
                }
                FrameRead::TooLong(frame::HEADERS) => {
                    return Err(Http3Fault::Stream(Http3ErrorCode::MessageError));
                }
                FrameRead::Frame(kind, _) | FrameRead::TooLong(kind) if !is_ignored_frame(kind) => {
                    return Err(Http3Fault::Connection(Http3ErrorCode::FrameUnexpected));
                }
                FrameRead::Frame(..) => {}
                FrameRead::TooLong(_) => {
                    self.skip = SkippedBytes::Ignored(skip_frame_head(&mut rest));
                }
            }
        }
        self.bytes = rest.to_vec();
        Ok(head)
    }

    /// Handles the beginning of a DATA frame.
    fn handle_data(&mut self, len: u64) -> Result<(), Http3Fault> {
        if self.section != RequestPart::Content {
            return Err(Http3Fault::Connection(Http3ErrorCode::FrameUnexpected));
        }
        self.content = self.content.saturating_add(len);
        self.skip = SkippedBytes::Content(len);
        // Section 4.1.2: the content must not exceed the declared length.
        if self.declared.is_some_and(|declared| self.content > declared) {
            return Err(Http3Fault::Stream(Http3ErrorCode::MessageError));
        }
        Ok(())
    }

    fn handle_fields(
        &mut self,
        section: &[u8],
        head_bytes_max: usize,
        inspector: &mut RequestInspector<'_>,
    ) -> Result<Option<TranslatedHead>, Http3Fault> {
        if self.section == RequestPart::Trailers {
            return Err(Http3Fault::Connection(Http3ErrorCode::FrameUnexpected));
        }
        let lines = qpack::decode(section, head_bytes_max)
            .map_err(|_| Http3Fault::Connection(Http3ErrorCode::QpackDecompressionFailed))?;
        let malformed = |_| Http3Fault::Stream(Http3ErrorCode::MessageError);
        if self.section == RequestPart::Content {
            self.section = RequestPart::Trailers;
            let lines = lines.unwrap_or_default();
            message::check_trailers(&lines).map_err(malformed)?;
            lines.iter().try_for_each(|line| self.inspect_field(inspector, line))?;
            return Ok(None);
        }
        self.section = RequestPart::Content;
        let head = lines.as_deref().map(message::request_head).transpose().map_err(malformed)?;
        if let (Some(head), Some(lines)) = (&head, &lines) {
            self.inspect_head(inspector, &head.bytes, lines)?;
        }
        // A head that is too long is empty here, and gets 431.
        let head = head.unwrap_or(TranslatedHead {
            bytes: Vec::new(),
            content_length: None,
            priority: None,
        });
        self.declared = head.content_length;
        self.keeps = self.stores && head.bytes.starts_with(b"PUT ");
        Ok(Some(head))
    }

    /// Inspects a head: the equivalent of HTTP/1.1, and before its empty line the fields that it
    /// leaves out.
    fn inspect_head(
        &mut self,
        inspector: &mut RequestInspector<'_>,
        head: &[u8],
        lines: &[FieldLine],
    ) -> Result<(), Http3Fault> {
        let (fields, end) = head.split_at(head.len().saturating_sub(2));
        self.inspect(inspector, &[fields])?;
        let mut left_out = lines.iter().filter(|(name, _)| message::is_left_out(name));
        left_out.try_for_each(|line| self.inspect_field(inspector, line))?;
        self.inspect(inspector, &[end])
    }

    /// Inspects a field as it is written in HTTP/1.1.
    fn inspect_field(
        &mut self,
        inspector: &mut RequestInspector<'_>,
        (name, value): &FieldLine,
    ) -> Result<(), Http3Fault> {
        self.inspect(inspector, &[name, b": ", value, b"\r\n"])
    }

    /// Inspects the next bytes of the request.
    fn inspect(
        &mut self,
        RequestInspector { inspection, rules }: &mut RequestInspector<'_>,
        parts: &[&[u8]],
    ) -> Result<(), Http3Fault> {
        let mut admitted = true;
        for part in parts {
            admitted &= inspection.admits_request(rules, &mut self.inspected, part);
        }
        if admitted { Ok(()) } else { Err(Http3Fault::Denied) }
    }

    /// Handles the end of the client's direction of the stream.
    fn finish(&self) -> Result<(), Http3Fault> {
        if self.section == RequestPart::Head {
            return Err(Http3Fault::Stream(Http3ErrorCode::RequestIncomplete));
        }
        // Section 7.1: the last frame is incomplete.
        if self.skip.len() > 0 || !self.bytes.is_empty() {
            return Err(Http3Fault::Connection(Http3ErrorCode::FrameError));
        }
        if self.declared.is_some_and(|declared| declared != self.content) {
            return Err(Http3Fault::Stream(Http3ErrorCode::MessageError));
        }
        Ok(())
    }
}

/// Returns whether a frame is ignored on a request stream. Unknown frames are ignored (section 9);
/// known frames that are not allowed there are errors.
const fn is_ignored_frame(kind: u64) -> bool {
    !matches!(
        kind,
        frame::CANCEL_PUSH
            | frame::SETTINGS
            | frame::PUSH_PROMISE
            | frame::GOAWAY
            | frame::MAX_PUSH_ID
            | frame::PRIORITY_UPDATE
            | frame::PRIORITY_UPDATE_PUSH
    ) && !frame::is_http2_frame(kind)
}

/// Removes the head of an unknown frame; returns the length of the frame's payload.
fn skip_frame_head(rest: &mut &[u8]) -> u64 {
    frame::take_varint(rest).and_then(|_| frame::take_varint(rest)).unwrap_or(0)
}

/// Reads the client's control stream (section 6.2.1). Returns the number of bytes left over; frames
/// that have an effect are appended to `frames`.
fn read_control(
    settings: &mut bool,
    skip: &mut u64,
    mut rest: &[u8],
    frames: &mut Vec<ControlFrame>,
) -> Result<usize, Http3ErrorCode> {
    loop {
        let skipped = usize::try_from(*skip).unwrap_or(usize::MAX).min(rest.len());
        rest = &rest[skipped..];
        *skip -= skipped as u64;
        let step = frame::take_frame(&mut rest, CONTROL_BYTES_MAX);
        let (kind, payload) = match step {
            FrameRead::Incomplete => return Ok(rest.len()),
            FrameRead::Frame(kind, payload) => (kind, Some(payload)),
            FrameRead::TooLong(kind) => (kind, None),
        };
        match (kind, payload) {
            (frame::SETTINGS, Some(payload)) if !*settings => {
                frame::check_settings(payload)?;
                *settings = true;
            }
            _ if !*settings => return Err(Http3ErrorCode::MissingSettings),
            (frame::GOAWAY, Some(payload)) => frames.push(ControlFrame::GoAway(only_id(payload)?)),
            (frame::MAX_PUSH_ID, Some(payload)) => {
                frames.push(ControlFrame::MaxPushId(only_id(payload)?));
            }
            (frame::CANCEL_PUSH, Some(payload)) => {
                only_id(payload)?;
                return Err(Http3ErrorCode::IdError); // No push was ever promised.
            }
            (frame::PRIORITY_UPDATE, Some(mut payload)) => {
                let stream = frame::take_varint(&mut payload).ok_or(Http3ErrorCode::FrameError)?;
                frames.push(ControlFrame::Priority(stream, priority::parse(payload)));
            }
            (frame::PRIORITY_UPDATE_PUSH, Some(mut payload)) => {
                frame::take_varint(&mut payload).ok_or(Http3ErrorCode::FrameError)?;
                return Err(Http3ErrorCode::IdError);
            }
            (frame::SETTINGS | frame::DATA | frame::HEADERS | frame::PUSH_PROMISE, _) => {
                return Err(Http3ErrorCode::FrameUnexpected);
            }
            _ if frame::is_http2_frame(kind) => return Err(Http3ErrorCode::FrameUnexpected),
            (frame::GOAWAY | frame::MAX_PUSH_ID | frame::CANCEL_PUSH, None) => {
                return Err(Http3ErrorCode::FrameError);
            }
            (_, Some(_)) => {}
            (_, None) => *skip = skip_frame_head(&mut rest),
        }
    }
}

/// Parses a payload that consists of one integer.
fn only_id(mut payload: &[u8]) -> Result<u64, Http3ErrorCode> {
    frame::take_varint(&mut payload)
        .filter(|_| payload.is_empty())
        .ok_or(Http3ErrorCode::FrameError)
}

/// Reads the client's QPACK decoder stream. Without a dynamic table only stream cancellations are
/// valid (RFC 9204 section 4.4). Returns the number of bytes left over.
fn read_decoder(mut rest: &[u8]) -> Result<usize, Http3ErrorCode> {
    while let Some(first) = rest.first() {
        if first & 0xc0 != 0x40 {
            return Err(Http3ErrorCode::QpackDecoderStreamError);
        }
        let mut ahead = rest;
        if qpack::integer(&mut ahead, 6).is_err() {
            // Incomplete, or longer than any stream identifier.
            return if rest.len() < 16 {
                Ok(rest.len())
            } else {
                Err(Http3ErrorCode::QpackDecoderStreamError)
            };
        }
        rest = ahead;
    }
    Ok(0)
}
