//! The meaning of a client's bytes on its streams: request streams, the control stream,
//! QPACK's two (RFC 9114, section 6). Called by [`super::Http3`] with what was read. Nothing is
//! sent from here: what is wrong is a [`Fault`] of the stream or of the connection.

use quic::{Priority, ReadEnd, StreamId, VarInt};

use super::frame::{self, Code, Step};
use super::message::{self, Head};
use super::{Connection, Fault, Kind, priority, qpack};

/// Bytes of a control frame. Settings are some ten bytes each.
const CONTROL_BYTES_MAX: usize = 1024;
/// Bytes of a request's content that are read, to compare them with what was declared.
const CONTENT_BYTES_MAX: u64 = 64 * 1024;
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
                let mut frames = Vec::new();
                let left = control(&mut self.settings, &mut incoming.skip, rest, &mut frames);
                let left = left.map_err(Fault::Connection)?;
                incoming.bytes.drain(..incoming.bytes.len() - left);
                for frame in frames {
                    self.handle_control(frame).map_err(Fault::Connection)?;
                }
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
        if let Some(message) = self.answered.get_mut(&stream) {
            return message.handle(bytes, head_bytes_max).map(drop);
        }
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        if let Some(head) = request.message.handle(bytes, head_bytes_max)? {
            request.head = Some(head.bytes);
            // What the client said in a frame overrides it (RFC 9218, section 7).
            request.priority = self.priorities.remove(&stream).or(head.priority);
        }
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
        if let Some(message) = self.answered.remove(&stream) {
            return if end == ReadEnd::Finished { message.finish() } else { Ok(()) };
        }
        let Some(request) = self.requests.get_mut(&stream) else { return Ok(()) };
        match end {
            ReadEnd::Finished => {
                request.ended = true;
                request.message.finish()
            }
            // It is answered, and there is nothing to compare with what was declared.
            ReadEnd::Reset(_) if request.is_ready() => {
                request.ended = true;
                Ok(())
            }
            // Its content will not come: there is nothing to be answered.
            _ => {
                self.requests.remove(&stream);
                Ok(())
            }
        }
    }

    /// The contents of the frames of the client's control stream, beside its settings.
    fn handle_control(&mut self, frame: Control) -> Result<(), Code> {
        match frame {
            // Section 5.2: it may lower the limit that it set.
            Control::GoAway(id) if self.goaway.is_some_and(|last| id > last) => Err(Code::IdError),
            Control::GoAway(id) => {
                self.goaway = Some(id);
                Ok(())
            }
            // Section 7.2.7: and never this one.
            Control::MaxPushId(id) if self.max_push_id.is_some_and(|last| id < last) => {
                Err(Code::IdError)
            }
            Control::MaxPushId(id) => {
                self.max_push_id = Some(id);
                Ok(())
            }
            Control::Priority(stream, priority) => self.handle_priority(stream, priority),
        }
    }

    /// RFC 9218, section 7.2.
    fn handle_priority(&mut self, stream: u64, priority: Option<Priority>) -> Result<(), Code> {
        let limit = self.next.saturating_add(4 * u64::from(self.streams_max));
        let id = VarInt::from_u64(stream).ok().filter(|_| stream & 3 == 0 && stream < limit);
        let id = StreamId::from(id.ok_or(Code::IdError)?);
        let Some(priority) = priority else { return Ok(()) };
        match self.requests.get_mut(&id) {
            // Before its head is there, what that says must not override it.
            Some(request) if request.head.is_some() => request.priority = Some(priority),
            None if stream < self.next => self.reprioritised.push((id, priority)),
            // Some streams are not opened yet: as many are kept as there may be.
            _ => {
                if self.priorities.len() > 2 * self.streams_max as usize {
                    let (next, requests) = (self.next, &self.requests);
                    let is_to_come = |id: &StreamId| u64::from(*id) >= next;
                    self.priorities.retain(|id, _| is_to_come(id) || requests.contains_key(id));
                }
                self.priorities.insert(id, priority);
            }
        }
        Ok(())
    }
}

/// A frame of the control stream that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Control {
    GoAway(u64),
    MaxPushId(u64),
    /// The request's stream, and its priority if the value is one.
    Priority(u64, Option<Priority>),
}

/// The progress of reading a request (section 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Section {
    #[default]
    Head,
    Content,
    /// The fields behind content were there: no known frame may follow.
    Trailers,
}

/// The frames of a request, as they come.
#[derive(Debug, Default)]
pub(super) struct Message {
    section: Section,
    /// A frame that is not whole.
    bytes: Vec<u8>,
    /// Bytes of content, or of an unknown frame, that are passed over.
    skip: u64,
    /// Bytes of content that the head declares.
    declared: Option<u64>,
    /// Bytes of content in the frames so far.
    content: u64,
}

impl Message {
    /// Returns whether content was declared and is not all there.
    pub(super) fn lacks_content(&self) -> bool {
        let waited_for = self.declared.filter(|bytes| *bytes <= CONTENT_BYTES_MAX);
        waited_for.is_some_and(|bytes| self.content < bytes || self.skip > 0)
    }

    /// Returns whether there is more content than is read.
    pub(super) fn is_too_long(&self) -> bool {
        self.content.max(self.declared.unwrap_or(0)) > CONTENT_BYTES_MAX
    }

