//! A channel whose other side is the fuzzer: it yields the descriptors of the input, and drops what
//! it is sent.

use abi::layout::PAYLOAD_ALIGNMENT;
use node::channel::{CarrierFault, DescriptorChannel, PAYLOAD_BYTES_MIN, SentPayload};

use crate::input::FuzzInput;

/// Bytes of a link frame, or of a descriptor, that an input may have at once.
const LENGTH_MASK: u16 = 0x7ff;

/// Flag in the length of a descriptor: the length of a payload follows.
const HAS_PAYLOAD: u16 = 1 << 15;

/// An end of the channel. Each descriptor of the input has its length in front (16 bits), and after
/// it the length of its payload and the payload, if it has one.
pub(crate) struct FuzzChannel<'a> {
    input: FuzzInput<'a>,
    payload: Vec<u8>,
}

impl<'a> FuzzChannel<'a> {
    pub(crate) const fn new(input: FuzzInput<'a>) -> Self {
        Self { input, payload: Vec::new() }
    }

    /// Returns whether the input has no more descriptors.
    pub(crate) const fn is_empty(&self) -> bool {
        self.input.is_empty()
    }
}

impl DescriptorChannel for FuzzChannel<'_> {
    fn payload_bytes_min(&self) -> Option<usize> {
        Some(PAYLOAD_BYTES_MIN)
    }

    fn has_room(&mut self) -> Result<bool, CarrierFault> {
        Ok(true)
    }

    fn push(&mut self, _: &[u8], _: &[SentPayload]) -> Result<(), CarrierFault> {
        Ok(())
    }

    fn publish(&mut self) {}

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<bool, CarrierFault> {
        if self.input.is_empty() {
            return Ok(false);
        }
        let len = self.input.u16();
        out.clear();
        out.extend_from_slice(self.input.take((len & LENGTH_MASK).into()));
        self.payload.clear();
        if len & HAS_PAYLOAD != 0 {
            let len = self.input.u16() & LENGTH_MASK;
            self.payload.extend_from_slice(self.input.take(len.into()));
            self.payload.resize(self.payload.len().next_multiple_of(PAYLOAD_ALIGNMENT), 0);
        }
        Ok(true)
    }

    fn payload_len(&self) -> usize {
        self.payload.len()
    }

    fn copy_payload(&self, at: usize, to: &mut [u8]) {
        to.copy_from_slice(&self.payload[at..at + to.len()]);
    }
}
