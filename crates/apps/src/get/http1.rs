//! One request and its response over a TCP or TLS connection of its own.
//!
//! Driven by [`super`], which polls it when its socket has changed. Reads no more content than its
//! caller has room for, so a slow caller closes the receive window.

use base::Instant;
use bytes::Bytes;
use host::{Host, SocketError, SocketId};

use super::error::{GetError, MissingBytes};
use super::progress::{CONTENT_BYTES_MAX, ExchangeProgress, HEAD_BYTES_MAX};
use super::response::{MalformedResponse, ResponseFraming, ResponseHead};
use crate::content::gather::{HeadLimits, gather_head};
use crate::content::http3_client::INFORMATIONAL_MAX;
use crate::content::reader::ContentReader;

/// Maximum number of bytes of the chunked coding between two pieces of content: extensions and
/// trailers.
const CODING_BYTES_MAX: usize = 16 * 1024;

const HEAD_LIMITS: HeadLimits =
    HeadLimits { head_bytes_max: HEAD_BYTES_MAX, line_bytes_max: HEAD_BYTES_MAX };

/// State of an exchange.
#[derive(Debug)]
enum Http1State {
    /// The connection is being established; then this request is sent.
    Connecting(Bytes),
    /// The head is incomplete.
    Head { bytes: Vec<u8>, informational: u8 },
    /// The head was returned.
    Content { reader: ResponseContentReader, coding_bytes: usize },
}

/// Finds the content of a response.
#[derive(Clone, Copy, Debug)]
enum ResponseContentReader {
    Framed(ContentReader),
    UntilClose,
}

/// A request and its response.
#[derive(Debug)]
pub(super) struct Http1Exchange {
    pub(super) socket: SocketId,
    state: Http1State,
}

impl Http1Exchange {
    /// Sends a request as soon as `socket` is connected.
    pub(super) const fn new(socket: SocketId, request: Bytes) -> Self {
        Self { socket, state: Http1State::Connecting(request) }
    }

    /// Returns whether the connection was established.
    pub(super) const fn is_connected(&self) -> bool {
        !matches!(self.state, Http1State::Connecting(_))
    }

