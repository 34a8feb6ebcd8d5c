//! Any partition of a text, in any order, has the result of aws-lc for the whole text.

use abi::crypto::{Aead, AuthSum, BadTag, CryptoProvider, NONCE_BYTES, Suite, TAG_BYTES};
use aes::cipher::{BlockCipherEncrypt, KeyInit};
use outboard_crypto::Provider;
use proptest::prelude::*;

const SUITES: [Suite; 3] = [Suite::Aes128Gcm, Suite::Aes256Gcm, Suite::ChaCha20Poly1305];

#[derive(Clone, Copy, Debug)]
enum CipherDirection {
    Seal,
    Open,
}

/// A text and its encryption by aws-lc.
struct RangeCase {
    key: Box<dyn Aead>,
    nonce: [u8; NONCE_BYTES],
    aad: Vec<u8>,
    text: Vec<u8>,
    sealed: Vec<u8>,
    tag: [u8; TAG_BYTES],
}

impl RangeCase {
    fn new(suite: Suite, key: &[u8], nonce: [u8; NONCE_BYTES], aad: &[u8], text: &[u8]) -> Self {
        let key = Provider.aead(suite, key).unwrap();
        let mut sealed = text.to_vec();
        let tag = key.seal(&nonce, aad, &mut sealed);
        Self { key, nonce, aad: aad.to_vec(), text: text.to_vec(), sealed, tag }
    }

    /// Processes `ranges` one by one, each into the sum that it names, and compares the results.
    /// Each range is processed as a run of pieces of `piece` bytes.
    fn check(&self, direction: CipherDirection, ranges: &[(usize, usize, usize)], piece: usize) {
        let (from, to) = match direction {
            CipherDirection::Seal => (&self.text, &self.sealed),
            CipherDirection::Open => (&self.sealed, &self.text),
        };
        let mut buffer = from.clone();
        let mut sums = [AuthSum::default(); 3];
        let mut cipher = self.key.ranges();
        for &(start, end, sum) in ranges {
            cipher.seek(&self.nonce, &sums[sum], start as u64);
            for range in buffer[start..end].chunks_mut(piece) {
                match direction {
                    CipherDirection::Seal => cipher.seal(range),
                    CipherDirection::Open => cipher.open(range),
                }
            }
            sums[sum] = cipher.end_run();
        }
        assert!(buffer == *to, "{direction:?}: other bytes than the whole text's");
        let mut sum = AuthSum::default();
        for other in &sums {
            self.key.merge(&mut sum, other);
        }
        let tag = self.key.finish(&self.nonce, &self.aad, self.text.len() as u64, &sum);
        assert_eq!(tag, self.tag, "{direction:?}: another tag than the whole text's");
    }

    fn check_both(&self, ranges: &[(usize, usize, usize)]) {
        for direction in [CipherDirection::Seal, CipherDirection::Open] {
            for piece in [100, 331, usize::MAX] {
                self.check(direction, ranges, piece);
            }
        }
    }
}

/// Decrypts a range as a run of its own.
fn process(
    key: &dyn Aead,
    nonce: &[u8; NONCE_BYTES],
    sum: &AuthSum,
    at: u64,
    range: &mut [u8],
) -> AuthSum {
    let mut cipher = key.ranges();
    cipher.seek(nonce, sum, at);
    cipher.open(range);
    cipher.end_run()
}

/// Returns a partition of `len` bytes at `cuts`, in the order of the text, each range with one of
/// three sums.
fn partition(len: usize, cuts: &[(usize, usize)]) -> Vec<(usize, usize, usize)> {
    let mut at: Vec<_> = cuts.iter().map(|&(cut, sum)| (cut % (len + 1), sum)).collect();
    at.sort_unstable();
    at.push((len, 0));
    let mut start = 0;
    let range = |&(end, sum): &(usize, usize)| (std::mem::replace(&mut start, end), end, sum);
    at.iter().map(range).collect()
}

fn bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..len).map(|_| next()).collect()
}

/// Generates texts of up to 20,000 bytes, among them many short ones, with up to 24 cuts.
fn cuts() -> impl Strategy<Value = (usize, Vec<(usize, usize)>, u64)> {
    let len = prop_oneof![0..100_usize, 0..3000_usize, 0..=20_000_usize];
    (len, prop::collection::vec((any::<usize>(), 0..3_usize), 0..24), any::<u64>())
}

