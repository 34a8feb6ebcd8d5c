//! Packet and header protection objects for quinn-proto, and the state they share with the driver.
//!
//! quinn-proto builds, encrypts and header-protects a packet in one step. If the device is to
//! encrypt it, or file content is still missing, our keys leave the packet in plaintext and record
//! its layout ([`OneRttShared::begin_batch`], [`OneRttShared::take_records`]). If the device
//! decrypted a received packet, they skip decryption ([`OneRttShared::set_decrypted`]), after the
//! driver has checked that the device decrypted it with the keys of this connection.
//!
//! `quinn_proto::crypto` requires `Sync` objects, so the shared state has a lock. It is
//! uncontended: a connection and its driver run on one thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use abi::crypto::{SAMPLE_BYTES, Suite, TAG_BYTES};
use abi::quic::QuicConnectionId;
use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, HeaderKey, PacketKey};
use rustls::quic;
use wire::quic::{QuicFrame, QuicFrames, number_len};

use crate::congestion::PacketNumberNews;
use crate::credit::Credit;
use crate::frames::{push_acked_ranges, retired_cid_sequence};
use crate::keys::{HeaderProtectionKeys, OneRttPacketKeys};

/// Key generations kept: previous, current and next (RFC 9001 section 6.5).
const GENERATIONS: usize = 3;

/// A packet that was left in plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredPacket {
    /// Packet number.
    pub(crate) number: u64,
    /// Length of the header.
    pub(crate) header_len: usize,
    /// Length of the packet number, which ends the header.
    pub(crate) pn_len: usize,
    /// Length of the packet, including the room for the tag.
    pub(crate) len: usize,
    /// Generation of the keys to encrypt with.
    pub(crate) generation: u64,
}

/// Packets that were left in plaintext, have consecutive numbers, and are equal otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeferredRun {
    first: DeferredPacket,
    /// Number of packets; known when the run has ended.
    count: u64,
}

/// Properties of the last packet that was left in plaintext in this batch, to extend its run
/// without the lock. `len` is zero before the first packet of a batch.
#[derive(Debug, Default)]
struct DeferredRunTail {
    header_len: AtomicUsize,
    pn_len: AtomicUsize,
    len: AtomicUsize,
    generation: AtomicU64,
}

impl DeferredRunTail {
    fn set(&self, packet: &DeferredPacket) {
        self.header_len.store(packet.header_len, Ordering::Relaxed);
        self.pn_len.store(packet.pn_len, Ordering::Relaxed);
        self.len.store(packet.len, Ordering::Relaxed);
        self.generation.store(packet.generation, Ordering::Relaxed);
    }

    /// Returns whether the packet differs from the last one by nothing but its number.
    fn matches(&self, packet: &DeferredPacket) -> bool {
        self.len.load(Ordering::Relaxed) == packet.len
            && self.header_len.load(Ordering::Relaxed) == packet.header_len
            && self.pn_len.load(Ordering::Relaxed) == packet.pn_len
            && self.generation.load(Ordering::Relaxed) == packet.generation
    }
}

/// Keys of both directions of one generation.
#[derive(Clone)]
pub(crate) struct KeyGeneration {
    /// Generation number: 0 for the keys from the handshake.
    pub(crate) number: u64,
    /// Keys for sending.
    pub(crate) tx: Arc<OneRttPacketKeys>,
    /// Keys for receiving.
    pub(crate) rx: Arc<OneRttPacketKeys>,
}

/// State of a connection's 1-RTT packets that few packets need.
#[derive(Default)]
pub(crate) struct OneRttState {
    runs: Vec<DeferredRun>,
    /// Sequence numbers of connection IDs that the peer retired since the driver last took them.
    pub(crate) retired_cids: Vec<u64>,
    pub(crate) suite: Option<Suite>,
    pub(crate) tx_header: Option<Arc<HeaderProtectionKeys>>,
    pub(crate) rx_header: Option<Arc<HeaderProtectionKeys>>,
    generations: VecDeque<KeyGeneration>,
    /// Packets that the device decrypted under another number than quinn-proto expects.
    pub(crate) mismatched: u64,
    /// Flow control limits set by the peer.
    pub(crate) credit: Credit,
    /// The peer's connection ID in the last packet built.
    pub(crate) peer_id: Option<QuicConnectionId>,
    /// Input of congestion control since the driver last took it.
    pub(crate) news: PacketNumberNews,
}

