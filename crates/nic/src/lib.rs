//! The device of Outboard: a NIC as a sans-IO state machine.
//!
//! [`Device`] takes frames from a wire, operations from a host and completions from a disk, and
//! gives frames, events and disk requests back. One device belongs to one worker thread; whoever
//! drives it (the binary's device thread, a simulation, a benchmark) owns the rings, the wire and
//! the disk. It never touches an operating system, a clock or a global: time comes in as `now`,
//! randomness as a seed.
//!
//! - `pipeline` receives (parse, checksum, RSS) and transmits (checks, completes, segments);
//! - `flow` keeps the transmits of a flow in the order of the ring while some of them wait;
//! - `engine` holds what an engine is to the device, and one folder per offload; `file` is IO-TCP's
//!   file to wire, `l5o` the autonomous offload of protocols above TCP, of which `tls` and
//!   `nvme_tcp` are two, `setup`, `teardown` and `splice` AccelTCP's of connections, `quic`
//!   NiQUIC's protection and ordering of QUIC packets.
//!
//! Nothing that crosses a ring, a wire or a disk is trusted: malformed input is counted and
//! dropped, memory is bounded by [`DeviceConfig`], and nothing panics. The device holds no state of
//! a TCP connection that it was not handed: acknowledgments, retransmission and congestion control
//! are the host's.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

extern crate alloc;

mod config;
mod counters;
mod device;
mod engine;
mod flow;
mod pipeline;

pub use config::{
    DeviceConfig, FileConfig, L5oConfig, LONG_TRANSMIT_BYTES, QuicConfig, SetupConfig,
    SpliceConfig, TeardownConfig,
};
pub use device::Device;
pub use engine::ALARMS;
pub use engine::splice::SpliceInfo;

#[cfg(test)]
mod tests;
