//! Writer and reader of descriptors.
//!
//! Used by the types' [`DescriptorCodec`] implementations. The reader never reads beyond the
//! descriptor; the writer records its first fault and writes on, so that implementations need no
//! error path.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use super::{DecodeMemory, EncodeMemory, LayoutTable};

/// A type with a place in the layout.
pub trait DescriptorCodec: Sized {
    /// Writes the value. Its buffers move to the encoder's memory, so that empty ones remain.
    fn encode(&mut self, to: &mut Encoder<'_>);

    /// Reads a value.
    ///
    /// # Errors
    /// The first fault found.
    fn decode(from: &mut Decoder<'_>) -> Result<Self, LayoutFault>;

    /// Adds the type to the table, if it is not in it yet, and returns its name there.
    fn describe(table: &mut LayoutTable) -> String;
}

/// Reason for which an operation or event cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeFault {
    /// It refers to code and state of the process: a decompression job.
    NotPortable,
    /// A list or an inline buffer is too long, or the whole descriptor.
    TooLong,
}

impl fmt::Display for EncodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotPortable => "cannot leave the process",
            Self::TooLong => "longer than a descriptor may be",
        })
    }
}

impl core::error::Error for EncodeFault {}

/// Reason for which bytes are no descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayoutFault {
    /// The descriptor ends within a field.
    Truncated,
    /// Bytes are left over.
    Trailing,
    /// It exceeds [`super::DESCRIPTOR_BYTES_MAX`].
    TooLong,
    /// A variant, a boolean or the mark of an option has a value that the layout does not define.
    UnknownTag,
    /// A number or length lies outside of its range.
    OutOfRange,
    /// A range names memory that its sender may not name.
    BadMemory,
    /// The type has no layout.
    NotPortable,
}

impl fmt::Display for LayoutFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Truncated => "the descriptor ends within a field",
            Self::Trailing => "bytes follow the descriptor",
            Self::TooLong => "the descriptor is too long",
            Self::UnknownTag => "unknown variant",
            Self::OutOfRange => "a value is out of its range",
            Self::BadMemory => "memory that the sender may not name",
            Self::NotPortable => "a type without layout",
        })
    }
}

impl core::error::Error for LayoutFault {}

/// Writes one descriptor.
pub struct Encoder<'a> {
    pub(super) memory: &'a mut dyn EncodeMemory,
    out: &'a mut Vec<u8>,
    fault: Option<EncodeFault>,
}

impl<'a> Encoder<'a> {
    pub(super) fn new(memory: &'a mut dyn EncodeMemory, out: &'a mut Vec<u8>) -> Self {
        Self { memory, out, fault: None }
    }

    /// Appends bytes as they are.
    #[inline]
    pub(super) fn put(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends the length of a list.
    pub(super) fn put_count(&mut self, count: usize) {
        let count = u16::try_from(count).unwrap_or_else(|_| {
            self.fail(EncodeFault::TooLong);
            0
        });
        self.put(&count.to_le_bytes());
    }

    /// Records a fault; the first one counts.
    pub(super) fn fail(&mut self, fault: EncodeFault) {
        self.fault.get_or_insert(fault);
    }

    pub(super) const fn fault(&self) -> Option<EncodeFault> {
        self.fault
    }
}

impl fmt::Debug for Encoder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the bytes, which may hold keys.
        write!(f, "Encoder({} bytes)", self.out.len())
    }
}

/// Reads one descriptor.
pub struct Decoder<'a> {
    pub(super) memory: &'a mut dyn DecodeMemory,
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(super) fn new(memory: &'a mut dyn DecodeMemory, bytes: &'a [u8]) -> Self {
        Self { memory, rest: bytes }
    }

    /// Removes `len` bytes.
    #[inline]
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], LayoutFault> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(LayoutFault::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Removes `N` bytes.
    #[inline]
    pub(super) fn take_array<const N: usize>(&mut self) -> Result<[u8; N], LayoutFault> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(LayoutFault::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads the length of a list, each element of which has at least one byte.
    pub(super) fn take_count(&mut self) -> Result<usize, LayoutFault> {
        let count = usize::from(u16::from_le_bytes(self.take_array()?));
        if count > self.rest.len() { Err(LayoutFault::Truncated) } else { Ok(count) }
    }

    pub(super) const fn finish(&self) -> Result<(), LayoutFault> {
        if self.rest.is_empty() { Ok(()) } else { Err(LayoutFault::Trailing) }
    }
}

impl fmt::Debug for Decoder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the bytes, which may hold keys.
        write!(f, "Decoder({} bytes left)", self.rest.len())
    }
}
