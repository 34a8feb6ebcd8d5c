//! NVMe/TCP between two hosts with real devices, on links with and without faults: with and without
//! digests and TLS, by the device and in software; and a content server above it.

mod context_renewal;
mod device_lies;
mod disk;
mod invalid_pdus;
mod machines;
mod remote_files;
mod slow_reader;
mod storage;
mod tls_handshakes;
mod transport;
mod user;
