//! A device that a program may attach to, with the sockets that lead to it.

use std::sync::Arc;

use cli::Failure;
use io::carrier_socket::CarrierSockets;

use super::address::DeviceAddress;

/// A device that a program may attach to.
pub(super) struct DeviceTarget {
    pub(super) address: DeviceAddress,
    /// Sockets of the interface that leads to a device on another machine.
    pub(super) sockets: Option<Arc<CarrierSockets>>,
}

impl DeviceTarget {
    /// Opens the sockets that need privileges, for this number of attachments.
    ///
    /// # Errors
    /// If an interface cannot be opened; the message says what to do.
    pub(super) fn open(address: &DeviceAddress, attachments: usize) -> Result<Self, Failure> {
        let sockets = match address {
            DeviceAddress::Unix(_) => None,
            // A session may begin before the socket of the former one is free.
            DeviceAddress::Ethernet { interface, .. } => {
                Some(super::open_sockets(interface, 2 * attachments)?)
            }
        };
        Ok(Self { address: address.clone(), sockets })
    }
}
