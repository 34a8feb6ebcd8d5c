//! Decompression of received content: the types of [`crate::Op::Decompress`] and
//! [`crate::Event::Decompressed`], and the traits of decoders.
//!
//! A job is complete in itself: the state of the decoder, the compressed bytes and the buffer for
//! the output belong to it, and return with its answer. The device keeps nothing of a stream
//! between two jobs, so host and device may run the jobs of one stream in turn, and a reset of the
//! device loses no stream (docs/decisions/044-decompression-jobs-carry-their-state.md). The order
//! of a stream follows from this too: its decoder is in one job at a time.
//!
//! Decoders are injected, as cryptography is ([`crate::crypto`]). This crate has none.

use alloc::boxed::Box;
use core::fmt;
use core::ops::Range;

use crate::Refusal;
use crate::aligned::AlignedBuf;

/// Content codings that are decompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CompressionFormat {
    /// Gzip (RFC 1952): one or more members.
    Gzip,
    /// Zstandard (RFC 8878): one or more frames, with windows of at most [`ZSTD_WINDOW_BYTES_MAX`].
    Zstd,
}

/// Maximum window of a Zstandard frame in bytes: 8 MiB, as RFC 9659 requires of the content coding.
pub const ZSTD_WINDOW_BYTES_MAX: usize = 8 << 20;

/// Progress of a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeProgress {
    /// Bytes of the input that are used up.
    pub consumed: usize,
    /// Bytes that were written to the output.
    pub produced: usize,
    /// The content may end here: all members or frames so far are complete, their checksums are
    /// correct, and all their bytes were written.
    pub is_complete: bool,
}

/// Errors of decoders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeFault {
    /// The input is no content of this format, or a checksum is wrong.
    Malformed,
    /// The window is larger than [`ZSTD_WINDOW_BYTES_MAX`].
    WindowTooLarge,
}

/// State of one stream that is being decompressed, of bounded size.
pub trait Decoder: Send + fmt::Debug {
    /// Decompresses from `input`, which continues where the last call stopped, to `output`.
    /// Consumes or writes at least one byte if neither is empty, unless the stream is complete, and
    /// may stop before either is used up.
    ///
    /// # Errors
    /// `DecodeFault`, after which the stream is not continued.
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecodeProgress, DecodeFault>;
}

/// A factory of decoders.
pub trait DecoderProvider: Send + Sync + fmt::Debug {
    /// Creates the decoder of a stream; `None` if there is no memory for it.
    fn decoder(&self, format: CompressionFormat) -> Option<Box<dyn Decoder>>;
}

/// Limits of the decompression engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecompressLimits {
    /// Maximum length of each of the two buffers of a job, in bytes. It bounds the time of a job.
    pub buffer_bytes_max: u32,
}

/// A piece of work on one stream.
#[derive(Debug)]
pub struct DecompressJob {
    /// State of the stream.
    pub decoder: Box<dyn Decoder>,
    /// Buffer with compressed bytes.
    pub input: AlignedBuf,
    /// The range of `input` to decompress; may be empty, to get output that the decoder holds.
    pub input_range: Range<u32>,
    /// Buffer for the output.
    pub output: AlignedBuf,
    /// Offset in `output` at which to begin.
    pub output_start: u32,
}

impl DecompressJob {
    /// Returns whether the ranges lie in the buffers.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Range { start, end } = self.input_range;
        start <= end && end as usize <= self.input.len() && self.output_room() > 0
    }

    /// Returns the number of bytes to decompress.
    #[must_use]
    pub const fn input_len(&self) -> usize {
        self.input_range.end.saturating_sub(self.input_range.start) as usize
    }

    /// Returns the number of bytes that there is room for.
    #[must_use]
    pub const fn output_room(&self) -> usize {
        self.output.len().saturating_sub(self.output_start as usize)
    }

    /// Runs the job.
    ///
    /// # Errors
    /// As [`Decoder::decode`]; `Malformed` if the job is not valid.
    pub fn run(&mut self) -> Result<DecodeProgress, DecodeFault> {
        let range = self.input_range.start as usize..self.input_range.end as usize;
        let input = self.input.as_slice().get(range).ok_or(DecodeFault::Malformed)?;
        let output = self.output.as_mut_slice().get_mut(self.output_start as usize..);
        self.decoder.decode(input, output.ok_or(DecodeFault::Malformed)?)
    }
}

/// The host's number for a job, never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DecompressId(pub u64);

/// The content of [`crate::Op::Decompress`].
#[derive(Debug)]
pub struct DecompressRequest {
    /// Number of the job.
    pub id: DecompressId,
    /// The job.
    pub job: DecompressJob,
}

/// Outcome of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecompressOutcome {
    /// The job has run.
    Done(DecodeProgress),
    /// The job has run, and the content is faulty.
    Failed(DecodeFault),
    /// The job has not run, and is as it was.
    Refused(Refusal),
}

impl From<Result<DecodeProgress, DecodeFault>> for DecompressOutcome {
    fn from(result: Result<DecodeProgress, DecodeFault>) -> Self {
        match result {
            Ok(progress) => Self::Done(progress),
            Err(fault) => Self::Failed(fault),
        }
    }
}

/// The content of [`crate::Event::Decompressed`].
#[derive(Debug)]
pub struct Decompressed {
    /// Number of the job.
    pub id: DecompressId,
    /// The job, with its decoder and its buffers.
    pub job: DecompressJob,
    /// Outcome of the job.
    pub outcome: DecompressOutcome,
}
