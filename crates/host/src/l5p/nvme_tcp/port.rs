//! What a connection keeps of the device's work for NVMe over TCP: its receive context, and what
//! the device has to say about it until the transport asks.
//!
//! Called by [`crate::Host`] with events and by [`super::Transport`]. Memory that comes back for a
//! connection that is gone is dropped: whoever waited for it knows that the connection is gone.
//!
//! A context does not last as long as its connection: a reset of the device ends it, and over TLS
//! every record that it does not follow, a change of keys among them. Then another is made, from
//! the next PDU on whose header has not come, but not more than so many a second: each has the
//! device give back and take all buffers.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use abi::aligned::AlignedBuf;
use abi::l5o::{Direction, L5oCreate, L5oId, L5oRefused, L5oState, ResyncRequest};
use abi::nvme_tcp::{
    DdpId, DdpSetup, DdpTeardownDone, NvmeTcpLimits, NvmeTcpState, OverTls, Placed,
};
use abi::{FlowId, Op, Refusal};
use base::SeqNum;

use super::tx::pdus::Pdus;
use crate::api::{Notice, NvmeInfo, SocketId};
use crate::host::Host;
use crate::l5p::tls::NextRecord;
use crate::limit::PerSecond;
use crate::table::Slot;

/// Receive contexts of a connection in a second.
pub(super) const CONTEXTS_PER_SECOND: u32 = 4;

/// The device's part in a connection.
#[derive(Debug)]
pub(crate) struct Port {
    /// The receive context, or why there is none.
    pub(super) rx: Result<L5oId, Refusal>,
    /// Where there is none there may be one later.
    again: bool,
    /// Where its stream begins in records of TLS.
    from: Option<NextRecord>,
    made: PerSecond,
    /// The name of the buffer that was lent last.
    lent: DdpId,
    /// Buffers that came back.
    pub(super) back: VecDeque<DdpTeardownDone>,
    /// Where the device thinks that a PDU begins.
    pub(super) asked: Option<SeqNum>,
}

impl Port {
    fn new() -> Self {
        Self {
            rx: Err(Refusal::Disabled),
            again: false,
            from: None,
            made: PerSecond::default(),
            lent: DdpId(0),
            back: VecDeque::new(),
            asked: None,
        }
    }
}

impl Host {
    /// Asks the device for a receive context. `skip` bytes from the next on are the rest of a PDU
    /// that is followed here. Gives the next byte's position in the stream; none where there is no
    /// context.
    pub(super) fn nvme_attach(
        &mut self,
        socket: SocketId,
        state: NvmeTcpState,
        skip: u32,
    ) -> Option<SeqNum> {
        let (conn, session, port) = self.table.slot_mut(socket)?.layers_mut()?;
        let (flow, tuple, rcv) = (conn.flow, conn.tuple, &conn.rcv);
        let next = rcv.seq(rcv.read_position());
        let record = session.map(|session| session.next_record(rcv)).transpose();
        let first = port.is_none();
        let port = port.get_or_insert_with(|| Box::new(Port::new()));
        let offered = self.out.nvme_tcp.and_then(|limits| match limits.rx {
            true => Ok(()),
            false => Err(Refusal::NotSupported),
        });
        port.again = offered.is_ok();
        let mut from = offered.and(record);
        if from.is_ok() && !port.made.allows(self.latest, CONTEXTS_PER_SECOND) {
            from = Err(Refusal::KeysChangeTooOften);
        }
        let rx = from.map(|from| {
            let context = self.out.new_context();
            let over = from.map(|from| OverTls { skip, ..from.over });
            let state = L5oState::NvmeTcp(NvmeTcpState { over, ..state });
            let (tcpsn, direction) =
                (from.map_or(next + skip, |from| from.seq), Direction::Receive(tuple));
            let create = L5oCreate { context, flow, direction, tcpsn, state };
            self.out.ops.push_back(Op::L5oCreate(Box::new(create)));
            context
        });
        let late = Err(Refusal::KeysChangeTooOften);
        let counters = &mut self.out.counters;
        counters.nvme_rx_put_off += u64::from(rx == late && port.rx != late);
        counters.nvme_rx_device += u64::from(first && rx.is_ok());
        counters.nvme_rx_sw += u64::from(first && rx.is_err());
        counters.nvme_rx_renewed += u64::from(!first && rx.is_ok());
        (port.rx, port.from, port.asked) = (rx, from.ok().flatten(), None);
        rx.ok().map(|_| port.from.map_or(next, |from| from.seq))
    }

