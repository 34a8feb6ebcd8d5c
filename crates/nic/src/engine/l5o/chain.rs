//! What a receive context knows of its stream: boundaries of consecutive messages, and which of
//! them are incomplete.
//!
//! `rx` processes each packet from its first byte to its last (`walk`). Messages whose boundaries
//! are known may arrive in any order: their ranges are decrypted as they arrive, and the tag is
//! verified when the last range of a message has arrived. If a header lies in a hole, the chain may
//! continue on an assumption ([`RecordTracker::bridge_hole`]): all messages are equally long and
//! numbers are consecutive.
//!
//! Each message has a state (`message`), and [`Numbering`] tells how far numbers are trusted; both
//! are transition tables. The flag `boundary_known` is independent of them: boundaries can be known
//! under wrong numbers and lost under right ones.
//!
//! Invariants on which the host relies:
//! - One contiguous range per packet is decrypted; the rest is exactly as it arrived.
//! - Bytes that were decrypted under a number belong to the one message that is live under it, or
//!   to no live message ([`DecryptGuard`]), and each byte of a live message is added to its sum at
//!   most once, so a correct tag vouches for exactly the bytes of that message.
//! - If a tag is wrong, the packet is restored as it arrived, and all messages that it touched are
//!   given up.
//!
//! Invariants of the list ([`RecordTracker::check`]): messages are contiguous, the last ends at
//! `next`, and only the last may lack its length.

use abi::crypto::AuthSum;
use alloc::vec::Vec;
use base::{SeqNum, internal_error};
use core::ops::Range;
use smallvec::SmallVec;

use super::counters::L5oCounters;
use super::lengths::LengthPredictor;
use super::message::{MessageEvent, TextState, TrackedMessage};
use super::nonces::NoncePredictor;
use super::numbering::{Numbering, NumberingEvent};
use super::packet::{RecordParser, offset_i64, offset_u32};
use super::rx_scratch::RxScratch;
use crate::engine::received_ranges::ReceivedRanges;
use crate::engine::tls::{HEADER, TlsDeviceKeys, TlsRangeCipher};

/// Maximum number of [`DecryptGuard::misplaced`].
const MISPLACED_MAX: usize = 256;

/// Guards against decrypting a message twice: the messages that may still become live.
#[derive(Debug)]
pub(super) struct DecryptGuard {
    /// Next unused number: lower ones were live or have been skipped for good. Higher ones were at
    /// most live with bytes that are misplaced now.
    next_unused_number: u64,
    /// Value of `next_unused_number` when the current numbering began: all numbers of earlier
    /// numberings are lower.
    first_of_numbering: u64,
    /// Messages that begin before this sequence number are not decrypted.
    no_decrypt_before: SeqNum,
    /// Bytes that were received as parts of messages with wrong assumed boundaries. Messages that
    /// have such bytes are not decrypted: they could not be completed.
    misplaced: Vec<Range<SeqNum>>,
}

impl DecryptGuard {
    fn new(next: SeqNum, number: u64) -> Self {
        Self {
            next_unused_number: number,
            first_of_numbering: number,
            no_decrypt_before: next,
            misplaced: Vec::new(),
        }
    }

    /// Returns whether a message with this number may become live.
    pub(super) const fn is_unused(&self, number: u64) -> bool {
        number >= self.next_unused_number
    }

    /// Returns whether all bytes of the message at `start..end` can still arrive.
    pub(super) fn can_complete(&self, start: SeqNum, end: SeqNum) -> bool {
        !self.misplaced.iter().any(|bytes| bytes.start.lt(end) && bytes.end.gt(start))
    }

