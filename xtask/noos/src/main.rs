//! A program without an operating system that links every crate which claims to need none.
//!
//! Built and linked by `xtask noos`, never run: linking is the proof. It provides what such a
//! program must provide (an entry point, a panic handler, an allocator, and the memory functions
//! that the compiler calls) and nothing else.
#![no_std]
#![no_main]

extern crate alloc;

mod shim;

use alloc::boxed::Box;
use base::{Prng, SeqNum};
use core::hint::black_box;

// Naming a crate links its whole dependency graph, used or not. If a dependency needed `std`, its
// panic handler would conflict with ours.
use {host as _, nic as _, node as _, tcp_rules as _, wire as _};

/// Entry point.
#[unsafe(no_mangle)]
extern "C" fn _start() -> ! {
    let mut prng = Prng::new(1);
    black_box(SeqNum(prng.next_u32()) + 1);
    black_box(Box::new(abi::aligned::AlignedBuf::new(1)));
    loop {
        core::hint::spin_loop();
    }
}
