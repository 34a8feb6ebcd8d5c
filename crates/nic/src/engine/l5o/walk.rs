//! The pass over a packet, from its first byte that is not old to its last.
//!
//! Called by `rx`; works on a [`RecordTracker`]. A message that lies whole in the packet is
//! decrypted in one call. Other messages are processed range by range (front, text, tag), and the
//! range that completes a message has its tag verified. The decrypted bytes form one contiguous
//! range: it ends at bytes that were received before or must not be decrypted. Of messages after it
//! only the headers are read.
//!
//! If a tag is wrong, the packet is restored as it arrived and every message it touched is given up
//! (tls-offload.rst: all or nothing per packet).

use base::SeqNum;
use core::ops::Range;

use super::chain::RecordTracker;
use super::message::{MessageEvent, TextState, TrackedMessage};
use super::numbering::{Numbering, NumberingEvent};
use super::packet::{DecryptedRangeStart, RecordParser, offset_i64, offset_u32};
use crate::engine::tls::{DecryptedRange, FRONT, HEADER, TAG};

/// Consecutive wrong tags after which the record number is doubted.
const FAILURES_MAX: u32 = 2;

/// Continuation of the pass.
enum ParseStep {
    /// At this byte of the packet.
    ContinueAt(usize),
    /// At the same byte, with more known about the stream.
    Retry,
    /// Nowhere: the boundaries are unknown.
    BoundaryLost,
}

impl RecordTracker {
    /// Processes a packet from its first byte that is not old.
    pub(super) fn walk(&mut self, w: &mut RecordParser<'_>) {
        let start = self.list.first().map_or(self.next, |first| first.start);
        let from = usize::try_from(w.at(start)).unwrap_or(0);
        self.walk_from(w, from);
    }

    /// Processes a packet from byte `at` on.
    pub(super) fn walk_from(&mut self, w: &mut RecordParser<'_>, mut at: usize) {
        let mut index = 0;
        while at < w.payload.len() {
            let ends = |m: &TrackedMessage| !m.lacks_length() && w.at(m.end()) <= offset_i64(at);
            while self.list.get(index).is_some_and(ends) {
                index += 1;
            }
            let step = if index < self.list.len() {
                self.known(w, index, at)
            } else {
                self.parse_beyond_known(w, at)
            };
            match step {
                ParseStep::ContinueAt(to) => at = to,
                ParseStep::Retry => {}
                ParseStep::BoundaryLost => {
                    w.end_range();
                    w.unknown_from = Some(at);
                    return;
                }
            }
        }
    }

    /// Processes byte `at`, which lies after the last known message.
    fn parse_beyond_known(&mut self, w: &mut RecordParser<'_>, at: usize) -> ParseStep {
        if !self.boundary_known {
            return ParseStep::BoundaryLost;
        }
        if w.at(self.next) < offset_i64(at) {
            return if self.bridge_hole(w, at) {
                ParseStep::Retry
            } else {
                ParseStep::BoundaryLost
            };
        }
        let (start, number) = (w.seq_at(at), self.number);
        let left = w.payload.len() - at;
        let fresh = w.may_decrypt(number)
            && !self.numbering().is_wrong()
            && self.guard.allows(start, number)
            && (self.list.is_empty()
                || w.tools.tracked_messages + self.list.len() < w.tools.messages_total_max);
        if left < HEADER as usize {
            self.push(TrackedMessage::new(start, 0, number, fresh));
            return ParseStep::Retry;
        }
        let Some(len) = w.keys.length(&w.payload[at..]) else {
            self.disprove(w, self.list.len(), None);
            return ParseStep::BoundaryLost;
        };
        self.learn(len);
        w.last_header = Some((start, number));
        (self.next, self.number) = (start + len, number.wrapping_add(1));
        let fresh = fresh && self.guard.can_complete(start, self.next);
        if fresh && len as usize <= left {
            return self.decrypt_whole(w, at, len, number);
        }
        self.push(TrackedMessage::new(start, len, number, fresh));
        if fresh {
            return ParseStep::Retry;
        }
        w.end_range();
        ParseStep::ContinueAt(at + left.min(len as usize))
    }

