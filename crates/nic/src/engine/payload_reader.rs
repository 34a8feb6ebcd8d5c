//! A sequential reader over the payload parts of a transmit.
//!
//! Used while a transmit is encrypted. Each byte is read once. A read beyond the end yields nothing
//! and leaves the output unchanged; transmits are checked beforehand, so this cannot happen.

use abi::link::{FramePayload, FramePayloads};

/// A reading position in a list of payloads.
pub(crate) struct PayloadReader<'a> {
    payloads: &'a [FramePayload],
    /// Bytes already read of the first payload.
    at: usize,
}

impl<'a> PayloadReader<'a> {
    /// Creates a reader at the start of `payloads`.
    pub(crate) const fn new(payloads: &'a [FramePayload]) -> Self {
        Self { payloads, at: 0 }
    }

    /// Copies the next `out.len()` bytes.
    pub(crate) fn copy(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let Some(here) = self.next_slice(out.len()) else { return };
            let (now, later) = out.split_at_mut(here.len());
            now.copy_from_slice(here);
            out = later;
        }
    }

    /// Consumes and returns the next `bytes` bytes if they are contiguous in memory. Otherwise
    /// consumes nothing.
    pub(crate) fn contiguous(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let before = (self.payloads, self.at);
        let here = self.next_slice(bytes).filter(|here| here.len() == bytes);
        if here.is_none() {
            (self.payloads, self.at) = before;
        }
        here
    }

    /// Skips the next `bytes` bytes.
    pub(crate) fn skip(&mut self, bytes: u32) {
        self.visit(bytes, |_| ());
    }

    /// Calls `f` with the next `bytes` bytes, one contiguous piece at a time.
    pub(crate) fn visit(&mut self, bytes: u32, mut f: impl FnMut(&[u8])) {
        let mut left = bytes as usize;
        while left > 0 {
            let Some(here) = self.next_slice(left) else { return };
            f(here);
            left -= here.len();
        }
    }

    /// Appends the next `bytes` bytes to `out` by reference.
    pub(crate) fn share(&mut self, bytes: u32, out: &mut FramePayloads) {
        let mut left = bytes as usize;
        while left > 0 {
            let Some(here) = self.next_slice(left) else { return };
            // `next_slice` has set `self.payloads` to the payload that it read from.
            if let Some(first) = self.payloads.first() {
                out.push(first.slice(self.at - here.len(), here.len()));
            }
            left -= here.len();
        }
    }

    /// Consumes and returns up to `most` bytes of the first payload that has any left.
    fn next_slice(&mut self, most: usize) -> Option<&'a [u8]> {
        loop {
            let (first, rest) = self.payloads.split_first()?;
            let left = &first.as_slice()[self.at..];
            if left.is_empty() {
                (self.payloads, self.at) = (rest, 0);
                continue;
            }
            let here = &left[..left.len().min(most)];
            self.at += here.len();
            return Some(here);
        }
    }
}
