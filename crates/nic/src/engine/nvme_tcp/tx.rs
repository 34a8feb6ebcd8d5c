//! Data digests on transmit: ranges of PDUs become header, data and the CRC32C of the data.
//!
//! Called by [`crate::engine::l5o`] with transmits in the order of their flow. Header and data are
//! shared, never copied; of the device's own are the four bytes of the digest. [`TxState`] is the
//! dynamic state of Autonomous NIC Offloads, section 5.1, of constant size.
//!
//! Invariant: a byte of a digest leaves only where all of the data was seen; else the whole range
//! is refused. Where data goes into TLS records this runs first, and sealing takes what it gives
//! (section 5.3). It knows no packets and no sequence numbers.

use abi::crypto::CryptoProvider;
use abi::nvme_tcp::{DIGEST_BYTES, NvmeTcpState, PduRange};
use abi::port::{Payload, Payloads};

use crate::engine::source::Source;

base::counters! {
    /// What was done on transmit. Linux has counters of reception only (`rx_nvmeotcp_*`), since its
    /// proposal does not fill digests in; these follow their spelling, and that of `tx_tls_*`.
    pub(crate) struct NvmeTxCounters {
        /// Transmit contexts made.
        tx_nvmeotcp_ctx,
        /// Packets with ranges of PDUs that left.
        tx_nvmeotcp_packets,
        /// Bytes of these ranges.
        tx_nvmeotcp_bytes,
        /// Digests of which a byte was filled in, again where it left again.
        tx_nvmeotcp_digests,
        /// Ranges that began behind a PDU's first byte of data, and not where the last range of
        /// their context ended.
        tx_nvmeotcp_ooo,
        /// Bytes of data summed again for the digest behind them.
        tx_nvmeotcp_resync_bytes,
        /// Transmits dropped, since they reach a digest and what it is computed from is not at
        /// hand.
        tx_nvmeotcp_drop_no_sync_data: alarm,
        /// Transmits dropped, since there is no such context.
        tx_nvmeotcp_drop_bypass_req: alarm,
    }
}

/// Where a transmit context is: behind its last range.
#[derive(Clone, Debug, Default)]
pub(crate) struct TxState {
    /// Number of the range's PDU; none before the first range.
    number: Option<u64>,
    /// Bytes of the PDU before the range's end.
    offset: u32,
    /// Of the data before it; none where some of that was not seen.
    crc: Option<u32>,
}

/// The range reaches the digest, and what precedes it in the PDU is not at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSum;

/// What completing took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Effort {
    /// The range was not what the context expected.
    pub(crate) out_of_order: bool,
    /// The sum was made again, out of the prefix.
    pub(crate) rebuilt: bool,
    /// The range has a byte of the digest.
    pub(crate) digest: bool,
}

/// Where the parts of a PDU lie in it.
struct Layout {
    /// Bytes before the data.
    header: u32,
    /// Bytes before the digest.
    digest: u32,
}

impl Layout {
    /// None where the PDU is longer than any.
    fn of(range: &PduRange) -> Option<Self> {
        let header = u32::try_from(range.header.len()).ok()?;
        let digest = header.checked_add(range.data_len)?;
        digest.checked_add(DIGEST_BYTES).map(|_| Self { header, digest })
    }

    /// Bytes of data before a byte of the PDU.
    fn data_before(&self, at: u32) -> u32 {
        at.clamp(self.header, self.digest) - self.header
    }
}

/// Whether a description makes sense for a context; `sealed` says that the range is content of
/// records. One of a connection with TLS is never sent without.
pub(crate) fn check(state: &NvmeTcpState, range: &PduRange, sealed: bool) -> bool {
    let Some(layout) = Layout::of(range) else { return false };
    let Some(end) = range.skip.checked_add(range.len) else { return false };
    if state.over.is_some() != sealed || range.len == 0 || range.data_len == 0 {
        return false;
    }
    let (before, to) = (layout.data_before(range.skip), layout.data_before(end));
    let whole_prefix = range.prefix == 0 || range.prefix == before;
    let bytes = u64::from(range.prefix) + u64::from(to - before);
    end <= layout.digest + DIGEST_BYTES && whole_prefix && range.data.len() as u64 == bytes
}

/// Puts the bytes of a range, which [`check`] has accepted, into `out`. `source` gives prefix and
/// data; `keep` puts a digest where payloads can share it.
///
/// # Errors
/// [`NoSum`], with `out` unspecified; nothing of it may be sent.
pub(crate) fn complete(
    crypto: &dyn CryptoProvider,
    range: &PduRange,
    state: &mut TxState,
    source: &mut Source<'_>,
    out: &mut Payloads,
    keep: impl FnOnce([u8; DIGEST_BYTES as usize]) -> Option<Payload>,
) -> Result<Effort, NoSum> {
    let layout = Layout::of(range).ok_or(NoSum)?;
    let (skip, end) = (range.skip, range.skip.saturating_add(range.len));
    let (before, to) = (layout.data_before(skip), layout.data_before(end));
    let last = core::mem::take(state);
    let here = last.number == Some(range.number) && last.offset == skip;
    let begins = before == 0;
    let mut effort = Effort { out_of_order: !begins && !here, ..Effort::default() };
    let known = if begins { Some(0) } else { last.crc.filter(|_| here) };
    let mut crc = known;
    if known.is_none() && range.prefix > 0 {
        let mut made = 0;
        source.visit(range.prefix, |bytes| made = crypto.crc32c(made, bytes));
        (crc, effort.rebuilt) = (Some(made), true);
    } else {
        source.skip(range.prefix);
    }
    let header = skip.min(layout.header) as usize..end.min(layout.header) as usize;
    if !header.is_empty() {
        out.push(Payload::Host(range.header.slice(header)));
    }
    let first = out.len();
    source.share(to - before, out);
    let data = out.get(first..).unwrap_or_default();
    crc = crc.map(|crc| data.iter().fold(crc, |crc, p| crypto.crc32c(crc, p.as_slice())));
    if end > layout.digest {
        let digest = keep(crc.ok_or(NoSum)?.to_le_bytes()).ok_or(NoSum)?;
        let from = skip.saturating_sub(layout.digest) as usize;
        out.push(digest.slice(from, (end - layout.digest) as usize - from));
        effort.digest = true;
    }
    *state = TxState { number: Some(range.number), offset: end, crc };
    Ok(effort)
}
