//! An NVMe/TCP receive context: the states *offloading*, *searching* and *tracking* of Autonomous
//! NIC Offloads, section 4.3, figure 7, for PDUs.
//!
//! Called by `mod` with each piece of the stream that arrives. [`crate::L5oConfig::out_of_order`]
//! selects one of two modes. In the paper's mode only the packet with the expected sequence number
//! is processed, and a header found by a search is used only after the host has confirmed it. In
//! the extended mode every packet with a known position is processed, and a header found by a
//! search is used at once if it cannot be a coincidence. Both follow the header they found and ask
//! the host ([`ResyncRequest::Scan`], regardless of the mode that TLS uses).

use abi::l5o::{L5oId, ResyncRequest};
use abi::nvme_tcp::NvmeTcpState;
use base::SeqNum;
use smallvec::SmallVec;
use wire::nvme::pdu::PduRules;

use super::buffers::RegisteredBuffers;
use super::chain::PduTracker;
use super::counters::NvmeTcpCounters;
use super::search::{HeaderPattern, PduSearch};
use super::walk::{NvmeRxPass, StreamPiece, offset_u32};
use crate::engine::plausibility::{PlausibleWindow, WindowCheck};

/// Bytes after which an unanswered request is repeated. On most paths the host waits less than this
/// for a hole to be filled.
const RETRY_BYTES: u32 = 1 << 20;
/// Maximum length of a PDU. It bounds distances, which are computed modulo 2^32.
const PDU_BYTES_MAX: u32 = 1 << 28;

/// Mapping from TLS records to the stream that they carry.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamOverTls {
    pub(super) context: L5oId,
    /// Number of the record in which the stream begins.
    pub(super) number: u64,
}

/// An outstanding resync request.
#[derive(Clone, Copy, Debug)]
struct NvmeResyncPending {
    pos: SeqNum,
    /// Bytes that have passed since the request.
    since: u32,
}

/// An NVMe/TCP receive context.
#[derive(Debug)]
pub(super) struct NvmeTcpReceiver {
    pub(super) rules: PduRules,
    pub(super) over: Option<StreamOverTls>,
    pub(super) buffers: RegisteredBuffers,
    pub(super) chain: PduTracker,
    search: PduSearch,
    asked: Option<NvmeResyncPending>,
    /// Next position to process, in the paper's mode.
    expected: SeqNum,
    window: PlausibleWindow,
    /// Records that seem to carry other content than the stream and are not verified yet.
    pub(super) foreign: SmallVec<[u64; 2]>,
    /// True once a verified record carried other content: the context is inactive.
    pub(super) stopped: bool,
}

impl NvmeTcpReceiver {
    /// Creates a context whose stream begins at `tcpsn`.
    pub(super) fn new(tcpsn: SeqNum, state: &NvmeTcpState) -> Self {
        let start = tcpsn + state.tls.map_or(0, |over| over.skip);
        let rules = PduRules {
            header_digest: state.header_digest,
            data_digest: state.data_digest,
            pda: 0,
            plen_max: state.pdu_bytes_max.min(PDU_BYTES_MAX),
        };
        Self {
            rules,
            over: state
                .tls
                .map(|over| StreamOverTls { context: over.context, number: over.first_record }),
            buffers: RegisteredBuffers::default(),
            chain: PduTracker::new(start),
            search: PduSearch::new(start),
            asked: None,
            expected: start,
            window: PlausibleWindow::default(),
            foreign: SmallVec::new(),
            stopped: false,
        }
    }

    /// Processes a piece of the stream.
    pub(super) fn piece(&mut self, w: &mut NvmeRxPass<'_>, piece: &StreamPiece<'_>) {
        // Between two texts of a packet there may be one that is not processed.
        w.skipped = true;
        match self.window.judge(piece.pos.distance(self.chain.high), w.window_bytes) {
            WindowCheck::InWindow => {}
            WindowCheck::OutOfWindow => {
                w.counters.nvme_tcp_outside_packets += 1;
                return;
            }
            WindowCheck::Reanchor => self.restart(piece.pos, w.counters),
        }
        if w.trust_plausible {
            w.out_of_order = piece.pos != self.chain.high;
            self.walk(w, piece);
        } else {
            self.in_order(w, piece);
        }
        self.search.follow(self.chain.high);
        if core::mem::take(&mut w.header_wrong) {
            self.search.back_off();
        }
    }

