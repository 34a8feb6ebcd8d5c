//! Fuzz targets.
//!
//! A fuzz target is a function of a byte string that panics on a fault. `make fuzz` runs the
//! targets under libFuzzer (`src/bin`); `cargo test` replays the inputs that fuzzing has kept
//! (`corpus`), and a target's program without libFuzzer replays the files in its arguments.
//!
//! [`formats`]: parsers. [`descriptors`]: operations and events as bytes.
//! [`attach`], [`carrier_device`], [`carrier_host`], [`shared_ring`], [`ethernet_session`]: the
//! boundary between a program and a device process, from each side.
//! [`ext4`]: the reader of file systems. [`http`]: uploads and downloads.
//! [`transport`]: the NVMe/TCP transport against a hostile peer, with and without a device.
//! [`target`]: the whole NVMe/TCP target. Nothing here reads a clock.
#![forbid(unsafe_code)]

pub mod attach;
pub mod carrier_device;
pub mod carrier_host;
pub mod descriptors;
pub mod ethernet_session;
pub mod ext4;
pub mod formats;
mod fuzz_channel;
pub mod http;
mod input;
mod net;
mod script;
pub mod shared_ring;
pub mod target;
pub mod transport;

/// Returns a fuzz target by name, for programs that replay files.
#[must_use]
pub fn by_name(name: &str) -> Option<fn(&[u8])> {
    match name {
        "attach" => Some(attach::run),
        "carrier_device" => Some(carrier_device::run),
        "carrier_host" => Some(carrier_host::run),
        "descriptors" => Some(descriptors::run),
        "ethernet_session" => Some(ethernet_session::run),
        "ext4" => Some(ext4::run),
        "formats" => Some(formats::run),
        "http" => Some(http::run),
        "shared_ring" => Some(shared_ring::run),
        "transport" => Some(transport::run),
        "target" => Some(target::run),
        _ => None,
    }
}

/// Runs a fuzz target on each file of the command line.
///
/// # Errors
/// A file cannot be read.
pub fn replay(target: fn(&[u8])) -> std::io::Result<()> {
    std::env::args_os().skip(1).try_for_each(|path| {
        target(&std::fs::read(path)?);
        Ok(())
    })
}
