//! QUIC offload (NiQUIC; terms of QEO): the device protects, unprotects and reorders packets with
//! short headers; handshakes stay with the host.
//!
//! A [`QuicId`] identifies one direction of one connection: its AEAD keys of up to two generations
//! (RFC 9001 section 6), one header protection key, and one packet number space. Connection IDs are
//! added and removed as routes to it (RFC 9000 section 5.1); if the host uses zero-length
//! connection IDs, the tuple is the route.
//!
//! *Transmit.* A [`crate::Transmit`] with [`QuicProtect`] is a batch of datagrams, cut as in UDP
//! segmentation, in plaintext, with 16 bytes of room after each packet for its tag. The device
//! encrypts packet by packet. If it cannot encrypt one, it drops the whole transmit and reports
//! that; plaintext never leaves.
//!
//! *Receive.* A frame with [`QuicDecrypted`] holds one datagram or, if `segment_size` is not zero,
//! several. Each begins with a short-header packet that fills it, with header protection removed
//! and the payload in plaintext; the 16 bytes of the tag still follow and have no meaning. A
//! datagram that does not verify is delivered exactly as received, so that a stateless reset (RFC
//! 9000 section 10.3), recognized by its last 16 bytes, remains recognizable.

use core::fmt;

use base::Duration;
use smallvec::SmallVec;
use wire::Tuple;
use zeroize::Zeroizing;

use crate::FlowId;
use crate::Refusal;
use crate::crypto::{NONCE_BYTES, Suite};

/// The host's number for one direction of a connection; never reused by a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QuicId(pub u64);

/// Length of the longest connection ID in bytes (RFC 9000 section 17.2).
pub const CID_BYTES_MAX: usize = 20;

/// A connection ID.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuicConnectionId {
    len: u8,
    bytes: [u8; CID_BYTES_MAX],
}

impl QuicConnectionId {
    /// Copies `bytes`; `None` if there are more than [`CID_BYTES_MAX`].
    #[must_use]
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut all = [0; CID_BYTES_MAX];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Self { len: u8::try_from(bytes.len()).ok()?, bytes: all })
    }

    /// Returns the bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for QuicConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.as_slice() {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Steering of datagrams to the queues of several hosts: by connection ID, so that a connection
/// stays with its host when the peer's address changes (RFC 9000 section 9).
///
/// A keyed hash of the destination connection ID selects the queue. A host issues only connection
/// IDs that lead to its own queue; in a first packet, whose connection ID the client chose, the
/// hash decides which host accepts the connection. Without the key a connection ID does not reveal
/// its queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct QuicSteering {
    /// The local UDP port.
    pub port: u16,
    /// Length of the connection IDs that the hosts issue, in bytes.
    pub id_bytes: u8,
    /// Secret key of the hash; the same on all devices and hosts.
    pub key: u64,
    /// Number of queues.
    pub queues: u32,
}

impl QuicSteering {
    /// Returns the queue that a connection ID leads to.
    #[must_use]
    pub fn queue_of(&self, id: &[u8]) -> usize {
        (self.hash(id) % self.queues.max(1)) as usize
    }

    /// Returns the hash of the destination connection ID of a datagram's first packet, or `None` if
    /// the datagram is too short to have one (RFC 8999 section 5). The queue is the hash modulo the
    /// number of queues.
    #[must_use]
    pub fn hash_of_datagram(&self, datagram: &[u8]) -> Option<u32> {
        let (&first, rest) = datagram.split_first()?;
        let id = if wire::quic::is_short(first) {
            rest.get(..usize::from(self.id_bytes))?
        } else {
            let (&len, rest) = rest.get(4..)?.split_first()?;
            rest.get(..usize::from(len))?
        };
        Some(self.hash(id))
    }

