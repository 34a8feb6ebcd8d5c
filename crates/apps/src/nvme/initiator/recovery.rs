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

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Instant};
use host::{Host, SocketId};

use super::association::Association;
use super::command::{Error, Extent, Loss};
use super::config::Event;
use super::queue::{Owner, Queue};
use super::{ADMIN, Initiator, Phase};

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

impl Initiator {
    /// The association is lost, by what happened on a queue or not: what was open on it waits for
    /// the next one, or fails.
    pub(super) fn lose(&mut self, now: Instant, host: &mut Host, loss: Loss, index: Option<usize>) {
        let phase = core::mem::replace(&mut self.phase, Phase::Idle);
        if let Phase::Up(mut association) = phase {
            let counter = if association.live {
                &mut self.counters.nvmei_associations_lost
            } else {
                &mut self.counters.nvmei_connects_failed
            };
            *counter += 1;
            let open = self.take_back(now, host, &mut association, ADMIN);
            let last_word = index.filter(|_| loss.is_said());
            self.lingering = hang_up(now, host, &association, last_word);
            let culprit = association.queues.iter().find_map(Queue::culprit);
            // What ended an I/O queue is one of its own; a controller that goes may end any first.
            let one = matches!(loss, Loss::Connection(_)) && index != Some(ADMIN);
            let one = one || loss.is_protocol();
            for (at, serial) in open {
                let here = !one || index == Some(at);
                let suspect = here && culprit.is_none_or(|owner| owner == Owner::Request(serial));
                self.replay(serial, loss, suspect, culprit.is_some());
            }
        }
        // In the order in which they were submitted.
        for ready in &mut self.ready {
            ready.make_contiguous().sort_unstable();
        }
        self.give_up(now, loss);
    }

    /// A command was open when the association was lost; `suspect`: perhaps it is what the
    /// controller cannot answer, or not as it should; `known`: it is.
    fn replay(&mut self, serial: u64, loss: Loss, suspect: bool, known: bool) {
        let Some(pending) = self.requests.get_mut(&serial) else { return };
        let (count, most) = if loss.is_protocol() {
            (&mut pending.protocol_losses, self.config.protocol_retries)
        } else {
            (&mut pending.losses, self.config.loss_retries)
        };
        *count = count.saturating_add(u8::from(suspect));
        // So that it does not cost its neighbours, nor they it.
        pending.alone = !known && *count > most / 2;
        if *count > most {
            self.counters.nvmei_retries_exhausted += 1;
            let error = if loss.is_protocol() { Error::Protocol(loss) } else { Error::Lost(loss) };
            return self.finish(serial, Err(error));
        }
        if !pending.request.is_repeatable() {
            self.counters.nvmei_not_replayed += 1;
            return self.finish(serial, Err(Error::Lost(loss)));
        }
        self.counters.nvmei_replayed += 1;
        self.ready[usize::from(pending.request.is_io())].push_back(serial);
    }

    /// Gives the requests that were open on the queues, which have their buffers again, each with
    /// the place of its queue. Queues before `first` go on.
    pub(super) fn take_back(
        &mut self,
        now: Instant,
        host: &mut Host,
        association: &mut Association,
        first: usize,
    ) -> Vec<(usize, u64)> {
        let mut serials = Vec::new();
        for (index, queue) in association.queues.iter_mut().enumerate().skip(first) {
            for (owner, buffer) in queue.abandon(now, host, &mut self.counters) {
                let Owner::Request(serial) = owner else { continue };
                serials.push((index, serial));
                if let (Some(pending), true) = (self.requests.get_mut(&serial), buffer.is_some()) {
                    pending.buffer = buffer;
                }
            }
        }
        serials
    }

    /// Tries again later, or never.
    pub(super) fn give_up(&mut self, now: Instant, loss: Loss) {
        let next =
            if loss.is_final() { None } else { self.outage.lost(now, &self.config.back_off) };
        match next {
            Some(at) => {
                self.phase = Phase::Waiting(at);
                self.events.push_back(Event::Lost(loss));
            }
            None => {
                self.phase = Phase::Failed(loss);
                self.events.push_back(Event::Failed(loss));
                self.fail_all(Error::ControllerLost(loss));
            }
        }
    }

    pub(super) fn fail_all(&mut self, error: Error) {
        self.ready.iter_mut().for_each(VecDeque::clear);
        self.changes = Changes::default();
        while let Some((_, pending)) = self.requests.pop_first() {
            self.end(pending.token, Err(error), pending.buffer);
        }
    }
}

/// Ends the connections of an association that is lost, but the one that has a last word of ours:
/// that is closed behind it, and given. An orderly close delivers first what was written before,
/// data of writes among it, perhaps long after these were sent again over other connections and
/// answered; so the others are reset, and that one before the next association begins.
fn hang_up(
    now: Instant,
    host: &mut Host,
    of: &Association,
    last_word: Option<usize>,
) -> Option<SocketId> {
    let mut lingering = None;
    for (index, queue) in of.queues.iter().enumerate() {
        if Some(index) == last_word {
            host.close(now, queue.socket());
            lingering = Some(queue.socket());
        } else {
            host.abort(now, queue.socket());
        }
    }
    lingering
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
