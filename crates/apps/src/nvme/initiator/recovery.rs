//! Recovery from a lost association: when to reconnect, and which commands to resend.
//!
//! *Which commands are resent.* When a connection is lost, it is unknown which of the unanswered
//! commands were executed. Commands that change nothing (Read, Compare, Identify) are resent.
//! Commands that change blocks (Write, Write Zeroes, Deallocate) leave the same state however often
//! they are executed, provided that nothing else changed the blocks between the first execution and
//! the last; otherwise an old write could overwrite a newer one that was answered meanwhile.
//! Therefore *overlapping changes are executed one at a time*: a change that overlaps an earlier
//! one is held until the earlier one is answered ([`PendingChanges`]). Hence no unanswered change
//! overlaps an answered later one, and all are resent in the order of submission. For the same
//! reason no data written to a connection of the old association may leave after the next
//! association begins: these connections are reset. Admin commands that may change something are
//! not resent: they fail with an error that says that they may have been executed.
//!
//! *How often.* A command that the controller never answers, or that makes it end the connection,
//! would be resent forever. Therefore each command counts the associations that it may have ended,
//! and fails after a few. Associations ended by another known command or on another queue do not
//! count. If several commands are suspected, each is sent alone for the second half of its tries:
//! either it is answered, or it is the cause. An outage ends with the first answer to a command or,
//! if no request is open, when the next association is established. Otherwise
//! [`BackOff::ctrl_loss`] would never apply to a controller that accepts connections but answers
//! nothing.
//!
//! Completed but unflushed writes may be lost if the *controller* loses power, as with any disk
//! that has a volatile cache; a resent flush does not restore them. And a controller that continues
//! to execute commands of a lost connection may execute them after they were resent: controllers
//! are required to abort them with the connection (fabrics section 3.6).
//!
//! Called by [`super::Initiator`].

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Instant};
use host::{Host, SocketId};

use super::association::Association;
use super::command::{AssociationLoss, ChangedBlocks, NvmeRequestError};
use super::config::InitiatorEvent;
use super::queue::{CommandOrigin, InitiatorQueue};
use super::{ADMIN, Initiator, InitiatorPhase};

/// Unanswered changes by serial number, which is the order of submission.
#[derive(Debug, Default)]
pub(super) struct PendingChanges {
    open: BTreeMap<u64, ChangedBlocks>,
}

impl PendingChanges {
    /// Adds a submitted change. Returns whether it may be sent now.
    pub(super) fn insert(&mut self, serial: u64, extent: ChangedBlocks) -> bool {
        self.open.insert(serial, extent);
        self.can_send(serial)
    }

    /// Removes a change that was answered or failed. Returns whether it existed.
    pub(super) fn remove(&mut self, serial: u64) -> bool {
        self.open.remove(&serial).is_some()
    }

    /// Returns whether no earlier change overlaps this one.
    pub(super) fn can_send(&self, serial: u64) -> bool {
        let Some(extent) = self.open.get(&serial) else { return true };
        !self.open.range(..serial).any(|(_, earlier)| earlier.overlaps(extent))
    }
}

/// Delays between attempts to connect, and the time after which they end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// Delay before the first attempt.
    pub first: Duration,
    /// Largest delay; each is twice the previous one.
    pub max: Duration,
    /// Time from the loss of the association, without an answer to any command, after which no
    /// further attempt is made; `None` for no limit.
    pub ctrl_loss: Option<Duration>,
}

impl Default for BackOff {
    /// Linux's `ctrl_loss_tmo`, 600 s.
    fn default() -> Self {
        Self {
            first: Duration::from_millis(100),
            max: Duration::from_secs(10),
            ctrl_loss: Some(Duration::from_secs(600)),
        }
    }
}

/// Duration of the present outage.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    attempts: u32,
}

impl Outage {
    /// Records a lost association or a failed attempt. Returns the time of the next attempt, or
    /// `None` to give up.
    pub(super) fn lost(&mut self, now: Instant, back_off: &BackOff) -> Option<Instant> {
        let since = *self.since.get_or_insert(now);
        let factor = 1_u64 << self.attempts.min(20);
        self.attempts = self.attempts.saturating_add(1);
        let wait = back_off.first.as_nanos().saturating_mul(factor).min(back_off.max.as_nanos());
        let next = now + Duration::from_nanos(wait);
        let over = back_off.ctrl_loss.is_some_and(|most| next > since + most);
        (!over).then_some(next)
    }

    /// Ends the outage.
    pub(super) const fn end(&mut self) {
        (self.since, self.attempts) = (None, 0);
    }
}