impl OneRttState {
    /// Ends the last run of packets left in plaintext, before packet number `next`.
    fn end_run(&mut self, next: u64) {
        if let Some(run) = self.runs.last_mut().filter(|run| run.count == 0) {
            run.count = next.saturating_sub(run.first.number);
        }
    }

    /// Returns the keys of a generation if they are still kept.
    pub(crate) fn generation(&self, number: u64) -> Option<&KeyGeneration> {
        self.generations.iter().find(|generation| generation.number == number)
    }

    /// Adds a generation, and drops the oldest one if there are too many.
    pub(crate) fn push_generation(&mut self, generation: KeyGeneration) {
        if self.generations.len() == GENERATIONS {
            self.generations.pop_front();
        }
        self.generations.push_back(generation);
    }
}

/// State shared by a connection's crypto objects and its driver. The atomic fields are used for
/// every packet: plain loads and stores are enough on one thread, and cost less than the lock.
pub(crate) struct OneRttShared {
    state: Mutex<OneRttState>,
    /// One above the number of the last packet built.
    tx_next: AtomicU64,
    /// Key generation of the last packet built.
    tx_generation: AtomicU64,
    /// One above the largest packet number decrypted.
    rx_next: AtomicU64,
    /// Newest key generation of which a packet was decrypted.
    rx_generation: AtomicU64,
    /// True if `state` has something that the driver has not taken yet.
    has_news: AtomicBool,
    run_tail: DeferredRunTail,
    /// True while packets are left in plaintext.
    defer_encryption: AtomicBool,
    /// Number of the packet being handled if the device decrypted it; otherwise [`NOT_DECRYPTED`].
    decrypted_number: AtomicU64,
}

/// Never a packet number (RFC 9000 section 12.3).
const NOT_DECRYPTED: u64 = u64::MAX;

impl Default for OneRttShared {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            tx_next: AtomicU64::new(0),
            tx_generation: AtomicU64::new(0),
            rx_next: AtomicU64::new(0),
            rx_generation: AtomicU64::new(0),
            has_news: AtomicBool::new(false),
            run_tail: DeferredRunTail::default(),
            defer_encryption: AtomicBool::new(false),
            decrypted_number: AtomicU64::new(NOT_DECRYPTED),
        }
    }
}

impl OneRttShared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, OneRttState> {
        // Nothing under the lock panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Prepares for building packets, which are left in plaintext if `defer_encryption`.
    pub(crate) fn begin_batch(&self, deferred: bool) {
        self.defer_encryption.store(deferred, Ordering::Relaxed);
        self.run_tail.len.store(0, Ordering::Relaxed);
        self.lock().runs.clear();
    }

    /// Moves the records of packets left in plaintext, in order, to `into`, which is cleared first.
    pub(crate) fn take_records(&self, into: &mut Vec<DeferredPacket>) {
        into.clear();
        let mut state = self.lock();
        state.end_run(self.tx_next());
        for run in state.runs.drain(..) {
            let number = run.first.number;
            let packets =
                (number..number + run.count).map(|number| DeferredPacket { number, ..run.first });
            into.extend(packets);
        }
        drop(state);
        self.run_tail.len.store(0, Ordering::Relaxed);
    }

    /// Returns one above the number of the last packet built.
    pub(crate) fn tx_next(&self) -> u64 {
        self.tx_next.load(Ordering::Relaxed)
    }

    /// Returns the key generation of the last packet built.
    pub(crate) fn tx_generation(&self) -> u64 {
        self.tx_generation.load(Ordering::Relaxed)
    }

    /// Returns one above the largest packet number decrypted.
    pub(crate) fn rx_next(&self) -> u64 {
        self.rx_next.load(Ordering::Relaxed)
    }

    /// Returns the newest key generation of which a packet was decrypted.
    pub(crate) fn rx_generation(&self) -> u64 {
        self.rx_generation.load(Ordering::Relaxed)
    }

    /// Returns whether a packet since the last call left something in the state for the driver.
    pub(crate) fn take_has_news(&self) -> bool {
        let has_news = self.has_news.load(Ordering::Relaxed);
        if has_news {
            self.has_news.store(false, Ordering::Relaxed);
        }
        has_news
    }

    fn set_has_news(&self) {
        self.has_news.store(true, Ordering::Relaxed);
    }

    /// Announces the datagram handled next: its packet number if the device decrypted it.
    pub(crate) fn set_decrypted(&self, number: Option<u64>) {
        self.decrypted_number.store(number.unwrap_or(NOT_DECRYPTED), Ordering::Relaxed);
    }

    fn defers_encryption(&self) -> bool {
        self.defer_encryption.load(Ordering::Relaxed)
    }

