//! Converts the head of a request to a pool and the head for its backend, or to the status that
//! refuses the request.
//!
//! Called by [`super::pair`] with a complete head, or with one that is too long. No bytes are
//! passed on as they were received: the request is parsed ([`target`], [`fields`]), and the head
//! for the backend is generated from the result, with one Host, one framing of the content, and one
//! Connection. A request that servers are known to interpret in different ways is refused.

mod fields;
mod target;

use wire::Endpoint;

use self::fields::{ConnectionOptions, ForwardingField, HeaderFieldKind};
use self::target::{Authority, ForwardedTarget};
use super::config::{ForwardingPolicy, HashBy, InsertedFields, ProxyLimits, ProxyListener};
use super::maglev::hash_name;
use super::route::{self, RouteTarget};
use crate::content::request::{self, HttpRequest, ParsedRequest, decimal};
use crate::content::status::HttpStatus;

/// Facts about a request besides its bytes.
pub(crate) struct ProxyRequestEnv<'a> {
    pub(crate) listener: &'a ProxyListener,
    pub(crate) limits: &'a ProxyLimits,
    /// Remote and local address of the client's connection.
    pub(crate) client: Endpoint,
    pub(crate) local: Endpoint,
    /// Name of the proxy in Via.
    pub(crate) name: &'a str,
}

/// Action on a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxyDecision {
    /// Send `head` to `target`.
    Forward {
        target: RouteTarget,
        head: Vec<u8>,
        /// Hash of the requested name, if there is one.
        hash: Option<u64>,
        /// True if the method is HEAD: a response of the proxy's own has no content.
        is_head: bool,
    },
    /// Respond with this status and close.
    Refuse { status: HttpStatus, is_head: bool },
}

/// Decides about one head.
pub(crate) fn decide(bytes: &[u8], about: &ProxyRequestEnv<'_>) -> ProxyDecision {
    let limits = request::RequestLimits {
        head_bytes_max: about.limits.head_bytes_max,
        line_bytes_max: about.limits.request_line_bytes_max,
    };
    let mut slots = request::slots();
    let request = match request::parse(bytes, &mut slots, limits) {
        // Caller and parser must agree on the end of the head.
        ParsedRequest::Complete(request, head_bytes) if head_bytes == bytes.len() => request,
        ParsedRequest::Refused { status, head } => {
            return ProxyDecision::Refuse { status, is_head: head };
        }
        // Cannot occur: a complete head comes here, so the parser accepts or refuses it.
        ParsedRequest::Incomplete | ParsedRequest::Complete(..) => {
            return ProxyDecision::Refuse { status: HttpStatus::BadRequest, is_head: false };
        }
    };
    let is_head = request.name == b"HEAD";
    let message = match ForwardedRequest::of(&request, about.listener) {
        Ok(message) => message,
        Err(status) => return ProxyDecision::Refuse { status, is_head },
    };
    let name = route::normalized_host(message.host.as_ref().map_or(b"", Authority::host));
    let mut path = Vec::with_capacity(request.target.len() + 1);
    message.target.write(&mut path);
    let path = String::from_utf8_lossy(&path);
    match route::find_target(about.listener, &name, &path) {
        Some(target) => {
            let hash = (!name.is_empty()).then(|| hash_name(name.as_bytes()));
            ProxyDecision::Forward { target, head: message.write(about), hash, is_head }
        }
        None => ProxyDecision::Refuse { status: HttpStatus::NotFound, is_head },
    }
}

/// Framing of the content for the backend (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ForwardedFraming {
    /// No content, and no field that frames it.
    Absent,
    Length(u64),
    Chunked,
}

impl ForwardedFraming {
    /// Reads the framing fields more strictly than the parser does: ambiguous values that the
    /// parser accepts are refused.
    fn of(request: &HttpRequest<'_, '_>) -> Result<Self, HttpStatus> {
        let all = |name: &'static str| {
            let fields = request.fields().iter();
            fields.filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
        };
        let mut codings = all("transfer-encoding").flat_map(fields::list);
        let mut lengths = all("content-length").flat_map(|value| value.split(|&b| b == b','));
        if all("transfer-encoding").next().is_some() {
            let coding = codings.next().ok_or(HttpStatus::BadRequest)?;
            if codings.next().is_some() || lengths.next().is_some() || request.minor == 0 {
                return Err(HttpStatus::BadRequest);
            }
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            return is_chunked.then_some(Self::Chunked).ok_or(HttpStatus::NotImplemented);
        }
        let number = |text: &[u8]| {
            // Many servers use signed 64-bit integers.
            decimal(text.trim_ascii()).filter(|n| i64::try_from(*n).is_ok())
        };
        let Some(first) = lengths.next() else { return Ok(Self::Absent) };
        let length = number(first).ok_or(HttpStatus::BadRequest)?;
        let agree = lengths.all(|other| number(other) == Some(length));
        if agree { Ok(Self::Length(length)) } else { Err(HttpStatus::BadRequest) }
    }
}