    fn hash(&self, id: &[u8]) -> u32 {
        // Multiplications of 64 by 64 bits; both halves of the product are used.
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            let [low, high] = [product, product >> 64].map(|half| half & u128::from(u64::MAX));
            u64::try_from(low ^ high).unwrap_or(0)
        };
        let start = mix(self.key ^ ODD, id.len() as u64 ^ self.key.rotate_left(32));
        let hash = id.chunks(8).fold(start, |hash, chunk| {
            let word = chunk.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
            mix(hash ^ word, self.key ^ ODD.rotate_left(17))
        });
        // Zero is reserved for frames that belong to no flow.
        u32::try_from(mix(hash, ODD) >> 32).unwrap_or(0).max(1)
    }
}

impl fmt::Debug for QuicSteering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the key.
        f.debug_struct("QuicSteering").field("port", &self.port).finish_non_exhaustive()
    }
}

/// Route from a received packet to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuicRouteKey {
    /// The local port and a connection ID that the host issued. All connection IDs of a port have
    /// the same length, which is not zero.
    Id {
        /// The local UDP port.
        port: u16,
        /// The destination connection ID.
        id: QuicConnectionId,
    },
    /// The addresses, for zero-length connection IDs. `local` is the host's end.
    Tuple(Tuple),
}

/// `QEO_CONNECTION` with `ADD`: offloads one direction of a connection whose handshake is complete.
#[derive(Debug)]
pub struct QuicAdd {
    /// The new entry.
    pub quic: QuicId,
    /// The connection, for reports of the device.
    pub flow: FlowId,
    /// The direction, with its routes if packets are received.
    pub direction: QuicDirection,
    /// The AEAD and the header protection algorithm.
    pub suite: Suite,
    /// Header protection key: the first [`Suite::key_bytes`] bytes. It never changes (RFC 9001
    /// section 6).
    pub header_key: Zeroizing<[u8; 32]>,
    /// Keys of the current generation.
    pub keys: QuicKeys,
    /// `NextPacketNumber`: the next number to send, or one above the largest received.
    pub next_packet_number: u64,
}

/// Direction of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuicDirection {
    /// Send: transmits name the entry.
    Transmit,
    /// Receive: packets are matched by routes, which `QuicRouteChange` adds and removes.
    Receive {
        /// The initial routes.
        routes: SmallVec<[QuicRouteKey; 2]>,
        /// Bounds of the reordering window; `None` to deliver in order of arrival.
        reorder: Option<QuicReorderBounds>,
    },
}

/// Bounds of the reordering window. When a bound is reached, gaps are given up, oldest first, until
/// no bound is reached. Packets that then wait for no gap are delivered in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicReorderBounds {
    /// Packet numbers from the oldest missing to the newest waiting packet.
    pub packets: u16,
    /// Bytes of waiting packets.
    pub bytes: u32,
    /// Time that a packet may wait. Shorter than the peer's time threshold for loss (RFC 9002
    /// section 6.1.2) and than the host's acknowledgment delay.
    pub time: Duration,
}

/// Keys of one generation.
pub struct QuicKeys {
    /// Key phase bit of the packets.
    pub phase: bool,
    /// AEAD key: the first [`Suite::key_bytes`] bytes.
    pub key: Zeroizing<[u8; 32]>,
    /// IV, combined with the packet number to make the nonce.
    pub iv: [u8; NONCE_BYTES],
}

impl fmt::Debug for QuicKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the key.
        f.debug_struct("QuicKeys").field("phase", &self.phase).finish_non_exhaustive()
    }
}

/// Keys of the next generation. The device keeps them and those of the current generation, and
/// forgets older ones.
#[derive(Debug)]
pub struct QuicRekey {
    /// The entry.
    pub quic: QuicId,
    /// The keys. Their phase must differ from that of the current generation.
    pub keys: QuicKeys,
}

/// Change of the routes to a receive entry.
#[derive(Debug)]
pub struct QuicRouteChange {
    /// The entry.
    pub quic: QuicId,
    /// The route.
    pub route: QuicRouteKey,
    /// True to add the route, false to remove it.
    pub add: bool,
}

