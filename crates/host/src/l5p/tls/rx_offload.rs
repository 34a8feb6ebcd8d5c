//! Receive contexts of a session: requested, resynchronized, and their work reverted if the host
//! must decrypt a record itself.
//!
//! Called by [`super::HostTlsSession`] and [`super::receive`]. Claims of the device are never
//! trusted: a record counts as decrypted only if every byte was decrypted by a context with the
//! record's keys, as the record that the host expects, and one of its frames carries the claim that
//! the tag was verified ([`TlsRxOffload::is_decrypted`]).

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::ops::Range;

use abi::crypto::TAG_BYTES;
use abi::l5o::{L5oCreate, L5oDecrypted, L5oDirection, L5oId, L5oState, ResyncMode, ResyncRequest};
use abi::{Op, Refusal};
use base::SeqNum;
use wire::tls::{HEADER_BYTES, TlsRecordHeader};

use super::record::TlsRecordKeys;
use crate::l5p::L5pConnection;
use crate::net::outbox::Outbox;
use crate::rate_limit::RateLimiter;
use crate::tcp::conn::TcpEnv;
use crate::tcp::rcv::RxSegmentPiece;

/// Bound on former keys whose decryption may still have to be reverted, against peers that change
/// their keys again and again.
const OLD_KEYS_MAX: usize = 4;
/// Bound on former contexts of any keys, against devices that reset again and again.
const OLD_CONTEXTS_MAX: usize = 64;
/// Bound on the contexts that a connection requests per second, against peers that change their
/// keys again and again.
const CONTEXTS_PER_SECOND: u32 = 64;
/// Undecrypted records before the first hint to the device, and the maximum between two hints:
/// Linux's `TLS_DEVICE_RESYNC_NH_START_IVAL` and `_MAX_IVAL`.
const HINT_AFTER: (u32, u32) = (2, 128);
/// Headers in the log of an asynchronous request: Linux's `TLS_DEVICE_RESYNC_ASYNC_LOGMAX`.
const LOG_MAX: usize = 13;

/// A context that is no longer in use.
#[derive(Debug)]
struct FormerRxContext {
    context: L5oId,
    keys: Arc<TlsRecordKeys>,
    /// Position after the last byte that it may have decrypted.
    until: u64,
}

/// Record boundaries seen since an asynchronous request began.
#[derive(Debug)]
struct ResyncLog {
    from: u64,
    until: u64,
    seen: VecDeque<(u64, u64)>,
}

/// Position and number of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordBoundary {
    pub(super) position: u64,
    pub(super) number: u64,
}

/// The receive offload of a session.
#[derive(Debug)]
pub(super) struct TlsRxOffload {
    /// The current context, or why there is none.
    context: Result<L5oId, Refusal>,
    keys: Arc<TlsRecordKeys>,
    former: VecDeque<FormerRxContext>,
    creation_limit: RateLimiter,
    mode: ResyncMode,
    /// Received bytes at which a device whose table was full is asked again.
    request_at: Option<u64>,
    /// Position about which the device asked.
    asked: Option<u64>,
    log: Option<Box<ResyncLog>>,
    /// Consecutive records that the device did not decrypt completely.
    undecrypted: u32,
    /// Value of `undecrypted` that triggers the next hint.
    hint_at: u32,
}

impl TlsRxOffload {
    pub(super) fn new(keys: Arc<TlsRecordKeys>, why: Refusal) -> Self {
        Self {
            context: Err(why),
            keys,
            former: VecDeque::new(),
            creation_limit: RateLimiter::new(CONTEXTS_PER_SECOND),
            mode: ResyncMode::StreamScan,
            request_at: None,
            asked: None,
            log: None,
            undecrypted: 0,
            hint_at: HINT_AFTER.0,
        }
    }

    /// Returns whether the device may have decrypted received bytes.
    pub(super) fn is_active(&self) -> bool {
        self.context.is_ok() || !self.former.is_empty()
    }

    /// Returns whether the stream must be followed: the device waits for an answer or for hints,
    /// former contexts can be dropped, or a context can be requested.
    pub(super) fn must_follow(&self) -> bool {
        self.asked.is_some()
            || self.log.is_some()
            || !self.former.is_empty()
            || self.mode == ResyncMode::NextHint
            || self.can_install_postponed()
    }

    pub(super) const fn state(&self) -> Result<(), Refusal> {
        match self.context {
            Ok(_) => Ok(()),
            Err(why) => Err(why),
        }
    }

