//! Sans-IO applications over the host's sockets. Because they are sans-IO, a simulation can run the
//! whole product.
//!
//! [`content`] is the content server, [`get`] a client for bulk receive, [`proxy`] the L7 load
//! balancer, [`nvme`] the NVMe/TCP target and initiator. [`remote`] lets the content server serve
//! files of the file systems on namespaces, which [`ext4`] reads. [`pattern_rules`] has the rules
//! of content server and proxy about byte patterns, [`dns`] the messages that look backends up,
//! `connections` the trait by which the content server and the proxy use the host's connections,
//! `write_buffers` the memory for data that is written to disks.
//! Time is a parameter of every call; nothing here opens a socket or a file, or starts a thread.
#![forbid(unsafe_code)]

mod connections;
pub mod content;
pub mod dns;
pub mod ext4;
pub mod get;
pub mod nvme;
mod pattern_inspection;
pub mod pattern_rules;
pub mod proxy;
pub mod remote;
mod write_buffers;
