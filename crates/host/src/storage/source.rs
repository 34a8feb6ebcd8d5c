//! Sources of the bytes of a send stream.
//!
//! Used by the span map (`spans`), by the protocols above, which make records and PDUs of sources,
//! and by files, which count references.

use abi::l5o::L5oContent;
use abi::{FileExtent, FileId, TransmitPart};
use bytes::Bytes;

/// Source of a range of bytes.
#[derive(Clone, Debug)]
pub(crate) enum StreamSource {
    /// Host memory.
    Memory(Bytes),
    /// A file from this offset on, read by the device.
    Device { file: FileId, offset: u64 },
    /// A file from this offset on, which the host has yet to read.
    Unread { file: FileId, offset: u64 },
}

impl StreamSource {
    /// Releases the first `bytes`; returns how many of them were host memory.
    pub(crate) fn release_front(
        &mut self,
        bytes: u64,
        release: &mut dyn FnMut(FileId, u64, u64),
    ) -> usize {
        match self {
            Self::Memory(memory) => {
                let here = usize::try_from(bytes).unwrap_or(usize::MAX).min(memory.len());
                let _acknowledged = memory.split_to(here);
                here
            }
            Self::Device { file, offset } | Self::Unread { file, offset } => {
                release(*file, *offset, bytes);
                *offset += bytes;
                0
            }
        }
    }

    /// Returns the bytes if they are memory.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match self {
            Self::Memory(bytes) => Some(bytes),
            Self::Device { .. } | Self::Unread { .. } => None,
        }
    }

    /// Returns the number of bytes of host memory.
    pub(crate) fn memory(&self) -> usize {
        self.bytes().map_or(0, Bytes::len)
    }

    /// Returns the file and the offset of the first byte in it.
    pub(crate) fn file(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Memory(_) => None,
            Self::Device { file, offset } | Self::Unread { file, offset } => Some((*file, *offset)),
        }
    }

    /// Returns the same as [`Self::file`] if the host has to read it first.
    pub(crate) fn unread(&self) -> Option<(FileId, u64)> {
        self.file().filter(|_| matches!(self, Self::Unread { .. }))
    }

    /// Turns a file that the device reads into one that the host reads.
    pub(crate) fn read_on_host(&mut self) {
        if let &mut Self::Device { file, offset } = self {
            *self = Self::Unread { file, offset };
        }
    }

    /// Splits off and returns the first `bytes`; the rest stays.
    pub(crate) fn split_to(&mut self, bytes: u64) -> Self {
        match self {
            Self::Memory(memory) => {
                let here = usize::try_from(bytes).unwrap_or(usize::MAX).min(memory.len());
                Self::Memory(memory.split_to(here))
            }
            Self::Device { offset, .. } | Self::Unread { offset, .. } => {
                let from = *offset;
                *offset += bytes;
                let mut first = self.clone();
                if let Self::Device { offset, .. } | Self::Unread { offset, .. } = &mut first {
                    *offset = from;
                }
                first
            }
        }
    }

    /// Returns the bytes `from..to`; `None` if the host has to read them first.
    pub(crate) fn content(&self, from: u64, to: u64) -> Option<L5oContent> {
        match self {
            Self::Memory(bytes) => {
                let range = usize::try_from(from).ok()?..usize::try_from(to).ok()?;
                Some(L5oContent::Host(bytes.slice(range)))
            }
            Self::Device { file, offset } => {
                let len = u32::try_from(to - from).ok()?;
                Some(L5oContent::File(FileExtent { file: *file, offset: offset + from, len }))
            }
            Self::Unread { .. } => None,
        }
    }

    /// Returns the bytes `from..to` as a part of a transmit; `None` if the host has to read them
    /// first.
    pub(crate) fn part(&self, from: u64, to: u64) -> Option<TransmitPart> {
        match self.content(from, to)? {
            L5oContent::Host(bytes) => Some(TransmitPart::Host(bytes)),
            L5oContent::File(extent) => Some(TransmitPart::File(extent)),
            L5oContent::Pdu(_) => None,
        }
    }
}

/// A file range that the host has to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnreadRange {
    /// Position in the stream at which the bytes are needed.
    pub(crate) at: u64,
    pub(crate) file: FileId,
    pub(crate) offset: u64,
    /// Bytes of the file that follow in the span.
    pub(crate) bytes: u64,
    /// Minimum number of bytes that are of use, unless no more follow.
    pub(crate) bytes_min: u64,
}
