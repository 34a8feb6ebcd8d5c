//! From the head of a request to a pool and the head that its backend gets, or to the status that
//! refuses it.
//!
//! Called by [`super::pair`] with a whole head, or with one that is too long. Nothing of the bytes
//! is passed on as it came: what they say is parsed ([`target`], [`fields`]), and the head that the
//! backend gets is generated from that, with one Host, one statement of where the content ends, and
//! one Connection. What servers are known to read in different ways is refused.

mod fields;
mod target;

use wire::Endpoint;

use self::fields::{Forwarding, Kind, Options};
use self::target::{Authority, Target};
use super::config::{HashBy, HeaderPolicy, Insert, Limits, Listener};
use super::maglev::hash_name;
use super::route;
use crate::content::request::{self, Parsed, Request, decimal};
use crate::content::status::Status;

/// What is known besides the bytes.
pub(crate) struct Circumstances<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) limits: &'a Limits,
    /// The client's end of its connection, and ours.
    pub(crate) client: Endpoint,
    pub(crate) local: Endpoint,
    /// Our name in Via.
    pub(crate) name: &'a str,
}

/// What to do about a head.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Give this to a backend of that pool.
    Forward {
        pool: usize,
        head: Vec<u8>,
        /// Hash of the name that was asked for, where one was.
        hash: Option<u64>,
        /// The method is HEAD: a response of our own has no content.
        is_head: bool,
    },
    /// Answer with this and close.
    Refuse { status: Status, is_head: bool },
}

/// Decides about the bytes of one head.
pub(crate) fn decide(bytes: &[u8], about: &Circumstances<'_>) -> Decision {
    let limits = request::Limits {
        head_bytes_max: about.limits.head_bytes_max,
        line_bytes_max: about.limits.request_line_bytes_max,
    };
    let mut slots = request::slots();
    let request = match request::parse(bytes, &mut slots, limits) {
        // The caller and the parser agree on where the head ends, or nothing is certain.
        Parsed::Complete(request, head_bytes) if head_bytes == bytes.len() => request,
        Parsed::Refused { status, head } => return Decision::Refuse { status, is_head: head },
        // Only a whole head comes here, so the parser has said yes or no; for safety.
        Parsed::Incomplete | Parsed::Complete(..) => {
            return Decision::Refuse { status: Status::BadRequest, is_head: false };
        }
    };
    let is_head = request.name == b"HEAD";
    let message = match Message::of(&request, about.listener) {
        Ok(message) => message,
        Err(status) => return Decision::Refuse { status, is_head },
    };
    let name = route::name_of(message.host.as_ref().map_or(b"", Authority::host));
    let mut path = Vec::with_capacity(request.target.len() + 1);
    message.target.write(&mut path);
    let path = String::from_utf8_lossy(&path);
    match route::find(about.listener, &name, &path) {
        Some(pool) => {
            let hash = (!name.is_empty()).then(|| hash_name(name.as_bytes()));
            Decision::Forward { pool, head: message.write(about), hash, is_head }
        }
        None => Decision::Refuse { status: Status::NotFound, is_head },
    }
}

/// The framing of the content for the backend (RFC 9112 section 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Framing {
    /// There is none, and no field says so.
    Absent,
    Length(u64),
    Chunked,
}

impl Framing {
    /// Reads the fields, more strictly than the parser need: a value that it lets pass and that is
    /// ambiguous is refused here.
    fn of(request: &Request<'_, '_>) -> Result<Self, Status> {
        let all = |name: &'static str| {
            let fields = request.fields().iter();
            fields.filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
        };
        let mut codings = all("transfer-encoding").flat_map(fields::list);
        let mut lengths = all("content-length").flat_map(|value| value.split(|&b| b == b','));
        if all("transfer-encoding").next().is_some() {
            let coding = codings.next().ok_or(Status::BadRequest)?;
            if codings.next().is_some() || lengths.next().is_some() || request.minor == 0 {
                return Err(Status::BadRequest);
            }
            let is_chunked = coding.eq_ignore_ascii_case(b"chunked");
            return is_chunked.then_some(Self::Chunked).ok_or(Status::NotImplemented);
        }
        let number = |text: &[u8]| {
            // Many servers count in 64 bits with a sign.
            decimal(text.trim_ascii()).filter(|n| i64::try_from(*n).is_ok())
        };
        let Some(first) = lengths.next() else { return Ok(Self::Absent) };
        let length = number(first).ok_or(Status::BadRequest)?;
        let agree = lengths.all(|other| number(other) == Some(length));
        if agree { Ok(Self::Length(length)) } else { Err(Status::BadRequest) }
    }
}

