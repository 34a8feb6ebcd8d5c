//! A batch of datagrams to one peer, and its division into transmits.
//!
//! Called by [`super::UdpSockets`]. A transmit has whole datagrams, as many as the device takes in
//! one.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::net::IpAddr;

use abi::quic::{QuicProtect, QuicTxPacket};
use abi::{ExtentCount, FileExtent, FlowId, PacketHeader, Transmit, TransmitPart, TransmitParts};
use base::Instant;
use wire::emit::{self, EthernetAddrs, IpHeader};
use wire::frame::protocol;
use wire::{ETHERNET_BYTES, Endpoint, Tuple, UDP_BYTES};

use crate::api::{FaultScope, FileId};
use crate::net::outbox::{HOP_LIMIT, Outbox};

/// A batch of datagrams to one peer.
#[derive(Clone, Debug)]
pub struct UdpSend {
    /// Transmits of one flow leave in order; [`FlowId::NONE`] if the order does not matter.
    pub flow: FlowId,
    /// Source address, one of ours; if `None`, chosen by the route.
    pub source: Option<IpAddr>,
    /// Destination.
    pub remote: Endpoint,
    /// ECN field of the IP header.
    pub ecn: u8,
    /// Bytes of each datagram but the last; zero if there is only one.
    pub segment_size: u16,
    /// Payload of all datagrams.
    pub parts: TransmitParts,
    /// All extents in the payload were sent before.
    pub retransmission: bool,
    /// Request a [`crate::Notice::UdpFault`] with this scope if the content cannot be read.
    pub echo: Option<FaultScope>,
    /// The QUIC packets that the device encrypts.
    pub protect: Option<Box<QuicProtect>>,
}

/// A batch that is being sent: cut if it exceeds the limits of one transmit.
pub(super) struct UdpSendBatch {
    send: UdpSend,
    bytes_max: usize,
    datagrams_max: usize,
    /// Index of the next datagram in the batch.
    next: usize,
    /// The batch was cut because of `datagrams_max`.
    cut: bool,
}

impl UdpSendBatch {
    pub(super) fn new(send: UdpSend, bytes_max: u32, datagrams_max: usize) -> Self {
        Self { send, bytes_max: bytes_max as usize, datagrams_max, next: 0, cut: false }
    }

    pub(super) fn send(mut self, out: &mut Outbox, now: Instant, tuple: &Tuple) {
        let parts = core::mem::take(&mut self.send.parts);
        // Nearly always one transmit suffices.
        if let Some(count) = self.fit(parts.iter()) {
            if count > 0 {
                self.transmit(out, now, tuple, parts, count);
            }
            return;
        }
        let mut left: VecDeque<TransmitPart> = parts.into_iter().collect();
        while !left.is_empty() {
            let (parts, count) = self.take(&mut left);
            self.cut |= count == self.datagrams_max && !left.is_empty();
            self.transmit(out, now, tuple, parts, count);
            self.next += count;
        }
        out.counters.udp_out_cut_by_host += u64::from(self.cut);
    }

    /// Removes whole datagrams from the front: as many as fit one transmit, and at least one.
    fn take(&self, left: &mut VecDeque<TransmitPart>) -> (TransmitParts, usize) {
        if let Some(count) = self.fit(left.iter()) {
            return (left.drain(..).collect(), count);
        }
        let (mut count, mut bytes) = (0, 0);
        while count < self.datagrams_max {
            let (len, fits) = self.measure(left.iter(), self.size().saturating_mul(count + 1));
            if len == bytes || (count > 0 && !fits) {
                break;
            }
            (count, bytes) = (count + 1, len);
        }
        let mut parts = TransmitParts::new();
        move_front(left, bytes, &mut parts);
        (parts, count)
    }

    /// Returns the most bytes of a datagram.
    fn size(&self) -> usize {
        match self.send.segment_size {
            0 => usize::MAX,
            size => usize::from(size),
        }
    }

