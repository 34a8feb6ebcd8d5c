//! What a connection keeps of the device's work for NVMe over TCP: its receive context, and what
//! the device has to say about it until the transport asks.
//!
//! Called by [`crate::stream`] with events, and for [`crate::nvme::Transport`]. Memory that comes
//! back for a connection that is gone is dropped: whoever waited for it knows that the connection
//! is gone.
//!
//! A context does not last as long as its connection: a reset of the device ends it, and over TLS
//! every record that it does not follow, a change of keys among them. Then another is made, from
//! the next PDU on whose header has not come, but not more than so many a second: each has the
//! device give back and take all buffers.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::aligned::AlignedBuf;
use abi::l5o::{Direction, L5oCreate, L5oId, L5oState, ResyncRequest};
use abi::nvme_tcp::{DdpId, DdpSetup, DdpTeardownDone, NvmeTcpLimits, NvmeTcpState, OverTls};
use abi::{FlowId, Op, Refusal};
use base::SeqNum;

use crate::l5p::Connection;
use crate::l5p::tls::{NextRecord, Session};
use crate::limit::PerSecond;
use crate::net::outbox::Outbox;
use crate::tcp::conn::Cx;

/// Receive contexts of a connection in a second.
const CONTEXTS_PER_SECOND: u32 = 4;

/// The device's part in a connection.
#[derive(Debug)]
pub(crate) struct Port {
    /// The receive context, or why there is none.
    rx: Result<L5oId, Refusal>,
    /// Where there is none there may be one later.
    again: bool,
    /// Where its stream begins in records of TLS.
    from: Option<NextRecord>,
    made: PerSecond,
    /// The name of the buffer that was lent last.
    lent: DdpId,
    /// Buffers that came back.
    back: VecDeque<DdpTeardownDone>,
    /// Where the device thinks that a PDU begins.
    asked: Option<SeqNum>,
}

impl Port {
    fn new() -> Self {
        Self {
            rx: Err(Refusal::Disabled),
            again: false,
            from: None,
            made: PerSecond::new(CONTEXTS_PER_SECOND),
            lent: DdpId(0),
            back: VecDeque::new(),
            asked: None,
        }
    }
}

impl Port {
    /// Asks the device for a receive context. `skip` bytes from the next on are the rest of a PDU
    /// that is followed here. Returns the next byte's position in the stream; none if there is no
    /// context.
    pub(crate) fn attach(
        port: &mut Option<Box<Self>>,
        conn: &Connection,
        session: Option<&Session>,
        cx: &mut Cx<'_>,
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
        port.again = offered.is_ok();
        let mut from = offered.and(record);
        if from.is_ok() && !port.made.allows(cx.now) {
            from = Err(Refusal::KeysChangeTooOften);
        }
        let rx = from.map(|from| {
            let context = cx.out.new_context();
            let over = from.map(|from| OverTls { skip, ..from.over });
            let state = L5oState::NvmeTcp(NvmeTcpState { over, ..state });
            let (tcpsn, direction) =
                (from.map_or(next + skip, |from| from.seq), Direction::Receive(tuple));
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
        (port.rx, port.from, port.asked) = (rx, from.ok().flatten(), None);
        rx.ok().map(|_| port.from.map_or(next, |from| from.seq))
    }

    /// With all read that came, up to `position` of the stream: gives a context up whose stream
    /// continued elsewhere. Returns whether there is none, and may be one.
    pub(crate) fn is_to_attach(
        &mut self,
        conn: &Connection,
        session: Option<&Session>,
        out: &mut Outbox,
        position: SeqNum,
    ) -> bool {
        if conn.rcv.finished() {
            return false;
        }
        if let (Ok(context), Some(from)) = (self.rx, self.from) {
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
        self.rx.is_err() && self.again
    }

    /// Returns the receive context that works now, or why there is none.
    pub(crate) const fn context(&self) -> Result<L5oId, Refusal> {
        self.rx
    }

    /// Returns a buffer that came back.
    pub(crate) fn poll_buffer(&mut self) -> Option<DdpTeardownDone> {
        self.back.pop_front()
    }

    /// Returns the position at which the device thinks that a PDU begins.
    pub(crate) const fn asked(&self) -> Option<SeqNum> {
        self.asked
    }

    /// Registers a buffer of which the bytes `there` have come with the device, and returns its
    /// name; returns the buffer if there is no context.
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
        let id = DdpId(self.lent.0.wrapping_add(1));
        self.lent = id;
        let setup = DdpSetup { context, flow, tag, id, offset, len, there, buffer };
        out.ops.push_back(Op::DdpSetup(Box::new(setup)));
        out.counters.nvme_ddp_setup += 1;
        Ok(id)
    }

    /// Asks for a buffer. If the context is gone it is on its way already.
    pub(crate) fn reclaim(&self, out: &mut Outbox, tag: u16) {
        if let Ok(context) = self.rx {
            out.ops.push_back(Op::DdpTeardown { context, tag });
        }
    }

    /// Answers the device, if it waits for that.
    pub(crate) fn answer(&mut self, out: &mut Outbox, tcpsn: SeqNum, begins: bool) {
        self.asked = None;
        if let Ok(context) = self.rx {
            let number = begins.then_some(0);
            out.ops.push_back(Op::L5oResyncRxResp { context, tcpsn, number });
            out.counters.nvme_rx_resync += 1;
        }
    }

    /// A buffer came back.
    pub(crate) fn handle_buffer(&mut self, out: &mut Outbox, done: DdpTeardownDone) {
        out.counters.nvme_ddp_refused += u64::from(done.refused.is_some());
        self.back.push_back(done);
    }

    /// The device asks where a PDU begins. Returns whether the transport has to look.
    pub(crate) fn handle_resync(&mut self, request: ResyncRequest) -> bool {
        match request {
            ResyncRequest::Scan { tcpsn } | ResyncRequest::AsyncEnd { tcpsn } => {
                self.asked = Some(tcpsn);
                true
            }
            ResyncRequest::AsyncStart { .. } | ResyncRequest::AsyncCancel => false,
        }
    }

    /// The device refused the receive context.
    pub(crate) fn handle_refused(&mut self, out: &mut Outbox, why: Refusal) {
        (self.rx, self.again) = (Err(why), false);
        let counters = &mut out.counters;
        counters.nvme_rx_device -= counters.nvme_rx_device.min(1);
        counters.nvme_rx_sw += 1;
    }

    /// The device lost everything. Its buffers come back one by one. Returns whether the transport
    /// has to look.
    pub(crate) fn handle_device_reset(&mut self, out: &mut Outbox) -> bool {
        let Ok(context) = self.rx else { return false };
        (self.rx, self.asked) = (Err(Refusal::DeviceReset), None);
        // It may not have been made before the reset, and have buffers afterwards.
        out.ops.push_back(Op::L5oDestroy { context });
        true
    }

    /// The connection is over: the context is destroyed.
    pub(crate) fn end(&mut self, out: &mut Outbox) {
        self.again = false;
        let context = core::mem::replace(&mut self.rx, Err(Refusal::Ended)).ok();
        out.ops.extend(context.map(|context| Op::L5oDestroy { context }));
    }
}
