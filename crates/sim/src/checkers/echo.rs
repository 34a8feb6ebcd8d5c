//! Order of the echo (IO-TCP section 3.4): the host learns that a transmit has left before the
//! first frame of it is on the link, and so before any acknowledgment of its bytes can arrive.
//!
//! Called by [`crate::node::SimNode`] with each operation that the device takes, each event that is
//! in the ring, and each frame that the link accepts. Each byte of a transmit leaves once: a frame
//! is an error unless its bytes are the next of a transmit whose echo was delivered. Connections
//! that were handed to the device (tear-down, splicing) send without echoes and are not checked
//! from then on; UDP is not checked either, because the host does not time its echoes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use abi::link::TxFrame;
use abi::{Event, FlowId, Op, PacketHeader, TransmitOutcome};
use base::SeqNum;
use wire::tcp::TcpHeader;
use wire::{Endpoint, Tuple};

/// Payload of a transmit that is not yet on the link.
#[derive(Clone, Copy, Debug)]
struct Unsent {
    next: SeqNum,
    end: SeqNum,
}

/// Watches one device.
#[derive(Debug, Default)]
pub(crate) struct EchoOrder {
    /// Transmits whose echoes were not delivered yet.
    awaited: BTreeMap<(FlowId, u32), (Tuple, Unsent)>,
    /// Transmits whose echoes were delivered, in that order, and those without an echo. A transmit
    /// without an echo that the device could not complete stays.
    echoed: BTreeMap<Tuple, Vec<Unsent>>,
    /// Connections that the device has or had.
    handed_over: BTreeSet<Tuple>,
    /// Frames with payload whose echo came first.
    pub(crate) frames: u64,
}

impl EchoOrder {
    /// Forgets all transmits: the device was reset.
    pub(crate) fn clear(&mut self) {
        let frames = self.frames;
        *self = Self { frames, ..Self::default() };
    }

    /// Notes an operation that the device takes.
    pub(crate) fn taken(&mut self, op: &Op) {
        match op {
            Op::Transmit(transmit) => {
                let header = &transmit.header;
                let Some((tuple, segment, _)) = tcp(header.as_slice(), header) else { return };
                let (next, end) = (segment.seq, segment.seq + transmit.payload_len());
                if next == end {
                    return;
                }
                let unsent = Unsent { next, end };
                match transmit.echo {
                    Some(tag) => {
                        self.awaited.insert((transmit.flow, tag), (tuple, unsent));
                    }
                    // The host does not time it: it may leave at once.
                    None => self.echoed.entry(tuple).or_default().push(unsent),
                }
            }
            Op::Teardown(teardown) => {
                let header = &teardown.header;
                self.handed_over.extend(tcp(header.as_slice(), header).map(|(tuple, ..)| tuple));
            }
            Op::Splice(splice) => {
                self.handed_over.extend(splice.sides.iter().map(|side| side.tuple));
            }
            _ => {}
        }
    }

    /// Notes an event that the host can take.
    pub(crate) fn delivered(&mut self, event: &Event) {
        let Event::TransmitDone(done) = event else { return };
        let Some((tuple, unsent)) = self.awaited.remove(&(done.flow, done.tag)) else {
            return;
        };
        if done.outcome == TransmitOutcome::Sent {
            self.echoed.entry(tuple).or_default().push(unsent);
        }
    }

    /// Checks a frame that the link accepts.
    ///
    /// # Errors
    /// The frame's bytes are not the next of a transmit whose echo was delivered.
    pub(crate) fn sent(&mut self, frame: &TxFrame) -> Result<(), String> {
        let Some((tuple, segment, headers)) = tcp(frame.headers(), &frame.header) else {
            return Ok(());
        };
        let len = u32::try_from(frame.len() - headers).unwrap_or(u32::MAX);
        if len == 0 || self.handed_over.contains(&tuple) {
            return Ok(());
        }
        let seq = segment.seq;
        let covers = |unsent: &Unsent| unsent.next == seq && (seq + len).le(unsent.end);
        let line = self.echoed.entry(tuple).or_default();
        let Some(at) = line.iter().position(covers) else {
            return Err(format!(
                "bytes {} to {} on the link before their echo",
                seq.0,
                (seq + len).0
            ));
        };
        line[at].next = seq + len;
        if line[at].next == line[at].end {
            line.remove(at);
        }
        self.frames += 1;
        Ok(())
    }
}

/// Returns the connection, the segment and the length of the TCP headers that begin `bytes`, with
/// the offsets of `header`; `None` for another protocol. The host leaves the length fields to the
/// device, so its headers cannot be parsed as a frame yet.
fn tcp(bytes: &[u8], header: &PacketHeader) -> Option<(Tuple, TcpHeader, usize)> {
    let (network, transport) = (&bytes[header.l3()..header.l4()], &bytes[header.l4()..]);
    let (protocol, local, remote) = match network {
        [first, ..] if first >> 4 == 6 => (network[6], v6(&network[8..24])?, v6(&network[24..40])?),
        _ => (network[9], v4(&network[12..16])?, v4(&network[16..20])?),
    };
    if protocol != wire::frame::protocol::TCP {
        return None;
    }
    let (segment, len) = TcpHeader::parse(transport).ok()?;
    let local = Endpoint { addr: local, port: segment.source };
    let remote = Endpoint { addr: remote, port: segment.destination };
    Some((Tuple { local, remote }, segment, header.l4() + len))
}

fn v4(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from)
}

fn v6(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from)
}