fn shuffled() -> impl Strategy<Value = (usize, Vec<(usize, usize, usize)>, u64)> {
    cuts().prop_flat_map(|(len, cuts, seed)| {
        (Just(len), Just(partition(len, &cuts)).prop_shuffle(), Just(seed))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn any_partition_in_any_order_is_the_whole(
        (len, ranges, seed) in shuffled(),
        suite in 0..3_usize,
        aad in 0..=64_usize,
    ) {
        let suite = SUITES[suite];
        let (key, aad) = (bytes(suite.key_bytes(), seed ^ 1), bytes(aad, seed ^ 2));
        let nonce = std::array::from_fn(|at| seed.to_le_bytes()[at % 8]);
        RangeCase::new(suite, &key, nonce, &aad, &bytes(len, seed ^ 4)).check_both(&ranges);
    }

    #[test]
    fn segments_in_order_are_the_whole((len, cuts, seed) in cuts(), suite in 0..3_usize) {
        let suite = SUITES[suite];
        let key = bytes(suite.key_bytes(), seed ^ 8);
        let ranges: Vec<_> =
            partition(len, &cuts).iter().map(|&(start, end, _)| (start, end, 0)).collect();
        RangeCase::new(suite, &key, [3; 12], b"header", &bytes(len, seed)).check_both(&ranges);
    }
}

#[test]
fn single_bytes_in_any_order() {
    for suite in SUITES {
        for len in [0, 1, 15, 16, 17, 33, 400] {
            let key = vec![9; suite.key_bytes()];
            let case = RangeCase::new(suite, &key, [5; 12], b"aad", &bytes(len, 77));
            let forward: Vec<_> = (0..len).map(|at| (at, at + 1, 0)).collect();
            let backward: Vec<_> = forward.iter().rev().copied().collect();
            // 7 divides none of the lengths but 0.
            let jumping: Vec<_> =
                forward.iter().map(|&(at, ..)| at * 7 % len).map(|at| (at, at + 1, 1)).collect();
            for ranges in [forward, backward, jumping] {
                case.check_both(&ranges);
            }
        }
    }
}

/// Keys, nonces and texts of all zeros and all ones, with lengths around a block's.
#[test]
fn extreme_keys_and_texts() {
    for suite in SUITES {
        for (key, text) in [(0, 0), (0, 255), (255, 0), (255, 255)] {
            for len in (0..70).chain([255, 256, 257, 1024, 16_384, 16_385]) {
                let key = vec![key; suite.key_bytes()];
                let case = RangeCase::new(suite, &key, [key[0]; 12], &[text; 13], &vec![text; len]);
                case.check_both(&[(len / 3, len, 0), (0, len / 3, 0)]);
            }
        }
    }
}

/// More blocks than 16 bits can count.
#[test]
fn long_texts() {
    const LEN: usize = (1 << 20) + 70_001;
    for suite in SUITES {
        let case = RangeCase::new(suite, &vec![1; suite.key_bytes()], [2; 12], b"", &bytes(LEN, 5));
        let (a, b, c) = (100, (1 << 20) - 33, (1 << 20) + 3);
        case.check_both(&[(c, LEN, 0), (a, b, 1), (0, a, 2), (b, c, 0)]);
    }
}

/// Encryption to another buffer has the result of encryption in place.
#[test]
fn copies_are_the_same() {
    for suite in SUITES {
        for len in [0, 1, 15, 16, 17, 1000, 16_384] {
            let case =
                RangeCase::new(suite, &vec![7; suite.key_bytes()], [1; 12], b"h", &bytes(len, 3));
            for last in 0..=len.min(1) {
                let (text, last) = case.text.split_at(len - last);
                let mut out = vec![0; len + TAG_BYTES];
                case.key.seal_copy(&case.nonce, &case.aad, text, last, &mut out);
                assert_eq!(out, [&case.sealed[..], &case.tag].concat());
            }
        }
    }
}

/// A text whose tag is wrong is restored, and a correct one keeps its tag. Runs before and after,
/// which share the context, have their own nonces.
#[test]
fn whole_texts_with_a_wrong_tag_are_restored() {
    for suite in SUITES {
        for len in [0, 1, 15, 16, 17, 1000, 16_385] {
            let case =
                RangeCase::new(suite, &vec![7; suite.key_bytes()], [1; 12], b"h", &bytes(len, 3));
            let sealed = [&case.sealed[..], &case.tag].concat();
            let mut ranges = case.key.ranges();
            let mut copy = Vec::new();
            let mut open = |sealed: &mut [u8], aad: &[u8]| {
                // A run that is abandoned.
                ranges.seek(&[9; 12], &AuthSum::default(), 5);
                ranges.open(&mut [0; 500]);
                copy.clear();
                ranges.open_whole(&case.nonce, aad, sealed, &mut copy)
            };
            for bit in [0, len * 4, len * 8, len * 8 + 127] {
                let mut changed = sealed.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let received = changed.clone();
                assert_eq!(open(&mut changed, b"h"), Err(BadTag), "{suite:?} {len} {bit}");
                assert!(changed == received, "{suite:?} {len} {bit}: not restored");
            }
            let mut opened = sealed.clone();
            assert_eq!(open(&mut opened, b"g"), Err(BadTag), "other associated data");
            assert!(opened == sealed, "{suite:?} {len}: not restored");
            assert_eq!(open(&mut opened, b"h"), Ok(len));
            assert!(opened == [&case.text[..], &case.tag].concat(), "{suite:?} {len}");
            assert_eq!(open(&mut [0; TAG_BYTES - 1], b"h"), Err(BadTag), "shorter than a tag");
            assert_eq!(ranges.end_run().words(), AuthSum::default().words(), "no run is left");
            ranges.seek(&case.nonce, &AuthSum::default(), 0);
            let mut text = case.sealed.clone();
            ranges.open(&mut text);
            let tag = case.key.finish(&case.nonce, b"h", len as u64, &ranges.end_run());
            assert!((text, tag) == (case.text, case.tag), "{suite:?} {len}: a run after it");
        }
    }
}

/// The tag depends on everything added: a changed byte, a changed header, a missing or moved range.
#[test]
fn other_bytes_give_other_tags() {
    for suite in SUITES {
        let case =
            RangeCase::new(suite, &vec![4; suite.key_bytes()], [6; 12], b"h", &bytes(3000, 9));
        let tag = |ranges: &[(usize, &[u8])], aad: &[u8], len: u64| {
            let mut sum = AuthSum::default();
            for &(at, range) in ranges {
                sum = process(&*case.key, &case.nonce, &sum, at as u64, &mut range.to_vec());
            }
            case.key.finish(&case.nonce, aad, len, &sum)
        };
        let (a, b) = case.sealed.split_at(1448);
        assert_eq!(tag(&[(1448, b), (0, a)], b"h", 3000), case.tag);
        assert_ne!(tag(&[(1448, b)], b"h", 3000), case.tag);
        assert_ne!(tag(&[(1448, b), (0, a)], b"g", 3000), case.tag);
        assert_ne!(tag(&[(1448, b), (0, a)], b"h", 3001), case.tag);
        assert_ne!(tag(&[(1448, b), (0, a)], b"h", 2000), case.tag);
        assert_ne!(tag(&[(1449, b), (0, a)], b"h", 3000), case.tag);
        for at in [0, 7, 1447, 1448, 2999] {
            let mut changed = case.sealed.clone();
            changed[at] ^= 1;
            let (a, b) = changed.split_at(1448);
            assert_ne!(tag(&[(1448, b), (0, a)], b"h", 3000), case.tag);
        }
    }
}

/// The last blocks for which AES-GCM has counters, and the bytes after them.
#[test]
fn a_text_ends_with_its_counter() {
    const LAST: u64 = (1 << 36) - 32;
    let key = Provider.aead(Suite::Aes128Gcm, &[3; 16]).unwrap();
    let mut range = [0; 60];
    key.apply_keystream(&[8; 12], LAST - 20, &mut range);
    let aes = aes::Aes128::new(&[3; 16].into());
    for (counter, from) in [(u32::MAX - 1, 0), (u32::MAX, 4)] {
        let mut block = [8; 16];
        block[12..].copy_from_slice(&counter.to_be_bytes());
        let mut block = block.into();
        aes.encrypt_block(&mut block);
        let skip = if from == 0 { 12 } else { 0 };
        assert_eq!(range[from..from + 16 - skip], block[skip..]);
    }
    assert_eq!(range[20..], [0; 40], "nothing leaves unsealed");

    // A long range up to the last block agrees with short ones; one beyond it leaves as zeros.
    let mut cipher = key.ranges();
    let mut long = bytes(1000, 4);
    let mut short = long.clone();
    cipher.seek(&[8; 12], &AuthSum::default(), LAST - 1000);
    cipher.open(&mut long);
    let mut sums = [cipher.end_run(), AuthSum::default()];
    for (n, piece) in short.chunks_mut(100).enumerate() {
        let at = LAST - 1000 + n as u64 * 100;
        sums[1] = process(&*key, &[8; 12], &sums[1], at, piece);
    }
    assert_eq!(long, short);
    let [tag, same] = sums.map(|sum| key.finish(&[8; 12], b"", LAST, &sum));
    assert_eq!(tag, same);
    cipher.seek(&[8; 12], &AuthSum::default(), LAST - 1000);
    for range in long.chunks_mut(500) {
        cipher.seal(range);
    }
    cipher.seal(&mut short);
    assert_eq!(short, [0; 1000], "nothing leaves unsealed");

    // Counters carry through all their bytes.
    for counter in [0x100_u32, 0x1_0000, 0x100_0000] {
        let mut range = [0; 32];
        key.apply_keystream(&[8; 12], (u64::from(counter) - 3) * 16, &mut range);
        for (half, counter) in range.chunks(16).zip([counter - 1, counter]) {
            let mut block = [8; 16];
            block[12..].copy_from_slice(&counter.to_be_bytes());
            let mut block = block.into();
            aes.encrypt_block(&mut block);
            assert_eq!(half, &block[..]);
        }
    }

    let chacha = Provider.aead(Suite::ChaCha20Poly1305, &[3; 32]).unwrap();
    let mut range = [1; 60];
    chacha.apply_keystream(&[8; 12], (1 << 38) - 64 - 20, &mut range);
    assert_eq!(range[20..], [0; 40], "nothing leaves unsealed");
    assert_ne!(range[..20], [1; 20], "sealed up to the end");
    for key in [&key, &chacha] {
        let mut range = [1; 8];
        key.apply_keystream(&[8; 12], u64::MAX - 3, &mut range);
        assert_eq!(range, [0; 8]);
        let mut sum = AuthSum::default();
        sum = process(&**key, &[8; 12], &sum, u64::MAX - 3, &mut range);
        let _ = key.finish(&[8; 12], &[], 8, &sum);
    }
}

fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<_> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).unwrap()).collect()
}