    /// With all read that came, up to `position` of the stream: gives a context up whose stream
    /// went on elsewhere. Says whether there is none, and may be one.
    pub(super) fn nvme_is_to_attach(&mut self, socket: SocketId, position: SeqNum) -> bool {
        let Some((conn, session, Some(port))) =
            self.table.slot_mut(socket).and_then(Slot::layers_mut)
        else {
            return false;
        };
        if conn.rcv.finished() {
            return false;
        }
        if let (Ok(context), Some(from)) = (port.rx, port.from) {
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
            (port.rx, port.asked) = (Err(why), None);
            self.out.ops.push_back(Op::L5oDestroy { context });
            self.out.counters.nvme_rx_lost += 1;
        }
        port.rx.is_err() && port.again
    }

    /// What `ss` shows.
    pub(crate) fn nvme_info(&self, socket: SocketId) -> Option<NvmeInfo> {
        let slot = self.table.slot(socket)?;
        let (conn, port) = (slot.stream.conn()?, slot.nvme.as_deref()?);
        let tx_offload = conn.snd.transforms.pdus.as_deref().and_then(Pdus::offload);
        Some(NvmeInfo { tx_offload, rx_offload: port.rx.map(drop) })
    }

    /// The device's part in a connection, while there is one.
    pub(super) fn nvme_port(&mut self, socket: SocketId) -> Option<&mut Port> {
        let (_, _, port) = self.table.slot_mut(socket)?.layers_mut()?;
        port.as_deref_mut()
    }

    /// The receive context that works now.
    pub(super) fn nvme_context(&mut self, socket: SocketId) -> Option<L5oId> {
        self.nvme_port(socket)?.rx.ok()
    }

    /// Lends the device a buffer of which the bytes `there` have come, and gives its name; gives it
    /// back where there is no context.
    pub(super) fn nvme_lend(
        &mut self,
        socket: SocketId,
        (tag, offset, len, there): (u16, u32, u32, u32),
        buffer: AlignedBuf,
    ) -> Result<DdpId, AlignedBuf> {
        let worth =
            |limits: NvmeTcpLimits| limits.buffers_max > 0 && len - there >= limits.io_threshold;
        let Some(context) =
            self.nvme_context(socket).filter(|_| self.out.nvme_tcp.is_ok_and(worth))
        else {
            return Err(buffer);
        };
        let Some(flow) = self.table.get(socket).map(|conn| conn.flow) else {
            return Err(buffer);
        };
        let Some(port) = self.nvme_port(socket) else { return Err(buffer) };
        let id = DdpId(port.lent.0.wrapping_add(1));
        port.lent = id;
        let setup = DdpSetup { context, flow, tag, id, offset, len, there, buffer };
        self.out.ops.push_back(Op::DdpSetup(Box::new(setup)));
        self.out.counters.nvme_ddp_setup += 1;
        Ok(id)
    }

    /// Asks for a buffer. Where the context is gone it is on its way already.
    pub(super) fn nvme_reclaim(&mut self, socket: SocketId, tag: u16) {
        if let Some(context) = self.nvme_context(socket) {
            self.out.ops.push_back(Op::DdpTeardown { context, tag });
        }
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
        let (conn, session, port) = self.table.slot_mut(socket)?.layers_mut()?;
        let context = port.as_deref()?.rx.ok()?;
        if session.is_some_and(|session| !session.shows_packets()) {
            return None;
        }
        let (metadata, at) = conn.rcv.metadata_mut()?;
        let placed = metadata.placed.as_deref_mut()?;
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
        (port.rx, port.again) = (Err(refused.why), false);
        let counters = &mut self.out.counters;
        counters.nvme_rx_device -= counters.nvme_rx_device.min(1);
        counters.nvme_rx_sw += 1;
        self.nvme_notice(id);
        true
    }

    /// The device lost everything. Its buffers come back one by one.
    pub(crate) fn nvme_device_reset(&mut self, id: SocketId) {
        let Some(port) = self.nvme_port(id) else { return };
        if let Ok(context) = port.rx {
            (port.rx, port.asked) = (Err(Refusal::DeviceReset), None);
            // It may not have been made before the reset, and have buffers afterwards.
            self.out.ops.push_back(Op::L5oDestroy { context });
            self.nvme_notice(id);
        }
    }

    /// The connection is over: the context goes.
    pub(crate) fn nvme_ended(&mut self, id: SocketId) {
        let Some(port) = self.nvme_port(id) else { return };
        port.again = false;
        let context = core::mem::replace(&mut port.rx, Err(Refusal::Ended)).ok();
        self.out.ops.extend(context.map(|context| Op::L5oDestroy { context }));
    }

    /// The transport has something to look at.
    fn nvme_notice(&mut self, id: SocketId) {
        self.notices.push_back(Notice::Socket(id));
    }
}
