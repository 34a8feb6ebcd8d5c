//! Errors of opening a TAP. Each message is one line that says what to do.

use std::io;
use std::net::IpAddr;

/// Reason for which a TAP could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The process may not create or configure network interfaces.
    #[error(
        "cannot set up TAP {name}: Operation not permitted; run as root, grant CAP_NET_ADMIN, or \
         use `make run`, which creates a private network namespace"
    )]
    NoPermission {
        /// The interface.
        name: String,
    },
    /// The process may not open `/dev/net/tun`, which only root may on this machine.
    #[error(
        "cannot open /dev/net/tun: Permission denied; run as root, or allow access with \
         `chmod 666 /dev/net/tun`"
    )]
    DeviceDenied,
    /// Another process holds the interface.
    #[error(
        "cannot open TAP {name}: in use by another process; stop it, or choose another name with \
         --link tap:NAME"
    )]
    Busy {
        /// The interface.
        name: String,
    },
    /// The kernel has no TUN/TAP driver, or the device node is missing.
    #[error(
        "cannot open /dev/net/tun: no such device; run `modprobe tun`, or start the container \
         with --device /dev/net/tun"
    )]
    NoDevice,
    /// Not a valid interface name, or the name of an interface of another type.
    #[error("invalid TAP name {name:?}: {why}; choose another with --link tap:NAME")]
    BadName {
        /// The name.
        name: String,
        /// The rule that the name violates.
        why: &'static str,
    },
    /// The address for the kernel's end is already on another interface.
    #[error(
        "address {addr} is already in use on interface {interface}; choose another with --peer"
    )]
    AddressInUse {
        /// The address.
        addr: IpAddr,
        /// The interface that has it.
        interface: String,
    },
    /// Any other error.
    #[error("cannot {doing} interface {name}: {source}; check `ip link show {name}`")]
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
