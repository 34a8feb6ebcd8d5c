//! NVMe/TCP receive offload of a connection: its receive context, and the device's events about it
//! until the transport polls them.
//!
//! Called by [`crate::stream`] with events, and for [`crate::nvme::NvmeTransport`]. Buffers that
//! the device returns for a removed connection are dropped.
//!
//! A context does not last as long as its connection: a device reset ends it, and over TLS every
//! record that it does not follow, for example one under new keys. Then another context is
//! requested from the next PDU on whose header has not arrived; if the device's table was full,
//! when twice as many bytes have arrived. The rate is limited, because for each context the device
//! returns and takes back all buffers.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::aligned::AlignedBuf;
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oState, ResyncRequest};
use abi::nvme_tcp::{
    DdpBuffer, DdpId, DdpSetup, DdpTeardownDone, NvmeTcpLimits, NvmeTcpState, TlsCarrier,
};
use abi::{FlowId, Op, Refusal};
use base::SeqNum;

use crate::l5p::L5pConnection;
use crate::l5p::tls::{HostTlsSession, NextRecord};
use crate::net::outbox::Outbox;
use crate::rate_limit::RateLimiter;
use crate::tcp::conn::TcpEnv;

/// Maximum number of receive contexts that a connection requests per second.
const CONTEXTS_PER_SECOND: u32 = 4;

/// NVMe/TCP receive offload of a connection.
#[derive(Debug)]
pub(crate) struct NvmeRxOffload {
    /// The receive context, or why there is none.
    rx: Result<L5oId, Refusal>,
    /// If there is no context, the received bytes from which on one may be requested; `None` for
    /// never.
    request_at: Option<u64>,
    /// Over TLS, the record with which the context began.
    first_record: Option<NextRecord>,
    creation_limit: RateLimiter,
    /// Identifier of the buffer registered last.
    last_registration: DdpId,
    /// Buffers that the device returned.
    returned: VecDeque<DdpTeardownDone>,
    /// Position at which the device believes that a PDU begins.
    asked: Option<SeqNum>,
}

impl NvmeRxOffload {
    fn new() -> Self {
        Self {
            rx: Err(Refusal::Disabled),
            request_at: None,
            first_record: None,
            creation_limit: RateLimiter::new(CONTEXTS_PER_SECOND),
            last_registration: DdpId(0),
            returned: VecDeque::new(),
            asked: None,
        }
    }
}

impl NvmeRxOffload {
    /// Requests a receive context. The next `skip` bytes are the rest of a PDU that the host
    /// follows. Returns the position of the next byte in the stream that the context counts; `None`
    /// if there is no context.
    pub(crate) fn attach(
        port: &mut Option<Box<Self>>,
        conn: &L5pConnection,
        session: Option<&HostTlsSession>,
        cx: &mut TcpEnv<'_>,
        state: NvmeTcpState,
        skip: u32,
    ) -> Option<SeqNum> {
        let (flow, tuple, rcv) = (conn.flow, conn.tuple, &conn.rcv);
        let next = rcv.seq(rcv.read_position());
        let record = session.map(|session| session.next_record(rcv)).transpose();
        let first = port.is_none();
        let port = port.get_or_insert_with(|| Box::new(Self::new()));
        let offered = cx.out.offloads.nvme_tcp.and_then(|limits| match limits.rx {
            true => Ok(()),
            false => Err(Refusal::NotSupported),
        });
        port.request_at = offered.is_ok().then_some(0);
        let mut from = offered.and(record);
        if from.is_ok() && !port.creation_limit.allows(cx.now) {
            from = Err(Refusal::KeysChangeTooOften);
        }
        let rx = from.map(|from| {
            let context = cx.out.new_context();
            let over = from.map(|from| TlsCarrier { skip, ..from.over });
            let state = L5oState::NvmeTcp(NvmeTcpState { tls: over, ..state });
            let (tcpsn, direction) =
                (from.map_or(next + skip, |from| from.seq), L5oDirection::Receive(tuple));
            let create = L5oCreate { context, flow, direction, tcpsn, state };
            cx.out.ops.push_back(Op::L5oCreate(Box::new(create)));
            context
        });
        let late = Err(Refusal::KeysChangeTooOften);
        let counters = &mut cx.out.counters;
        counters.nvme_rx_put_off += u64::from(rx == late && port.rx != late);
        counters.nvme_rx_device += u64::from(first && rx.is_ok());
        counters.nvme_rx_sw += u64::from(first && rx.is_err());
        counters.nvme_rx_renewed += u64::from(!first && rx.is_ok());
        // The connection was counted as one without a context when it was refused.
        if rx.is_ok() && port.rx == Err(Refusal::TableFull) {
            counters.nvme_rx_device += 1;
            counters.nvme_rx_sw -= counters.nvme_rx_sw.min(1);
        }
        (port.rx, port.first_record, port.asked) = (rx, from.ok().flatten(), None);
        rx.ok().map(|_| port.first_record.map_or(next, |from| from.seq))
    }

