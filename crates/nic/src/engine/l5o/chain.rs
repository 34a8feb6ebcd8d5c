//! What a receive context knows of the stream: where messages lie, one after the other, and which
//! of them are incomplete.
//!
//! `rx` has a packet walked from its first byte to its last ([`Chain::walk`]). Messages whose
//! boundaries are known need no order: their ranges are opened as they come, and the one that makes
//! a message whole has its tag judged. Where a header lies in a hole, the chain may go on by
//! assumption (`assume`): that messages stay as long as they were, that numbers follow each other.
//!
//! Invariants, on which the host relies:
//! - one packet, one contiguous range; the rest is exactly as it came;
//! - a number is live at most once in a context's life (`fresh`), and a byte of it is added up at
//!   most once, so that a right tag speaks for the very bytes that were opened under that number;
//! - where a tag is wrong, the packet is put back as it came and all it touched is dead.

use abi::crypto::Sum;
use base::SeqNum;
use core::ops::Range;
use smallvec::SmallVec;

use super::counters::L5oCounters;
use super::message::Message;
use super::rx::{Tools, Undo};
use crate::engine::tls::{FRONT, HEADER, Keys, TAG};

/// A walk over one packet.
pub(super) struct Walk<'a> {
    pub(super) keys: &'a Keys,
    pub(super) seq: SeqNum,
    pub(super) payload: &'a mut [u8],
    pub(super) tools: &'a mut Tools,
    pub(super) counters: &'a mut L5oCounters,
    /// What is opened.
    pub(super) range: Option<Range<usize>>,
    /// The message that the range begins in.
    pub(super) first: First,
    /// Messages found right.
    pub(super) verified: Range<u64>,
    /// Something was opened on an assumption.
    pub(super) ahead: bool,
    /// From here on nothing is known.
    pub(super) lost: Option<usize>,
    /// The last header that was seen, and its number.
    pub(super) header: Option<(SeqNum, u64)>,
    /// A tag was right whose number was guessed.
    pub(super) proven: bool,
    /// A tag was wrong.
    pub(super) failed: bool,
    /// Nothing more is opened in this packet.
    closed: bool,
}

/// The message that a range begins in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct First {
    pub(super) number: u64,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) front: [u8; FRONT],
}

/// How the walk goes on.
enum Step {
    /// From this byte on.
    To(usize),
    /// From the same: more is known now.
    Again,
    /// It does not.
    Lost,
}

/// A number that was guessed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guess {
    /// The message that begins here
    pub(super) base: SeqNum,
    /// has this number.
    pub(super) number: u64,
}

/// What is known of a stream.
#[derive(Debug)]
pub(super) struct Chain {
    /// Messages that follow each other without gaps; empty while all is in order.
    pub(super) list: SmallVec<[Message; 1]>,
    /// Where the message behind them begins, or the last of them whose length is not known.
    pub(super) next: SeqNum,
    /// Its number.
    pub(super) number: u64,
    /// `next` is known.
    pub(super) anchored: bool,
    /// `number` is not: it was guessed and was wrong.
    pub(super) numberless: bool,
    /// Where numbers come from, while no tag has proved them.
    pub(super) guess: Option<Guess>,
    /// Numbers below were live.
    pub(super) fresh: u64,
    /// Messages that begin before are not opened.
    pub(super) floor: SeqNum,
    /// Length of the last full message.
    pub(super) usual: u32,
    shorter: bool,
    /// An explicit nonce that was seen, and its message's number.
    explicit: Option<(u64, u64)>,
    /// It is the number, XORed with something; else it counts up from somewhere. RFC 5288 section 3
    /// leaves it to the sender.
    xored: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        keys: &'a Keys,
        seq: SeqNum,
        payload: &'a mut [u8],
        tools: &'a mut Tools,
        counters: &'a mut L5oCounters,
    ) -> Self {
        tools.undo.clear();
        Self {
            keys,
            seq,
            payload,
            tools,
            counters,
            range: None,
            first: First::default(),
            verified: 0..0,
            ahead: false,
            lost: None,
            header: None,
            proven: false,
            failed: false,
            closed: false,
        }
    }

    /// Where in the payload a sequence number is; negative before it.
    fn at(&self, seq: SeqNum) -> i64 {
        i64::from(seq.distance(self.seq))
    }

    #[expect(clippy::cast_possible_truncation, reason = "frames have at most 66 KiB")]
    fn seq_at(&self, at: usize) -> SeqNum {
        self.seq + at as u32
    }

    /// What is opened ends here, if anything is.
    fn close(&mut self) {
        self.closed |= self.range.is_some();
    }

    fn extend(&mut self, range: Range<usize>, first: First) {
        match &mut self.range {
            Some(open) => open.end = range.end,
            None => (self.range, self.first) = (Some(range), first),
        }
        if self.first.number == first.number {
            (self.first.len, self.first.front) = (first.len, first.front);
        }
    }

    fn verify(&mut self, number: u64) {
        if self.verified.is_empty() {
            self.verified = number..number;
        }
        if self.verified.end == number {
            self.verified.end = number.wrapping_add(1);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "offsets lie in a frame of at most 66 KiB")]