/// Instructions for encrypting the packets in a transmit's datagrams.
#[derive(Clone, Debug)]
pub struct QuicProtect {
    /// The entry whose keys are used.
    pub quic: QuicId,
    /// One for each datagram, in order; `None` for a datagram that the host has encrypted itself.
    pub packets: SmallVec<[Option<QuicTxPacket>; 1]>,
}

/// Position of a short-header packet in its datagram. The packet extends to the end of the
/// datagram, tag included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicTxPacket {
    /// Offset of the packet's first byte; long-header packets may precede it in the datagram.
    pub begin: u16,
    /// Offset of the packet number from `begin`.
    pub pn_offset: u8,
    /// Length of the packet number: 1 to 4 bytes.
    pub pn_len: u8,
    /// The full packet number. The device refuses a number that is not above all numbers of the
    /// entry that it has encrypted, so that no nonce is used twice.
    pub number: u64,
}

/// Decryption results of the datagrams in a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuicDecrypted {
    /// The entry that decrypted them.
    pub quic: QuicId,
    /// Packet number of each datagram, in order.
    pub numbers: SmallVec<[u64; 2]>,
}

/// `QuicStatus`: reports a failed operation; successful ones are not reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicStatus {
    /// The entry.
    pub quic: QuicId,
    /// The connection.
    pub flow: FlowId,
    /// The failure.
    pub failure: QuicFailure,
}

/// Failures that a [`QuicStatus`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuicFailure {
    /// The device refused the entry. Packets pass as if the offload had not been requested.
    Refused(Refusal),
    /// A whole transmit was dropped: its entry or keys are unknown, a packet number was used
    /// before, or a packet does not lie in its datagram. The connection sees a packet loss.
    NotEncrypted,
}

/// Limits of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuicLimits {
    /// Entries at one time, both directions counted, over all queues.
    pub entries_max: u32,
    /// Datagrams that may wait in reordering windows, over all connections.
    pub waiting_max: u32,
}

#[cfg(test)]
mod steering_tests {
    use super::*;

    const STEERING: QuicSteering =
        QuicSteering { port: 443, id_bytes: 8, key: 0x1234_5678_9abc, queues: 4 };

    #[test]
    fn one_id_leads_to_one_queue_in_every_header() {
        for n in 0..100_u64 {
            let id = n.to_be_bytes();
            let short = [&[0x41][..], &id, &[9; 30]].concat();
            let long = [&[0xc1, 0, 0, 0, 1, 8][..], &id, &[0, 5]].concat();
            let queue = |datagram: &[u8]| {
                STEERING.hash_of_datagram(datagram).map(|hash| (hash % 4) as usize)
            };
            assert_eq!(queue(&short), Some(STEERING.queue_of(&id)));
            assert_eq!(queue(&long), Some(STEERING.queue_of(&id)));
        }
        for len in 0..9 {
            assert_eq!(STEERING.hash_of_datagram(&[0x41, 0, 0, 0, 0, 0, 0, 0, 0][..len]), None);
        }
        assert_eq!(STEERING.hash_of_datagram(&[0xc1, 0, 0, 0, 1, 255, 7]), None);
    }

    #[test]
    fn ids_spread_evenly() {
        let mut seen = [0; 4];
        (0..4000_u64).for_each(|n| seen[STEERING.queue_of(&n.to_be_bytes())] += 1);
        assert!(seen.iter().all(|count| (900..1100).contains(count)), "{seen:?}");
        let other = QuicSteering { key: 7, ..STEERING };
        let same = (0..1000_u64)
            .filter(|n| STEERING.queue_of(&n.to_be_bytes()) == other.queue_of(&n.to_be_bytes()));
        assert!((150..350).contains(&same.count()), "another key, other queues");
    }
}
