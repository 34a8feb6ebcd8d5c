//! Searching and tracking: resynchronization of a receive context that lost the message boundaries
//! (Autonomous NIC Offloads, section 4.3, figure 7).
//!
//! Called by `rx` with bytes for which the chain knows no boundary. *Searching* scans for the magic
//! pattern; the length in a candidate header must lead to another header, and so on to the packet's
//! end. *Tracking* then follows the lengths and counts headers, while the host is asked for the
//! number of one of them. If a header is missing where it should be, scanning starts again.
//!
//! Bounded: a limited number of bytes and candidates per packet, one outstanding request, and
//! packets skipped after each refusal, so that headers forged in ciphertext cost little and lead
//! nowhere. An unanswered request is repeated. Nothing is decrypted here.

use abi::l5o::{ResyncMode, ResyncRequest};
use base::{SeqNum, internal_error};

use super::ResyncRequests;
use super::counters::L5oCounters;
use crate::engine::tls::{FRONT, HEADER, TlsDeviceKeys};

/// Bytes scanned per packet. Any stretch of this length contains a header.
const SCAN_BYTES: usize = 20_480;
/// Candidate headers followed per packet.
const CANDIDATES: usize = 16;
/// Bytes after which an unanswered request is repeated. On most paths the host waits less than this
/// for a hole to be filled.
const RETRY_BYTES: u32 = 1 << 20;
/// Bytes covered by an asynchronous request.
const ASYNC_BYTES: u32 = 2 << 20;
/// Maximum number of packets skipped after a refusal: Linux's `TLS_DEVICE_RESYNC_NH_MAX_IVAL`.
const BACK_OFF_MAX: u32 = 128;
/// Bytes carried over from the previous packet: an incomplete header.
const CARRY: usize = HEADER as usize - 1;

/// State of the search.
#[derive(Clone, Copy, Debug)]
enum RecordSearchPhase {
    Idle,
    Scan,
    /// `headers` headers were seen, the last at `last`; the next is expected at `at`.
    Track {
        at: SeqNum,
        headers: u64,
        last: SeqNum,
    },
}

/// State of the request to the host.
#[derive(Clone, Copy, Debug)]
enum ResyncInquiry {
    /// No request.
    Nothing,
    /// An asynchronous request was started and has not named a header yet.
    Begun,
    /// A request about a header is outstanding.
    Asked(TlsResyncPending),
}

/// An outstanding request.
#[derive(Clone, Copy, Debug)]
struct TlsResyncPending {
    tcpsn: SeqNum,
    /// Number of headers tracked when the request was sent; `None` if tracking has restarted since.
    headers: Option<u64>,
}

/// A search for message boundaries.
#[derive(Debug)]
pub(super) struct RecordSearch {
    mode: ResyncMode,
    /// True if bytes before [`Self::end`] are searched, too, so that a packet that arrives early
    /// does not hide those that it has overtaken. False for the paper's search, which goes through
    /// the stream once.
    out_of_order: bool,
    phase: RecordSearchPhase,
    inquiry: ResyncInquiry,
    /// Bytes that have passed since the request, saturating.
    since: u32,
    /// Last bytes of the previous packet, in which a header may begin.
    carry: [u8; CARRY],
    carried: usize,
    /// End of the previous packet.
    pub(super) end: SeqNum,
    /// Header and explicit nonce of the last tracked message, as much as has arrived.
    pub(super) front: [u8; FRONT],
    /// Valid bytes of `front`.
    pub(super) front_len: u32,
    refusals: u32,
    /// Packets still to be skipped.
    skip_packets: u32,
}

/// A position that the host has confirmed.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConfirmedPosition {
    /// Start of the next message.
    pub(super) at: SeqNum,
    /// Number of the message at `at`.
    pub(super) number: u64,
    /// Start of the message before `at`.
    pub(super) last: SeqNum,
}

/// The meaning of the host's answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum ResyncAnswer {
    /// The position is confirmed.
    Found(ConfirmedPosition),
    /// No message begins there.
    Refused,
    /// The answer belongs to an obsolete request.
    Useless,
}

impl RecordSearch {
    pub(super) const fn new(mode: ResyncMode, out_of_order: bool, end: SeqNum) -> Self {
        Self {
            mode,
            out_of_order,
            phase: RecordSearchPhase::Idle,
            inquiry: ResyncInquiry::Nothing,
            since: 0,
            carry: [0; CARRY],
            carried: 0,
            end,
            front: [0; FRONT],
            front_len: 0,
            refusals: 0,
            skip_packets: 0,
        }
    }

