//! NVMe over TCP as it looks on the wire: PDUs ([`pdu`]), commands and completions ([`command`],
//! [`status`]), Fabrics commands and properties ([`fabrics`]), what Identify and Get Log Page give
//! ([`identify`], [`log`]), and the names of hosts and subsystems ([`nqn`]).
//!
//! NVM Express Base specification 2.0 (called "base" in comments), NVM Command Set specification
//! 1.0 ("nvm"), NVM Express over Fabrics 1.1 and NVMe/TCP Transport specification 1.0 ("tcp").
//! Everything is little-endian. There is no state here, and no digest is computed: initiator,
//! target and device use it, and have to agree to the byte.
//!
//! Parsing is total. Values may come from a hostile peer, so that nothing here trusts one of them
//! as a length or an offset.

pub mod command;
pub mod fabrics;
pub mod identify;
pub mod log;
pub mod nqn;
pub mod pdu;
pub mod status;

/// Bytes at `at`; zeros where `bytes` ends before.
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

/// Writes `field` at `at`; what has no room is left out. Callers write constant places of arrays.
fn put(out: &mut [u8], at: usize, field: &[u8]) {
    for (to, from) in out.iter_mut().skip(at).zip(field) {
        *to = *from;
    }
}
