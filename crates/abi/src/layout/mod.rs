//! Layout of operations and events outside of the memory of one process.
//!
//! Inside a process an [`Op`] or [`Event`] is moved by value through a ring. A carrier to another
//! process or machine sends a *descriptor* instead: the bytes that [`encode_op`] or
//! [`encode_event`] writes, and that [`decode_op`] or [`decode_event`] checks and reads. The
//! enums stay the one definition: `types` lists their fields for the codec and for the published
//! table ([`layout_table`], `docs/descriptors.md`), and does not compile if a field is missing.
//!
//! - All numbers are little-endian and follow each other without padding, in the order of the
//!   table. An enumeration begins with a byte for its variant, an `Option` with 0 or 1, a list with
//!   its length (16 bits).
//! - Payload is named by region, offset and length ([`MemoryRange`]) or lies inline; which of both
//!   is the decision of the carrier's [`EncodeMemory`]. A pointer never crosses.
//! - A set of patterns crosses whole in the first descriptor that refers to it, and as a number in
//!   later ones.
//! - The sender is hostile. [`Decoder`] bounds every length by the bytes that are there, refuses
//!   unknown variants and left-over bytes, and allocates no more than the descriptor justifies.
//!   A descriptor has one encoding: what decodes encodes to the same bytes again.
//! - Keys lie in descriptors of contexts and listeners; a carrier has to clear such a descriptor
//!   after use.
//!
//! The codec neither sends nor waits, and does not judge values that only an engine can judge
//! (tables, states, ranges within a buffer): host and device check those as they do in process.
//! Decompression jobs have no layout, because they carry a decoder's code and state: a device that
//! is not in the host's process must not offer [`crate::Capabilities`] for them.

mod attach;
mod codec;
mod declare;
mod memory;
mod primitives;
mod table;
#[cfg(test)]
mod tests;
mod types;

use alloc::vec::Vec;

use zeroize::Zeroize;

pub use attach::{
    ATTACH_BYTES_MAX, ATTACH_MAGIC, AttachFault, decode_attach_reply, decode_attach_request,
    encode_attach_reply, encode_attach_request,
};
pub use codec::{Decoder, DescriptorCodec, EncodeFault, Encoder, LayoutFault};
pub use memory::{
    DecodeMemory, EncodeMemory, InlineMemory, MemoryRange, PAYLOAD_ALIGNMENT, PatternSetName,
};
pub use table::LayoutTable;

use crate::attach::{AttachReply, AttachRequest};
use crate::{Event, Op};

/// Version of the layout. Both sides compare it, and [`LAYOUT_FINGERPRINT`], before the first
/// descriptor; it changes with every change of the table, and of the rings in shared memory.
pub const LAYOUT_VERSION: u16 = 12;

/// [`LayoutTable::fingerprint`] of this version's table, which a test compares: a device need not
/// make the table for each message of a program that wants to attach.
pub const LAYOUT_FINGERPRINT: u64 = 0x323a_c7ce_534d_d52f;

/// Largest descriptor in bytes: a registered buffer of 1 MiB inline, or a merged frame of 64 KiB.
pub const DESCRIPTOR_BYTES_MAX: usize = (1 << 20) + (64 << 10);

/// Appends the descriptor of an operation to `out`. Its buffers move to `memory`, or into `out`, so
/// that empty ones remain; the operation is not moved, because it is large.
///
/// # Errors
/// The operation cannot leave the process. `out` is unchanged.
pub fn encode_op(
    op: &mut Op,
    memory: &mut dyn EncodeMemory,
    out: &mut Vec<u8>,
) -> Result<(), EncodeFault> {
    encode(op, memory, out)
}

/// Reads the descriptor of an operation, which is all of `bytes`.
///
/// # Errors
/// The first fault found. Buffers that were resolved before are dropped.
pub fn decode_op(bytes: &[u8], memory: &mut dyn DecodeMemory) -> Result<Op, LayoutFault> {
    decode(bytes, memory)
}

/// Appends the descriptor of an event to `out`, as [`encode_op`].
///
/// # Errors
/// As [`encode_op`].
pub fn encode_event(
    event: &mut Event,
    memory: &mut dyn EncodeMemory,
    out: &mut Vec<u8>,
) -> Result<(), EncodeFault> {
    encode(event, memory, out)
}

/// Reads the descriptor of an event, which is all of `bytes`.
///
/// # Errors
/// As [`decode_op`].
pub fn decode_event(bytes: &[u8], memory: &mut dyn DecodeMemory) -> Result<Event, LayoutFault> {
    decode(bytes, memory)
}

/// Returns whether a descriptor may hold keys, so that a carrier clears it after use: those of
/// operations that create listeners, contexts or entries, or change their keys. The answer for
/// events has no meaning: none holds keys.
#[must_use]
pub const fn may_hold_keys(descriptor: &[u8]) -> bool {
    // The variants of `Op`: L5oCreate, Listen, QuicAdd, QuicRekey.
    matches!(descriptor, [7 | 12 | 21 | 22, ..])
}

/// Overwrites the bytes of a descriptor that may hold keys.
pub fn clear_keys(descriptor: &mut [u8]) {
    if may_hold_keys(descriptor) {
        descriptor.zeroize();
    }
}

/// Returns the layout of all types of the contract.
#[must_use]
pub fn layout_table() -> LayoutTable {
    let mut table = LayoutTable::default();
    Op::describe(&mut table);
    Event::describe(&mut table);
    AttachRequest::describe(&mut table);
    AttachReply::describe(&mut table);
    table
}

fn encode<T: DescriptorCodec>(
    descriptor: &mut T,
    memory: &mut dyn EncodeMemory,
    out: &mut Vec<u8>,
) -> Result<(), EncodeFault> {
    let start = out.len();
    let mut encoder = Encoder::new(memory, out);
    descriptor.encode(&mut encoder);
    let result = match encoder.fault() {
        Some(fault) => Err(fault),
        None if out.len() - start > DESCRIPTOR_BYTES_MAX => Err(EncodeFault::TooLong),
        None => Ok(()),
    };
    if result.is_err() {
        out.truncate(start);
    }
    result
}

fn decode<T: DescriptorCodec>(
    bytes: &[u8],
    memory: &mut dyn DecodeMemory,
) -> Result<T, LayoutFault> {
    if bytes.len() > DESCRIPTOR_BYTES_MAX {
        return Err(LayoutFault::TooLong);
    }
    let mut decoder = Decoder::new(memory, bytes);
    let descriptor = T::decode(&mut decoder)?;
    decoder.finish()?;
    Ok(descriptor)
}
