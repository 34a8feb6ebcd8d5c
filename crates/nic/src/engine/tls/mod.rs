//! TLS behind the seam of [`super::l5o`]: what the autonomous offload has to know of records.
//!
//! [`Keys`] is one direction's keys and framing. The receive machine asks it for a message's length
//! ([`Keys::length`], the magic pattern and the length rule of Autonomous NIC Offloads, section
//! 3), has it open any range ([`Keys::open_range`]) and has it judge a trailer ([`Keys::verify`]).
//! `seal` is the transmit side; `undo` is what was opened of a packet.
//!
//! It keeps no state of a connection; sequence numbers of TCP are unknown here.

mod seal;
mod undo;

use abi::crypto::{Aead, CryptoProvider, Sum, TAG_BYTES};
use abi::l5o::TlsState;
use alloc::boxed::Box;
use alloc::vec::Vec;
use wire::tls::{Framing, HEADER_BYTES, NONCE_BYTES};

pub(crate) use seal::{Seal, TxState};
pub(crate) use undo::Undo;

/// Bytes of a record's front, header and explicit nonce, where it is longest.
pub(crate) const FRONT: usize = Framing::FRONT_BYTES_MAX;
/// Bytes of a header: pattern and length.
#[expect(clippy::cast_possible_truncation, reason = "five")]
pub(crate) const HEADER: u32 = HEADER_BYTES as u32;
/// Bytes of a tag.
#[expect(clippy::cast_possible_truncation, reason = "sixteen")]
pub(crate) const TAG: u32 = TAG_BYTES as u32;

/// Keys of one direction, and how its records are framed.
pub(crate) struct Keys {
    aead: Box<dyn Aead>,
    iv: [u8; NONCE_BYTES],
    framing: Framing,
}

impl Keys {
    /// The keys of `state`; none where the provider knows no such suite or key.
    pub(crate) fn new(provider: &dyn CryptoProvider, state: &TlsState) -> Option<Self> {
        let key = state.key.get(..state.suite.key_bytes())?;
        let aead = provider.aead(state.suite, key)?;
        Some(Self { aead, iv: state.iv, framing: state.framing() })
    }

    /// How records are framed.
    pub(crate) const fn framing(&self) -> Framing {
        self.framing
    }

    /// Bytes before the sealed text.
    pub(crate) const fn front(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "at most thirteen")]
        let front = self.framing.front() as u32;
        front
    }

    /// Whether part of the nonce is in the record.
    pub(crate) const fn has_explicit(&self) -> bool {
        self.framing.explicit
    }

    /// Bytes of a message, header and all, whose first bytes are `header`; none where these are no
    /// header.
    pub(crate) fn length(&self, header: &[u8]) -> Option<u32> {
        let header = header.first_chunk::<HEADER_BYTES>()?;
        self.framing.parse(*header).map(|header| HEADER + u32::from(header.len))
    }

    /// Bytes of sealed text in a message of `len` bytes.
    pub(crate) const fn text_len(&self, len: u32) -> u32 {
        len.saturating_sub(self.front() + TAG)
    }

    /// Opens a range of a message's text and adds it to the message's sum.
    pub(crate) fn open_range(
        &self,
        number: u64,
        front: &[u8; FRONT],
        sum: &mut Sum,
        offset: u32,
        range: &mut [u8],
    ) {
        let nonce = self.framing.nonce_of(&self.iv, number, front);
        self.aead.open_range(&nonce, sum, u64::from(offset), range);
    }

    /// Puts an opened range back to what came.
    pub(crate) fn close_range(
        &self,
        number: u64,
        front: &[u8; FRONT],
        offset: u32,
        range: &mut [u8],
    ) {
        let nonce = self.framing.nonce_of(&self.iv, number, front);
        self.aead.apply(&nonce, u64::from(offset), range);
    }

    /// Whether `tag` is that of a message of which `sum` has seen all of the text.
    pub(crate) fn verify(
        &self,
        number: u64,
        front: &[u8; FRONT],
        len: u32,
        sum: &Sum,
        tag: &[u8; TAG_BYTES],
    ) -> bool {
        let nonce = self.framing.nonce_of(&self.iv, number, front);
        let text_len = self.text_len(len);
        let (aad, used) = self.framing.aad(number, front[0], text_len as usize);
        let made = self.aead.finish(&nonce, &aad[..used], u64::from(text_len), sum);
        // No early end: the time must not say how much of a forged tag was right.
        made.iter().zip(tag).fold(0, |diff, (a, b)| diff | (a ^ b)) == 0
    }

    /// Opens a whole message in place. Where its tag is wrong it is as it was. `scratch` is room
    /// for a copy.
    pub(crate) fn open_whole(
        &self,
        number: u64,
        message: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> bool {
        let mut front = [0; FRONT];
        let front_len = self.framing.front();
        if message.len() < front_len + TAG_BYTES {
            return false;
        }
        front[..front_len].copy_from_slice(&message[..front_len]);
        let nonce = self.framing.nonce_of(&self.iv, number, &front);
        let text_len = message.len() - front_len - TAG_BYTES;
        let (aad, used) = self.framing.aad(number, front[0], text_len);
        let sealed = &mut message[front_len..];
        scratch.clear();
        scratch.extend_from_slice(sealed);
        let opened = self.aead.open(&nonce, &aad[..used], sealed).is_ok();
        // A tag stays as it came, a text too where the tag is wrong; `open` promises neither.
        let keep = if opened { text_len } else { 0 };
        sealed[keep..].copy_from_slice(&scratch[keep..]);
        opened
    }
}
