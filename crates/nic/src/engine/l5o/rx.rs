//! A TLS receive context: the states *offloading*, *searching* and *tracking* of Autonomous NIC
//! Offloads, section 4.3, figure 7.
//!
//! Called by the engine with each packet of the flow whose checksum is correct.
//! [`L5oConfig::out_of_order`] selects one of two modes: the paper's, in which only the packet with
//! the expected sequence number is decrypted, or the extended one, in which `chain` decrypts every
//! packet whose position among the messages is known or predictable. Both use `search` if no
//! boundary is known.

use abi::l5o::{L5oDecrypted, L5oId, ResyncMode};
use base::SeqNum;

use super::ResyncRequests;
use super::chain::RecordTracker;
use super::counters::L5oCounters;
use super::message::TrackedMessage;
use super::numbering::{Numbering, NumberingEvent, SpeculativeNumber};
use super::packet::{PacketDecryptedRange, RecordParser};
use super::rx_scratch::RxScratch;
use super::search::{ConfirmedPosition, RecordSearch, ResyncAnswer};
use crate::config::L5oConfig;
use crate::engine::plausibility::{PlausibleWindow, WindowCheck};
use crate::engine::received_ranges::ReceivedRanges;
use crate::engine::tls::{HEADER, TlsDeviceKeys};

/// Most messages in a hole after which a single packet is searched for a header.
const HOLE_MAX: u64 = 2;

/// A TLS receive context.
#[derive(Debug)]
pub(super) struct TlsReceiver {
    chain: RecordTracker,
    search: RecordSearch,
    /// Next sequence number to decrypt, in the paper's mode.
    expected: SeqNum,
    /// End of the highest packet.
    high: SeqNum,
    /// Ends of the two latest runs of consecutive packets, the latest first.
    run_ends: [SeqNum; 2],
    window: PlausibleWindow,
    mode: ResyncMode,
    /// True if the latest packet had no known boundary.
    boundary_lost: bool,
}

impl TlsReceiver {
    pub(super) fn new(config: &L5oConfig, tcpsn: SeqNum, number: u64) -> Self {
        Self {
            chain: RecordTracker::new(tcpsn, number),
            search: RecordSearch::new(config.resync, config.out_of_order, tcpsn),
            expected: tcpsn,
            high: tcpsn,
            run_ends: [tcpsn; 2],
            window: PlausibleWindow::default(),
            mode: config.resync,
            boundary_lost: false,
        }
    }

    /// Returns the number of messages tracked.
    pub(super) fn tracked_messages(&self) -> usize {
        self.chain.list.len()
    }

    /// Processes a packet: decrypts what it can in place, and returns the decrypted range and the
    /// resync requests.
    pub(super) fn packet(
        &mut self,
        id: L5oId,
        keys: &TlsDeviceKeys,
        seq: SeqNum,
        payload: &mut [u8],
        tools: &mut RxScratch,
        counters: &mut L5oCounters,
    ) -> (Option<L5oDecrypted>, ResyncRequests) {
        let mut requests = ResyncRequests::new();
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let end = seq + len;
        tools.release(self.chain.list.len(), counters);
        match self.window.judge(seq.distance(self.high), tools.window_bytes) {
            WindowCheck::InWindow => {}
            WindowCheck::OutOfWindow => {
                counters.l5o_outside_packets += 1;
                tools.decrypted.clear();
                tools.tracked_messages += self.chain.list.len();
                return (None, requests);
            }
            WindowCheck::Reanchor => self.restart(seq, &mut requests, counters),
        }
        tools.high = self.high;
        let (out_of_order, in_order) = (tools.out_of_order, seq == self.high);
        let mut walk = RecordParser::new(keys, seq, payload, tools, counters);
        if out_of_order {
            self.chain.walk(&mut walk);
            self.resync_out_of_order(&mut walk, end, &mut requests);
        } else {
            self.in_order(&mut walk, end, &mut requests);
        }
        if self.chain.numbering().is_wrong() {
            self.ask_number(&mut walk, len, &mut requests);
        }
        if walk.number_proved {
            walk.counters.l5o_self_confirmed += 1;
            self.search.stop(&mut requests, walk.counters);
        }
        let opened = report(id, &mut walk, in_order);
        self.high = self.high.max(end);
        self.chain.compact(self.high, tools, counters);
        self.chain.check();
        tools.tracked_messages += self.chain.list.len();
        (opened, requests)
    }

    /// Re-anchors at `seq` with nothing known.
    fn restart(&mut self, seq: SeqNum, requests: &mut ResyncRequests, counters: &mut L5oCounters) {
        counters.l5o_restarts += 1;
        self.chain.restart(seq, counters);
        self.search.stop(requests, counters);
        self.search.end = seq;
        (self.expected, self.high, self.boundary_lost) = (seq, seq, true);
    }