/// A request as it is forwarded.
struct Message<'r, 'h, 'b> {
    request: &'r Request<'h, 'b>,
    target: Target<'b>,
    /// None in HTTP/1.0 only.
    host: Option<Authority<'b>>,
    framing: Framing,
    options: Options<'b>,
}

impl<'r, 'h, 'b> Message<'r, 'h, 'b> {
    /// Takes a request apart.
    ///
    /// # Errors
    /// The status that refuses it.
    fn of(request: &'r Request<'h, 'b>, listener: &Listener) -> Result<Self, Status> {
        // RFC 9110 section 9.3.6: a reverse proxy opens no tunnels to where clients say.
        if request.name == b"CONNECT" {
            return Err(Status::MethodNotAllowed);
        }
        if request.unknown_expectation {
            return Err(Status::ExpectationFailed);
        }
        let (target, authority) =
            Target::parse(request.name, request.target).map_err(|_| Status::BadRequest)?;
        let field = request.fields().iter().find(|f| f.name.eq_ignore_ascii_case("host"));
        let host = field.map(|field| Authority::parse(field.value)).transpose();
        let host = host.map_err(|_| Status::BadRequest)?;
        let options = Options::of(request.fields()).map_err(|_| Status::BadRequest)?;
        let message = Self {
            request,
            target,
            // RFC 9112 section 3.2.2: the authority of the absolute form replaces Host.
            host: authority.or(host),
            framing: Framing::of(request)?,
            options,
        };
        let is_joined = listener.insert.forwarded && listener.policy == HeaderPolicy::Append;
        if is_joined && !message.values(Forwarding::Forwarded, listener).all(is_quoted_well) {
            return Err(Status::BadRequest);
        }
        Ok(message)
    }

    /// Generates the head.
    fn write(&self, about: &Circumstances<'_>) -> Vec<u8> {
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
        for field in self.request.fields().iter().filter(|f| self.passes(f.name, about.listener)) {
            write_field(&mut out, field.name, [field.value].into_iter());
        }
        // Writing to a Vec cannot fail.
        let _ = match self.framing {
            Framing::Absent => Ok(()),
            Framing::Length(length) => write_text(&mut out, "Content-Length", &length),
            Framing::Chunked => write_text(&mut out, "Transfer-Encoding", &"chunked"),
        };
        self.write_forwarding(&mut out, about);
        self.write_connection(&mut out, about.listener);
        out.extend_from_slice(b"\r\n");
        out
    }

    /// Returns whether a field is passed on in its place.
    fn passes(&self, name: &str, listener: &Listener) -> bool {
        let is_kept = match fields::kind(name) {
            Kind::EndToEnd => true,
            Kind::Generated | Kind::Dropped => false,
            // Those to which we add something are written as one line, after all others.
            Kind::Forwarding(field) => {
                !is_inserted(field, listener.insert) && is_believed(field, listener.policy)
            }
        };
        is_kept && !self.options.has(name.as_bytes())
    }

