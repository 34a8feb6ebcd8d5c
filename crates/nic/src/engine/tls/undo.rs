//! What was opened of a packet, text by text.
//!
//! Made by the autonomous offload while it opens a packet; read by it, if a tag is wrong and the
//! packet has to be as it came, and by NVMe over TCP, which finds PDUs in what was opened.

use core::ops::Range;

use super::FRONT;

/// A range of a message's text that was opened, and how to close it again.
#[derive(Clone, Debug)]
pub(crate) struct Undo {
    /// The message's number.
    pub(crate) number: u64,
    /// It is no guess.
    pub(crate) sure: bool,
    /// The message's front, as far as it is known; zeros where it is not.
    pub(crate) front: [u8; FRONT],
    /// Bytes of the message, as far as they are known.
    pub(crate) message_len: u32,
    /// Where in the text it begins.
    pub(crate) offset: u32,
    /// Where in the payload.
    pub(crate) range: Range<usize>,
}