    /// Returns the next part of the response, with at most `room` bytes of content.
    ///
    /// # Errors
    /// [`GetError`]; the exchange has ended.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        host: &mut Host,
        room: usize,
    ) -> Result<ExchangeProgress, GetError> {
        if let Http1State::Connecting(request) = &self.state {
            let ready = host.readiness(self.socket);
            match ready.error {
                Some(error) => return Err(connect_error(error)),
                None if !ready.writable => return Ok(ExchangeProgress::Waiting),
                None => {}
            }
            let sent = host.send(now, self.socket, request.clone());
            if sent.map_err(|e| GetError::Send(e.to_string()))? < request.len() {
                return Err(GetError::Send("the request is too long".to_owned()));
            }
            self.state = Http1State::Head { bytes: Vec::new(), informational: 0 };
        }
        match &mut self.state {
            Http1State::Connecting(_) => Ok(ExchangeProgress::Waiting),
            Http1State::Head { .. } => self.poll_head(host),
            Http1State::Content { .. } => self.poll_content(host, room),
        }
    }

    fn poll_head(&mut self, host: &mut Host) -> Result<ExchangeProgress, GetError> {
        let Http1State::Head { bytes, informational } = &mut self.state else {
            return Ok(ExchangeProgress::Waiting);
        };
        loop {
            let piece = host.peek(self.socket);
            if piece.is_empty() {
                return at_end(host, self.socket, |orderly| match bytes.is_empty() && orderly {
                    true => GetError::EmptyReply,
                    false => MalformedResponse::NotHttp.into(),
                });
            }
            let gathered = gather_head(bytes, piece, HEAD_LIMITS);
            host.consume(self.socket, gathered.taken);
            if !gathered.complete {
                continue;
            }
            if bytes.len() > HEAD_BYTES_MAX {
                return Err(MalformedResponse::HeadTooLong.into());
            }
            let head = ResponseHead::parse(bytes)?;
            // RFC 9110 section 15.2: any number of these may precede the final response.
            if head.status < 200 {
                *informational += 1;
                if *informational > INFORMATIONAL_MAX || head.status == 101 {
                    return Err(MalformedResponse::NotHttp.into());
                }
                bytes.clear();
                continue;
            }
            let reader = match head.framing()? {
                ResponseFraming::Length(length) => {
                    ResponseContentReader::Framed(ContentReader::length(length))
                }
                ResponseFraming::Chunked => ResponseContentReader::Framed(ContentReader::chunked()),
                ResponseFraming::UntilClose => ResponseContentReader::UntilClose,
            };
            self.state = Http1State::Content { reader, coding_bytes: 0 };
            return Ok(ExchangeProgress::Head(head));
        }
    }

    fn poll_content(&mut self, host: &mut Host, room: usize) -> Result<ExchangeProgress, GetError> {
        let Http1State::Content { reader, coding_bytes } = &mut self.state else {
            return Ok(ExchangeProgress::Waiting);
        };
        let (mut content, room) = (Vec::new(), room.min(CONTENT_BYTES_MAX));
        while content.len() < room {
            let received = host.peek(self.socket);
            // Not more than there is room for.
            let mut rest = &received[..received.len().min(room - content.len())];
            let len = rest.len();
            if len == 0 || reader.is_done() {
                break;
            }
            while !rest.is_empty() && !reader.is_done() {
                let before = rest.len();
                let piece = reader.take(&mut rest)?;
                content.extend_from_slice(piece);
                let coding = before - rest.len() - piece.len();
                *coding_bytes = if piece.is_empty() { *coding_bytes + coding } else { 0 };
                if *coding_bytes > CODING_BYTES_MAX {
                    return Err(MalformedResponse::Chunked.into());
                }
            }
            let taken = len - rest.len();
            host.consume(self.socket, taken);
        }
        if !content.is_empty() {
            return Ok(ExchangeProgress::Content(content));
        }
        if reader.is_done() {
            return Ok(ExchangeProgress::Finished);
        }
        if room == 0 {
            return Ok(ExchangeProgress::Waiting);
        }
        if reader.ends_with_connection() && host.has_ended_orderly(self.socket) {
            return Ok(ExchangeProgress::Finished);
        }
        let missing = MissingBytes(reader.left());
        at_end(host, self.socket, |_| GetError::Partial { missing })
    }
}

impl ResponseContentReader {
    fn is_done(&self) -> bool {
        matches!(self, Self::Framed(reader) if reader.is_done())
    }

    const fn ends_with_connection(&self) -> bool {
        matches!(self, Self::UntilClose)
    }

    /// Returns the number of missing bytes, if it is known.
    fn left(&self) -> Option<u64> {
        match self {
            Self::Framed(reader) => reader.length_left(),
            Self::UntilClose => None,
        }
    }

    fn take<'a>(&mut self, rest: &mut &'a [u8]) -> Result<&'a [u8], MalformedResponse> {
        match self {
            Self::Framed(reader) => reader.take(rest).map_err(|_| MalformedResponse::Chunked),
            Self::UntilClose => Ok(core::mem::take(rest)),
        }
    }
}

/// Returns that nothing has arrived, or an error if nothing more will: that of the connection, or
/// the one for the peer's close, which may have been orderly.
fn at_end(
    host: &Host,
    socket: SocketId,
    closed: impl FnOnce(bool) -> GetError,
) -> Result<ExchangeProgress, GetError> {
    let ready = host.readiness(socket);
    match ready.error {
        Some(error) => Err(GetError::Receive(error)),
        None if ready.peer_closed => Err(closed(host.has_ended_orderly(socket))),
        None => Ok(ExchangeProgress::Waiting),
    }
}

/// Returns the error of a connection that failed before it was usable.
const fn connect_error(error: SocketError) -> GetError {
    match error {
        SocketError::Tls(_) | SocketError::TlsHandshake | SocketError::TlsPeer(_) => {
            GetError::Tls(error)
        }
        _ => GetError::NotConnected(error),
    }
}
