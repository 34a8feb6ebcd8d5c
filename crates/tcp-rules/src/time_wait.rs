//! Effect of a segment on a connection in TIME-WAIT.
//!
//! Called by the TIME-WAIT tables of the host and of the device. They keep tuples and times; this
//! module only decides.

use base::SeqNum;
use wire::tcp::{TcpFlags, TcpHeader};

/// The state of a closed connection by which segments are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWaitTcb {
    /// The sequence number after our FIN.
    pub snd_nxt: SeqNum,
    /// The sequence number after the peer's FIN.
    pub rcv_nxt: SeqNum,
    /// The peer's last timestamp; `None` without timestamps.
    pub ts_recent: Option<u32>,
}

/// Response to a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeWaitVerdict {
    /// Acknowledge it again. The peer's FIN restarts the time ([`TimeWaitTcb::is_last_fin`]).
    Acknowledge,
    /// Drop it.
    Ignore,
    /// Remove the entry: a new connection takes over the tuple.
    Reuse,
}

impl TimeWaitTcb {
    /// Returns the initial sequence number for the tuple's next connection, beyond everything that
    /// this one can have sent, as in Linux.
    #[must_use]
    pub fn next_iss(&self) -> SeqNum {
        self.snd_nxt + 65_537
    }

    /// Decides about a segment with `payload` bytes: RFC 9293 section 3.10.7.4 for TIME-WAIT, with
    /// RFC 6191's rule for a new SYN and RFC 1337's for resets. A bare acknowledgment is not
    /// answered, as in Linux: after a simultaneous close both ends are in TIME-WAIT and would
    /// answer each other forever.
    #[must_use]
    pub fn judge(&self, segment: &TcpHeader, payload: usize) -> TimeWaitVerdict {
        let flags = segment.flags;
        if flags.has(TcpFlags::RST) {
            return TimeWaitVerdict::Ignore;
        }
        if flags.has(TcpFlags::SYN) && !flags.has(TcpFlags::ACK) {
            let newer = self.is_older_than(segment);
            return if newer { TimeWaitVerdict::Reuse } else { TimeWaitVerdict::Acknowledge };
        }
        let bare = payload == 0 && !flags.any(TcpFlags::FIN.with(TcpFlags::SYN));
        if bare { TimeWaitVerdict::Ignore } else { TimeWaitVerdict::Acknowledge }
    }

    /// Returns whether this connection is older than one with the same tuple whose first segment is
    /// `segment` (RFC 6191's table). If both have timestamps and these differ, the later timestamp
    /// decides; else a sequence number above everything that this connection received. Either way a
    /// delayed segment of the old connection is told apart from the new one's.
    #[must_use]
    pub fn is_older_than(&self, segment: &TcpHeader) -> bool {
        match (segment.options.timestamps, self.ts_recent) {
            (Some(ts), Some(recent)) if ts.value != recent => SeqNum(ts.value).gt(SeqNum(recent)),
            _ => segment.seq.gt(self.rcv_nxt),
        }
    }

    /// Returns whether a segment is a retransmission of the peer's FIN, which restarts the time:
    /// RFC 9293 section 3.10.7.4, eighth step, with sequence and acknowledgment numbers checked.
    #[must_use]
    pub fn is_last_fin(&self, segment: &TcpHeader, payload: usize) -> bool {
        let payload = u32::try_from(payload).unwrap_or(u32::MAX);
        segment.flags.has(TcpFlags::FIN.with(TcpFlags::ACK))
            && segment.seq + payload + 1 == self.rcv_nxt
            && segment.ack == self.snd_nxt
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::tcp::TcpTimestamps;

    const TCB: TimeWaitTcb =
        TimeWaitTcb { snd_nxt: SeqNum(100), rcv_nxt: SeqNum(200), ts_recent: Some(50) };

    fn segment(flags: TcpFlags, seq: u32) -> TcpHeader {
        TcpHeader { flags, seq: SeqNum(seq), ack: SeqNum(100), ..TcpHeader::default() }
    }

    fn stamped(seq: u32, value: u32) -> TcpHeader {
        let mut syn = segment(TcpFlags::SYN, seq);
        syn.options.timestamps = Some(TcpTimestamps { value, echo: 0 });
        syn
    }

    #[test]
    fn a_newer_syn_takes_over() {
        let by_number = |tcb: TimeWaitTcb, seq| tcb.judge(&segment(TcpFlags::SYN, seq), 0);
        assert_eq!(by_number(TCB, 201), TimeWaitVerdict::Reuse, "a higher sequence number");
        assert_eq!(by_number(TCB, 150), TimeWaitVerdict::Acknowledge);
        assert_eq!(
            TCB.judge(&stamped(150, 51), 0),
            TimeWaitVerdict::Reuse,
            "a later timestamp: RFC 6191"
        );
        assert_eq!(TCB.judge(&stamped(201, 49), 0), TimeWaitVerdict::Acknowledge, "an earlier one");
        let unstamped = TimeWaitTcb { ts_recent: None, ..TCB };
        assert_eq!(
            unstamped.judge(&stamped(201, 49), 0),
            TimeWaitVerdict::Reuse,
            "nothing to compare with"
        );
    }

    /// RFC 6191's table: between equal timestamps the sequence number decides, also for a
    /// connection that the device has set up, whose first segment here is no SYN.
    #[test]
    fn the_sequence_number_decides_between_equal_timestamps() {
        assert_eq!(TCB.judge(&stamped(201, 50), 0), TimeWaitVerdict::Reuse);
        assert_eq!(TCB.judge(&stamped(200, 50), 0), TimeWaitVerdict::Acknowledge);
        let first = |seq| TcpHeader { flags: TcpFlags::ACK, ..stamped(seq, 50) };
        assert!(TCB.is_older_than(&first(201)) && !TCB.is_older_than(&first(200)));
    }

    #[test]
    fn resets_and_bare_acknowledgments_are_ignored() {
        assert_eq!(TCB.judge(&segment(TcpFlags::RST, 200), 0), TimeWaitVerdict::Ignore, "RFC 1337");
        assert_eq!(
            TCB.judge(&segment(TcpFlags::RST.with(TcpFlags::SYN), 201), 0),
            TimeWaitVerdict::Ignore
        );
        assert_eq!(TCB.judge(&segment(TcpFlags::ACK, 200), 0), TimeWaitVerdict::Ignore);
        assert_eq!(TCB.judge(&segment(TcpFlags::ACK, 200), 1), TimeWaitVerdict::Acknowledge);
        assert_eq!(
            TCB.judge(&segment(TcpFlags::SYN.with(TcpFlags::ACK), 201), 0),
            TimeWaitVerdict::Acknowledge
        );
    }

    #[test]
    fn only_the_same_fin_restarts_the_time() {
        let fin = segment(TcpFlags::FIN.with(TcpFlags::ACK), 199);
        assert_eq!(TCB.judge(&fin, 0), TimeWaitVerdict::Acknowledge);
        assert!(TCB.is_last_fin(&fin, 0));
        assert!(TCB.is_last_fin(&TcpHeader { seq: SeqNum(189), ..fin }, 10));
        assert!(!TCB.is_last_fin(&TcpHeader { seq: SeqNum(198), ..fin }, 0));
        assert!(!TCB.is_last_fin(&TcpHeader { ack: SeqNum(99), ..fin }, 0));
        assert!(!TCB.is_last_fin(&TcpHeader { flags: TcpFlags::FIN, ..fin }, 0));
    }
}
