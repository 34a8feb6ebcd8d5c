//! Explicit parts of nonces, and how they go on from message to message.
//!
//! Called by `walk`. RFC 5288 section 3 leaves them to the sender: most count them, from anywhere,
//! or write the record's number XORed with a constant. Which it is shows in any two that differ;
//! then the nonce of a message can be foreseen whose front lies in a hole.

/// How explicit nonces follow numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NonceRule {
    /// They count up from somewhere.
    #[default]
    Counted,
    /// They are the number, XORed with something.
    Xored,
}

impl NonceRule {
    /// The explicit nonce of message `number`, after that of another.
    const fn foresee(self, (known, explicit): (u64, u64), number: u64) -> u64 {
        match self {
            Self::Counted => explicit.wrapping_add(number.wrapping_sub(known)),
            Self::Xored => explicit ^ known ^ number,
        }
    }
}

/// What is known of a stream's explicit nonces.
#[derive(Debug, Default)]
pub(super) struct Nonces {
    /// The last of a message whose tag was right: the message's number, and the nonce.
    last: Option<(u64, u64)>,
    rule: NonceRule,
}

impl Nonces {
    /// The explicit nonce of message `number`, as far as it can be told.
    pub(super) fn foresee(&self, number: u64) -> Option<u64> {
        self.last.map(|last| self.rule.foresee(last, number))
    }

    /// Notes the explicit nonce of a message whose tag was right.
    pub(super) fn learn(&mut self, number: u64, explicit: u64) {
        if let Some(last) = self.last {
            let fits = |rule: NonceRule| rule.foresee(last, number) == explicit;
            self.rule = match (fits(NonceRule::Counted), fits(NonceRule::Xored)) {
                (true, false) => NonceRule::Counted,
                (false, true) => NonceRule::Xored,
                _ => self.rule,
            };
        }
        self.last = Some((number, explicit));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_nonces_that_differ_tell_the_rule() {
        let mut nonces = Nonces::default();
        assert_eq!(nonces.foresee(1), None);
        nonces.learn(4, 4 ^ 0xabcd);
        nonces.learn(5, 5 ^ 0xabcd);
        assert_eq!(nonces.foresee(6), Some(6 ^ 0xabcd));
        nonces.learn(6, 1000);
        assert_eq!(nonces.foresee(7), Some(7 ^ 6 ^ 1000), "neither rule fits: it stays");
        nonces.learn(8, 1002);
        assert_eq!(nonces.foresee(11), Some(1005));
    }
}
