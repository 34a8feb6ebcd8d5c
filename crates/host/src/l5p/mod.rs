//! Protocols above TCP that the host speaks itself (the papers' L5Ps).
//!
//! TLS is a session between a connection and the application's socket: [`crate::stream`] gives it
//! its turn whenever something happened to its connection; the socket calls go to the session
//! instead of to the connection. NVMe/TCP is the application's, which polls a
//! [`crate::nvme::Transport`] of its own over the socket, plain or of TLS; here are the PDUs of its
//! send stream, and the device's part. TCP below knows neither: its send stream asks [`transforms`]
//! for the bytes of records and PDUs, and it carries the metadata of received segments unseen.

pub(crate) mod nvme_tcp;
pub(crate) mod tls;
pub(crate) mod transforms;

use transforms::Transforms;

/// A connection with the transforms of the protocols here.
pub(crate) type Connection = crate::tcp::conn::Connection<Transforms>;

#[cfg(test)]
mod tests {
    use super::*;

    /// An idle connection has to fit a kibibyte with its slot, its route and its flow-table entry.
    #[test]
    fn a_connection_is_small() {
        let bytes = size_of::<Connection>();
        assert!(bytes <= 792, "{bytes} bytes");
    }
}
