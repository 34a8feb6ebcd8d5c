//! Inspection of connections: the socket's calls, and the device's contexts.
//!
//! Called by the application through [`crate::Host`]. Few connections are inspected in most
//! programs, so the inspectors are in a table of their own and cost other connections nothing.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

use abi::inspect::InspectState;
use abi::l5o::{L5oCreate, L5oDirection, L5oId, L5oRefused, L5oState};
use abi::{Op, Refusal};
use patterns::PatternSet;

use super::Streams;
use super::table::StreamRef;
use crate::api::{PatternMatch, SendError, SocketError, SocketId};
use crate::l5p::inspect::StreamInspector;
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
    /// Inspects the bytes of a connection from the next unread one on.
    ///
    /// # Errors
    /// [`SendError::NotConnected`]: there is no such connection.
    pub(crate) fn start_inspection(
        &mut self,
        cx: &mut TcpEnv<'_>,
        socket: SocketId,
        patterns: Arc<PatternSet>,
    ) -> Result<(), SendError> {
        self.promote(cx, socket);
        if self.table.get(socket).is_none() {
            return Err(SendError::NotConnected(SocketError::Closed));
        }
        if let Some(before) = self.inspectors.get_mut(socket) {
            before.release(cx.out, Refusal::Ended);
        }
        let context = self.request_inspection(cx.out, socket, &patterns);
        self.inspectors.insert(socket, StreamInspector::new(patterns, context));
        Ok(())
    }

    /// Requests a context that inspects for a connection.
    fn request_inspection(
        &self,
        out: &mut Outbox,
        socket: SocketId,
        patterns: &Arc<PatternSet>,
    ) -> Result<L5oId, Refusal> {
        let conn = self.table.get(socket).filter(|conn| conn.state.is_synchronized());
        let conn = conn.ok_or(Refusal::Ended)?;
        let offered = match out.offloads.l5o {
            Ok(limits) if limits.inspect => Ok(()),
            Ok(_) => Err(Refusal::NotSupported),
            Err(why) => Err(why),
        };
        if offered.is_err() || conn.rcv.is_finished() {
            out.counters.inspect_sw += 1;
            return offered.and(Err(Refusal::Ended));
        }
        let context = out.new_context();
        let state =
            InspectState { patterns: Arc::clone(patterns), over_tls: self.has_session(socket) };
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
        let (bytes, claims) = match self.table.socket(socket) {
            None | Some(StreamRef::LazyTcb(_)) => return,
            Some(StreamRef::Tcp(conn)) => (conn.rcv.peek(), conn.rcv.inspect_claims()),
            Some(StreamRef::Tls(conn, session)) => {
                let claims = conn.rcv.inspect_claims().filter(|_| session.peeks_in_place());
                (session.peek(&conn.rcv), claims)
            }
        };
        let Some(inspector) = self.inspectors.get_mut(socket) else { return };
        inspector.inspect(bytes, claims, &mut out.counters, found);
        if inspector.is_request_due() {
            out.counters.inspect_device_asked_again += 1;
            self.renew_context(out, socket);
        }
    }

    /// Requests another context for an inspected connection.
    fn renew_context(&mut self, out: &mut Outbox, id: SocketId) {
        let Some(inspector) = self.inspectors.get_mut(id) else { return };
        let patterns = Arc::clone(inspector.patterns());
        let context = self.request_inspection(out, id, &patterns);
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