    /// Returns the current context, or why there is none.
    pub(super) const fn context(&self) -> Result<L5oId, Refusal> {
        self.context
    }

    /// Requests a receive context that decrypts from `next` on.
    pub(super) fn install(
        &mut self,
        conn: &L5pConnection,
        cx: &mut TcpEnv<'_>,
        next: RecordBoundary,
    ) {
        self.request_at = None;
        let limits = match cx.out.offloads.l5o {
            Ok(limits) if limits.tls_rx => limits,
            Ok(_) => return self.context = Err(Refusal::NotSupported),
            Err(why) => return self.context = Err(why),
        };
        if !self.has_room() || !self.creation_limit.allows(cx.now) {
            let late = Err(Refusal::KeysChangeTooOften);
            cx.out.counters.tls_rx_device_put_off += u64::from(self.context != late);
            return self.context = late;
        }
        let context = cx.out.new_context();
        let create = L5oCreate {
            context,
            flow: conn.flow,
            direction: L5oDirection::Receive(conn.tuple),
            tcpsn: conn.rcv.seq(next.position),
            state: L5oState::Tls(self.keys.state(next.number)),
        };
        cx.out.ops.push_back(Op::L5oCreate(Box::new(create)));
        cx.out.counters.tls_rx_device += 1;
        (self.context, self.mode) = (Ok(context), limits.resync);
        self.undecrypted = 0;
    }

    /// Returns whether the bounds on former contexts permit another one.
    fn has_room(&self) -> bool {
        let keys = self.former.iter().map(|old| &old.keys);
        let changes = keys.clone().zip(keys.skip(1)).filter(|(a, b)| !Arc::ptr_eq(a, b)).count();
        changes < OLD_KEYS_MAX && self.former.len() < OLD_CONTEXTS_MAX
    }

    /// Returns whether a context that was postponed can be requested now.
    pub(super) fn can_install_postponed(&self) -> bool {
        self.context == Err(Refusal::KeysChangeTooOften) && self.has_room()
    }

    /// Replaces the keys, or with equal keys gives up a context that has become useless.
    pub(super) fn retire(&mut self, out: &mut Outbox, edge: u64, keys: Arc<TlsRecordKeys>) {
        self.forget_context(Some(out), edge, Refusal::DeviceReset);
        self.keys = keys;
    }

    /// Notes that the device refused the context, which thus never decrypted anything, when
    /// `received` bytes had arrived.
    pub(super) fn handle_refused(&mut self, why: Refusal, received: u64) {
        self.context = Err(why);
        self.request_at = why.next_request_at(received);
    }

    /// Returns whether the device is to be asked again, after `received` bytes.
    pub(super) fn is_request_due(&self, received: u64) -> bool {
        self.request_at.is_some_and(|at| at <= received)
    }

    /// Notes that the device has lost its contexts, except those that it creates from operations
    /// still in the ring.
    pub(super) fn handle_lost(&mut self, out: &mut Outbox, edge: u64, why: Refusal) {
        self.forget_context(Some(out), edge, why);
    }

    fn forget_context(&mut self, out: Option<&mut Outbox>, edge: u64, why: Refusal) {
        if let Ok(context) = core::mem::replace(&mut self.context, Err(why)) {
            self.former.push_back(FormerRxContext {
                context,
                keys: self.keys.clone(),
                until: edge,
            });
            if let Some(out) = out {
                out.ops.push_back(Op::L5oDestroy { context });
            }
        }
        (self.asked, self.log) = (None, None);
    }

    /// Returns whether a context is the current one.
    pub(super) fn is_current(&self, context: L5oId) -> bool {
        self.context == Ok(context)
    }

    /// Destroys the current context. Its decryption may still have to be reverted, since the
    /// application may read what arrived before the end at any time.
    pub(super) fn release(&mut self, out: &mut Outbox) {
        self.forget_context(Some(out), u64::MAX, Refusal::Disabled);
    }

    fn keys_of(&self, context: L5oId) -> Option<&Arc<TlsRecordKeys>> {
        if self.is_current(context) {
            return Some(&self.keys);
        }
        self.former.iter().find(|old| old.context == context).map(|old| &old.keys)
    }

