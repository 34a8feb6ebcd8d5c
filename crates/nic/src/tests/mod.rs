//! Tests of the whole device, with a mock host above it and a mock link and disk below.

pub(crate) mod frames;
mod hostile;
mod l5o_disorder;
mod l5o_rx;
mod l5o_stream;
mod l5o_tx;
mod memory;
mod namespaces;
mod nvme_adversary;
mod nvme_buffers;
mod nvme_disorder;
mod nvme_rx;
mod nvme_stream;
mod nvme_tls;
mod nvme_tx;
mod order;
mod quic;
mod quic_hostile;
mod quic_order;
mod quic_rx;
mod quic_tx;
pub(crate) mod rig;
mod setup;
mod setup_listen;
mod splice;
pub(crate) mod teardown;
mod transfer;
