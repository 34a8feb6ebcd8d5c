//! The driver of a host and a device: in which order they are called, and with what.
//!
//! [`DeviceHalf::turn`] moves frames, operations, disk completions and events through a
//! [`nic::Device`]; [`HostHalf::turn`] does the same for a [`host::Host`] and the
//! [`host::Application`] above it. Each is called whenever there may be work. The threads of the
//! server, the simulator, the benchmarks, the fuzz targets and the tests call these two functions
//! and no other driver, so that all of them run the same code; they differ in what they pass as
//! [`DevicePorts`] and [`HostPorts`]: rings between threads, or queues in memory.
//!
//! Invariants:
//!
//! - the echo of a transmit is in the host's ring before the first frame of that transmit is on the
//!   link, so that the host knows of the transmit before its bytes can be acknowledged;
//! - a link, ring or disk that is full loses nothing: the frame, event, operation or request stays
//!   first in line, and [`Turn::blocked`] asks for another turn soon;
//! - no half takes more than a batch from one source in a turn, so that no source starves another;
//! - buffers come back: of sent frames to the device's pool, of read packets over the ring.
//!
//! The driver reads no clock, does no I/O, sleeps nowhere and makes no thread: that is the
//! caller's.
#![no_std]
#![forbid(unsafe_code)]

mod device_half;
mod host_half;

use abi::disk::{DiskCompletion, DiskRequest};
use base::{Duration, Instant};

pub use device_half::{DeviceHalf, DevicePorts};
pub use host_half::{HostHalf, HostPorts};

/// Time after which a half that was [blocked](Turn::blocked) has its next turn.
pub const RETRY: Duration = Duration::from_micros(200);

/// The disk beneath a half.
pub trait DiskPort {
    /// Takes a request.
    ///
    /// # Errors
    /// Returns the request if the disk has no room for it now.
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest>;

    /// Starts the requests that were submitted.
    fn flush(&mut self) {}

    /// Returns the next completion.
    fn poll(&mut self, now: Instant) -> Option<DiskCompletion>;
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Turn {
    /// Something was taken, given out or timed out.
    pub worked: bool,
    /// A batch was as long as it may be: there is more to do at once.
    pub more: bool,
    /// A link, ring or disk was full, or the device takes no operation: another turn is due after
    /// [`RETRY`] even if nothing comes.
    pub blocked: bool,
}
