//! What a connection keeps of the device's work for NVMe over TCP: its receive context, and what
//! the device has to say about it until the transport asks.
//!
//! Called by [`crate::Host`] with events and by [`super::Transport`]. Memory that comes back for a
//! connection that is gone is dropped: whoever waited for it knows that the connection is gone.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::l5o::{Direction, L5oCreate, L5oId, L5oRefused, L5oState, ResyncRequest};
use abi::nvme_tcp::{DdpSetup, DdpTeardownDone, NvmeTcpLimits, NvmeTcpState, Placed};
use abi::{FlowId, Op, Refusal};
use base::SeqNum;

use crate::api::{Notice, SocketId};
use crate::host::Host;

/// The device's part in a connection.
#[derive(Debug)]
pub(crate) struct Port {
    /// The receive context, or why there is none.
    pub(super) rx: Result<L5oId, Refusal>,
    /// Buffers that came back.
    pub(super) back: VecDeque<DdpTeardownDone>,
    /// Where the device thinks that a PDU begins.
    pub(super) asked: Option<SeqNum>,
}

impl Host {
    /// Asks the device for a receive context from the next byte on, which begins a PDU. Gives that
    /// byte's position in the stream.
    pub(super) fn nvme_attach(&mut self, socket: SocketId, state: NvmeTcpState) -> Option<SeqNum> {
        let offered = self.out.nvme_tcp.and_then(|limits| match limits.rx {
            true => Ok(()),
            false => Err(Refusal::NotSupported),
        });
        let conn = self.table.get(socket)?;
        let read = conn.rcv.read_position();
        let (flow, tuple) = (conn.flow, conn.tuple);
        let tcpsn = conn.rcv.seq(read);
        let slot = self.table.slots.get_mut(socket.index())?;
        let over = slot.session.as_deref().map(|session| session.receive_context()).transpose();
        let rx = offered.and(over).map(|over| {
            let context = self.out.new_context();
            let state = L5oState::NvmeTcp(NvmeTcpState { over, ..state });
            let direction = Direction::Receive(tuple);
            let create = L5oCreate { context, flow, direction, tcpsn, state };
            self.out.ops.push_back(Op::L5oCreate(Box::new(create)));
            context
        });
        self.out.counters.nvme_rx_device += u64::from(rx.is_ok());
        self.out.counters.nvme_rx_sw += u64::from(rx.is_err());
        let back = slot.nvme.take().map(|port| port.back).unwrap_or_default();
        slot.nvme = Some(Box::new(Port { rx, back, asked: None }));
        Some(tcpsn)
    }

    /// The device's part in a connection, while there is one.
    pub(super) fn nvme_port(&mut self, socket: SocketId) -> Option<&mut Port> {
        self.table.get(socket)?;
        self.table.slots.get_mut(socket.index())?.nvme.as_deref_mut()
    }

    /// The receive context that works now.
    pub(super) fn nvme_context(&mut self, socket: SocketId) -> Option<L5oId> {
        self.nvme_port(socket)?.rx.ok()
    }

    /// Lends the device a buffer; gives it back where there is no context.
    pub(super) fn nvme_lend(
        &mut self,
        socket: SocketId,
        (tag, offset, len): (u16, u32, u32),
        buffer: abi::aligned::AlignedBuf,
    ) -> Option<abi::aligned::AlignedBuf> {
        let worth = |limits: NvmeTcpLimits| limits.buffers_max > 0 && len >= limits.io_threshold;
        let Some(context) =
            self.nvme_context(socket).filter(|_| self.out.nvme_tcp.is_ok_and(worth))
        else {
            return Some(buffer);
        };
        let Some(flow) = self.table.get(socket).map(|conn| conn.flow) else {
            return Some(buffer);
        };
        let setup = DdpSetup { context, flow, tag, offset, len, buffer };
        self.out.ops.push_back(Op::DdpSetup(Box::new(setup)));
        self.out.counters.nvme_ddp_setup += 1;
        None
    }

    /// Asks for a buffer. Where the context is gone it is on its way already.
    pub(super) fn nvme_reclaim(&mut self, socket: SocketId, tag: u16) {
        if let Some(context) = self.nvme_context(socket) {
            self.out.ops.push_back(Op::DdpTeardown { context, tag });
        }
    }

