//! One request and its response over a QUIC connection of its own (RFC 9114).
//!
//! Driven by [`super`], which passes the events of the connection and polls the exchange. The
//! server's control stream and those of QPACK are read and ignored: there is one request, no
//! dynamic table, and no push.

use base::Instant;
use bytes::Bytes;
use host::Host;
use quic::{ConnectionError, Dir, QuicEndpoint, QuicHandle, StreamId, StreamReadError};

use super::error::{GetError, MissingBytes};
use super::progress::{CONTENT_BYTES_MAX, ExchangeProgress};
use super::response::{MalformedResponse, ResponseHead};
use crate::content::http3_client::{Http3ResponseParser, Http3ResponsePart, control};

/// H3_NO_ERROR (RFC 9114 section 8.1).
const NO_ERROR: u32 = 0x0100;
/// H3_REQUEST_CANCELLED.
const REQUEST_CANCELLED: u32 = 0x010c;
/// Maximum number of unidirectional streams of the server that are read: more than the four types
/// that exist.
const SERVER_STREAMS_MAX: usize = 16;
/// Maximum number of bytes of such a stream per read.
const IGNORED_BYTES: usize = 4096;

/// State of an exchange.
#[derive(Debug)]
enum Http3State {
    /// The connection is being established; then this request is sent.
    Connecting(Bytes),
    /// The request was sent on this stream.
    Sent(StreamId),
    /// The connection has ended, or could not be used.
    Failed(GetError),
}

/// A request and its response.
pub(super) struct Http3Exchange {
    pub(super) handle: QuicHandle,
    state: Http3State,
    parser: Http3ResponseParser,
    /// Bytes that were read and not parsed.
    unparsed: Bytes,
    /// Remaining bytes of the content, if its length was declared.
    left: Option<u64>,
    server_streams: Vec<StreamId>,
}

impl Http3Exchange {
    pub(super) fn new(handle: QuicHandle, request: Bytes) -> Self {
        Self {
            handle,
            state: Http3State::Connecting(request),
            parser: Http3ResponseParser::default(),
            unparsed: Bytes::new(),
            left: None,
            server_streams: Vec::new(),
        }
    }

    pub(super) const fn is_connected(&self) -> bool {
        !matches!(self.state, Http3State::Connecting(_))
    }

    /// Sends the request, once the connection is established.
    pub(super) fn handle_connected(&mut self, endpoint: &mut QuicEndpoint) {
        let Http3State::Connecting(request) = &self.state else { return };
        let request = request.clone();
        let streams = [Dir::Uni, Dir::Bi].map(|dir| endpoint.open_stream(self.handle, dir));
        let [Some(settings), Some(stream)] = streams else {
            let reason = "the server permits no request".to_owned();
            self.state = Http3State::Failed(GetError::Quic { established: true, reason });
            return;
        };
        endpoint.write(self.handle, settings, control().into());
        endpoint.write(self.handle, stream, request);
        endpoint.finish(self.handle, stream);
        self.state = Http3State::Sent(stream);
    }

    /// Notes the end of the connection.
    pub(super) fn handle_lost(&mut self, why: &ConnectionError) {
        let established = self.is_connected();
        self.state = Http3State::Failed(match why {
            ConnectionError::TimedOut if !established => {
                GetError::NotConnected(host::SocketError::TimedOut)
            }
            _ => GetError::Quic { established, reason: why.to_string() },
        });
    }

    /// Reads and drops everything on the server's unidirectional streams.
    pub(super) fn ignore_server_streams(&mut self, endpoint: &mut QuicEndpoint) {
        while self.server_streams.len() < SERVER_STREAMS_MAX {
            let Some(stream) = endpoint.accept_stream(self.handle, Dir::Uni) else { break };
            self.server_streams.push(stream);
        }
        let handle = self.handle;
        self.server_streams.retain(|&stream| {
            loop {
                match endpoint.read(handle, stream, IGNORED_BYTES) {
                    Ok(_) => {}
                    Err(StreamReadError::Blocked) => return true,
                    Err(_) => return false,
                }
            }
        });
    }

