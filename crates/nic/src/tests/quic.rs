//! Helpers for QUIC tests: a peer that protects packets with rustls's keys, and a device that
//! decrypts and encrypts with the project's provider.

use abi::crypto::Suite;
use abi::quic::{
    QuicAdd, QuicConnectionId, QuicDirection, QuicFailure, QuicId, QuicKeys, QuicProtect,
    QuicReorderBounds, QuicRouteKey, QuicStatus, QuicTxPacket,
};
use abi::{Event, FlowId, Op, ReceivedFrame, Transmit, TransmitPart, TransmitParts};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use bytes::Bytes;
use core::net::IpAddr;
use rustls::crypto::aws_lc_rs::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::{HeaderProtectionKey, Keys, PacketKey, Version};
use rustls::{Side, SupportedCipherSuite};
use smallvec::SmallVec;
use testkit::PLAIN_LINK;
use wire::frame::protocol;
use wire::quic::truncate_number;
use wire::{Endpoint, Tuple};

use super::frames::{MAC, packet, rx_frame, transmit, udp_header};
use super::rig::Rig;
use crate::{DeviceConfig, QuicConfig};

pub(super) const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];
/// The local port in frames made by [`packet`].
pub(super) const PORT: u16 = 0x0101;
pub(super) const ID: [u8; 8] = [0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08];
pub(super) const QUIC: QuicId = QuicId(70);
pub(super) const FLOW: FlowId = FlowId(7);

/// RFC 9001 section A.1: the client's keys derived from the connection ID [`ID`].
const AES128_KEY: [u8; 16] = [
    0x1f, 0x36, 0x96, 0x13, 0xdd, 0x76, 0xd5, 0x46, 0x77, 0x30, 0xef, 0xcb, 0xe3, 0xb1, 0xa2, 0x2d,
];
const AES128_IV: [u8; 12] =
    [0xfa, 0x04, 0x4b, 0x2f, 0x42, 0xa3, 0xfd, 0x3b, 0x46, 0xfb, 0x25, 0x5c];
const AES128_HEADER: [u8; 16] = [
    0x9f, 0x50, 0x44, 0x9e, 0x04, 0xa0, 0xe8, 0x10, 0x28, 0x3a, 0x1e, 0x99, 0x33, 0xad, 0xed, 0xd2,
];

/// Keys of a generation and the header protection key; as many leading bytes are used as the suite
/// needs.
#[derive(Clone, Copy)]
pub(super) struct QuicTestSecrets {
    pub(super) key: [u8; 32],
    pub(super) iv: [u8; 12],
    pub(super) header: [u8; 32],
}

pub(super) fn secrets(suite: Suite, generation: u8) -> QuicTestSecrets {
    if suite == Suite::Aes128Gcm {
        assert_eq!(generation, 0, "rustls takes no AES-128 key from outside");
        let mut secrets = QuicTestSecrets { key: [0; 32], iv: AES128_IV, header: [0; 32] };
        secrets.key[..16].copy_from_slice(&AES128_KEY);
        secrets.header[..16].copy_from_slice(&AES128_HEADER);
        return secrets;
    }
    QuicTestSecrets { key: [generation + 1; 32], iv: [generation + 100; 12], header: [9; 32] }
}

pub(super) fn keys_of(secrets: &QuicTestSecrets, phase: bool) -> QuicKeys {
    QuicKeys { phase, key: secrets.key.into(), iv: secrets.iv }
}

/// One direction in rustls: it encrypts what the device receives and decrypts what the device
/// sends.
pub(super) struct RustlsQuicPeer {
    packet: Box<dyn PacketKey>,
    header: Box<dyn HeaderProtectionKey>,
}

