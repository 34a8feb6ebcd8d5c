//! Attachment to a device in another process, `outboard nic`, on this machine or another one.
//!
//! A program connects and sends an [`abi::attach::AttachRequest`]; the device answers. From then on
//! descriptors cross in a channel ([`channel`]). The host thread of the program has one end
//! ([`program`]), the device's thread the other ([`program_ports`]); both run the same code as in
//! one process ([`crate::threads`]).
//!
//! - On one machine the device listens on a Unix socket, creates a ring for each direction
//!   ([`io::shared_ring`]) and sends both with its answer. Doorbells cross in the socket
//!   ([`shared_channel`]).
//! - Between machines the messages and the descriptors cross in a session over Ethernet
//!   ([`ethernet_channel`], [`node::ethernet`]).
//!
//! A program attaches each of its queues, to the same device ([`program_devices`]).
//!
//! If it waits for automatic addresses, it attaches for that first ([`addr_link`]).
//!
//! A device serves several programs, each with a function of its own ([`nic::switch`]). A program
//! claims its addresses and ports when it attaches; threads beside the device accept or refuse it
//! when its request has arrived ([`acceptor`], [`ethernet_listener`], [`waiting_programs`]). It may
//! add to its claim later ([`claim_extension`]).
//!
//! Payload crosses in the descriptors or beside them: it is copied into the channel and out of it,
//! in both directions. Data for registered buffers is placed in a region that the program creates
//! for each attachment and sends with its request, or, over Ethernet, in memory of the device.
//! Sets of patterns to inspect for cross once, and are compiled beside the device's thread
//! ([`pattern_thread`]). Decompression jobs cannot cross
//! ([`abi::Capabilities::for_other_process`]).
//!
//! Invariants:
//! - Neither side trusts the other. What it receives is bounded, copied and checked, and a fault
//!   ends the attachment.
//! - No call to the other side blocks a host or device thread: doorbells and frames are sent and
//!   received without blocking, and messages are exchanged by threads beside them, within a limit
//!   of time.
//! - When the device ends, the program's connections stay: TCP is the program's. It attaches again,
//!   to the same device or another one of its list, and tells its host that the device's state is
//!   lost. When the program ends, the device discards the program's state.
//! - Sockets that need privileges are opened at the start, and kept.

mod acceptor;
mod addr_link;
mod address;
mod attachment;
mod channel;
mod claim_extension;
mod device_target;
mod ethernet_channel;
mod ethernet_listener;
mod ethernet_sessions;
mod handshake;
mod pattern_thread;
mod program;
mod program_devices;
mod program_ports;
mod received_addresses;
mod roots;
mod shared_channel;
mod waiting_programs;

use std::path::Path;
use std::sync::Arc;

use abi::attach::RootIdentity;
use cli::Failure;
use io::carrier_socket::CarrierSockets;
use node::ethernet::ETHER_TYPE;

use crate::open_failure::open_link_failure;

pub(crate) use acceptor::{ProgramArrival, ProgramArrivals, ProgramListeners, accept_programs};
pub(crate) use addr_link::AttachedAddrLink;
pub use address::NicAddress;
pub(crate) use attachment::{AttachedEnd, AttachmentLoss, FormerEnds, new_notifier};
pub(crate) use claim_extension::{ClaimExtension, ClaimFailure};
pub(crate) use ethernet_listener::EthernetListener;
pub(crate) use handshake::{AttachError, ProgramOrigin};
pub(crate) use pattern_thread::PatternThread;
pub(crate) use program::{AttachCounters, ProgramCarrier, restrict_to};
pub(crate) use program_devices::ProgramDevices;
pub(crate) use program_ports::ProgramPorts;
pub(crate) use received_addresses::ReceivedAddresses;
pub(crate) use roots::ProgramRoots;
pub use roots::RootDirectory;

/// Opens packet sockets for the carrier's frames on an interface.
fn open_sockets(interface: &str, sockets: usize) -> Result<Arc<CarrierSockets>, Failure> {
    let opened = CarrierSockets::open(interface, ETHER_TYPE, sockets);
    opened.map_err(open_link_failure)
}

/// Returns the identity of a directory, for the device to find it among its roots.
///
/// # Errors
/// If it is not there.
pub(crate) fn root_identity(path: &Path) -> std::io::Result<RootIdentity> {
    use std::os::unix::fs::MetadataExt;
    let metadata = std::fs::metadata(path)?;
    Ok(RootIdentity::Directory { device: metadata.dev(), inode: metadata.ino() })
}
