//! Actions of the test as a device that sets up and tears down connections.

use abi::setup::{CookieSecret, Established, HandshakeSegment, ListenId, SetupListen};
use abi::teardown::Teardown;
use abi::{Event, Op, ReceivedFrame};
use base::SeqNum;
use host::{ListenerId, ListenerOption, Notice};
use tcp_rules::cookie::{CookieOptions, SynCookies};
use wire::{Endpoint, Tuple};

use super::{PEER_TS, ScriptedTcpPeer};
use crate::seg::Seg;

/// The host's initial sequence number of a connection set up by the device, chosen to wrap soon.
const DEVICE_ISS: SeqNum = SeqNum(u32::MAX - 500);
/// TSval of the device's SYN-ACK.
const DEVICE_TS: u32 = 0x1234_5678;

impl ScriptedTcpPeer {
    /// Secret of the device's cookies of [`Self::server_with_options`].
    pub const COOKIE_SECRET: CookieSecret = CookieSecret([3, 4]);

    /// Creates a host as [`Self::server`] does, with a listener that has these options.
    ///
    /// # Panics
    /// If the port is in use.
    #[must_use]
    pub fn server_with_options(options: &[ListenerOption]) -> (Self, ListenerId) {
        let secret = Some(Self::COOKIE_SECRET);
        let mut t = Self::new(|config| config.cookie_secret = secret, (super::HOST, super::PEER));
        let listen = host::ListenConfig { addr: None, port: 80, backlog: 16 };
        let listener = t.host.listen(listen).expect("port 80 is free");
        options.iter().for_each(|&o| t.host.set_listener_option(listener, o));
        t.pump();
        (t, listener)
    }

    /// Returns the parameters that a device and a peer negotiate which support all options but ECN.
    #[must_use]
    pub const fn default_established() -> Established {
        Established {
            listener: ListenId(0),
            peer_mss: 1460,
            peer_scale: Some(7),
            sack: true,
            ecn: false,
        }
    }

    /// Delivers `seg` as the first frame of a connection whose handshake the device completed, with
    /// the parameters negotiated. The host receives it, but sends nothing until it is run.
    pub fn device_accepts(&mut self, seg: &Seg, established: Established) {
        if self.host_iss.is_none() {
            (self.host_iss, self.host_nxt, self.peer_nxt) = (Some(DEVICE_ISS), 1, 1);
            (self.peer_ts, self.last_tsval, self.win) = (true, DEVICE_TS, 512);
        }
        // The connection uses timestamps, so every segment has one.
        let value = PEER_TS + u32::try_from(self.ms()).unwrap_or(0);
        self.deliver_frame(
            &Seg { tsval: seg.tsval.or(Some(value)), ..seg.clone() },
            Some(HandshakeSegment::First(established)),
        );
    }

    /// Assumes that a device with this secret has answered the peer's SYN, with the parameters of
    /// [`Self::default_established`]. The host knows nothing of the connection.
    ///
    /// # Panics
    /// If there is no cookie for these parameters.
    pub fn assume_cookie(&mut self, secret: CookieSecret) {
        let mut cookies = SynCookies::new(secret.0);
        cookies.advance(self.now);
        let Established { peer_mss, peer_scale, sack, ecn, .. } = Self::default_established();
        let endpoint = |addr, port| Endpoint { addr, port };
        let tuple = Tuple {
            local: endpoint(self.addrs.0, self.ports.0),
            remote: endpoint(self.addrs.1, self.ports.1),
        };
        let peer = CookieOptions { peer_mss, peer_scale, sack, ecn };
        let clock = cookies.timestamp_clock(self.now, &tuple);
        let cookie = cookies.make(Some(clock), &tuple, self.peer_iss, &peer).expect("a cookie");
        (self.host_iss, self.host_nxt, self.peer_nxt) = (Some(cookie.number), 1, 1);
        (self.peer_ts, self.win) = (true, 512);
        self.last_tsval = cookie.tsval.expect("a timestamp");
    }

    /// Delivers `seg` as a frame that the device has marked as one after the first.
    pub fn device_marks_later(&mut self, seg: &Seg) {
        self.deliver_frame(seg, Some(HandshakeSegment::Later));
    }

    /// Sends a segment from the peer. The host receives it, but sends nothing until it is run.
    pub fn deliver(&mut self, seg: &Seg) {
        self.deliver_frame(seg, None);
    }

    fn deliver_frame(&mut self, seg: &Seg, handshake: Option<HandshakeSegment>) {
        let frame = self.build_frame(seg);
        self.peer_nxt += seg.len.unwrap_or(0) + u32::from(seg.flags.has(crate::TcpFlags::FIN));
        let packet = self.pool.copy(&frame).expect("the frame fits a buffer");
        let received = ReceivedFrame::new(packet, self.checksum, 0, 0);
        let received =
            ReceivedFrame { handshake, teardowns_taken: self.device_teardowns_taken, ..received };
        self.host.handle_event(self.now, Event::Received(received));
        while let Some(notice) = self.host.poll_notice() {
            if let Notice::Accepted(_, socket) = notice {
                self.socket = Some(socket);
            }
            self.notices.push_back(notice);
        }
    }

    /// Returns the TSval of the SYN-ACK that the device of [`Self::device_accepts`] has sent.
    #[must_use]
    pub const fn device_timestamp() -> u32 {
        DEVICE_TS
    }

    /// Removes and returns the first connection that the host handed over and the device had not
    /// taken.
    pub fn take_teardown(&mut self) -> Option<Box<Teardown>> {
        let at = self.other_ops.iter().position(|op| matches!(op, Op::Teardown(_)))?;
        match self.other_ops.remove(at) {
            Some(Op::Teardown(teardown)) => {
                self.device_teardowns_taken += 1;
                Some(teardown)
            }
            _ => None,
        }
    }

    /// Returns the number of frames that the host returned to the device; removes those operations.
    pub fn take_returned_frames(&mut self) -> usize {
        let before = self.other_ops.len();
        self.other_ops.retain(|op| !matches!(op, Op::Return(_)));
        before - self.other_ops.len()
    }

    /// Removes and returns the listener changes sent to the device, in order: `Ok` adds or replaces
    /// a listener, `Err` removes one.
    pub fn take_listener_ops(&mut self) -> Vec<Result<SetupListen, ListenId>> {
        let (mut told, mut rest) = (Vec::new(), std::collections::VecDeque::new());
        for op in self.other_ops.drain(..) {
            match op {
                Op::Listen(listen) => told.push(Ok(*listen)),
                Op::Unlisten { listener } => told.push(Err(listener)),
                other => rest.push_back(other),
            }
        }
        self.other_ops = rest;
        told
    }

    /// Returns the position of one of the host's sequence numbers in its stream; 0 is the SYN.
    #[must_use]
    pub fn host_stream_position(&self, seq: SeqNum) -> u32 {
        seq.0.wrapping_sub(self.host_iss.unwrap_or(seq).0)
    }

    /// Returns the position of one of the peer's sequence numbers in its stream; 0 is the SYN.
    #[must_use]
    pub const fn peer_stream_position(&self, seq: SeqNum) -> u32 {
        seq.0.wrapping_sub(self.peer_iss.0)
    }
}
