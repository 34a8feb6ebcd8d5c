//! Decoders of received content: gzip by flate2 with zlib-rs, Zstandard by libzstd.
//!
//! [`Provider`] implements `abi`'s trait; `outboard` injects it into the content server. Both
//! libraries verify checksums. This crate adds what they lack: members and frames that follow each
//! other (RFC 1952 section 2.2, RFC 8878 section 3), a bound on the work of a call, and bytes after
//! the end that are neither, which are malformed.
//!
//! Invariants: a gzip decoder has less than 64 KiB, a Zstandard decoder the window
//! ([`abi::decompress::ZSTD_WINDOW_BYTES_MAX`]) and less than 512 KiB. No dictionary is known.

#![forbid(unsafe_code)]

mod gzip;
mod zstd;

use abi::decompress::{CompressionFormat, Decoder, DecoderProvider};

/// Maximum number of members or frames that begin in one call of a decoder. Empty ones have few
/// bytes, and each costs more than its bytes.
const BEGINNINGS_MAX: usize = 64;

/// The decoders of this crate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Provider;

impl DecoderProvider for Provider {
    fn decoder(&self, format: CompressionFormat) -> Option<Box<dyn Decoder>> {
        Some(match format {
            CompressionFormat::Gzip => Box::new(gzip::GzipDecoder::new()),
            CompressionFormat::Zstd => Box::new(zstd::ZstdDecoder::new()?),
        })
    }
}

#[cfg(test)]
mod tests;
