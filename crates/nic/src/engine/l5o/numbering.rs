//! Trust in a chain's record numbers.
//!
//! Used by `chain`, `walk` and `rx`. [`Numbering::next`] is the transition table, drawn in
//! docs/engines/tls-states.md; every change goes through it. Numbers come from the host, or from an
//! estimate of the number of messages in a hole. A correct tag proves a speculative number; wrong
//! tags make the context ask the host again, and nothing new is decrypted until it has answered.
//!
//! Invariant: all messages from `RecordTracker::numbered_from` on are numbered consecutively, so
//! that they are given up and renumbered together. Earlier ones have numbers of their own, which
//! neither prove nor disprove the current ones.

use base::SeqNum;

/// A speculative record number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SpeculativeNumber {
    /// Start of the message about which the host is asked.
    pub(super) seq: SeqNum,
    /// Assumed number of the message at `seq`.
    pub(super) number: u64,
}

/// Origin and trust of a chain's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// From the host, or proved by a tag.
    Known,
    /// Speculative.
    Guessed(SpeculativeNumber),
    /// Wrong, with no message yet about which the host could be asked.
    Doubted,
    /// Wrong; the host's answer about the message at `SpeculativeNumber::seq` will correct them.
    Questioned(SpeculativeNumber),
}

/// An event that concerns a chain's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberingEvent {
    /// The numbers are discarded, or replaced by one from the host.
    Restart,
    /// The numbers continue after a hole with an estimate.
    Guess(SpeculativeNumber),
    /// A tag was correct under a speculative number.
    Prove,
    /// Wrong tags: one under a speculative number, or several in a row.
    Doubt,
    /// A message was found about which the host is asked.
    Ask(SpeculativeNumber),
    /// The host has answered, and the numbers have been corrected.
    Answer,
}

impl Numbering {
    /// Returns the state after `event`, or `None` if the event cannot occur in this state.
    pub(super) const fn next(self, event: NumberingEvent) -> Option<Self> {
        Some(match (self, event) {
            (_, NumberingEvent::Restart) => Self::Known,
            (Self::Known, NumberingEvent::Guess(guess)) => Self::Guessed(guess),
            (Self::Known, NumberingEvent::Doubt) => Self::Doubted,
            (Self::Guessed(_), NumberingEvent::Prove) => Self::Known,
            (Self::Guessed(guess), NumberingEvent::Doubt) => Self::Questioned(guess),
            (Self::Guessed(_) | Self::Questioned(_), NumberingEvent::Answer) => Self::Known,
            // A correct tag contradicts the wrong ones: the host is asked about another message.
            (Self::Questioned(_), NumberingEvent::Prove) => Self::Doubted,
            (Self::Doubted | Self::Questioned(_), NumberingEvent::Ask(guess)) => {
                Self::Questioned(guess)
            }
            _ => return None,
        })
    }

    /// Returns the speculation on which the numbers depend, or by which they will be corrected.
    pub(super) const fn speculation(self) -> Option<SpeculativeNumber> {
        match self {
            Self::Guessed(guess) | Self::Questioned(guess) => Some(guess),
            Self::Known | Self::Doubted => None,
        }
    }

    /// Returns whether the numbers are known to be wrong: nothing new is decrypted.
    pub(super) const fn is_wrong(self) -> bool {
        matches!(self, Self::Doubted | Self::Questioned(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::state_diagram;

    const GUESS: SpeculativeNumber = SpeculativeNumber { seq: SeqNum(100), number: 7 };
    const STATES: [(Numbering, &str); 4] = [
        (Numbering::Known, "Known"),
        (Numbering::Guessed(GUESS), "Guessed"),
        (Numbering::Doubted, "Doubted"),
        (Numbering::Questioned(GUESS), "Questioned"),
    ];
    const EVENTS: [(NumberingEvent, &str); 5] = [
        (NumberingEvent::Guess(GUESS), "guess behind a hole"),
        (NumberingEvent::Prove, "tag right"),
        (NumberingEvent::Doubt, "tags wrong"),
        (NumberingEvent::Ask(GUESS), "host asked"),
        (NumberingEvent::Answer, "host's answer"),
    ];

    /// The diagram in docs/engines/tls-states.md equals the table; a restart always leads to known
    /// numbers.
    #[test]
    fn the_documents_have_the_transitions() {
        state_diagram::assert_documented(&state_diagram::mermaid_diagram(
            &STATES,
            &EVENTS,
            Numbering::next,
        ));
        for (state, _) in STATES {
            assert_eq!(state.next(NumberingEvent::Restart), Some(Numbering::Known));
        }
    }
}
