//! Errors of opening a TAP. Each message is one line that says what to do.

use std::io;
use std::net::IpAddr;

/// Why a TAP could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The process may not create or configure network interfaces.
    #[error(
        "no permission to set up interface {name}: CAP_NET_ADMIN is needed; run as root, or with \
         `make run`, which uses a private network namespace"
    )]
    NoPermission {
        /// The interface.
        name: String,
    },
    /// The process may not open `/dev/net/tun`, which only root may on this machine.
    #[error(
        "no permission to open /dev/net/tun; run as root, or as root once `chmod 666 /dev/net/tun`"
    )]
    DeviceDenied,
    /// Another process holds the interface.
    #[error(
        "interface {name} is in use by another process; stop that one, or choose another \
         name with --wire tap:NAME"
    )]
    Busy {
        /// The interface.
        name: String,
    },
    /// The kernel has no TUN/TAP driver, or the device node is missing.
    #[error(
        "/dev/net/tun is missing; load the driver with `modprobe tun`, or in a container pass \
         --device /dev/net/tun"
    )]
    NoDevice,
    /// Not a valid interface name, or the name of an interface of another type.
    #[error("{name:?} cannot be a TAP's name: {why}; choose another with --wire tap:NAME")]
    BadName {
        /// The name.
        name: String,
        /// The rule that the name violates.
        why: &'static str,
    },
    /// The address for the kernel's end is already on another interface.
    #[error("{addr} is already an address of interface {interface}; choose another with --peer")]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// The interface that has it.
        interface: String,
    },
    /// Any other error.
    #[error("cannot {doing} interface {name}: {source}; `ip link show {name}` tells its state")]
    Other {
        /// The interface.
        name: String,
        /// The failed action: a verb, and a preposition if the interface's name needs one.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

impl TapError {
    /// Converts the kernel's error after the action `doing` on interface `name`.
    pub(super) fn from_io(name: &str, doing: &'static str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { name },
            Some(libc::EBUSY) => Self::Busy { name },
            _ => Self::Other { name, doing, source },
        }
    }
}
