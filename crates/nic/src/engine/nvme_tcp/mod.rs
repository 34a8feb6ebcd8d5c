//! NVMe over TCP behind the seam of [`super::l5o`].
//!
//! `tx` is the transmit side: data digests (autonomous-nic-offloads.md section 5.1).

pub(crate) mod tx;
