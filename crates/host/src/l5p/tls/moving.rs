//! Moves of a session, with its connection, to the host of another queue.
//!
//! Called by [`crate::stream`]. The contexts of a device are not known to another one, so they are
//! destroyed before the move and requested anew after it. Claims of the old device are worked off
//! before: content that it decrypted is copied, and no other received byte is left.

use bytes::Bytes;

use super::receive::FrontRecord;
use super::stage::TlsStage;
use super::{DECRYPTED_BYTES_MAX, HostTlsSession};
use crate::l5p::L5pConnection;
use crate::net::outbox::Outbox;
use crate::tcp::rcv::TcpReceiveState;

impl HostTlsSession {
    /// Returns whether the session can move: the handshake is complete, everything written is in
    /// the send stream, and everything received is content that can be read.
    pub(crate) fn may_move(&self, rcv: &TcpReceiveState) -> bool {
        let readable = match &self.front {
            FrontRecord::Unseen => 0,
            FrontRecord::InPlace(content) => content.left + content.trailer,
            FrontRecord::Awaited(_) | FrontRecord::Copied(_) => return false,
        };
        matches!(self.stage, TlsStage::Open(_))
            && self.queue.is_empty()
            && !self.closed_for_send
            && self.decrypted_bytes <= DECRYPTED_BYTES_MAX
            && rcv.ready_bytes() == readable
    }

    /// Copies the content that is read in place, and destroys the receive contexts. The connection
    /// destroys those of its send stream.
    pub(crate) fn leave_device(&mut self, conn: &mut L5pConnection, out: &mut Outbox) {
        while let Some(content) = self.front.in_place() {
            let piece = conn.rcv.peek();
            let piece = Bytes::copy_from_slice(&piece[..piece.len().min(content.left)]);
            let len = piece.len();
            self.decrypted_bytes += len;
            self.decrypted.push_back(piece);
            self.consume_clear(&mut conn.rcv, out, len);
        }
        if let Some(mut offload) = self.offload.take() {
            offload.release(out);
        }
        if let Some(tx_keys) = &mut conn.snd.transforms.tx_keys {
            tx_keys.forget_device();
        }
    }
}
