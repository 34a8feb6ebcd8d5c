//! Frames for this crate's tests.

use abi::Header;
use abi::port::{Payload, TxFrame};
use bytes::Bytes;

/// An IPv4 frame of 54 header bytes and this payload; the headers say no more than their EtherType.
pub(crate) fn frame(payload: &[u8]) -> TxFrame {
    let mut bytes = [0; 54];
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14] = 0x45;
    TxFrame {
        header: Header::from_bytes(&bytes, 14, 34).unwrap(),
        payload: [Payload::Host(Bytes::copy_from_slice(payload))].into_iter().collect(),
        segment_size: 0,
        checksum_partial: false,
    }
}

/// The frame's bytes.
pub(crate) fn bytes_of(frame: &TxFrame) -> Vec<u8> {
    let mut out = vec![0; frame.len()];
    frame.copy_to(&mut out);
    out
}

/// A wire's counters by name.
pub(crate) fn counters(
    visit: impl Fn(&mut dyn FnMut(&'static str, u64)),
) -> Vec<(&'static str, u64)> {
    let mut seen = Vec::new();
    visit(&mut |name, value| seen.push((name, value)));
    seen
}

/// The counters that are not zero.
pub(crate) fn nonzero(
    visit: impl Fn(&mut dyn FnMut(&'static str, u64)),
) -> Vec<(&'static str, u64)> {
    counters(visit).into_iter().filter(|c| c.1 > 0).collect()
}
