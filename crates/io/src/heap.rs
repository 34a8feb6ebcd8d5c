//! Heap usage of the process, and a count of allocations, for the benchmarks of `outboard-lab`.
#![expect(unsafe_code, reason = "mallinfo2, and an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Returns the bytes in use on the heap, including the allocator's overhead for them.
#[must_use]
pub fn allocated_bytes() -> usize {
    // SAFETY: mallinfo2 takes no arguments and only reads the allocator's own state, under its
    // locks.
    let info = unsafe { libc::mallinfo2() };
    info.uordblks + info.hblkhd
}

thread_local! {
    /// Allocations of this thread. Has no destructor, so that it can be used at any time.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// Returns the number of allocations and reallocations that this thread has made, if the program's
/// allocator is [`CountingAllocator`]; otherwise zero.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// The system's allocator, with a count of allocations per thread.
#[derive(Debug)]
pub struct CountingAllocator;

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
}

// SAFETY: each call is passed on unchanged to the system's allocator, which meets the contract.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: the caller meets the contract.
        unsafe { System.realloc(block, layout, bytes) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller meets the contract.
        unsafe { System.dealloc(block, layout) }
    }
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

    #[test]
    fn allocations_are_counted() {
        let layout = Layout::new::<[u64; 4]>();
        let before = allocations();
        // SAFETY: the layout is not empty, and the block is freed with it once.
        unsafe {
            let block = CountingAllocator.alloc(layout);
            CountingAllocator.dealloc(block, layout);
            let block = CountingAllocator.alloc_zeroed(layout);
            CountingAllocator.dealloc(block, layout);
        }
        assert_eq!(allocations() - before, 2);
    }
}
