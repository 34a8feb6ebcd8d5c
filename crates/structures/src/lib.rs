//! Data structures of the papers: the timer bitmap wheel of AccelTCP and the reordering window of
//! NiQUIC. Also a timing wheel of lists, a table with generational keys ([`slab`]), and arrays that
//! grow in small steps.
//!
//! Used by the device's engines, the slab by other crates too; benchmarks compare the papers'
//! structures with alternatives. They know no packets, no clock and no connections.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod reorder_window;
pub mod slab;
mod tight_vec;
mod timer_bitmap_wheel;
mod timer_list_wheel;

pub use reorder_window::{ReorderWindow, WindowPosition};
pub use tight_vec::push_tight;
pub use timer_bitmap_wheel::TimerBitmapWheel;
pub use timer_list_wheel::TimerListWheel;
