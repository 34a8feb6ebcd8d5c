//! What an odd host does to the operations that it gives its device.
//!
//! It answers a device that asks where a record begins late, and twice; it takes a context for
//! sealing away, so that what it hands over next meets a device that has lost it; it hands a batch
//! of QUIC packets over twice, under the same packet numbers. A device has to refuse what it cannot
//! do, and the host has to go on in software. Called by [`crate::node`] for each operation on its
//! way into the ring; the world says when (`Event::LoseContext`).

use std::collections::VecDeque;

use abi::l5o::{self, L5oId};
use abi::quic::{self, QuicId};
use abi::{Op, Transmit};
use base::SeqNum;

/// A context of a device that seals.
#[derive(Clone, Copy, Debug)]
enum Seals {
    Tls(L5oId),
    Quic(QuicId),
}

/// An answer to `L5oResyncRxReq`.
type Answer = (L5oId, SeqNum, Option<u64>);

/// An odd host's part of a node.
#[derive(Debug, Default)]
pub(crate) struct OddHost {
    /// Answers are given in the turn after, twice.
    pub(crate) late_answers: bool,
    answers: Vec<Answer>,
    /// The context for sealing that the device was asked for last.
    seals: Option<Seals>,
    /// The next batch of QUIC packets is handed over twice.
    repeats: bool,
}

impl OddHost {
    /// Takes the context that was asked for last away, without the host's knowledge; or, of QUIC,
    /// has the next packets use their numbers again.
    pub(crate) fn lose_context(&mut self, ring: &mut VecDeque<Op>) {
        match self.seals.take() {
            Some(Seals::Tls(context)) => ring.push_back(Op::L5oDestroy { context }),
            Some(Seals::Quic(quic)) if self.repeats => ring.push_back(Op::QuicRemove { quic }),
            Some(Seals::Quic(_)) => self.repeats = true,
            None => {}
        }
    }

    /// A turn of the host begins. Says whether something was put into the ring.
    pub(crate) fn begin_turn(&mut self, ring: &mut VecDeque<Op>) -> bool {
        let any = !self.answers.is_empty();
        for (context, tcpsn, number) in self.answers.drain(..) {
            for _ in 0..2 {
                ring.push_back(Op::L5oResyncRxResp { context, tcpsn, number });
            }
        }
        any
    }

    /// Puts an operation into the ring.
    pub(crate) fn pass(&mut self, op: Op, ring: &mut VecDeque<Op>) {
        match &op {
            Op::L5oCreate(made) if matches!(made.direction, l5o::Direction::Transmit) => {
                self.seals = Some(Seals::Tls(made.context));
            }
            Op::QuicAdd(made) if matches!(made.direction, quic::Direction::Transmit) => {
                self.seals = Some(Seals::Quic(made.quic));
            }
            &Op::L5oResyncRxResp { context, tcpsn, number } if self.late_answers => {
                return self.answers.push((context, tcpsn, number));
            }
            Op::Transmit(transmit) if self.repeats && transmit.protect.is_some() => {
                self.repeats = false;
                let again = copy(transmit);
                ring.push_back(op);
                return ring.push_back(Op::Transmit(again));
            }
            _ => {}
        }
        ring.push_back(op);
    }
}

/// The same transmit, of which nobody wants to hear.
fn copy(transmit: &Transmit) -> Transmit {
    Transmit {
        flow: transmit.flow,
        header: transmit.header.clone(),
        segment_size: transmit.segment_size,
        parts: transmit.parts.clone(),
        timestamp: transmit.timestamp,
        echo: None,
        retransmission: true,
        protect: transmit.protect.clone(),
    }
}