    /// Whether the device has forgotten the context, and could have another: where TLS is below,
    /// that goes on in software too.
    pub(super) fn nvme_was_reset(&mut self, socket: SocketId) -> bool {
        let tls = self.has_session(socket);
        !tls && self.nvme_port(socket).is_some_and(|port| port.rx == Err(Refusal::DeviceReset))
    }

    /// Answers the device, if it waits for that.
    pub(super) fn nvme_answer(&mut self, socket: SocketId, tcpsn: SeqNum, begins: bool) {
        let Some(port) = self.nvme_port(socket) else { return };
        port.asked = None;
        if let Ok(context) = port.rx {
            let number = begins.then_some(0);
            self.out.ops.push_back(Op::L5oResyncRxResp { context, tcpsn, number });
            self.out.counters.nvme_rx_resync += 1;
        }
    }

    /// What the device did with the bytes that [`Self::peek`] shows, and where in the payload they
    /// begin; none where it did nothing, or they are not read where they came.
    pub(super) fn nvme_placed(&mut self, socket: SocketId) -> Option<(&mut Placed, usize)> {
        self.table.get(socket)?;
        let slot = self.table.slots.get_mut(socket.index())?;
        let context = slot.nvme.as_deref()?.rx.ok()?;
        if slot.session.as_deref().is_some_and(|session| !session.shows_packets()) {
            return None;
        }
        let (placed, at) = slot.conn.as_deref_mut()?.rcv.placed()?;
        (placed.context == Some(context)).then_some((placed, at))
    }

    /// A buffer came back.
    pub(crate) fn nvme_buffer_back(&mut self, done: DdpTeardownDone) {
        let id = SocketId::of_flow(done.flow);
        let Some(port) = self.nvme_port(id) else {
            self.out.counters.events_ignored += 1;
            return;
        };
        let refused = u64::from(done.refused.is_some());
        port.back.push_back(done);
        self.out.counters.nvme_ddp_refused += refused;
        self.nvme_notice(id);
    }

    /// The device asks where a PDU begins. Says whether the context is one of these.
    pub(crate) fn nvme_resync(
        &mut self,
        flow: FlowId,
        context: L5oId,
        request: ResyncRequest,
    ) -> bool {
        let id = SocketId::of_flow(flow);
        let Some(port) = self.nvme_port(id).filter(|port| port.rx == Ok(context)) else {
            return false;
        };
        match request {
            ResyncRequest::Scan { tcpsn } | ResyncRequest::AsyncEnd { tcpsn } => {
                port.asked = Some(tcpsn);
                self.nvme_notice(id);
            }
            ResyncRequest::AsyncStart { .. } | ResyncRequest::AsyncCancel => {}
        }
        true
    }

    /// The device refused a context. Says whether it is one of these.
    pub(crate) fn nvme_refused(&mut self, refused: &L5oRefused) -> bool {
        let id = SocketId::of_flow(refused.flow);
        let Some(port) = self.nvme_port(id).filter(|port| port.rx == Ok(refused.context)) else {
            return false;
        };
        port.rx = Err(refused.why);
        let counters = &mut self.out.counters;
        counters.nvme_rx_device -= counters.nvme_rx_device.min(1);
        counters.nvme_rx_sw += 1;
        self.nvme_notice(id);
        true
    }

    /// The device lost everything. Its buffers come back one by one.
    pub(crate) fn nvme_device_reset(&mut self, id: SocketId) {
        let Some(port) = self.nvme_port(id) else { return };
        if port.rx.is_ok() {
            (port.rx, port.asked) = (Err(Refusal::DeviceReset), None);
            self.nvme_notice(id);
        }
    }

    /// The connection is over: the context goes.
    pub(crate) fn nvme_ended(&mut self, id: SocketId) {
        let Some(port) = self.nvme_port(id) else { return };
        let context = core::mem::replace(&mut port.rx, Err(Refusal::Ended)).ok();
        self.out.ops.extend(context.map(|context| Op::L5oDestroy { context }));
    }

    /// The transport has something to look at.
    fn nvme_notice(&mut self, id: SocketId) {
        self.notices.push_back(Notice::Socket(id));
    }
}