    /// Re-anchors at `pos` with nothing known.
    fn restart(&mut self, pos: SeqNum, counters: &mut NvmeTcpCounters) {
        counters.nvme_tcp_restarts += 1;
        self.chain.lose_boundary();
        self.search = PduSearch::new(pos);
        (self.chain.high, self.expected) = (pos, pos);
    }

    /// Processes a piece; searches for a header if no boundary is known.
    fn walk(&mut self, w: &mut NvmeRxPass<'_>, piece: &StreamPiece<'_>) {
        let (mut at, end) = (0, piece.pos + piece.len());
        while let Some(lost) = self.chain.walk(w, piece, at) {
            (w.boundary_unknown, w.skipped) = (true, true);
            let pos = piece.pos + offset_u32(lost);
            let (rules, crypto, from_host) = (w.rules, w.crypto, self.chain.from_initiator);
            let pattern = HeaderPattern { rules, crypto, from_initiator: from_host };
            let hit = self.search.feed(&pattern, pos, &piece.bytes[lost..]);
            let Some(hit) = hit else { return self.chain.mark_passed_at_end(pos, end) };
            self.chain.mark_passed_at_end(pos, pos.max(hit.base));
            if !w.trust_plausible {
                self.chain.lose_boundary();
            }
            if !self.chain.resume(hit.base) {
                return self.chain.mark_passed_at_end(pos, end);
            }
            // First bytes of the header that arrived earlier. They contain no data.
            let before = StreamPiece { pos: hit.base, at: piece.at, bytes: hit.before() };
            self.chain.walk(w, &before, 0);
            at = lost + usize::try_from(hit.base.distance(pos)).unwrap_or(0);
        }
    }

    /// Processes a piece in the paper's mode.
    fn in_order(&mut self, w: &mut NvmeRxPass<'_>, piece: &StreamPiece<'_>) {
        let end = piece.pos + piece.len();
        let behind = self.expected.distance(piece.pos);
        if behind > 0 && end.le(self.expected) {
            // Figure 8 (a): old data.
            return;
        }
        // Bytes that arrived before are skipped.
        let behind = u32::try_from(behind).unwrap_or(0);
        let piece = &piece.cut(behind as usize, piece.len());
        let ahead = piece.pos.distance(self.expected);
        w.offload = ahead == 0;
        if ahead > 0 {
            match self.chain.next() {
                // Figure 8 (b): the next header is in this packet or later. Data after this packet
                // is offloaded again.
                Some(next) if end.le(next) => {
                    self.chain.high = self.chain.high.max(end);
                    return;
                }
                Some(next) if piece.pos.le(next) => self.chain.keep_next(w.counters),
                // Figure 8 (c): no boundary is known.
                _ => self.chain.lose_boundary(),
            }
        }
        self.walk(w, piece);
        self.expected = end;
    }

    /// Returns the resync request to make after a packet of `len` bytes.
    pub(super) fn poll_resync_request(
        &mut self,
        len: u32,
        counters: &mut NvmeTcpCounters,
    ) -> Option<ResyncRequest> {
        let Some(guess) = self.chain.unproven else {
            self.asked = None;
            return None;
        };
        if let Some(asked) = &mut self.asked {
            asked.since = asked.since.saturating_add(len);
            if asked.since <= RETRY_BYTES {
                return None;
            }
            counters.nvme_tcp_resync_res_retry += u64::from(asked.pos == guess);
        }
        self.asked = Some(NvmeResyncPending { pos: guess, since: 0 });
        counters.rx_nvmeotcp_resync += 1;
        Some(ResyncRequest::Scan { tcpsn: guess })
    }

    /// Handles the host's answer whether a PDU begins at `pos`.
    pub(super) fn answer(&mut self, pos: SeqNum, begins: bool, counters: &mut NvmeTcpCounters) {
        if self.asked.is_none_or(|asked| asked.pos != pos) {
            counters.nvme_tcp_resync_res_skip += 1;
            return;
        }
        self.asked = None;
        if begins {
            counters.nvme_tcp_guesses_right += 1;
            self.search.confirmed();
            self.chain.confirm(pos);
        } else {
            counters.nvme_tcp_guesses_wrong += 1;
            self.search.back_off();
            self.chain.deny(pos);
        }
    }

    /// Deactivates the context: the stream cannot be followed any longer.
    pub(super) fn stop(&mut self, w: &mut NvmeRxPass<'_>) {
        w.counters.nvme_tcp_streams_stopped += 1;
        self.stopped = true;
        self.asked = None;
        self.chain.lose_boundary();
    }
}
