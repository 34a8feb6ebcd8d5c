//! Passes the events of a connection to BBR, and its window back.
//!
//! Called by the sender ([`super::output`]), for acknowledgments and losses ([`super::ack`],
//! [`super::expire`]) and for the device's echoes ([`super::conn`]). Without BBR, every method does
//! nothing.

use base::{Duration, Instant};

use super::bbr::{AckedBytes, Bbr, BbrInputs, DepartingTransmit, LostRange};
use super::conn::{TcpConnection, TcpSendState};
use super::scoreboard::DeliveredBytes;
use super::transform::TxTransforms;

/// A transmit that is handed to the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandedOverTransmit {
    pub(crate) tag: u32,
    /// The device will echo its departure.
    pub(crate) pending: bool,
    /// Bytes in the network before it.
    pub(crate) in_network_before: u64,
}

impl<T: TxTransforms> TcpSendState<T> {
    /// Returns BBR and the state of the connection for it; `None` with another congestion control.
    fn bbr_with_inputs(&mut self, now: Instant, sack: bool) -> Option<(&mut Bbr, BbrInputs)> {
        let inputs = BbrInputs {
            now,
            mss: self.mss.into(),
            cwnd: self.cc.cwnd.into(),
            inflight: self.flight.in_network(),
            cwnd_limited: self.usage.is_limited(),
            recovering: self.is_recovering(),
            sack,
            srtt: self.rtt.srtt(),
        };
        self.cc.bbr_mut().map(|bbr| (bbr, inputs))
    }

    fn set_bbr_cwnd(&mut self, cwnd: u64) {
        self.cc.cwnd = u32::try_from(cwnd).unwrap_or(u32::MAX);
    }
}

impl<T: TxTransforms> TcpConnection<T> {
    fn bbr_with_inputs(&mut self, now: Instant) -> Option<(&mut Bbr, BbrInputs)> {
        self.snd.bbr_with_inputs(now, self.options.sack)
    }

    /// Prepares BBR for sending. Returns whether the connection has it.
    pub(super) fn prepare_bbr(&mut self, now: Instant) -> bool {
        let queued = self.snd.nxt < self.snd.spans.end();
        let Some((bbr, inputs)) = self.bbr_with_inputs(now) else { return false };
        if queued {
            let cwnd = bbr.before_transmit(inputs);
            self.snd.set_bbr_cwnd(cwnd);
        }
        true
    }

    /// Records a transmit that was handed to the device.
    pub(super) fn note_bbr_transmit(&mut self, now: Instant, transmit: HandedOverTransmit) {
        let in_network = self.snd.flight.in_network();
        let Some(bbr) = self.snd.cc.bbr_mut() else { return };
        let HandedOverTransmit { tag, pending, in_network_before } = transmit;
        bbr.on_handed_over(tag);
        if !pending {
            let alone = in_network_before == 0;
            bbr.on_departed(DepartingTransmit { tag, at: now, in_network, alone });
        }
    }

    /// Handles the echo of a transmit that has left; there were `in_network_before` bytes in the
    /// network before it.
    pub(super) fn note_bbr_departure(&mut self, tag: u32, in_network_before: u64) {
        let (at, in_network) = (self.snd.flight.last_departure(), self.snd.flight.in_network());
        if let Some(bbr) = self.snd.cc.bbr_mut() {
            let alone = in_network_before == 0;
            bbr.on_departed(DepartingTransmit { tag, at, in_network, alone });
        }
    }

    /// Notes that nothing is left to send, though the window has room and no loss is to be
    /// repaired.
    pub(super) fn note_bbr_app_limited(&mut self) {
        let snd = &mut self.snd;
        let pipe = snd.flight.pipe();
        let idle =
            pipe < u64::from(snd.cc.cwnd) && !snd.flight.has_lost() && !snd.flight.any_pending();
        if let Some(bbr) = snd.cc.bbr_mut().filter(|_| idle) {
            bbr.mark_app_limited(pipe);
        }
    }

