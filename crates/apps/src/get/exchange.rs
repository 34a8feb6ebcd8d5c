//! One request and its response, over either version of HTTP.

use base::Instant;
use bytes::Bytes;
use host::{Host, SocketId};
use quic::{QuicEndpoint, QuicHandle};

use super::error::GetError;
use super::http1::Http1Exchange;
use super::http3::Http3Exchange;
use super::plan::PartRequest;
use super::progress::ExchangeProgress;
use super::url::GetUrl;
use crate::content::http3_client;

/// A request and its response.
pub(super) enum Exchange {
    Http1(Http1Exchange),
    Http3(Http3Exchange),
}

impl Exchange {
    pub(super) const fn is_connected(&self) -> bool {
        match self {
            Self::Http1(exchange) => exchange.is_connected(),
            Self::Http3(exchange) => exchange.is_connected(),
        }
    }

    pub(super) fn is_on_socket(&self, socket: SocketId) -> bool {
        matches!(self, Self::Http1(exchange) if exchange.socket == socket)
    }

    /// Returns the exchange if it is on this connection.
    pub(super) fn on_connection(&mut self, handle: QuicHandle) -> Option<&mut Http3Exchange> {
        match self {
            Self::Http3(exchange) if exchange.handle == handle => Some(exchange),
            _ => None,
        }
    }

    /// Returns the next part of the response, with at most `room` bytes of content.
    ///
    /// # Errors
    /// [`GetError`]; the exchange has ended.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        host: &mut Host,
        endpoint: Option<&mut QuicEndpoint>,
        room: usize,
    ) -> Result<ExchangeProgress, GetError> {
        match (self, endpoint) {
            (Self::Http1(exchange), _) => exchange.poll(now, host, room),
            (Self::Http3(exchange), Some(endpoint)) => exchange.poll(endpoint, room),
            (Self::Http3(_), None) => Ok(ExchangeProgress::Waiting),
        }
    }

    /// Closes the connection. If the response is incomplete, the server is told not to continue.
    pub(super) fn close(self, now: Instant, host: &mut Host, endpoint: Option<&mut QuicEndpoint>) {
        match (self, endpoint) {
            // Bytes that were not read turn the close into a reset.
            (Self::Http1(exchange), _) => host.close(now, exchange.socket),
            (Self::Http3(exchange), Some(endpoint)) => exchange.close(now, host, endpoint),
            (Self::Http3(_), None) => {}
        }
    }
}

/// Returns a request in HTTP/1.1.
pub(super) fn http1_request(url: &GetUrl, part: &PartRequest, user_agent: &str) -> Bytes {
    let mut text = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: {user_agent}\r\nAccept: */*\r\n\
         Accept-Encoding: identity\r\nConnection: close\r\n",
        url.target,
        url.authority(),
    );
    if let Some((range, if_range)) = part.range_fields() {
        text += &format!("Range: {range}\r\nIf-Range: {if_range}\r\n");
    }
    (text + "\r\n").into()
}

/// Returns a request in HTTP/3.
pub(super) fn http3_request(url: &GetUrl, part: &PartRequest, user_agent: &str) -> Bytes {
    let authority = url.authority();
    let mut fields = vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", &authority),
        (":path", &url.target),
        ("user-agent", user_agent),
        ("accept", "*/*"),
        ("accept-encoding", "identity"),
    ];
    let range = part.range_fields();
    if let Some((range, if_range)) = &range {
        fields.extend([("range", range.as_str()), ("if-range", if_range)]);
    }
    http3_client::request(&fields).into()
}
