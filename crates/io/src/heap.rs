//! Heap usage of the process, for `outboard-lab bench memory`.
#![expect(unsafe_code, reason = "mallinfo2")]

/// Returns the bytes in use on the heap, including the allocator's overhead for them.
#[must_use]
pub fn allocated_bytes() -> usize {
    // SAFETY: mallinfo2 takes no arguments and only reads the allocator's own state, under its
    // locks.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_allocation_shows() {
        let before = allocated_bytes();
        let block = std::hint::black_box(vec![1_u8; 64 << 20]);
        assert!(allocated_bytes() >= before + block.len() / 2);
    }
}
