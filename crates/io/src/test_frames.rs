//! Frames for this crate's tests.

use abi::PacketHeader;
use abi::link::{FramePayload, TxFrame};
use bytes::Bytes;

/// Returns an IPv4 frame with 54 bytes of headers, which hold only the EtherType and the IP
/// version.
pub(crate) fn frame(payload: &[u8]) -> TxFrame {
    let mut bytes = [0; 54];
    bytes[12..14].copy_from_slice(&[0x08, 0x00]);
    bytes[14] = 0x45;
    TxFrame {
        header: PacketHeader::from_bytes(&bytes, 14, 34).unwrap(),
        payload: [FramePayload::Host(Bytes::copy_from_slice(payload))].into_iter().collect(),
        segment_size: 0,
        checksum_partial: false,
    }
}

/// Returns the frame's bytes.
pub(crate) fn bytes_of(frame: &TxFrame) -> Vec<u8> {
    let mut out = vec![0; frame.len()];
    frame.copy_to(&mut out);
    out
}

/// Returns the counters of a link with their names.
pub(crate) fn counters(
    visit: impl Fn(&mut dyn FnMut(&'static str, u64)),
) -> Vec<(&'static str, u64)> {
    let mut seen = Vec::new();
    visit(&mut |name, value| seen.push((name, value)));
    seen
}

/// Returns the counters that are not zero.
pub(crate) fn nonzero(
    visit: impl Fn(&mut dyn FnMut(&'static str, u64)),
) -> Vec<(&'static str, u64)> {
    counters(visit).into_iter().filter(|c| c.1 > 0).collect()
}
