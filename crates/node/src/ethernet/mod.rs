//! A carrier over Ethernet: descriptors between a program and a device on another machine, or on a
//! DPU.
//!
//! [`EthernetSession`] is one end of a session, without link, clock or thread; `stack` joins it to
//! a packet socket, the simulator to another end over a link that loses frames. Descriptors form a
//! stream of bytes, each with its length in front (32 bits, little endian). The stream is cut into
//! frames of the EtherType [`ETHER_TYPE`], which are numbered, acknowledged and sent again, so that
//! several short descriptors share a frame, and a long one spans several (`header`, `sender`,
//! `receiver`). The first numbered frame of a program opens the session; its first descriptor is
//! the request to attach.
//!
//! Invariants:
//! - Descriptors arrive whole, once and in order, or the session ends ([`SessionEnd`]).
//! - The receiver limits the frames that it keeps to [`WINDOW_FRAMES`], the sender those that wait
//!   to be sent to as many and one descriptor.
//! - A session whose other end is silent for [`SILENCE_MAX_PROBES`] probes has ended. Either end
//!   probes the other after [`PROBE_INTERVAL`] of silence, so that an idle session keeps.
//!
//! The frames are neither encrypted nor authenticated, and descriptors hold keys: the segment
//! between program and device is to be private, or protected by MACsec (IEEE Std 802.1AE).

mod header;
mod receiver;
mod sender;
#[cfg(test)]
mod tests;

use abi::link::{FramePayload, TxFrame};
use abi::{PacketBuf, PacketHeader, PacketPool};
use alloc::vec::Vec;
use base::{Duration, Instant};

pub use header::{CarrierFrameKind, ETHER_TYPE, KIND_OFFSET, SESSION_OFFSET};

use crate::channel::CarrierFault;
use header::{CarrierHeader, ETHERNET_BYTES, HEADER_BYTES};
use receiver::FrameReceiver;
use sender::{FrameSender, FrameToSend};

/// Frames that a receiver keeps, and that may be in flight.
pub const WINDOW_FRAMES: u32 = 256;
/// Time of silence after which the other end is asked for an answer.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Probes without an answer after which the other end counts as gone.
pub const SILENCE_MAX_PROBES: u32 = 10;

/// Bytes of the length in front of a descriptor.
const LENGTH_BYTES: usize = 4;
/// Free buffers of each size that a session keeps.
const POOL_BUFFERS: usize = WINDOW_FRAMES as usize;

base::counters! {
    /// Counters of an end of a session.
    pub struct EthernetCounters {
        /// Numbered frames sent for the first time.
        carrier_frames_sent,
        /// Numbered frames sent again.
        carrier_frames_repeated,
        /// Retransmission time-outs.
        carrier_timeouts,
        /// Acknowledgments, probes and closes sent in frames of their own.
        carrier_control_frames_sent,
        /// Numbered frames received for the first time.
        carrier_frames_received,
        /// Numbered frames received again.
        carrier_frames_doubled,
        /// Frames received that are malformed or belong to another session.
        carrier_frames_ignored,
    }
}

/// Side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionRole {
    /// The program, which opens the session.
    Program,
    /// The device.
    Device,
}

/// Addresses and number of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionIdentity {
    /// Link address of this end.
    pub local: [u8; 6],
    /// Link address of the other end.
    pub peer: [u8; 6],
    /// Number that the program has drawn at random.
    pub session: u64,
}

/// Reason for which a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The other end has closed it, or does not know it.
    Closed,
    /// The other end does not answer.
    Silent,
}

/// One end of a session.
#[derive(Debug)]
pub struct EthernetSession {
    role: SessionRole,
    identity: SessionIdentity,
    sender: FrameSender,
    receiver: FrameReceiver,
    pool: PacketPool,
    end: Option<SessionEnd>,
    /// Time of the last sign of life of the other end, or of the last probe.
    quiet_since: Instant,
    /// Probes since the last sign of life.
    probes: u32,
    sends_probe: bool,
    counters: EthernetCounters,
}