/// A request as it is forwarded.
struct ForwardedRequest<'r, 'h, 'b> {
    request: &'r HttpRequest<'h, 'b>,
    target: ForwardedTarget<'b>,
    /// `None` in HTTP/1.0 only.
    host: Option<Authority<'b>>,
    framing: ForwardedFraming,
    options: ConnectionOptions<'b>,
}

impl<'r, 'h, 'b> ForwardedRequest<'r, 'h, 'b> {
    /// Checks a request and extracts its parts.
    ///
    /// # Errors
    /// The status that refuses the request.
    fn of(request: &'r HttpRequest<'h, 'b>, listener: &ProxyListener) -> Result<Self, HttpStatus> {
        // RFC 9110 section 9.3.6: a reverse proxy opens no tunnels to addresses from clients.
        if request.name == b"CONNECT" {
            return Err(HttpStatus::MethodNotAllowed);
        }
        if request.unknown_expectation {
            return Err(HttpStatus::ExpectationFailed);
        }
        let (target, authority) = ForwardedTarget::parse(request.name, request.target)
            .map_err(|_| HttpStatus::BadRequest)?;
        let field = request.fields().iter().find(|f| f.name.eq_ignore_ascii_case("host"));
        let host = field.map(|field| Authority::parse(field.value)).transpose();
        let host = host.map_err(|_| HttpStatus::BadRequest)?;
        let options =
            ConnectionOptions::of(request.fields()).map_err(|_| HttpStatus::BadRequest)?;
        let message = Self {
            request,
            target,
            // RFC 9112 section 3.2.2: the authority of the absolute form replaces Host.
            host: authority.or(host),
            framing: ForwardedFraming::of(request)?,
            options,
        };
        let is_joined = listener.insert.forwarded && listener.policy == ForwardingPolicy::Append;
        if is_joined && !message.values(ForwardingField::Forwarded, listener).all(quotes_are_closed)
        {
            return Err(HttpStatus::BadRequest);
        }
        Ok(message)
    }

    /// Generates the head for the backend.
    fn write(&self, about: &ProxyRequestEnv<'_>) -> Vec<u8> {
        let mut out = Vec::with_capacity(1024);
        out.extend_from_slice(self.request.name);
        out.push(b' ');
        self.target.write(&mut out);
        let version = if self.request.minor == 0 { "HTTP/1.0" } else { "HTTP/1.1" };
        out.extend_from_slice(format!(" {version}\r\n").as_bytes());
        if let Some(host) = self.host {
            out.extend_from_slice(b"Host: ");
            host.write(&mut out);
            out.extend_from_slice(b"\r\n");
        }
        for field in
            self.request.fields().iter().filter(|f| self.is_passed_on(f.name, about.listener))
        {
            write_field(&mut out, field.name, [field.value].into_iter());
        }
        // Writing to a Vec cannot fail.
        let _ = match self.framing {
            ForwardedFraming::Absent => Ok(()),
            ForwardedFraming::Length(length) => write_text(&mut out, "Content-Length", &length),
            ForwardedFraming::Chunked => write_text(&mut out, "Transfer-Encoding", &"chunked"),
        };
        self.write_forwarding(&mut out, about);
        self.write_connection(&mut out, about.listener);
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Returns whether a field is passed on at its position.
    fn is_passed_on(&self, name: &str, listener: &ProxyListener) -> bool {
        let is_kept = match fields::kind(name) {
            HeaderFieldKind::EndToEnd => true,
            HeaderFieldKind::Generated | HeaderFieldKind::Dropped => false,
            // Fields to which the proxy adds values are written as one line, after all others.
            HeaderFieldKind::Forwarding(field) => {
                !is_inserted(field, listener.insert) && is_trusted_field(field, listener.policy)
            }
        };
        is_kept && !self.options.has(name.as_bytes())
    }

    /// Returns the client's values of a field to which the proxy adds one, if they are trusted.
    fn values(
        &self,
        field: ForwardingField,
        listener: &ProxyListener,
    ) -> impl Iterator<Item = &'b [u8]> + use<'_, 'b> {
        // X-Forwarded-Proto is no list: a forged value of the client would be read before the
        // proxy's.
        let is_list = field != ForwardingField::XForwardedProto;
        let is_believed = is_list && is_trusted_field(field, listener.policy);
        let fields = self.request.fields().iter();
        let same = move |name| fields::kind(name) == HeaderFieldKind::Forwarding(field);
        fields.filter(move |f| is_believed && same(f.name)).map(|f| f.value)
    }

