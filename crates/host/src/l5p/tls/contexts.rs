//! Requests, refusals, losses and resynchronization of a session's contexts on the device.
//!
//! Called by the session when keys change, and by the host for the device's events. The state of
//! the receive contexts is in [`super::rx_offload`], that of the transmit contexts in
//! [`super::tx_keys`].

use alloc::boxed::Box;

use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oState, ResyncRequest};
use abi::nvme_tcp::TlsCarrier;
use abi::{Op, Refusal};

use super::{HostTlsSession, TlsQueuedData};
use crate::l5p::L5pConnection;
use crate::tcp::conn::TcpEnv;
use base::internal_error;

impl HostTlsSession {
    /// Requests a transmit context from the next record on, if one `follows`. The keys are added to
    /// the send stream's in any case.
    pub(super) fn install_tx(
        &mut self,
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        follows: bool,
    ) {
        let Some(open) = self.stage.open() else { return };
        let refused = match cx.out.offloads.l5o {
            Ok(limits) if limits.tls_tx => None,
            Ok(_) => Some(Refusal::NotSupported),
            Err(why) => Some(why),
        };
        self.tx_refused = refused;
        self.tx_request_at = None;
        let end = conn.snd.spans.end();
        let wanted = refused.is_none() && follows;
        let context = wanted.then(|| cx.out.new_context());
        if let Some(context) = context {
            let create = L5oCreate {
                context,
                flow: conn.flow,
                direction: L5oDirection::Transmit,
                tcpsn: conn.seq(end),
                state: L5oState::Tls(open.tx.keys.state(open.tx.number)),
            };
            cx.out.ops.push_back(Op::L5oCreate(Box::new(create)));
            cx.out.counters.tls_tx_device += 1;
        }
        let Some(sealer) = &mut conn.snd.transforms.tx_keys else {
            internal_error!(cx.out.counters.internal_errors, "a session without keys");
            return;
        };
        if sealer.has(&open.tx.keys) {
            context.into_iter().for_each(|context| sealer.renew(context));
        } else {
            sealer.push(open.tx.keys.clone(), context, end);
        }
    }

    /// Returns the context and number of the next record to be written, if the device encrypts it.
    pub(crate) fn tx_at(&self, conn: &L5pConnection) -> Option<TlsCarrier> {
        let open = self.stage.open()?;
        let context = conn.snd.transforms.tx_keys.as_ref()?.context()?;
        Some(TlsCarrier { context, first_record: open.tx.number, skip: 0 })
    }

    /// Requests a receive context from the first record on whose header has not arrived.
    pub(super) fn install_rx(&mut self, conn: &L5pConnection, cx: &mut TcpEnv<'_>) {
        if !conn.state.is_synchronized() {
            return;
        }
        let next = self.boundaries(&conn.rcv).and_then(Iterator::last);
        if let (Some(next), Some(offload)) = (next, &mut self.offload) {
            offload.install(conn, cx, next);
        }
    }

    /// Requests contexts again that the device refused because its table was full, if due.
    pub(crate) fn request_again(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        let received = conn.rcv.next();
        if self.offload.as_ref().is_some_and(|offload| offload.is_request_due(received)) {
            cx.out.counters.tls_device_asked_again += 1;
            self.install_rx(conn, cx);
        }
        let due = self.tx_request_at.is_some_and(|at| at <= conn.snd.spans.end());
        if due && conn.state.may_write() && !conn.snd.fin {
            cx.out.counters.tls_device_asked_again += 1;
            self.install_tx(conn, cx, true);
        }
    }

    /// Drops former contexts, answers the device's questions, and requests a postponed context.
    pub(super) fn follow(&mut self, conn: &L5pConnection, cx: &mut TcpEnv<'_>) {
        let Some(mut offload) = self.offload.take_if(|o| o.must_follow()) else { return };
        let drained = conn.rcv.ready_bytes() == 0 && self.front.copied().is_empty();
        if let Some(mut boundaries) = self.boundaries(&conn.rcv).map(Iterator::peekable) {
            if let Some(&at) = boundaries.peek() {
                offload.advance(at);
            }
            offload.answer(conn, cx, drained, boundaries);
        }
        let install = offload.can_install_postponed();
        self.offload = Some(offload);
        if install {
            self.install_rx(conn, cx);
        }
    }

    /// Handles `l5o_resync_rx_req`: the device asks whether a record begins at a position.
    pub(crate) fn handle_resync(
        &mut self,
        conn: &L5pConnection,
        cx: &mut TcpEnv<'_>,
        context: L5oId,
        request: ResyncRequest,
    ) {
        if let Some(offload) = self.offload.as_deref_mut().filter(|o| o.is_current(context)) {
            offload.handle_request(conn, cx, request);
            self.follow(conn, cx);
        }
    }

    /// Handles the refusal of a context.
    pub(crate) fn handle_refused(
        &mut self,
        conn: &mut L5pConnection,
        cx: &mut TcpEnv<'_>,
        context: L5oId,
        why: Refusal,
    ) {
        if let Some(offload) = self.offload.as_deref_mut().filter(|o| o.is_current(context)) {
            offload.handle_refused(why, conn.rcv.next());
            cx.out.counters.tls_rx_sw += 1;
            cx.out.counters.tls_rx_device_refused += 1;
            return;
        }
        // The context may be one of older keys: the host encrypts records under these as well.
        if conn.drop_contexts(cx, Some((context, why))).encryption {
            self.tx_refused = Some(why);
            self.tx_request_at = why.next_request_at(conn.snd.spans.end());
            cx.out.counters.tls_tx_sw += 1;
            cx.out.counters.tls_tx_device_refused += 1;
        }
    }

    /// Handles a reset of the device: the host encrypts everything written so far; new contexts are
    /// requested for later records.
    pub(crate) fn handle_device_reset(&mut self, conn: &mut L5pConnection, cx: &mut TcpEnv<'_>) {
        for piece in &mut self.queue {
            match piece {
                TlsQueuedData::File { source, .. } => source.read_on_host(),
                TlsQueuedData::Pdu(pdu) => pdu.data.read_on_host(),
                TlsQueuedData::Memory(_) | TlsQueuedData::End => {}
            }
        }
        if self.stage.open().is_none() || !conn.state.is_synchronized() {
            return;
        }
        if let Some(offload) = &mut self.offload {
            offload.handle_lost(cx.out, conn.rcv.edge(), Refusal::DeviceReset);
        }
        if conn.state.may_write() {
            self.install_tx(conn, cx, true);
        }
        self.install_rx(conn, cx);
    }
}