    /// Ends the search, because the boundaries are known. Cancels an asynchronous request.
    pub(super) fn stop(&mut self, requests: &mut ResyncRequests, counters: &mut L5oCounters) {
        if matches!(self.phase, RecordSearchPhase::Idle) && self.asked().is_none() {
            return;
        }
        if self.mode == ResyncMode::Async && !matches!(self.inquiry, ResyncInquiry::Nothing) {
            counters.rx_tls_resync_req_skip +=
                u64::from(matches!(self.inquiry, ResyncInquiry::Begun));
            requests.push(ResyncRequest::AsyncCancel);
        }
        (self.phase, self.inquiry) = (RecordSearchPhase::Idle, ResyncInquiry::Nothing);
        (self.carried, self.refusals, self.skip_packets) = (0, 0, 0);
    }

    /// Scans or tracks bytes without a known boundary. Returns the first header of a chain of
    /// headers that a scan has found.
    pub(super) fn feed(
        &mut self,
        keys: &TlsDeviceKeys,
        seq: SeqNum,
        bytes: &[u8],
        requests: &mut ResyncRequests,
        counters: &mut L5oCounters,
    ) -> Option<SeqNum> {
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        if self.mode == ResyncMode::NextHint {
            return None;
        }
        let searches = !matches!(self.phase, RecordSearchPhase::Idle);
        // Old bytes are not searched again.
        if searches && !self.out_of_order && seq.lt(self.end) {
            return None;
        }
        if seq != self.end {
            self.carried = 0;
        }
        self.since = self.since.saturating_add(len);
        let mut found = None;
        if let RecordSearchPhase::Track { .. } = self.phase {
            self.track(keys, seq, bytes, requests, counters);
        } else {
            found = self.scan_packet(keys, seq, bytes, requests, counters);
        }
        if let RecordSearchPhase::Track { last, .. } = self.phase {
            self.note_front(keys, seq, bytes, last);
        }
        self.carry_over(bytes);
        self.end = seq + len;
        found
    }

    /// Continues the search at `seq`, before bytes that were searched, if it has found no header
    /// yet: a packet that overtook others does not end the search in these. Returns whether it
    /// does.
    pub(super) const fn rewind(&mut self, seq: SeqNum) -> bool {
        let scans = matches!(self.phase, RecordSearchPhase::Scan);
        if scans {
            (self.end, self.carried) = (seq, 0);
        }
        scans
    }

    fn scan_packet(
        &mut self,
        keys: &TlsDeviceKeys,
        seq: SeqNum,
        bytes: &[u8],
        requests: &mut ResyncRequests,
        counters: &mut L5oCounters,
    ) -> Option<SeqNum> {
        if self.skip_packets > 0 {
            self.skip_packets -= 1;
            return None;
        }
        if self.mode == ResyncMode::Async && matches!(self.inquiry, ResyncInquiry::Nothing) {
            self.inquiry = ResyncInquiry::Begun;
            self.since = 0;
            counters.rx_tls_resync_req_start += 1;
            requests.push(ResyncRequest::AsyncStart { tcpsn: seq, len: ASYNC_BYTES });
        }
        self.phase = RecordSearchPhase::Scan;
        let (first, at, headers, last) = self.scan(keys, seq, bytes)?;
        self.phase = RecordSearchPhase::Track { at, headers, last };
        self.ask(last, headers, requests, counters);
        Some(first)
    }

    /// Returns the first header from which the lengths lead through all headers of the packet, with
    /// the position of the next message, the number of headers, and the position of the last of
    /// them.
    fn scan(
        &self,
        keys: &TlsDeviceKeys,
        seq: SeqNum,
        bytes: &[u8],
    ) -> Option<(SeqNum, SeqNum, u64, SeqNum)> {
        // The carried bytes and the start of this packet, to see headers across the boundary.
        let mut seam = [0; 2 * CARRY];
        let across = bytes.len().min(CARRY);
        seam[..self.carried].copy_from_slice(&self.carry[..self.carried]);
        seam[self.carried..self.carried + across].copy_from_slice(&bytes[..across]);
        let base = seq - u32::try_from(self.carried).unwrap_or(0);
        let mut candidates = 0;
        for at in 0..self.carried {
            let Some(len) = keys.length(&seam[at..self.carried + across]) else { continue };
            let behind = (at + len as usize).checked_sub(self.carried);
            if let Some(rest) = behind.and_then(|behind| follow(keys, bytes, behind)) {
                let first = base + u32::try_from(at).unwrap_or(0);
                return Some(place(seq, first, rest));
            }
            candidates += 1;
        }
        let most = bytes.len().min(SCAN_BYTES);
        for (at, window) in bytes[..most].windows(HEADER as usize).enumerate() {
            // Cheap filter: it rejects nearly all positions.
            if window[1] != 3 {
                continue;
            }
            let Some(len) = keys.length(window) else { continue };
            if let Some(rest) = follow(keys, bytes, at + len as usize) {
                return Some(place(seq, seq + u32::try_from(at).unwrap_or(0), rest));
            }
            candidates += 1;
            if candidates == CANDIDATES {
                return None;
            }
        }
        None
    }

