//! Attachment to a device in another process, `outboard nic`, through shared memory.
//!
//! The device listens on a Unix socket. A program connects and sends an
//! [`abi::attach::AttachRequest`]; the device creates a ring for each direction
//! ([`io::shared_ring`]) and sends both with its answer. From then on descriptors cross in the
//! rings and doorbells in the socket ([`channel`]). The host thread of the program has one end
//! ([`program`]), the device's thread the other ([`program_ports`]); both run the same code as in
//! one process ([`crate::threads`]).
//!
//! A device serves several programs, each with a function of its own ([`nic::switch`]). A program
//! claims its addresses and ports when it attaches; a thread beside the device accepts or refuses
//! it ([`acceptor`]).
//!
//! Payload lies inline in the descriptors: it is copied into the ring and out of it, in both
//! directions. Data for registered buffers is placed in a region that the program creates for each
//! attachment and sends with its request; without one the device places none.
//! Offloads whose jobs cannot cross are not offered ([`abi::Capabilities::for_other_process`]).
//!
//! Invariants:
//! - Neither side trusts the other. What it receives is bounded, copied and checked, and a fault
//!   ends the attachment.
//! - No call to the other side blocks a host or device thread: doorbells are sent and read without
//!   blocking, and messages are exchanged by threads beside them, within a limit of time.
//! - When the device ends, the program's connections stay: TCP is the program's. It attaches again,
//!   to the same device or another one of its list, and tells its host that the device's state is
//!   lost. When the program ends, the device discards the program's state.

mod acceptor;
mod attachment;
mod channel;
mod handshake;
mod program;
mod program_ports;
mod roots;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

pub(crate) use acceptor::{ProgramArrival, ProgramArrivals, accept_programs};
pub(crate) use attachment::{AttachedEnd, AttachmentLoss, FormerEnds, new_notifier};
pub(crate) use handshake::AttachError;
pub(crate) use program::{AttachCounters, ProgramCarrier, restrict_to};
pub(crate) use program_ports::ProgramPorts;
pub(crate) use roots::ProgramRoots;
pub use roots::RootDirectory;

/// Addresses of a device in another process, and of those that stand by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicAddress {
    paths: Vec<PathBuf>,
}

impl NicAddress {
    /// Returns the paths of the devices' sockets, in the order in which they are tried.
    #[must_use]
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }
}

impl FromStr for NicAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = |part: &str| match part.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Some(PathBuf::from(path)),
            _ => None,
        };
        let paths: Option<Vec<_>> = text.split(',').map(path).collect();
        paths.map(|paths| Self { paths }).ok_or_else(|| {
            format!("invalid device `{text}`; expected unix:PATH, or several after commas")
        })
    }
}

impl fmt::Display for NicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, path) in self.paths.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}unix:{}", path.display())?;
        }
        Ok(())
    }
}

/// Returns the identity of a directory, for the device to find it among its roots.
///
/// # Errors
/// If it is not there.
pub(crate) fn root_identity(path: &Path) -> std::io::Result<abi::attach::RootIdentity> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok(abi::attach::RootIdentity { device: metadata.dev(), inode: metadata.ino() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_lists_of_sockets() {
        let one: NicAddress = "unix:/run/a".parse().unwrap();
        assert_eq!(one.paths(), [Path::new("/run/a")]);
        let two: NicAddress = "unix:/run/a,unix:b".parse().unwrap();
        assert_eq!((two.paths().len(), two.to_string()), (2, "unix:/run/a,unix:b".to_owned()));
        for wrong in ["", "unix:", "/run/a", "unix:a,", "unix:a,b", "ether:eth0"] {
            assert!(wrong.parse::<NicAddress>().unwrap_err().contains("unix:PATH"), "{wrong}");
        }
    }
}
