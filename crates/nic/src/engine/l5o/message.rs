//! An incomplete message and its states.
//!
//! Used by `chain` and `walk`. [`MessageState::next`] is the transition table, drawn in
//! docs/engines/tls-states.md; every state change goes through it ([`TrackedMessage::advance`]). A
//! message is *live* while its text is decrypted and added to its authentication sum; of other
//! messages only the boundary matters.
//!
//! Invariants: a byte is added to a live message's sum once; a message that stopped being live
//! never becomes live again; a length is known or assumed in all states except those of an
//! incomplete header; an assumed length is confirmed or disproved as soon as the header is
//! complete.

use abi::crypto::{AuthSum, TAG_BYTES};
use base::{SeqNum, internal_error};

use super::counters::L5oCounters;
use crate::engine::received_ranges::ReceivedRanges;
use crate::engine::tls::{FRONT, HEADER};

/// Knowledge of a message's boundary, and whether the message is decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageState {
    /// Header incomplete, length unknown; the message is to be decrypted.
    HeaderPartial,
    /// Header incomplete, length unknown; the header is read for the boundary only.
    HeaderSkipped,
    /// Length assumed; the message is decrypted as if that were correct.
    Speculative,
    /// Length assumed; the message is not decrypted.
    SpeculativeSkipped,
    /// Length known; the message is decrypted.
    Live,
    /// Length known and nothing else of interest: the message is complete, was given up, or
    /// represents a gap. Neighbors in this state are merged.
    Settled,
}

/// An event in the life of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MessageEvent {
    /// The header is complete and contains this length.
    Header(u32),
    /// The header lies in a hole; this length is assumed.
    Assume(u32),
    /// A position derived from the assumed length holds no header.
    Disprove,
    /// Decryption of the message stops.
    GiveUp,
    /// All bytes have arrived and the tag is correct.
    Verify,
}

impl MessageState {
    /// Returns the state after `event`, or `None` if the event cannot occur in this state.
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

    /// Returns whether the text is decrypted and authenticated.
    pub(super) const fn is_live(self) -> bool {
        matches!(self, Self::HeaderPartial | Self::Speculative | Self::Live)
    }

    /// Returns whether the length is neither known nor assumed.
    pub(super) const fn lacks_length(self) -> bool {
        matches!(self, Self::HeaderPartial | Self::HeaderSkipped)
    }

    /// Returns whether the length is assumed.
    pub(super) const fn is_assumed(self) -> bool {
        matches!(self, Self::Speculative | Self::SpeculativeSkipped)
    }

    /// Returns whether the header still carries information.
    pub(super) const fn wants_header(self) -> bool {
        self.lacks_length() || self.is_assumed()
    }
}

/// Treatment of a message's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextState {
    /// Nothing was decrypted.
    Encrypted,
    /// Some of it was decrypted.
    Decrypted,
    /// Some of it was decrypted under a predicted explicit nonce that has not arrived yet.
    DecryptedAhead,
}

/// A message, or a merged run of settled ones.
#[derive(Clone, Debug)]
pub(super) struct TrackedMessage {
    /// Sequence number of the first byte.
    pub(super) start: SeqNum,
    /// Length including the header, in bytes; 0 while [`MessageState::lacks_length`].
    pub(super) len: u32,
    /// Record number.
    pub(super) number: u64,
    state: MessageState,
    /// True if `number` depended on a speculation when the numbering was replaced.
    pub(super) number_unproved: bool,
    pub(super) text: TextState,
    /// Header and explicit nonce: the received or predicted bytes.
    pub(super) front: [u8; FRONT],
    /// The received bytes of the tag.
    pub(super) tag: [u8; TAG_BYTES],
    /// Ranges of the message that have arrived.
    pub(super) received: ReceivedRanges,
    /// Authentication sum over the text; `None` while it is in the cipher of the chain, which is
    /// true of at most one message.
    pub(super) sum: Option<AuthSum>,
}

impl TrackedMessage {
    /// Creates a message of which nothing has arrived. A `len` of 0 means unknown.
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
            number_unproved: false,
            text: TextState::Encrypted,
            front: [0; FRONT],
            tag: [0; TAG_BYTES],
            received: ReceivedRanges::default(),
            sum: Some(AuthSum::default()),
        }
    }

    pub(super) const fn state(&self) -> MessageState {
        self.state
    }

    /// Applies an event: changes the state, and the length if the event has one.
    pub(super) fn advance(&mut self, event: MessageEvent, counters: &mut L5oCounters) {
        let Some(next) = self.state.next(event) else {
            internal_error!(counters.nic_internal_errors, "an event in a message's wrong state");
            return;
        };
        self.state = next;
        match event {
            MessageEvent::Header(len) | MessageEvent::Assume(len) => self.len = len,
            MessageEvent::Disprove => self.len = 0,
            MessageEvent::GiveUp => self.sum = Some(AuthSum::default()),
            MessageEvent::Verify => {}
        }
    }

    /// Returns the sequence number after the message's last byte.
    pub(super) fn end(&self) -> SeqNum {
        self.start + self.len
    }

    pub(super) const fn is_live(&self) -> bool {
        self.state.is_live()
    }

    pub(super) const fn lacks_length(&self) -> bool {
        self.state.lacks_length()
    }

    /// Returns whether only the boundary of the message is of interest.
    pub(super) const fn is_settled(&self) -> bool {
        matches!(self.state, MessageState::Settled)
    }

    /// Asserts the invariants of the state.
    pub(super) fn check(&self) {
        debug_assert_eq!(self.lacks_length(), self.len == 0, "{self:?}");
        let header_seen = self.received.covers(0, HEADER);
        debug_assert!(!self.state.wants_header() || !header_seen, "not looked at: {self:?}");
        debug_assert!(!self.lacks_length() || self.received.end() < HEADER, "{self:?}");
        debug_assert!(self.lacks_length() || self.received.end() <= self.len, "{self:?}");
        let complete = !self.lacks_length() && self.received.covers(0, self.len);
        debug_assert!(self.is_settled() || !complete, "not judged: {self:?}");
        debug_assert!(self.is_live() || self.sum.is_some(), "in the cipher: {self:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::state_diagram;

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

    /// The diagram in docs/engines/tls-states.md equals the table.
    #[test]
    fn the_documents_have_the_transitions() {
        state_diagram::assert_documented(&state_diagram::mermaid_diagram(
            &STATES,
            &EVENTS,
            MessageState::next,
        ));
    }

    /// A message that is not live stays so, and a settled one does not change.
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