    fn decrypted(&self) -> Option<u64> {
        Some(self.decrypted_number.load(Ordering::Relaxed))
            .filter(|number| *number != NOT_DECRYPTED)
    }
}

/// Packet protection of one direction and generation of 1-RTT packets.
pub(crate) struct OneRttKey {
    pub(crate) keys: Arc<OneRttPacketKeys>,
    pub(crate) generation: u64,
    pub(crate) suite: Suite,
    pub(crate) shared: Arc<OneRttShared>,
}

impl PacketKey for OneRttKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let shared = &*self.shared;
        let expected = shared.tx_next();
        shared.tx_next.store(packet + 1, Ordering::Relaxed);
        shared.tx_generation.store(self.generation, Ordering::Relaxed);
        let pn_len = buf.first().map_or(0, |first| number_len(*first));
        let (len, generation) = (buf.len(), self.generation);
        let built = DeferredPacket { number: packet, header_len, pn_len, len, generation };
        let deferred = shared.defers_encryption();
        if deferred && packet == expected && shared.run_tail.matches(&built) {
            return;
        }
        let mut state = shared.lock();
        if packet == expected + 1 {
            state.news.skipped.push(expected);
            shared.set_has_news();
        }
        let id = buf.get(1..header_len.saturating_sub(pn_len)).unwrap_or_default();
        if state.peer_id.as_ref().is_none_or(|known| known.as_slice() != id) {
            state.peer_id = QuicConnectionId::new(id);
        }
        if deferred {
            state.end_run(expected);
            state.runs.push(DeferredRun { first: built, count: 0 });
            shared.run_tail.set(&built);
            return;
        }
        drop(state);
        self.keys.encrypt_packet(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let shared = &*self.shared;
        let len = match shared.decrypted() {
            Some(number) if number == packet => {
                payload.len().checked_sub(TAG_BYTES).ok_or(CryptoError)?
            }
            Some(_) => {
                shared.lock().mismatched += 1;
                shared.set_has_news();
                return Err(CryptoError);
            }
            None => self.keys.decrypt_packet(packet, header, payload).ok_or(CryptoError)?,
        };
        payload.truncate(len);
        shared.rx_next.store(shared.rx_next().max(packet + 1), Ordering::Relaxed);
        let generation = shared.rx_generation().max(self.generation);
        shared.rx_generation.store(generation, Ordering::Relaxed);
        // quinn-proto handles malformed frames, and the frame types that are unknown here.
        for frame in QuicFrames::new(payload).flatten() {
            // Most packets have no other frames than these.
            if matches!(frame, QuicFrame::Stream(_)) {
                continue;
            }
            let mut state = shared.lock();
            state.credit.apply_frame(payload, &frame);
            push_acked_ranges(payload, &frame, &mut state.news.acked);
            state.retired_cids.extend(retired_cid_sequence(payload, &frame));
            shared.set_has_news();
        }
        Ok(())
    }

    fn tag_len(&self) -> usize {
        TAG_BYTES
    }

    /// RFC 9001 section 6.6.
    fn confidentiality_limit(&self) -> u64 {
        match self.suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 23,
            Suite::ChaCha20Poly1305 => u64::MAX,
        }
    }

    /// Returns the maximum number of packets that fail to be decrypted (RFC 9001 section 6.6).
    fn integrity_limit(&self) -> u64 {
        match self.suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => 1 << 52,
            Suite::ChaCha20Poly1305 => 1 << 36,
        }
    }
}

/// Header protection of one direction of 1-RTT packets.
pub(crate) struct OneRttHeaderKey {
    pub(crate) keys: Arc<HeaderProtectionKeys>,
    pub(crate) shared: Arc<OneRttShared>,
}

impl HeaderKey for OneRttHeaderKey {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if self.shared.decrypted().is_none() {
            self.keys.unprotect(pn_offset, packet);
        }
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        if !self.shared.defers_encryption() {
            self.keys.protect(pn_offset, packet);
        }
    }

    fn sample_size(&self) -> usize {
        SAMPLE_BYTES
    }
}

/// rustls's packet protection, for Initial, Handshake and 0-RTT packets.
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
            // Plaintext is never sent.
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

/// rustls's header protection.
pub(crate) struct TlsHeaderKey(pub(crate) Box<dyn quic::HeaderProtectionKey>);

impl TlsHeaderKey {
    /// Returns the sample, the first byte, and the four bytes from the start of the packet number.
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
            // It fails only if a part has a wrong length.
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