const fn small(at: usize) -> u32 {
    at as u32
}

/// The explicit nonce of message `number`, after one that is known.
const fn foresee((known, explicit): (u64, u64), number: u64, xored: bool) -> u64 {
    if xored {
        explicit ^ known ^ number
    } else {
        explicit.wrapping_add(number.wrapping_sub(known))
    }
}

impl Chain {
    /// Message `number` begins at `next`.
    pub(super) fn new(next: SeqNum, number: u64) -> Self {
        Self {
            list: SmallVec::new(),
            next,
            number,
            anchored: true,
            numberless: false,
            guess: None,
            fresh: number,
            floor: next,
            usual: 0,
            shorter: false,
            explicit: None,
            xored: false,
        }
    }

    /// Walks a packet from its first byte that is not old.
    pub(super) fn walk(&mut self, w: &mut Walk<'_>) {
        let start = self.list.first().map_or(self.next, |first| first.start);
        let from = usize::try_from(w.at(start)).unwrap_or(0);
        self.walk_from(w, from);
    }

    /// Walks a packet from byte `at` on.
    pub(super) fn walk_from(&mut self, w: &mut Walk<'_>, mut at: usize) {
        let mut index = 0;
        while at < w.payload.len() {
            let ends = |m: &Message| m.len != 0 && w.at(m.end()) <= at as i64;
            while self.list.get(index).is_some_and(ends) {
                index += 1;
            }
            let step =
                if index < self.list.len() { self.known(w, index, at) } else { self.beyond(w, at) };
            match step {
                Step::To(to) => at = to,
                Step::Again => {}
                Step::Lost => {
                    w.lost = Some(at);
                    return;
                }
            }
        }
    }

    /// At a byte behind the last known message.
    fn beyond(&mut self, w: &mut Walk<'_>, at: usize) -> Step {
        if !self.anchored {
            return Step::Lost;
        }
        if w.at(self.next) < at as i64 {
            return if self.assume(w, at) { Step::Again } else { Step::Lost };
        }
        let (start, number) = (w.seq_at(at), self.number);
        let left = w.payload.len() - at;
        let fresh = !w.closed
            && !self.numberless
            && number >= self.fresh
            && start.ge(self.floor)
            && (self.list.is_empty() || w.tools.open + self.list.len() < w.tools.total_max);
        if left < HEADER as usize {
            self.push(Message::new(start, 0, number, fresh));
            return Step::Again;
        }
        let Some(len) = w.keys.length(&w.payload[at..]) else {
            self.anchored = false;
            return Step::Lost;
        };
        self.learn(len);
        w.header = Some((start, number));
        (self.next, self.number) = (start + len, number.wrapping_add(1));
        if fresh && len as usize <= left {
            return self.whole(w, at, len, number);
        }
        self.push(Message::new(start, len, number, fresh));
        if fresh {
            return Step::Again;
        }
        w.close();
        Step::To(at + left.min(len as usize))
    }

