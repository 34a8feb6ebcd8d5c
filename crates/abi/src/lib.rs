//! The contract between host and device: operations, events, capabilities, buffers, and the rings
//! that carry them.
//!
//! The host sends [`Op`]s through one ordered ring per queue; the device answers with [`Event`]s.
//! Both are ordinary enums, moved by value; [`layout`] is their form in bytes, for carriers that
//! leave the process. The crates `host` and `nic` depend on this crate, on
//! `base` and on `wire`, but never on each other.
//!
//! The modules [`link`] and [`disk`] describe the link and the disk below a device, so that a
//! simulated device and a real one run the same code. [`crypto`] has the traits of the cryptography
//! that both sides need, [`decompress`] those of decoders.
//!
//! The `unsafe` code of shared memory is in [`ring`] and [`aligned`]; no other crate below `io` has
//! any.
#![no_std]
#![deny(unsafe_code)]

#[cfg(any(loom, test))]
extern crate std;

extern crate alloc;

pub mod aligned;
pub mod attach;
mod caps;
pub mod count;
pub mod crypto;
pub mod decompress;
pub mod disk;
mod event;
pub mod inspect;
pub mod l5o;
pub mod layout;
pub mod link;
pub mod nvme_tcp;
mod op;
mod packet;
pub mod quic;
pub mod region;
pub mod ring;
pub mod setup;
pub mod splice;
pub mod steering;
pub mod teardown;

pub use caps::{Capabilities, ExtentCount, FileLimits, Refusal};
pub use event::{
    Checksum, DeviceLoad, Event, FileFault, FileKind, FileOpened, FileStat, ReceivedFrame,
    TransmitDone, TransmitOutcome,
};
pub use op::{
    FileAccess, FileExtent, FileId, FlowId, HeaderTooLong, Op, PacketHeader, Transmit,
    TransmitPart, TransmitParts, TsvalPosition,
};
pub use packet::{PacketBuf, PacketPool};

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of these is moved several times per packet. An event fills two cache lines of a ring,
    /// an operation four.
    #[test]
    fn descriptors_stay_small() {
        assert!(size_of::<ReceivedFrame>() <= 128);
        assert!(size_of::<Event>() <= 128);
        assert!(size_of::<Op>() <= 256);
        assert!(size_of::<link::TxFrame>() <= 256);
        assert!(size_of::<link::RxFrame>() <= 32);
    }
}
