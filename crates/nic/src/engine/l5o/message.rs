//! One message of which something is missing.
//!
//! Called by `chain`. A message is *live* while its text is opened and added up, *dead* where only
//! its place still counts: it is complete, or was given up. Dead neighbours become one. Invariant:
//! a byte is added to a live message's sum once, and what is dead stays so.

use abi::crypto::{Sum, TAG_BYTES};
use base::SeqNum;

use crate::engine::seen::Seen;
use crate::engine::tls::FRONT;

/// A message, or a run of dead ones.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// Sequence number of its first byte.
    pub(super) start: SeqNum,
    /// Bytes, header and all; zero while its header is not complete.
    pub(super) len: u32,
    /// Its number.
    pub(super) number: u64,
    /// Its text is opened and added up.
    pub(super) live: bool,
    /// Its length is assumed.
    pub(super) assumed: bool,
    /// The explicit part of its nonce is.
    pub(super) explicit_assumed: bool,
    /// Some of its text was opened.
    pub(super) opened: bool,
    /// Its front, as far as it was seen.
    pub(super) front: [u8; FRONT],
    /// Its tag, as far as it was seen.
    pub(super) tag: [u8; TAG_BYTES],
    /// Which of its bytes were seen.
    pub(super) seen: Seen,
    /// The sum over its text.
    pub(super) sum: Sum,
}

impl Message {
    /// A message of which nothing was seen.
    pub(super) fn new(start: SeqNum, len: u32, number: u64, live: bool) -> Self {
        Self {
            start,
            len,
            number,
            live,
            assumed: false,
            explicit_assumed: false,
            opened: false,
            front: [0; FRONT],
            tag: [0; TAG_BYTES],
            seen: Seen::default(),
            sum: Sum::default(),
        }
    }

    /// Where the next one begins.
    pub(super) fn end(&self) -> SeqNum {
        self.start + self.len
    }

    /// Whether it is nothing but a place.
    pub(super) const fn is_place(&self) -> bool {
        !self.live && self.len > 0 && !self.assumed
    }
}
