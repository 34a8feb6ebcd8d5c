//! One connection: requests in, responses out, in order, until one side has had enough.
//!
//! [`super::server`] calls it when the socket's readiness changed, when a file it waits for was
//! opened, and when its deadline is over. A request that lies whole in the host's receive buffer is
//! answered from there; only one that comes in pieces is gathered in a buffer of its own. While a
//! file is being opened the request stays where it is and is decided again afterwards, so an idle
//! connection costs this struct and nothing else.
//!
//! Head and body are written one after the other and the host cuts segments only when the driver
//! polls it, so that head and first bytes of the body share a segment without corking.

use core::net::IpAddr;
use std::collections::VecDeque;

use abi::{FileFault, FileId, Refusal};
use base::Instant;
use bytes::Bytes;
use host::{SendError, SocketError};

use super::Config;
use super::answer::{Arrived, Circumstances, Decision, Responder, Service};
use super::body::Discard;
use super::files::Waiter;
use super::gather::{HeadLimits, gather};
use super::response::{Piece, Plan};
use super::sockets::Sockets;
use super::status::Status;

/// Bytes written but not acknowledged above which no further request of a pipeline is answered.
const PIPELINE_BYTES_MAX: u64 = 64 * 1024;

/// All that a connection needs from outside.
pub(crate) struct Context<'a, S> {
    pub(crate) now: Instant,
    pub(crate) host: &'a mut S,
    pub(crate) responder: &'a mut Responder,
    pub(crate) config: &'a Config,
}

/// RFC 9110 section 15.2.1.
const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on.
    Keep,
    /// It is over, and the socket was let go.
    Gone,
}

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The first byte of a request.
    Idle,
    /// The rest of a request's head.
    Head,
    /// The rest of a request's content.
    Content,
    /// A file.
    Opening,
    /// The peer's acknowledgments, and then its FIN: nothing is answered any more. What still comes
    /// is thrown away, for a reset in answer to it could destroy the last response on its way (RFC
    /// 9112 section 9.6).
    Closing,
}

/// Whether there is more to do at once.
enum Step {
    Again,
    Wait,
    Gone,
}

/// A request that came in pieces, or has content.
#[derive(Debug, Default)]
struct Partial {
    bytes: Vec<u8>,
    /// The empty line that ends a head is in it, or more bytes than a head or its first line may
    /// have.
    complete: bool,
    /// Its content, while that is read.
    discard: Option<Discard>,
    /// What became of that.
    content: Arrived,
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Connection<I> {
    pub(crate) socket: I,
    /// Tells it from those that had the same place in the table.
    pub(crate) serial: u32,
    /// Requests answered.
    served: u32,
    phase: Phase,
    service: Service,
    /// Not everything was acknowledged when we last looked: the deadline is that of sending.
    sending: bool,
    /// Our direction is closed.
    shut: bool,
    /// The last request was answered and has no content: the host may see to the end alone.
    parting: bool,
    /// When to call [`Self::handle_timeout`].
    pub(crate) deadline: Instant,
    /// Bytes given to the host.
    written: u64,
    /// Those of them that were acknowledged when the deadline was set.
    acknowledged: u64,
    partial: Option<Box<Partial>>,
    /// What the host had no room for.
    #[expect(clippy::box_collection, reason = "nearly always none: eight bytes instead of 32")]
    pending: Option<Box<VecDeque<Piece>>>,
    /// The file that was sent last.
    file: Option<FileId>,
}

impl<I: Copy + Eq> Connection<I> {
    /// A connection that was just accepted.
    pub(crate) fn new(
        socket: I,
        serial: u32,
        service: Service,
        now: Instant,
        config: &Config,
    ) -> Self {
        Self {
            socket,
            serial,
            served: 0,
            phase: Phase::Idle,
            service,
            sending: false,
            shut: false,
            parting: false,
            deadline: now + config.header_timeout,
            written: 0,
            acknowledged: 0,
            partial: None,
            pending: None,
            file: None,
        }
    }

    /// The socket's readiness changed.
    pub(crate) fn handle_readiness<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        if let Some(error) = cx.host.readiness(self.socket).error {
            return self.lost(cx, error);
        }
        self.advance(cx)
    }

