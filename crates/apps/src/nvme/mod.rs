//! NVMe over TCP, above [`host::nvme`]: commands and what they mean.
//!
//! [`initiator`] is the end that uses namespaces (a host, in the words of NVMe), [`target`] the one
//! that has them.

pub mod initiator;
pub mod target;
