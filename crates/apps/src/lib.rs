//! Applications as sans-IO handlers over the host's sockets, so that a simulation runs the whole
//! product.
//!
//! [`content`] is the content server, [`proxy`] the L7 load balancer, [`nvme`] has the ends of NVMe
//! over TCP; [`dns`] has the messages by which backends are looked up, `connections` what the first
//! two ask of the host. Time comes in as a parameter; nothing here opens a socket, a file or a
//! thread.
#![forbid(unsafe_code)]

mod connections;
pub mod content;
pub mod dns;
pub mod nvme;
pub mod proxy;
