//! NVMe/TCP between two hosts with real devices, on links with and without faults: with and without
//! digests and TLS, by the device and in software.

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
