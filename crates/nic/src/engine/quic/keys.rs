//! Packet and header protection (RFC 9001 section 5), applied and removed in place.
//!
//! Used by `rx` and `tx`. [`QuicPacketKeys`] holds the header protection key, which never changes,
//! and up to two generations of packet protection keys, distinguished by their key phase bit.
//! Generations are shared: a pending transmit keeps those that existed when the host queued it.
//!
//! *Why decryption copies first.* A datagram with a wrong tag is passed to the host exactly as it
//! arrived, and decryption in place overwrites it. Authenticating first and decrypting afterwards
//! would need no copy, but two passes. One pass by the fastest implementation and a copy of the
//! ciphertext cost less for valid packets, which nearly all are (decision 30 has figures). Only
//! the ciphertext is copied: header bytes are written after verification.

use abi::crypto::{Aead, CryptoProvider, HeaderProtection, SAMPLE_BYTES, Suite, TAG_BYTES};
use abi::quic::{CID_BYTES_MAX, QuicKeys, QuicTxPacket};
use alloc::boxed::Box;
use alloc::sync::Arc;
use wire::quic::{
    KEY_PHASE, NONCE_BYTES, NUMBER_BYTES_MAX, PROTECTED, RESERVED, SAMPLE_AT, expand_number,
    is_short, key_phase, nonce, number_len, truncate_number,
};

/// Maximum size of a short header.
const HEADER_BYTES_MAX: usize = 1 + CID_BYTES_MAX + NUMBER_BYTES_MAX;
/// Maximum size of a datagram.
const DATAGRAM_BYTES_MAX: usize = 1 << 16;
/// Minimum bytes from the packet number on: the sample must lie in the packet.
pub(super) const AFTER_NUMBER_MIN: usize = SAMPLE_AT + SAMPLE_BYTES;

/// Copy of the ciphertext until it is verified.
pub(super) type CiphertextScratch = Box<[u8; DATAGRAM_BYTES_MAX]>;

/// Allocates scratch memory.
pub(super) fn scratch() -> CiphertextScratch {
    Box::new([0; DATAGRAM_BYTES_MAX])
}

/// Keys of one generation.
pub(super) struct KeyGeneration {
    aead: Box<dyn Aead>,
    iv: [u8; NONCE_BYTES],
}

/// Header of a received packet, with its protection removed in a copy.
pub(super) struct UnprotectedHeader {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
    /// Packet number as sent, and its length in bytes.
    truncated: u32,
    number_len: usize,
}

/// Decryption of a packet before those that arrived earlier were processed: the assumptions, and
/// the result.
pub(super) struct QuicAhead {
    pub(super) keys: Arc<KeyGeneration>,
    pub(super) header: UnprotectedHeader,
    pub(super) number: u64,
    /// `None` until the packet was decrypted, then whether its tag is correct.
    pub(super) opened: Option<bool>,
}

/// Keys of one direction.
#[derive(Clone)]
pub(super) struct QuicPacketKeys {
    suite: Suite,
    header: Arc<dyn HeaderProtection>,
    /// Generations by key phase bit.
    generations: [Option<Arc<KeyGeneration>>; 2],
    /// Key phase of the generation that was added last.
    newest: bool,
}

/// Reason for which a packet is not decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuicDecryptFailure {
    TooShort,
    UnknownKeys,
    BadTag,
}

/// Reason for which a packet is not encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuicEncryptFailure {
    Malformed,
    UnknownKeys,
}

/// Packet numbers of a receive direction.
#[derive(Debug)]
pub(super) struct PacketNumbers {
    /// One above the largest number decrypted.
    expected: u64,
    /// Lowest number decrypted with each generation, by key phase bit.
    firsts: [Option<u64>; 2],
}

impl QuicPacketKeys {
    /// Creates the keys; `None` if the provider does not support the suite or a key has the wrong
    /// length.
    pub(super) fn new(
        provider: &dyn CryptoProvider,
        suite: Suite,
        header_key: &[u8; 32],
        keys: &QuicKeys,
    ) -> Option<Self> {
        let header = provider.header_protection(suite, header_key.get(..suite.key_bytes())?)?;
        let (newest, generations) = (keys.phase, [None, None]);
        let mut new = Self { suite, header: Arc::from(header), generations, newest };
        new.put(provider, keys).then_some(new)
    }

    /// Adds a generation. Returns false if its phase equals the newest one's or the provider
    /// refuses the key.
    pub(super) fn rekey(&mut self, provider: &dyn CryptoProvider, keys: &QuicKeys) -> bool {
        keys.phase != self.newest && self.put(provider, keys)
    }

