//! Converts transmits to packets, as a device does.

use abi::{Transmit, TransmitPart};
use base::{Duration, SeqNum};
use wire::frame::protocol;
use wire::segment::{HeaderLayout, cut_run};

/// Length of the byte pattern that simulated files repeat. It is prime, so that a shift by any
/// power of two is detected.
pub const FILE_PATTERN_BYTES: u64 = 251;

/// Returns the byte at `offset` of every simulated file.
#[must_use]
pub fn file_byte(offset: u64) -> u8 {
    u8::try_from(offset % FILE_PATTERN_BYTES).unwrap_or(0)
}

/// Returns `len` bytes from `offset` of every simulated file.
#[must_use]
pub fn file_bytes(offset: u64, len: u32) -> Vec<u8> {
    (offset..offset + u64::from(len)).map(file_byte).collect()
}

/// Returns the payload of a transmit.
#[must_use]
pub(crate) fn transmit_payload(transmit: &Transmit) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in &transmit.parts {
        match part {
            TransmitPart::Host(host) => bytes.extend_from_slice(host),
            TransmitPart::File(extent) => bytes.extend(file_bytes(extent.offset, extent.len)),
            TransmitPart::Records(_) | TransmitPart::Pdu(_) => {
                panic!("this device has no such engine")
            }
        }
    }
    bytes
}

/// Returns the packets, with checksums, of a transmit that waited `delay` for the disk.
#[must_use]
pub fn packetize_transmit(transmit: &Transmit, delay: Duration) -> Vec<Vec<u8>> {
    let header = transmit.header.as_slice();
    let (l3, l4) = (transmit.header.l3(), transmit.header.l4());
    let mut run = [header, &transmit_payload(transmit)].concat();
    let protocol = ip_protocol(header, l3);
    if let Some(ts) = transmit.timestamp {
        let at = usize::from(ts.offset);
        let ahead = (u64::from(ts.sub_ms_us) + delay.as_micros()) / 1000;
        let value = SeqNum(u32_at(&run, at)) + u32::try_from(ahead).unwrap_or(0);
        run[at..at + 4].copy_from_slice(&value.0.to_be_bytes());
    }
    let end = run.len();
    if l4 < end && protocol != 0 {
        HeaderLayout { l3, l4, protocol }.set_lengths(&mut run, end, 0);
    }
    let transport = l4 < header.len() && matches!(protocol, protocol::TCP | protocol::UDP);
    let layout = transport.then_some(HeaderLayout { l3, l4, protocol });
    let mut packets = Vec::new();
    let size = transmit.segment_size;
    cut_run(&run, layout, (size, true), &mut Vec::new(), |packet| packets.push(packet.to_vec()));
    packets
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn ip_protocol(header: &[u8], l3: usize) -> u8 {
    match header.get(l3).map(|b| b >> 4) {
        Some(4) if header[12..14] == [8, 0] => header[l3 + 9],
        Some(6) if header[12..14] == [0x86, 0xdd] => header[l3 + 6],
        _ => 0,
    }
}