    /// Makes the numbers of `messages` unused again: the boundaries of all but the first were
    /// assumed, and do not exist. The first keeps its number. Their received bytes, except those of
    /// the first one's header, are misplaced: no message that has such bytes will be live, so a
    /// correct tag does not vouch for them. Returns false, with nothing changed, if that is too
    /// much to remember.
    fn take_back(&mut self, messages: &[TrackedMessage]) -> bool {
        let Some((first, others)) = messages.split_first() else { return true };
        // Merged messages have used several numbers.
        if others.iter().any(TrackedMessage::is_settled) {
            return false;
        }
        let header_end = first.start + first.received.next_missing(0).min(HEADER);
        let bytes = messages.iter().flat_map(|message| {
            let ranges = message.received.all().iter();
            ranges.map(|&(from, to)| (message.start + from).max(header_end)..message.start + to)
        });
        let bytes = bytes.filter(|bytes| bytes.start.lt(bytes.end));
        if self.misplaced.len() + bytes.clone().count() > MISPLACED_MAX {
            return false;
        }
        bytes.for_each(|bytes| self.misplaced.push(bytes));
        let number = first.number.wrapping_add(1).max(self.first_of_numbering);
        self.next_unused_number = self.next_unused_number.min(number);
        true
    }

    /// Forgets bytes before `start`, which no new message will have.
    fn forget(&mut self, start: SeqNum) {
        self.misplaced.retain(|bytes| bytes.end.gt(start));
    }

    /// Returns whether message `number` at `start` may be decrypted.
    pub(super) fn allows(&self, start: SeqNum, number: u64) -> bool {
        self.is_unused(number) && start.ge(self.no_decrypt_before)
    }

    /// Marks `number`, and thereby all lower ones, as used.
    pub(super) const fn mark_used(&mut self, number: u64) {
        self.next_unused_number = number.wrapping_add(1);
    }

    /// Skips the numbers up to `number`.
    fn skip_to(&mut self, number: u64) {
        self.next_unused_number = self.next_unused_number.max(number.wrapping_add(1));
    }

    /// Prevents decryption of messages that begin before `floor`.
    fn raise(&mut self, floor: SeqNum) {
        self.no_decrypt_before = self.no_decrypt_before.max(floor);
    }
}

/// The known part of a stream.
#[derive(Debug)]
pub(super) struct RecordTracker {
    /// Contiguous messages with something missing, and settled ones between them. Empty while the
    /// stream is in order.
    pub(super) list: SmallVec<[TrackedMessage; 1]>,
    /// End of the list: start of the next message, or of the list's last message while its length
    /// is unknown.
    pub(super) next: SeqNum,
    /// Number of the message that begins at `next`.
    pub(super) number: u64,
    /// True if a message is known to begin at `next`. Otherwise `next` is the last such position.
    pub(super) boundary_known: bool,
    /// Trust in `number`.
    numbering: Numbering,
    /// Start of the first message to which `numbering` applies.
    pub(super) numbered_from: SeqNum,
    pub(super) guard: DecryptGuard,
    lengths: LengthPredictor,
    /// Start of the message from which assumed lengths led to no header. No length is assumed for
    /// it again.
    unusual_at: Option<SeqNum>,
    /// Wrong tags since the last correct one, or since the host confirmed a number.
    pub(super) wrong_tags: u32,
    pub(super) nonces: NoncePredictor,
    /// Decrypts whole messages and runs of ranges; contains the sum of the message whose `sum` is
    /// `None`.
    cipher: TlsRangeCipher,
    /// Offset in that message's text at which its run continues.
    run_end: u32,
}

impl RecordTracker {
    /// Creates a chain for a stream whose message `number` begins at `next`.
    pub(super) fn new(next: SeqNum, number: u64) -> Self {
        Self {
            list: SmallVec::new(),
            next,
            number,
            boundary_known: true,
            numbering: Numbering::Known,
            numbered_from: next,
            guard: DecryptGuard::new(next, number),
            lengths: LengthPredictor::default(),
            unusual_at: None,
            wrong_tags: 0,
            nonces: NoncePredictor::default(),
            cipher: TlsRangeCipher::default(),
            run_end: 0,
        }
    }

