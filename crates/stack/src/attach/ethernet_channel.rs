//! A channel over Ethernet: a session ([`node::ethernet`]) on a packet socket.

use std::io::{Error as IoError, ErrorKind, Result as IoResult};
use std::os::fd::RawFd;
use std::sync::Arc;

use abi::PacketBuf;
use abi::link::{LinkTxStatus, TxFrame};
use base::{Duration, Instant};
use io::carrier_socket::{CarrierSocket, CarrierSockets, FrameCondition};
use io::clock::{self, MonotonicClock};
use io::notify::Poller;
use node::channel::{CarrierFault, DescriptorChannel, SentPayload};
use node::ethernet::{
    CarrierFrameKind, EthernetCounters, EthernetSession, KIND_OFFSET, SESSION_OFFSET,
    SessionIdentity, SessionRole,
};

use super::ethernet_sessions::SessionRegistration;

/// Frames that are received before the thread does something else.
const BATCH: usize = 64;
/// Offset of the sender's address in an Ethernet frame; the receiver's is at 0.
const SENDER_OFFSET: u32 = 6;

/// One end of the channel. Dropping it ends the session.
#[derive(Debug)]
pub(crate) struct EthernetChannel {
    session: EthernetSession,
    socket: CarrierSocket,
    clock: MonotonicClock,
    /// A frame for which the socket had no room.
    unsent: Option<TxFrame>,
    /// The first violation of the rules by the other end.
    fault: Option<CarrierFault>,
    /// At the device's end, the entry among its sessions, which ends with this.
    _registration: Option<SessionRegistration>,
}

impl EthernetChannel {
    /// Begins a session with the device at a link address.
    ///
    /// # Errors
    /// If no socket is free, or the kernel refuses.
    pub(super) fn connect(sockets: &Arc<CarrierSockets>, device: [u8; 6]) -> IoResult<Self> {
        let (local, session) = (sockets.mac(), clock::entropy());
        let identity = SessionIdentity { local, peer: device, session };
        Self::new(SessionRole::Program, identity, sockets, None)
    }

    /// Creates an end of a session.
    ///
    /// # Errors
    /// If no socket is free, or the kernel refuses.
    pub(super) fn new(
        role: SessionRole,
        identity: SessionIdentity,
        sockets: &Arc<CarrierSockets>,
        registration: Option<SessionRegistration>,
    ) -> IoResult<Self> {
        let SessionIdentity { local, peer, session } = identity;
        let mut conditions: Vec<_> = FrameCondition::bytes(0, &local).collect();
        conditions.extend(FrameCondition::bytes(SENDER_OFFSET, &peer));
        conditions.extend(FrameCondition::bytes(SESSION_OFFSET, &session.to_be_bytes()));
        let socket = sockets.take(&conditions)?;
        let socket = socket.ok_or_else(|| IoError::other("no packet socket is free"))?;
        let clock = MonotonicClock::new();
        let session = EthernetSession::new(role, identity, sockets.mtu(), clock.now());
        Ok(Self { session, socket, clock, unsent: None, fault: None, _registration: registration })
    }

    /// Returns the link address of the other end.
    pub(super) const fn peer(&self) -> [u8; 6] {
        self.session.identity().peer
    }

    /// Returns the descriptor that polls readable when a frame has arrived.
    pub(super) fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// Returns the counters of the session.
    pub(super) const fn counters(&self) -> &EthernetCounters {
        self.session.counters()
    }

    /// Sends the acknowledgments that waited for other frames.
    pub(super) fn prepare_sleep(&mut self) {
        self.session.acknowledge();
        self.transmit();
    }

    /// Returns whether a descriptor waits, or a fault.
    pub(super) fn has_work(&mut self) -> bool {
        self.receive();
        self.session.has_received() || self.fault.is_some() || self.session.end().is_some()
    }

    /// Receives frames, and sends those that are due. Returns whether the other end is gone.
    pub(super) fn advance(&mut self) -> bool {
        self.receive();
        self.transmit();
        // Descriptors that arrived before the end are received first.
        self.session.end().is_some() && !self.session.has_received()
    }

