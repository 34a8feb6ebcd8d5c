//! The pipeline, which every frame passes regardless of engines.
//!
//! `rx` turns frames into events, `tx` checks transmits and completes their headers, `tso` cuts
//! runs into packets; `egress` queues output for hosts and, in a `run_queue`, for the link, and
//! `merge` decides which relayed packets join others in that queue. No other part queues, keeps
//! payload or knows connections; order and waiting are the task of [`crate::flow`].

mod egress;
pub(crate) mod headers;
mod merge;
mod run_queue;
pub(crate) mod rx;
mod timestamp_guard;
mod tso;
pub(crate) mod tx;

pub(crate) use egress::Egress;
pub(crate) use run_queue::{QueuedPacket, RelayedFrame, RunQueue};
pub(crate) use timestamp_guard::TimestampGuard;
pub(crate) use tso::TxRun;