impl EthernetSession {
    /// Creates an end for links with an MTU of `mtu` bytes, at least 576.
    ///
    /// # Panics
    /// If the MTU is smaller.
    #[must_use]
    pub fn new(role: SessionRole, identity: SessionIdentity, mtu: u16, now: Instant) -> Self {
        assert!(mtu >= 576, "an MTU as every host takes (RFC 791 section 3.2)");
        Self {
            role,
            identity,
            sender: FrameSender::new(usize::from(mtu) - HEADER_BYTES),
            receiver: FrameReceiver::new(),
            pool: PacketPool::new(POOL_BUFFERS),
            end: None,
            quiet_since: now,
            probes: 0,
            sends_probe: false,
            counters: EthernetCounters::default(),
        }
    }

    /// Returns addresses and number of the session.
    #[must_use]
    pub const fn identity(&self) -> SessionIdentity {
        self.identity
    }

    /// Returns the pool of the buffers of received frames.
    pub const fn pool(&mut self) -> &mut PacketPool {
        &mut self.pool
    }

    /// Returns the counters.
    #[must_use]
    pub const fn counters(&self) -> &EthernetCounters {
        &self.counters
    }

    /// Returns why the session has ended, if it has.
    #[must_use]
    pub const fn end(&self) -> Option<SessionEnd> {
        self.end
    }

    /// Returns whether everything that was pushed was acknowledged.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sender.is_idle()
    }

    /// Returns whether a descriptor of any length may be pushed.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.sender.has_room()
    }

    /// Takes a descriptor to send, for which there is room.
    pub fn push(&mut self, descriptor: &[u8]) {
        self.sender.push(descriptor, &mut self.pool);
    }

    /// Moves the next received descriptor to `out`, whose content it replaces; returns false if
    /// there is none.
    ///
    /// # Errors
    /// If the bytes are no descriptor.
    pub fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        self.receiver.pop(out, &mut self.pool)
    }

    /// Returns whether [`Self::pop`] has bytes to look at.
    #[must_use]
    pub fn has_received(&self) -> bool {
        self.receiver.has_bytes()
    }

    /// Processes a received frame, with its Ethernet header.
    ///
    /// # Errors
    /// If the other end violates the rules of the session.
    pub fn handle_frame(&mut self, now: Instant, packet: PacketBuf) -> Result<(), CarrierFault> {
        let Some(header) = self.parse(packet.as_slice()) else {
            self.counters.carrier_frames_ignored += 1;
            self.pool.put(packet);
            return Ok(());
        };
        (self.quiet_since, self.probes, self.sends_probe) = (now, 0, false);
        match header.kind {
            CarrierFrameKind::Close => self.end = self.end.or(Some(SessionEnd::Closed)),
            CarrierFrameKind::Probe => self.receiver.owe_ack(),
            CarrierFrameKind::Open | CarrierFrameKind::Data => {}
        }
        let CarrierHeader { ack, limit, received, .. } = header;
        let acked = self.sender.handle_ack(now, ack, limit, received);
        if acked.is_err() || header.payload_bytes == 0 {
            self.pool.put(packet);
            return acked;
        }
        let mut payload = packet;
        payload.remove_prefix(ETHERNET_BYTES + HEADER_BYTES);
        payload.truncate(header.payload_bytes.into());
        let (pool, counters) = (&mut self.pool, &mut self.counters);
        self.receiver.handle_payload(now, header.number, payload, pool, counters)
    }

    /// Parses a frame of this session.
    fn parse(&self, frame: &[u8]) -> Option<CarrierHeader> {
        let SessionIdentity { local, peer, session } = self.identity;
        let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
        let is_ours = *ethernet == ethernet_header(local, peer);
        let header = CarrierHeader::parse(rest)?;
        (is_ours && header.session == session).then_some(header)
    }

    /// Returns the next frame to send. The caller sends it, or keeps it to send it later.
    pub fn poll_frame(&mut self, now: Instant) -> Option<TxFrame> {
        self.sender.handle_timeout(now, &mut self.counters);
        self.follow_silence(now);
        if let Some(frame) = self.sender.next_frame(now, &mut self.counters) {
            let is_first = self.role == SessionRole::Program && frame.number.0 == 0;
            let kind = if is_first { CarrierFrameKind::Open } else { CarrierFrameKind::Data };
            return Some(self.frame(kind, Some(frame)));
        }
        let kind = if core::mem::take(&mut self.sends_probe) {
            CarrierFrameKind::Probe
        } else if self.receiver.is_ack_due(now) {
            CarrierFrameKind::Data
        } else {
            return None;
        };
        self.counters.carrier_control_frames_sent += 1;
        Some(self.frame(kind, None))
    }

    /// Makes the next frame acknowledge everything, because the thread is about to sleep.
    pub fn acknowledge(&mut self) {
        self.receiver.hasten_ack();
    }

    /// Returns the frame that tells the other end that the session is over.
    pub fn close(&mut self) -> TxFrame {
        self.counters.carrier_control_frames_sent += 1;
        self.frame(CarrierFrameKind::Close, None)
    }

    /// Returns the time at which [`Self::poll_frame`] is to be called even if nothing was received
    /// or pushed.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.end.is_some() {
            return None;
        }
        let probe = self.quiet_since + PROBE_INTERVAL;
        Instant::earliest([self.sender.timeout_at(), Some(probe)])
    }

    fn follow_silence(&mut self, now: Instant) {
        if self.end.is_some() || now < self.quiet_since + PROBE_INTERVAL {
            return;
        }
        if self.probes == SILENCE_MAX_PROBES {
            self.end = Some(SessionEnd::Silent);
            return;
        }
        self.probes += 1;
        (self.quiet_since, self.sends_probe) = (now, true);
    }

    /// Returns a frame with the present acknowledgment.
    fn frame(&mut self, kind: CarrierFrameKind, numbered: Option<FrameToSend>) -> TxFrame {
        let payload_bytes = numbered.as_ref().map_or(0, |frame| frame.len);
        let header = CarrierHeader {
            kind,
            payload_bytes: u16::try_from(payload_bytes).unwrap_or(0),
            session: self.identity.session,
            number: match &numbered {
                Some(frame) => frame.number,
                None => self.sender.next_number(),
            },
            ack: self.receiver.next(),
            limit: self.receiver.limit(),
            received: self.receiver.received(),
        };
        self.receiver.note_acknowledged();
        let payload = numbered.map(|FrameToSend { packet, len, .. }| FramePayload::Packet {
            packet,
            start: 0,
            len: u32::try_from(len).unwrap_or(0),
        });
        TxFrame {
            header: packet_header(self.identity, &header),
            payload: payload.into_iter().collect(),
            segment_size: 0,
            checksum_partial: false,
        }
    }
}

