//! Inspection of connections: the socket's calls, and the device's contexts.
//!
//! Called by the application through [`crate::Host`]. Few connections are inspected in most
//! programs, so the inspectors are in a table of their own and cost other connections nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::inspect::{InspectState, InspectedContent};
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oRefused, L5oState};
use abi::{Op, Refusal};
use patterns::PatternSet;

use super::Streams;
use super::table::{SocketTable, StreamRef};
use crate::api::{PatternMatch, SendError, SocketError, SocketId};
use crate::l5p::inspect::{ClaimsAt, InspectionCursor, StreamInspector};
use crate::net::outbox::Outbox;
use crate::tcp::conn::TcpEnv;

/// The inspectors, by the slot of their connection.
#[derive(Debug, Default)]
pub(crate) struct Inspectors {
    slots: Vec<Option<Box<StreamInspector>>>,
}

impl Inspectors {
    /// Returns whether no connection was ever inspected.
    pub(super) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns whether a connection is inspected.
    pub(super) fn has(&self, id: SocketId) -> bool {
        self.get(id).is_some()
    }

    fn get(&self, id: SocketId) -> Option<&StreamInspector> {
        self.slots.get(id.index())?.as_deref()
    }

    fn get_mut(&mut self, id: SocketId) -> Option<&mut StreamInspector> {
        self.slots.get_mut(id.index())?.as_deref_mut()
    }

    fn insert(&mut self, id: SocketId, inspector: StreamInspector) {
        if self.slots.len() <= id.index() {
            self.slots.resize_with(id.index() + 1, || None);
        }
        self.slots[id.index()] = Some(Box::new(inspector));
    }

    /// Removes the inspector of a connection whose slot becomes free.
    pub(super) fn remove(&mut self, id: SocketId) {
        if let Some(slot) = self.slots.get_mut(id.index()) {
            *slot = None;
        }
    }

    /// Notes that the application has read `bytes`.
    pub(super) fn consume(&mut self, id: SocketId, bytes: usize) {
        if let Some(inspector) = self.get_mut(id) {
            inspector.consume(bytes);
        }
    }
}

impl Streams {
    /// Inspects the bytes of a connection from the next unread one on, or the data of the commands
    /// of NVMe/TCP in them (`nvme_data`).
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection.
    pub(crate) fn start_inspection(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        patterns: Arc<PatternSet>,
        nvme_data: bool,
    ) -> Result<(), SendError> {
        self.promote(cx, socket);
        if self.table.get(socket).is_none() {
            return Err(SendError::NotConnected(SocketError::Closed));
        }
        if let Some(before) = self.inspectors.get_mut(socket) {
            before.release(cx.out, Refusal::Ended);
        }
        let context = self.request_inspection(cx.out, socket, &patterns, nvme_data);
        self.inspectors.insert(socket, StreamInspector::new(patterns, nvme_data, context));
        Ok(())
    }

    /// Requests a context that inspects for a connection.
    fn request_inspection(
        &self,
        out: &mut Outbox,
        socket: SocketId,
        patterns: &Arc<PatternSet>,
        nvme_data: bool,
    ) -> Result<L5oId, Refusal> {
        let conn = self.table.get(socket).filter(|conn| conn.state.is_synchronized());
        let conn = conn.ok_or(Refusal::Ended)?;
        let offered = match out.offloads.l5o {
            Ok(limits) if limits.inspect => Ok(()),
            Ok(_) => Err(Refusal::NotSupported),
            Err(why) => Err(why),
        };
        // The device finds the data of commands with a receive context of NVMe/TCP.
        let found = match out.offloads.nvme_tcp {
            Ok(limits) if nvme_data && !limits.rx => Err(Refusal::NotSupported),
            Err(why) if nvme_data => Err(why),
            _ => Ok(()),
        };
        let offered = offered.and(found);
        if offered.is_err() || conn.rcv.is_finished() {
            out.counters.inspect_sw += 1;
            return offered.and(Err(Refusal::Ended));
        }
        let context = out.new_context();
        let content = match (nvme_data, self.has_session(socket)) {
            (true, _) => InspectedContent::NvmeData,
            (false, true) => InspectedContent::TlsContent,
            (false, false) => InspectedContent::Stream,
        };
        let state = InspectState { patterns: Arc::clone(patterns), content };
        let create = L5oCreate {
            context,
            flow: conn.flow,
            direction: L5oDirection::Receive(conn.tuple),
            tcpsn: conn.rcv.ack(),
            state: L5oState::Inspect(state),
        };
        out.ops.push_back(Op::L5oCreate(Box::new(create)));
        out.counters.inspect_device += 1;
        Ok(context)
    }

