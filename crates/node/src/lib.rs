//! The driver of a host and a device: calls them in a fixed order and moves their inputs and
//! outputs.
//!
//! [`DeviceHalf::turn`] moves frames, operations, disk completions and events through a
//! [`nic::Device`]; [`HostHalf::turn`] does the same for a [`host::Host`] and the
//! [`host::Application`] above it. Each is called whenever there may be work. The threads of the
//! server, the simulator, the benchmarks, the fuzz targets and the tests call these two functions
//! and no other driver, so that all of them run the same code; they differ in the [`DevicePorts`]
//! and [`HostPorts`] that they pass: rings between threads, or queues in memory.
//!
//! Invariants:
//!
//! - The echo of a transmit is in the host's ring before the first frame of that transmit is on the
//!   link, so that the host knows of the transmit before its bytes can be acknowledged.
//! - A full link, ring or disk loses nothing: the frame, event, operation or request stays first in
//!   line, and [`TurnResult::blocked`] asks for another turn soon.
//! - No half takes more than a batch from one source in a turn, so that no source starves another.
//! - Buffers return: those of sent frames to the device's pool, those of read packets over the
//!   ring, and for each frame handed over between devices a free buffer of the same size.
//!
//! The driver reads no clock, does no I/O, never sleeps and starts no thread: these are the
//! caller's.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod bounce;
pub mod channel;
mod device_half;
pub mod ethernet;
mod host_half;
pub mod pattern_table;
pub mod record;
pub mod remote;
mod switch_half;

use abi::disk::{DiskCompletion, DiskRequest};
use base::{Duration, Instant};

pub use device_half::{DeviceHalf, DevicePorts};
pub use host_half::{HostHalf, HostPorts};
pub use switch_half::{FunctionPorts, LinkPort, SwitchHalf};

/// Time after which a half that was [blocked](TurnResult::blocked) has its next turn.
pub const RETRY: Duration = Duration::from_micros(200);

/// The disk of a half.
pub trait DiskPort {
    /// Takes a request.
    ///
    /// # Errors
    /// Returns the request if the disk has no room for it now.
    fn submit(&mut self, now: Instant, request: DiskRequest) -> Result<(), DiskRequest>;

    /// Starts the submitted requests.
    fn flush(&mut self) {}

    /// Returns the next completion.
    fn poll(&mut self, now: Instant) -> Option<DiskCompletion>;
}

/// Result of a turn of either half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TurnResult {
    /// There was an input, an output or a time-out.
    pub worked: bool,
    /// A batch reached its limit: there is more to do at once.
    pub more: bool,
    /// A link, ring or disk was full, or the device takes no operation: another turn is due after
    /// [`RETRY`] even without new input.
    pub blocked: bool,
}
