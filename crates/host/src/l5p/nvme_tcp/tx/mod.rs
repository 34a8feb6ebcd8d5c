//! Sending PDUs of NVMe/TCP: the socket's calls, and the device's context for their digests.
//!
//! Called by whoever speaks NVMe/TCP on a socket, plain or of TLS. A PDU goes to the send stream
//! whole and at once, in the order of the calls, whatever the room: the caller bounds what it has
//! outstanding. Where the device fills digests in, the stream describes the PDU (`pdus`); else the
//! host computes the digest, of memory at once, of a file when it has read all of the data. It
//! reads no PDU and knows none of their types.

pub(crate) mod pdus;

use alloc::boxed::Box;
use alloc::sync::Arc;

use abi::crypto::CryptoProvider;
use abi::l5o::{Direction, L5oCreate, L5oId, L5oState};
use abi::nvme_tcp::{NvmeTcpState, PREFIX_BYTES_MAX};
use abi::{Op, Refusal};
use base::{Instant, internal_error};
use bytes::Bytes;

use crate::api::{FileId, SendError, SocketError, SocketId};
use crate::host::Host;
use crate::l5p::Connection;
use crate::l5p::transforms::{Text, Unit};
use crate::tcp::conn::Cx;
use crate::tcp::spans::Source;
use pdus::Written;

/// The data of a PDU.
#[derive(Clone, Debug)]
pub enum PduData {
    /// There is none.
    None,
    /// Memory, shared and not copied.
    Memory(Bytes),
    /// Part of a file, read by the device where it does that.
    File {
        /// Which.
        file: FileId,
        /// First byte.
        offset: u64,
        /// Bytes, at most [`PREFIX_BYTES_MAX`] where a digest follows.
        len: u32,
    },
}

impl Host {
    /// Begins to send PDUs with data digests on a connection: `crypto` computes those that the
    /// device does not fill in. The device is asked for a context, again by itself after each of
    /// its resets; the connection's end gives it back. `over` in `state` is filled in here.
    ///
    /// # Errors
    /// Why the device is not asked. PDUs can be sent all the same.
    pub fn nvme_tx_context(
        &mut self,
        now: Instant,
        socket: SocketId,
        state: NvmeTcpState,
        crypto: Arc<dyn CryptoProvider>,
    ) -> Result<L5oId, Refusal> {
        self.make_whole(now, socket);
        let conn = self.table.get_mut(socket).ok_or(Refusal::Ended)?;
        let pdus = conn.snd.transforms.pdus.get_or_insert_default();
        pdus.begin(state, crypto);
        match pdus.context() {
            Some(context) => Ok(context),
            None => self.install_digests(now, socket),
        }
    }

    /// Asks the device for a context, where it may have one and there are digests to fill in; keeps
    /// why not.
    fn install_digests(&mut self, now: Instant, socket: SocketId) -> Result<L5oId, Refusal> {
        let installed = self.try_digests(now, socket);
        let pdus =
            self.table.get_mut(socket).and_then(|conn| conn.snd.transforms.pdus.as_deref_mut());
        if let (Some(pdus), Err(why)) = (pdus, installed) {
            pdus.refuse(why);
        }
        installed
    }