impl RustlsQuicPeer {
    pub(super) fn new(suite: Suite, generation: u8) -> Self {
        let named: SupportedCipherSuite = match suite {
            Suite::Aes128Gcm => TLS13_AES_128_GCM_SHA256,
            Suite::Aes256Gcm => TLS13_AES_256_GCM_SHA384,
            Suite::ChaCha20Poly1305 => TLS13_CHACHA20_POLY1305_SHA256,
        };
        let quic = named.tls13().unwrap().quic_suite().unwrap();
        if suite == Suite::Aes128Gcm {
            let keys = Keys::initial(Version::V1, quic.suite, quic.quic, &ID, Side::Client);
            return Self { packet: keys.local.packet, header: keys.local.header };
        }
        Self::with(quic.quic, &secrets(suite, generation))
    }

    pub(super) fn with(algorithm: &dyn rustls::quic::Algorithm, secrets: &QuicTestSecrets) -> Self {
        Self {
            packet: algorithm.packet_key(AeadKey::from(secrets.key), Iv::from(secrets.iv)),
            header: algorithm.header_protection_key(AeadKey::from(secrets.header)),
        }
    }

    /// Returns a protected packet with a packet number of `len` bytes.
    pub(super) fn seal(&self, phase: bool, number: u64, len: usize, body: &[u8]) -> Vec<u8> {
        self.seal_to(&ID, phase, number, len, body)
    }

    pub(super) fn seal_to(
        &self,
        id: &[u8],
        phase: bool,
        number: u64,
        len: usize,
        body: &[u8],
    ) -> Vec<u8> {
        let mut packet = plain(id, phase, number, len, body);
        let at = packet.len() - body.len();
        let (header, text) = packet.split_at_mut(at);
        let tag = self.packet.encrypt_in_place(number, header, text).unwrap();
        packet.extend_from_slice(tag.as_ref());
        self.mask(&mut packet, 1 + id.len(), Some(len));
        packet
    }

    /// Applies header protection if the length of the packet number is given, otherwise removes it.
    fn mask(&self, packet: &mut [u8], at: usize, on: Option<usize>) {
        let (head, sample) = packet.split_at_mut(at + 4);
        let (first, rest) = head.split_at_mut(1);
        let number = &mut rest[at - 1..];
        match on {
            Some(len) => {
                self.header.encrypt_in_place(&sample[..16], &mut first[0], &mut number[..len])
            }
            None => self.header.decrypt_in_place(&sample[..16], &mut first[0], number),
        }
        .unwrap();
    }

    /// Removes the protection of a packet sent by the device; returns its first byte and its
    /// payload.
    pub(super) fn open(&self, mut packet: Vec<u8>, id_len: usize, number: u64) -> (u8, Vec<u8>) {
        let at = 1 + id_len;
        self.mask(&mut packet, at, None);
        let len = wire::quic::number_len(packet[0]);
        let (header, text) = packet.split_at_mut(at + len);
        assert_eq!(header[at..], truncate_number(number)[4 - len..]);
        let text = self.packet.decrypt_in_place(number, header, text).expect("verifies");
        (header[0], text.to_vec())
    }
}

/// Returns a packet without protection and without room for a tag.
pub(super) fn plain(id: &[u8], phase: bool, number: u64, len: usize, body: &[u8]) -> Vec<u8> {
    let first = 0x40 | u8::from(phase) << 2 | u8::try_from(len - 1).unwrap();
    [&[first], id, &truncate_number(number)[4 - len..], body].concat()
}

pub(super) fn tuple() -> Tuple {
    let end = |addr: [u8; 4], port| Endpoint { addr: IpAddr::from(addr), port };
    Tuple { local: end([10, 77, 0, 1], PORT), remote: end([10, 77, 0, 2], 80) }
}

pub(super) fn route(id: &[u8]) -> QuicRouteKey {
    QuicRouteKey::Id { port: PORT, id: QuicConnectionId::new(id).unwrap() }
}