    fn track(
        &mut self,
        keys: &TlsDeviceKeys,
        seq: SeqNum,
        bytes: &[u8],
        requests: &mut ResyncRequests,
        counters: &mut L5oCounters,
    ) {
        let RecordSearchPhase::Track { mut at, mut headers, mut last } = self.phase else {
            internal_error!(counters.nic_internal_errors, "nothing is tracked");
            return;
        };
        let before = headers;
        let mut offset = i64::from(at.distance(seq));
        // The header begins in the carried bytes.
        if offset < 0 {
            let begun = usize::try_from(-offset).unwrap_or(usize::MAX);
            let across = bytes.len().min(CARRY);
            let mut seam = [0; 2 * CARRY];
            seam[..self.carried].copy_from_slice(&self.carry[..self.carried]);
            seam[self.carried..self.carried + across].copy_from_slice(&bytes[..across]);
            let Some(from) = self.carried.checked_sub(begun) else {
                // The header lies in a hole, which does not contradict the tracked position.
                if self.out_of_order {
                    return self.scan_again(counters);
                }
                return self.on_missing_header(counters);
            };
            let header = &seam[from..self.carried + across];
            if header.len() < HEADER as usize {
                return;
            }
            let Some(len) = keys.length(header) else { return self.on_missing_header(counters) };
            (last, at, headers) = (at, at + len, headers + 1);
            offset += i64::from(len);
        }
        while let Some(left) = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)) {
            if left.len() < HEADER as usize {
                break;
            }
            let Some(len) = keys.length(left) else { return self.on_missing_header(counters) };
            (last, at, headers) = (at, at + len, headers + 1);
            offset += i64::from(len);
        }
        self.phase = RecordSearchPhase::Track { at, headers, last };
        if headers > before {
            if self.asked().is_some() && self.since > RETRY_BYTES {
                counters.rx_tls_resync_res_retry += 1;
                self.inquiry = ResyncInquiry::Nothing;
            }
            if self.asked().is_none() {
                self.ask(last, headers, requests, counters);
            }
        }
    }

    /// Handles a missing header: the tracked positions are no messages.
    fn on_missing_header(&mut self, counters: &mut L5oCounters) {
        self.scan_again(counters);
        self.back_off();
    }

    /// Discards the tracked position and scans for a header.
    fn scan_again(&mut self, counters: &mut L5oCounters) {
        self.phase = RecordSearchPhase::Scan;
        if let ResyncInquiry::Asked(asked) = &mut self.inquiry {
            counters.rx_tls_resync_req_skip +=
                u64::from(self.mode == ResyncMode::Async && asked.headers.is_some());
            asked.headers = None;
        }
    }

    fn back_off(&mut self) {
        self.skip_packets = (1 << self.refusals.min(7)).min(BACK_OFF_MAX) - 1;
        self.refusals += 1;
    }

    /// Asks the host about the header at `tcpsn`, unless another request is outstanding.
    pub(super) fn ask(
        &mut self,
        tcpsn: SeqNum,
        headers: u64,
        requests: &mut ResyncRequests,
        counters: &mut L5oCounters,
    ) {
        // An answer about a position that is no longer tracked would have no use.
        let replaceable = |asked: TlsResyncPending| self.out_of_order && asked.headers.is_none();
        if self.asked().is_some_and(|asked| !replaceable(asked)) && self.since <= RETRY_BYTES {
            return;
        }
        let begun = matches!(self.inquiry, ResyncInquiry::Begun);
        self.inquiry = ResyncInquiry::Asked(TlsResyncPending { tcpsn, headers: Some(headers) });
        self.since = 0;
        if self.mode == ResyncMode::Async {
            if !begun {
                counters.rx_tls_resync_req_start += 1;
                requests.push(ResyncRequest::AsyncStart { tcpsn, len: ASYNC_BYTES });
            }
            counters.rx_tls_resync_req_end += 1;
            requests.push(ResyncRequest::AsyncEnd { tcpsn });
        } else {
            requests.push(ResyncRequest::Scan { tcpsn });
        }
        counters.rx_tls_resync_req_pkt += 1;
    }

    /// Counts `bytes` bytes as passed. True if the request should be repeated.
    pub(super) const fn is_overdue(&mut self, bytes: u32) -> bool {
        self.since = self.since.saturating_add(bytes);
        self.since > RETRY_BYTES
    }

    /// Handles the host's answer.
    pub(super) fn answer(&mut self, tcpsn: SeqNum, number: Option<u64>) -> ResyncAnswer {
        let Some(asked) = self.asked().filter(|asked| asked.tcpsn == tcpsn) else {
            return ResyncAnswer::Useless;
        };
        self.inquiry = ResyncInquiry::Nothing;
        let (RecordSearchPhase::Track { at, headers, last }, Some(then)) =
            (self.phase, asked.headers)
        else {
            return ResyncAnswer::Useless;
        };
        let Some(number) = number else {
            self.phase = RecordSearchPhase::Scan;
            self.back_off();
            return ResyncAnswer::Refused;
        };
        // The answer numbers the header asked about; the next message follows all headers tracked
        // since.
        let number = number.wrapping_add(headers.wrapping_sub(then)).wrapping_add(1);
        (self.phase, self.refusals) = (RecordSearchPhase::Idle, 0);
        ResyncAnswer::Found(ConfirmedPosition { at, number, last })
    }

    /// Ends the search because the context continues from it with a speculative number; the answer
    /// to the request will still be used. Returns the position of the last tracked header and the
    /// number of headers, if the host was asked about that header.
    pub(super) fn continue_speculatively(&mut self) -> Option<(SeqNum, u64)> {
        let RecordSearchPhase::Track { last, headers, .. } = self.phase else { return None };
        self.phase = RecordSearchPhase::Idle;
        self.carried = 0;
        self.has_asked(last).then_some((last, headers))
    }

    /// Returns whether the host's answer about the header at `tcpsn` is outstanding.
    pub(super) fn has_asked(&self, tcpsn: SeqNum) -> bool {
        self.asked().is_some_and(|asked| asked.tcpsn == tcpsn)
    }

    /// Returns the outstanding request.
    const fn asked(&self) -> Option<TlsResyncPending> {
        match self.inquiry {
            ResyncInquiry::Asked(asked) => Some(asked),
            ResyncInquiry::Nothing | ResyncInquiry::Begun => None,
        }
    }

    /// Clears the outstanding request: the speculative number has been answered.
    pub(super) const fn clear_request(&mut self) {
        if let ResyncInquiry::Asked(_) = self.inquiry {
            self.inquiry = ResyncInquiry::Nothing;
        }
    }

    /// Stores the front of the message at `last`, if its start is in this packet or the carried
    /// bytes.
    fn note_front(&mut self, keys: &TlsDeviceKeys, seq: SeqNum, bytes: &[u8], last: SeqNum) {
        let offset = last.distance(seq);
        let begun = usize::try_from(-i64::from(offset)).unwrap_or(0);
        let from = usize::try_from(offset).unwrap_or(0);
        let (Some(at), Some(rest)) = (self.carried.checked_sub(begun), bytes.get(from..)) else {
            return;
        };
        let before = &self.carry[at..self.carried];
        let front = before.iter().take(begun).chain(rest);
        self.front_len = 0;
        for (place, byte) in self.front[..keys.front() as usize].iter_mut().zip(front) {
            *place = *byte;
            self.front_len += 1;
        }
    }

    /// Keeps the last bytes of a packet, in which a header may begin.
    fn carry_over(&mut self, bytes: &[u8]) {
        let new = bytes.len().min(CARRY);
        let keep = self.carried.min(CARRY - new);
        self.carry.copy_within(self.carried - keep..self.carried, 0);
        self.carry[keep..keep + new].copy_from_slice(&bytes[bytes.len() - new..]);
        self.carried = keep + new;
    }
}

/// Follows the lengths from `at` to the end of `bytes`; `None` if a position holds no header.
/// Returns the position of the next message, the number of headers including the one that led to
/// `at`, and the position of the last header in `bytes`, if any.
fn follow(
    keys: &TlsDeviceKeys,
    bytes: &[u8],
    mut at: usize,
) -> Option<(usize, u64, Option<usize>)> {
    let (mut headers, mut last) = (1, None);
    while let Some(left) = bytes.get(at..).filter(|left| left.len() >= HEADER as usize) {
        last = Some(at);
        at += keys.length(left)? as usize;
        headers += 1;
    }
    Some((at, headers, last))
}

fn place(
    seq: SeqNum,
    first: SeqNum,
    (at, headers, last): (usize, u64, Option<usize>),
) -> (SeqNum, SeqNum, u64, SeqNum) {
    let offset = |at: usize| seq + u32::try_from(at).unwrap_or(0);
    (first, offset(at), headers, last.map_or(first, offset))
}
