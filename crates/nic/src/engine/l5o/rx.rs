//! A TLS receive context: the states *offloading*, *searching* and *tracking* of Autonomous NIC
//! Offloads, section 4.3, figure 7.
//!
//! Called by the engine with each packet of the flow whose checksum is correct.
//! [`L5oConfig::out_of_order`] selects one of two modes: the paper's, in which only the packet with
//! the expected sequence number is decrypted, or the extended one, in which `chain` decrypts every
//! packet whose position among the messages is known or predictable. Both use `search` if no
//! boundary is known.

use abi::l5o::{L5oId, Opened, ResyncMode};
use base::SeqNum;

use super::Requests;
use super::chain::Chain;
use super::counters::L5oCounters;
use super::message::Message;
use super::numbering::{Guess, Numbering, NumberingEvent};
use super::packet::{Stretch, Walk};
use super::search::{Answer, Found, Search};
use super::tools::Tools;
use crate::config::L5oConfig;
use crate::engine::seen::Seen;
use crate::engine::tls::{HEADER, Keys};
use crate::engine::window::{Lies, Window};

/// A TLS receive context.
#[derive(Debug)]
pub(super) struct Receive {
    chain: Chain,
    search: Search,
    /// Next sequence number to decrypt, in the paper's mode.
    expected: SeqNum,
    /// End of the highest packet.
    high: SeqNum,
    window: Window,
    mode: ResyncMode,
    /// True if the latest packet had no known boundary.
    lost: bool,
}

impl Receive {
    pub(super) fn new(config: &L5oConfig, tcpsn: SeqNum, number: u64) -> Self {
        Self {
            chain: Chain::new(tcpsn, number),
            search: Search::new(config.resync, tcpsn),
            expected: tcpsn,
            high: tcpsn,
            window: Window::default(),
            mode: config.resync,
            lost: false,
        }
    }

    /// Returns the number of messages tracked.
    pub(super) fn open(&self) -> usize {
        self.chain.list.len()
    }

    /// Processes a packet: decrypts what it can in place, and returns the decrypted range and the
    /// resync requests.
    pub(super) fn packet(
        &mut self,
        id: L5oId,
        keys: &Keys,
        seq: SeqNum,
        payload: &mut [u8],
        tools: &mut Tools,
        counters: &mut L5oCounters,
    ) -> (Option<Opened>, Requests) {
        let mut requests = Requests::new();
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let end = seq + len;
        tools.release(self.chain.list.len(), counters);
        match self.window.judge(seq.distance(self.high), tools.window_bytes) {
            Lies::Inside => {}
            Lies::Outside => {
                counters.l5o_outside_packets += 1;
                tools.undo.clear();
                tools.open += self.chain.list.len();
                return (None, requests);
            }
            Lies::There => self.restart(seq, &mut requests, counters),
        }
        tools.high = self.high;
        let (out_of_order, in_order) = (tools.out_of_order, seq == self.high);
        let mut walk = Walk::new(keys, seq, payload, tools, counters);
        if out_of_order {
            self.chain.walk(&mut walk);
            self.find_place(&mut walk, end, &mut requests);
        } else {
            self.in_order(&mut walk, end, &mut requests);
        }
        if self.chain.numbering().is_wrong() {
            self.ask_number(&mut walk, len, &mut requests);
        }
        if walk.proven {
            walk.counters.l5o_self_confirmed += 1;
            self.search.stop(&mut requests, walk.counters);
        }
        let opened = report(id, &mut walk, in_order);
        self.high = self.high.max(end);
        self.chain.compact(self.high, tools, counters);
        self.chain.check();
        tools.open += self.chain.list.len();
        (opened, requests)
    }

    /// Re-anchors at `seq` with nothing known.
    fn restart(&mut self, seq: SeqNum, requests: &mut Requests, counters: &mut L5oCounters) {
        counters.l5o_restarts += 1;
        self.chain.restart(seq, counters);
        self.search.stop(requests, counters);
        self.search.end = seq;
        (self.expected, self.high, self.lost) = (seq, seq, true);
    }

    /// Asks the host for a number, repeatedly: boundaries are known, but the numbers are wrong.
    fn ask_number(&mut self, walk: &mut Walk<'_>, len: u32, requests: &mut Requests) {
        if self.mode == ResyncMode::NextHint {
            self.chain.lose(walk.counters);
            self.lost = true;
            return;
        }
        let guess = self.chain.numbering().guess();
        let asked = guess.is_some_and(|guess| self.search.has_asked(guess.base));
        let overdue = self.search.is_overdue(len) && asked;
        let Some((base, number)) = walk.header else { return };
        if overdue || !asked {
            let from = guess.map_or((base, number), |guess| guess.from);
            let ask = NumberingEvent::Ask(Guess { base, number, from });
            self.chain.renumber(ask, walk.counters);
            walk.counters.rx_tls_resync_res_retry += u64::from(overdue);
            self.search.answered();
            self.search.ask(base, 0, requests, walk.counters);
        }
    }

