//! Items that the compiler and `alloc` require: a panic handler, an allocator, and memory
//! functions.
//!
//! The memory functions are plain byte loops with volatile accesses, so that the compiler does not
//! turn them into calls of themselves.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

const HEAP_BYTES: usize = 1 << 20;

#[repr(align(4096))]
struct Heap(core::cell::UnsafeCell<[u8; HEAP_BYTES]>);

// SAFETY: the allocator hands out each byte at most once.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap(core::cell::UnsafeCell::new([0; HEAP_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// Allocates from a fixed heap and never frees.
struct Bump;

#[global_allocator]
static ALLOCATOR: Bump = Bump;

// SAFETY: `alloc` returns null, or memory inside the heap that no earlier call returned, with the
// requested alignment, which is at most the heap's.
unsafe impl GlobalAlloc for Bump {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let take = |used: usize| {
            let start = used.checked_next_multiple_of(layout.align())?;
            start.checked_add(layout.size()).filter(|&end| end <= HEAP_BYTES)
        };
        if layout.align() > 4096 {
            return ptr::null_mut();
        }
        match USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
            // SAFETY: `take` checked that the range lies in the heap.
            Ok(used) => unsafe {
                HEAP.0.get().cast::<u8>().add(used.next_multiple_of(layout.align()))
            },
            Err(_) => ptr::null_mut(),
        }
    }

    unsafe fn dealloc(&self, _: *mut u8, _: Layout) {}
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// Referenced by the tables of the precompiled `core` and `alloc`; never called, since nothing
/// unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Like [`rust_eh_personality`].
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Resume() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    for at in 0..bytes {
        // SAFETY: the caller guarantees `bytes` bytes at both addresses.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if to.cast_const() <= from {
        // SAFETY: guaranteed by the caller; copying upwards does not overwrite bytes that are still
        // to be read.
        return unsafe { memcpy(to, from, bytes) };
    }
    for at in (0..bytes).rev() {
        // SAFETY: the caller guarantees `bytes` bytes at both addresses.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "C says so")]
unsafe extern "C" fn memset(to: *mut u8, byte: i32, bytes: usize) -> *mut u8 {
    for at in 0..bytes {
        // SAFETY: the caller guarantees `bytes` bytes.
        unsafe { to.add(at).write_volatile(byte as u8) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    for at in 0..bytes {
        // SAFETY: the caller guarantees `bytes` bytes at both addresses.
        let (x, y) = unsafe { (a.add(at).read_volatile(), b.add(at).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    // SAFETY: the same contract.
    unsafe { memcmp(a, b, bytes) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut bytes = 0;
    // SAFETY: the caller guarantees a terminating zero byte.
    while unsafe { text.add(bytes).read_volatile() } != 0 {
        bytes += 1;
    }
    bytes
}
