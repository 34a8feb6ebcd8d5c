//! What survives the loss of an association: when to connect again, and what may be sent again.
//!
//! *What is sent again.* When a connection is lost nobody knows which of the commands that were not
//! answered have been done. Those that only look (read, compare, Identify) are sent again. Those
//! that change blocks (write, write zeroes, deallocate) leave the same state however often they are
//! done, as long as nothing else changed the blocks between the first time and the last: else an
//! old write would come back over a newer one that was answered meanwhile. Therefore *changes that
//! overlap are made one after the other*: one that overlaps an earlier one is held back until that
//! is answered ([`Changes`]). So whatever was not answered overlaps nothing that was, and
//! everything is sent again in the order in which it was submitted. For the same reason nothing
//! that was written to a connection of the old association leaves once the next one begins: they
//! are reset. Admin commands that do more than look are not sent again: they fail, with the word
//! that they may have been done.
//!
//! *How often.* A command that the controller never answers, or ends the connection on, would come
//! back for ever. So each is counted the associations that it may have cost, and fails after a few:
//! not those that another command, or one on another queue, is known to have cost. Of several that
//! may be it, each goes alone for the second half of its tries: it is answered, or it was the one.
//! And an outage ends with the first answer to a command, or where none is open, not with the
//! association: else [`BackOff::ctrl_loss`] would never end one that lasts until the first command.
//!
//! What was answered and not flushed may be lost when the *controller* loses power, as with any
//! disk that has a volatile cache; a flush that is sent again does not bring it back. And a
//! controller that goes on with commands of a connection that it has lost may do them after they
//! were sent again: controllers give them up with the connection (fabrics, section 3.6).
//!
//! Called by [`super::Initiator`].

use std::collections::BTreeMap;

use base::{Duration, Instant};

use super::command::Extent;

/// Changes that are not answered, in the order in which they were submitted.
#[derive(Debug, Default)]
pub(super) struct Changes {
    open: BTreeMap<u64, Extent>,
}

impl Changes {
    /// A change was submitted; says whether it may be made now.
    pub(super) fn insert(&mut self, serial: u64, extent: Extent) -> bool {
        self.open.insert(serial, extent);
        self.may_go(serial)
    }

    /// A change was answered, or failed.
    pub(super) fn remove(&mut self, serial: u64) -> bool {
        self.open.remove(&serial).is_some()
    }

    /// Whether no earlier change overlaps it.
    pub(super) fn may_go(&self, serial: u64) -> bool {
        let Some(extent) = self.open.get(&serial) else { return true };
        !self.open.range(..serial).any(|(_, earlier)| earlier.overlaps(extent))
    }
}

/// How long to wait before the next attempt to connect, and for how long there are attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// Before the first attempt.
    pub first: Duration,
    /// Each wait is twice the one before it, up to this.
    pub most: Duration,
    /// From the loss of the association to the end of all attempts, as long as no command is
    /// answered; none where there is no end.
    pub ctrl_loss: Option<Duration>,
}

impl Default for BackOff {
    /// Linux's `ctrl_loss_tmo`, 600 s.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            most: Duration::from_secs(10),
            ctrl_loss: Some(Duration::from_secs(600)),
        }
    }
}

/// How long the controller has been lost.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    attempts: u32,
}

impl Outage {
    /// An association was lost, or an attempt failed; gives when to try again, or none where that
    /// is over.
    pub(super) fn lost(&mut self, now: Instant, back_off: &BackOff) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        let factor = 1_u64 << self.attempts.min(20);
        self.attempts = self.attempts.saturating_add(1);
        let wait = back_off.first.as_nanos().saturating_mul(factor).min(back_off.most.as_nanos());
        let next = now + Duration::from_nanos(wait);
        let over = back_off.ctrl_loss.is_some_and(|most| next > since + most);
        (!over).then_some(next)
    }

    /// It is back.
    pub(super) const fn end(&mut self) {
        (self.since, self.attempts) = (None, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(n)
    }

    #[test]
    fn waits_double_up_to_the_most_and_end() {
        let back_off = BackOff {
            first: Duration::from_millis(100),
            most: Duration::from_millis(300),
            ctrl_loss: Some(Duration::from_millis(1000)),
        };
        let mut outage = Outage::default();
        assert_eq!(outage.lost(ms(0), &back_off), Some(ms(100)));
        assert_eq!(outage.lost(ms(100), &back_off), Some(ms(300)));
        assert_eq!(outage.lost(ms(300), &back_off), Some(ms(600)));
        assert_eq!(outage.lost(ms(700), &back_off), Some(ms(1000)));
        assert_eq!(outage.lost(ms(1000), &back_off), None);
        outage.end();
        assert_eq!(outage.lost(ms(5000), &back_off), Some(ms(5100)));
    }
}
