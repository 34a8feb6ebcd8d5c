//! The objects that quinn-proto protects packets with, and what they share with the driver.
//!
//! quinn-proto builds a packet, seals it and protects its header in one go. Where the device is to
//! do that, or where bytes of a file are still missing, our keys leave the packet as it is and note
//! where it lies ([`Shared::begin`], [`Shared::take_records`]). Where the device opened a packet
//! they take its word for it ([`Shared::set_opened`]), after the driver has made sure that it
//! speaks of this connection.
//!
//! `quinn_proto::crypto` wants its objects to be `Sync`, so what they share has a lock. Nobody
//! waits for it: a connection and its driver run on one thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::crypto::{SAMPLE_BYTES, Suite, TAG_BYTES};
use abi::quic::ConnectionId;
use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, HeaderKey, PacketKey};
use rustls::quic;
use wire::quic::{Frames, number_len};

use crate::congestion::News;
use crate::credit::Credit;
use crate::frames::{acknowledged, retired};
use crate::keys::{HeaderKeys, Keys};

/// Generations of keys that are kept: the last, the current and the next (RFC 9001, section 6.5).
const GENERATIONS: usize = 3;

/// A packet that was left in plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its number.
    pub(crate) number: u64,
    /// Bytes of its header.
    pub(crate) header_len: usize,
    /// Bytes of the packet number, at the header's end.
    pub(crate) pn_len: usize,
    /// Bytes of the packet, room for the tag included.
    pub(crate) len: usize,
    /// Which keys it is to be sealed with.
    pub(crate) generation: u64,
}

/// Keys of both directions.
#[derive(Clone)]
pub(crate) struct Generation {
    /// Its number: 0 for the handshake's keys.
    pub(crate) number: u64,
    /// What we send.
    pub(crate) tx: Arc<Keys>,
    /// What the peer sends.
    pub(crate) rx: Arc<Keys>,
}

/// What is known of a connection's 1-RTT packets.
#[derive(Default)]
pub(crate) struct State {
    records: Vec<Record>,
    /// One above the last packet that was built.
    pub(crate) tx_next: u64,
    /// Generation of that packet.
    pub(crate) tx_generation: u64,
    /// One above the largest packet that was opened.
    pub(crate) rx_next: u64,
    /// The newest generation that a packet was opened of.
    pub(crate) rx_generation: u64,
    /// Sequence numbers of the connection IDs that the peer retired, since the driver looked.
    pub(crate) retired: Vec<u64>,
    pub(crate) suite: Option<Suite>,
    pub(crate) tx_header: Option<Arc<HeaderKeys>>,
    pub(crate) rx_header: Option<Arc<HeaderKeys>>,
    generations: VecDeque<Generation>,
    /// Packets that the device opened and quinn-proto did not take for that.
    pub(crate) disagreed: u64,
    /// The credit that the peer gives us.
    pub(crate) credit: Credit,
    /// The peer's connection ID in the last packet that was built.
    pub(crate) peer_id: Option<ConnectionId>,
    /// News for congestion control, since the driver looked.
    pub(crate) news: News,
}

impl State {
    /// The keys of a generation, if they are still kept.
    pub(crate) fn generation(&self, number: u64) -> Option<&Generation> {
        self.generations.iter().find(|generation| generation.number == number)
    }

    /// Keeps another generation.
    pub(crate) fn push(&mut self, generation: Generation) {
        if self.generations.len() == GENERATIONS {
            self.generations.pop_front();
        }
        self.generations.push_back(generation);
    }
}

/// What a connection's crypto objects and its driver share. What is asked for with every packet is
/// beside the lock.
pub(crate) struct Shared {
    state: Mutex<State>,
    /// Leave packets in plaintext.
    deferred: AtomicBool,
    /// The number of the packet that is being handled, if the device opened it; else
    /// [`NOT_OPENED`].
    opened: AtomicU64,
}

/// No packet has this number (RFC 9000, section 12.3).
const NOT_OPENED: u64 = u64::MAX;

impl Default for Shared {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            deferred: AtomicBool::new(false),
            opened: AtomicU64::new(NOT_OPENED),
        }
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Packets are about to be built: to be sealed at once, or to be left as they are.
    pub(crate) fn begin(&self, deferred: bool) {
        self.deferred.store(deferred, Ordering::Relaxed);
        self.lock().records.clear();
    }

    /// Those that were left as they are, in order. `into` is emptied first.
    pub(crate) fn take_records(&self, into: &mut Vec<Record>) {
        into.clear();
        into.append(&mut self.lock().records);
    }

    /// A datagram is about to be handled, which the device opened as that packet, or did not open.
    pub(crate) fn set_opened(&self, number: Option<u64>) {
        self.opened.store(number.unwrap_or(NOT_OPENED), Ordering::Relaxed);
    }

    fn is_deferred(&self) -> bool {
        self.deferred.load(Ordering::Relaxed)
    }

    fn opened(&self) -> Option<u64> {
        Some(self.opened.load(Ordering::Relaxed)).filter(|number| *number != NOT_OPENED)
    }
}

