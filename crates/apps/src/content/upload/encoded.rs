//! Encoded content of an upload on its way through a decoder.
//!
//! [`super::Uploads`] gathers received bytes here, and passes them to the host in jobs whose output
//! is the upload's buffer for the disk. A job has the decoder and both buffers; until it returns,
//! no content is taken.
//!
//! Invariant: the decoder is here or in one job. Knows no limits but the ratio.

use abi::aligned::{AlignedBuf, PAGE_BYTES};
use abi::decompress::{DecodeFault, DecodeProgress, Decoder, DecompressJob};

use super::WRITE_BYTES;
use super::refusal::UploadRefusal;
use crate::pattern_inspection::{ConnectionRules, ContentInspection};
use crate::write_buffers::WriteBufferLease;

/// Bytes that may be decompressed, whatever the ratio: short content may compress to very little.
const ANY_RATIO_BYTES: u64 = 1 << 20;

/// The decoder of an upload, and its input.
#[derive(Debug)]
pub(super) struct EncodedContent {
    /// `None` while a job has them.
    idle: Option<(Box<dyn Decoder>, AlignedBuf)>,
    /// Lease of the output, while a job has it.
    output: Option<WriteBufferLease>,
    /// The range of the input that is not decompressed.
    start: usize,
    filled: usize,
    /// Compressed bytes that were decompressed.
    consumed: u64,
    /// Bytes that became of them.
    produced: u64,
    ratio_max: u64,
    pub(super) inspection: ContentInspection,
}

impl EncodedContent {
    /// Creates the state for content of which the client has declared the length or not.
    pub(super) fn new(
        decoder: Box<dyn Decoder>,
        declared: Option<u64>,
        ratio_max: u64,
        rules: ConnectionRules,
    ) -> Self {
        let bytes = declared.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(WRITE_BYTES);
        let pages = bytes.clamp(1, WRITE_BYTES).div_ceil(PAGE_BYTES);
        Self {
            idle: Some((decoder, AlignedBuf::new(pages))),
            output: None,
            start: 0,
            filled: 0,
            consumed: 0,
            produced: 0,
            ratio_max,
            inspection: ContentInspection::new(rules),
        }
    }

    /// Returns whether no job has the decoder.
    pub(super) const fn is_idle(&self) -> bool {
        self.idle.is_some()
    }

    /// Returns the number of bytes that [`Self::push`] takes now.
    pub(super) fn room(&self) -> usize {
        self.idle.as_ref().map_or(0, |(_, input)| input.len().saturating_sub(self.filled))
    }

    /// Returns whether there are bytes to decompress.
    pub(super) const fn has_input(&self) -> bool {
        self.start < self.filled
    }

    /// Returns the number of bytes that were decompressed.
    pub(super) const fn produced(&self) -> u64 {
        self.produced
    }

    /// Takes content, of at most [`Self::room`] bytes.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let Some((_, input)) = &mut self.idle else { return };
        let free = input.as_mut_slice().get_mut(self.filled..).unwrap_or_default();
        debug_assert!(bytes.len() <= free.len(), "no more is pushed than there is room for");
        let len = bytes.len().min(free.len());
        free[..len].copy_from_slice(&bytes[..len]);
        self.filled += len;
    }

    /// Returns a job that appends to `output`, of which `start` bytes are filled. `None` if there
    /// is one already.
    pub(super) fn begin_job(
        &mut self,
        (output, lease): (AlignedBuf, WriteBufferLease),
        start: usize,
    ) -> Option<DecompressJob> {
        let (decoder, input) = self.idle.take()?;
        self.output = Some(lease);
        // The buffers have at most 128 KiB.
        let position = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let input_range = position(self.start)..position(self.filled);
        Some(DecompressJob { decoder, input, input_range, output, output_start: position(start) })
    }

    /// Takes a job back. Returns its output; `None` if there was no job.
    pub(super) fn end_job(&mut self, job: DecompressJob) -> Option<(AlignedBuf, WriteBufferLease)> {
        let lease = self.output.take()?;
        self.idle = Some((job.decoder, job.input));
        Some((job.output, lease))
    }

    /// Counts the progress of a job.
    ///
    /// # Errors
    /// The content decompresses to too much, or not at all.
    pub(super) fn advance(&mut self, progress: DecodeProgress) -> Result<(), UploadRefusal> {
        let DecodeProgress { consumed, produced, .. } = progress;
        if self.has_input() && (consumed, produced) == (0, 0) {
            return Err(UploadRefusal::Damaged);
        }
        self.consumed += consumed as u64;
        self.produced += produced as u64;
        self.start = (self.start + consumed).min(self.filled);
        if !self.has_input() {
            (self.start, self.filled) = (0, 0);
        }
        let most = self.consumed.saturating_mul(self.ratio_max).max(ANY_RATIO_BYTES);
        if self.produced > most { Err(UploadRefusal::Ratio) } else { Ok(()) }
    }
}

impl From<DecodeFault> for UploadRefusal {
    fn from(fault: DecodeFault) -> Self {
        match fault {
            DecodeFault::Malformed => Self::Damaged,
            DecodeFault::WindowTooLarge => Self::Window,
        }
    }
}
