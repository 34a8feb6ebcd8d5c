//! Everything of Outboard that touches the operating system: wires, disks, clocks, wake-ups.
//!
//! `outboard` and the interoperability tests call it; the device and the host stack below them
//! never do. They see a [`wire::Wire`] or a [`disk::Disk`] as frames and messages of `abi`, so the
//! same code runs over a TAP, over memory, or in the simulator.
//!
//! Wires: [`mem`] (two ends in one process) and [`tap`] (the Linux kernel at the other end);
//! [`fault`] and [`pcap`] wrap any of them, [`bridge`] joins two. Disks: io_uring, a pool of
//! threads, or plain calls, all chosen by [`disk::open_disk`]. [`heap`] says how much memory the
//! process has allocated.
//!
//! This crate holds no protocol of its own: it looks into a frame only where a wire's or a
//! capture's format asks for it. Its `unsafe` is in the modules that make system calls, each of
//! which says so at its head.
#![deny(unsafe_code)]

pub mod bridge;
pub mod clock;
pub mod disk;
pub mod fault;
pub mod heap;
pub mod mem;
pub mod notify;
pub mod pcap;
pub mod tap;
pub mod watch;
pub mod wire;

#[cfg(test)]
mod test_frames;