    /// A message of which the packet has every byte.
    fn whole(&mut self, w: &mut Walk<'_>, at: usize, len: u32, number: u64) -> Step {
        let end = at + len as usize;
        self.push_whole(w.seq_at(at), len, number);
        let message = &mut w.payload[at..end];
        if !w.keys.open_whole(number, message, &mut w.tools.scratch) {
            w.extend(at..end, First::default());
            self.fail(w, end);
            return Step::To(end);
        }
        let mut front = [0; FRONT];
        let front_len = w.keys.front() as usize;
        front[..front_len].copy_from_slice(&message[..front_len]);
        let text = at + front_len..end - TAG as usize;
        w.tools.undo.push(Undo { number, front, offset: 0, range: text });
        w.extend(at..end, First { number, offset: 0, len, front });
        self.right(w, number, &front);
        Step::To(end)
    }

    /// At a byte of message `index`.
    fn known(&mut self, w: &mut Walk<'_>, index: usize, at: usize) -> Step {
        let message = &mut self.list[index];
        #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "within it")]
        let from = (at as i64 - w.at(message.start)) as u32;
        let left = small(w.payload.len() - at);
        let begun = message.len == 0;
        if begun && from > message.seen.end() {
            return if self.assume(w, at) { Step::Again } else { Step::Lost };
        }
        let stop = if begun { HEADER } else { message.len }.min(from + left);
        let past = |to: u32| Step::To(at + (to - from) as usize);
        let unseen = message.seen.unseen_from(from);
        if unseen > from {
            w.close();
            return past(unseen.min(stop));
        }
        let stop = stop.min(message.seen.seen_from(from));
        if message.live && !w.closed {
            return self.take(w, index, at, from, stop);
        }
        if message.live {
            self.give_up(index, w.counters);
        }
        w.close();
        // Its boundary is still worth knowing.
        let message = &mut self.list[index];
        let stop = if from < HEADER { stop.min(HEADER) } else { stop };
        if from < HEADER && (begun || message.assumed) && message.seen.add(from, stop) {
            let bytes = &w.payload[at..at + (stop - from) as usize];
            message.front[from as usize..stop as usize].copy_from_slice(bytes);
            if !self.header(w, index) {
                return Step::Lost;
            }
        }
        past(stop)
    }

    /// Takes bytes of a live message that were not seen before, as far as they are of one kind.
    fn take(&mut self, w: &mut Walk<'_>, index: usize, at: usize, from: u32, stop: u32) -> Step {
        let message = &mut self.list[index];
        let front = w.keys.front();
        let text_end = if message.len == 0 { HEADER } else { message.len - TAG };
        let kind = [front.min(text_end), text_end].into_iter().find(|&end| from < end);
        // The header is complete before what follows it is looked at.
        let kind = if from < HEADER { Some(HEADER) } else { kind };
        let stop = stop.min(kind.unwrap_or(stop));
        let range = at..at + (stop - from) as usize;
        if !message.seen.add(from, stop) {
            self.give_up(index, w.counters);
            w.close();
            return Step::To(range.end);
        }
        if from < front {
            if !self.take_front(w, index, range.clone(), from) {
                return Step::Lost;
            }
        } else if from < text_end {
            if !self.take_text(w, index, range.clone(), from - front) {
                self.give_up(index, w.counters);
                w.close();
                return Step::To(range.end);
            }
        } else {
            let tag = (from - text_end) as usize;
            message.tag[tag..tag + range.len()].copy_from_slice(&w.payload[range.clone()]);
        }
        let Some(message) = self.list.get(index).filter(|message| message.live) else {
            w.close();
            return Step::To(range.end);
        };
        let (number, len) = (message.number, message.len);
        w.extend(range.clone(), First { number, offset: from, len, front: message.front });
        if len != 0 && message.seen.covers(0, len) {
            self.complete(w, index, range.end);
        }
        Step::To(range.end)
    }

    /// Notes bytes before the text. Says no where the stream is not what it seemed.
    fn take_front(
        &mut self,
        w: &mut Walk<'_>,
        index: usize,
        range: Range<usize>,
        from: u32,
    ) -> bool {
        let message = &mut self.list[index];
        let part = from as usize..from as usize + range.len();
        let wrong = message.explicit_assumed
            && from >= HEADER
            && message.front[part.clone()] != w.payload[range.clone()];
        message.front[part].copy_from_slice(&w.payload[range]);
        if wrong {
            w.counters.l5o_assumptions_wrong += 1;
            self.give_up(index, w.counters);
        }
        from >= HEADER || self.header(w, index)
    }

