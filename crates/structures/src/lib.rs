//! Data structures of the papers, the timer bitmap wheel of AccelTCP and the reordering window of
//! NiQUIC; and storage whose keys go stale ([`slab`]).
//!
//! The device's engines use them, and the slab others too; benchmarks compare those of the papers
//! with others of their kind. They know no packets, no clock and no connections.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod reorder_window;
pub mod slab;
mod timer_bitmap_wheel;

pub use reorder_window::{ReorderWindow, WindowPosition};
pub use timer_bitmap_wheel::TimerBitmapWheel;
