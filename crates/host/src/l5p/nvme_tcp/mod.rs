//! Connection state for NVMe/TCP: the PDUs of the send stream, and the device's contexts.
//!
//! Called by [`crate::stream`]. The protocol itself is implemented above the socket, in
//! [`crate::nvme::NvmeTransport`].

pub(crate) mod rx_offload;
pub(crate) mod tx_pdus;
