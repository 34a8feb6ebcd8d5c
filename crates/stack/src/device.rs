//! Creates the device of a queue above its link.
//!
//! Called by [`crate::Builder`] for a device in the program's process, and by
//! [`crate::nic_process`], which creates a device for each of its programs.

use abi::steering::OwnQueue;
use cli::Failure;
use io::link::Link;
use nic::{Device, DeviceConfig};

use crate::options::StackOptions;
use crate::threads::CryptoThreads;

/// Creates the device of the queue `index`, with the options and the link's address. `configure`
/// changes its engines before the limits of its tables are applied.
///
/// # Errors
/// Fails if no thread for encryption can be started.
pub(crate) fn create_device(
    options: &StackOptions,
    (index, own_queue): (usize, Option<OwnQueue>),
    link: &dyn Link,
    configure: impl FnOnce(&mut DeviceConfig),
) -> Result<Device, Failure> {
    let config = device_config(options, own_queue, options.queues, link, configure);
    with_crypto_threads(Device::new(config, link.capabilities()), index, options.crypto_workers)
}

/// Starts threads that encrypt and decrypt beside the device of a queue or function.
///
/// # Errors
/// Fails if no thread can be started.
pub(crate) fn with_crypto_threads(
    device: Device,
    index: usize,
    workers: u8,
) -> Result<Device, Failure> {
    let threads = CryptoThreads::start(index, workers)?;
    Ok(device.with_crypto_workers(Box::new(threads)))
}

/// Returns the configuration of one of `devices` devices that share the memory for tables.
pub(crate) fn device_config(
    options: &StackOptions,
    own_queue: Option<OwnQueue>,
    devices: u8,
    link: &dyn Link,
    configure: impl FnOnce(&mut DeviceConfig),
) -> DeviceConfig {
    let mut config = options.device_config(own_queue);
    if let Some(mac) = link.link_address() {
        config.mac = mac;
    }
    if link.capabilities().segmentation {
        config.run_bytes_max = options.link.run_bytes_max();
    }
    configure(&mut config);
    options.limits.apply(devices, &mut config);
    config
}
