//! NVMe over TCP, spoken over the host's sockets.

pub mod target;