    fn write_forwarding(&self, out: &mut Vec<u8>, about: &ProxyRequestEnv<'_>) {
        let (listener, client) = (about.listener, about.client.addr);
        let insert = listener.insert;
        let mut add = |field: ForwardingField, name: &str, ours: &str| {
            let theirs = self.values(field, listener).filter(|value| !value.is_empty());
            write_field(out, name, theirs.chain([ours.as_bytes()]));
        };
        if insert.x_forwarded_for {
            add(ForwardingField::XForwardedFor, "X-Forwarded-For", &client.to_string());
        }
        if insert.x_forwarded_proto {
            add(ForwardingField::XForwardedProto, "X-Forwarded-Proto", "http");
        }
        if insert.forwarded {
            // RFC 7239 section 6: an IPv6 address is in brackets, and quoted.
            let node = |addr: core::net::IpAddr| match addr {
                core::net::IpAddr::V4(v4) => v4.to_string(),
                core::net::IpAddr::V6(v6) => format!("\"[{v6}]\""),
            };
            let ours = format!("for={};by={};proto=http", node(client), node(about.local.addr));
            add(ForwardingField::Forwarded, "Forwarded", &ours);
        }
        if insert.via {
            let ours = format!("1.{} {}", self.request.minor.min(1), about.name);
            add(ForwardingField::Via, "Via", &ours);
        }
    }

    /// Writes the connection-specific fields. Those of the client are not passed on, but since all
    /// bytes after the head are relayed, they determine the fields for the backend.
    fn write_connection(&self, out: &mut Vec<u8>, listener: &ProxyListener) {
        let is_1_0 = self.request.minor == 0;
        let all = |name: &'static str| {
            let fields = self.request.fields().iter();
            fields.filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
        };
        // RFC 9110 section 10.1.1: HTTP/1.0 has no expectations; 100-continue is the only one that
        // is known.
        if !is_1_0 && all("expect").next().is_some() {
            write_field(out, "Expect", [&b"100-continue"[..]].into_iter());
        }
        let carries_one = !listener.keep_alive || listener.policy == ForwardingPolicy::Replace;
        if carries_one || self.options.has(b"close") {
            return write_field(out, "Connection", [&b"close"[..]].into_iter());
        }
        // RFC 9113 section 3.1 has withdrawn h2c, which would hide requests from proxies.
        let is_h2c = |protocol: &&[u8]| {
            protocol.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"h2c"))
        };
        let mut protocols = all("upgrade").flat_map(fields::list).filter(|p| !is_h2c(p)).peekable();
        // RFC 9110 section 7.8: only with the connection option, and not from HTTP/1.0.
        if !is_1_0 && self.options.has(b"upgrade") && protocols.peek().is_some() {
            write_field(out, "Upgrade", protocols);
            return write_field(out, "Connection", [&b"upgrade"[..]].into_iter());
        }
        if is_1_0 && self.options.has(b"keep-alive") {
            write_field(out, "Connection", [&b"keep-alive"[..]].into_iter());
        }
    }
}

/// Returns whether the proxy adds a value to a field.
const fn is_inserted(field: ForwardingField, insert: InsertedFields) -> bool {
    match field {
        ForwardingField::XForwardedFor => insert.x_forwarded_for,
        ForwardingField::XForwardedProto => insert.x_forwarded_proto,
        ForwardingField::Forwarded => insert.forwarded,
        ForwardingField::Via => insert.via,
        ForwardingField::Other => false,
    }
}

/// Returns whether the client's value of a field is passed on. Via names the proxies on the way,
/// and servers use it only to detect loops.
fn is_trusted_field(field: ForwardingField, policy: ForwardingPolicy) -> bool {
    match field {
        ForwardingField::Via => true,
        _ => policy == ForwardingPolicy::Append,
    }
}

/// Returns whether each quoted string is closed (RFC 9110 section 5.6.4): an unclosed one would
/// include the value that the proxy adds to the list.
fn quotes_are_closed(value: &[u8]) -> bool {
    let (mut quoted, mut bytes) = (false, value.iter());
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => quoted = !quoted,
            b'\\' if quoted && bytes.next().is_none() => return false,
            _ => {}
        }
    }
    !quoted
}

/// Writes one field line with the values as a list.
fn write_field<'v>(out: &mut Vec<u8>, name: &str, values: impl Iterator<Item = &'v [u8]>) {
    out.extend_from_slice(name.as_bytes());
    let mut before: &[u8] = b": ";
    for value in values {
        out.extend_from_slice(before);
        out.extend_from_slice(value.trim_ascii());
        before = b", ";
    }
    out.extend_from_slice(b"\r\n");
}

fn write_text(
    out: &mut Vec<u8>,
    name: &str,
    value: &dyn core::fmt::Display,
) -> std::io::Result<()> {
    use std::io::Write as _;
    write!(out, "{name}: {value}\r\n")
}

/// Returns the hash by which a backend is chosen: that of the name, or that of the client's
/// address.
pub(crate) const fn balance_hash(by: HashBy, source: u64, name: Option<u64>) -> u64 {
    match (by, name) {
        (HashBy::Host, Some(name)) => name,
        _ => source,
    }
}

#[cfg(test)]
mod tests;