    /// The file that it waited for was opened, or not.
    pub(crate) fn handle_opened<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        result: Result<(), FileFault>,
    ) -> Fate {
        if self.phase != Phase::Opening {
            return Fate::Keep;
        }
        self.phase = if self.partial.is_some() { Phase::Head } else { Phase::Idle };
        // The deadline was set when the wait began, and not since.
        let since = self.deadline - cx.config.send_timeout;
        match self.answer(cx, Some((result, since))) {
            Step::Gone => Fate::Gone,
            Step::Wait | Step::Again => self.advance(cx),
        }
    }

    /// No more requests are wanted: one that was answered and asks nothing is closed.
    pub(crate) fn handle_drain<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        if self.phase != Phase::Idle || self.served == 0 {
            return Fate::Keep;
        }
        self.begin_closing(cx);
        self.close_when_done(cx)
    }

    /// The deadline is over.
    pub(crate) fn handle_timeout<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        match self.phase {
            Phase::Idle | Phase::Closing if self.sending => self.check_progress(cx),
            Phase::Idle => {
                let counters = &mut cx.responder.counters;
                match self.served {
                    0 => counters.http_timeouts_header += 1,
                    _ => counters.http_timeouts_keepalive += 1,
                }
                self.begin_closing(cx);
                self.close_when_done(cx)
            }
            Phase::Head => {
                cx.responder.counters.http_timeouts_header += 1;
                self.give_up(cx, Status::RequestTimeout)
            }
            Phase::Content => {
                cx.responder.counters.http_timeouts_content += 1;
                self.give_up(cx, Status::RequestTimeout)
            }
            Phase::Opening => {
                cx.responder.counters.http_timeouts_open += 1;
                self.give_up(cx, Status::ServiceUnavailable)
            }
            Phase::Closing => {
                cx.responder.counters.http_timeouts_linger += 1;
                self.leave(cx);
                Fate::Gone
            }
        }
    }

    /// The files of pieces that the host never got: the connection is over.
    pub(crate) fn abandoned(&self) -> impl Iterator<Item = FileId> + '_ {
        self.pending.iter().flat_map(|pending| pending.iter()).filter_map(|piece| match piece {
            Piece::File { file, .. } => Some(*file),
            Piece::Bytes(_) => None,
        })
    }

    /// Answers all requests that are there, as far as the send queue allows.
    fn advance<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        loop {
            match self.phase {
                Phase::Opening => return Fate::Keep,
                Phase::Closing => return self.close_when_done(cx),
                Phase::Idle | Phase::Head | Phase::Content => {}
            }
            let step = match self.phase {
                Phase::Content => self.discard_content(cx),
                _ => self.next_request(cx),
            };
            match step {
                Step::Again => {}
                Step::Wait => break,
                Step::Gone => return Fate::Gone,
            }
        }
        if self.pending.is_some() {
            return Fate::Keep;
        }
        let ready = cx.host.readiness(self.socket);
        if ready.peer_closed {
            // No request can come any more; one that was cut off is worth no answer.
            let cut = self.partial.take().is_some();
            cx.responder.counters.http_aborted_peer += u64::from(cut);
            self.begin_closing(cx);
            return self.close_when_done(cx);
        }
        if self.sending && ready.drained && self.phase == Phase::Idle {
            self.sending = false;
            self.deadline = cx.now + cx.config.keepalive_timeout;
        }
        Fate::Keep
    }

    fn next_request<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Step {
        match self.flush(cx) {
            Ok(true) => {}
            Ok(false) => return Step::Wait,
            Err(error) => return self.send_failed(cx, error),
        }
        // The rest of a pipeline waits in the receive buffer, and at last in the client: drained or
        // writable comes.
        if cx.host.send_queue(self.socket) > PIPELINE_BYTES_MAX {
            return Step::Wait;
        }
        if self.partial.is_some() {
            if !self.gather(cx) {
                return Step::Wait;
            }
        } else {
            // RFC 9112 section 2.2: empty lines before a request line are ignored. They start no
            // deadline.
            let bytes = cx.host.peek(self.socket);
            let empty = bytes.iter().take_while(|b| matches!(b, b'\r' | b'\n')).count();
            if empty > 0 {
                cx.host.consume(self.socket, empty);
                return Step::Again;
            }
        }
        self.answer(cx, None)
    }

    /// Decides about the bytes at the front and does what was decided.
    fn answer<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        opened: Option<(Result<(), FileFault>, Instant)>,
    ) -> Step {
        let (bytes, content) = match &self.partial {
            Some(partial) => (&partial.bytes[..], partial.content),
            None => (cx.host.peek(self.socket), Arrived::Unread),
        };
        if bytes.is_empty() {
            return Step::Wait;
        }
        let service = match self.service {
            Service::Secure if !cx.host.speaks_tls(self.socket) => Service::Misdirected,
            service => service,
        };
        let log = cx.responder.log.enabled();
        let about = Circumstances {
            remote: if log { self.remote(cx) } else { None },
            opened: opened.map(|(result, _)| result),
            since: opened.map(|(_, since)| since),
            service,
            content,
            last: self.served + 1 >= cx.config.requests_per_connection_max,
            http3: false,
        };
        match cx.responder.decide(cx.now, bytes, about) {
            Decision::Respond(plan, head_bytes) => {
                if self.partial.take().is_none() {
                    cx.host.consume(self.socket, head_bytes);
                }
                self.served += 1;
                self.send_response(cx, &plan)
            }
            Decision::Content { head_bytes, discard, expects_continue } => {
                self.begin_content(cx, head_bytes, discard, expects_continue)
            }
            Decision::Incomplete if self.partial.is_none() => {
                self.partial = Some(Box::default());
                self.phase = Phase::Head;
                self.deadline = cx.now + cx.config.header_timeout;
                Step::Again
            }
            // A head with its end in it is whole, so the parser has said yes or no; here for safety
            // only.
            Decision::Incomplete => match self.give_up(cx, Status::BadRequest) {
                Fate::Keep => Step::Again,
                Fate::Gone => Step::Gone,
            },
            Decision::Open => {
                let Some(file) = open(cx) else {
                    let full = FileFault::Refused(Refusal::TableFull);
                    return self.answer(cx, Some((Err(full), cx.now)));
                };
                cx.responder.begin_open(file, self.waiter::<S>());
                self.wait_for_file(cx, about.since)
            }
            Decision::Join => {
                cx.responder.join_open(self.waiter::<S>());
                self.wait_for_file(cx, about.since)
            }
        }
    }

    /// Puts the head aside, to read the content behind it first.
    fn begin_content<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        head_bytes: usize,
        discard: Discard,
        expects_continue: bool,
    ) -> Step {
        if self.partial.is_none() {
            let bytes = cx.host.peek(self.socket)[..head_bytes].to_vec();
            cx.host.consume(self.socket, head_bytes);
            self.partial = Some(Box::new(Partial { bytes, complete: true, ..Partial::default() }));
        }
        if let Some(partial) = &mut self.partial {
            partial.discard = Some(discard);
        }
        self.phase = Phase::Content;
        self.deadline = cx.now + cx.config.content_timeout;
        // RFC 9110 section 10.1.1: not for content that comes unasked.
        if expects_continue && cx.host.peek(self.socket).is_empty() {
            let piece = Piece::Bytes(Bytes::from_static(CONTINUE));
            if let Err(error) = self.send(cx, piece) {
                return self.send_failed(cx, error);
            }
        }
        Step::Again
    }

    /// Reads content and throws it away; answers the request once nothing of it is left to come.
    fn discard_content<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Step {
        if let Err(error) = self.flush(cx) {
            return self.send_failed(cx, error);
        }
        let Some(partial) = &mut self.partial else { return self.answer(cx, None) };
        if let Some(discard) = &mut partial.discard {
            while !discard.is_done() {
                let bytes = cx.host.peek(self.socket);
                if bytes.is_empty() {
                    return Step::Wait;
                }
                match discard.take(bytes) {
                    Ok(taken) => {
                        cx.responder.counters.http_content_bytes += taken as u64;
                        cx.host.consume(self.socket, taken);
                    }
                    Err(status) => {
                        partial.content = Arrived::Refused(status);
                        break;
                    }
                }
            }
        }
        partial.discard = None;
        if partial.content == Arrived::Unread {
            partial.content = Arrived::Whole;
        }
        self.phase = Phase::Head;
        self.answer(cx, None)
    }

    /// Waits for a file; since when, if it is not the first of the request.
    fn wait_for_file<S: Sockets<Id = I>>(
        &mut self,
        cx: &Context<'_, S>,
        since: Option<Instant>,
    ) -> Step {
        self.phase = Phase::Opening;
        // The disk's time is not the client's fault, but has a bound all the same.
        self.deadline = since.unwrap_or(cx.now) + cx.config.send_timeout;
        Step::Again
    }

    fn remote<S: Sockets<Id = I>>(&self, cx: &Context<'_, S>) -> Option<IpAddr> {
        cx.host.remote(self.socket).map(|remote| remote.addr)
    }

    fn waiter<S: Sockets<Id = I>>(&self) -> Waiter {
        // The host's tables have 32-bit indices.
        let index = u32::try_from(S::index(self.socket)).unwrap_or(u32::MAX);
        Waiter::Connection { index, serial: self.serial }
    }

    /// Takes bytes of a head that comes in pieces, and none beyond its end; says whether it is
    /// whole or too long.
    fn gather<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> bool {
        let Some(partial) = &mut self.partial else { return false };
        while !partial.complete {
            let bytes = cx.host.peek(self.socket);
            if bytes.is_empty() {
                return false;
            }
            let limits = HeadLimits {
                head_bytes_max: cx.config.head_bytes_max,
                line_bytes_max: cx.config.request_line_bytes_max.min(cx.config.head_bytes_max),
            };
            let gathered = gather(&mut partial.bytes, bytes, limits);
            partial.complete = gathered.complete;
            cx.host.consume(self.socket, gathered.taken);
        }
        true
    }

    /// Answers with an error that no whole request led to, and closes.
    fn give_up<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>, status: Status) -> Fate {
        self.partial = None;
        let remote = self.remote(cx);
        let plan = cx.responder.give_up(cx.now, status, remote);
        match self.send_response(cx, &plan) {
            Step::Gone => Fate::Gone,
            Step::Again | Step::Wait => self.close_when_done(cx),
        }
    }

    /// Sends the response that lies in the responder's output.
    fn send_response<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>, plan: &Plan) -> Step {
        if !self.sending {
            self.sending = true;
            self.acknowledged = self.written;
        }
        self.deadline = cx.now + cx.config.send_timeout;
        self.phase = Phase::Idle;
        self.file = plan.file.or(self.file);
        let mut pieces = core::mem::take(&mut cx.responder.output.pieces);
        let result = pieces.drain(..).try_for_each(|piece| self.send(cx, piece));
        // The vector keeps its place, so that nothing is allocated for the next response.
        cx.responder.output.pieces = pieces;
        if let Err(error) = result {
            return self.send_failed(cx, error);
        }
        if plan.close {
            // Content of a request is read here, as long as it takes: it may be more than the host
            // or the device discards.
            self.parting = plan.parting;
            self.begin_closing(cx);
        }
        Step::Again
    }

    /// Gives a piece to the host, or keeps what it has no room for.
    fn send<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        piece: Piece,
    ) -> Result<(), SendError> {
        match &piece {
            Piece::Bytes(bytes) => cx.responder.counters.http_head_bytes += bytes.len() as u64,
            Piece::File { len, .. } => cx.responder.counters.http_body_bytes += len,
        }
        if let Some(pending) = &mut self.pending {
            if let Piece::File { file, .. } = piece {
                cx.responder.files.pin(file);
            }
            pending.push_back(piece);
        } else if let Some(rest) = self.offer(cx, piece)? {
            self.pending = Some(Box::new(VecDeque::from([rest])));
        }
        Ok(())
    }

    /// Gives a piece to the host; returns what it did not take.
    fn offer<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        piece: Piece,
    ) -> Result<Option<Piece>, SendError> {
        match piece {
            Piece::Bytes(bytes) => {
                let taken = cx.host.send(cx.now, self.socket, Bytes::clone(&bytes))?;
                self.written += taken as u64;
                let rest = bytes.slice(taken.min(bytes.len())..);
                Ok((!rest.is_empty()).then_some(Piece::Bytes(rest)))
            }
            Piece::File { file, offset, len } => {
                cx.host.offload_write(cx.now, self.socket, file, offset, len)?;
                self.written += len;
                Ok(None)
            }
        }
    }

    /// Gives the host what it had no room for; says whether nothing is left.
    fn flush<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Result<bool, SendError> {
        while let Some(piece) = self.pending.as_mut().and_then(|p| p.pop_front()) {
            if let Piece::File { file, .. } = piece {
                cx.responder.files.unpin(file);
            }
            if let Some(rest) = self.offer(cx, piece)? {
                if let Some(pending) = &mut self.pending {
                    pending.push_front(rest);
                }
                return Ok(false);
            }
        }
        self.pending = None;
        Ok(true)
    }

    fn begin_closing<S: Sockets<Id = I>>(&mut self, cx: &Context<'_, S>) {
        self.phase = Phase::Closing;
        self.sending = true;
        self.deadline = cx.now + cx.config.send_timeout;
    }

    /// The last steps: everything sent, our direction closed, everything acknowledged, the peer's
    /// direction closed.
    fn close_when_done<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        loop {
            let bytes = cx.host.peek(self.socket).len();
            if bytes == 0 {
                break;
            }
            cx.responder.counters.http_discarded_bytes += bytes as u64;
            cx.host.consume(self.socket, bytes);
        }
        match self.flush(cx) {
            Ok(true) => {}
            Ok(false) => return Fate::Keep,
            Err(error) => {
                self.send_failed(cx, error);
                return Fate::Gone;
            }
        }
        if !self.shut {
            // A client that has closed its direction asks for nothing more either.
            let parting = self.parting || cx.host.readiness(self.socket).peer_closed;
            if parting && cx.config.tear_down {
                self.leave(cx);
                return Fate::Gone;
            }
            self.shut = true;
            cx.host.shutdown(cx.now, self.socket);
        }
        let ready = cx.host.readiness(self.socket);
        if ready.drained && self.sending {
            self.sending = false;
            self.deadline = cx.now + cx.config.linger_timeout;
        }
        if ready.drained && ready.peer_closed {
            cx.host.close(cx.now, self.socket);
            return Fate::Gone;
        }
        Fate::Keep
    }

    /// Leaves the rest to the host: to deliver what was written, and to discard what still comes.
    fn leave<S: Sockets<Id = I>>(&self, cx: &mut Context<'_, S>) {
        cx.host.close_lingering(cx.now, self.socket, cx.config.linger_bytes_max);
    }

    /// The send timeout is over: goes on where the peer acknowledged anything meanwhile.
    fn check_progress<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>) -> Fate {
        let queued = cx.host.send_queue(self.socket);
        let acknowledged = self.written.saturating_sub(queued);
        if acknowledged > self.acknowledged {
            self.acknowledged = acknowledged;
            self.deadline = cx.now + cx.config.send_timeout;
            return Fate::Keep;
        }
        if queued == 0 && self.pending.is_none() {
            self.sending = false;
            self.deadline = cx.now
                + match self.phase {
                    Phase::Closing => cx.config.linger_timeout,
                    _ => cx.config.keepalive_timeout,
                };
            return Fate::Keep;
        }
        cx.responder.counters.http_timeouts_send += 1;
        cx.host.abort(cx.now, self.socket);
        cx.host.close(cx.now, self.socket);
        Fate::Gone
    }

    fn send_failed<S: Sockets<Id = I>>(
        &mut self,
        cx: &mut Context<'_, S>,
        error: SendError,
    ) -> Step {
        match error {
            SendError::NotConnected(error) => {
                self.lost(cx, error);
            }
            // The handle went away under us: what was promised cannot be sent, so the response must
            // not look whole.
            _ => {
                cx.host.abort(cx.now, self.socket);
                self.lost(cx, SocketError::File(FileFault::BadExtent));
            }
        }
        Step::Gone
    }

    /// The connection has ended by itself.
    fn lost<S: Sockets<Id = I>>(&mut self, cx: &mut Context<'_, S>, error: SocketError) -> Fate {
        let counters = &mut cx.responder.counters;
        match error {
            SocketError::File(fault) => {
                counters.http_aborted_file += 1;
                let remote = self.remote(cx);
                cx.responder.file_failed(cx.now, remote, self.file, fault);
            }
            // This side's doing, and all was delivered.
            SocketError::Closed => {}
            _ if self.sending
                || matches!(self.phase, Phase::Head | Phase::Content | Phase::Opening) =>
            {
                counters.http_aborted_peer += 1;
            }
            _ => {}
        }
        cx.host.close(cx.now, self.socket);
        Fate::Gone
    }
}

/// Opens the path that was decided about; gives up files that wait in the cache where the host has
/// no handle left.
fn open<S: Sockets>(cx: &mut Context<'_, S>) -> Option<FileId> {
    let file = cx.host.offload_open(cx.responder.path());
    if file.is_some() {
        return file;
    }
    cx.responder.files.make_room();
    while let Some(file) = cx.responder.files.poll_close() {
        cx.host.offload_close(file);
    }
    cx.host.offload_open(cx.responder.path())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_small() {
        assert!(size_of::<Option<Connection<host::SocketId>>>() <= 96);
    }
}