    /// Inspects those of the bytes that [`Self::peek`] returns which were not inspected. Requests a
    /// context again that the device refused because its table was full, if due.
    pub(crate) fn inspect(
        &mut self,
        out: &mut Outbox,
        socket: SocketId,
        found: &mut dyn FnMut(PatternMatch),
    ) {
        let Some((bytes, claims)) = readable(&self.table, socket) else { return };
        let Some(inspector) = self.inspectors.get_mut(socket) else { return };
        inspector.inspect(bytes, claims, &mut out.counters, found);
        self.renew_context_if_due(out, socket);
    }

    /// Inspects those of the next `len` bytes that [`Self::peek`] returns which were not inspected:
    /// data of a command, from `offset` of the data on if the cursor is new. Requests a context as
    /// [`Self::inspect`] does.
    pub(crate) fn inspect_nvme_data(
        &mut self,
        out: &mut Outbox,
        (socket, len): (SocketId, usize),
        cursor: (&mut Option<InspectionCursor>, u32),
        found: &mut dyn FnMut(PatternMatch),
    ) {
        let Some((bytes, claims)) = readable(&self.table, socket) else { return };
        let Some(inspector) = self.inspectors.get(socket) else { return };
        let bytes = bytes.get(..len).unwrap_or(bytes);
        inspector.inspect_data(cursor, bytes, claims, &mut out.counters, found);
        self.renew_context_if_due(out, socket);
    }

    fn renew_context_if_due(&mut self, out: &mut Outbox, socket: SocketId) {
        if self.inspectors.get(socket).is_some_and(StreamInspector::is_request_due) {
            out.counters.inspect_device_asked_again += 1;
            self.renew_context(out, socket);
        }
    }

    /// Requests another context for an inspected connection.
    fn renew_context(&mut self, out: &mut Outbox, id: SocketId) {
        let Some(inspector) = self.inspectors.get_mut(id) else { return };
        let patterns = Arc::clone(inspector.patterns());
        let nvme_data = inspector.inspects_nvme_data();
        let context = self.request_inspection(out, id, &patterns, nvme_data);
        if let Some(inspector) = self.inspectors.get_mut(id) {
            inspector.set_context(context);
        }
    }

    /// Returns whether the device inspects a connection; `None` if it is not inspected.
    pub(crate) fn inspection_info(&self, socket: SocketId) -> Option<Result<(), Refusal>> {
        self.inspectors.get(socket).map(|inspector| inspector.context().map(drop))
    }

    /// Handles the refusal of a context. Returns false if the context is not one that inspects.
    pub(crate) fn inspection_refused(&mut self, cx: &mut TcpEnv<'_>, refused: &L5oRefused) -> bool {
        let id = SocketId::of_flow(refused.flow);
        if !self.table.contains(id) {
            return false;
        }
        let ours = |inspector: &&mut StreamInspector| inspector.context() == Ok(refused.context);
        let Some(inspector) = self.inspectors.get_mut(id).filter(ours) else { return false };
        inspector.handle_refused(refused.reason);
        cx.out.counters.inspect_device_refused += 1;
        cx.out.counters.inspect_sw += 1;
        true
    }

    /// Handles a reset of the device: another context is requested.
    pub(super) fn inspection_device_reset(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        let Some(inspector) = self.inspectors.get_mut(id) else { return };
        if !inspector.wants_context_after_reset() {
            return;
        }
        // The operations in the ring may still create the context after the reset.
        inspector.release(cx.out, Refusal::DeviceReset);
        self.renew_context(cx.out, id);
    }

    /// Destroys the context of a connection that has ended. The application may still read.
    pub(super) fn inspection_ended(&mut self, cx: &mut TcpEnv<'_>, id: SocketId) {
        if let Some(inspector) = self.inspectors.get_mut(id) {
            inspector.release(cx.out, Refusal::Ended);
        }
    }
}

/// Returns the next bytes that can be read, and the claims of the device about their segment.
fn readable(table: &SocketTable, socket: SocketId) -> Option<(&[u8], Option<ClaimsAt<'_>>)> {
    match table.socket(socket)? {
        StreamRef::LazyTcb(_) => None,
        StreamRef::Tcp(conn) => Some((conn.rcv.peek(), conn.rcv.inspect_claims())),
        StreamRef::Tls(conn, session) => {
            let claims = conn.rcv.inspect_claims().filter(|_| session.peeks_in_place());
            Some((session.peek(&conn.rcv), claims))
        }
    }
}
