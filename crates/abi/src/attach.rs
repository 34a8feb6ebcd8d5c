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
use crate::quic::QuicSteering;

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
    /// The addresses, 1 to [`Self::ADDRS_MAX`] of them, or none yet if they are automatic.
    pub addrs: Box<[IpAddr]>,
    /// The ports of each of them.
    pub ports: PortClaim,
    /// The queue that claims them, if the program has several.
    pub queue: Option<ClaimedQueue>,
    /// The program asks the network for addresses (DHCP, SLAAC): it may send the messages of these
    /// protocols before it has an address, and receives the answers. One program of a device may,
    /// with all ports of its addresses.
    pub automatic: bool,
}

impl AddressClaim {
    /// Creates the claim of a program with one queue.
    #[must_use]
    pub const fn new(addrs: Box<[IpAddr]>, ports: PortClaim) -> Self {
        Self { addrs, ports, queue: None, automatic: false }
    }

    /// Returns the claim with further addresses; `None` if it has them.
    #[must_use]
    pub fn with_addrs(&self, addrs: impl IntoIterator<Item = IpAddr>) -> Option<Self> {
        let mut all = self.addrs.to_vec();
        for addr in addrs {
            if !all.contains(&addr) {
                all.push(addr);
            }
        }
        (all.len() > self.addrs.len()).then(|| Self { addrs: all.into(), ..self.clone() })
    }

    /// Maximum number of addresses of a program.
    pub const ADDRS_MAX: usize = 16;
    /// Maximum number of ranges of listed ports.
    pub const RANGES_MAX: usize = 64;
}

/// One of the queues of a program. Each has a host and an attachment of its own, and claims the
/// same addresses and ports, all of them or listed ones. The device steers flows to them as one
/// with several queues does ([`crate::steering`]).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ClaimedQueue {
    /// Seed of the steering, secret and the same for all queues of the program: a process that does
    /// not know it cannot claim the ports of another queue.
    pub seed: u64,
    /// Index of the queue.
    pub index: u8,
    /// Number of queues, 1 to [`Self::QUEUES_MAX`].
    pub queues: u8,
    /// Steering of QUIC datagrams, to as many queues; `None` to steer them as other datagrams.
    pub quic: Option<QuicSteering>,
}

impl ClaimedQueue {
    /// Maximum number of queues of a program.
    pub const QUEUES_MAX: u8 = 16;

    /// Returns whether both are queues of one program.
    #[must_use]
    pub fn is_of_program_of(self, other: Self) -> bool {
        Self { index: other.index, ..self } == other
    }
}

impl fmt::Debug for ClaimedQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Leaves out the seed.
        let Self { index, queues, quic, .. } = self;
        write!(f, "ClaimedQueue({index} of {queues}, {quic:?})")
    }
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
    /// Another program has automatic addresses.
    OtherAutomatic,
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
            Self::OtherAutomatic => "another program has automatic addresses",
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
