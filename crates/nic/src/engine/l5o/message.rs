//! One message of which something is missing, and its states.
//!
//! Called by `chain` and `walk`. [`MessageState::next`] is the table of transitions, and every
//! change of a state goes through it ([`Message::advance`]); ARCHITECTURE.md has its picture. A
//! message is *live* while its text is opened and added up; of others only the boundary counts.
//!
//! Invariants: a byte is added to a live message's sum once; a message that is not live does not
//! become so again; a length is known or assumed in all states but those of a header that is not
//! complete; an assumed length is confirmed or disproved as soon as the header is complete.

use abi::crypto::{Sum, TAG_BYTES};
use base::{SeqNum, internal_error};

use super::counters::L5oCounters;
use crate::engine::seen::Seen;
use crate::engine::tls::{FRONT, HEADER};

/// What is known of a message's boundary, and whether the message is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageState {
    /// Its header is not complete, and its length not known; it will be opened.
    HeaderPartial,
    /// The same, but its header is read for the boundary only.
    HeaderSkipped,
    /// Its length is assumed; it is opened as if that were right.
    Speculative,
    /// Its length is assumed; it is not opened.
    SpeculativeSkipped,
    /// Its length is known; it is opened.
    Live,
    /// Its length is known, and nothing else matters: it is complete, was given up, or stands for a
    /// gap. Neighbours in this state become one.
    Settled,
}

/// What happens to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEvent {
    /// Its header is complete and names this length.
    Header(u32),
    /// Its header lies in a hole: this length is assumed.
    Assume(u32),
    /// What lies behind it shows that the assumed length is wrong.
    Disprove,
    /// No more of it is opened.
    GiveUp,
    /// All of it was seen, and its tag is right.
    Verify,
}

impl MessageState {
    /// Returns the state that an event leads to; none if the event cannot happen in this state.
    pub(super) const fn next(self, event: MessageEvent) -> Option<Self> {
        Some(match (self, event) {
            (Self::HeaderPartial | Self::Speculative, MessageEvent::Header(_)) => Self::Live,
            (Self::HeaderSkipped | Self::SpeculativeSkipped, MessageEvent::Header(_)) => {
                Self::Settled
            }
            (Self::HeaderPartial, MessageEvent::Assume(_)) => Self::Speculative,
            (Self::HeaderSkipped, MessageEvent::Assume(_)) => Self::SpeculativeSkipped,
            (Self::Speculative, MessageEvent::Disprove) => Self::HeaderPartial,
            (Self::SpeculativeSkipped, MessageEvent::Disprove) => Self::HeaderSkipped,
            (Self::HeaderPartial, MessageEvent::GiveUp) => Self::HeaderSkipped,
            (Self::Speculative, MessageEvent::GiveUp) => Self::SpeculativeSkipped,
            (Self::Live, MessageEvent::GiveUp) => Self::Settled,
            (Self::Live, MessageEvent::Verify) => Self::Settled,
            _ => return None,
        })
    }

    /// Whether its text is opened and added up.
    pub(super) const fn is_live(self) -> bool {
        matches!(self, Self::HeaderPartial | Self::Speculative | Self::Live)
    }

    /// Whether its length is not known.
    pub(super) const fn lacks_length(self) -> bool {
        matches!(self, Self::HeaderPartial | Self::HeaderSkipped)
    }

    /// Whether its length is assumed.
    pub(super) const fn is_assumed(self) -> bool {
        matches!(self, Self::Speculative | Self::SpeculativeSkipped)
    }

    /// Whether its header still tells something.
    pub(super) const fn wants_header(self) -> bool {
        self.lacks_length() || self.is_assumed()
    }
}

/// What was done with a message's text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text {
    /// Nothing.
    Sealed,
    /// Some was opened.
    Opened,
    /// Some was opened under a nonce whose explicit part was foreseen and not yet seen.
    OpenedAhead,
}

/// A message, or a run of settled ones.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Sequence number of its first byte.
    pub(super) start: SeqNum,
    /// Bytes, header and all; zero while [`MessageState::lacks_length`].
    pub(super) len: u32,
    /// Its number.
    pub(super) number: u64,
    state: MessageState,
    pub(super) text: Text,
    /// Its front, as far as it was seen or foreseen.
    pub(super) front: [u8; FRONT],
    /// Its tag, as far as it was seen.
    pub(super) tag: [u8; TAG_BYTES],
    /// Which of its bytes were seen.
    pub(super) seen: Seen,
    /// The sum over its text.
    pub(super) sum: Sum,
}