    /// The values that the client sent of a field to which we add, if they are believed.
    fn values(
        &self,
        field: Forwarding,
        listener: &Listener,
    ) -> impl Iterator<Item = &'b [u8]> + use<'_, 'b> {
        // X-Forwarded-Proto is no list: what a client made up would be read before ours.
        let is_list = field != Forwarding::XForwardedProto;
        let is_believed = is_list && is_believed(field, listener.policy);
        let fields = self.request.fields().iter();
        let same = move |name| fields::kind(name) == Kind::Forwarding(field);
        fields.filter(move |f| is_believed && same(f.name)).map(|f| f.value)
    }

    fn write_forwarding(&self, out: &mut Vec<u8>, about: &Circumstances<'_>) {
        let (listener, client) = (about.listener, about.client.addr);
        let insert = listener.insert;
        let mut add = |field: Forwarding, name: &str, ours: &str| {
            let theirs = self.values(field, listener).filter(|value| !value.is_empty());
            write_field(out, name, theirs.chain([ours.as_bytes()]));
        };
        if insert.x_forwarded_for {
            add(Forwarding::XForwardedFor, "X-Forwarded-For", &client.to_string());
        }
        if insert.x_forwarded_proto {
            add(Forwarding::XForwardedProto, "X-Forwarded-Proto", "http");
        }
        if insert.forwarded {
            // RFC 7239 section 6: IPv6 in brackets, and then in quotes.
            let node = |addr: core::net::IpAddr| match addr {
                core::net::IpAddr::V4(v4) => v4.to_string(),
                core::net::IpAddr::V6(v6) => format!("\"[{v6}]\""),
            };
            let ours = format!("for={};by={};proto=http", node(client), node(about.local.addr));
            add(Forwarding::Forwarded, "Forwarded", &ours);
        }
        if insert.via {
            let ours = format!("1.{} {}", self.request.minor.min(1), about.name);
            add(Forwarding::Via, "Via", &ours);
        }
    }

    /// Writes what the backend shall know of the connection: the fields of the client's hop are not
    /// passed on, but since everything behind the head is relayed, what it wants is.
    fn write_connection(&self, out: &mut Vec<u8>, listener: &Listener) {
        let is_1_0 = self.request.minor == 0;
        let all = |name: &'static str| {
            let fields = self.request.fields().iter();
            fields.filter(move |f| f.name.eq_ignore_ascii_case(name)).map(|f| f.value)
        };
        // RFC 9110 section 10.1.1: HTTP/1.0 has no expectations; there is only one that we know.
        if !is_1_0 && all("expect").next().is_some() {
            write_field(out, "Expect", [&b"100-continue"[..]].into_iter());
        }
        let carries_one = !listener.keep_alive || listener.policy == HeaderPolicy::Replace;
        if carries_one || self.options.has(b"close") {
            return write_field(out, "Connection", [&b"close"[..]].into_iter());
        }
        // RFC 9113 section 3.1 has withdrawn h2c: it would hide requests from everybody.
        let is_h2c = |protocol: &&[u8]| {
            protocol.get(..3).is_some_and(|start| start.eq_ignore_ascii_case(b"h2c"))
        };
        let mut protocols = all("upgrade").flat_map(fields::list).filter(|p| !is_h2c(p)).peekable();
        // RFC 9110 section 7.8: only with the option, and not from HTTP/1.0.
        if !is_1_0 && self.options.has(b"upgrade") && protocols.peek().is_some() {
            write_field(out, "Upgrade", protocols);
            return write_field(out, "Connection", [&b"upgrade"[..]].into_iter());
        }
        if is_1_0 && self.options.has(b"keep-alive") {
            write_field(out, "Connection", [&b"keep-alive"[..]].into_iter());
        }
    }
}

/// Returns whether we add to a field.
const fn is_inserted(field: Forwarding, insert: Insert) -> bool {
    match field {
        Forwarding::XForwardedFor => insert.x_forwarded_for,
        Forwarding::XForwardedProto => insert.x_forwarded_proto,
        Forwarding::Forwarded => insert.forwarded,
        Forwarding::Via => insert.via,
        Forwarding::Other => false,
    }
}

/// Returns whether the client's value of a field is passed on. Via names the proxies on the way,
/// which servers use only to find loops.
fn is_believed(field: Forwarding, policy: HeaderPolicy) -> bool {
    match field {
        Forwarding::Via => true,
        _ => policy == HeaderPolicy::Append,
    }
}

/// Returns whether each quoted string ends (RFC 9110 section 5.6.4): in one that does not,
/// what we add to the list would be part of the string.
fn is_quoted_well(value: &[u8]) -> bool {
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

/// The part of a request that is hashed for a pool that hashes.
pub(crate) const fn key(by: HashBy, source: u64, name: Option<u64>) -> u64 {
    match (by, name) {
        (HashBy::Host, Some(name)) => name,
        _ => source,
    }
}

#[cfg(test)]
mod tests;
