//! A region of memory that two processes share ([`abi::region`]).
//!
//! A program creates it and passes its descriptor to the device's process ([`crate::attachment`]);
//! both map it for as long as a range of it is in use. Its pages are allocated when they are
//! written. All memory is accessed as atomic words and bytes, or by assembly code
//! (`shared_copy`), so that neither process can cause a data race in the other one.
#![expect(unsafe_code, reason = "memory of two processes")]

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use abi::aligned::PAGE_BYTES;
use abi::region::SharedRegion;

use crate::mapping::Mapping;
use crate::sealed_file;
pub use crate::sealed_file::SharedMemoryError;
use crate::shared_copy::{read_vectors, write_vectors};

/// Bytes of a word.
const WORD_BYTES: usize = size_of::<AtomicU64>();

/// A mapped region.
#[derive(Debug)]
pub struct MappedRegion {
    mapping: Mapping,
    file: File,
}

// SAFETY: the bytes are accessed as atomics only, and the mapping does not change.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Creates a region of `bytes` zero bytes, a multiple of [`PAGE_BYTES`].
    ///
    /// # Errors
    /// If the length is zero or no such multiple, or if the operating system refuses address space
    /// or a descriptor.
    pub fn create(bytes: usize) -> Result<Self, SharedMemoryError> {
        Self::map(sealed_file::create("outboard-region", bytes as u64)?, bytes as u64, bytes)
    }

    /// Maps a region of at most `bytes_max` bytes that another process has created.
    ///
    /// # Errors
    /// If the file is no such region: its sender is not trusted.
    pub fn attach(fd: OwnedFd, bytes_max: usize) -> Result<Self, SharedMemoryError> {
        let (file, bytes) = sealed_file::accept(fd)?.ok_or(SharedMemoryError::NotSealed)?;
        Self::map(file, bytes, bytes_max)
    }

    fn map(file: File, bytes: u64, bytes_max: usize) -> Result<Self, SharedMemoryError> {
        let is_valid = |&bytes: &usize| bytes > 0 && bytes <= bytes_max && bytes % PAGE_BYTES == 0;
        let Some(len) = usize::try_from(bytes).ok().filter(is_valid) else {
            return Err(SharedMemoryError::BadLength(bytes));
        };
        Ok(Self { mapping: Mapping::sparse(&file, len)?, file })
    }

    /// Returns `len` bytes at `at`.
    ///
    /// # Panics
    /// If there are no such bytes.
    fn bytes(&self, at: usize, len: usize) -> &[AtomicU8] {
        let end = at.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.mapping.len()), "{len} bytes at {at}");
        // SAFETY: the range lies in the mapping, which lives as long as `self`; the file cannot
        // shrink; any byte is a valid AtomicU8.
        unsafe {
            let first = self.mapping.base().add(at).cast::<AtomicU8>();
            std::slice::from_raw_parts(first.as_ptr(), len)
        }
    }

    /// Returns the same bytes as those before the first whole word, the words, and the rest.
    fn parts(&self, at: usize, len: usize) -> (&[AtomicU8], &[AtomicU64], &[AtomicU8]) {
        // SAFETY: any eight bytes are a valid AtomicU64. An access that overlaps with one of
        // another size comes from another process, or from a violation of the contract in this one:
        // its result is bytes of either, as with a device that writes by DMA.
        unsafe { self.bytes(at, len).align_to::<AtomicU64>() }
    }
}

