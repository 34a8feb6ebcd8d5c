//! How far a chain's record numbers are to be trusted.
//!
//! Called by `chain`, `walk` and `rx`. [`Numbering::next`] is the table of transitions, and every
//! change goes through it; ARCHITECTURE.md has its picture. Numbers come from the host, or follow a
//! guess of how many messages a hole had; a tag that is right proves a guess, and tags that are
//! wrong make the chain ask the host again. Meanwhile nothing new is opened.
//!
//! Invariant: whatever rests on a guess is numbered from `Guess::from` on, so that it can be
//! disowned and corrected with the guess.

use base::SeqNum;

/// A number that was guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guess {
    /// Where the message begins that the host is asked about.
    pub(super) base: SeqNum,
    /// The number that it should have.
    pub(super) number: u64,
    /// The first message that rests on it.
    pub(super) from: (SeqNum, u64),
}

/// Where the numbers of a chain come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// From the host, or a tag has proved them.
    Known,
    /// From a guess.
    Guessed(Guess),
    /// They are wrong, and nothing was found yet that the host could be asked about.
    Doubted,
    /// They are wrong; the host's answer about the guess's message will correct them.
    Questioned(Guess),
}

/// What happens to a chain's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberingEvent {
    /// They are given up, or begin anew with one that the host has said.
    Restart,
    /// Behind a hole they go on with a guess.
    Guess(Guess),
    /// A tag was right under a guessed number.
    Prove,
    /// Tags were wrong: one under a guessed number, or several in a row.
    Doubt,
    /// There is a message that the host can be asked about.
    Ask(Guess),
    /// The host has answered, and the numbers were corrected.
    Answer,
}

impl Numbering {
    /// Returns what an event leads to; none if the event cannot happen here.
    pub(super) const fn next(self, event: NumberingEvent) -> Option<Self> {
        Some(match (self, event) {
            (_, NumberingEvent::Restart) => Self::Known,
            (Self::Known, NumberingEvent::Guess(guess)) => Self::Guessed(guess),
            (Self::Known, NumberingEvent::Doubt) => Self::Doubted,
            (Self::Guessed(_), NumberingEvent::Prove) => Self::Known,
            (Self::Guessed(guess), NumberingEvent::Doubt) => Self::Questioned(guess),
            (Self::Guessed(_) | Self::Questioned(_), NumberingEvent::Answer) => Self::Known,
            // A tag is right that does not fit those that were wrong.
            (Self::Questioned(_), NumberingEvent::Prove) => Self::Doubted,
            (Self::Doubted | Self::Questioned(_), NumberingEvent::Ask(guess)) => {
                Self::Questioned(guess)
            }
            _ => return None,
        })
    }

    /// The guess that numbers rest on, or by which they will be corrected.
    pub(super) const fn guess(self) -> Option<Guess> {
        match self {
            Self::Guessed(guess) | Self::Questioned(guess) => Some(guess),
            Self::Known | Self::Doubted => None,
        }
    }

    /// Whether a message of this number rests on a guess.
    pub(super) const fn is_guessed(self, number: u64) -> bool {
        match self.guess() {
            Some(guess) => number >= guess.from.1,
            None => false,
        }
    }

    /// Whether numbers are wrong: nothing new is opened.
    pub(super) const fn is_wrong(self) -> bool {
        matches!(self, Self::Doubted | Self::Questioned(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::states;

    const GUESS: Guess = Guess { base: SeqNum(100), number: 7, from: (SeqNum(50), 6) };
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

    /// The diagram in ARCHITECTURE.md is the table; a restart leads from everywhere to known
    /// numbers.
    #[test]
    fn the_documents_have_the_transitions() {
        states::assert_documented(&states::diagram(&STATES, &EVENTS, Numbering::next));
        for (state, _) in STATES {
            assert_eq!(state.next(NumberingEvent::Restart), Some(Numbering::Known));
        }
    }
}
