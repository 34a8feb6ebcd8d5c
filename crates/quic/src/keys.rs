//! Keys of 1-RTT packets: derivation (RFC 9001 sections 5.1 and 6.1), packet protection (section
//! 5.3) and header protection (section 5.4).
//!
//! [`crate::session`] derives them from the traffic secrets that rustls logs. They are used by
//! quinn-proto's crypto objects ([`crate::protection`]), by the driver when it encrypts packets
//! itself, and by the device. Handshake keys are rustls's and not handled here.

use std::sync::Arc;

use abi::crypto::{
    Aead, CryptoProvider, HeaderProtection, NONCE_BYTES, SAMPLE_BYTES, Suite, TAG_BYTES,
};
use abi::quic::QuicKeys;
use rustls::crypto::tls13::{Hkdf, HkdfExpander, OkmBlock};
use rustls::{CipherSuite, Tls13CipherSuite};
use wire::quic::nonce;
use zeroize::Zeroizing;

/// Length of the longest traffic secret, that of SHA-384.
const SECRET_BYTES_MAX: usize = 48;

/// Packet protection keys of one direction and one generation.
pub(crate) struct OneRttPacketKeys {
    aead: Box<dyn Aead>,
    key: Zeroizing<[u8; 32]>,
    iv: [u8; NONCE_BYTES],
}

impl OneRttPacketKeys {
    /// Encrypts `packet` in place. Its header has `header_len` bytes, and the last [`TAG_BYTES`]
    /// are room for the tag.
    pub(crate) fn encrypt_packet(&self, number: u64, packet: &mut [u8], header_len: usize) {
        debug_assert!(packet.len() >= header_len + TAG_BYTES, "no room for the tag");
        let split = packet.split_at_mut_checked(header_len);
        match split.and_then(|(header, rest)| Some((header, rest.split_last_chunk_mut()?))) {
            Some((header, (text, room))) => {
                *room = self.aead.seal(&nonce(&self.iv, number), header, text);
            }
            // Plaintext is never sent.
            None => packet.fill(0),
        }
    }

    /// Decrypts payload and tag in place. Returns the payload's length, or `None` if the tag is
    /// wrong.
    pub(crate) fn decrypt_packet(
        &self,
        number: u64,
        header: &[u8],
        sealed: &mut [u8],
    ) -> Option<usize> {
        self.aead.open(&nonce(&self.iv, number), header, sealed).ok()
    }

    /// Returns the keys in the device's format; `generation` determines the key phase bit.
    pub(crate) fn for_device(&self, generation: u64) -> QuicKeys {
        QuicKeys { phase: generation & 1 == 1, key: self.key.clone(), iv: self.iv }
    }
}

/// Header protection key of one direction.
pub(crate) struct HeaderProtectionKeys {
    protection: Box<dyn HeaderProtection>,
    key: Zeroizing<[u8; 32]>,
}

impl HeaderProtectionKeys {
    /// Returns the key in the device's format.
    pub(crate) fn for_device(&self) -> Zeroizing<[u8; 32]> {
        self.key.clone()
    }

    /// Applies header protection to a packet whose packet number begins at `pn_offset`.
    pub(crate) fn protect(&self, pn_offset: usize, packet: &mut [u8]) {
        let Some(mask) = self.mask(pn_offset, packet) else { return };
        let len = packet.first().map_or(0, |first| usize::from(first & 3) + 1);
        xor_header_mask(&mask, len, pn_offset, packet);
    }

    /// Removes header protection.
    pub(crate) fn unprotect(&self, pn_offset: usize, packet: &mut [u8]) {
        let Some(mask) = self.mask(pn_offset, packet) else { return };
        let bits = if packet[0] & 0x80 == 0 { 0x1f } else { 0x0f };
        let len = usize::from((packet[0] ^ (mask[0] & bits)) & 3) + 1;
        xor_header_mask(&mask, len, pn_offset, packet);
    }

    fn mask(&self, pn_offset: usize, packet: &[u8]) -> Option<[u8; 5]> {
        let sample = packet.get(pn_offset + 4..)?.first_chunk::<SAMPLE_BYTES>()?;
        Some(self.protection.mask(sample))
    }
}

fn xor_header_mask(mask: &[u8; 5], len: usize, pn_offset: usize, packet: &mut [u8]) {
    let Some(first) = packet.first_mut() else { return };
    *first ^= mask[0] & if *first & 0x80 == 0 { 0x1f } else { 0x0f };
    let number = packet.get_mut(pn_offset..).unwrap_or_default();
    for (byte, mask) in number.iter_mut().take(len).zip(&mask[1..]) {
        *byte ^= mask;
    }
}

/// Key schedule of one direction; each key update replaces its secret.
pub(crate) struct KeySchedule {
    hkdf: &'static dyn Hkdf,
    suite: Suite,
    secret: Zeroizing<[u8; SECRET_BYTES_MAX]>,
    len: usize,
}

impl KeySchedule {
    /// Creates a schedule from a traffic secret. `None` if the suite is unknown or the secret too
    /// long.
    pub(crate) fn new(cipher: &'static Tls13CipherSuite, secret: &[u8]) -> Option<Self> {
        let mut all = Zeroizing::new([0; SECRET_BYTES_MAX]);
        all.get_mut(..secret.len())?.copy_from_slice(secret);
        let suite = suite_of(cipher)?;
        Some(Self { hkdf: cipher.hkdf_provider, suite, secret: all, len: secret.len() })
    }

    /// Returns the AEAD.
    pub(crate) const fn suite(&self) -> Suite {
        self.suite
    }