impl SharedRegion for MappedRegion {
    fn len(&self) -> usize {
        self.mapping.len()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let (head, words, tail) = self.parts(at, bytes.len());
        let (first, rest) = bytes.split_at(head.len());
        let written = write_vectors(words, rest);
        let mut chunks = rest[written * WORD_BYTES..].chunks_exact(WORD_BYTES);
        let store = |(to, &byte): (&AtomicU8, &u8)| to.store(byte, Ordering::Relaxed);
        head.iter().zip(first).for_each(store);
        for (to, chunk) in words[written..].iter().zip(&mut chunks) {
            let word = chunk.first_chunk().map_or(0, |word| u64::from_ne_bytes(*word));
            to.store(word, Ordering::Relaxed);
        }
        tail.iter().zip(chunks.remainder()).for_each(store);
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        let (head, words, tail) = self.parts(at, out.len());
        let (first, rest) = out.split_at_mut(head.len());
        let copied = read_vectors(words, rest);
        let mut chunks = rest[copied * WORD_BYTES..].chunks_exact_mut(WORD_BYTES);
        let load = |(from, byte): (&AtomicU8, &mut u8)| *byte = from.load(Ordering::Relaxed);
        head.iter().zip(first).for_each(load);
        for (from, chunk) in words[copied..].iter().zip(&mut chunks) {
            chunk.copy_from_slice(&from.load(Ordering::Relaxed).to_ne_bytes());
        }
        tail.iter().zip(chunks.into_remainder()).for_each(load);
    }
}

impl AsFd for MappedRegion {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use abi::region::HeapRegion;
    use proptest::prelude::*;

    use super::*;

    fn two_mappings(pages: usize) -> (MappedRegion, MappedRegion) {
        let one = MappedRegion::create(pages * PAGE_BYTES).unwrap();
        let fd = one.as_fd().try_clone_to_owned().unwrap();
        let other = MappedRegion::attach(fd, pages * PAGE_BYTES).unwrap();
        (one, other)
    }

    proptest! {
        /// Two processes see the same bytes, whatever the alignment.
        #[test]
        fn bytes_cross(writes in prop::collection::vec((0_usize..8000, 0_usize..192), 1..20)) {
            let (one, other) = two_mappings(2);
            let model = HeapRegion::new(2 * PAGE_BYTES);
            for (number, &(at, len)) in writes.iter().enumerate() {
                let byte = |n: usize| u8::try_from((n * 7 + number * 31) % 255).unwrap() + 1;
                let bytes: Vec<_> = (0..len).map(byte).collect();
                one.write(at, &bytes);
                model.write(at, &bytes);
                let (mut got, mut want) = (vec![0; len + 5], vec![0; len + 5]);
                let from = at.saturating_sub(3);
                let end = (from + len + 5).min(2 * PAGE_BYTES);
                other.read(from, &mut got[..end - from]);
                model.read(from, &mut want[..end - from]);
                prop_assert_eq!(got, want);
            }
        }
    }

    #[test]
    fn only_sealed_files_of_whole_pages_are_regions() {
        let refusal = |fd: OwnedFd, max| MappedRegion::attach(fd, max).unwrap_err().to_string();
        let unsealed = tempfile::tempfile().unwrap();
        assert_eq!(refusal(unsealed.into(), 1 << 20), "the shared memory has no seals");
        let odd = sealed_file::create("odd", 4097).unwrap();
        assert_eq!(refusal(odd.into(), 1 << 20), "the shared memory has 4097 bytes");
        let large = sealed_file::create("large", 8192).unwrap();
        assert_eq!(refusal(large.into(), 4096), "the shared memory has 8192 bytes");
        assert!(MappedRegion::create(0).is_err());
    }

    /// A region costs nothing before it is used.
    #[test]
    fn pages_are_allocated_when_they_are_written() {
        use std::os::unix::fs::MetadataExt as _;
        let (one, other) = two_mappings(1 << 16);
        let blocks = |region: &MappedRegion| region.file.metadata().unwrap().blocks();
        assert_eq!(blocks(&one), 0);
        other.write(1 << 20, &[1; 5000]);
        assert_eq!(blocks(&one), 16);
    }

    #[test]
    #[should_panic(expected = "2 bytes at 4095")]
    fn an_access_beyond_the_end_panics() {
        two_mappings(1).0.write(4095, &[1, 2]);
    }
}