    /// Opens text. Says no where its nonce is not known.
    fn take_text(
        &mut self,
        w: &mut Walk<'_>,
        index: usize,
        range: Range<usize>,
        offset: u32,
    ) -> bool {
        let message = &mut self.list[index];
        let known = message.explicit_assumed
            || !w.keys.has_explicit()
            || message.seen.covers(HEADER, w.keys.front());
        if !known {
            let Some(known) = self.explicit.filter(|_| w.tools.out_of_order) else {
                return false;
            };
            // What was seen of it stays: it was compared with nothing yet.
            let guess = foresee(known, message.number, self.xored).to_be_bytes();
            for (at, byte) in (HEADER..).zip(guess) {
                if !message.seen.covers(at, at + 1) {
                    message.front[at as usize] = byte;
                }
            }
            message.explicit_assumed = true;
        }
        let bytes = &mut w.payload[range.clone()];
        w.keys.open_range(message.number, &message.front, &mut message.sum, offset, bytes);
        let (number, front) = (message.number, message.front);
        w.tools.undo.push(Undo { number, front, offset, range });
        w.ahead |= message.assumed || message.explicit_assumed;
        message.opened = true;
        true
    }

    /// More of a header was seen: if that is all of it, its length is known, or an assumption put to
    /// the test. Says no where nothing is known any more from here on.
    fn header(&mut self, w: &mut Walk<'_>, index: usize) -> bool {
        let message = &mut self.list[index];
        if !message.seen.covers(0, HEADER) || (message.len != 0 && !message.assumed) {
            return true;
        }
        let real = w.keys.length(&message.front);
        let (start, number) = (message.start, message.number);
        w.header = real.map(|_| (start, number));
        if real == Some(message.len) {
            message.assumed = false;
        } else if message.len != 0 {
            w.counters.l5o_assumptions_wrong += 1;
            return self.disprove(w, index, real);
        } else if let Some(len) = real {
            message.len = len;
            (self.next, self.number) = (start + len, number.wrapping_add(1));
        } else {
            self.list.truncate(index);
            (self.next, self.anchored) = (start, false);
            return false;
        }
        real.into_iter().for_each(|len| self.learn(len));
        true
    }

    /// The header of a message is not what was assumed: nothing that rests on it stays.
    fn disprove(&mut self, w: &mut Walk<'_>, index: usize, real: Option<u32>) -> bool {
        // Where it is no header at all, an earlier assumption has put it here.
        let unseen = |m: &Message| m.assumed && !m.seen.covers(0, HEADER);
        let guilty = match real {
            Some(_) => Some(index),
            None => self.list[..index].iter().rposition(unseen),
        };
        let Some(guilty) = guilty else {
            self.cut(index, w.counters);
            self.anchored = false;
            return false;
        };
        self.cut(guilty + 1, w.counters);
        let message = &mut self.list[guilty];
        message.assumed = false;
        (self.next, self.number) = (message.start, message.number);
        if let Some(len) = real {
            message.len = len;
            self.next = message.start + len;
            self.number = message.number.wrapping_add(1);
            self.learn(len);
        } else {
            message.len = 0;
        }
        // What was seen of it beyond its header was seen in the wrong places.
        if self.list[guilty].seen.end() > HEADER || real.is_none() {
            self.give_up(guilty, w.counters);
            self.list[guilty].seen = super::message::Seen::default();
        }
        self.floor = self.floor.max(w.tools.high);
        real.is_some()
    }

    /// Forgets messages from `index` on.
    fn cut(&mut self, index: usize, counters: &mut L5oCounters) {
        let gone = self.list[index..].iter().filter(|message| message.live && message.opened);
        counters.l5o_messages_given_up += gone.count() as u64;
        self.list.truncate(index);
        if let Some(last) = self.list.last() {
            self.next = last.end();
        }
    }