    /// Returns whether the device decrypted and verified the record `number`, whose bytes are
    /// `pieces`. Unencrypted parts (header, explicit nonce, tag) may lie in packets of which
    /// nothing was decrypted.
    pub(super) fn is_decrypted<'a>(
        &self,
        pieces: impl Iterator<Item = RxSegmentPiece<'a>>,
        number: u64,
        len: usize,
    ) -> bool {
        let text = self.keys.framing.full_header_len()..len.saturating_sub(TAG_BYTES);
        let (mut context, mut verified, mut offset) = (None, false, 0);
        for piece in pieces {
            let begin = offset;
            offset += piece.bytes().len();
            let here = text.start.max(begin)..text.end.min(offset);
            match &piece.metadata().decrypted {
                Some(opened) if *context.get_or_insert(opened.context) == opened.context => {
                    verified |= opened.verified.contains(&number);
                    let record = RecordClaim { number, len, ..RecordClaim::default() };
                    if !here.is_empty()
                        && !self.is_decrypted_as(&piece, opened, begin, here, record)
                    {
                        return false;
                    }
                }
                None if here.is_empty() => {}
                _ => return false,
            }
        }
        let right =
            context.and_then(|c| self.keys_of(c)).is_some_and(|k| Arc::ptr_eq(k, &self.keys));
        verified && right && offset == len
    }

    /// Returns whether the bytes `here` of a record, of which the piece has those from `begin` on,
    /// were decrypted as part of that record.
    fn is_decrypted_as(
        &self,
        piece: &RxSegmentPiece<'_>,
        opened: &L5oDecrypted,
        begin: usize,
        here: Range<usize>,
        record: RecordClaim,
    ) -> bool {
        let (segment, at) = piece.segment();
        let (from, to) = (at + here.start - begin, at + here.end - begin);
        let within = as_usize(opened.range.start) <= from && to <= as_usize(opened.range.end);
        let start = as_signed(at) - as_signed(begin);
        within
            && self.claim(opened, segment, from).is_some_and(|claim| {
                (claim.number, claim.len, claim.start) == (record.number, record.len, start)
            })
    }

    /// Returns the device's claim about the byte `at` of a segment.
    fn claim(&self, opened: &L5oDecrypted, segment: &[u8], at: usize) -> Option<RecordClaim> {
        RecordClaims::new(self.keys_of(opened.context)?, opened, segment)
            .find(|claim| as_signed(at) < claim.start + as_signed(claim.len))
    }

    /// Restores the received ciphertext in `out`, a copy of `piece`: applying the keystream again
    /// reverts the decryption. Returns whether there was anything to restore.
    pub(super) fn restore(&self, piece: &RxSegmentPiece<'_>, out: &mut [u8]) -> bool {
        let Some(opened) = &piece.metadata().decrypted else { return false };
        let Some(keys) = self.keys_of(opened.context) else { return false };
        let (segment, at) = piece.segment();
        let from = at.max(as_usize(opened.range.start));
        let to = (at + out.len()).min(as_usize(opened.range.end));
        let front = as_signed(keys.framing.full_header_len());
        for claim in RecordClaims::new(keys, opened, segment) {
            let text = claim.start + front;
            let text_end = claim.start + as_signed(claim.len) - as_signed(TAG_BYTES);
            let here = text.max(as_signed(from))..text_end.min(as_signed(to));
            if here.start < here.end {
                let range = (here.start - as_signed(at))..(here.end - as_signed(at));
                let (Ok(start), Ok(end), Ok(offset)) = (
                    usize::try_from(range.start),
                    usize::try_from(range.end),
                    u64::try_from(here.start - text),
                ) else {
                    return true;
                };
                keys.restore(claim.number, claim.explicit, offset, &mut out[start..end]);
            }
            if claim.start + as_signed(claim.len) >= as_signed(to) {
                break;
            }
        }
        from < to
    }

    /// Counts a record for the hints of [`ResyncMode::NextHint`].
    pub(super) const fn note_record(&mut self, whole: bool) {
        if whole {
            (self.undecrypted, self.hint_at) = (0, HINT_AFTER.0);
        } else {
            self.undecrypted = self.undecrypted.saturating_add(1);
        }
    }

    /// Notes that the stream was read up to a boundary: former contexts before it are dropped, and
    /// it is logged.
    pub(super) fn advance(&mut self, at: RecordBoundary) {
        while self.former.front().is_some_and(|old| old.until <= at.position) {
            self.former.pop_front();
        }
        if let Some(log) = &mut self.log {
            let within = (log.from..log.until).contains(&at.position);
            if within
                && log.seen.len() < LOG_MAX
                && log.seen.back().is_none_or(|s| s.0 != at.position)
            {
                log.seen.push_back((at.position, at.number));
            }
        }
    }

    /// Handles `l5o_resync_rx_req`.
    pub(super) fn handle_request(
        &mut self,
        conn: &L5pConnection,
        cx: &mut TcpEnv<'_>,
        request: ResyncRequest,
    ) {
        let Ok(context) = self.context else { return };
        let position = |seq: SeqNum| conn.rcv.position(seq);
        match request {
            ResyncRequest::Scan { tcpsn } => self.asked = position(tcpsn),
            ResyncRequest::AsyncStart { tcpsn, len } => {
                let from = position(tcpsn).unwrap_or(0);
                let until = from + u64::from(len);
                self.log = Some(Box::new(ResyncLog { from, until, seen: VecDeque::new() }));
            }
            ResyncRequest::AsyncEnd { tcpsn } => {
                let log = self.log.take();
                let seen = |p: u64| log.as_ref()?.seen.iter().find(|s| s.0 == p).map(|s| s.1);
                self.asked = position(tcpsn);
                if let Some(number) = self.asked.and_then(seen) {
                    self.asked = None;
                    respond(cx.out, context, tcpsn, Some(number));
                }
            }
            ResyncRequest::AsyncCancel => (self.asked, self.log) = (None, None),
        }
    }

    /// Answers the device's question once the stream shows the answer, or sends a hint if one is
    /// due. `boundaries` are those of the current record and of the following ones whose headers
    /// have arrived.
    pub(super) fn answer(
        &mut self,
        conn: &L5pConnection,
        cx: &mut TcpEnv<'_>,
        drained: bool,
        boundaries: impl Iterator<Item = RecordBoundary>,
    ) {
        let Ok(context) = self.context else { return };
        let hint = self.mode == ResyncMode::NextHint && drained && self.undecrypted >= self.hint_at;
        if self.asked.is_none() && !hint {
            return;
        }
        for at in boundaries {
            let seq = conn.rcv.seq(at.position);
            if hint {
                self.hint_at = (self.hint_at * 2).min(HINT_AFTER.1);
                self.undecrypted = 0;
                return respond(cx.out, context, seq, Some(at.number));
            }
            match self.asked {
                Some(asked) if asked <= at.position => {
                    self.asked = None;
                    let number = (asked == at.position).then_some(at.number);
                    return respond(cx.out, context, conn.rcv.seq(asked), number);
                }
                _ => {}
            }
        }
    }
}

