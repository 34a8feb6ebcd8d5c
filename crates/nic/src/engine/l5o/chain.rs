//! What a receive context knows of the stream: where messages lie, one after the other, and which
//! of them are incomplete.
//!
//! `rx` has a packet walked from its first byte to its last (`walk`). Messages whose boundaries are
//! known need no order: their ranges are opened as they come, and the one that makes a message
//! whole has its tag judged. Where a header lies in a hole, the chain may go on by assumption
//! (`assume`): that messages stay as long as they were, that numbers follow each other.
//!
//! Invariants, on which the host relies:
//! - one packet, one contiguous range; the rest is exactly as it came;
//! - a number is live at most once in a context's life (`fresh`), and a byte of it is added up at
//!   most once, so that a right tag speaks for the very bytes that were opened under that number;
//! - where a tag is wrong, the packet is put back as it came and all it touched is dead.

use abi::crypto::Sum;
use base::SeqNum;
use smallvec::SmallVec;

use super::counters::L5oCounters;
use super::message::Message;
use super::packet::{Walk, small, wide};
use super::tools::Tools;
use crate::engine::seen::Seen;
use crate::engine::tls::HEADER;

/// Most messages whose headers were not seen over which a number is guessed.
const GUESS_MAX: u32 = 8;

/// A number that was guessed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guess {
    /// The message that begins here
    pub(super) base: SeqNum,
    /// has this number.
    pub(super) number: u64,
    /// The first message that rests on it.
    pub(super) from: (SeqNum, u64),
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
    usual: u32,
    /// Tags that were wrong since one was right.
    pub(super) failures: u32,
    /// Two in a row had it.
    sure: bool,
    /// The last was shorter.
    shorter: bool,
    /// What lengths are on average, of late.
    average: u32,
    /// An explicit nonce that was seen, and its message's number.
    pub(super) explicit: Option<(u64, u64)>,
    /// It is the number, XORed with something; else it counts up from somewhere. RFC 5288 section 3
    /// leaves it to the sender.
    pub(super) xored: bool,
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
            failures: 0,
            sure: false,
            shorter: false,
            average: 0,
            explicit: None,
            xored: false,
        }
    }

    /// More of a header was seen: if that is all of it, its length is known, or an assumption put
    /// to the test. Says no where nothing is known any more from here on.
    pub(super) fn header(&mut self, w: &mut Walk<'_>, index: usize) -> bool {
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
    pub(super) fn disprove(&mut self, w: &mut Walk<'_>, index: usize, real: Option<u32>) -> bool {
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
            self.list[guilty].seen = Seen::default();
        }
        self.floor = self.floor.max(w.tools.high);
        real.is_some()
    }

    /// Forgets messages from `index` on.
    pub(super) fn cut(&mut self, index: usize, counters: &mut L5oCounters) {
        let gone = self.list[index..].iter().filter(|message| message.live && message.opened);
        counters.l5o_messages_given_up += gone.count() as u64;
        self.list.truncate(index);
        if let Some(last) = self.list.last() {
            self.next = last.end();
        }
    }

    /// Opens no more of a message.
    pub(super) fn give_up(&mut self, index: usize, counters: &mut L5oCounters) {
        if let Some(message) = self.list.get_mut(index).filter(|message| message.live) {
            message.live = false;
            message.sum = Sum::default();
            counters.l5o_messages_given_up += 1;
        }
    }

    /// Adds a message at the end.
    pub(super) fn push(&mut self, message: Message) {
        if message.live {
            self.fresh = message.number.wrapping_add(1);
        }
        match self.list.last_mut() {
            Some(last) if last.is_place() && message.is_place() => last.len += message.len,
            _ => self.list.push(message),
        }
    }

    /// Notes that a message came whole.
    pub(super) fn push_whole(&mut self, start: SeqNum, len: u32, number: u64) {
        self.fresh = number.wrapping_add(1);
        if !self.list.is_empty() {
            self.push(Message::new(start, len, number, false));
        }
    }

    /// Goes on without the headers before byte `at`: messages stay as long as they were. Not where
    /// a header that can be seen says otherwise.
    pub(super) fn assume(&mut self, w: &Walk<'_>, at: usize) -> bool {
        let usual = i64::from(self.usual);
        let begun = self.list.last().is_some_and(|last| last.len == 0);
        let from = w.at(self.next);
        if !w.tools.out_of_order || !self.anchored || !self.sure {
            return false;
        }
        let count = (wide(at) - from) / usual + 1;
        let room = w.tools.ahead_max.saturating_sub(self.list.len());
        let total = w.tools.total_max.saturating_sub(w.tools.open);
        if count > wide(room.min(total)) {
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
        (self.guess, self.failures) = (None, 0);
        self.floor = self.floor.max(at);
    }

    /// Numbers were so many less than they should be.
    pub(super) fn shift(&mut self, by: u64) {
        self.number = self.number.wrapping_add(by);
        if let Some(begun) = self.list.last_mut().filter(|last| last.len == 0) {
            begun.number = begun.number.wrapping_add(by);
        }
        self.failures = 0;
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

    /// The paper's figure 8 (b): a packet beyond a hole has the next header. Its text is not
    /// opened, but what follows it will be. `next` lies within the packet.
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

    /// Lets go of what is complete, and of the oldest where there is too much, or where it is so
    /// old that its place could be taken for one that is still to come. `high` is the end of the
    /// latest packet.
    pub(super) fn compact(&mut self, high: SeqNum, tools: &Tools, counters: &mut L5oCounters) {
        self.floor = self.floor.follow(high);
        if self.next.is_far_before(high) {
            self.lose(counters);
            self.next = self.next.follow(high);
        }
        let old = |message: &Message| message.end().is_far_before(high);
        while self.list.len() > tools.ahead_max || self.list.first().is_some_and(old) {
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

    /// Notes how long messages are: the longest, until two in a row are shorter. What lies behind a
    /// wrong assumption is lost for good, so that a length has to be seen twice first.
    pub(super) fn learn(&mut self, len: u32) {
        let shorter = len < self.usual;
        if len == self.usual {
            self.sure = true;
        } else if !shorter || self.shorter {
            (self.usual, self.sure) = (len, false);
        }
        self.shorter = shorter && !self.shorter;
        let before = if self.average == 0 { len } else { self.average };
        self.average = (before * 7 + len) / 8;
    }

    /// How many messages probably lie in `gap` bytes; none where nobody could tell. One too many
    /// wastes a number, as each can be opened once.
    pub(super) fn between(&self, gap: u32) -> Option<u64> {
        let average = self.average.max(1);
        let count = (gap.saturating_add(average / 2) / average).max(1);
        (count <= GUESS_MAX).then_some(u64::from(count))
    }
}
