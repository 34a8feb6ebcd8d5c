//! Formats of NVMe over TCP: PDUs ([`pdu`]), commands and completions ([`command`], [`status`]),
//! Fabrics commands and properties ([`fabrics`]), data of Identify and Get Log Page ([`identify`],
//! [`log`]), and names of initiators and subsystems ([`nqn`]).
//!
//! Sources: NVM Express Base Specification 2.0 ("base" in comments), NVM Command Set Specification
//! 1.0 ("nvm"), NVM Express over Fabrics 1.1 ("fabrics") and NVMe/TCP Transport Specification 1.0
//! ("tcp"). What NVMe calls a host is called an initiator here. All fields are little-endian.
//!
//! Initiator, target and device use this module and must agree to the byte. It has no state and
//! computes no digests. Parsing is total: values may come from a hostile peer, and none is trusted
//! as a length or an offset.

pub mod command;
pub mod fabrics;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod pdu;
pub mod status;

/// Returns the bytes at `at`, or zeros if `bytes` is too short.
fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
}

fn u8_at(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(get(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(get(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(get(bytes, at))
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(get(bytes, at))
}

/// Writes `field` at `at`; bytes after the end of `out` are dropped. Callers pass constant
/// offsets.
fn put(out: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}
