//! Reads the payload of a transmit from its start to its end, over all its parts.
//!
//! Called while a transmit is sealed. It hands bytes out once; what is asked beyond the end reads
//! as nothing and leaves the output as it is (plans are checked, so that this cannot happen).

use abi::port::{Payload, Payloads};

/// A place in payloads.
pub(crate) struct Source<'a> {
    payloads: &'a [Payload],
    /// Bytes of the first that were read.
    at: usize,
}

impl<'a> Source<'a> {
    /// At the start.
    pub(crate) const fn new(payloads: &'a [Payload]) -> Self {
        Self { payloads, at: 0 }
    }

    /// Copies the next bytes.
    pub(crate) fn copy(&mut self, mut out: &mut [u8]) {
        while !out.is_empty() {
            let Some(here) = self.here(out.len()) else { return };
            let (now, later) = out.split_at_mut(here.len());
            now.copy_from_slice(here);
            out = later;
        }
    }

    /// Leaves the next bytes out.
    pub(crate) fn skip(&mut self, bytes: u32) {
        self.visit(bytes, |_| ());
    }

    /// Shows the next bytes, piece by piece.
    pub(crate) fn visit(&mut self, bytes: u32, mut f: impl FnMut(&[u8])) {
        let mut left = bytes as usize;
        while left > 0 {
            let Some(here) = self.here(left) else { return };
            f(here);
            left -= here.len();
        }
    }

    /// Shares the next bytes.
    pub(crate) fn share(&mut self, bytes: u32, out: &mut Payloads) {
        let mut left = bytes as usize;
        while left > 0 {
            let Some(here) = self.here(left) else { return };
            // `here` has moved to the payload that it read from.
            if let Some(first) = self.payloads.first() {
                out.push(first.slice(self.at - here.len(), here.len()));
            }
            left -= here.len();
        }
    }

    /// Up to `most` bytes of the first payload that has any left.
    fn here(&mut self, most: usize) -> Option<&'a [u8]> {
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