    /// Every byte of a message was seen: its tag decides.
    fn complete(&mut self, w: &mut Walk<'_>, index: usize, end: usize) {
        let message = &mut self.list[index];
        let Message { number, front, len, sum, tag, .. } = message;
        if w.keys.verify(*number, front, *len, sum, tag) {
            let (number, front) = (*number, *front);
            message.live = false;
            self.right(w, number, &front);
        } else {
            self.fail(w, end);
        }
    }

    /// A tag was right.
    fn right(&mut self, w: &mut Walk<'_>, number: u64, front: &[u8; FRONT]) {
        w.verify(number);
        if let Some(explicit) = front[HEADER as usize..].first_chunk() {
            let explicit = u64::from_be_bytes(*explicit);
            if let Some(known) = self.explicit {
                let [counted, xored] = [false, true].map(|x| foresee(known, number, x) == explicit);
                self.xored = if counted == xored { self.xored } else { xored };
            }
            self.explicit = Some((number, explicit));
        }
        if self.guess.is_some_and(|guess| number >= guess.number) {
            self.guess = None;
            w.proven = true;
        }
    }

    /// A tag was wrong: the packet goes as it came.
    fn fail(&mut self, w: &mut Walk<'_>, end: usize) {
        w.counters.rx_tls_err += 1;
        let mut undo = core::mem::take(&mut w.tools.undo);
        for Undo { number, front, offset, range } in undo.drain(..) {
            w.keys.close_range(number, &front, offset, &mut w.payload[range]);
        }
        w.tools.undo = undo;
        let from = w.range.take().map_or(0, |range| range.start);
        let (from, to) = (w.seq_at(from), w.seq_at(end));
        for index in 0..self.list.len() {
            let message = &self.list[index];
            let touched = message.start.lt(to) && (message.len == 0 || message.end().gt(from));
            if message.live && touched {
                self.give_up(index, w.counters);
            }
        }
        (w.verified, w.closed, w.failed) = (0..0, true, true);
        if self.guess.is_some() {
            w.counters.l5o_guesses_wrong += 1;
            self.numberless = true;
        }
    }

    /// Opens no more of a message.
    fn give_up(&mut self, index: usize, counters: &mut L5oCounters) {
        if let Some(message) = self.list.get_mut(index).filter(|message| message.live) {
            message.live = false;
            message.sum = Sum::default();
            counters.l5o_messages_given_up += 1;
        }
    }

    /// Adds a message at the end.
    fn push(&mut self, message: Message) {
        if message.live {
            self.fresh = message.number.wrapping_add(1);
        }
        match self.list.last_mut() {
            Some(last) if last.is_place() && message.is_place() => last.len += message.len,
            _ => self.list.push(message),
        }
    }

    /// Notes that a message came whole.
    fn push_whole(&mut self, start: SeqNum, len: u32, number: u64) {
        self.fresh = number.wrapping_add(1);
        if !self.list.is_empty() {
            self.push(Message::new(start, len, number, false));
        }
    }

    /// Goes on without the headers before byte `at`: messages stay as long as they were. Not where
    /// a header that can be seen says otherwise.
    fn assume(&mut self, w: &Walk<'_>, at: usize) -> bool {
        let usual = i64::from(self.usual);
        let begun = self.list.last().is_some_and(|last| last.len == 0);
        let from = w.at(self.next);
        if !w.tools.out_of_order || !self.anchored || usual == 0 {
            return false;
        }
        let count = (at as i64 - from) / usual + 1;
        let room = w.tools.ahead_max.saturating_sub(self.list.len());
        let total = w.tools.total_max.saturating_sub(w.tools.open);
        if count > room.min(total) as i64 {
            return false;
        }
        let mut header = usize::try_from(from + count * usual).unwrap_or(usize::MAX);
        while w.payload.len().saturating_sub(header) >= HEADER as usize {
            let Some(len) = w.keys.length(&w.payload[header..]) else { return false };
            header += len as usize;
        }
        for nth in 0..count {
            let (start, number) = (self.next, self.number);
            (self.next, self.number) = (start + self.usual, number.wrapping_add(1));
            if let (0, true, Some(last)) = (nth, begun, self.list.last_mut()) {
                (last.len, last.assumed) = (self.usual, true);
                continue;
            }
            let fresh = number >= self.fresh && start.ge(self.floor) && !self.numberless;
            let mut message = Message::new(start, self.usual, number, fresh);
            message.assumed = true;
            self.push(message);
        }
        true
    }