    fn put(&mut self, provider: &dyn CryptoProvider, keys: &QuicKeys) -> bool {
        let key = keys.key.get(..self.suite.key_bytes());
        let Some(aead) = key.and_then(|key| provider.aead(self.suite, key)) else { return false };
        self.generations[usize::from(keys.phase)] =
            Some(Arc::new(KeyGeneration { aead, iv: keys.iv }));
        self.newest = keys.phase;
        true
    }

    /// Returns the keys for a received packet (RFC 9001 section 6.3). Several generations share a
    /// key phase bit, and only one of them is here; the packet number tells whether it is the one
    /// meant.
    fn generation(
        &self,
        phase: bool,
        number: u64,
        numbers: &PacketNumbers,
    ) -> Option<&Arc<KeyGeneration>> {
        let generation = self.generations[usize::from(phase)].as_ref()?;
        let other = numbers.firsts[usize::from(!phase)];
        let both = self.generations.iter().all(Option::is_some);
        let meant = match other.filter(|_| both) {
            None => true,
            // Not older than the previous generation.
            Some(first) if phase == self.newest => number >= first,
            // Not newer than the newest generation.
            Some(first) => number < first,
        };
        meant.then_some(generation)
    }

    /// Decrypts the packet in `packet` in place and removes header protection. Returns the packet
    /// number. If it fails, `packet` is unchanged.
    pub(super) fn decrypt(
        &self,
        numbers: &mut PacketNumbers,
        packet: &mut [u8],
        id_len: usize,
        scratch: &mut CiphertextScratch,
    ) -> Result<u64, QuicDecryptFailure> {
        let header = self.unprotect(packet, id_len)?;
        let (number, keys) = self.select(numbers, &header)?;
        let (front, text) = packet.split_at_mut(header.len);
        let kept = scratch.get_mut(..text.len()).ok_or(QuicDecryptFailure::BadTag)?;
        kept.copy_from_slice(text);
        if !keys.open(number, &header, text) {
            text.copy_from_slice(kept);
            return Err(QuicDecryptFailure::BadTag);
        }
        front.copy_from_slice(header.as_slice());
        numbers.on_decrypted(header.phase(), number);
        Ok(number)
    }

    /// Removes header protection in a copy of the header.
    #[inline]
    pub(super) fn unprotect(
        &self,
        packet: &[u8],
        id_len: usize,
    ) -> Result<UnprotectedHeader, QuicDecryptFailure> {
        let number_at = 1 + id_len;
        let sample = packet.get(number_at + SAMPLE_AT..).and_then(|rest| rest.first_chunk());
        let mask = self.header.mask(sample.ok_or(QuicDecryptFailure::TooShort)?);
        let first = packet[0] ^ mask[0] & PROTECTED;
        let number_len = number_len(first);
        let (mut bytes, len) = ([0; HEADER_BYTES_MAX], number_at + number_len);
        let header = bytes.get_mut(..len).ok_or(QuicDecryptFailure::TooShort)?;
        header.copy_from_slice(&packet[..len]);
        header[0] = first;
        let mut truncated = 0;
        for (byte, mask) in header[number_at..].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
            truncated = truncated << 8 | u32::from(*byte);
        }
        Ok(UnprotectedHeader { bytes, len, truncated, number_len })
    }

    /// Returns the packet number that a header means after the packets in `numbers`, and the keys
    /// of the packet.
    #[inline]
    pub(super) fn select(
        &self,
        numbers: &PacketNumbers,
        header: &UnprotectedHeader,
    ) -> Result<(u64, &Arc<KeyGeneration>), QuicDecryptFailure> {
        let number = expand_number(numbers.expected, header.truncated, header.number_len);
        let keys = self.generation(header.phase(), number, numbers);
        Ok((number, keys.ok_or(QuicDecryptFailure::UnknownKeys)?))
    }

    /// Accepts a packet that was decrypted ahead, with the result that [`Self::decrypt`] would have
    /// now. Returns `None` if an assumption was wrong; the packet is then as it arrived.
    pub(super) fn accept(
        &self,
        numbers: &mut PacketNumbers,
        packet: &mut [u8],
        ahead: QuicAhead,
    ) -> Option<Result<u64, QuicDecryptFailure>> {
        let QuicAhead { keys, header, number, opened } = ahead;
        let (front, text) = packet.split_at_mut_checked(header.len)?;
        let now = self.select(numbers, &header);
        if !now.is_ok_and(|(now, used)| now == number && Arc::ptr_eq(used, &keys)) {
            if opened == Some(true) {
                keys.close(number, &header, text);
            }
            return None;
        }
        if opened != Some(true) {
            return Some(Err(QuicDecryptFailure::BadTag));
        }
        front.copy_from_slice(header.as_slice());
        numbers.on_decrypted(header.phase(), number);
        Some(Ok(number))
    }

    /// Returns whether [`Self::encrypt`] can encrypt a packet whose header in plaintext is
    /// `header`.
    pub(super) fn check(
        &self,
        packet: &QuicTxPacket,
        header: &[u8],
    ) -> Result<&KeyGeneration, QuicEncryptFailure> {
        let (at, len) = (usize::from(packet.pn_offset), usize::from(packet.pn_len));
        let first = header[0];
        let number = truncate_number(packet.number);
        let expected = is_short(first) && first & RESERVED == 0 && number_len(first) == len;
        if !expected || header[at..at + len] != number[NUMBER_BYTES_MAX - len..] {
            return Err(QuicEncryptFailure::Malformed);
        }
        let keys = self.generations[usize::from(first & KEY_PHASE != 0)].as_deref();
        keys.ok_or(QuicEncryptFailure::UnknownKeys)
    }

    /// Encrypts a packet in its datagram in place and adds header protection. Requires that
    /// [`fits_datagram`] holds. The packet's key phase bit selects the keys.
    pub(super) fn encrypt(
        &self,
        packet: &QuicTxPacket,
        datagram: &mut [u8],
    ) -> Result<(), QuicEncryptFailure> {
        let (at, len) = (usize::from(packet.pn_offset), usize::from(packet.pn_len));
        let bytes = &mut datagram[usize::from(packet.begin)..];
        let keys = self.check(packet, bytes)?;
        let (header, rest) = bytes.split_at_mut(at + len);
        let (text, tag) = rest.split_at_mut(rest.len() - TAG_BYTES);
        tag.copy_from_slice(&keys.aead.seal(&nonce(&keys.iv, packet.number), header, text));
        let sample = bytes.get(at + SAMPLE_AT..).and_then(|rest| rest.first_chunk());
        let mask = self.header.mask(sample.ok_or(QuicEncryptFailure::Malformed)?);
        bytes[0] ^= mask[0] & PROTECTED;
        for (byte, mask) in bytes[at..at + len].iter_mut().zip(&mask[1..]) {
            *byte ^= mask;
        }
        Ok(())
    }

    /// Heap memory of header protection and of all generations, in bytes.
    #[cfg(test)]
    pub(super) fn heap_bytes(&self) -> (usize, usize) {
        let generation =
            |g: &Arc<KeyGeneration>| size_of::<KeyGeneration>() + size_of_val(&*g.aead);
        let generations = self.generations.iter().flatten().map(generation).sum();
        (size_of_val(&*self.header), generations)
    }
}

