//! QUIC on the device (NiQUIC; the vocabulary is that of QEO): packets with short headers are
//! protected and opened there, and put in order; handshakes stay with the host.
//!
//! A [`QuicId`] names the packets of one direction of one connection: its keys of up to two
//! generations (RFC 9001, section 6), one header protection key, one space of packet numbers. The
//! connection IDs that lead to it come and go (RFC 9000, section 5.1); where the host uses
//! connection IDs of no bytes the tuple leads to it.
//!
//! *Transmit.* A [`crate::Transmit`] with [`Protect`] is a batch of datagrams, as UDP segmentation
//! has it, in plaintext, with 16 bytes of room behind each packet for its tag. The device seals and
//! protects packet by packet. What it cannot seal it drops and reports; nothing leaves as it is.
//!
//! *Receive.* A frame with [`Opened`] holds one datagram or, where `segment_size` is not zero, a
//! batch. Each begins with a short-header packet that fills it, without header protection and with
//! its payload in plaintext; the 16 bytes of its tag are still behind it and mean nothing any more.
//! A datagram that does not verify is delivered exactly as it came, so that a stateless reset
//! (RFC 9000, section 10.3), whose last 16 bytes tell, is still one.

use core::fmt;

use base::Duration;
use smallvec::SmallVec;
use wire::Tuple;
use zeroize::Zeroizing;

use crate::FlowId;
use crate::Refusal;
use crate::crypto::{NONCE_BYTES, Suite};

/// The host's name for one direction of a connection. A host never uses one twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuicId(pub u64);

/// Longest connection ID (RFC 9000, section 17.2).
pub const CID_BYTES_MAX: usize = 20;

/// A connection ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    len: u8,
    bytes: [u8; CID_BYTES_MAX],
}

impl ConnectionId {
    /// A copy of `bytes`; none where it is longer than [`CID_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; CID_BYTES_MAX];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len: u8::try_from(bytes.len()).ok()?, bytes: all })
    }

    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// What leads from a packet that comes in to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// Our port and a connection ID that we chose. All connection IDs of one port have one length,
    /// which is not zero.
    Id {
        /// UDP port.
        port: u16,
        /// Destination connection ID.
        id: ConnectionId,
    },
    /// The addresses, where connection IDs have no bytes. `local` is the host's end.
    Tuple(Tuple),
}

/// `QEO_CONNECTION` with `ADD`: one direction of a connection whose handshake is complete.
#[derive(Debug)]
pub struct QuicAdd {
    /// Its name.
    pub quic: QuicId,
    /// The connection, for what the device has to say about it.
    pub flow: FlowId,
    /// Which way.
    pub direction: Direction,
    /// Which AEAD, and which header protection.
    pub suite: Suite,
    /// Key of header protection: the first [`Suite::key_bytes`] count. It never changes (RFC 9001,
    /// section 6).
    pub header_key: Zeroizing<[u8; 32]>,
    /// Keys of the generation that is current.
    pub keys: QuicKeys,
    /// `NextPacketNumber`: the next to be sent, or one above the largest received.
    pub next_packet_number: u64,
}

/// Which way a connection's packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Out: transmits name it.
    Transmit,
    /// In: packets find it by any of these; `QuicRoute` adds to them and takes away.
    Receive {
        /// What leads to it at first.
        routes: SmallVec<[Route; 2]>,
        /// How long packets may wait for those before them; none where they do not.
        reorder: Option<Reorder>,
    },
}

/// Bounds of reordering: where one is reached, gaps are given up, oldest first, until it is not.
/// What waits for nothing else is delivered then, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Packet numbers from the oldest that is missing to the newest that waits.
    pub packets: u16,
    /// Bytes of packets that wait.
    pub bytes: u32,
    /// Time that a packet waits. Shorter than what the peer takes for a loss (RFC 9002, section
    /// 6.1.2), and than the time after which the host has to acknowledge.
    pub time: Duration,
}

/// Keys of one generation.
pub struct QuicKeys {
    /// The key phase bit of its packets.
    pub phase: bool,
    /// AEAD key: the first [`Suite::key_bytes`] count.
    pub key: Zeroizing<[u8; 32]>,
    /// What nonces are made from.
    pub iv: [u8; NONCE_BYTES],
}

impl fmt::Debug for QuicKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key.
        f.debug_struct("QuicKeys").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// Another generation of keys, next to the current one; the generation before that is forgotten.
#[derive(Debug)]
pub struct QuicRekey {
    /// Of which direction.
    pub quic: QuicId,
    /// Its keys. Their phase is not the current one's.
    pub keys: QuicKeys,
}

/// A change of what leads to a connection.
#[derive(Debug)]
pub struct QuicRoute {
    /// Which.
    pub quic: QuicId,
    /// What leads to it.
    pub route: Route,
    /// Whether it does so from now on, or no more.
    pub on: bool,
}

/// The packets in a transmit's datagrams that the device seals.
#[derive(Clone, Debug)]
pub struct Protect {
    /// With whose keys.
    pub quic: QuicId,
    /// One for each datagram, in order; none for one that the host sealed whole.
    pub packets: SmallVec<[Option<Packet>; 1]>,
}

/// Where a short-header packet lies in its datagram, which it fills to the end, tag included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its first byte, after long-header packets that were coalesced with it.
    pub begin: u16,
    /// Its packet number, from `begin` on.
    pub pn_offset: u8,
    /// Bytes of the packet number, 1 to 4.
    pub pn_len: u8,
    /// The whole packet number. A device refuses one that is not above those that it has sealed:
    /// a nonce is used once.
    pub number: u64,
}

/// What was done to the datagrams of a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// By which entry.
    pub quic: QuicId,
    /// Packet number of each datagram, in order, as it was opened.
    pub numbers: SmallVec<[u64; 2]>,
}

/// `QuicStatus`: the answer to what failed; what did not is not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicStatus {
    /// Which.
    pub quic: QuicId,
    /// Of which connection.
    pub flow: FlowId,
    /// What happened.
    pub why: QuicTrouble,
}

/// Why a [`QuicStatus`] is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicTrouble {
    /// It is not added. Packets go on as if it had not been asked for.
    Refused(Refusal),
    /// A transmit was dropped, whole: the entry is unknown, a packet number was used before, or a
    /// packet does not lie in its datagram. For the connection it is a loss.
    NotSealed,
}

/// Limits of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicLimits {
    /// Entries, both directions counted, over all queues.
    pub entries_max: u32,
    /// Datagrams that may wait for those before them, over all connections.
    pub waiting_max: u32,
}
