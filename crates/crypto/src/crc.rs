//! CRC32C (Castagnoli; RFC 3385; the digests of NVMe/TCP) by crc-fast, with the instructions that
//! this CPU has.

use base::low32;
use crc_fast::{CrcAlgorithm, Digest, checksum_combine, crc32_iscsi};

/// Inversion of the CRC register before and after.
const INVERT: u64 = 0xffff_ffff;

/// Returns the CRC of a text with CRC `crc` followed by `bytes`.
pub(crate) fn extend(crc: u32, bytes: &[u8]) -> u32 {
    if crc == 0 {
        // Headers, and the start of every digest: creating a `Digest` writes 200 bytes.
        return crc32_iscsi(bytes);
    }
    let state = u64::from(crc) ^ INVERT;
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, state);
    digest.update(bytes);
    low32(digest.finalize())
}

/// Returns the CRC of two texts, the second `len` bytes long, one after the other.
pub(crate) fn combine(first: u32, second: u32, len: u64) -> u32 {
    let both = checksum_combine(CrcAlgorithm::Crc32Iscsi, first.into(), second.into(), len);
    low32(both)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn is_the_digest_of_rfc_3720() {
        // RFC 3720 appendix B.4.
        assert_eq!(extend(0, &[0; 32]), 0x8a91_36aa);
        assert_eq!(extend(0, &[0xff; 32]), 0x62a8_ab43);
        let rising: Vec<u8> = (0..32).collect();
        assert_eq!(extend(0, &rising), 0x46dd_794e);
        assert_eq!(extend(0, b"123456789"), 0xe306_9283);
        assert_eq!(extend(0, &[]), 0);
    }

    proptest! {
        #[test]
        fn extends_and_combines(
            text in proptest::collection::vec(any::<u8>(), 0..3000),
            cut: usize,
        ) {
            let (first, second) = text.split_at(cut % (text.len() + 1));
            let whole = extend(0, &text);
            prop_assert_eq!(extend(extend(0, first), second), whole);
            let (a, b) = (extend(0, first), extend(0, second));
            prop_assert_eq!(combine(a, b, second.len() as u64), whole);
        }
    }
}
