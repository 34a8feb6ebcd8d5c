//! Relays bytes in both directions: in the device, or in this host if the device refuses.
//!
//! Both do the same: bytes from one side are sent to the other in order, a FIN follows the bytes
//! before it, and a reset of one side resets the other. There are two differences. If a backend has
//! not answered the first request, this host responds with 502 or 504, while the device can only
//! reset. And except in TCP mode, this host does not pass on the reset of a backend that has
//! already sent a FIN.

use super::*;

/// Bytes of a client that are discarded after the response, as in the content server.
const LATE_BYTES_MAX: u32 = 2 << 20;

impl<I: Copy + Eq> ProxyPair<I> {
    /// Sends the head to the connected backend, and asks the device to splice.
    pub(super) fn begin_relay<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        self.phase = ProxyPairPhase::Relay;
        self.last_relayed = cx.now;
        self.set_idle_deadline(cx);
        let Some(backend) = self.backend else { return self.reset_both_sides(cx) };
        if !self.flush(cx, backend) {
            // The send buffer has too little room even for the head, so the device is not asked.
            cx.shared.counters.proxy_relayed += 1;
            return PairAction::Keep;
        }
        let may_splice = cx.shared.config.splice && !cx.shared.inspection.is_active();
        if !may_splice || !self.offloads.splice {
            cx.shared.counters.proxy_relayed += 1;
            return self.relay(cx);
        }
        let idle = cx.shared.table.limits.idle_timeout;
        match cx.host.nsplice(cx.now, self.client, backend, idle) {
            Ok(id) => {
                self.phase = ProxyPairPhase::Splicing;
                cx.shared.splices.insert(id, self.index);
                PairAction::Keep
            }
            Err(error) => self.not_spliced(cx, error),
        }
    }

    /// Relays in this host to the end, because the device refuses.
    fn not_spliced<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        error: SpliceError,
    ) -> PairAction {
        cx.shared.counters.count_splice_refused(error);
        cx.shared.counters.proxy_relayed += 1;
        self.phase = ProxyPairPhase::Relay;
        self.last_relayed = cx.now;
        self.set_idle_deadline(cx);
        self.relay(cx)
    }

    /// Handles a splice that was made: the device relays, and the sockets are gone.
    pub(crate) fn handle_spliced<S: ProxySockets<Id = I>>(&mut self, cx: &mut ProxyPairEnv<'_, S>) {
        cx.shared.counters.proxy_spliced += 1;
        self.phase = ProxyPairPhase::Spliced;
        self.buffer = Vec::new();
        cx.shared.owners.clear(S::index(self.client), self.client);
        if let Some(backend) = self.backend.take() {
            cx.shared.owners.clear(S::index(backend), backend);
        }
    }

    /// Handles a refused splice: the sockets are as before.
    pub(crate) fn handle_splice_refused<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        error: SpliceError,
    ) -> PairAction {
        if self.phase != ProxyPairPhase::Splicing {
            return PairAction::Keep;
        }
        self.not_spliced(cx, error)
    }

    /// Handles the end of a splice.
    pub(crate) fn handle_splice_closed<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        meta: Option<SpliceMeta>,
    ) -> PairAction {
        let end = meta.and_then(|meta| meta.end);
        cx.shared.counters.count_splice_end(end);
        if let Some(meta) = meta {
            let [up, down] = meta.bytes;
            cx.shared.counters.proxy_spliced_bytes_up += up;
            cx.shared.counters.proxy_spliced_bytes_down += down;
            self.bytes = [self.bytes[CLIENT] + up, self.bytes[BACKEND] + down];
        }
        let stage = self.stage(cx.shared);
        match end {
            // The backend took a request and closed without a response.
            Some(SpliceEnd::Closed) if stage == TerminationStage::Headers => {
                self.set_termination(TerminationCause::Server, stage)
            }
            Some(SpliceEnd::Closed) => {
                self.set_termination(TerminationCause::Normal, TerminationStage::Over)
            }
            Some(SpliceEnd::Reset(0)) => self.set_termination(TerminationCause::Client, stage),
            Some(SpliceEnd::Reset(_)) => self.set_termination(TerminationCause::Server, stage),
            Some(SpliceEnd::IdleTimeout) => {
                self.set_termination(TerminationCause::ClientTimeout, stage)
            }
            Some(SpliceEnd::Unspliced) => self.set_termination(TerminationCause::Killed, stage),
            None => self.set_termination(TerminationCause::Internal, stage),
        }
        let end = match end {
            // Only the end of the program unsplices pairs.
            Some(SpliceEnd::Unspliced) => DRAINED.to_owned(),
            Some(end) => format!("{end:?}").to_lowercase(),
            None => "lost".to_owned(),
        };
        self.end(cx, "spliced", &end)
    }

    /// Relays the bytes for which there is room, and handles the end of either side.
    pub(super) fn relay<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        let Some(backend) = self.backend else { return self.reset_both_sides(cx) };
        if !self.flush(cx, backend) {
            return self.check_closed(cx, backend);
        }
        if !self.pump(cx, CLIENT, self.client, backend) {
            return self.deny(cx);
        }
        self.pump(cx, BACKEND, backend, self.client);
        self.check_closed(cx, backend)
    }

    /// Sends the rest of the head to `to`; returns whether none is left.
    pub(super) fn flush<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        to: I,
    ) -> bool {
        if self.buffer.is_empty() {
            return true;
        }
        // An error of the socket is handled through its readiness.
        let bytes = Bytes::from(core::mem::take(&mut self.buffer));
        let taken = cx.host.send(cx.now, to, bytes.clone()).unwrap_or(0);
        self.buffer = bytes.get(taken..).unwrap_or_default().to_vec();
        self.buffer.is_empty()
    }

    /// Ends a pair whose client sent a denied pattern: with a response if none has begun.
    fn deny<S: ProxySockets<Id = I>>(&mut self, cx: &mut ProxyPairEnv<'_, S>) -> PairAction {
        self.set_termination(TerminationCause::Proxy, self.stage(cx.shared));
        if self.is_unanswered(cx, BACKEND) {
            return self.answer(cx, HttpStatus::Forbidden);
        }
        self.reset_both_sides(cx)
    }

    /// Relays the bytes of one direction for which the other side has room, and then the FIN.
    /// Returns whether the bytes are admitted: false if the client sent a denied pattern, which is
    /// not relayed.
    fn pump<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        from: usize,
        source: I,
        to: I,
    ) -> bool {
        let target = 1 - from;
        let is_answer = from == BACKEND && self.mode(cx) == Some(ProxyMode::Http);
        while !self.send_closed[target] {
            if from == CLIENT && !cx.admits(source, &self.rules) {
                return false;
            }
            let bytes = cx.host.peek(source);
            let room = cx.host.send_room(to);
            if bytes.is_empty() || room == 0 {
                break;
            }
            let piece = Bytes::copy_from_slice(&bytes[..bytes.len().min(room)]);
            let first = (is_answer && !self.status.is_whole()).then(|| piece.clone());
            // An error of the socket is handled through its readiness.
            let Ok(taken) = cx.host.send(cx.now, to, piece) else { break };
            if taken == 0 {
                break;
            }
            if let Some(first) = first {
                self.status.take(first.get(..taken).unwrap_or_default());
            }
            cx.host.consume(source, taken);
            if from == BACKEND {
                self.times.answered.get_or_insert(cx.now);
            }
            self.bytes[from] += taken as u64;
            self.last_relayed = cx.now;
            let counters = &mut cx.shared.counters;
            match from {
                CLIENT => counters.proxy_relayed_bytes_up += taken as u64,
                _ => counters.proxy_relayed_bytes_down += taken as u64,
            }
        }
        if !self.send_closed[target] && cx.host.readiness(source).peer_closed {
            self.send_closed[target] = true;
            // A backend that closes without sending anything did not respond: see `check_closed`.
            if !self.is_unanswered(cx, from) {
                cx.host.shutdown(cx.now, to);
            }
        }
        true
    }

    /// Returns whether `from` is a backend that has not responded to a request.
    fn is_unanswered<S: ProxySockets<Id = I>>(
        &self,
        cx: &ProxyPairEnv<'_, S>,
        from: usize,
    ) -> bool {
        from == BACKEND && self.bytes[BACKEND] == 0 && self.mode(cx) == Some(ProxyMode::Http)
    }

    fn check_closed<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        backend: I,
    ) -> PairAction {
        let of_client = cx.host.readiness(self.client).error;
        let of_backend = cx.host.readiness(backend).error;
        let failed = |error: Option<SocketError>| error.is_some_and(|e| e != SocketError::Closed);
        if failed(of_client) {
            cx.shared.counters.proxy_relays_reset_by_client += 1;
            cx.host.close(cx.now, self.client);
            self.set_termination(TerminationCause::Client, self.stage(cx.shared));
            return self.end(cx, "relayed", "reset by client");
        }
        if (failed(of_backend) || self.send_closed[CLIENT]) && self.is_unanswered(cx, BACKEND) {
            cx.shared.counters.proxy_relays_reset_by_backend += 1;
            self.set_termination(TerminationCause::Server, TerminationStage::Headers);
            return self.reply_for_backend(cx, HttpStatus::BadGateway);
        }
        if failed(of_backend) && self.send_closed[CLIENT] && self.mode(cx) != Some(ProxyMode::Tcp) {
            // The backend had sent its whole response, and refused what the client sent after that.
            // If its reset were passed on, it could destroy the response (RFC 9112 section 9.6).
            cx.shared.counters.proxy_relays_closed += 1;
            cx.host.close_lingering(cx.now, self.client, LATE_BYTES_MAX);
            return self.end(cx, "relayed", "closed");
        }
        if failed(of_backend) {
            cx.shared.counters.proxy_relays_reset_by_backend += 1;
            cx.host.abort(cx.now, self.client);
            self.set_termination(TerminationCause::Server, self.stage(cx.shared));
            return self.end(cx, "relayed", "reset by backend");
        }
        if self.send_closed == [true; 2] {
            cx.shared.counters.proxy_relays_closed += 1;
            // The host delivers the rest in both directions.
            cx.host.close(cx.now, self.client);
            cx.shared.owners.clear(S::index(backend), backend);
            cx.host.close(cx.now, backend);
            self.backend = None;
            return self.end(cx, "relayed", "closed");
        }
        PairAction::Keep
    }

    /// Responds to the client for a backend that took a request and did not respond.
    fn reply_for_backend<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
        what: HttpStatus,
    ) -> PairAction {
        if let Some(id) = self.backend_id {
            let change = cx.shared.backends.record_failure(id, cx.now);
            cx.shared.record_health_change(cx.now, id, change);
        }
        self.release_backend(cx);
        self.answer(cx, what)
    }

    fn set_idle_deadline<S: ProxySockets<Id = I>>(&mut self, cx: &ProxyPairEnv<'_, S>) {
        self.deadline = self.last_relayed + cx.shared.table.limits.idle_timeout;
    }

    /// Ends the pair if it has been idle for the idle timeout.
    pub(super) fn check_idle<S: ProxySockets<Id = I>>(
        &mut self,
        cx: &mut ProxyPairEnv<'_, S>,
    ) -> PairAction {
        let Some(backend) = self.backend else { return self.reset_both_sides(cx) };
        // A slow reader is not idle: it acknowledges bytes.
        let queued = cx.host.send_queue(self.client) + cx.host.send_queue(backend);
        if queued != self.queued {
            self.queued = queued;
            self.last_relayed = cx.now;
        }
        self.set_idle_deadline(cx);
        if self.deadline > cx.now {
            return PairAction::Keep;
        }
        cx.shared.counters.proxy_relays_idle += 1;
        if self.phase == ProxyPairPhase::Splicing {
            // The host waits for acknowledgments of a vanished peer before it asks the device. It
            // abandons the splice when the sockets are reset, so its notice about the splice is no
            // longer needed.
            let index = self.index;
            cx.shared.splices.retain(|_, pair| *pair != index);
            cx.host.abort(cx.now, self.client);
            self.set_termination(TerminationCause::ClientTimeout, self.stage(cx.shared));
            return self.end(cx, "relayed", "idle");
        }
        if self.is_unanswered(cx, BACKEND) {
            self.set_termination(TerminationCause::ServerTimeout, TerminationStage::Headers);
            return self.reply_for_backend(cx, HttpStatus::GatewayTimeout);
        }
        self.set_termination(TerminationCause::ClientTimeout, TerminationStage::Data);
        cx.host.abort(cx.now, self.client);
        self.end(cx, "relayed", "idle")
    }
}
