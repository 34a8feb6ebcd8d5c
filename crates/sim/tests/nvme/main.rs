//! NVMe over TCP between two hosts with real devices: PDUs over a good wire and a bad one, with
//! digests and without, by the device and in software.

mod again;
mod claims;
mod disk;
mod greedy;
mod hostile;
mod machines;
mod secure;
mod storage;
mod transport;
mod user;
