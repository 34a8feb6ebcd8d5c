//! Measures the encryption and decryption rate of a core, for whole texts and for segments.
//!
//! `cargo run --release -p outboard-crypto --example speed`. Each figure is the best of several
//! rounds, so that other load on the machine matters little. "aws-lc" is the library's own
//! interface.

use std::hint::black_box;
use std::time::Duration;

use abi::crypto::{Aead, AeadRanges, AuthSum, CryptoProvider, Suite};
use aws_lc_rs::aead;
use outboard_crypto::Provider;

const RECORD: usize = 16_384;
const SEGMENT: usize = 1448;
const PACKET: usize = 1200;
const NONCE: [u8; 12] = [5; 12];
const HEADER: [u8; 5] = [23, 3, 3, 0x40, 0x10];
const ROUNDS: usize = 25;
const ROUND: Duration = Duration::from_millis(12);

fn main() {
    let suites = [
        ("AES-128-GCM", Suite::Aes128Gcm, &aead::AES_128_GCM),
        ("AES-256-GCM", Suite::Aes256Gcm, &aead::AES_256_GCM),
        ("ChaCha20-Poly1305", Suite::ChaCha20Poly1305, &aead::CHACHA20_POLY1305),
    ];
    for (name, suite, algorithm) in suites {
        println!("{name}");
        let bytes = vec![1; suite.key_bytes()];
        let library = aead::LessSafeKey::new(aead::UnboundKey::new(algorithm, &bytes).unwrap());
        for len in [RECORD, SEGMENT] {
            let rate = gigabytes(len, || seal_by_library(&library, len));
            println!("  {rate:6.2} GB/s  aws-lc, {len} bytes at once");
        }
        let key = Provider.aead(suite, &bytes).unwrap();
        let mut text = vec![1; RECORD];
        let rate = gigabytes(RECORD, || {
            black_box(key.seal(&NONCE, &HEADER, &mut text));
        });
        println!("  {rate:6.2} GB/s  whole record");
        let in_order: Vec<_> = (0..RECORD).step_by(SEGMENT).collect();
        // 5 and 12, the number of segments, have no common divisor.
        let shuffled: Vec<_> = (0..12).map(|n| n * 5 % 12 * SEGMENT).collect();
        for (order, starts) in [("in order", in_order), ("shuffled", shuffled)] {
            let mut cipher = key.ranges();
            let rate = gigabytes(RECORD, || open_segments(&*key, &mut *cipher, &starts, &mut text));
            println!("  {rate:6.2} GB/s  segments of {SEGMENT} bytes, {order}");
        }
        parts(&*key, &mut text);
        packets(&*key);
    }
}

/// Measures decryption of a QUIC packet that stays unchanged if its tag is wrong.
fn packets(key: &dyn Aead) {
    let mut sealed = vec![1; PACKET];
    let tag = key.seal(&NONCE, &HEADER, &mut sealed[..PACKET - 16]);
    sealed[PACKET - 16..].copy_from_slice(&tag);
    let (mut packet, mut kept) = (sealed.clone(), vec![0; PACKET]);
    let rate = gigabytes(PACKET, || {
        packet.copy_from_slice(&sealed);
        kept.copy_from_slice(&packet);
        black_box(key.open(&NONCE, &HEADER, &mut packet)).expect("it verifies");
    });
    println!("  {rate:6.2} GB/s  a packet of {PACKET} bytes, copied and opened");
}

/// Measures a segment's keystream, one segment, and short ranges.
fn parts(key: &dyn Aead, text: &mut [u8]) {
    let rate = gigabytes(SEGMENT, || key.apply_keystream(&NONCE, 24, &mut text[..SEGMENT]));
    println!("  {rate:6.2} GB/s  one segment's keystream alone");
    let mut cipher = key.ranges();
    let empty = AuthSum::default();
    for (at, what) in [(0, "from its record's beginning"), (24, "alone, within a block")] {
        let rate = gigabytes(SEGMENT, || {
            cipher.seek(&NONCE, &empty, at);
            cipher.open(&mut text[..SEGMENT]);
            black_box(cipher.end_run());
        });
        println!("  {rate:6.2} GB/s  one segment {what}");
    }
    for len in [64, 128, 192, 256, 384, 512] {
        let rate = gigabytes(len, || {
            cipher.seek(&NONCE, &empty, 0);
            cipher.open(&mut text[..len]);
            black_box(cipher.end_run());
        });
        println!("  {:6.1} ns    a range of {len} bytes", len as f64 / rate);
    }
}

/// Opens a record by segments that begin at `starts`; adjacent ones are a run.
fn open_segments(key: &dyn Aead, cipher: &mut dyn AeadRanges, starts: &[usize], text: &mut [u8]) {
    let (mut sum, mut next) = (AuthSum::default(), None);
    for &start in starts {
        if next != Some(start) {
            if next.is_some() {
                sum = cipher.end_run();
            }
            cipher.seek(&NONCE, &sum, start as u64);
        }
        let end = text.len().min(start + SEGMENT);
        cipher.open(&mut text[start..end]);
        next = Some(end);
    }
    let sum = cipher.end_run();
    black_box(key.finish(&NONCE, &HEADER, text.len() as u64, &sum));
}

fn seal_by_library(key: &aead::LessSafeKey, len: usize) {
    thread_local! {
        static TEXT: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![1; RECORD]);
    }
    TEXT.with_borrow_mut(|text| {
        let nonce = aead::Nonce::assume_unique_for_key(NONCE);
        let aad = aead::Aad::from(&HEADER);
        let tag = key.seal_in_place_separate_tag(nonce, aad, &mut text[..len]);
        let _ = black_box(tag);
    });
}

/// Returns billions of bytes per second, if each call of `work` processes `bytes`.
#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn gigabytes(bytes: usize, mut work: impl FnMut()) -> f64 {
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let (begin, mut calls) = (std::time::Instant::now(), 0_u32);
        while begin.elapsed() < ROUND {
            for _ in 0..16 {
                work();
            }
            calls += 16;
        }
        let done = f64::from(calls) * bytes as f64;
        best = best.max(done / begin.elapsed().as_secs_f64() / 1e9);
    }
    best
}