    /// Handles what an acknowledgment delivered, before losses are detected.
    pub(super) fn begin_bbr_ack(&mut self, now: Instant, delivered: &DeliveredBytes) {
        let min_rtt = self.snd.rtt.min();
        let acked = AckedBytes { bytes: delivered.bytes, rtt: delivered.last_rtt, min_rtt };
        if let Some((bbr, inputs)) = self.bbr_with_inputs(now) {
            bbr.begin_ack(inputs, acked);
        }
    }

    /// Completes an acknowledgment. Returns whether the connection has BBR.
    pub(super) fn finish_bbr_ack(&mut self, now: Instant) -> bool {
        let Some((bbr, inputs)) = self.bbr_with_inputs(now) else { return false };
        let cwnd = bbr.finish_ack(inputs);
        self.snd.set_bbr_cwnd(cwnd);
        let TcpSendState { flight, cc, .. } = &mut self.snd;
        if let Some(bbr) = cc.bbr_mut() {
            bbr.drop_old(flight.ranges(), flight.unacknowledged_tags());
        }
        true
    }

    /// Passes the ranges that were found lost since the last call.
    pub(super) fn report_losses_to_bbr(&mut self, now: Instant) {
        let Some((_, inputs)) = self.bbr_with_inputs(now) else { return };
        let TcpSendState { flight, cc, .. } = &mut self.snd;
        let Some(bbr) = cc.bbr_mut() else { return };
        flight.take_losses(|sent| {
            bbr.on_lost(inputs, LostRange { tag: sent.tag, start: sent.start, end: sent.end });
        });
    }

    /// Handles a loss that a tail loss probe repaired.
    pub(super) fn report_repaired_loss_to_bbr(&mut self, now: Instant) {
        if let Some((bbr, inputs)) = self.bbr_with_inputs(now) {
            bbr.on_repaired_loss(inputs);
        }
    }

    /// Handles the first ECN echo of a window.
    pub(super) fn report_mark_to_bbr(&mut self, now: Instant) {
        if let Some((bbr, inputs)) = self.bbr_with_inputs(now) {
            bbr.on_ecn_mark(inputs);
        }
    }

    /// Saves BBR's state when loss recovery begins.
    pub(super) fn save_bbr_state(&mut self, now: Instant) {
        if let Some((bbr, inputs)) = self.bbr_with_inputs(now) {
            bbr.on_recovery_start(inputs);
        }
    }

    /// Restores the window at the end of loss recovery.
    pub(super) fn restore_bbr_cwnd(&mut self, now: Instant) {
        if let Some((bbr, inputs)) = self.bbr_with_inputs(now) {
            let cwnd = bbr.on_recovery_end(inputs);
            self.snd.set_bbr_cwnd(cwnd);
        }
    }

    /// Restores BBR's state after a loss recovery that proved to be spurious.
    pub(super) fn undo_bbr(&mut self, now: Instant) {
        if let Some((bbr, inputs)) = self.bbr_with_inputs(now) {
            let cwnd = bbr.on_spurious_recovery(inputs);
            self.snd.set_bbr_cwnd(cwnd);
        }
    }

    /// Frees BBR's memory for ranges in flight.
    pub(super) fn shrink_bbr(&mut self) {
        if let Some(bbr) = self.snd.cc.bbr_mut() {
            bbr.shrink();
        }
    }

    /// Returns the time that `bytes` take at BBR's pacing rate; `None` without BBR.
    pub(super) fn bbr_pacing_time(&self, bytes: u64) -> Option<Duration> {
        let bbr = self.snd.cc.bbr()?;
        Some(Duration::from_nanos(bytes.saturating_mul(1_000_000_000) / bbr.pacing_rate()))
    }

    /// Returns BBR's pacing rate in bytes per second; 0 without BBR.
    pub(super) fn bbr_pacing_rate(&self) -> u64 {
        self.snd.cc.bbr().map_or(0, Bbr::pacing_rate)
    }

    /// Returns the bytes that BBR lets leave as one run; `None` without BBR.
    pub(super) fn bbr_send_quantum(&self) -> Option<u32> {
        let bbr = self.snd.cc.bbr()?;
        Some(u32::try_from(bbr.send_quantum(self.snd.mss.into())).unwrap_or(u32::MAX))
    }
}
