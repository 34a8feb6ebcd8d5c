//! Faults between two endpoints with real devices: each transfer arrives byte for byte or is reset
//! with its error code, and the counters report what happened.

mod device;
mod fairness;
mod files;
mod flood;
mod handshake;
mod ids;
mod keys;
mod migration;
mod packets;
mod topology;
mod transfers;