    /// Decrypts and verifies a message that lies whole in the packet.
    fn decrypt_whole(
        &mut self,
        w: &mut RecordParser<'_>,
        at: usize,
        len: u32,
        number: u64,
    ) -> ParseStep {
        let end = at + len as usize;
        let start = w.seq_at(at);
        self.push_whole(start, len, number);
        let message = &mut w.payload[at..end];
        let correct = self.decrypt_message(w.keys, number, message, &mut w.tools.scratch);
        w.counters.rx_tls_copied_bytes += w.tools.scratch.len() as u64;
        if !correct {
            self.on_wrong_tag(w, start, at..end);
            return ParseStep::ContinueAt(end);
        }
        let mut front = [0; FRONT];
        let front_len = w.keys.front() as usize;
        front[..front_len].copy_from_slice(&message[..front_len]);
        let text = at + front_len..end - TAG as usize;
        w.tools.decrypted.push(DecryptedRange {
            number,
            confirmed: true,
            front,
            message_len: len,
            offset: 0,
            range: text,
        });
        w.extend(at..end, DecryptedRangeStart { number, offset: 0, len, front });
        self.on_correct_tag(w, (start, number), &front);
        ParseStep::ContinueAt(end)
    }

    /// Processes byte `at`, which belongs to message `index`.
    fn known(&mut self, w: &mut RecordParser<'_>, index: usize, at: usize) -> ParseStep {
        let message = &mut self.list[index];
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "within it")]
        let from = (offset_i64(at) - w.at(message.start)) as u32;
        let left = offset_u32(w.payload.len() - at);
        let begun = message.lacks_length();
        if begun && from > message.received.end() {
            return if self.bridge_hole(w, at) {
                ParseStep::Retry
            } else {
                ParseStep::BoundaryLost
            };
        }
        let stop = if begun { HEADER } else { message.len }.min(from + left);
        let past = |to: u32| ParseStep::ContinueAt(at + (to - from) as usize);
        let unseen = message.received.next_missing(from);
        if unseen > from {
            w.end_range();
            return past(unseen.min(stop));
        }
        let stop = stop.min(message.received.next_received(from));
        if message.is_live() && w.may_decrypt(message.number) {
            return self.take(w, index, at, from, stop);
        }
        self.give_up(index, w.counters);
        w.end_range();
        // The message is no longer decrypted, but its boundary is still useful.
        let message = &mut self.list[index];
        let stop = if from < HEADER { stop.min(HEADER) } else { stop };
        if from < HEADER && message.state().wants_header() && message.received.add(from, stop) {
            let bytes = &w.payload[at..at + (stop - from) as usize];
            message.front[from as usize..stop as usize].copy_from_slice(bytes);
            if !self.header(w, index) {
                return ParseStep::BoundaryLost;
            }
        }
        past(stop)
    }

    /// Processes new bytes of a live message, up to the end of its header, front, text or tag.
    fn take(
        &mut self,
        w: &mut RecordParser<'_>,
        index: usize,
        at: usize,
        from: u32,
        stop: u32,
    ) -> ParseStep {
        let message = &mut self.list[index];
        let front = w.keys.front();
        let text_end = if message.lacks_length() { HEADER } else { message.len - TAG };
        let kind = [front.min(text_end), text_end].into_iter().find(|&end| from < end);
        // The header is evaluated before any byte after it.
        let kind = if from < HEADER { Some(HEADER) } else { kind };
        let stop = stop.min(kind.unwrap_or(stop));
        let range = at..at + (stop - from) as usize;
        if !message.received.add(from, stop) {
            self.give_up(index, w.counters);
            w.end_range();
            return ParseStep::ContinueAt(range.end);
        }
        if from < front {
            if !self.take_front(w, index, range.clone(), from) {
                return ParseStep::BoundaryLost;
            }
        } else if from < text_end {
            if !self.decrypt_text(w, index, range.clone(), from - front) {
                self.give_up(index, w.counters);
                w.end_range();
                return ParseStep::ContinueAt(range.end);
            }
        } else {
            let tag = (from - text_end) as usize;
            message.tag[tag..tag + range.len()].copy_from_slice(&w.payload[range.clone()]);
        }
        let Some(message) = self.list.get(index).filter(|message| message.is_live()) else {
            w.end_range();
            return ParseStep::ContinueAt(range.end);
        };
        let (number, len, begun) = (message.number, message.len, message.lacks_length());
        let complete = !begun && message.received.covers(0, len);
        w.extend(
            range.clone(),
            DecryptedRangeStart { number, offset: from, len, front: message.front },
        );
        if complete {
            self.complete(w, index, range.clone());
        }
        ParseStep::ContinueAt(range.end)
    }

    /// Stores bytes of the front. Returns false if no boundary is known from here on.
    fn take_front(
        &mut self,
        w: &mut RecordParser<'_>,
        index: usize,
        range: Range<usize>,
        from: u32,
    ) -> bool {
        let message = &mut self.list[index];
        let part = from as usize..from as usize + range.len();
        let wrong = message.text == TextState::DecryptedAhead
            && from >= HEADER
            && message.front[part.clone()] != w.payload[range.clone()];
        message.front[part].copy_from_slice(&w.payload[range]);
        if wrong {
            w.counters.l5o_assumptions_wrong += 1;
            self.give_up(index, w.counters);
        }
        from >= HEADER || self.header(w, index)
    }

    /// Decrypts a range of the text. Returns false if the nonce is unknown.
    fn decrypt_text(
        &mut self,
        w: &mut RecordParser<'_>,
        index: usize,
        range: Range<usize>,
        offset: u32,
    ) -> bool {
        let message = &mut self.list[index];
        let ahead = message.text == TextState::DecryptedAhead;
        let known =
            ahead || !w.keys.has_explicit() || message.received.covers(HEADER, w.keys.front());
        if !known {
            let foreseen = self.nonces.predict(message.number);
            let Some(nonce) = foreseen.filter(|_| w.tools.out_of_order) else { return false };
            // Received bytes of the explicit nonce are kept; only missing ones are predicted.
            for (at, byte) in (HEADER..).zip(nonce.to_be_bytes()) {
                if !message.received.covers(at, at + 1) {
                    message.front[at as usize] = byte;
                }
            }
        }
        message.text =
            if ahead || !known { TextState::DecryptedAhead } else { TextState::Decrypted };
        self.decrypt_range(w.keys, index, offset, &mut w.payload[range.clone()]);
        let message = &self.list[index];
        let (number, front, message_len) = (message.number, message.front, message.len);
        w.used_assumption |=
            message.state().is_assumed() || message.text == TextState::DecryptedAhead;
        let sure = !self.is_speculative(message);
        w.tools.decrypted.push(DecryptedRange {
            number,
            confirmed: sure,
            front,
            message_len,
            offset,
            range,
        });
        true
    }

    /// Verifies the tag of a message whose bytes have all arrived.
    fn complete(&mut self, w: &mut RecordParser<'_>, index: usize, last: Range<usize>) {
        let sum = self.sum(index);
        let message = &mut self.list[index];
        let TrackedMessage { start, number, front, len, tag, .. } = message;
        let start = *start;
        if w.keys.verify(*number, front, *len, &sum, tag) {
            let (number, front) = (*number, *front);
            message.advance(MessageEvent::Verify, w.counters);
            self.on_correct_tag(w, (start, number), &front);
        } else {
            self.on_wrong_tag(w, start, last);
        }
    }

    /// Handles the correct tag of message `number` at `start`.
    fn on_correct_tag(
        &mut self,
        w: &mut RecordParser<'_>,
        (start, number): (SeqNum, u64),
        front: &[u8; FRONT],
    ) {
        w.verify(number);
        if let Some(explicit) = front[HEADER as usize..].first_chunk() {
            self.nonces.learn(number, u64::from_be_bytes(*explicit));
        }
        if start.lt(self.numbered_from) {
            return;
        }
        self.wrong_tags = 0;
        if self.numbering().speculation().is_some() {
            self.renumber(NumberingEvent::Prove, w.counters);
            w.number_proved = true;
        }
    }

    /// Handles the wrong tag of the message that begins at `start` and ends with `last`: restores
    /// the packet.
    fn on_wrong_tag(&mut self, w: &mut RecordParser<'_>, start: SeqNum, last: Range<usize>) {
        w.counters.rx_tls_err += 1;
        let mut undo = core::mem::take(&mut w.tools.decrypted);
        for DecryptedRange { number, front, offset, range, .. } in undo.drain(..) {
            w.keys.reencrypt_range(number, &front, offset, &mut w.payload[range]);
        }
        w.tools.decrypted = undo;
        let from = w.fail().unwrap_or(last.start);
        let (from, to) = (w.seq_at(from), w.seq_at(last.end));
        for index in 0..self.list.len() {
            let message = &self.list[index];
            if message.start.lt(to) && (message.lacks_length() || message.end().gt(from)) {
                self.give_up(index, w.counters);
            }
        }
        if start.lt(self.numbered_from) {
            return;
        }
        self.wrong_tags += 1;
        match self.numbering() {
            Numbering::Guessed(_) => {
                w.counters.l5o_guesses_wrong += 1;
                self.renumber(NumberingEvent::Doubt, w.counters);
            }
            // The number that the host confirmed was wrong.
            Numbering::Known if self.wrong_tags >= FAILURES_MAX => {
                self.renumber(NumberingEvent::Doubt, w.counters);
            }
            _ => {}
        }
    }
}
