//! What the compiler and `alloc` expect from below: a panic handler, an allocator, memory
//! functions.
//!
//! Nothing here is clever. The memory functions are plain byte loops that read and write volatile,
//! so that the compiler does not turn them into calls of themselves.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

const HEAP_BYTES: usize = 1 << 20;

#[repr(align(4096))]
struct Heap(core::cell::UnsafeCell<[u8; HEAP_BYTES]>);

// SAFETY: the allocator hands out each byte once.
unsafe impl Sync for Heap {}

static HEAP: Heap = Heap(core::cell::UnsafeCell::new([0; HEAP_BYTES]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// Hands out memory and never takes it back.
struct Bump;

#[global_allocator]
static ALLOCATOR: Bump = Bump;

// SAFETY: `alloc` returns memory inside the heap that no earlier call returned, aligned as asked
// for up to the heap's own alignment, or null.
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

/// Named by the tables of the ready-made `core` and `alloc`; never called, since nothing unwinds.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// As [`rust_eh_personality`].
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
        // SAFETY: the caller vouches for `bytes` bytes at both ends.
        unsafe { to.add(at).write_volatile(from.add(at).read_volatile()) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    if to.cast_const() <= from {
        // SAFETY: as the caller vouches; going up does not overwrite what is still to be read.
        return unsafe { memcpy(to, from, bytes) };
    }
    for at in (0..bytes).rev() {
        // SAFETY: the caller vouches for `bytes` bytes at both ends.
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
        // SAFETY: the caller vouches for `bytes` bytes.
        unsafe { to.add(at).write_volatile(byte as u8) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, bytes: usize) -> i32 {
    for at in 0..bytes {
        // SAFETY: the caller vouches for `bytes` bytes of both.
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
    // SAFETY: the caller vouches for a zero byte at the end.
    while unsafe { text.add(bytes).read_volatile() } != 0 {
        bytes += 1;
    }
    bytes
}
