//! Operating-system access: links, disks, clocks and wake-ups.
//!
//! Used by `apps`, `quic`, `stack`, `outboard`, `sim`, `lab` and the interoperability tests. Device
//! (`nic`) and host stack (`host`) never call it: they see a [`link::Link`] or a [`disk::Disk`] as
//! frames and messages of `abi`, so the same code runs over a TAP, over memory, and in the
//! simulator.
//!
//! Links: [`memory_link`] (two ends in one process), [`tap`] (the Linux kernel at the other end),
//! [`macvtap`], [`packet_socket`] and [`xdp`] (the network of an interface); [`fault`] and [`pcap`]
//! wrap any link, [`bridge`] joins two. Disks: io_uring, a thread pool, or plain calls, chosen by
//! [`disk::open_disk`]. [`shared_ring`] carries descriptors between two processes, which
//! [`attachment`] connects; [`shared_region`] is memory that they name in descriptors;
//! [`carrier_socket`] carries frames with descriptors between two machines. [`heap`]
//! reports how much memory the process has allocated.
//!
//! This crate implements no protocol: it parses a frame only if the format of a link or a capture
//! requires it. `unsafe` code is confined to the modules that make system calls, which declare it
//! at their head.
#![deny(unsafe_code)]

pub mod activation;
pub mod attachment;
mod bpf;
pub mod bridge;
pub mod carrier_socket;
pub mod clock;
pub mod confinement;
pub mod disk;
pub mod fault;
mod generic_netlink;
pub mod heap;
mod interface;
pub mod interface_info;
pub mod link;
mod link_events;
pub mod macvtap;
mod mapping;
pub mod memory_link;
mod netlink;
pub mod notify;
pub mod open_error;
pub mod packet_socket;
pub mod pcap;
mod queue_events;
mod queue_steering;
mod sealed_file;
mod shared_copy;
pub mod shared_region;
pub mod shared_ring;
mod socket_option;
pub mod tap;
pub mod thread_stat;
pub mod vnet;
pub mod watch;
pub mod watched_link;
pub mod xdp;
pub mod xdp_features;

#[cfg(test)]
mod test_frames;
