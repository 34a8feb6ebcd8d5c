//! Attachment of a program to a device in another process: the messages before the first
//! descriptor, and the addresses and ports that the program claims.
//!
//! The program sends an [`AttachRequest`], and the device answers with an [`AttachReply`]; their
//! bytes are defined by [`crate::layout`]. Used by the carriers between processes, which also
//! define how rings are passed. Later [`crate::Op::ExtendClaim`] adds to the claim. This module
//! neither sends nor waits.

use alloc::boxed::Box;
use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

use crate::Capabilities;

/// Asks a device to serve a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachRequest {
    /// The directory whose files the device is to send; `None` if it is to send none.
    pub root: Option<RootIdentity>,
    /// The addresses and ports whose packets the program is to receive and may send.
    pub claim: AddressClaim,
    /// The range for outgoing connections that the program had on the device that it lost, whose
    /// connections it keeps; `None` if it had none.
    pub outgoing: Option<PortRange>,
}

/// Identity of a directory whose files the device sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootIdentity {
    /// A directory of the machine that both processes run on (stat(2)).
    Directory {
        /// `st_dev`.
        device: u64,
        /// `st_ino`.
        inode: u64,
    },
    /// The name that the device's operator has given a directory of the device's machine, of at
    /// most [`Self::NAME_BYTES_MAX`] bytes.
    Named(Box<[u8]>),
}

impl RootIdentity {
    /// Length of the longest name in bytes.
    pub const NAME_BYTES_MAX: usize = 255;
}

/// Ports from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// Lowest port.
    pub first: u16,
    /// Highest port, not below `first`.
    pub last: u16,
}

impl PortRange {
    /// Returns the range of one port.
    #[must_use]
    pub const fn of_port(port: u16) -> Self {
        Self { first: port, last: port }
    }

    /// Returns whether the range has this port.
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }

    /// Returns whether both ranges have a port in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

impl FromStr for PortRange {
    type Err = &'static str;

    /// Parses `PORT` or `FIRST-LAST`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (first.parse(), last.parse()) {
            (Ok(first), Ok(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err("expected a port, or FIRST-LAST"),
        }
    }
}

/// Addresses and ports of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressClaim {
    /// The addresses, 1 to [`Self::ADDRS_MAX`] of them.
    pub addrs: Box<[IpAddr]>,
    /// The ports of each of them.
    pub ports: PortClaim,
}

impl AddressClaim {
    /// Maximum number of addresses of a program.
    pub const ADDRS_MAX: usize = 16;
    /// Maximum number of ranges of listed ports.
    pub const RANGES_MAX: usize = 64;
}

/// Ports that a program claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortClaim {
    /// All ports. No other program may claim one of the addresses.
    All,
    /// These ports, and a range for outgoing connections that the device selects. Other programs
    /// may claim other ports of the addresses.
    Listed(Box<[PortRange]>),
    /// As [`Self::Listed`], but other programs may share the ports if they claim the same ranges
    /// in this way: the device distributes connections over them, as with `SO_REUSEPORT`.
    Shared(Box<[PortRange]>),
}

/// Answer to an [`AttachRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttachReply {
    /// The device serves the program.
    Attached(Box<AttachGrant>),
    /// The device does not serve the program.
    Refused(AttachRefusal),
}

/// Properties of a device for a program that it serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachGrant {
    /// Capabilities of the program's device.
    pub capabilities: Capabilities,
    /// The ports from which the program opens connections; `None` if it may use all.
    pub outgoing: Option<PortRange>,
}

/// Reason for which a device does not serve a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachRefusal {
    /// It serves as many programs as it can.
    Full,
    /// The directory is none of its roots.
    UnknownRoot,
    /// It cannot open the root, or has no memory or descriptor for the rings.
    NoResources,
    /// The request is malformed.
    BadRequest,
    /// Another program has claimed one of the addresses or ports.
    Claimed,
    /// One of the listed ports belongs to the ranges for outgoing connections.
    ReservedPort,
    /// The claim is for all ports of addresses that the kernel of the device's machine has too.
    AddressesOfKernel,
    /// The device's link selects frames by addresses, and one of these is not among them.
    NotReceived,
}

impl fmt::Display for AttachRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "it serves as many programs as it can",
            Self::UnknownRoot => "the directory is none of its roots",
            Self::NoResources => "it has no resources for another program",
            Self::BadRequest => "the request is malformed",
            Self::Claimed => "another program has claimed one of the addresses or ports",
            Self::ReservedPort => "ports from 49152 are for outgoing connections",
            Self::AddressesOfKernel => "the kernel of its machine has the same addresses",
            Self::NotReceived => "its link does not receive frames for one of the addresses",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_compared() {
        let range = |text: &str| text.parse::<PortRange>();
        assert_eq!(range("80"), Ok(PortRange { first: 80, last: 80 }));
        assert_eq!(range("80-90"), Ok(PortRange { first: 80, last: 90 }));
        for wrong in ["", "0", "90-80", "80-", "-80", "65536", "80-81-82", "http"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
        let range = |first, last| PortRange { first, last };
        assert!(range(80, 90).contains(90) && !range(80, 90).contains(91));
        assert!(range(80, 90).overlaps(range(90, 91)) && !range(80, 90).overlaps(range(91, 99)));
    }
}
