//! Validation of handed-over connections, and the clock of their timestamps.
//!
//! [`check`] accepts only a [`Teardown`] whose numbers, parts and header template the rest of this
//! folder can rely on without further checks. It is called once per connection.

use abi::teardown::{ClosingState, Teardown};
use abi::{FileExtent, FileLimits, PacketHeader, TransmitPart, TransmitParts, TsvalPosition};
use base::{Instant, SeqNum, low32};
use core::net::IpAddr;
use wire::tcp::TcpHeader;
use wire::{Endpoint, IPV4_BYTES, TCP_BYTES, Tuple};

use crate::pipeline::headers::{TemplateKind, classify};

/// Maximum number of parts per connection; a host that has more sends some of them itself.
const PARTS_MAX: usize = 64;
/// Maximum window scale: RFC 7323 section 2.3.
const SCALE_MAX: u8 = 14;
/// The connection's timestamp clock in milliseconds, continuing the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimestampClock {
    /// Offset of the timestamp clock from the device's clock, in milliseconds.
    pub(super) offset: u32,
    /// Phase in microseconds (0..1000) by which the host's milliseconds began before the device's.
    pub(super) phase: u16,
}

impl TimestampClock {
    /// Creates the clock that showed `value` since `sub_ms_us` microseconds at `now`.
    pub(super) fn new(now: Instant, value: u32, past_us: u16) -> Self {
        let (past, micros) = (u64::from(past_us % 1000), now.as_micros());
        let phase = (past + 1000 - micros % 1000) % 1000;
        let offset = value.wrapping_sub(low32((micros + phase) / 1000));
        Self { offset, phase: u16::try_from(phase).unwrap_or(0) }
    }

    /// Returns TSval, and the microseconds since it took that value.
    pub(super) fn value(self, now: Instant) -> (u32, u16) {
        let micros = now.as_micros().saturating_add(u64::from(self.phase));
        let past_us = u16::try_from(micros % 1000).unwrap_or(0);
        (low32(micros / 1000).wrapping_add(self.offset), past_us)
    }
}

/// Properties of a connection, derived by [`check`].
#[derive(Clone, Copy, Debug)]
pub(super) struct TeardownFacts {
    /// The connection's tuple.
    pub(super) tuple: Tuple,
    /// Sequence number of the FIN.
    pub(super) fin: SeqNum,
    /// Number of parts before `nxt`.
    pub(super) sent_parts: usize,
    /// The template's window field.
    pub(super) window: u16,
    /// TSval and TSecr of the template, if it has timestamps.
    pub(super) timestamps: Option<(u32, u32)>,
}

/// Validates a connection. Returns `None` if it has more than `bytes_max` bytes or too many parts,
/// its segments are longer than `mtu`, its numbers are inconsistent, or its header is not TCP.
pub(super) fn check(t: &Teardown, bytes_max: u32, mtu: u16) -> Option<TeardownFacts> {
    let extents = t.parts.iter().filter(|part| part.extent().is_some()).count();
    if t.parts.len() > PARTS_MAX || extents > FileLimits::EXTENTS_PER_TRANSMIT_MAX {
        return None;
    }
    let mut len = 0_u32;
    let sent = t.nxt.distance(t.una);
    // `nxt` must lie at the start of a part or after the last one.
    let mut sent_parts = (sent == 0).then_some(0);
    for (index, part) in (1..).zip(&t.parts) {
        len = len.checked_add(part.len()).filter(|&len| len <= bytes_max)?;
        if part.is_empty() {
            return None;
        }
        if i64::from(sent) == i64::from(len) {
            sent_parts = Some(index);
        }
    }
    let fin = match t.state {
        ClosingState::FinWait2 if t.parts.is_empty() && sent == 0 => t.una - 1,
        ClosingState::FinWait2 => return None,
        ClosingState::FinWait1 | ClosingState::Closing | ClosingState::LastAck => t.una + len,
    };
    let fin_sent = t.nxt == fin + 1;
    let sent_parts = if fin_sent { t.parts.len() } else { sent_parts? };
    // Unsent bytes must fit the window; a FIN alone may exceed it.
    let new = i64::from(len) - i64::from(sent);
    if new > 0 && t.edge.distance(fin) < 0
        || t.mss.min(t.mss_after_timeouts) == 0
        || t.peer_scale > SCALE_MAX
    {
        return None;
    }
    let ip = t.header.len().checked_sub(t.header.l3())?;
    if ip + usize::from(t.mss) > usize::from(mtu) {
        return None;
    }
    let (tuple, segment) = read(&t.header)?;
    let stamps = segment.options.timestamps.map(|ts| (ts.value, ts.echo));
    if !timestamp_position_is_valid(&t.header, t.timestamp, stamps.is_some()) {
        return None;
    }
    Some(TeardownFacts { tuple, fin, sent_parts, window: segment.window, timestamps: stamps })
}

/// Parses a header template: returns its connection and segment.
fn read(header: &PacketHeader) -> Option<(Tuple, TcpHeader)> {
    if classify(header)? != TemplateKind::Tcp {
        return None;
    }
    let bytes = header.as_slice();
    let ip = bytes.get(header.l3()..header.l4())?;
    let (source, destination): (IpAddr, IpAddr) = if ip.len() == IPV4_BYTES {
        ((*ip.get(12..)?.first_chunk::<4>()?).into(), (*ip.get(16..)?.first_chunk::<4>()?).into())
    } else {
        ((*ip.get(8..)?.first_chunk::<16>()?).into(), (*ip.get(24..)?.first_chunk::<16>()?).into())
    };
    let (segment, _) = TcpHeader::parse(bytes.get(header.l4()..)?).ok()?;
    let local = Endpoint { addr: source, port: segment.source };
    let remote = Endpoint { addr: destination, port: segment.destination };
    Some((Tuple { local, remote }, segment))
}

/// Returns whether `at` names the position of the timestamps option, or is `None` without one.
fn timestamp_position_is_valid(
    header: &PacketHeader,
    at: Option<TsvalPosition>,
    there: bool,
) -> bool {
    let Some(ts) = at else { return !there };
    let at = usize::from(ts.offset);
    let option = at.checked_sub(2).and_then(|from| header.as_slice().get(from..at + 8));
    at >= header.l4() + TCP_BYTES + 2 && there && option.is_some_and(|o| o.starts_with(&[8, 10]))
}

/// Returns the file range that only this part needs: not its prefix, which belongs to another part
/// of the same message.
pub(super) fn kept_extent(part: &TransmitPart) -> Option<FileExtent> {
    let extent = *part.extent()?;
    let prefix = part.extent_prefix().min(extent.len);
    let offset = extent.offset.saturating_add(u64::from(prefix));
    Some(FileExtent { offset, len: extent.len - prefix, ..extent })
}

/// Returns whether a part carries a prefix, whose bytes are already held for another part.
pub(super) fn has_prefix(parts: &TransmitParts) -> bool {
    parts.iter().any(TransmitPart::has_prefix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The clock continues as the host's would have.
        #[test]
        fn stamps_go_on(
            begin in 0..1_u64 << 50, value: u32, past in 0..1000_u16, by in 0..1_u64 << 40,
        ) {
            let stamp = TimestampClock::new(Instant::from_micros(begin), value, past);
            prop_assert_eq!(stamp.value(Instant::from_micros(begin)), (value, past));
            let micros = u64::from(past) + by;
            let expected = value.wrapping_add(low32(micros / 1000));
            let later = stamp.value(Instant::from_micros(begin + by));
            prop_assert_eq!(later, (expected, u16::try_from(micros % 1000).unwrap()));
        }
    }
}
