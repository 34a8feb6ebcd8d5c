//! What can go wrong when a TAP is opened, each told in one line that says what to do next.

use std::io;
use std::net::IpAddr;

/// Why a TAP could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The process may not make or configure network interfaces.
    #[error(
        "no permission to set up interface {name}: CAP_NET_ADMIN is needed; run as root, or with \
         `make run`, which uses a private network namespace"
    )]
    NoPermission {
        /// The interface.
        name: String,
    },
    /// The process may not even open the driver's device, on a machine that keeps it for root.
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
    /// The kernel has no TUN/TAP driver here.
    #[error(
        "/dev/net/tun is missing; load the driver with `modprobe tun`, or in a container pass \
         --device /dev/net/tun"
    )]
    NoDevice,
    /// No interface can have this name, or one of another kind has it.
    #[error("{name:?} cannot be a TAP's name: {why}; choose another with --wire tap:NAME")]
    BadName {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The address for the kernel's end is already on another interface.
    #[error("{addr} is already an address of interface {interface}; choose another with --peer")]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// Who has it.
        interface: String,
    },
    /// Something else.
    #[error("cannot {doing} interface {name}: {source}; `ip link show {name}` tells its state")]
    Other {
        /// The interface.
        name: String,
        /// What was being done.
        doing: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl TapError {
    /// The error for what the kernel answered while `doing` something to the interface `name`.
    pub(super) fn from_io(name: &str, doing: &'static str, source: io::Error) -> Self {
        let name = name.to_owned();
        match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::NoPermission { name },
            Some(libc::EBUSY) => Self::Busy { name },
            _ => Self::Other { name, doing, source },
        }
    }
}
