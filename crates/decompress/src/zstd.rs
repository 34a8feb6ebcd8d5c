//! Zstandard (RFC 8878): frames one after the other, skippable ones included.

use core::fmt;

use abi::decompress::{DecodeFault, DecodeProgress, Decoder, ZSTD_WINDOW_BYTES_MAX};
use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{DCtx, DParameter, InBuffer, OutBuffer};

use crate::BEGINNINGS_MAX;

/// Decoder of a Zstandard stream.
pub(crate) struct ZstdDecoder {
    context: DCtx<'static>,
    /// All frames so far have ended, and there was one.
    is_complete: bool,
}

impl fmt::Debug for ZstdDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdDecoder")
            .field("is_complete", &self.is_complete)
            .finish_non_exhaustive()
    }
}

impl ZstdDecoder {
    /// Creates a decoder; `None` if there is no memory for it.
    pub(crate) fn new() -> Option<Self> {
        let mut context = DCtx::try_create()?;
        let limit = DParameter::WindowLogMax(ZSTD_WINDOW_BYTES_MAX.ilog2());
        context.set_parameter(limit).ok()?;
        Some(Self { context, is_complete: false })
    }
}

impl Decoder for ZstdDecoder {
    fn decode(&mut self, input: &[u8], output: &mut [u8]) -> Result<DecodeProgress, DecodeFault> {
        let (mut source, mut target) = (InBuffer::around(input), OutBuffer::around(output));
        let mut ended = 0;
        while ended < BEGINNINGS_MAX && target.pos() < target.capacity() {
            // Without input, the library would begin another frame.
            if self.is_complete && source.pos() == input.len() {
                break;
            }
            let before = (source.pos(), target.pos());
            let result = self.context.decompress_stream(&mut target, &mut source);
            let wanted = result.map_err(fault)?;
            if (source.pos(), target.pos()) == before {
                break;
            }
            self.is_complete = wanted == 0;
            ended += usize::from(self.is_complete);
        }
        let (consumed, produced) = (source.pos(), target.pos());
        Ok(DecodeProgress { consumed, produced, is_complete: self.is_complete })
    }
}

fn fault(code: usize) -> DecodeFault {
    let too_large = ZSTD_ErrorCode::ZSTD_error_frameParameter_windowTooLarge;
    if zstd_safe::is_error_kind(code, too_large) {
        DecodeFault::WindowTooLarge
    } else {
        DecodeFault::Malformed
    }
}