/// Checks the ranges against a published result, not only against the whole text.
fn vector(suite: Suite, [key, nonce, aad, text, sealed, tag]: [&str; 6]) {
    let (text, nonce) = (hex(text), hex(nonce).try_into().unwrap());
    let case = RangeCase::new(suite, &hex(key), nonce, &hex(aad), &text);
    assert_eq!((case.sealed.clone(), case.tag.to_vec()), (hex(sealed), hex(tag)));
    for cut in 0..=text.len() {
        case.check_both(&[(0, cut, 0), (cut, text.len(), 0)]);
        case.check_both(&[(cut, text.len(), 0), (0, cut, 0)]);
    }
}

/// Test cases 1, 2, 4, 13, 14 and 16 of McGrew and Viega, "The Galois/Counter Mode of Operation",
/// to which NIST's validation refers.
#[test]
fn gcm_vectors() {
    let zeros = "00000000000000000000000000000000";
    let nonce = "000000000000000000000000";
    let tag = "58e2fccefa7e3061367f1d57a4e7455a";
    vector(Suite::Aes128Gcm, [zeros, nonce, "", "", "", tag]);
    let (sealed, tag) = ("0388dace60b6a392f328c2b971b2fe78", "ab6e47d42cec13bdf53a67b21257bddf");
    vector(Suite::Aes128Gcm, [zeros, nonce, "", zeros, sealed, tag]);
    let key = [zeros, zeros].concat();
    let tag = "530f8afbc74536b9a963b4f1c4cb738b";
    vector(Suite::Aes256Gcm, [&key, nonce, "", "", "", tag]);
    let (sealed, tag) = ("cea7403d4d606b6e074ec5d3baf39d18", "d0d1c8a799996bf0265b98b5d48ab919");
    vector(Suite::Aes256Gcm, [&key, nonce, "", zeros, sealed, tag]);

    let key = "feffe9928665731c6d6a8f9467308308";
    let nonce = "cafebabefacedbaddecaf888";
    let aad = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    let text = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72
        1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39";
    let sealed = "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e
        21d514b25466931c7d8f6a5aac84aa051ba30b396a0aac973d58e091";
    let tag = "5bc94fbc3221a5db94fae95ae7121a47";
    vector(Suite::Aes128Gcm, [key, nonce, aad, text, sealed, tag]);
    let key = [key, key].concat();
    let sealed = "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa
        8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662";
    let tag = "76fc6ece0f4e1768cddf8853bb2d551b";
    vector(Suite::Aes256Gcm, [&key, nonce, aad, text, sealed, tag]);
}

/// RFC 8439 section 2.8.2.
#[test]
fn chacha_vector() {
    let key = "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f";
    let text = b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for \
        the future, sunscreen would be it.";
    let text: String = text.iter().map(|byte| format!("{byte:02x}")).collect();
    let sealed = "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6
        3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36
        92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc
        3ff4def08e4b7a9de576d26586cec64b6116";
    let (nonce, aad) = ("070000004041424344454647", "50515253c0c1c2c3c4c5c6c7");
    let tag = "1ae10b594f09e26a7e902ecbd0600691";
    vector(Suite::ChaCha20Poly1305, [key, nonce, aad, &text, sealed, tag]);
}