    /// Message `number` begins at `at`, and nothing is known of what lies before it.
    pub(super) fn resume(&mut self, at: SeqNum, number: u64) {
        if self.list.last().is_some_and(|last| last.len == 0) {
            self.list.pop();
        }
        if let Some(last) = self.list.last() {
            let (start, gap) = (last.end(), at.distance(last.end()));
            match u32::try_from(gap) {
                Ok(0) => {}
                Ok(gap) => self.push(Message::new(start, gap, 0, false)),
                Err(_) => self.list.clear(),
            }
        }
        (self.next, self.number, self.anchored, self.numberless) = (at, number, true, false);
        self.guess = None;
        self.floor = self.floor.max(at);
    }

    /// Forgets all it knows of the stream.
    pub(super) fn lose(&mut self, counters: &mut L5oCounters) {
        self.cut(0, counters);
        (self.anchored, self.numberless, self.guess) = (false, false, None);
    }

    /// Forgets messages that end at `end` or before, whatever is missing of them.
    pub(super) fn drop_before(&mut self, end: SeqNum, counters: &mut L5oCounters) {
        self.list.retain(|message| {
            let keep = message.len == 0 || message.end().gt(end);
            counters.l5o_messages_given_up += u64::from(!keep && message.live);
            keep
        });
    }

    /// Gives up what was opened under guessed numbers.
    pub(super) fn disown(&mut self, base: SeqNum, counters: &mut L5oCounters) {
        for index in 0..self.list.len() {
            if self.list[index].start.ge(base) {
                self.give_up(index, counters);
            }
        }
    }

    /// The paper's figure 8 (b): a packet beyond a hole has the next header. Its text is not opened,
    /// but what follows it will be. `next` lies within the packet.
    pub(super) fn skip_to_header(&mut self, w: &mut Walk<'_>) {
        let next = self.next;
        self.cut(0, w.counters);
        self.next = next;
        let mut at = usize::try_from(w.at(self.next)).unwrap_or(0);
        while let Some(left) = w.payload.get(at..).filter(|left| !left.is_empty()) {
            let len = if left.len() < HEADER as usize { Some(0) } else { w.keys.length(left) };
            let Some(len) = len else {
                w.lost = Some(at);
                return;
            };
            let front = left.len().min(w.keys.front() as usize);
            let fresh = self.number >= self.fresh;
            let mut message = Message::new(self.next, len, self.number, fresh);
            message.front[..front].copy_from_slice(&left[..front]);
            let noted = message.seen.add(0, small(front));
            if len == 0 || len as usize > left.len() {
                message.live &= noted;
                self.push(message);
                if len == 0 {
                    return;
                }
            }
            self.fresh = self.fresh.max(self.number.wrapping_add(1));
            self.number = self.number.wrapping_add(1);
            self.next += len;
            at += len as usize;
        }
    }

    /// Lets go of what is complete, and of the oldest where there is too much.
    pub(super) fn compact(&mut self, tools: &Tools, counters: &mut L5oCounters) {
        while self.list.len() > tools.ahead_max {
            self.give_up(0, counters);
            self.list.remove(0);
        }
        while self.list.first().is_some_and(Message::is_place) {
            self.list.remove(0);
        }
        let mut at = 1;
        while at < self.list.len() {
            if self.list[at - 1].is_place() && self.list[at].is_place() {
                self.list[at - 1].len += self.list[at].len;
                self.list.remove(at);
            } else {
                at += 1;
            }
        }
    }

    /// Notes how long messages are: the longest, until two in a row are shorter.
    fn learn(&mut self, len: u32) {
        let shorter = len < self.usual;
        if !shorter || self.shorter {
            self.usual = len;
        }
        self.shorter = shorter && !self.shorter;
    }
}
