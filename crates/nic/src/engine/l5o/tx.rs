//! Transmits with sealed parts: planned when the operation is taken, sealed when they leave.
//!
//! [`L5oEngine::plan`] checks each part and puts its content in its place, so that the file engine
//! sees host memory and extents only. [`L5oEngine::seal`] is called in the order of the flow, when
//! all content is at hand. Between the two a plan holds a reference to the keys, which keeps a
//! destroyed context alive for it.
//!
//! A part that the context cannot complete drops its transmit: nothing leaves unsealed, for the
//! peer could not tell (tls-offload.rst: "drop", never leak).

use abi::l5o::{Content, Sealed};
use abi::port::{Payload, Payloads};
use abi::{Part, Parts};
use alloc::boxed::Box;
use alloc::sync::Arc;
use base::SeqNum;
use smallvec::SmallVec;

use super::{Context, L5oEngine, Source, Way};
use crate::engine::tls::{Keys, Seal};
use crate::slab::Key;

/// How a transmit's payload is made of the parts of its plan.
pub(crate) type Pieces = SmallVec<[Piece; 2]>;

/// Bytes on the wire, and what they are made from.
pub(crate) enum Piece {
    /// So many bytes of payload, as they are.
    Plain(u32),
    /// Bytes to be sealed.
    Sealed {
        /// The context.
        context: Key,
        /// Its keys: whoever has them keeps the context.
        keys: Arc<Keys>,
        /// What is to be sealed; its content is in the transmit's parts.
        sealed: Box<Sealed>,
    },
}

impl core::fmt::Debug for Piece {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Plain(len) => write!(f, "Plain({len})"),
            Self::Sealed { sealed, .. } => write!(f, "Sealed({})", sealed.len),
        }
    }
}

/// Why a transmit is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// It contradicts itself.
    Malformed,
    /// There is no such context, or it cannot complete what is asked: the host has to seal.
    Unsealed,
}

impl L5oEngine {
    /// Takes the sealed parts out of a transmit and leaves their content.
    pub(crate) fn plan(&mut self, queue: usize, parts: Parts) -> Result<(Pieces, Parts), Refused> {
        let (mut pieces, mut contents) = (Pieces::new(), Parts::new());
        for part in parts {
            let mut sealed = match part {
                Part::Sealed(sealed) => sealed,
                Part::Pdu(_) => return Err(Refused::Unsealed),
                plain => {
                    pieces.push(Piece::Plain(plain.len()));
                    contents.push(plain);
                    continue;
                }
            };
            let key = self.find(queue, sealed.context).unwrap_or(Key::NONE);
            let Some(Context { way: Way::Transmit(_), keys, .. }) = self.contexts.get(key) else {
                self.counters.tx_tls_drop_bypass_req += 1;
                return Err(Refused::Unsealed);
            };
            if !Seal::check(keys, &sealed) {
                return Err(Refused::Malformed);
            }
            let empty = Content::Host(bytes::Bytes::new());
            match core::mem::replace(&mut sealed.content, empty) {
                Content::Host(bytes) => {
                    self.counters.dma_recover_bytes += u64::from(sealed.prefix);
                    contents.push(Part::Host(bytes));
                }
                Content::File(extent) if extent.len > 0 => contents.push(Part::File(extent)),
                Content::File(_) => {}
                Content::Pdu(_) => return Err(Refused::Unsealed),
            }
            pieces.push(Piece::Sealed { context: key, keys: Arc::clone(keys), sealed });
        }
        Ok((pieces, contents))
    }

    /// Makes the payload of a transmit whose first byte is `tcpsn` out of its parts.
    pub(crate) fn seal(
        &mut self,
        pieces: Pieces,
        tcpsn: SeqNum,
        segment_size: u16,
        parts: &Payloads,
    ) -> Result<Payloads, Refused> {
        let (mut source, mut out, mut at) = (Source::new(parts), Payloads::new(), tcpsn);
        for piece in pieces {
            match piece {
                Piece::Plain(len) => {
                    source.share(len, &mut out);
                    at += len;
                }
                Piece::Sealed { context, keys, sealed } => {
                    out.push(self.seal_part(context, &keys, &sealed, at, &mut source)?);
                    at += sealed.len;
                    let packets = match segment_size {
                        0 => 1,
                        size => sealed.len.div_ceil(u32::from(size)),
                    };
                    self.counters.tx_tls_encrypted_packets += u64::from(packets);
                    self.counters.tx_tls_encrypted_bytes += u64::from(sealed.len);
                }
            }
        }
        Ok(out)
    }

    fn seal_part(
        &mut self,
        context: Key,
        keys: &Keys,
        sealed: &Sealed,
        tcpsn: SeqNum,
        source: &mut Source<'_>,
    ) -> Result<Payload, Refused> {
        self.cache.touch(context.index(), &mut self.counters);
        let Some(Context { way: Way::Transmit(state), .. }) = self.contexts.get_mut(context) else {
            self.counters.tx_tls_drop_bypass_req += 1;
            return Err(Refused::Unsealed);
        };
        let mut buffer = self.outputs.take(sealed.len as usize);
        let room = Arc::get_mut(&mut buffer).map(|b| b.as_mut_slice());
        let Some(out) = room.and_then(|room| room.get_mut(..sealed.len as usize)) else {
            return Err(Refused::Malformed);
        };
        let mut seal = Seal { keys, sealed, scratch: &mut self.scratch };
        let effort = seal.run(state, tcpsn, source, out);
        let Ok(effort) = effort else {
            self.counters.tx_tls_ooo += 1;
            self.counters.tx_tls_drop_no_sync_data += 1;
            return Err(Refused::Unsealed);
        };
        let c = &mut self.counters;
        c.tx_tls_ooo += u64::from(effort.out_of_order);
        c.tx_tls_skip_no_sync_data += u64::from(effort.skipped);
        c.tx_tls_resync_bytes += if effort.rebuilt { u64::from(sealed.prefix) } else { 0 };
        self.outputs.lent(&buffer);
        Ok(Payload::Block { block: buffer, start: 0, len: sealed.len })
    }
}
