//! Decodes choices from the bytes of a fuzzer's input. Reads beyond the end return zeros.

/// The unread rest of an input.
#[derive(Clone, Debug)]
pub(crate) struct FuzzInput<'a>(pub(crate) &'a [u8]);

impl<'a> FuzzInput<'a> {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes and returns the next `len` bytes, or fewer at the end of the input.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (here, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        here
    }

    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let here = self.take(N);
        out[..here.len()].copy_from_slice(here);
        out
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }
}
