//! The pipeline: what every frame passes, whatever engine has a part in it.
//!
//! `rx` turns frames into events, `tx` checks transmits and completes their headers, `tso` cuts
//! runs into packets. No part of it waits, keeps payload or knows a connection; order and waiting
//! are [`crate::flow`]'s.

pub(crate) mod headers;
mod outlet;
pub(crate) mod rx;
mod stamps;
mod tso;
pub(crate) mod tx;

pub(crate) use outlet::{Outlet, RUNS_MAX};
pub(crate) use stamps::Stamps;
pub(crate) use tso::Run;