/// Packet protection of one direction and generation.
pub(crate) struct OneRttKey {
    pub(crate) keys: Arc<Keys>,
    pub(crate) generation: u64,
    pub(crate) suite: Suite,
    pub(crate) shared: Arc<Shared>,
}

impl PacketKey for OneRttKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let mut state = self.shared.lock();
        let expected = core::mem::replace(&mut state.tx_next, packet + 1);
        if packet == expected + 1 {
            state.news.skipped.push(expected);
        }
        state.tx_generation = self.generation;
        let pn_len = buf.first().map_or(0, |first| number_len(*first));
        let id = buf.get(1..header_len.saturating_sub(pn_len)).unwrap_or_default();
        if state.peer_id.as_ref().is_none_or(|known| known.as_slice() != id) {
            state.peer_id = ConnectionId::new(id);
        }
        if self.shared.is_deferred() {
            let (number, len, generation) = (packet, buf.len(), self.generation);
            state.records.push(Record { number, header_len, pn_len, len, generation });
            return;
        }
        drop(state);
        self.keys.seal(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let mut state = self.shared.lock();
        let len = match self.shared.opened() {
            Some(number) if number == packet => {
                payload.len().checked_sub(TAG_BYTES).ok_or(CryptoError)?
            }
            Some(_) => {
                state.disagreed += 1;
                return Err(CryptoError);
            }
            None => self.keys.open(packet, header, payload).ok_or(CryptoError)?,
        };
        payload.truncate(len);
        state.rx_next = state.rx_next.max(packet + 1);
        state.rx_generation = state.rx_generation.max(self.generation);
        // What is malformed ends the connection, or is a frame that only quinn-proto knows.
        for frame in Frames::new(payload).flatten() {
            state.credit.follow(payload, &frame);
            acknowledged(payload, &frame, &mut state.news.acked);
            state.retired.extend(retired(payload, &frame));
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    /// RFC 9001, section 6.6.
    fn confidentiality_limit(&self) -> u64 {
        match self.suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 23,
            Suite::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// RFC 9001, section 6.6.
    fn integrity_limit(&self) -> u64 {
        match self.suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 52,
            Suite::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

/// Header protection of one direction.
pub(crate) struct OneRttHeaderKey {
    pub(crate) keys: Arc<HeaderKeys>,
    pub(crate) shared: Arc<Shared>,
}

impl HeaderKey for OneRttHeaderKey {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if self.shared.opened().is_none() {
            self.keys.unprotect(pn_offset, packet);
        }
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if !self.shared.is_deferred() {
            self.keys.protect(pn_offset, packet);
        }
    }

    fn sample_size(&self) -> usize {
        SAMPLE_BYTES
    }
}

/// Packet protection of rustls: Initial, Handshake and 0-RTT packets.
pub(crate) struct TlsKey(pub(crate) Box<dyn quic::PacketKey>);

impl PacketKey for TlsKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let least = header_len + self.0.tag_len();
        debug_assert!(buf.len() >= least, "no room for the tag");
        if buf.len() < least {
            return buf.fill(0);
        }
        let (header, rest) = buf.split_at_mut(header_len);
        let text_len = rest.len() - self.0.tag_len();
        let (text, room) = rest.split_at_mut(text_len);
        match self.0.encrypt_in_place(packet, header, text) {
            Ok(tag) => room.copy_from_slice(tag.as_ref()),
            // Nothing leaves unsealed.
            Err(_) => text.fill(0),
        }
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let text = self.0.decrypt_in_place(packet, header, payload).map_err(|_| CryptoError)?;
        let len = text.len();
        payload.truncate(len);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.0.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.integrity_limit()
    }
}

/// Header protection of rustls.
pub(crate) struct TlsHeaderKey(pub(crate) Box<dyn quic::HeaderProtectionKey>);

impl TlsHeaderKey {
    /// The sample, the first byte, and up to four bytes from where the packet number begins.
    fn parts<'a>(
        &self,
        pn_offset: usize,
        packet: &'a mut [u8],
    ) -> Option<(&'a [u8], &'a mut u8, &'a mut [u8])> {
        let (header, rest) = packet.split_at_mut_checked(pn_offset + 4)?;
        let sample = rest.get(..self.0.sample_len())?;
        let (first, header) = header.split_first_mut()?;
        Some((sample, first, header.get_mut(pn_offset.checked_sub(1)?..)?))
    }
}

impl HeaderKey for TlsHeaderKey {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if let Some((sample, first, number)) = self.parts(pn_offset, packet) {
            // It fails only for parts of another length.
            let _ = self.0.decrypt_in_place(sample, first, number);
        }
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if let Some((sample, first, number)) = self.parts(pn_offset, packet) {
            let _ = self.0.encrypt_in_place(sample, first, number);
        }
    }

    fn sample_size(&self) -> usize {
        self.0.sample_len()
    }
}