    /// Asks the host for a number, repeatedly: boundaries are known, but the numbers are wrong.
    fn ask_number(&mut self, walk: &mut RecordParser<'_>, len: u32, requests: &mut ResyncRequests) {
        if self.mode == ResyncMode::NextHint {
            self.chain.lose_boundary(walk.counters);
            self.boundary_lost = true;
            return;
        }
        let guess = self.chain.numbering().speculation();
        let asked = guess.is_some_and(|guess| self.search.has_asked(guess.seq));
        let overdue = self.search.is_overdue(len) && asked;
        // A message with a number of an earlier numbering says nothing about the current one.
        let current = |(base, _): &(SeqNum, u64)| base.ge(self.chain.numbered_from);
        let Some((base, number)) = walk.last_header.filter(current) else { return };
        if overdue || !asked {
            let ask = NumberingEvent::Ask(SpeculativeNumber { seq: base, number });
            self.chain.renumber(ask, walk.counters);
            walk.counters.rx_tls_resync_res_retry += u64::from(overdue);
            self.search.clear_request();
            self.search.ask(base, 0, requests, walk.counters);
        }
    }

    /// Out-of-order mode: searches for a boundary if the chain knows none for the packet, and
    /// continues from one that it finds with a speculative number.
    fn resync_out_of_order(
        &mut self,
        walk: &mut RecordParser<'_>,
        end: SeqNum,
        requests: &mut ResyncRequests,
    ) {
        let news = end.gt(self.high);
        let continues = self.continues_run(walk.seq, end);
        let Some(from) = walk.unknown_from else {
            if news {
                self.boundary_lost = false;
                if self.chain.numbering() == Numbering::Known {
                    self.search.stop(requests, walk.counters);
                }
            }
            return;
        };
        self.boundary_lost |= news;
        if !self.chain.boundary_known && self.chain.numbering().is_wrong() {
            self.chain.renumber(NumberingEvent::Restart, walk.counters);
        }
        let at = walk.seq + u32::try_from(from).unwrap_or(0);
        // A packet far beyond the known boundary probably arrived early: to continue from it would
        // give up the messages between. If a run of packets follows it, these are searched.
        if !continues && self.chain.boundary_known {
            let hole = u32::try_from(at.distance(self.chain.next)).unwrap_or(0);
            if self.chain.between(hole).is_none_or(|messages| messages > HOLE_MAX) {
                return;
            }
        }
        let bytes = &walk.payload[from..];
        let Some(base) = self.search.feed(walk.keys, at, bytes, requests, walk.counters) else {
            return;
        };
        let Ok(offset) = usize::try_from(base.distance(walk.seq)) else { return };
        let gap = u32::try_from(base.distance(self.chain.next)).unwrap_or(0);
        if !self.chain.boundary_known || self.chain.numbering().is_wrong() || gap == 0 {
            return;
        }
        let Some(between) = self.chain.between(gap) else { return };
        let number = self.chain.number.wrapping_add(between);
        self.chain.resume(base, number, walk.counters);
        // The request concerns the last header of the packet.
        let (asked, headers) = self.search.continue_speculatively().unwrap_or((base, 1));
        let last = number.wrapping_add(headers).wrapping_sub(1);
        let guess = SpeculativeNumber { seq: asked, number: last };
        self.chain.renumber(NumberingEvent::Guess(guess), walk.counters);
        (walk.unknown_from, self.boundary_lost) = (None, false);
        self.chain.walk_from(walk, offset);
    }

    /// Returns whether the packet at `seq..end` begins where one of the two latest runs of
    /// consecutive packets ends, and adds it to that run, or else begins a run with it.
    fn continues_run(&mut self, seq: SeqNum, end: SeqNum) -> bool {
        let run = self.run_ends.iter().position(|&run_end| run_end == seq);
        let other = if run == Some(0) { self.run_ends[1] } else { self.run_ends[0] };
        self.run_ends = [end, other];
        run.is_some()
    }

    /// Processes a packet in the paper's mode.
    fn in_order(
        &mut self,
        walk: &mut RecordParser<'_>,
        end: SeqNum,
        requests: &mut ResyncRequests,
    ) {
        let ahead = walk.seq.distance(self.expected);
        if self.chain.boundary_known && ahead < 0 {
            // Figure 8 (a): old data.
            return;
        }
        if self.chain.boundary_known && ahead == 0 {
            self.chain.walk(walk);
            self.expected = end;
            self.chain.drop_before(end, walk.counters);
        } else if self.chain.boundary_known {
            // Figure 8 (b), or (c) if no boundary is known.
            if walk.seq.gt(self.chain.next) {
                walk.unknown_from = Some(0);
            } else if end.gt(self.chain.next) {
                self.chain.skip_to_header(walk);
                self.expected = end;
            }
        } else if walk.seq.ge(self.search.end)
            || !self.boundary_lost
            || self.search.rewind(walk.seq)
        {
            walk.unknown_from = Some(0);
        }
        if let Some(from) = walk.unknown_from {
            self.boundary_lost = true;
            self.chain.lose_boundary(walk.counters);
            let at = walk.seq + u32::try_from(from).unwrap_or(0);
            let bytes = &walk.payload[from..];
            self.search.feed(walk.keys, at, bytes, requests, walk.counters);
        }
    }