impl Message {
    /// A message of which nothing was seen, and whose length is not known if that is zero.
    pub(super) fn new(start: SeqNum, len: u32, number: u64, live: bool) -> Self {
        let state = match (len, live) {
            (0, true) => MessageState::HeaderPartial,
            (0, false) => MessageState::HeaderSkipped,
            (_, true) => MessageState::Live,
            (_, false) => MessageState::Settled,
        };
        Self {
            start,
            len,
            number,
            state,
            text: Text::Sealed,
            front: [0; FRONT],
            tag: [0; TAG_BYTES],
            seen: Seen::default(),
            sum: Sum::default(),
        }
    }

    pub(super) const fn state(&self) -> MessageState {
        self.state
    }

    /// Goes to the state that an event leads to, and to the length that comes with it.
    pub(super) fn advance(&mut self, event: MessageEvent, counters: &mut L5oCounters) {
        let Some(next) = self.state.next(event) else {
            internal_error!(counters.nic_internal_errors, "an event in a message's wrong state");
            return;
        };
        self.state = next;
        match event {
            MessageEvent::Header(len) | MessageEvent::Assume(len) => self.len = len,
            MessageEvent::Disprove => self.len = 0,
            MessageEvent::GiveUp => self.sum = Sum::default(),
            MessageEvent::Verify => {}
        }
    }

    /// Where the next one begins.
    pub(super) fn end(&self) -> SeqNum {
        self.start + self.len
    }

    pub(super) const fn is_live(&self) -> bool {
        self.state.is_live()
    }

    pub(super) const fn lacks_length(&self) -> bool {
        self.state.lacks_length()
    }

    /// Whether it is nothing but a boundary.
    pub(super) const fn is_settled(&self) -> bool {
        matches!(self.state, MessageState::Settled)
    }

    /// Asserts what holds in each state.
    pub(super) fn check(&self) {
        debug_assert_eq!(self.lacks_length(), self.len == 0, "{self:?}");
        let header_seen = self.seen.covers(0, HEADER);
        debug_assert!(!self.state.wants_header() || !header_seen, "not looked at: {self:?}");
        debug_assert!(!self.lacks_length() || self.seen.end() < HEADER, "{self:?}");
        debug_assert!(self.lacks_length() || self.seen.end() <= self.len, "{self:?}");
        let complete = !self.lacks_length() && self.seen.covers(0, self.len);
        debug_assert!(self.is_settled() || !complete, "not judged: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::states;

    const STATES: [(MessageState, &str); 6] = [
        (MessageState::HeaderPartial, "HeaderPartial"),
        (MessageState::HeaderSkipped, "HeaderSkipped"),
        (MessageState::Speculative, "Speculative"),
        (MessageState::SpeculativeSkipped, "SpeculativeSkipped"),
        (MessageState::Live, "Live"),
        (MessageState::Settled, "Settled"),
    ];
    const EVENTS: [(MessageEvent, &str); 5] = [
        (MessageEvent::Header(99), "header complete"),
        (MessageEvent::Assume(99), "length assumed"),
        (MessageEvent::Disprove, "length disproved"),
        (MessageEvent::GiveUp, "given up"),
        (MessageEvent::Verify, "tag right"),
    ];

    /// The diagram in ARCHITECTURE.md is the table.
    #[test]
    fn the_documents_have_the_transitions() {
        states::assert_documented(&states::diagram(&STATES, &EVENTS, MessageState::next));
    }

    /// What is not opened any more stays so, and a settled message stays as it is.
    #[test]
    fn no_event_makes_a_message_live_again() {
        for (state, _) in STATES {
            for (event, _) in EVENTS {
                let Some(next) = state.next(event) else { continue };
                assert!(state.is_live() || !next.is_live(), "{state:?} {event:?} {next:?}");
                assert_ne!(state, MessageState::Settled);
                assert_ne!(state, next);
            }
        }
    }
}
