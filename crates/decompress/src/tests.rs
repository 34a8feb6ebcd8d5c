//! Tests of the decoders: round trips in any pieces, what follows an end, damage.

use std::io::Write as _;

use abi::decompress::CompressionFormat::{Gzip, Zstd};
use abi::decompress::{CompressionFormat, DecodeFault, Decoder, DecoderProvider as _};
use flate2::GzBuilder;
use flate2::write::GzEncoder;
use proptest::prelude::*;
use zstd_safe::{CCtx, CParameter};

use crate::Provider;

fn decoder(format: CompressionFormat) -> Box<dyn Decoder> {
    Provider.decoder(format).expect("there is memory")
}

fn compress(format: CompressionFormat, bytes: &[u8]) -> Vec<u8> {
    match format {
        Gzip => {
            let header = GzBuilder::new().filename("name").comment("comment").extra(*b"extra");
            let mut encoder: GzEncoder<_> = header.write(Vec::new(), flate2::Compression::new(6));
            encoder.write_all(bytes).expect("memory");
            encoder.finish().expect("memory")
        }
        Zstd => zstd(bytes, &[CParameter::ChecksumFlag(true)]),
    }
}

fn zstd(bytes: &[u8], parameters: &[CParameter]) -> Vec<u8> {
    let mut context = CCtx::create();
    for parameter in parameters {
        context.set_parameter(*parameter).expect("a parameter");
    }
    let mut out = vec![0; zstd_safe::compress_bound(bytes.len())];
    let len = context.compress2(&mut out[..], bytes).expect("there is room");
    out.truncate(len);
    out
}

/// Decompresses `content` with pieces of input and output of those lengths. `None` if the content
/// breaks off.
fn decode(
    format: CompressionFormat,
    content: &[u8],
    (input_bytes, output_bytes): (usize, usize),
) -> Result<Option<Vec<u8>>, DecodeFault> {
    let mut decoder = decoder(format);
    let (mut at, mut all, mut output) = (0, Vec::new(), vec![0; output_bytes]);
    loop {
        let input = &content[at..content.len().min(at + input_bytes)];
        let progress = decoder.decode(input, &mut output)?;
        at += progress.consumed;
        all.extend_from_slice(&output[..progress.produced]);
        let stalled = (progress.consumed, progress.produced) == (0, 0);
        assert!(!stalled || input.is_empty(), "no progress at {at}");
        if at == content.len() && (progress.is_complete || stalled) {
            return Ok(progress.is_complete.then_some(all));
        }
    }
}

fn whole(format: CompressionFormat, content: &[u8]) -> Result<Option<Vec<u8>>, DecodeFault> {
    decode(format, content, (content.len().max(1), 1 << 16))
}

#[test]
fn members_and_frames_follow_each_other() {
    for format in [Gzip, Zstd] {
        let (a, b, empty) =
            (compress(format, b"one, "), compress(format, b"two"), compress(format, b""));
        let all = [&empty[..], &a, &empty, &b, &empty].concat();
        for pieces in [(1, 1), (7, 3), (1000, 1000)] {
            let text = decode(format, &all, pieces);
            assert_eq!(text, Ok(Some(b"one, two".to_vec())), "{format:?} {pieces:?}");
        }
        // More than begin in one call.
        let many = [a.repeat(1000), empty.repeat(1000)].concat();
        assert_eq!(whole(format, &many), Ok(Some(b"one, ".repeat(1000))), "{format:?}");
    }
    let skippable = [&0x184d_2a53_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"abc"].concat();
    let framed = [&skippable[..], &compress(Zstd, b"text"), &skippable].concat();
    assert_eq!(decode(Zstd, &framed, (1, 1)), Ok(Some(b"text".to_vec())));
}