    /// Reads what came; returns the head if it ends here.
    fn handle(&mut self, bytes: &[u8], head_bytes_max: usize) -> Result<Option<Head>, Fault> {
        self.bytes.extend_from_slice(bytes);
        let all = core::mem::take(&mut self.bytes);
        let (mut rest, mut head) = (&all[..], None);
        loop {
            let skipped = usize::try_from(self.skip).unwrap_or(usize::MAX).min(rest.len());
            rest = &rest[skipped..];
            self.skip -= skipped as u64;
            let mut ahead = rest;
            if frame::varint(&mut ahead) == Some(frame::DATA) {
                let Some(len) = frame::varint(&mut ahead) else { break };
                self.handle_data(len)?;
                rest = ahead;
                continue;
            }
            match frame::next(&mut rest, head_bytes_max) {
                Step::More => break,
                Step::Frame(frame::HEADERS, section) => {
                    head = self.handle_fields(section, head_bytes_max)?.or(head);
                }
                // The head is answered with 431: it is empty, as none can be.
                Step::TooLong(frame::HEADERS) if self.section == Section::Head => {
                    self.section = Section::Content;
                    self.skip = pass_over(&mut rest);
                    head = Some(Head { bytes: Vec::new(), content_length: None, priority: None });
                }
                Step::TooLong(frame::HEADERS) => return Err(Fault::Stream(Code::MessageError)),
                Step::Frame(kind, _) | Step::TooLong(kind) if !is_passed_over(kind) => {
                    return Err(Fault::Connection(Code::FrameUnexpected));
                }
                Step::Frame(..) => {}
                Step::TooLong(_) => self.skip = pass_over(&mut rest),
            }
        }
        self.bytes = rest.to_vec();
        Ok(head)
    }

    /// A frame of content begins.
    fn handle_data(&mut self, len: u64) -> Result<(), Fault> {
        if self.section != Section::Content {
            return Err(Fault::Connection(Code::FrameUnexpected));
        }
        (self.content, self.skip) = (self.content.saturating_add(len), len);
        // Section 4.1.2.
        if self.declared.is_some_and(|declared| self.content > declared) {
            return Err(Fault::Stream(Code::MessageError));
        }
        Ok(())
    }

    fn handle_fields(
        &mut self,
        section: &[u8],
        head_bytes_max: usize,
    ) -> Result<Option<Head>, Fault> {
        if self.section == Section::Trailers {
            return Err(Fault::Connection(Code::FrameUnexpected));
        }
        let lines = qpack::decode(section, head_bytes_max)
            .map_err(|_| Fault::Connection(Code::QpackDecompressionFailed))?;
        let malformed = |_| Fault::Stream(Code::MessageError);
        if self.section == Section::Content {
            self.section = Section::Trailers;
            message::check_trailers(&lines.unwrap_or_default()).map_err(malformed)?;
            return Ok(None);
        }
        self.section = Section::Content;
        let head = lines.map(|lines| message::request_head(&lines)).transpose();
        // One that is too long is answered with 431.
        let head = head.map_err(malformed)?.unwrap_or(Head {
            bytes: Vec::new(),
            content_length: None,
            priority: None,
        });
        self.declared = head.content_length;
        Ok(Some(head))
    }

    /// The client has finished its side of the stream.
    fn finish(&self) -> Result<(), Fault> {
        if self.section == Section::Head {
            return Err(Fault::Stream(Code::RequestIncomplete));
        }
        // Section 7.1: a frame that is cut off.
        if self.skip > 0 || !self.bytes.is_empty() {
            return Err(Fault::Connection(Code::FrameError));
        }
        if self.declared.is_some_and(|declared| declared != self.content) {
            return Err(Fault::Stream(Code::MessageError));
        }
        Ok(())
    }
}

/// Frames that are known and not allowed on a request's stream are errors; what is unknown means
/// nothing (section 9).
const fn is_passed_over(kind: u64) -> bool {
    !matches!(
        kind,
        frame::CANCEL_PUSH
            | frame::SETTINGS
            | frame::PUSH_PROMISE
            | frame::GOAWAY
            | frame::MAX_PUSH_ID
            | frame::PRIORITY_UPDATE
            | frame::PRIORITY_UPDATE_PUSH
    ) && !frame::is_of_http2(kind)
}

/// Takes an unknown frame's head off the front; returns how long it is.
fn pass_over(rest: &mut &[u8]) -> u64 {
    frame::varint(rest).and_then(|_| frame::varint(rest)).unwrap_or(0)
}

/// The client's control stream: section 6.2.1. Returns how many bytes are left; frames that mean
/// something are added to `frames`.
fn control(
    settings: &mut bool,
    skip: &mut u64,
    mut rest: &[u8],
    frames: &mut Vec<Control>,
) -> Result<usize, Code> {
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
            (frame::GOAWAY, Some(payload)) => frames.push(Control::GoAway(only_id(payload)?)),
            (frame::MAX_PUSH_ID, Some(payload)) => {
                frames.push(Control::MaxPushId(only_id(payload)?));
            }
            (frame::CANCEL_PUSH, Some(payload)) => {
                only_id(payload)?;
                return Err(Code::IdError); // Nothing was ever promised.
            }
            (frame::PRIORITY_UPDATE, Some(mut payload)) => {
                let stream = frame::varint(&mut payload).ok_or(Code::FrameError)?;
                frames.push(Control::Priority(stream, priority::parse(payload)));
            }
            (frame::PRIORITY_UPDATE_PUSH, Some(mut payload)) => {
                frame::varint(&mut payload).ok_or(Code::FrameError)?;
                return Err(Code::IdError);
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

/// A payload that is one integer.
fn only_id(mut payload: &[u8]) -> Result<u64, Code> {
    frame::varint(&mut payload).filter(|_| payload.is_empty()).ok_or(Code::FrameError)
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
