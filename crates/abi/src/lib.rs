//! The contract between host and NIC: operations, events, capabilities, buffers and the rings that
//! carry them.
//!
//! The host sends [`Op`]s down one ordered ring per queue; the device answers with [`Event`]s. Both
//! are ordinary enums, moved by value. `host` and `nic` see only this crate, `base` and `wire`,
//! never each other. The modules [`port`] and [`disk`] describe what a device needs below itself (a
//! wire, a disk), so that a simulated device and a real one are the same code; [`crypto`] what both
//! sides need to seal and open.
//!
//! The `unsafe` of shared memory lives here ([`ring`], [`aligned`]) and nowhere else below `io`.
#![no_std]
#![deny(unsafe_code)]

#[cfg(any(loom, test))]
extern crate std;

extern crate alloc;

pub mod aligned;
mod caps;
pub mod count;
pub mod crypto;
pub mod disk;
mod event;
pub mod l5o;
pub mod nvme_tcp;
mod op;
mod packet;
pub mod port;
pub mod quic;
pub mod ring;
pub mod setup;
pub mod splice;
pub mod teardown;

pub use caps::{Capabilities, ExtentCount, FileLimits, Refusal};
pub use event::{
    Checksum, Event, FileFault, FileKind, FileOpened, FileStat, Load, Received, TransmitDone,
    TransmitOutcome,
};
pub use op::{
    FileAccess, FileExtent, FileId, FlowId, Header, HeaderTooLong, Op, Part, Parts, Transmit,
    TsOption,
};
pub use packet::{PacketBuf, PacketPool};
