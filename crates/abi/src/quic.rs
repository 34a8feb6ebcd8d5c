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

/// How datagrams are spread over the queues of several hosts: by connection ID, so that a
/// connection stays with its host when the peer's address changes (RFC 9000, section 9).
///
/// A datagram's queue follows from a keyed hash of its destination connection ID. A host makes only
/// connection IDs that lead to itself; of a first packet, whose connection ID the client chose, it
/// decides which host accepts the connection. The ID does not show its queue without the key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Steering {
    /// Our UDP port.
    pub port: u16,
    /// Bytes of the connection IDs that the hosts make.
    pub id_bytes: u8,
    /// Secret key of the hash; the same at all devices and hosts.
    pub key: u64,
    /// Queues.
    pub queues: u32,
}

impl Steering {
    /// The queue that a connection ID leads to.
    #[must_use]
    pub fn queue_of(&self, id: &[u8]) -> usize {
        (self.hash(id) % self.queues.max(1)) as usize
    }

    /// The hash of the destination connection ID of a datagram's first packet, as far as it has one
    /// that can be read (RFC 8999, section 5). Its queue is the rest of a division by the number of
    /// queues.
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
        // Multiplications of 64 by 64 bits, both halves of which are used.
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
        // Zero stands for what has no flow.
        u32::try_from(mix(hash, ODD) >> 32).unwrap_or(0).max(1)
    }
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // No key.
        f.debug_struct("Steering").field("port", &self.port).finish_non_exhaustive()
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

#[cfg(test)]
mod steering_tests {
    use super::*;

    const STEERING: Steering =
        Steering { port: 443, id_bytes: 8, key: 0x1234_5678_9abc, queues: 4 };

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
        let other = Steering { key: 7, ..STEERING };
        let same = (0..1000_u64)
            .filter(|n| STEERING.queue_of(&n.to_be_bytes()) == other.queue_of(&n.to_be_bytes()));
        assert!((150..350).contains(&same.count()), "another key, other queues");
    }
}
