//! Ranges of a packet that were decrypted.
//!
//! Written by the TLS receive context while it decrypts a packet, and read by it to restore the
//! packet if a tag is wrong. NVMe/TCP also reads them, since it finds PDUs in the decrypted bytes.

use core::ops::Range;

use super::FRONT;

/// A decrypted range of a message's text, with all that is needed to encrypt it again.
#[derive(Clone, Debug)]
pub(crate) struct DecryptedRange {
    /// Record number of the message.
    pub(crate) number: u64,
    /// True if the number is not speculative, or was proved by the tag.
    pub(crate) confirmed: bool,
    /// The message's front; unknown bytes are zero.
    pub(crate) front: [u8; FRONT],
    /// Length of the message in bytes; 0 if unknown.
    pub(crate) message_len: u32,
    /// Offset in the message's text.
    pub(crate) offset: u32,
    /// Range of the packet's payload.
    pub(crate) range: Range<usize>,
}