    /// Out-of-order mode: searches for a boundary if the chain knows none for the packet, and
    /// continues from one that it finds with a speculative number.
    fn find_place(&mut self, walk: &mut Walk<'_>, end: SeqNum, requests: &mut Requests) {
        let news = end.gt(self.high);
        let Some(from) = walk.lost else {
            if news {
                self.lost = false;
                if self.chain.numbering() == Numbering::Known {
                    self.search.stop(requests, walk.counters);
                }
            }
            return;
        };
        self.lost |= news;
        if !self.chain.anchored && self.chain.numbering().is_wrong() {
            self.chain.renumber(NumberingEvent::Restart, walk.counters);
        }
        let at = walk.seq + u32::try_from(from).unwrap_or(0);
        let bytes = &walk.payload[from..];
        let Some(base) = self.search.feed(walk.keys, at, bytes, requests, walk.counters) else {
            return;
        };
        let Ok(offset) = usize::try_from(base.distance(walk.seq)) else { return };
        let gap = u32::try_from(base.distance(self.chain.next)).unwrap_or(0);
        if !self.chain.anchored || self.chain.numbering().is_wrong() || gap == 0 {
            return;
        }
        let Some(between) = self.chain.between(gap) else { return };
        let number = self.chain.number.wrapping_add(between);
        self.chain.resume(base, number, walk.counters);
        // The request concerns the last header of the packet.
        let (asked, headers) = self.search.guessed().unwrap_or((base, 1));
        let last = number.wrapping_add(headers).wrapping_sub(1);
        let guess = Guess { base: asked, number: last, from: (base, number) };
        self.chain.renumber(NumberingEvent::Guess(guess), walk.counters);
        (walk.lost, self.lost) = (None, false);
        self.chain.walk_from(walk, offset);
    }

    /// Processes a packet in the paper's mode.
    fn in_order(&mut self, walk: &mut Walk<'_>, end: SeqNum, requests: &mut Requests) {
        let ahead = walk.seq.distance(self.expected);
        if self.chain.anchored && ahead < 0 {
            // Figure 8 (a): old data.
            return;
        }
        if self.chain.anchored && ahead == 0 {
            self.chain.walk(walk);
            self.expected = end;
            self.chain.drop_before(end, walk.counters);
        } else if self.chain.anchored {
            // Figure 8 (b), or (c) if no boundary is known.
            if walk.seq.gt(self.chain.next) {
                walk.lost = Some(0);
            } else if end.gt(self.chain.next) {
                self.chain.skip_to_header(walk);
                self.expected = end;
            }
        } else if walk.seq.ge(self.search.end) || !self.lost {
            walk.lost = Some(0);
        }
        if let Some(from) = walk.lost {
            self.lost = true;
            self.chain.lose(walk.counters);
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
        tools: &mut Tools,
        counters: &mut L5oCounters,
    ) {
        tools.release(self.chain.list.len(), counters);
        let guess = self.chain.numbering().guess().filter(|guess| guess.base == tcpsn);
        let used = if self.mode == ResyncMode::NextHint {
            self.hint(tcpsn, number, counters)
        } else if let Some(guess) = guess {
            self.judge(guess, number, counters)
        } else {
            match self.search.answer(tcpsn, number) {
                Answer::Found(found) => self.resume(found, tools.out_of_order, counters),
                Answer::Refused => true,
                Answer::Useless => false,
            }
        };
        *if used && number.is_some() {
            &mut counters.rx_tls_resync_res_ok
        } else {
            &mut counters.rx_tls_resync_res_skip
        } += 1;
        self.chain.check();
        tools.open += self.chain.list.len();
    }

    /// Handles an unsolicited answer ([`ResyncMode::NextHint`]). It is of use only if no boundary
    /// is known and the message has not begun to arrive. Returns whether it was used.
    fn hint(&mut self, tcpsn: SeqNum, number: Option<u64>, counters: &mut L5oCounters) -> bool {
        let Some(number) = number.filter(|_| self.lost && tcpsn.ge(self.high)) else {
            return false;
        };
        self.chain.resume(tcpsn, number, counters);
        (self.expected, self.lost) = (tcpsn, false);
        true
    }

    /// Confirms or corrects a speculative number by the host's answer. Always returns true: the
    /// answer was used.
    fn judge(&mut self, guess: Guess, number: Option<u64>, counters: &mut L5oCounters) -> bool {
        self.search.answered();
        let Some(number) = number else {
            self.chain.lose(counters);
            self.lost = true;
            return true;
        };
        let more = number.wrapping_sub(guess.number);
        if more != 0 {
            if !self.chain.numbering().is_wrong() {
                counters.l5o_guesses_wrong += 1;
                self.chain.disown(guess.from.0, counters);
            }
            self.chain.shift(more);
        }
        self.chain.renumber(NumberingEvent::Answer, counters);
        true
    }

    /// Continues after the host has confirmed the tracked position: from the start of the next
    /// packet (figure 8 (c)), or in out-of-order mode from the next whole message, since no earlier
    /// one can be verified. Returns whether the answer was used.
    fn resume(&mut self, found: Found, out_of_order: bool, counters: &mut L5oCounters) -> bool {
        if self.chain.anchored && found.at.lt(self.chain.next) {
            return false;
        }
        self.chain.resume(found.at, found.number, counters);
        self.lost = false;
        if !out_of_order {
            self.expected = self.search.end;
            let len = u32::try_from(found.at.distance(found.last)).unwrap_or(0);
            let number = found.number.wrapping_sub(1);
            if found.at.gt(self.expected) && self.chain.fresh.has_number(number) && len > HEADER {
                let mut message = Message::new(found.last, len, number, true);
                message.front = self.search.front;
                message.seen = Seen::prefix(self.search.front_len);
                self.chain.fresh.spend(number);
                self.chain.list.push(message);
            }
        }
        true
    }
}

/// Counts a processed packet and returns the description of its decrypted range.
fn report(id: L5oId, walk: &mut Walk<'_>, in_order: bool) -> Option<Opened> {
    let Stretch { range, first } = walk.opened()?.clone();
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
    c.l5o_opened_ahead_packets += u64::from(walk.ahead);
    let at = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
    Some(Opened {
        context: id,
        range: at(range.start)..at(range.end),
        number: first.number,
        offset: first.offset,
        message_len: first.len,
        explicit,
        verified: walk.verified.clone(),
    })
}