/// Returns the Ethernet header of a frame of the carrier.
fn ethernet_header(to: [u8; 6], from: [u8; 6]) -> [u8; ETHERNET_BYTES] {
    let mut bytes = [0; ETHERNET_BYTES];
    bytes[..6].copy_from_slice(&to);
    bytes[6..12].copy_from_slice(&from);
    bytes[12..].copy_from_slice(&ETHER_TYPE.to_be_bytes());
    bytes
}

fn packet_header(identity: SessionIdentity, header: &CarrierHeader) -> PacketHeader {
    const BYTES: usize = ETHERNET_BYTES + HEADER_BYTES;
    const { assert!(BYTES <= PacketHeader::CAPACITY) };
    let Ok(mut out) = PacketHeader::zeroed(BYTES, ETHERNET_BYTES, BYTES) else {
        unreachable!("the header has room: asserted")
    };
    let (ethernet, rest) = out.as_mut_slice().split_at_mut(ETHERNET_BYTES);
    ethernet.copy_from_slice(&ethernet_header(identity.peer, identity.local));
    if let Some(bytes) = rest.first_chunk_mut() {
        header.write(bytes);
    }
    out
}

/// Kind and session of a frame of the carrier, for a device that does not know the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownFrame {
    /// Kind of the frame.
    pub kind: CarrierFrameKind,
    /// Addresses and number, for the device's end.
    pub identity: SessionIdentity,
}

impl UnknownFrame {
    /// Parses a frame; returns `None` if it is not one of the carrier.
    #[must_use]
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (ethernet, rest) = frame.split_first_chunk::<ETHERNET_BYTES>()?;
        let header = CarrierHeader::parse(rest)?;
        let local = *ethernet.first_chunk()?;
        let peer = *ethernet[6..].first_chunk()?;
        if *ethernet != ethernet_header(local, peer) {
            return None;
        }
        let identity = SessionIdentity { local, peer, session: header.session };
        Some(Self { kind: header.kind, identity })
    }

    /// Returns the frame that tells the other end that there is no such session.
    #[must_use]
    pub fn refusal(&self) -> TxFrame {
        let mtu = 1500;
        EthernetSession::new(SessionRole::Device, self.identity, mtu, Instant::ZERO).close()
    }
}
