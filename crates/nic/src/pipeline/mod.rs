//! The pipeline: what every frame passes, whatever engine has a part in it.
//!
//! `rx` turns frames into events, `tx` checks transmits and completes their headers, `tso` cuts
//! runs into packets; `egress` holds what waits for hosts and wire. No other part of it waits,
//! keeps payload or knows a connection; order and waiting are [`crate::flow`]'s.

mod egress;
pub(crate) mod headers;
pub(crate) mod rx;
mod stamps;
mod tso;
pub(crate) mod tx;

pub(crate) use egress::Egress;
pub(crate) use stamps::Stamps;
pub(crate) use tso::Run;
