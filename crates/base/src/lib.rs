//! Basic types of every other crate: time, deadlines, sequence numbers, pseudorandom numbers, a
//! fast hash and counters.
//!
//! Nothing here uses an operating system: time and seeds are passed in, so that the same code runs
//! on a device, on a host and in a deterministic simulation. No dependencies, no `unsafe`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod counters;
mod deadline_heap;
mod mix;
mod prng;
mod seq;
mod time;

pub use deadline_heap::DeadlineHeap;
pub use mix::{fnv1a, mix};
pub use prng::Prng;
pub use seq::{SeqNum, low32};
pub use time::{Duration, Instant};