    /// Derives the header protection key, which key updates do not change.
    pub(crate) fn header(&self, crypto: &dyn CryptoProvider) -> Option<HeaderProtectionKeys> {
        let key = self.key(b"quic hp")?;
        let protection = crypto.header_protection(self.suite, &key[..self.suite.key_bytes()])?;
        Some(HeaderProtectionKeys { protection, key })
    }

    /// Derives the keys of the current generation and advances to the next (RFC 9001 section 6.1).
    pub(crate) fn next(&mut self, crypto: &dyn CryptoProvider) -> Option<Arc<OneRttPacketKeys>> {
        let key = self.key(b"quic key")?;
        let mut iv = [0; NONCE_BYTES];
        self.expand(b"quic iv", &mut iv)?;
        let aead = crypto.aead(self.suite, &key[..self.suite.key_bytes()])?;
        let mut next = Zeroizing::new([0; SECRET_BYTES_MAX]);
        self.expand(b"quic ku", next.get_mut(..self.len)?)?;
        self.secret = next;
        Some(Arc::new(OneRttPacketKeys { aead, key, iv }))
    }

    fn key(&self, label: &[u8]) -> Option<Zeroizing<[u8; 32]>> {
        let mut key = Zeroizing::new([0; 32]);
        self.expand(label, &mut key[..self.suite.key_bytes()])?;
        Some(key)
    }

    fn expand(&self, label: &[u8], out: &mut [u8]) -> Option<()> {
        let secret = OkmBlock::new(&self.secret[..self.len]);
        expand_label(&*self.hkdf.expander_for_okm(&secret), label, out)
    }
}

/// HKDF-Expand-Label with an empty context (RFC 8446 section 7.1).
pub(crate) fn expand_label(
    expander: &dyn HkdfExpander,
    label: &[u8],
    out: &mut [u8],
) -> Option<()> {
    let len = u16::try_from(out.len()).ok()?.to_be_bytes();
    let label_len = [u8::try_from(label.len() + 6).ok()?];
    expander.expand_slice(&[&len, &label_len, b"tls13 ", label, &[0]], out).ok()
}

fn suite_of(cipher: &Tls13CipherSuite) -> Option<Suite> {
    match cipher.common.suite {
        CipherSuite::TLS13_AES_128_GCM_SHA256 => Some(Suite::Aes128Gcm),
        CipherSuite::TLS13_AES_256_GCM_SHA384 => Some(Suite::Aes256Gcm),
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256 => Some(Suite::ChaCha20Poly1305),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
        let digit = |b: u8| char::from(b).to_digit(16).unwrap();
        digits.chunks(2).map(|d| u8::try_from(digit(d[0]) * 16 + digit(d[1])).unwrap()).collect()
    }

    /// RFC 9001 section 5.3: the nonce is the IV XORed with the 62-bit packet number,
    /// right-aligned. Here both are integers.
    #[test]
    fn nonces_of_large_packet_numbers() {
        let rustls::SupportedCipherSuite::Tls13(cipher) =
            rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
        else {
            unreachable!()
        };
        let mut schedule = KeySchedule::new(cipher, &[7; 32]).unwrap();
        let keys = schedule.next(&crypto::Provider).unwrap();
        let aead = crypto::Provider.aead(Suite::Aes128Gcm, &keys.key[..16]).unwrap();
        let iv = keys.iv.iter().fold(0_u128, |iv, byte| iv << 8 | u128::from(*byte));
        for power in [0, 31, 32, 33, 40, 61] {
            for number in [(1_u64 << power) - 1, 1 << power] {
                let nonce = (iv ^ u128::from(number)).to_be_bytes();
                let nonce: [u8; NONCE_BYTES] = nonce[4..].try_into().unwrap();
                let mut sealed = [hex("40000000"), vec![5; 20], vec![0; TAG_BYTES]].concat();
                keys.encrypt_packet(number, &mut sealed, 4);
                let (head, text) = sealed.split_at_mut(4);
                let mut copy = text.to_vec();
                assert_eq!(aead.open(&nonce, head, &mut copy), Ok(20), "{number:#x}");
                assert_eq!(keys.decrypt_packet(number, head, text), Some(20));
                assert_eq!(wire::quic::nonce(&keys.iv, number), nonce);
            }
        }
    }

    /// RFC 9001 appendix A.5: a short-header packet with ChaCha20-Poly1305, and the next secret.
    #[test]
    fn the_sample_of_rfc_9001() {
        let rustls::SupportedCipherSuite::Tls13(cipher) =
            rustls::crypto::aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256
        else {
            unreachable!()
        };
        let secret = hex("9ac312a7f877468ebe69422748ad00a15443f18203a07d6060f688f30f21632b");
        let mut schedule = KeySchedule::new(cipher, &secret).unwrap();
        let header = schedule.header(&crypto::Provider).unwrap();
        let keys = schedule.next(&crypto::Provider).unwrap();
        assert_eq!(
            keys.key[..],
            hex("c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8")
        );
        assert_eq!(keys.iv[..], hex("e0459b3474bdd0e44a41c144"));
        assert_eq!(
            schedule.secret[..32],
            hex("1223504755036d556342ee9361d253421a826c9ecdf3c7148684b36b714881f9")
        );
        let mut packet = [hex("4200bff401"), vec![0; 16]].concat();
        keys.encrypt_packet(654_360_564, &mut packet, 4);
        header.protect(1, &mut packet);
        assert_eq!(packet, hex("4cfe4189655e5cd55c41f69080575d7999c25a5bfb"));
        header.unprotect(1, &mut packet);
        assert_eq!(packet[..4], hex("4200bff4"));
        let (head, sealed) = packet.split_at_mut(4);
        assert_eq!(keys.decrypt_packet(654_360_564, head, sealed), Some(1));
        assert_eq!(sealed[0], 1);
    }
}
