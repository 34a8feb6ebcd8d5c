//! Transmit data digests: turns ranges of PDUs into header, data and the CRC32C of the data.
//!
//! Called by [`crate::engine::l5o`] with transmits in the order of their flow. Header and data are
//! shared, never copied; the device adds only the four bytes of the digest. [`NvmeDigestTxState`]
//! is the dynamic state of Autonomous NIC Offloads, section 5.1, of constant size.
//!
//! Invariant: bytes of a digest are sent only if all of the data was summed; otherwise the whole
//! range is refused. If data goes into TLS records, this step runs first and its output is
//! encrypted (section 5.3). Packets and TCP sequence numbers are unknown here.

use abi::crypto::CryptoProvider;
use abi::link::{FramePayload, FramePayloads};
use abi::nvme_tcp::{DIGEST_BYTES, NvmeTcpState, PduRange};

use crate::engine::payload_reader::PayloadReader;

base::counters! {
    /// Transmit counters. Linux has only receive counters (`rx_nvmeotcp_*`), since its proposal
    /// does not compute digests on transmit; these names follow their spelling and that of
    /// `tx_tls_*`.
    pub(crate) struct NvmeTxCounters {
        /// Transmit contexts created.
        tx_nvmeotcp_ctx,
        /// Packets sent with ranges of PDUs.
        tx_nvmeotcp_packets,
        /// Bytes of these ranges.
        tx_nvmeotcp_bytes,
        /// Digests of which at least one byte was sent, counted for each transmission.
        tx_nvmeotcp_digests,
        /// Ranges that began after the first data byte of a PDU and not at the end of their
        /// context's previous range.
        tx_nvmeotcp_ooo,
        /// Prefix bytes summed again to rebuild a digest.
        tx_nvmeotcp_resync_bytes,
        /// Transmits dropped because they reach a digest whose input is not available.
        tx_nvmeotcp_drop_no_sync_data: alarm,
        /// Transmits dropped because their context does not exist.
        tx_nvmeotcp_drop_bypass_req: alarm,
    }
}

/// Position of a transmit context: the end of its previous range.
#[derive(Clone, Debug, Default)]
pub(crate) struct NvmeDigestTxState {
    /// Number of the range's PDU; `None` before the first range.
    number: Option<u64>,
    /// Bytes of the PDU before the range's end.
    offset: u32,
    /// CRC32C of the PDU's data before the range's end; `None` if some of it was not seen.
    crc: Option<u32>,
}

/// Error: the range reaches the digest, and the preceding data of the PDU is not available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoDigestSum;

/// Additional work that completing a range took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DigestEffort {
    /// The range was not the next one of its context.
    pub(crate) out_of_order: bool,
    /// The sum was rebuilt from the prefix.
    pub(crate) rebuilt: bool,
    /// The range contains bytes of the digest.
    pub(crate) digest: bool,
}

/// Offsets of the parts of a PDU.
struct PduLayout {
    /// Bytes before the data.
    header: u32,
    /// Bytes before the digest.
    digest: u32,
}

impl PduLayout {
    /// Returns the layout, or `None` if the PDU's length overflows `u32`.
    fn of(range: &PduRange) -> Option<Self> {
        let header = u32::try_from(range.header.len()).ok()?;
        let digest = header.checked_add(range.data_len)?;
        digest.checked_add(DIGEST_BYTES).map(|_| Self { header, digest })
    }

    /// Returns the number of data bytes before offset `at` of the PDU.
    fn data_before(&self, at: u32) -> u32 {
        at.clamp(self.header, self.digest) - self.header
    }
}

/// Returns whether a description is consistent and fits the context. `sealed` is true if the range
/// is content of TLS records; on a connection with TLS it must be.
pub(crate) fn check(state: &NvmeTcpState, range: &PduRange, sealed: bool) -> bool {
    let Some(layout) = PduLayout::of(range) else { return false };
    let Some(end) = range.skip.checked_add(range.len) else { return false };
    if state.tls.is_some() != sealed || range.len == 0 || range.data_len == 0 {
        return false;
    }
    let (before, to) = (layout.data_before(range.skip), layout.data_before(end));
    let whole_prefix = range.prefix == 0 || range.prefix == before;
    let bytes = u64::from(range.prefix) + u64::from(to - before);
    end <= layout.digest + DIGEST_BYTES && whole_prefix && range.data.len() as u64 == bytes
}

/// Appends the bytes of a range that [`check`] has accepted to `out`. `source` yields prefix
/// and data; `keep` copies a digest to memory that payloads can share.
///
/// # Errors
/// [`NoDigestSum`]; the content of `out` is then unspecified and must not be sent.
pub(crate) fn complete(
    crypto: &dyn CryptoProvider,
    range: &PduRange,
    state: &mut NvmeDigestTxState,
    source: &mut PayloadReader<'_>,
    out: &mut FramePayloads,
    keep: impl FnOnce([u8; DIGEST_BYTES as usize]) -> Option<FramePayload>,
) -> Result<DigestEffort, NoDigestSum> {
    let layout = PduLayout::of(range).ok_or(NoDigestSum)?;
    let (skip, end) = (range.skip, range.skip.saturating_add(range.len));
    let (before, to) = (layout.data_before(skip), layout.data_before(end));
    let last = core::mem::take(state);
    let here = last.number == Some(range.number) && last.offset == skip;
    let begins = before == 0;
    let mut effort = DigestEffort { out_of_order: !begins && !here, ..DigestEffort::default() };
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
        out.push(FramePayload::Host(range.header.slice(header)));
    }
    let first = out.len();
    source.share(to - before, out);
    let data = out.get(first..).unwrap_or_default();
    crc = crc.map(|crc| data.iter().fold(crc, |crc, p| crypto.crc32c(crc, p.as_slice())));
    if end > layout.digest {
        let digest = keep(crc.ok_or(NoDigestSum)?.to_le_bytes()).ok_or(NoDigestSum)?;
        let from = skip.saturating_sub(layout.digest) as usize;
        out.push(digest.slice(from, (end - layout.digest) as usize - from));
        effort.digest = true;
    }
    *state = NvmeDigestTxState { number: Some(range.number), offset: end, crc };
    Ok(effort)
}