    /// Returns the next part of the response, with at most `room` bytes of content.
    ///
    /// # Errors
    /// [`GetError`]; the exchange has ended.
    pub(super) fn poll(
        &mut self,
        endpoint: &mut QuicEndpoint,
        room: usize,
    ) -> Result<ExchangeProgress, GetError> {
        let stream = match &self.state {
            Http3State::Connecting(_) => return Ok(ExchangeProgress::Waiting),
            Http3State::Failed(error) => return Err(error.clone()),
            Http3State::Sent(stream) => *stream,
        };
        let (mut content, room) = (Vec::new(), room.min(CONTENT_BYTES_MAX));
        while content.len() < room {
            if self.unparsed.is_empty() {
                match endpoint.read(self.handle, stream, room - content.len()) {
                    Ok(bytes) => self.unparsed = bytes,
                    Err(_) if !content.is_empty() => break,
                    Err(StreamReadError::Blocked) => return Ok(ExchangeProgress::Waiting),
                    Err(StreamReadError::Finished) => return self.finish(),
                    Err(StreamReadError::Reset(code)) => return Err(GetError::StreamReset(code)),
                    Err(StreamReadError::NoStream) => return Ok(ExchangeProgress::Waiting),
                }
            }
            if let Some(head) = self.parse(&mut content)? {
                return Ok(ExchangeProgress::Head(head));
            }
        }
        match content.is_empty() {
            true => Ok(ExchangeProgress::Waiting),
            false => Ok(ExchangeProgress::Content(content)),
        }
    }

    /// Parses the unparsed bytes, and appends their content to `content`. Stops behind a head.
    fn parse(&mut self, content: &mut Vec<u8>) -> Result<Option<ResponseHead>, GetError> {
        let bytes = core::mem::take(&mut self.unparsed);
        let mut rest = &bytes[..];
        let malformed = |why| GetError::from(MalformedResponse::Http3(why));
        while let Some(part) = self.parser.next(&mut rest).map_err(malformed)? {
            match part {
                Http3ResponsePart::Content(piece) => {
                    if let Some(left) = &mut self.left {
                        let less = left.checked_sub(piece.len() as u64);
                        *left = less.ok_or_else(|| malformed("more content than declared"))?;
                    }
                    content.extend_from_slice(piece);
                }
                Http3ResponsePart::Head(fields) => {
                    let head = head(&fields)?;
                    self.left = head.content_length;
                    self.unparsed = bytes.slice_ref(rest);
                    return Ok(Some(head));
                }
            }
        }
        Ok(None)
    }

    /// Decides about the end of the stream.
    fn finish(&self) -> Result<ExchangeProgress, GetError> {
        if self.parser.may_end_here() && self.left.is_none_or(|left| left == 0) {
            return Ok(ExchangeProgress::Finished);
        }
        Err(GetError::Partial { missing: MissingBytes(self.left) })
    }

    /// Closes the connection.
    pub(super) fn close(self, now: Instant, host: &mut Host, endpoint: &mut QuicEndpoint) {
        let complete = self.parser.may_end_here() && self.left.is_none_or(|left| left == 0);
        let code = if complete { NO_ERROR } else { REQUEST_CANCELLED };
        endpoint.close(now, host, self.handle, code, "");
    }
}

/// Returns the head that fields of HTTP/3 are.
fn head(fields: &[(Vec<u8>, Vec<u8>)]) -> Result<ResponseHead, MalformedResponse> {
    let malformed = MalformedResponse::Http3("no valid head");
    let ((name, status), rest) = fields.split_first().ok_or(malformed)?;
    let digits = status.len() == 3 && name == b":status";
    let status = crate::content::request::decimal(status).filter(|_| digits).ok_or(malformed)?;
    if rest.iter().any(|(name, _)| name.starts_with(b":") || name == b"transfer-encoding") {
        return Err(malformed);
    }
    let status = u16::try_from(status).map_err(|_| malformed)?;
    ResponseHead::of(status, rest.iter().map(|(name, value)| (&name[..], &value[..])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head_of(fields: &[(&str, &str)]) -> Result<u16, MalformedResponse> {
        let owned: Vec<_> =
            fields.iter().map(|(n, v)| (n.as_bytes().to_vec(), v.as_bytes().to_vec())).collect();
        head(&owned).map(|head| head.status)
    }

    #[test]
    fn heads_have_a_status_first() {
        assert_eq!(head_of(&[(":status", "206"), ("etag", "\"a\"")]), Ok(206));
        for bad in [
            &[][..],
            &[("etag", "\"a\"")],
            &[("etag", "\"a\""), (":status", "200")],
            &[(":status", "20")],
            &[(":status", "2000")],
            &[(":status", "200"), (":status", "200")],
            &[(":status", "200"), ("transfer-encoding", "chunked")],
            &[(":status", "200"), ("content-length", "1"), ("content-length", "2")],
        ] {
            assert!(head_of(bad).is_err(), "{bad:?}");
        }
    }
}