impl Initiator {
    /// Handles the loss of the association, caused by an event on the queue `index` if that is
    /// given: open requests wait for the next association, or fail.
    pub(super) fn handle_loss(
        &mut self,
        now: Instant,
        host: &mut Host,
        loss: AssociationLoss,
        index: Option<usize>,
    ) {
        let phase = core::mem::replace(&mut self.phase, InitiatorPhase::Idle);
        if let InitiatorPhase::Up(mut association) = phase {
            let counter = if association.live {
                &mut self.counters.nvmei_associations_lost
            } else {
                &mut self.counters.nvmei_connects_failed
            };
            *counter += 1;
            let open = self.reclaim_requests(now, host, &mut association, ADMIN);
            let last_word = index.filter(|_| loss.is_reported_to_peer());
            self.lingering_socket = close_connections(now, host, &association, last_word);
            let culprit = association.queues.iter().find_map(InitiatorQueue::culprit);
            // If an I/O connection ended, only its commands are suspected; a controller that stops
            // may end any connection first.
            let one = matches!(loss, AssociationLoss::Connection(_)) && index != Some(ADMIN);
            let one = one || loss.is_protocol();
            for (at, serial) in open {
                let here = !one || index == Some(at);
                let suspect =
                    here && culprit.is_none_or(|owner| owner == CommandOrigin::Request(serial));
                self.replay(serial, loss, suspect, culprit.is_some());
            }
        }
        // Restore the order of submission.
        for ready in &mut self.ready {
            ready.make_contiguous().sort_unstable();
        }
        self.schedule_reconnect(now, loss);
    }

    /// Resends or fails a request that was open when the association was lost. `suspect`: it may
    /// have caused the loss; `known`: the cause is known.
    fn replay(&mut self, serial: u64, loss: AssociationLoss, suspect: bool, known: bool) {
        let Some(pending) = self.requests.get_mut(&serial) else { return };
        let (count, most) = if loss.is_protocol() {
            (&mut pending.protocol_losses, self.config.protocol_retries)
        } else {
            (&mut pending.losses, self.config.loss_retries)
        };
        *count = count.saturating_add(u8::from(suspect));
        // Alone, it neither fails its neighbors nor counts their failures.
        pending.sent_alone = !known && *count > most / 2;
        if *count > most {
            self.counters.nvmei_retries_exhausted += 1;
            let error = if loss.is_protocol() {
                NvmeRequestError::Protocol(loss)
            } else {
                NvmeRequestError::Lost(loss)
            };
            return self.finish(serial, Err(error));
        }
        if !pending.request.is_repeatable() {
            self.counters.nvmei_not_replayed += 1;
            return self.finish(serial, Err(NvmeRequestError::Lost(loss)));
        }
        self.counters.nvmei_replayed += 1;
        self.ready[usize::from(pending.request.is_io())].push_back(serial);
    }

    /// Ends the commands of the queues from `first` on. Returns the requests among them, each with
    /// the index of its queue, after their buffers were returned to them.
    pub(super) fn reclaim_requests(
        &mut self,
        now: Instant,
        host: &mut Host,
        association: &mut Association,
        first: usize,
    ) -> Vec<(usize, u64)> {
        let mut serials = Vec::new();
        for (index, queue) in association.queues.iter_mut().enumerate().skip(first) {
            for (owner, buffer) in queue.reclaim_commands(now, host, &mut self.counters) {
                let CommandOrigin::Request(serial) = owner else { continue };
                serials.push((index, serial));
                if let (Some(pending), true) = (self.requests.get_mut(&serial), buffer.is_some()) {
                    pending.buffer = buffer;
                }
            }
        }
        serials
    }

    /// Schedules the next attempt to connect, or gives up.
    pub(super) fn schedule_reconnect(&mut self, now: Instant, loss: AssociationLoss) {
        let next =
            if loss.is_final() { None } else { self.outage.lost(now, &self.config.back_off) };
        match next {
            Some(at) => {
                self.phase = InitiatorPhase::Waiting(at);
                self.events.push_back(InitiatorEvent::Lost(loss));
            }
            None => {
                self.phase = InitiatorPhase::Failed(loss);
                self.events.push_back(InitiatorEvent::Failed(loss));
                self.fail_all(NvmeRequestError::ControllerLost(loss));
            }
        }
    }

    pub(super) fn fail_all(&mut self, error: NvmeRequestError) {
        self.ready.iter_mut().for_each(VecDeque::clear);
        self.changes = PendingChanges::default();
        while let Some((_, pending)) = self.requests.pop_first() {
            self.report_done(pending.token, Err(error), pending.buffer);
        }
    }
}

/// Ends the connections of a lost association. The queue `last_word`, on which a terminate request
/// or an alert is still being delivered, is closed and its socket returned, to be reset before the
/// next association begins. All others are reset: an orderly close would first deliver data written
/// before, perhaps long after it was resent over another connection and answered.
fn close_connections(
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
            max: Duration::from_millis(300),
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
