//! What the test does as a device that sets connections up and tears them down.

use abi::setup::{Established, ListenId, SetupListen};
use abi::teardown::Teardown;
use abi::{Event, Op, Received};
use base::SeqNum;
use host::{ListenerId, ListenerOption, Notice};

use super::{PEER_TS, Peer};
use crate::seg::Seg;

/// Our initial sequence number, which the device chose: soon to wrap.
const DEVICE_ISS: SeqNum = SeqNum(u32::MAX - 500);
/// TSval of the device's SYN-ACK.
const DEVICE_TS: u32 = 0x1234_5678;

impl Peer {
    /// As [`Self::server`], with a listener that has these options.
    ///
    /// # Panics
    /// Where the port is taken.
    #[must_use]
    pub fn server_with_options(options: &[ListenerOption]) -> (Self, ListenerId) {
        let mut t = Self::new(|_| {}, (super::HOST, super::PEER));
        let listen = host::Listen { addr: None, port: 80, backlog: 16 };
        let listener = t.host.listen(listen).expect("port 80 is free");
        options.iter().for_each(|&o| t.host.set_listener_option(listener, o));
        t.pump();
        (t, listener)
    }

    /// What the device and an honest peer agree on.
    #[must_use]
    pub const fn agreed() -> Established {
        Established {
            listener: ListenId(0),
            peer_mss: 1460,
            peer_scale: Some(7),
            sack: true,
            ecn: false,
        }
    }

    /// The device has shaken hands with the peer: `seg` comes with what was agreed on. The host
    /// sends nothing before the next call that lets it.
    pub fn device_accepts(&mut self, seg: &Seg, established: Established) {
        if self.host_iss.is_none() {
            (self.host_iss, self.host_nxt, self.peer_nxt) = (Some(DEVICE_ISS), 1, 1);
            (self.peer_ts, self.last_tsval, self.win) = (true, DEVICE_TS, 512);
        }
        // Timestamps are on every segment, of whichever end began.
        let value = PEER_TS + u32::try_from(self.ms()).unwrap_or(0);
        self.arrive(&Seg { tsval: seg.tsval.or(Some(value)), ..seg.clone() }, Some(established));
    }

    /// The peer sends a segment; the host makes of it what it does, and sends nothing yet.
    pub fn deliver(&mut self, seg: &Seg) {
        self.arrive(seg, None);
    }

    fn arrive(&mut self, seg: &Seg, established: Option<Established>) {
        let frame = self.frame(seg);
        self.peer_nxt += seg.len.unwrap_or(0) + u32::from(seg.flags.has(crate::Flags::FIN));
        let packet = self.pool.copy(&frame).expect("the frame fits a buffer");
        let received = Received::new(packet, self.checksum, 0, 0);
        let received = Received { established, teardowns: self.teardowns_taken, ..received };
        self.host.handle_event(self.now, Event::Received(received));
        while let Some(notice) = self.host.poll_notice() {
            if let Notice::Accepted(_, socket) = notice {
                self.socket = Some(socket);
            }
            self.notices.push_back(notice);
        }
    }

    /// TSval of the SYN-ACK that [`Self::device_accepts`] stands for.
    #[must_use]
    pub const fn device_timestamp() -> u32 {
        DEVICE_TS
    }

    /// The first connection that the device was handed and has not taken up, which it does.
    pub fn take_teardown(&mut self) -> Option<Box<Teardown>> {
        let at = self.file_ops.iter().position(|op| matches!(op, Op::Teardown(_)))?;
        match self.file_ops.remove(at) {
            Some(Op::Teardown(teardown)) => {
                self.teardowns_taken += 1;
                Some(teardown)
            }
            _ => None,
        }
    }

    /// Frames that the host gave back.
    pub fn take_returned(&mut self) -> usize {
        let before = self.file_ops.len();
        self.file_ops.retain(|op| !matches!(op, Op::Return(_)));
        before - self.file_ops.len()
    }

    /// What the device was told of listeners: the ones to answer for, in order.
    pub fn take_listens(&mut self) -> Vec<Result<SetupListen, ListenId>> {
        let (mut told, mut rest) = (Vec::new(), std::collections::VecDeque::new());
        for op in self.file_ops.drain(..) {
            match op {
                Op::Listen(listen) => told.push(Ok(*listen)),
                Op::Unlisten { listener } => told.push(Err(listener)),
                other => rest.push_back(other),
            }
        }
        self.file_ops = rest;
        told
    }

    /// Where a sequence number of the host's lies in its stream: 0 is the SYN.
    #[must_use]
    pub fn position(&self, seq: SeqNum) -> u32 {
        seq.0.wrapping_sub(self.host_iss.unwrap_or(seq).0)
    }

    /// Where a sequence number of the peer's lies in its stream.
    #[must_use]
    pub const fn peer_position(&self, seq: SeqNum) -> u32 {
        seq.0.wrapping_sub(self.peer_iss.0)
    }
}
