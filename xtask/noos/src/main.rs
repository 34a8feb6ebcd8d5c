//! A program without an operating system that uses every crate which claims to need none.
//!
//! Built and linked by `xtask noos`, never run: that it links is the proof. It brings what such a
//! program has to bring (a start, a panic handler, an allocator, the memory functions that the
//! compiler calls) and nothing else.
#![no_std]
#![no_main]

extern crate alloc;

mod shim;

use alloc::boxed::Box;
use base::{Prng, SeqNum};
use core::hint::black_box;

// Linking a crate brings in its whole graph, used or not: a second panic handler from `std` would
// be an error.
use {host as _, nic as _, node as _, tcp_rules as _, wire as _};

/// Where a machine without an operating system begins.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let mut prng = Prng::new(1);
    black_box(SeqNum(prng.next_u32()) + 1);
    black_box(Box::new(abi::aligned::AlignedBuf::new(1)));
    loop {
        core::hint::spin_loop();
    }
}