    /// Returns the time until [`Self::advance`] is to be called. The clock is the session's own, so
    /// other threads cannot compare its times.
    pub(super) fn sleep_limit(&self) -> Option<Duration> {
        self.session.poll_timeout().map(|at| at.since(self.clock.now()))
    }

    /// Processes a frame that was received elsewhere.
    pub(super) fn handle_frame(&mut self, frame: &[u8]) {
        if let Some(packet) = self.session.pool().copy(frame) {
            self.handle_packet(self.clock.now(), packet);
        }
    }

    fn receive(&mut self) {
        let now = self.clock.now();
        for _ in 0..BATCH {
            let Some(frame) = self.socket.receive(now, self.session.pool()) else { return };
            self.handle_packet(now, frame.packet);
        }
    }

    fn handle_packet(&mut self, now: Instant, packet: PacketBuf) {
        if let Err(fault) = self.session.handle_frame(now, packet) {
            self.fault.get_or_insert(fault);
        }
    }

    fn transmit(&mut self) {
        let now = self.clock.now();
        loop {
            let next = self.unsent.take().or_else(|| self.session.poll_frame(now));
            let Some(mut frame) = next else { break };
            match self.socket.transmit(now, &mut frame) {
                // A frame that the link cannot take is sent again like one that it has lost.
                LinkTxStatus::Sent | LinkTxStatus::Failed | LinkTxStatus::TooLong => {}
                LinkTxStatus::Full => {
                    self.unsent = Some(frame);
                    break;
                }
            }
        }
        self.socket.flush(now);
    }

    /// Sends a message.
    pub(super) fn send_message(&mut self, message: &[u8]) {
        self.session.push(message);
        self.transmit();
    }

    /// Receives a message within the time `limit`.
    ///
    /// # Errors
    /// If the other end is gone, does not answer, or violates the rules.
    pub(super) fn receive_message(&mut self, limit: Duration) -> IoResult<Vec<u8>> {
        let until = self.clock.now() + limit;
        let mut message = Vec::new();
        let mut poller = Poller::new();
        poller.add(self.fd());
        loop {
            let is_gone = self.advance();
            let popped =
                self.pop(&mut message).map_err(|fault| IoError::other(fault.to_string()))?;
            if popped {
                self.prepare_sleep();
                return Ok(message);
            }
            let now = self.clock.now();
            if is_gone {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            if now >= until {
                return Err(ErrorKind::TimedOut.into());
            }
            self.prepare_sleep();
            let left = until.since(now);
            poller.wait(Some(self.sleep_limit().map_or(left, |limit| limit.min(left))))?;
        }
    }
}

impl DescriptorChannel for EthernetChannel {
    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self.session.has_room()),
        }
    }

    fn push(&mut self, descriptor: &[u8], _: &[SentPayload]) -> Result<(), CarrierFault> {
        self.session.push(descriptor);
        Ok(())
    }

    fn publish(&mut self) {
        self.transmit();
    }

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if !self.session.has_received() {
            self.receive();
        }
        self.session.pop(out)
    }
}

impl Drop for EthernetChannel {
    fn drop(&mut self) {
        // If the frame is lost, the other end notices the silence.
        let (mut close, now) = (self.session.close(), self.clock.now());
        let _sent = self.socket.transmit(now, &mut close);
        self.socket.flush(now);
    }
}

/// Returns the conditions for frames that open a session with a device, or probe one that it may
/// not know.
pub(super) fn listener_conditions(local: [u8; 6]) -> Vec<FrameCondition> {
    let mut conditions: Vec<_> = FrameCondition::bytes(0, &local).collect();
    let kinds = [CarrierFrameKind::Open, CarrierFrameKind::Probe].map(|kind| kind as u8);
    conditions.push(FrameCondition { offset: KIND_OFFSET, one_of: kinds.into() });
    conditions
}
