//! Engines: what completes a transmit's bytes beyond headers and checksums. One folder each.
//!
//! An engine takes parts of a transmit and gives them back [`Resolved`], at once or later, under a
//! name. It knows neither flows nor packets; the order of transmits is [`crate::flow`]'s.

use abi::port::Payloads;
use smallvec::SmallVec;

use crate::slab::Key;

pub(crate) mod file;
pub(crate) mod l5o;
pub(crate) mod nvme_tcp;
mod output;
pub(crate) mod quic;
mod seen;
pub(crate) mod setup;
mod source;
pub(crate) mod splice;
pub(crate) mod teardown;
pub(crate) mod tls;
mod window;

/// The payload of a transmit, complete.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// What goes on the wire.
    pub(crate) payloads: Payloads,
    /// The blocks to hold once it has left, with the bytes taken from each; none for a
    /// retransmission.
    pub(crate) holds: SmallVec<[(Key, u32); 2]>,
    /// Bytes that come from files.
    pub(crate) file_bytes: u32,
}