#[test]
fn content_that_breaks_off_is_incomplete() {
    for format in [Gzip, Zstd] {
        let all = compress(format, &b"some text ".repeat(100));
        for len in 0..all.len() {
            assert_eq!(whole(format, &all[..len]), Ok(None), "{format:?}: {len}");
        }
        let more = [&all[..], &all[..8]].concat();
        assert_eq!(whole(format, &more), Ok(None), "{format:?}: a second begins");
    }
}

#[test]
fn damage_and_other_bytes_are_found() {
    for format in [Gzip, Zstd] {
        let all = compress(format, &b"some text ".repeat(100));
        for bad in [&b"\0\0\0\0\0\0"[..], b"garbage", b"\x1f\x8b\x07\0\0\0\0\0\0\0"] {
            let more = [&all[..], bad].concat();
            assert_eq!(whole(format, &more), Err(DecodeFault::Malformed), "{format:?} {bad:?}");
            assert_eq!(whole(format, bad), Err(DecodeFault::Malformed), "{format:?} {bad:?}");
        }
        // The checksum, and with gzip the length.
        for at in all.len() - 4..all.len() {
            let mut bad = all.clone();
            bad[at] ^= 1;
            assert_eq!(whole(format, &bad), Err(DecodeFault::Malformed), "{format:?} {at}");
        }
    }
    let mut bad = compress(Gzip, b"text");
    let crc = bad.len() - 8;
    bad[crc] ^= 1;
    assert_eq!(whole(Gzip, &bad), Err(DecodeFault::Malformed));
}

#[test]
fn windows_are_bounded() {
    // Long enough that the frame does not become a single segment with a smaller window.
    let bytes = vec![7; (8 << 20) + 1];
    let content_size = CParameter::ContentSizeFlag(false);
    let with = |log| zstd(&bytes, &[content_size, CParameter::WindowLog(log)]);
    assert_eq!(
        decode(Zstd, &with(23), (5, 1 << 17)).map(|all| all.as_deref() == Some(&bytes)),
        Ok(true)
    );
    assert_eq!(decode(Zstd, &with(24), (5, 1 << 17)), Err(DecodeFault::WindowTooLarge));
}

proptest! {
    #[test]
    fn any_content_returns_in_any_pieces(
        parts in proptest::collection::vec((any::<u8>(), 0..5000_usize), 0..6),
        random in proptest::collection::vec(any::<u8>(), 0..3000),
        input_bytes in 1..4000_usize,
        output_bytes in 1..4000_usize,
    ) {
        let mut bytes = random;
        bytes.extend(parts.iter().flat_map(|&(byte, count)| std::iter::repeat_n(byte, count)));
        for format in [Gzip, Zstd] {
            let content = compress(format, &bytes);
            let text = decode(format, &content, (input_bytes, output_bytes));
            prop_assert!(text == Ok(Some(bytes.clone())), "{:?}", format);
        }
    }

    /// Damaged content causes no panic and no endless loop, and never another text of full length
    /// that looks complete, since the checksums tell.
    #[test]
    fn damage_does_not_pass(
        bytes in proptest::collection::vec(0..4_u8, 1..2000),
        at in any::<proptest::sample::Index>(),
        bit in 0..8_u32,
        input_bytes in 1..500_usize,
    ) {
        for format in [Gzip, Zstd] {
            let mut content = compress(format, &bytes);
            let at = at.index(content.len());
            content[at] ^= 1 << bit;
            if let Ok(Some(text)) = decode(format, &content, (input_bytes, 300)) {
                // A header field without meaning for the text, or a skippable frame.
                prop_assert!(text == bytes || text.is_empty(), "{:?} {}", format, at);
            }
        }
    }

    #[test]
    fn bytes_that_are_no_content_cause_no_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        zstd in any::<bool>(),
    ) {
        let (format, magic) = match zstd {
            true => (Zstd, &[0x28, 0xb5, 0x2f, 0xfd][..]),
            false => (Gzip, &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..]),
        };
        let content = [magic, &bytes].concat();
        let _ = decode(format, &content, (100, 100));
    }
}