    /// Decrypts a range of message `index` at `offset` of its text in place, and adds it to the
    /// message's sum: in the run of the preceding range if possible.
    pub(super) fn decrypt_range(
        &mut self,
        keys: &TlsDeviceKeys,
        index: usize,
        offset: u32,
        range: &mut [u8],
    ) {
        if self.list[index].sum.is_some() || self.run_end != offset {
            self.end_run();
            let message = &mut self.list[index];
            debug_assert!(message.sum.is_some(), "`end_run` leaves no sum in the cipher");
            let sum = message.sum.take().unwrap_or_default();
            self.cipher.seek(keys, message.number, &message.front, &sum, offset);
        }
        self.cipher.decrypt(keys, range);
        self.run_end = offset + offset_u32(range.len());
    }

    /// Decrypts a whole message in place; see [`TlsRangeCipher::decrypt_whole`].
    pub(super) fn decrypt_message(
        &mut self,
        keys: &TlsDeviceKeys,
        number: u64,
        message: &mut [u8],
        copy: &mut Vec<u8>,
    ) -> bool {
        self.end_run();
        self.cipher.decrypt_whole(keys, number, message, copy)
    }

    /// Returns the sum over the text of message `index`.
    pub(super) fn sum(&mut self, index: usize) -> AuthSum {
        if self.list[index].sum.is_none() {
            self.end_run();
        }
        let sum = self.list[index].sum;
        debug_assert!(sum.is_some(), "`end_run` leaves no sum in the cipher");
        sum.unwrap_or_default()
    }

    /// Moves the cipher's sum to its message, unless that was given up.
    fn end_run(&mut self) {
        if let Some(message) = self.list.iter_mut().find(|message| message.sum.is_none()) {
            message.sum = Some(self.cipher.end_run());
        }
    }

    pub(super) const fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// Returns whether the number of `message` depends on a speculation.
    pub(super) fn is_speculative(&self, message: &TrackedMessage) -> bool {
        let is_current = message.start.ge(self.numbered_from);
        message.number_unproved || (is_current && self.numbering.speculation().is_some())
    }

    /// Applies an event to the state of the numbers.
    pub(super) fn renumber(&mut self, event: NumberingEvent, counters: &mut L5oCounters) {
        match self.numbering.next(event) {
            Some(next) => self.numbering = next,
            None => internal_error!(
                counters.nic_internal_errors,
                "an event in the wrong state of a chain's numbers"
            ),
        }
    }

