//! Prediction of explicit nonces (TLS 1.2 AES-GCM).
//!
//! Used by `walk`. RFC 5288 section 3 leaves the explicit nonce to the sender. Most senders count
//! it from an arbitrary start, or use the record number XORed with a constant. Two consecutive
//! nonces usually tell which; the nonce of a message whose front lies in a hole can then be
//! predicted.

/// Relation between explicit nonces and record numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NonceRule {
    /// The nonce is the record number plus a constant.
    #[default]
    Counted,
    /// The nonce is the record number XORed with a constant.
    XorConstant,
}

impl NonceRule {
    /// Returns the explicit nonce of message `number`, given the number and nonce of another
    /// message.
    const fn predict(self, (known, explicit): (u64, u64), number: u64) -> u64 {
        match self {
            Self::Counted => explicit.wrapping_add(number.wrapping_sub(known)),
            Self::XorConstant => explicit ^ known ^ number,
        }
    }
}

/// Explicit nonces seen in a stream, and predictions from them.
#[derive(Debug, Default)]
pub(super) struct NoncePredictor {
    /// Number and nonce of the last message with a correct tag.
    last: Option<(u64, u64)>,
    rule: NonceRule,
}

impl NoncePredictor {
    /// Predicts the explicit nonce of message `number`.
    pub(super) fn predict(&self, number: u64) -> Option<u64> {
        self.last.map(|last| self.rule.predict(last, number))
    }

    /// Records the explicit nonce of a message with a correct tag.
    pub(super) fn learn(&mut self, number: u64, explicit: u64) {
        if let Some(last) = self.last {
            let fits = |rule: NonceRule| rule.predict(last, number) == explicit;
            self.rule = match (fits(NonceRule::Counted), fits(NonceRule::XorConstant)) {
                (true, false) => NonceRule::Counted,
                (false, true) => NonceRule::XorConstant,
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
        let mut nonces = NoncePredictor::default();
        assert_eq!(nonces.predict(1), None);
        nonces.learn(4, 4 ^ 0xabcd);
        nonces.learn(5, 5 ^ 0xabcd);
        assert_eq!(nonces.predict(6), Some(6 ^ 0xabcd));
        nonces.learn(6, 1000);
        assert_eq!(nonces.predict(7), Some(7 ^ 6 ^ 1000), "neither rule fits: it stays");
        nonces.learn(8, 1002);
        assert_eq!(nonces.predict(11), Some(1005));
    }
}