impl KeyGeneration {
    /// Decrypts the text of packet `number` in place. Returns false, with unspecified content of
    /// `text`, if the tag is wrong.
    #[inline]
    pub(super) fn open(&self, number: u64, header: &UnprotectedHeader, text: &mut [u8]) -> bool {
        self.aead.open(&nonce(&self.iv, number), header.as_slice(), text).is_ok()
    }

    /// Undoes [`Self::open`]: restores the text as it was received.
    pub(super) fn close(&self, number: u64, header: &UnprotectedHeader, text: &mut [u8]) {
        let (text, tag) = text.split_at_mut(text.len().saturating_sub(TAG_BYTES));
        tag.copy_from_slice(&self.aead.seal(&nonce(&self.iv, number), header.as_slice(), text));
    }
}

impl UnprotectedHeader {
    /// Returns the header.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Returns the key phase bit.
    pub(super) const fn phase(&self) -> bool {
        key_phase(self.bytes[0])
    }
}

/// Returns whether a packet lies in a datagram of `len` bytes, including its sample and tag.
pub(super) fn fits_datagram(packet: &QuicTxPacket, len: usize) -> bool {
    let at = usize::from(packet.begin) + usize::from(packet.pn_offset);
    packet.pn_offset > 0
        && (1..=NUMBER_BYTES_MAX).contains(&usize::from(packet.pn_len))
        && at + AFTER_NUMBER_MIN <= len
}

impl PacketNumbers {
    /// Creates the state of a direction whose first generation has `phase` and whose next number is
    /// `next`.
    pub(super) fn new(next: u64, phase: bool) -> Self {
        let mut firsts = [None, None];
        // How far back the generation reaches is unknown.
        firsts[usize::from(phase)] = Some(0);
        Self { expected: next, firsts }
    }

    /// Records a new generation with key phase `phase`.
    pub(super) fn rekeyed(&mut self, phase: bool) {
        self.firsts[usize::from(phase)] = None;
    }

    fn on_decrypted(&mut self, phase: bool, number: u64) {
        self.expected = self.expected.max(number + 1);
        let first = &mut self.firsts[usize::from(phase)];
        *first = Some(first.map_or(number, |first| first.min(number)));
    }
}