    /// Handles the host's answer: message `number` begins at `tcpsn`, or none begins there.
    pub(super) fn answer(
        &mut self,
        tcpsn: SeqNum,
        number: Option<u64>,
        tools: &mut RxScratch,
        counters: &mut L5oCounters,
    ) {
        tools.release(self.chain.list.len(), counters);
        let guess = self.chain.numbering().speculation().filter(|guess| guess.seq == tcpsn);
        let used = if self.mode == ResyncMode::NextHint {
            self.hint(tcpsn, number, counters)
        } else if let Some(guess) = guess {
            self.handle_number_answer(guess, number, counters)
        } else {
            match self.search.answer(tcpsn, number) {
                ResyncAnswer::Found(found) => self.resume(found, tools.out_of_order, counters),
                ResyncAnswer::Refused => true,
                ResyncAnswer::Useless => false,
            }
        };
        *if used && number.is_some() {
            &mut counters.rx_tls_resync_res_ok
        } else {
            &mut counters.rx_tls_resync_res_skip
        } += 1;
        self.chain.check();
        tools.tracked_messages += self.chain.list.len();
    }

    /// Handles an unsolicited answer ([`ResyncMode::NextHint`]). It is of use only if no boundary
    /// is known and the message has not begun to arrive. Returns whether it was used.
    fn hint(&mut self, tcpsn: SeqNum, number: Option<u64>, counters: &mut L5oCounters) -> bool {
        let Some(number) = number.filter(|_| self.boundary_lost && tcpsn.ge(self.high)) else {
            return false;
        };
        self.chain.resume(tcpsn, number, counters);
        (self.expected, self.boundary_lost) = (tcpsn, false);
        true
    }

    /// Confirms or corrects a speculative number by the host's answer. Always returns true: the
    /// answer was used.
    fn handle_number_answer(
        &mut self,
        guess: SpeculativeNumber,
        number: Option<u64>,
        counters: &mut L5oCounters,
    ) -> bool {
        self.search.clear_request();
        let Some(number) = number else {
            self.chain.lose_boundary(counters);
            self.boundary_lost = true;
            return true;
        };
        let more = number.wrapping_sub(guess.number);
        if more != 0 {
            counters.l5o_guesses_wrong += u64::from(!self.chain.numbering().is_wrong());
            self.chain.shift(more, counters);
        }
        self.chain.renumber(NumberingEvent::Answer, counters);
        true
    }

    /// Continues after the host has confirmed the tracked position: from the start of the next
    /// packet (figure 8 (c)), or in out-of-order mode from the next whole message, since no earlier
    /// one can be verified. Returns whether the answer was used.
    fn resume(
        &mut self,
        found: ConfirmedPosition,
        out_of_order: bool,
        counters: &mut L5oCounters,
    ) -> bool {
        if self.chain.boundary_known && found.at.lt(self.chain.next) {
            return false;
        }
        self.chain.resume(found.at, found.number, counters);
        self.boundary_lost = false;
        if !out_of_order {
            self.expected = self.search.end;
            let len = u32::try_from(found.at.distance(found.last)).unwrap_or(0);
            let number = found.number.wrapping_sub(1);
            if found.at.gt(self.expected) && self.chain.guard.is_unused(number) && len > HEADER {
                let mut message = TrackedMessage::new(found.last, len, number, true);
                message.front = self.search.front;
                message.received = ReceivedRanges::prefix(self.search.front_len);
                self.chain.guard.mark_used(number);
                self.chain.list.push(message);
            }
        }
        true
    }
}

/// Counts a processed packet and returns the description of its decrypted range.
fn report(id: L5oId, walk: &mut RecordParser<'_>, in_order: bool) -> Option<L5oDecrypted> {
    let PacketDecryptedRange { range, first, .. } = walk.decrypted()?.clone();
    if first.len == 0 {
        return None;
    }
    let mut explicit = [0; 8];
    if walk.keys.has_explicit() {
        explicit.copy_from_slice(&first.front[HEADER as usize..]);
    }
    let c = &mut *walk.counters;
    c.rx_tls_decrypted_packets += 1;
    c.rx_tls_decrypted_bytes += range.len() as u64;
    c.l5o_out_of_order_packets += u64::from(!in_order);
    c.l5o_opened_ahead_packets += u64::from(walk.used_assumption);
    let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    Some(L5oDecrypted {
        context: id,
        range: at(range.start)..at(range.end),
        number: first.number,
        offset: first.offset,
        message_len: first.len,
        explicit_nonce: explicit,
        verified: walk.verified.clone(),
    })
}