fn respond(out: &mut Outbox, context: L5oId, tcpsn: SeqNum, number: Option<u64>) {
    out.counters.tls_rx_device_resync += u64::from(number.is_some());
    out.ops.push_back(Op::L5oResyncRxResp { context, tcpsn, number });
}

/// The device's claim about bytes of a segment.
#[derive(Clone, Copy, Debug, Default)]
struct RecordClaim {
    number: u64,
    explicit: [u8; 8],
    /// Offset of the record's first byte from the start of the segment; may be negative.
    start: i64,
    len: usize,
}

/// The records that the device saw in the decrypted part of a segment, in order.
struct RecordClaims<'a> {
    keys: &'a TlsRecordKeys,
    segment: &'a [u8],
    next: Option<RecordClaim>,
    end: i64,
}

impl<'a> RecordClaims<'a> {
    fn new(keys: &'a TlsRecordKeys, opened: &L5oDecrypted, segment: &'a [u8]) -> Self {
        let next = RecordClaim {
            number: opened.number,
            explicit: opened.explicit_nonce,
            start: i64::from(opened.range.start) - i64::from(opened.offset),
            len: as_usize(opened.message_len),
        };
        Self { keys, segment, next: Some(next), end: i64::from(opened.range.end) }
    }

    fn follow(&self, claim: &RecordClaim) -> Option<RecordClaim> {
        let start = claim.start + as_signed(claim.len);
        if start >= self.end || claim.len == 0 {
            return None;
        }
        let header = self.segment.get(usize::try_from(start).ok()?..)?;
        let TlsRecordHeader { len, .. } = self.keys.framing.parse(*header.first_chunk()?)?;
        let mut explicit = [0; 8];
        if let Some(sent) = header.get(HEADER_BYTES..HEADER_BYTES + 8) {
            explicit.copy_from_slice(sent);
        }
        let len = HEADER_BYTES + usize::from(len);
        Some(RecordClaim { number: claim.number.wrapping_add(1), explicit, start, len })
    }
}

impl Iterator for RecordClaims<'_> {
    type Item = RecordClaim;
    fn next(&mut self) -> Option<RecordClaim> {
        let claim = self.next?;
        self.next = self.follow(&claim);
        Some(claim)
    }
}

const fn as_usize(value: u32) -> usize {
    value as usize
}

fn as_signed(value: usize) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
