//! A host that misuses its operations.
//!
//! It answers resynchronization requests late and twice; it destroys a transmit context behind the
//! host's back, so that the next transmits meet a device without it; it submits a batch of QUIC
//! packets twice under the same packet numbers. The device must refuse the impossible operations,
//! and the host must fall back to software. Called by [`crate::node`] for each operation on its way
//! into the ring; `Event::LoseContext` triggers the loss of a context.

use std::collections::VecDeque;

use abi::l5o::{self, L5oId};
use abi::quic::{self, QuicId};
use abi::{Op, Transmit};
use base::SeqNum;

/// A transmit context of the device, which encrypts.
#[derive(Clone, Copy, Debug)]
enum TransmitContext {
    Tls(L5oId),
    Quic(QuicId),
}

/// An answer to `L5oResyncRxReq`: context, sequence number and record number.
type LateResyncAnswer = (L5oId, SeqNum, Option<u64>);

/// The operation filter of a node.
#[derive(Debug, Default)]
pub(crate) struct MisbehavingHost {
    /// Resynchronization requests are answered one turn late, twice.
    pub(crate) late_answers: bool,
    answers: Vec<LateResyncAnswer>,
    /// The transmit context most recently created.
    last_tx_context: Option<TransmitContext>,
    /// The next batch of QUIC packets is submitted twice.
    repeat_next: bool,
}

impl MisbehavingHost {
    /// Destroys the transmit context most recently created without the host's knowledge. For QUIC,
    /// the first call instead repeats the next packets, and the next call destroys the context.
    pub(crate) fn lose_context(&mut self, ring: &mut VecDeque<Op>) {
        match self.last_tx_context.take() {
            Some(TransmitContext::Tls(context)) => ring.push_back(Op::L5oDestroy { context }),
            Some(TransmitContext::Quic(quic)) if self.repeat_next => {
                ring.push_back(Op::QuicRemove { quic })
            }
            Some(TransmitContext::Quic(_)) => self.repeat_next = true,
            None => {}
        }
    }

    /// Begins a turn of the host. Returns whether operations were put into the ring.
    pub(crate) fn begin_turn(&mut self, ring: &mut VecDeque<Op>) -> bool {
        let any = !self.answers.is_empty();
        for (context, tcpsn, number) in self.answers.drain(..) {
            for _ in 0..2 {
                ring.push_back(Op::L5oResyncRxResp { context, tcpsn, number });
            }
        }
        any
    }

    /// Puts an operation into the ring, or delays or repeats it.
    pub(crate) fn pass(&mut self, op: Op, ring: &mut VecDeque<Op>) {
        match &op {
            Op::L5oCreate(made) if matches!(made.direction, l5o::L5oDirection::Transmit) => {
                self.last_tx_context = Some(TransmitContext::Tls(made.context));
            }
            Op::QuicAdd(made) if matches!(made.direction, quic::QuicDirection::Transmit) => {
                self.last_tx_context = Some(TransmitContext::Quic(made.quic));
            }
            &Op::L5oResyncRxResp { context, tcpsn, number } if self.late_answers => {
                return self.answers.push((context, tcpsn, number));
            }
            Op::Transmit(transmit) if self.repeat_next && transmit.quic.is_some() => {
                self.repeat_next = false;
                let again = copy(transmit);
                ring.push_back(op);
                return ring.push_back(Op::Transmit(again));
            }
            _ => {}
        }
        ring.push_back(op);
    }
}

/// Returns a copy of a transmit, without its echo.
fn copy(transmit: &Transmit) -> Transmit {
    Transmit {
        flow: transmit.flow,
        header: transmit.header.clone(),
        segment_size: transmit.segment_size,
        parts: transmit.parts.clone(),
        timestamp: transmit.timestamp,
        echo: None,
        retransmission: true,
        quic: transmit.quic.clone(),
    }
}