    /// Called when everything up to `position` of the context's stream has been read. Destroys a
    /// context whose stream has continued elsewhere. Returns whether a context is missing and may
    /// be requested.
    pub(crate) fn needs_context(
        &mut self,
        conn: &L5pConnection,
        session: Option<&HostTlsSession>,
        out: &mut Outbox,
        position: SeqNum,
    ) -> bool {
        if conn.rcv.is_finished() {
            return false;
        }
        if let (Ok(context), Some(from)) = (self.rx, self.first_record) {
            let next = session.map(|session| session.next_record(&conn.rcv));
            let why = match next {
                Some(Ok(next))
                    if next.over.context == from.over.context
                        && next.position(&from) == position =>
                {
                    return false;
                }
                Some(Err(why)) => why,
                _ => Refusal::DoesNotFit,
            };
            (self.rx, self.asked) = (Err(why), None);
            out.ops.push_back(Op::L5oDestroy { context });
            out.counters.nvme_rx_lost += 1;
        }
        self.is_request_due(conn.rcv.next())
    }

    /// Returns whether a context is missing and may be requested, after `received` bytes.
    fn is_request_due(&self, received: u64) -> bool {
        self.rx.is_err() && self.request_at.is_some_and(|at| at <= received)
    }

    /// Returns the current receive context, or why there is none.
    pub(crate) const fn context(&self) -> Result<L5oId, Refusal> {
        self.rx
    }

    /// Removes and returns a buffer that the device returned.
    pub(crate) fn poll_buffer(&mut self) -> Option<DdpTeardownDone> {
        self.returned.pop_front()
    }

    /// Returns the position at which the device believes that a PDU begins.
    pub(crate) const fn asked(&self) -> Option<SeqNum> {
        self.asked
    }

    /// Registers a buffer, of which the bytes `filled` have already arrived. Returns its
    /// identifier, or the buffer if there is no context or registration does not pay off.
    pub(crate) fn register(
        &mut self,
        flow: FlowId,
        out: &mut Outbox,
        (tag, offset, len, there): (u16, u32, u32, u32),
        buffer: AlignedBuf,
    ) -> Result<DdpId, AlignedBuf> {
        let worth =
            |limits: NvmeTcpLimits| limits.buffers_max > 0 && len - there >= limits.io_threshold;
        let Ok(context) = self.rx else { return Err(buffer) };
        if !out.offloads.nvme_tcp.is_ok_and(worth) {
            return Err(buffer);
        }
        let id = DdpId(self.last_registration.0.wrapping_add(1));
        self.last_registration = id;
        let buffer = DdpBuffer::Pages(buffer);
        let setup = DdpSetup { context, flow, tag, id, offset, len, filled: there, buffer };
        out.ops.push_back(Op::DdpSetup(Box::new(setup)));
        out.counters.nvme_ddp_setup += 1;
        Ok(id)
    }

