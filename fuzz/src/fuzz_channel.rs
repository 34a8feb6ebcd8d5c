//! A channel whose other side is the fuzzer: it yields the descriptors of the input, and drops what
//! it is sent.

use node::remote::{CarrierFault, DescriptorChannel};

use crate::input::FuzzInput;

/// Bytes of a link frame, or of a descriptor, that an input may have at once.
const LENGTH_MASK: u16 = 0x7ff;

/// An end of the channel. Each descriptor of the input has its length in front (16 bits).
pub(crate) struct FuzzChannel<'a> {
    input: FuzzInput<'a>,
}

impl<'a> FuzzChannel<'a> {
    pub(crate) const fn new(input: FuzzInput<'a>) -> Self {
        Self { input }
    }

    /// Returns whether the input has no more descriptors.
    pub(crate) const fn is_empty(&self) -> bool {
        self.input.is_empty()
    }
}

impl DescriptorChannel for FuzzChannel<'_> {
    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        Ok(true)
    }

    fn push(&mut self, _: &[u8]) -> Result<(), CarrierFault> {
        Ok(())
    }

    fn publish(&mut self) {}

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        if self.input.is_empty() {
            return Ok(false);
        }
        let len = self.input.u16() & LENGTH_MASK;
        out.clear();
        out.extend_from_slice(self.input.take(len.into()));
        Ok(true)
    }
}