    /// Asserts the invariants of the list in builds with debug assertions.
    pub(super) fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.list.iter().for_each(TrackedMessage::check);
        let runs = self.list.iter().filter(|message| message.sum.is_none()).count();
        debug_assert!(runs <= 1, "one cipher, several runs: {:?}", self.list);
        for pair in self.list.windows(2) {
            debug_assert_eq!(pair[0].end(), pair[1].start, "a gap: {pair:?}");
            debug_assert!(!pair[0].lacks_length(), "behind an unknown length: {pair:?}");
        }
        if let Some(last) = self.list.last() {
            debug_assert_eq!(last.end(), self.next, "{last:?}");
            let same = !self.boundary_known || !last.lacks_length() || last.number == self.number;
            debug_assert!(same, "{} is {last:?}", self.number);
        }
    }

    /// Handles further header bytes of message `index`. A complete header sets the message's length
    /// or tests the assumed one. Returns false if no boundary is known from here on.
    pub(super) fn header(&mut self, w: &mut RecordParser<'_>, index: usize) -> bool {
        let message = &mut self.list[index];
        if !message.received.covers(0, HEADER) || !message.state().wants_header() {
            return true;
        }
        let real = w.keys.length(&message.front);
        let (start, number) = (message.start, message.number);
        w.last_header = real.map(|_| (start, number));
        match real {
            Some(len) if message.lacks_length() => {
                message.advance(MessageEvent::Header(len), w.counters);
                (self.next, self.number) = (start + len, number.wrapping_add(1));
                self.lengths.learn(len);
                if !self.guard.can_complete(start, self.next) {
                    self.give_up(index, w.counters);
                }
            }
            Some(len) if len == message.len => {
                message.advance(MessageEvent::Header(len), w.counters);
                self.lengths.learn(len);
            }
            None if message.lacks_length() => {
                self.list.truncate(index);
                (self.next, self.boundary_known) = (start, false);
                return false;
            }
            _ => return self.disprove(w, index, real),
        }
        true
    }

    /// Handles a header of message `index` that contradicts the assumed length, with the length
    /// `real`, or a missing header: drops everything derived from the assumption. Returns false if
    /// no boundary is known for the rest of the packet.
    pub(super) fn disprove(
        &mut self,
        w: &mut RecordParser<'_>,
        index: usize,
        real: Option<u32>,
    ) -> bool {
        // If there is no header, an earlier assumed length was wrong. Only the start of the first
        // message with an assumed length is certain.
        let assumed = |message: &TrackedMessage| message.state().is_assumed();
        let run = self.list[..index].iter().rev().take_while(|message| assumed(message)).count();
        let guilty = if real.is_some() { index } else { index - run };
        if real.is_none() && run == 0 {
            self.cut(index, w.counters);
            self.boundary_known = false;
            return false;
        }
        w.counters.l5o_assumptions_wrong += 1;
        let taken_back = self.guard.take_back(&self.list[guilty..]);
        self.cut(guilty + 1, w.counters);
        let message = &mut self.list[guilty];
        (self.next, self.number) = (message.start, message.number);
        // With the numbers of an earlier numbering.
        let (earlier, unproved) = (self.next.lt(self.numbered_from), message.number_unproved);
        let header = message.received.next_missing(0).min(HEADER);
        // Bytes received beyond the header were attributed to wrong offsets.
        let misplaced = message.received.end() > header;
        if let Some(len) = real {
            message.advance(MessageEvent::Header(len), w.counters);
            self.next = message.start + len;
            self.number = message.number.wrapping_add(1);
            self.lengths.learn(len);
        } else {
            message.advance(MessageEvent::Disprove, w.counters);
            self.unusual_at = Some(self.next);
        }
        if misplaced {
            message.received = ReceivedRanges::prefix(header);
            self.give_up(guilty, w.counters);
        }
        if earlier {
            self.begin_numbering(self.list[guilty].start, w.counters);
            if unproved {
                self.renumber(NumberingEvent::Doubt, w.counters);
            }
        }
        if !taken_back {
            self.guard.raise(w.tools.high);
        }
        real.is_some()
    }

    /// Drops the messages from `index` on.
    pub(super) fn cut(&mut self, index: usize, counters: &mut L5oCounters) {
        let opened =
            |message: &&TrackedMessage| message.is_live() && message.text != TextState::Encrypted;
        counters.l5o_messages_given_up += self.list[index..].iter().filter(opened).count() as u64;
        self.list.truncate(index);
        if let Some(last) = self.list.last() {
            self.next = last.end();
        }
    }

    /// Stops decrypting message `index`.
    pub(super) fn give_up(&mut self, index: usize, counters: &mut L5oCounters) {
        if let Some(message) = self.list.get_mut(index).filter(|message| message.is_live()) {
            message.advance(MessageEvent::GiveUp, counters);
            counters.l5o_messages_given_up += 1;
        }
    }

    /// Appends a message. Neighboring settled messages are merged.
    pub(super) fn push(&mut self, message: TrackedMessage) {
        if message.is_live() {
            self.guard.mark_used(message.number);
        }
        match self.list.last_mut() {
            Some(last) if last.is_settled() && message.is_settled() => last.len += message.len,
            _ => self.list.push(message),
        }
    }

    /// Records a message that arrived whole in one packet.
    pub(super) fn push_whole(&mut self, start: SeqNum, len: u32, number: u64) {
        self.guard.mark_used(number);
        if !self.list.is_empty() {
            self.push(TrackedMessage::new(start, len, number, false));
        }
    }

    /// Bridges missing headers before byte `at` of the packet, assuming that messages keep their
    /// usual length. Returns false if that is impossible, or if a header in the packet contradicts
    /// it.
    pub(super) fn bridge_hole(&mut self, w: &mut RecordParser<'_>, at: usize) -> bool {
        let Some(usual) = self.lengths.typical_len() else { return false };
        if !w.tools.out_of_order || !self.boundary_known || self.unusual_at == Some(self.next) {
            return false;
        }
        let (from, step) = (w.at(self.next), i64::from(usual));
        let count = (offset_i64(at) - from) / step + 1;
        let room = w.tools.messages_per_flow_max.saturating_sub(self.list.len());
        let total = w.tools.messages_total_max.saturating_sub(w.tools.tracked_messages);
        if count > offset_i64(room.min(total)) {
            return false;
        }
        let mut header = usize::try_from(from + count * step).unwrap_or(usize::MAX);
        while w.payload.len().saturating_sub(header) >= HEADER as usize {
            let Some(len) = w.keys.length(&w.payload[header..]) else { return false };
            header += len as usize;
        }
        for _ in 0..count {
            let (start, number) = (self.next, self.number);
            (self.next, self.number) = (start + usual, number.wrapping_add(1));
            // The header of the first message may be partially known.
            if let Some(begun) = self.list.last_mut().filter(|last| last.lacks_length()) {
                begun.advance(MessageEvent::Assume(usual), w.counters);
                continue;
            }
            let live = self.guard.allows(start, number)
                && self.guard.can_complete(start, self.next)
                && !self.numbering.is_wrong();
            let mut message = TrackedMessage::new(start, 0, number, live);
            message.advance(MessageEvent::Assume(usual), w.counters);
            self.push(message);
        }
        true
    }

    /// Continues with message `next_unused_number` at `at`; what precedes it is unknown.
    pub(super) fn resume(&mut self, at: SeqNum, number: u64, counters: &mut L5oCounters) {
        if self.list.last().is_some_and(TrackedMessage::lacks_length) {
            self.list.pop();
        }
        if let Some(last) = self.list.last() {
            let (start, gap) = (last.end(), at.distance(last.end()));
            match u32::try_from(gap) {
                Ok(0) => {}
                Ok(gap) => self.push(TrackedMessage::new(start, gap, 0, false)),
                Err(_) => self.list.clear(),
            }
        }
        if self.numbering != Numbering::Known {
            let from = self.numbered_from;
            let current = self.list.iter_mut().filter(|message| message.start.ge(from));
            current.for_each(|message| message.number_unproved = true);
        }
        (self.next, self.number, self.boundary_known) = (at, number, true);
        self.begin_numbering(at, counters);
        self.guard.raise(at);
    }

    /// Begins a numbering at the message that begins at `at`. Earlier messages keep their numbers.
    fn begin_numbering(&mut self, at: SeqNum, counters: &mut L5oCounters) {
        (self.numbered_from, self.wrong_tags) = (at, 0);
        self.guard.first_of_numbering = self.guard.next_unused_number;
        self.renumber(NumberingEvent::Restart, counters);
    }

    /// Corrects the numbers, which were too low by `by` (modulo 2^64). Messages that are decrypted
    /// under the wrong ones are given up.
    pub(super) fn shift(&mut self, by: u64, counters: &mut L5oCounters) {
        for index in 0..self.list.len() {
            let message = &self.list[index];
            if message.start.ge(self.numbered_from) {
                let number = message.number.wrapping_add(by);
                if message.text != TextState::Encrypted || !self.guard.is_unused(number) {
                    self.give_up(index, counters);
                }
                self.list[index].number = number;
                if self.list[index].is_live() {
                    self.guard.mark_used(number);
                }
            }
        }
        self.number = self.number.wrapping_add(by);
        self.guard.first_of_numbering = self.guard.next_unused_number;
        self.wrong_tags = 0;
    }

    /// Drops all knowledge of boundaries.
    pub(super) fn lose_boundary(&mut self, counters: &mut L5oCounters) {
        self.cut(0, counters);
        self.boundary_known = false;
        self.renumber(NumberingEvent::Restart, counters);
    }

    /// Drops all knowledge of boundaries and continues at `at`.
    pub(super) fn restart(&mut self, at: SeqNum, counters: &mut L5oCounters) {
        self.lose_boundary(counters);
        (self.next, self.guard.no_decrypt_before) = (at, at);
    }

    /// Drops messages that end at or before `end`, complete or not.
    pub(super) fn drop_before(&mut self, end: SeqNum, counters: &mut L5oCounters) {
        self.list.retain(|message| {
            let keep = message.lacks_length() || message.end().gt(end);
            counters.l5o_messages_given_up += u64::from(!keep && message.is_live());
            keep
        });
    }

    /// Figure 8 (b) of the paper: a packet beyond a hole contains the next header. Its text is not
    /// decrypted, but that of later packets is. Requires that `next` lies within the packet.
    pub(super) fn skip_to_header(&mut self, w: &mut RecordParser<'_>) {
        let next = self.next;
        self.cut(0, w.counters);
        self.next = next;
        let mut at = usize::try_from(w.at(self.next)).unwrap_or(0);
        while let Some(left) = w.payload.get(at..).filter(|left| !left.is_empty()) {
            let len = if left.len() < HEADER as usize { Some(0) } else { w.keys.length(left) };
            let Some(len) = len else {
                w.unknown_from = Some(at);
                return;
            };
            let front = left.len().min(w.keys.front() as usize);
            let live = self.guard.is_unused(self.number);
            if len == 0 || len as usize > left.len() {
                let mut message = TrackedMessage::new(self.next, len, self.number, live);
                message.front[..front].copy_from_slice(&left[..front]);
                message.received = ReceivedRanges::prefix(offset_u32(front));
                self.push(message);
                if len == 0 {
                    return;
                }
            }
            self.guard.skip_to(self.number);
            self.number = self.number.wrapping_add(1);
            self.next += len;
            at += len as usize;
        }
    }

    /// Removes complete messages, and the oldest if there are too many or if they are so old that
    /// their sequence numbers could be mistaken for future ones. `high` is the end of the highest
    /// packet.
    pub(super) fn compact(&mut self, high: SeqNum, tools: &RxScratch, counters: &mut L5oCounters) {
        self.guard.no_decrypt_before = self.guard.no_decrypt_before.clamp_behind(high);
        self.numbered_from = self.numbered_from.clamp_behind(high);
        if self.next.is_far_before(high) {
            self.lose_boundary(counters);
            self.next = self.next.clamp_behind(high);
        }
        let old = |message: &TrackedMessage| message.end().is_far_before(high);
        while self.list.len() > tools.messages_per_flow_max || self.list.first().is_some_and(old) {
            self.give_up(0, counters);
            self.list.remove(0);
        }
        while self.list.first().is_some_and(TrackedMessage::is_settled) {
            self.list.remove(0);
        }
        if !self.guard.misplaced.is_empty() {
            let uncertain = self.list.iter().find(|message| message.state().wants_header());
            self.guard.forget(uncertain.map_or(self.next, |message| message.start));
        }
        let mut at = 1;
        while at < self.list.len() {
            if self.list[at - 1].is_settled() && self.list[at].is_settled() {
                self.list[at - 1].len += self.list[at].len;
                self.list.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Records the length of a message.
    pub(super) fn learn(&mut self, len: u32) {
        self.lengths.learn(len);
    }

    /// Estimates the number of messages in `gap` bytes; `None` if too uncertain.
    pub(super) fn between(&self, gap: u32) -> Option<u64> {
        self.lengths.between(gap)
    }
}