    /// Asks the device to return a buffer. If the context was destroyed, the buffer is already on
    /// its way back.
    pub(crate) fn reclaim(&self, out: &mut Outbox, tag: u16) {
        if let Ok(context) = self.rx {
            out.ops.push_back(Op::DdpTeardown { context, tag });
        }
    }

    /// Answers the device's question.
    pub(crate) fn answer(&mut self, out: &mut Outbox, tcpsn: SeqNum, begins: bool) {
        self.asked = None;
        if let Ok(context) = self.rx {
            let number = begins.then_some(0);
            out.ops.push_back(Op::L5oResyncRxResp { context, tcpsn, number });
            out.counters.nvme_rx_resync += 1;
        }
    }

    /// Handles the return of a buffer.
    pub(crate) fn handle_buffer_returned(&mut self, out: &mut Outbox, done: DdpTeardownDone) {
        out.counters.nvme_ddp_refused += u64::from(done.refused.is_some());
        self.returned.push_back(done);
    }

    /// Handles the device's question whether a PDU begins at a position. Returns whether the
    /// transport must answer.
    pub(crate) fn handle_resync(&mut self, request: ResyncRequest) -> bool {
        match request {
            ResyncRequest::Scan { tcpsn } | ResyncRequest::AsyncEnd { tcpsn } => {
                self.asked = Some(tcpsn);
                true
            }
            ResyncRequest::AsyncStart { .. } | ResyncRequest::AsyncCancel => false,
        }
    }

    /// Handles the refusal of the receive context, when `received` bytes had arrived.
    pub(crate) fn handle_refused(&mut self, out: &mut Outbox, why: Refusal, received: u64) {
        (self.rx, self.request_at) = (Err(why), why.next_request_at(received));
        let counters = &mut out.counters;
        counters.nvme_rx_device -= counters.nvme_rx_device.min(1);
        counters.nvme_rx_sw += 1;
    }

    /// Handles a reset of the device, which returns the buffers one by one. Returns whether the
    /// transport must poll.
    pub(crate) fn handle_device_reset(&mut self, out: &mut Outbox) -> bool {
        // The table that was full is empty now.
        self.request_at = self.request_at.map(|_| 0);
        let Ok(context) = self.rx else { return self.request_at.is_some() };
        (self.rx, self.asked) = (Err(Refusal::DeviceReset), None);
        // The operations in the ring may still create the context after the reset, and register
        // buffers with it.
        out.ops.push_back(Op::L5oDestroy { context });
        true
    }

    /// Destroys the context of a connection that has ended.
    pub(crate) fn end(&mut self, out: &mut Outbox) {
        self.request_at = None;
        let context = core::mem::replace(&mut self.rx, Err(Refusal::Ended)).ok();
        out.ops.extend(context.map(|context| Op::L5oDestroy { context }));
    }
}

#[cfg(test)]
mod tests {
    use abi::Capabilities;

    use super::*;
    use crate::config::HostConfig;

    const fn capabilities() -> Capabilities {
        Capabilities::without_engines([2; 6], 1500, 1500, Refusal::Disabled)
    }

    /// A context that was refused because the table was full is requested again after twice as many
    /// bytes, or at once after a device reset; one that was refused for another reason, never.
    #[test]
    fn a_refused_context_is_requested_again() {
        for (why, again) in [(Refusal::TableFull, true), (Refusal::NotSupported, false)] {
            let mut out = Outbox::new(&HostConfig::default(), &capabilities());
            let mut port = NvmeRxOffload::new();
            (port.rx, port.request_at) = (Ok(L5oId(1)), Some(0));
            port.handle_refused(&mut out, why, 100_000);
            assert!(!port.is_request_due(199_999));
            assert_eq!(port.is_request_due(200_000), again);
            assert_eq!(port.handle_device_reset(&mut out), again);
            assert_eq!(port.is_request_due(100_000), again);
            port.end(&mut out);
            assert!(!port.is_request_due(u64::MAX));
        }
    }
}