    /// Returns the number of datagrams in parts that fit one transmit; `None` if they do not fit.
    fn fit<'a>(&self, parts: impl Iterator<Item = &'a TransmitPart>) -> Option<usize> {
        let (len, fits) = self.measure(parts, usize::MAX);
        let count = len.div_ceil(self.size());
        (fits && count <= self.datagrams_max).then_some(count)
    }

    /// Returns the bytes of the first parts, at most `size`, and whether the device takes them in
    /// one transmit.
    fn measure<'a>(
        &self,
        parts: impl Iterator<Item = &'a TransmitPart>,
        size: usize,
    ) -> (usize, bool) {
        let (mut len, mut fits, mut extents) = (0, true, ExtentCount::default());
        for part in parts {
            if len >= size {
                break;
            }
            len += (part.len() as usize).min(size - len);
            fits &= part.extent().is_none_or(|extent| extents.add(extent));
        }
        (len, fits && len <= self.bytes_max)
    }

    /// Returns the encryption of the next `count` datagrams.
    fn protect(&mut self, count: usize) -> Option<Box<QuicProtect>> {
        let whole = |protect: &QuicProtect| protect.packets.len() == count;
        if self.send.protect.as_deref().is_some_and(whole) {
            return self.send.protect.take();
        }
        let protect = self.send.protect.as_deref()?;
        let packets: &[Option<QuicTxPacket>] = protect.packets.get(self.next..self.next + count)?;
        let some = packets.iter().any(Option::is_some);
        some.then(|| Box::new(QuicProtect { quic: protect.quic, packets: packets.into() }))
    }

    fn transmit(
        &mut self,
        out: &mut Outbox,
        now: Instant,
        tuple: &Tuple,
        parts: TransmitParts,
        count: usize,
    ) {
        let ip = IpHeader {
            source: tuple.local.addr,
            destination: tuple.remote.addr,
            protocol: protocol::UDP,
            ecn: self.send.ecn,
            hop_limit: HOP_LIMIT,
        };
        let segment_size = if count > 1 { self.send.segment_size } else { 0 };
        let bytes: usize = parts.iter().map(|part| part.len() as usize).sum();
        let first = if segment_size > 0 { usize::from(segment_size) } else { bytes };
        let l4 = ETHERNET_BYTES + ip.len();
        let Ok(mut header) = PacketHeader::zeroed(l4 + UDP_BYTES, ETHERNET_BYTES, l4) else {
            return;
        };
        let link = EthernetAddrs { source: out.net.mac, destination: [0; 6] };
        let ports = [tuple.local.port, tuple.remote.port];
        emit::udp_template(&link, &ip, ports, first, header.as_mut_slice());
        let protect = self.protect(count);
        out.counters.udp_out_datagrams += count as u64;
        out.counters.udp_out_transmits += 1;
        let transmit = Transmit {
            flow: self.send.flow,
            header,
            segment_size,
            parts,
            timestamp: None,
            echo: self.send.echo.map(tag_of),
            retransmission: self.send.retransmission,
            quic: protect,
        };
        out.route(now, tuple.remote.addr, transmit);
    }
}

/// Tag of transmits with bytes of more than one file: no file has so high a number.
const SEVERAL_FILES: u32 = u32::MAX;

/// Returns the tag by which the device's echo identifies the files of a transmit.
const fn tag_of(scope: FaultScope) -> u32 {
    match scope {
        FaultScope::File(file) => file.0,
        FaultScope::Several => SEVERAL_FILES,
    }
}

/// Returns the files that [`tag_of`] encoded.
pub(super) const fn scope_of(tag: u32) -> FaultScope {
    match tag {
        SEVERAL_FILES => FaultScope::Several,
        file => FaultScope::File(FileId(file)),
    }
}

/// Moves `len` bytes from the front of `from` to the end of `to`.
fn move_front(from: &mut VecDeque<TransmitPart>, mut len: usize, to: &mut TransmitParts) {
    while len > 0 {
        let Some(part) = from.pop_front() else { return };
        let whole = part.len() as usize;
        if whole <= len {
            len -= whole;
            to.push(part);
            continue;
        }
        let (front, back) = split(part, len);
        to.push(front);
        from.push_front(back);
        return;
    }
}

/// Splits a part at `at`, which is less than its length.
fn split(part: TransmitPart, at: usize) -> (TransmitPart, TransmitPart) {
    match part {
        TransmitPart::Host(mut bytes) => {
            let front = bytes.split_to(at.min(bytes.len()));
            (TransmitPart::Host(front), TransmitPart::Host(bytes))
        }
        TransmitPart::File(FileExtent { file, offset, len }) => {
            let first = u32::try_from(at).unwrap_or(u32::MAX).min(len);
            let back = FileExtent { file, offset: offset + u64::from(first), len: len - first };
            (TransmitPart::File(FileExtent { file, offset, len: first }), TransmitPart::File(back))
        }
        // Parts that the device completes occur in TCP only.
        other @ (TransmitPart::Records(_) | TransmitPart::Pdu(_)) => {
            (other, TransmitPart::Host(bytes::Bytes::new()))
        }
    }
}