pub(super) fn receive(suite: Suite, reorder: Option<QuicReorderBounds>) -> QuicAdd {
    let direction = QuicDirection::Receive { routes: SmallVec::from_slice(&[route(&ID)]), reorder };
    QuicAdd { direction, ..send(suite, 0) }
}

pub(super) fn send(suite: Suite, next: u64) -> QuicAdd {
    let secrets = secrets(suite, 0);
    QuicAdd {
        quic: QUIC,
        flow: FLOW,
        direction: QuicDirection::Transmit,
        suite,
        header_key: secrets.header.into(),
        keys: keys_of(&secrets, false),
        next_packet_number: next,
    }
}

pub(super) fn config() -> DeviceConfig {
    let quic = Some(QuicConfig::new(Arc::new(crypto::Provider)));
    DeviceConfig { quic, queues: 2, ..DeviceConfig::new(MAC) }
}

/// Returns a device with one entry.
pub(super) fn rig(add: QuicAdd) -> Rig {
    let mut rig = Rig::with(config(), PLAIN_LINK);
    rig.op(0, Op::QuicAdd(Box::new(add)));
    rig.moved(&["quic_"]);
    rig
}

pub(super) fn frame(datagram: &[u8]) -> Vec<u8> {
    packet(4, protocol::UDP, datagram)
}

/// Delivers frames while the host does not poll; returns the events that it polls afterwards.
pub(super) fn burst(rig: &mut Rig, frames: &[Vec<u8>]) -> Vec<ReceivedFrame> {
    for bytes in frames {
        let frame = rx_frame(rig.device.pool(), bytes);
        rig.device.handle_frame(rig.now, frame);
    }
    delivered(rig)
}

/// Returns the frames delivered to the host since the last call.
pub(super) fn delivered(rig: &mut Rig) -> Vec<ReceivedFrame> {
    rig.collect();
    let events = core::mem::take(&mut rig.events);
    let received = |(_, event)| match event {
        Event::Received(received) => Some(received),
        _ => None,
    };
    events.into_iter().filter_map(received).collect()
}

/// Returns the packet numbers of a frame that was decrypted.
pub(super) fn numbers(received: &ReceivedFrame) -> Vec<u64> {
    received.quic.as_ref().map_or(Vec::new(), |opened| opened.numbers.to_vec())
}

/// Returns the packet numbers of several frames, concatenated.
pub(super) fn order(received: &[ReceivedFrame]) -> Vec<u64> {
    received.iter().flat_map(numbers).collect()
}

/// Sorts counters by name.
pub(super) fn sorted(mut moved: Vec<String>) -> Vec<String> {
    moved.sort();
    moved
}

/// Returns the failures reported since the last call.
pub(super) fn troubles(rig: &mut Rig) -> Vec<(QuicId, FlowId, QuicFailure)> {
    let events = core::mem::take(&mut rig.events);
    let trouble = |(_, event)| match event {
        Event::QuicStatus(QuicStatus { quic, flow, failure: why }) => Some((quic, flow, why)),
        _ => None,
    };
    events.into_iter().filter_map(trouble).collect()
}

/// Returns a batch of datagrams of `segment_size`.
pub(super) fn batch(
    parts: &[TransmitPart],
    segment_size: u16,
    packets: &[Option<QuicTxPacket>],
) -> Transmit {
    Transmit {
        header: udp_header(4),
        parts: TransmitParts::from_iter(parts.iter().cloned()),
        quic: Some(Box::new(QuicProtect { quic: QUIC, packets: SmallVec::from_slice(packets) })),
        ..transmit(FLOW, 1, segment_size)
    }
}

/// A packet at the beginning of its datagram.
pub(super) const fn at(number: u64, pn_len: u8) -> QuicTxPacket {
    QuicTxPacket { begin: 0, pn_offset: 9, pn_len, number }
}

pub(super) fn host(bytes: &[u8]) -> TransmitPart {
    TransmitPart::Host(Bytes::copy_from_slice(bytes))
}
