//! Registered buffers of a program whose device is on another machine.
//!
//! Both ends have memory of the same length. The device places data in its own; when it returns a
//! buffer, its end sends the part that the device was to fill, and the program's end copies it to
//! the same place of its memory. This data crosses in descriptors of the carrier itself, before the
//! event that returns the buffer: a tag that no event has, seven zero bytes, the offset (8 bytes,
//! little endian), and the data.

use abi::nvme_tcp::{DdpBuffer, DdpSetup, DdpTeardownDone};
use abi::region::SharedRegion;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::ops::Range;

/// Length of the longest buffer in bytes.
pub(crate) const BUFFER_BYTES_MAX: usize = 4 << 20;

/// First byte of a descriptor with placed data.
const TAG: u8 = 0xff;
/// Bytes before the data.
const HEAD_BYTES: usize = 16;
/// Bytes of data in a descriptor.
const CHUNK_BYTES: usize = 256 << 10;

/// Buffers that a device has, at its end of the carrier.
#[derive(Debug, Default)]
pub(crate) struct MirroredBuffers {
    /// By offset in the memory: the bytes that the device is to fill.
    awaited: BTreeMap<usize, Range<usize>>,
}

impl MirroredBuffers {
    /// Notes a buffer that is passed to the device; returns false if it is too long.
    pub(crate) fn register(&mut self, setup: &DdpSetup) -> bool {
        let DdpBuffer::Shared(memory) = &setup.buffer else { return true };
        if memory.len() > BUFFER_BYTES_MAX {
            return false;
        }
        let end = (setup.len as usize).min(memory.len());
        let awaited = (setup.filled as usize).min(end)..end;
        let at = memory.offset();
        self.awaited.insert(at, at + awaited.start..at + awaited.end);
        true
    }

    /// Returns the bytes to send for a buffer that the device returns.
    pub(crate) fn take(&mut self, done: &DdpTeardownDone) -> Range<usize> {
        let DdpBuffer::Shared(memory) = &done.buffer else { return 0..0 };
        let awaited = self.awaited.remove(&memory.offset());
        awaited.filter(|_| done.refused.is_none()).unwrap_or(0..0)
    }
}

/// Divides bytes into those of descriptors.
pub(crate) fn chunks(bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = bytes.end;
    bytes.step_by(CHUNK_BYTES).map(move |at| at..end.min(at + CHUNK_BYTES))
}

/// Writes the descriptor with these bytes of the memory to `out`.
pub(crate) fn encode(memory: &dyn SharedRegion, bytes: Range<usize>, out: &mut Vec<u8>) {
    out.clear();
    out.extend([TAG, 0, 0, 0, 0, 0, 0, 0]);
    out.extend((bytes.start as u64).to_le_bytes());
    debug_assert_eq!(out.len(), HEAD_BYTES);
    out.resize(HEAD_BYTES + bytes.len(), 0);
    memory.read(bytes.start, &mut out[HEAD_BYTES..]);
}

/// Returns whether a descriptor has placed data.
pub(crate) fn is_placed_data(descriptor: &[u8]) -> bool {
    descriptor.first() == Some(&TAG)
}

/// Copies the data of a descriptor to the memory; returns false if they do not fit.
#[must_use]
pub(crate) fn apply(memory: &dyn SharedRegion, descriptor: &[u8]) -> bool {
    let Some((head, data)) = descriptor.split_first_chunk::<HEAD_BYTES>() else { return false };
    let [_, zeros @ .., a, b, c, d, e, f, g, h] = *head;
    let at = usize::try_from(u64::from_le_bytes([a, b, c, d, e, f, g, h])).unwrap_or(usize::MAX);
    let end = at.checked_add(data.len());
    if zeros != [0; 7] || end.is_none_or(|end| end > memory.len()) {
        return false;
    }
    memory.write(at, data);
    true
}

#[cfg(test)]
mod tests {
    use abi::region::HeapRegion;
    use alloc::vec;

    use super::*;

    #[test]
    fn data_cross_to_the_same_place() {
        let (device, program) = (HeapRegion::new(1000), HeapRegion::new(1000));
        device.write(100, &[7; 50]);
        let (mut descriptor, mut got) = (Vec::new(), [0; 52]);
        encode(&device, 100..150, &mut descriptor);
        assert!(is_placed_data(&descriptor) && apply(&program, &descriptor));
        program.read(99, &mut got);
        assert_eq!((got[0], got[1], got[50], got[51]), (0, 7, 7, 0));
        for (at, wrong) in [(1, 1), (8, 200), (9, 4), (15, 0x80)] {
            let mut changed = descriptor.clone();
            changed[at] = wrong;
            let fits = at == 8 && usize::from(wrong) + 50 <= 1000;
            assert_eq!(apply(&program, &changed), fits, "byte {at}");
        }
        assert!(!apply(&program, &descriptor[..15]));
        assert!(!apply(&HeapRegion::new(149), &descriptor));
    }

    #[test]
    fn long_buffers_cross_in_chunks() {
        let (one, two) = (CHUNK_BYTES + 5, 2 * CHUNK_BYTES + 5);
        assert_eq!(chunks(5..two + 1).collect::<Vec<_>>(), vec![5..one, one..two, two..two + 1]);
        assert_eq!(chunks(7..7).count(), 0);
    }
}