    fn try_digests(&mut self, now: Instant, socket: SocketId) -> Result<L5oId, Refusal> {
        let over = if self.has_session(socket) {
            // The device seals, or the digest is in what the host seals.
            let context = self.with_session(now, socket, |session, conn, _| session.tx_at(conn));
            Some(context.flatten().ok_or(Refusal::Encrypted)?)
        } else {
            None
        };
        let install = |conn: &mut Connection, cx: &mut Cx<'_>| {
            let (flow, tcpsn) = (conn.flow, conn.seq(conn.snd.spans.end()));
            let may_write = conn.state.may_write();
            let pdus = conn.snd.transforms.pdus.as_deref_mut().filter(|_| may_write);
            let pdus = pdus.ok_or(Refusal::Ended)?;
            let state = NvmeTcpState { over, ..pdus.state().ok_or(Refusal::Ended)? };
            if !cx.out.nvme_tcp?.tx || !state.data_digest {
                return Err(Refusal::NotSupported);
            }
            let context = cx.out.new_context();
            let (direction, state) = (Direction::Transmit, L5oState::NvmeTcp(state));
            let create = L5oCreate { context, flow, direction, tcpsn, state };
            cx.out.ops.push_back(Op::L5oCreate(Box::new(create)));
            cx.out.counters.nvme_tx_device += 1;
            pdus.renew(context);
            Ok(context)
        };
        self.with(now, socket, install).unwrap_or(Err(Refusal::Ended))
    }

    /// The device lost everything: what is written from now on it may complete again.
    pub(crate) fn renew_digests(&mut self, now: Instant, socket: SocketId) {
        let pdus =
            |conn: &Connection| conn.snd.transforms.pdus.as_ref().is_some_and(|p| p.has_digests());
        if self.table.get(socket).is_some_and(pdus) {
            // Else the host computes them, as before this.
            let _refused = self.install_digests(now, socket);
        }
    }

    /// Appends a PDU to the send stream, whole: `header` with all that precedes the data, `data`,
    /// and if `digest` says so and there is data, its CRC32C. Gives the bytes of PDUs written on
    /// the connection so far, for [`Self::pdus_acknowledged`].
    ///
    /// # Errors
    /// [`SendError`]: the connection is gone or shut down, the file has no such range, or a digest
    /// is wanted of what has no [`Self::nvme_tx_context`].
    pub fn send_pdu(
        &mut self,
        now: Instant,
        socket: SocketId,
        header: Bytes,
        data: PduData,
        digest: bool,
    ) -> Result<u64, SendError> {
        self.make_whole(now, socket);
        self.check_open(socket)?;
        let gone = SendError::NotConnected(SocketError::Closed);
        let conn = self.table.get_mut(socket).ok_or(gone)?;
        let pdus = conn.snd.transforms.pdus.get_or_insert_default();
        if digest && !pdus.has_digests() {
            return Err(SendError::NoDigests);
        }
        let (data, data_len) = match data {
            PduData::None => (Source::Memory(Bytes::new()), 0),
            PduData::Memory(bytes) => {
                let len = u32::try_from(bytes.len()).map_err(|_| SendError::BadExtent)?;
                (Source::Memory(bytes), len)
            }
            PduData::File { len, .. } if digest && len > PREFIX_BYTES_MAX => {
                return Err(SendError::BadExtent);
            }
            PduData::File { file, offset, len } => {
                let source = self.files.source(file, offset, len.into());
                (source.ok_or(SendError::BadExtent)?, len)
            }
        };
        let mut pdu = Written { header, data, data_len, digest, mark: 0 };
        pdu.mark = pdus.mark(pdu.len());
        let mark = pdu.mark;
        self.write_pdu(now, socket, pdu);
        Ok(mark)
    }

    fn write_pdu(&mut self, now: Instant, socket: SocketId, pdu: Written) {
        if self.has_session(socket) {
            self.with_session(now, socket, |session, conn, cx| session.send_pdu(conn, cx, pdu));
            self.touch(socket);
        } else {
            self.touch(socket);
            self.with_unsettled(now, socket, |conn, cx| conn.write_pdu(cx, pdu));
        }
    }

    /// The largest result of [`Self::send_pdu`] all of whose bytes the peer's TCP has acknowledged,
    /// and which the device reads no more, for a retransmission that was in vain; zero where there
    /// is none.
    #[must_use]
    pub fn pdus_acknowledged(&self, socket: SocketId) -> u64 {
        let conn = self.table.get(socket);
        let pdus = conn.and_then(|conn| Some((conn.snd.transforms.pdus.as_deref()?, conn.snd.una)));
        pdus.map_or(0, |(pdus, una)| pdus.acknowledged(una))
    }
}

impl Connection {
    /// Appends a PDU as it is, to a connection without a session.
    fn write_pdu(&mut self, cx: &mut Cx<'_>, pdu: Written) {
        let Some(pdus) = &mut self.snd.transforms.pdus else {
            internal_error!(
                cx.out.counters.internal_errors,
                "a PDU on a connection that sends none"
            );
            return;
        };
        let mark = pdu.mark;
        for (text, len) in pdus.make(pdu, true, &mut cx.out.counters) {
            match text {
                Text::Plain(source) => self.snd.spans.push_plain(source, len),
                Text::Pdu(pdu) => self.snd.spans.push_unit(Unit::Pdu(pdu)),
            }
        }
        pdus.note(mark, self.snd.spans.end(), self.snd.una);
    }
}
